/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of the CUDA kernels over chains, trees and mixed batches: the CPU's bits for every KV type, group
 * size and number of rows. */
#include <stdio.h>

#include "tests/cuda-emu/kernels-util.h"

#define BLOCKS 80u

struct shape {
    uint32_t heads, kv_heads, hd;
    enum dk_kv_type kv;
};
static const struct shape shapes[] = {
    {8, 2, 32, DK_KV_BF16}, {9, 3, 64, DK_KV_F32},
    {4, 4, 40, DK_KV_F16},  {20, 1, 16, DK_KV_BF16}, /* a group of more than 16 heads */
    {2, 1, 288, DK_KV_F32},                          /* more dimensions than threads */
};

/* A batch: rows of several sequences, each a tree behind a context of some length. */
struct batch {
    uint32_t n, max_vis;
    struct dcu_row rows[64];
    struct dk_attn_row cpu[64];
    uint32_t words[4096], n_words;
};

/* `rows` rows behind ctx positions: row i's parent is i / fan - 1 ..., a chain with fan 1. */
static void add_sequence(struct batch *b, struct rng *r, uint32_t ctx, uint32_t rows, uint32_t fan)
{
    const uint32_t blocks = b->n_words, n_blocks = (ctx + rows + 15) / 16,
                   tail_start = ctx / 16 * 16;
    for (uint32_t i = 0; i < n_blocks; i++)
        b->words[b->n_words++] = rng_below(r, BLOCKS);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t path[64], depth = 0;
        for (uint32_t at = i + 1; at;
             at = (at - 1 + fan - 1) / fan * (fan > 1) + (fan == 1) * (at - 1)) {
            path[depth++] = at - 1;
            if (at == 1)
                break;
        }
        struct dcu_row *w = &b->rows[b->n];
        *w = (struct dcu_row){.n_vis = ctx + depth, .tail_start = tail_start, .blocks = blocks};
        w->tail = b->n_words;
        for (uint32_t p = tail_start; p < ctx; p++)
            b->words[b->n_words++] = b->words[blocks + p / 16] * 16 + p % 16;
        for (uint32_t d = depth; d-- > 0;) {
            uint32_t pos = ctx + path[d];
            b->words[b->n_words++] = b->words[blocks + pos / 16] * 16 + pos % 16;
        }
        if (fan == 1) /* plain rows: no tail */
            w->tail_start = (w->n_vis + 15) / 16 * 16;
        b->max_vis = w->n_vis > b->max_vis ? w->n_vis : b->max_vis;
        b->n++;
    }
}

static void cpu_rows(struct batch *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        b->cpu[i] = (struct dk_attn_row){b->rows[i].n_vis, b->rows[i].tail_start,
                                         b->words + b->rows[i].blocks, b->words + b->rows[i].tail};
}

static void check(const struct shape *s, struct batch *b)
{
    struct rng r = {s->hd + b->n};
    const size_t nq = (size_t)s->heads * s->hd, elems = (size_t)BLOCKS * 16 * s->kv_heads * s->hd;
    const size_t ldq = nq + 4, ldo = nq + 1, elem = dk_kv_elem_bytes(s->kv);
    float *q = floats_new(&r, b->n * ldq, 1), *want = malloc(b->n * nq * 4);
    void *k = malloc(elems * elem), *v = malloc(elems * elem);
    void *scratch = aligned_alloc(64, DK_SCRATCH_BYTES);
    for (size_t i = 0; i < elems; i++) {
        float x = rng_float(&r), y = rng_float(&r);
        if (s->kv == DK_KV_F32) {
            ((float *)k)[i] = x;
            ((float *)v)[i] = y;
        } else {
            ((uint16_t *)k)[i] = s->kv == DK_KV_BF16 ? dk_f32_to_bf16(x) : dk_f32_to_f16(x);
            ((uint16_t *)v)[i] = s->kv == DK_KV_BF16 ? dk_f32_to_bf16(y) : dk_f32_to_f16(y);
        }
    }
    const struct dk_kv kv = {s->kv, s->kv_heads, s->hd, k, v, false};
    cpu_rows(b);
    cpu_ops()->attention(&kv, b->cpu, b->n, q, ldq, want, nq, s->heads, 0, s->heads, 0.17f,
                         scratch);

    struct dcu_attn p = {
        .kv = {s->kv, s->kv_heads, s->hd, dev_of(k, elems * elem), dev_of(v, elems * elem)},
        .rows = dev_of(b->rows, b->n * sizeof(*b->rows)),
        .n_rows = b->n,
        .max_vis = b->max_vis + 300, /* the bound of a captured graph */
        .words = dev_of(b->words, b->n_words * 4),
        .q = dev_of(q, b->n * ldq * 4),
        .ldq = ldq,
        .out = dev_new(b->n * ldo * 4),
        .ldo = ldo,
        .n_heads = s->heads,
        .scale = 0.17f};
    p.part = dev_new(4 * dcu_attention_part_floats(b->n, s->heads, s->hd, p.max_vis));
    dev_ok(dev->attention(dev_s, &p));
    float *got = malloc(b->n * ldo * 4);
    dev_get(got, p.out, b->n * ldo * 4);
    for (uint32_t i = 0; i < b->n; i++) {
        char what[64];
        snprintf(what, sizeof(what), "row %u of %u, %u positions", i, b->n, b->rows[i].n_vis);
        same_floats(what, got + i * ldo, want + i * nq, nq);
    }
    free(got);
    free(q);
    free(want);
    free(k);
    free(v);
    free(scratch);
}

START_TEST(single_rows)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 513, 700};
    struct rng r = {1};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i += _i == 0 ? 1 : 3) {
        struct batch b = {0};
        add_sequence(&b, &r, lengths[i] - 1, 1, 1);
        check(&shapes[_i], &b);
    }
}
END_TEST

START_TEST(trees)
{
    struct rng r = {2};
    struct batch b = {0};
    add_sequence(&b, &r, 250, 13, 2); /* a tree over the end of a chunk */
    check(&shapes[_i], &b);
    memset(&b, 0, sizeof(b));
    add_sequence(&b, &r, 40, 11, 1);
    check(&shapes[_i], &b);
}
END_TEST

START_TEST(mixed_batches)
{
    struct rng r = {3};
    struct batch b = {0};
    add_sequence(&b, &r, 20, 3, 1);
    add_sequence(&b, &r, 300, 7, 3);
    add_sequence(&b, &r, 0, 5, 1); /* a prompt's first rows */
    add_sequence(&b, &r, 255, 2, 1);
    check(&shapes[_i], &b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cuda-kernels-attention");
    TCase *c = test_case(s, "attention");
    const int n = (int)(sizeof(shapes) / sizeof(*shapes));
    tcase_add_checked_fixture(c, dev_open, dev_close);
    tcase_add_loop_test(c, single_rows, 0, n);
    tcase_add_loop_test(c, trees, 0, n);
    tcase_add_loop_test(c, mixed_batches, 0, n);
    return test_main(s);
}
