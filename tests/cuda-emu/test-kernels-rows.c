/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernels that stand around products: look-up, norms, gates, rotation, K/V, moves of rows, all with
 * the CPU's bits, one row or many. */
#include <math.h>
#include <stdio.h>

#include "tests/cuda-emu/kernels-util.h"

static float *got_floats(const float *d, size_t n)
{
    float *x = malloc(n * 4 + 1);
    ck_assert_ptr_nonnull(x);
    dev_get(x, d, n * 4);
    return x;
}

/* ---- look-up --------------------------------------------------------------------------------------- */

static void check_embed(enum dk_type t, enum dcu_layout l, uint32_t n, uint32_t k)
{
    struct rng r = {t + 100 * l};
    struct test_weight w;
    weight_new(&w, &r, t, l, n, k);
    struct dcu_row rows[9] = {{0}};
    for (uint32_t i = 0; i < 9; i++)
        rows[i].token = i == 8 ? n - 1 : rng_below(&r, n);
    const size_t ld = k + 5;
    float *x = dev_new(9 * ld * 4), *want = malloc(k * 4 + 1);
    dev_ok(dev->embed(dev_s, &w.gpu, dev_of(rows, sizeof(rows)), 9, x, ld));
    float *got = got_floats(x, 9 * ld);
    for (uint32_t i = 0; i < 9; i++) {
        dk_weight_row(&w.cpu, rows[i].token, want);
        same_floats(dk_type_info(t)->name, got + i * ld, want, k);
        for (uint32_t j = k; j < ld; j++)
            ck_assert_uint_eq(((unsigned char *)(got + i * ld + j))[0], 0xa5);
    }
    free(got);
    free(want);
    weight_done(&w);
}

START_TEST(embeddings)
{
    enum dk_type t = (enum dk_type)_i;
    bool big = dk_type_info(t)->block_elems == 256;
    check_embed(t, DCU_LAYOUT_PANEL, 37, big ? 512 : 96);
    if (t == DK_BF16 || t == DK_F16)
        check_embed(t, DCU_LAYOUT_MMA, 37, 88);
}
END_TEST

START_TEST(angles)
{
    struct rng r = {3};
    float inv[24];
    struct dcu_row rows[33] = {{0}};
    for (uint32_t i = 0; i < 24; i++)
        inv[i] = (float)(rng_u32(&r) >> 8) * 0x1p-24f;
    for (uint32_t i = 0; i < 33; i++)
        rows[i].pos = rng_below(&r, 1u << (i % 18));
    float *cs = dev_new(sizeof(float) * 33 * 48), want[48];
    dev_ok(dev->angles(dev_s, dev_of(inv, sizeof(inv)), 48, dev_of(rows, sizeof(rows)), 33, cs));
    float *got = got_floats(cs, 33 * 48);
    for (uint32_t i = 0; i < 33; i++) {
        for (uint32_t j = 0; j < 24; j++)
            dk_sincosf((float)rows[i].pos * inv[j], &want[24 + j], &want[j]);
        same_floats("angles", got + i * 48, want, 48);
    }
    free(got);
}
END_TEST

/* ---- what stands before products ----------------------------------------------------------------------- */

static const uint32_t row_counts[] = {1, 2, 5, 8, 33};
#define N_ROWS (sizeof(row_counts) / sizeof(*row_counts))

/* Values of a row as the CPU makes them. */
static void cpu_values(enum dcu_src src, const float *x, const float *u, const float *w, uint32_t k,
                       float *v)
{
    if (src == DCU_SRC_PLAIN)
        memcpy(v, x, k * 4);
    else if (src == DCU_SRC_RMSNORM)
        cpu_ops()->rmsnorm(v, x, w, k, 1e-5f);
    else
        cpu_ops()->silu_mul(v, x, u, k);
}

/* One launch with everything: gather, values, forms; forms are read back by a product with the identity,
 * and the floats by themselves. */
static void check_prepare(enum dcu_src src, uint32_t k, uint32_t rows, bool gather)
{
    struct rng r = {src * 1000 + k + rows};
    const size_t ldx = k + 3, ldu = k + 8, ldy = k + 1;
    float *x = floats_new(&r, (rows + 2) * ldx, 4), *u = floats_new(&r, (rows + 2) * ldu, 1);
    float *w = floats_new(&r, k, 1), *want = malloc(k * 4 + 1);
    uint32_t index[64];
    for (uint32_t i = 0; i < rows; i++)
        index[i] = rng_below(&r, rows + 2);
    const unsigned forms =
        DCU_FORM_F32 | (k % 32 ? 0 : DCU_FORM_INT) | DCU_FORM_BF16 | DCU_FORM_F16;
    struct dcu_prep p = {.src = src,
                         .x = dev_of(x, (rows + 2) * ldx * 4),
                         .ldx = ldx,
                         .index = gather ? dev_of(index, rows * 4) : NULL,
                         .w = dev_of(w, k * 4),
                         .eps = 1e-5f,
                         .u = dev_of(u, (rows + 2) * ldu * 4),
                         .ldu = ldu,
                         .rows = rows,
                         .k = k,
                         .y = dev_new(rows * ldy * 4),
                         .ldy = ldy,
                         .forms = forms,
                         .act = act_new(forms, rows, k)};
    dev_ok(dev->prepare(dev_s, &p));
    float *y = got_floats(p.y, rows * ldy);
    const uint32_t kp = (k + 15) / 16 * 16;
    float *f32 = got_floats(p.act.mem, (size_t)rows * kp);
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t from = gather ? index[i] : i;
        cpu_values(src, x + from * ldx, u + from * ldu, w, k, want);
        same_floats("values", y + i * ldy, want, k);
        same_floats("F32", f32 + (size_t)i * kp, want, k);
        for (uint32_t j = k; j < kp; j++)
            ck_assert(f32[(size_t)i * kp + j] == 0);
    }
    /* In place, forms alone: the same again. */
    if (!gather) {
        p.y = p.x;
        p.ldy = ldx;
        dev_ok(dev->prepare(dev_s, &p));
        free(y);
        y = got_floats(p.x, rows * ldx);
        for (uint32_t i = 0; i < rows; i++) {
            cpu_values(src, x + i * ldx, u + i * ldu, w, k, want);
            same_floats("in place", y + i * ldx, want, k);
        }
    }
    free(y);
    free(f32);
    free(x);
    free(u);
    free(w);
    free(want);
}

START_TEST(prepared_rows)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        check_prepare((enum dcu_src)_i, 96, row_counts[i], i % 2);
        check_prepare((enum dcu_src)_i, 70, row_counts[i], i % 2 == 0);
    }
    check_prepare((enum dcu_src)_i, 2400, 3, false); /* more than one piece */
}
END_TEST

START_TEST(residual_then_norm)
{
    struct rng r = {17};
    const uint32_t k = 2080, rows = 3;
    float *x = floats_new(&r, rows * k, 1), *d = floats_new(&r, rows * k, 1);
    float *w = floats_new(&r, k, 1), *y = malloc(k * 4);
    struct dcu_prep p = {.src = DCU_SRC_RMSNORM,
                         .x = dev_of(x, rows * k * 4),
                         .ldx = k,
                         .add = dev_of(d, rows * k * 4),
                         .ldadd = k,
                         .w = dev_of(w, k * 4),
                         .eps = 1e-6f,
                         .rows = rows,
                         .k = k,
                         .y = dev_new(rows * k * 4),
                         .ldy = k};
    dev_ok(dev->prepare(dev_s, &p));
    float *gx = got_floats(p.x, rows * k), *gy = got_floats(p.y, rows * k);
    for (uint32_t i = 0; i < rows; i++) {
        cpu_ops()->add(x + i * k, d + i * k, k);
        cpu_ops()->rmsnorm(y, x + i * k, w, k, 1e-6f);
        same_floats("sum", gx + i * k, x + i * k, k);
        same_floats("norm", gy + i * k, y, k);
    }
    /* And alone. */
    dev_ok(dev->add(dev_s, p.x, k, p.add, k, rows, k - 1));
    free(gx);
    gx = got_floats(p.x, rows * k);
    for (uint32_t i = 0; i < rows; i++) {
        cpu_ops()->add(x + i * k, d + i * k, k - 1);
        same_floats("add", gx + i * k, x + i * k, k);
    }
    free(gx);
    free(gy);
    free(x);
    free(d);
    free(w);
    free(y);
}
END_TEST

START_TEST(moves)
{
    struct rng r = {9};
    const uint32_t n = 1100, rows = 6;
    static const uint32_t index[6] = {4, 0, UINT32_MAX, 5, 1, 2};
    float *src = floats_new(&r, rows * n, 1);
    float *d = dev_of(src, rows * n * 4), *a = dev_new(rows * n * 4), *b = dev_new(rows * n * 4);
    static const uint32_t from[6] = {3, 2, 0, UINT32_MAX, 3, 5};
    uint32_t *at = dev_of(index, sizeof(index)), *of = dev_of(from, sizeof(from));
    dev_ok(dev->fill(dev_s, a, 0, rows * n * 4));
    dev_ok(dev->fill(dev_s, b, 0, rows * n * 4));
    dev_ok(dev->gather(dev_s, a, n, d, n, at, rows, n - 1));
    dev_ok(dev->move(dev_s, b, n, at, d, n, of, rows, n - 1));
    float *ga = got_floats(a, rows * n), *gb = got_floats(b, rows * n);
    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t j = 0; j + 1 < n && index[i] != UINT32_MAX; j++) {
            ck_fast(ga[i * n + j] == src[index[i] * n + j]);
            ck_fast(gb[index[i] * n + j] == (from[i] == UINT32_MAX ? 0 : src[from[i] * n + j]));
        }
        ck_assert(ga[i * n + n - 1] == 0 && ga[2 * n + i] == 0 && gb[3 * n + i] == 0);
    }
    free(ga);
    free(gb);
    free(src);
}
END_TEST

/* ---- rotation and K/V ---------------------------------------------------------------------------------- */

struct shape {
    uint32_t heads, kv_heads, hd;
    enum dk_rope_pairing pairing;
    bool bias, norm;
    enum dk_kv_type kv;
};
static const struct shape shapes[] = {
    {4, 2, 32, DK_ROPE_HALVES, false, true, DK_KV_BF16},
    {3, 1, 64, DK_ROPE_INTERLEAVED, true, false, DK_KV_F32},
    {6, 2, 24, DK_ROPE_HALVES, true, true, DK_KV_F16},
    {2, 2, 160, DK_ROPE_INTERLEAVED, false, false, DK_KV_F16},
};

static void check_qkv(const struct shape *s, uint32_t rows, bool with_q)
{
    struct rng r = {s->hd + rows};
    const uint32_t hd = s->hd, nq = s->heads * hd, nkv = s->kv_heads * hd, n_blocks = 6;
    const size_t kv_bytes = (size_t)n_blocks * nkv * DK_KV_BLOCK * dk_kv_elem_bytes(s->kv);
    float *q = floats_new(&r, rows * nq, 2), *k = floats_new(&r, rows * nkv, 2);
    float *v = floats_new(&r, rows * nkv, 2), *cs = floats_new(&r, rows * hd, 1);
    float *bias = floats_new(&r, nq + 2 * nkv, 1), *norm = floats_new(&r, 2 * hd, 1);
    struct dcu_row list[16] = {{0}};
    unsigned char *want_k = malloc(kv_bytes + 1), *want_v = malloc(kv_bytes + 1);
    unsigned char *got = malloc(kv_bytes + 1);
    memset(want_k, 0x11, kv_bytes);
    memset(want_v, 0x22, kv_bytes);
    for (uint32_t i = 0; i < rows; i++)
        list[i].slot = (i * 37 + 5) % (n_blocks * DK_KV_BLOCK);
    float *d_bias = dev_of(bias, (nq + 2 * nkv) * 4), *d_norm = dev_of(norm, 2 * hd * 4);
    struct dcu_qkv p = {
        .q = with_q ? dev_of(q, rows * nq * 4) : NULL,
        .k = dev_of(k, rows * nkv * 4),
        .v = dev_of(v, rows * nkv * 4),
        .ldq = nq,
        .ldk = nkv,
        .ldv = nkv,
        .q_bias = s->bias ? d_bias : NULL,
        .k_bias = s->bias ? d_bias + nq : NULL,
        .v_bias = s->bias ? d_bias + nq + nkv : NULL,
        .q_norm = s->norm ? d_norm : NULL,
        .k_norm = s->norm ? d_norm + hd : NULL,
        .eps = 1e-6f,
        .n_heads = s->heads,
        .pairing = s->pairing,
        .cs = dev_of(cs, rows * hd * 4),
        .rows = dev_of(list, rows * sizeof(*list)),
        .n_rows = rows,
        .kv = {s->kv, s->kv_heads, hd, dev_of(want_k, kv_bytes), dev_of(want_v, kv_bytes)}};
    dev_ok(dev->qkv_finish(dev_s, &p));
    const struct dk_ops *o = cpu_ops();
    const struct dk_kv kv = {s->kv, s->kv_heads, hd, want_k, want_v, false};
    for (uint32_t i = 0; i < rows; i++) {
        float *qr = q + i * nq, *kr = k + i * nkv, *vr = v + i * nkv;
        if (s->bias) {
            o->add(qr, bias, nq);
            o->add(kr, bias + nq, nkv);
            o->add(vr, bias + nq + nkv, nkv);
        }
        for (uint32_t h = 0; s->norm && h < s->heads; h++)
            o->rmsnorm(qr + h * hd, qr + h * hd, norm, hd, 1e-6f);
        for (uint32_t h = 0; s->norm && h < s->kv_heads; h++)
            o->rmsnorm(kr + h * hd, kr + h * hd, norm + hd, hd, 1e-6f);
        o->rope(qr, s->heads, hd, cs + i * hd, s->pairing);
        o->rope(kr, s->kv_heads, hd, cs + i * hd, s->pairing);
        o->kv_store(&kv, list[i].slot, 0, kv.n_kv_heads, kr, vr);
    }
    if (with_q) {
        float *gq = got_floats(p.q, rows * nq);
        same_floats("q", gq, q, rows * nq);
        free(gq);
    }
    dev_get(got, p.kv.k, kv_bytes);
    ck_assert_msg(memcmp(got, want_k, kv_bytes) == 0, "K of head_dim %u, %u rows", hd, rows);
    dev_get(got, p.kv.v, kv_bytes);
    ck_assert_msg(memcmp(got, want_v, kv_bytes) == 0, "V of head_dim %u, %u rows", hd, rows);

    /* The same stored by itself, and rotation by itself. */
    memset(got, 0x11, kv_bytes);
    dev_put(p.kv.k, got, kv_bytes);
    dev_ok(dev->kv_store(dev_s, &p.kv, p.rows, rows, p.k, nkv, p.v, nkv));
    dev_get(got, p.kv.k, kv_bytes);
    ck_assert_msg(memcmp(got, want_k, kv_bytes) == 0, "K of head_dim %u, alone", hd);
    dev_ok(dev->rope(dev_s, p.k, nkv, rows, s->kv_heads, hd, p.cs, s->pairing));
    float *gk = got_floats(p.k, rows * nkv);
    for (uint32_t i = 0; i < rows; i++)
        o->rope(k + i * nkv, s->kv_heads, hd, cs + i * hd, s->pairing);
    same_floats("rope", gk, k, rows * nkv);
    free(gk);
    free(q);
    free(k);
    free(v);
    free(cs);
    free(bias);
    free(norm);
    free(want_k);
    free(want_v);
    free(got);
}

START_TEST(rotation_and_store)
{
    check_qkv(&shapes[_i], 1, true);
    check_qkv(&shapes[_i], 13, true);
    check_qkv(&shapes[_i], 2, false);
}
END_TEST

/* Compaction: pairs in order, a slot read by one and written by a later one. */
START_TEST(copies_of_slots)
{
    struct rng r = {_i + 1};
    const enum dk_kv_type t = (enum dk_kv_type)_i;
    const uint32_t heads = 2, hd = 20, n_blocks = 3, layers = 2;
    static const uint32_t from[5] = {18, 19, 21, 40, 3}, to[5] = {16, 17, 18, 19, 47}, n = 4;
    const size_t elem = dk_kv_elem_bytes(t), slot = (size_t)heads * hd,
                 size = n_blocks * 16 * slot * elem;
    struct dk_kv kv[2];
    unsigned char *mem[2][2], *got = malloc(size + 1);
    for (uint32_t l = 0; l < layers; l++) {
        for (int v = 0; v < 2; v++) {
            mem[l][v] = malloc(size + 1);
            for (size_t i = 0; i < size; i++)
                mem[l][v][i] = (unsigned char)rng_u32(&r);
        }
        kv[l] = (struct dk_kv){.type = t,
                               .n_kv_heads = heads,
                               .head_dim = hd,
                               .k = dev_of(mem[l][0], size),
                               .v = dev_of(mem[l][1], size)};
    }
    dev_ok(dev->kv_copy(dev_s, dev_of(kv, sizeof(kv)), layers, heads, t, dev_of(from, sizeof(from)),
                        dev_of(to, sizeof(to)), dev_of(&n, 4), 5));
    for (uint32_t l = 0; l < layers; l++)
        for (int v = 0; v < 2; v++) {
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t h = 0; h < heads; h++)
                    for (uint32_t d = 0; d < hd; d++) {
                        size_t at[2];
                        for (int e = 0; e < 2; e++) {
                            uint32_t s = e ? to[i] : from[i];
                            at[e] = ((size_t)(s / 16) * heads + h) * hd * 16 +
                                    (v ? s % 16 * hd + d : d * 16 + s % 16);
                        }
                        memcpy(mem[l][v] + at[1] * elem, mem[l][v] + at[0] * elem, elem);
                    }
            dev_get(got, v ? kv[l].v : kv[l].k, size);
            ck_assert_msg(memcmp(got, mem[l][v], size) == 0, "layer %u, %s", l, v ? "V" : "K");
            free(mem[l][v]);
        }
    free(got);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cuda-kernels-rows");
    TCase *c = test_case(s, "rows");
    tcase_add_checked_fixture(c, dev_open, dev_close);
    tcase_add_loop_test(c, embeddings, 0, DK_TYPE_COUNT);
    tcase_add_test(c, angles);
    tcase_add_loop_test(c, prepared_rows, 0, 3);
    tcase_add_test(c, residual_then_norm);
    tcase_add_test(c, moves);
    tcase_add_loop_test(c, rotation_and_store, 0, sizeof(shapes) / sizeof(*shapes));
    tcase_add_loop_test(c, copies_of_slots, 0, DK_KV_TYPE_COUNT);
    return test_main(s);
}
