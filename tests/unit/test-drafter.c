/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafters against the authors' own program: features, context K/V, logits and drafts of every pass,
 * bidirectional and causal; and the same bits whatever the batch, the chunks, the threads, the tier.
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/backend_cpu.h"
#include "engine/drafter_internal.h"
#include "tests/unit/golden.h"
#include "tests/unit/util.h"

#define MAX_CONTEXT 96u
#define W           8u

/* A target and its drafter, without an engine. */
struct pair {
    struct model_file *file;
    struct backend_model *model;
    struct drafter *drafter;
    uint32_t blocks[MAX_CONTEXT / 16]; /* of the one sequence: in an order of their own */
};

static const struct {
    const char *name, *target, *drafter;
} pairs[] = {
    {"random", "tests/golden/models/d_qwen3", "tests/golden/drafter/random"},
    {"fitted", "tests/golden/drafter/target", "tests/golden/drafter/fitted"},
};

static struct backend_options options(enum dk_tier tier, unsigned threads, enum dk_kv_type kv)
{
    return (struct backend_options){.n_threads = threads,
                                    .tier = tier,
                                    .exact = true,
                                    .kv_type = kv,
                                    .n_kv_blocks = 16,
                                    .max_rows = 128,
                                    .max_context = 512};
}

static void open_pair(struct pair *p, int which, const struct backend_options *o,
                      enum backend_dtype dtype)
{
    struct error err = {0};
    memset(p, 0, sizeof(*p));
    ck_ok(model_file_open(test_path(pairs[which].target), &p->file, &err), &err);
    ck_ok(backend_cpu.load(p->file, o, NULL, NULL, &p->model, &err), &err);
    ck_ok(drafter_new(test_path(pairs[which].drafter), &backend_cpu, p->model, p->file, o, dtype,
                      &p->drafter, &err),
          &err);
    for (uint32_t i = 0; i < MAX_CONTEXT / 16; i++)
        p->blocks[i] = (i * 5 + 3) % 16;
}

static void close_pair(struct pair *p)
{
    drafter_free(p->drafter);
    backend_cpu.free(p->model);
    model_file_free(p->file);
}

static uint32_t slot(const struct pair *p, uint32_t pos)
{
    return p->blocks[pos / 16] * 16 + pos % 16;
}

static const float *tensor(const struct golden *g, const char *name, size_t n)
{
    size_t bytes;
    const float *x = golden_get(g, name, "F32", &bytes);
    ck_assert_uint_eq(bytes, n * sizeof(float));
    return x;
}

/* Puts context rows [from, from + n) of case n_ctx into the pool. */
static void inject(struct pair *p, const float *taps, uint32_t from, uint32_t n, float *fused)
{
    const struct drafter_config *d = drafter_get_config(p->drafter);
    const uint32_t hidden = model_file_config(drafter_get_file(p->drafter))->hidden;
    struct ctx_row rows[MAX_CONTEXT];
    struct error err = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = from + i;
        rows[i] = (struct ctx_row){.taps = taps + (size_t)pos * d->n_taps * d->target_hidden,
                                   .pos = pos,
                                   .slot = slot(p, pos),
                                   .fused = fused ? fused + (size_t)pos * hidden : NULL};
    }
    ck_ok(drafter_inject(p->drafter, rows, n, &err), &err);
}

/* K or V of one position as the oracle has it: [kv heads][head_dim]. */
static void check_kv(const struct pair *p, const struct golden *g, uint32_t n)
{
    const struct backend_model *m = p->drafter->model;
    const uint32_t heads = m->cfg.n_kv_heads, hd = m->cfg.head_dim;
    for (uint32_t l = 0; l < m->cfg.n_layers; l++) {
        char name[32];
        snprintf(name, sizeof(name), "c%u.k%u", n, l);
        const float *k = tensor(g, name, (size_t)n * heads * hd);
        snprintf(name, sizeof(name), "c%u.v%u", n, l);
        const float *v = tensor(g, name, (size_t)n * heads * hd);
        const float *pk = m->layers[l].kv.k, *pv = m->layers[l].kv.v;
        for (uint32_t pos = 0; pos < n; pos++)
            for (uint32_t h = 0; h < heads; h++) {
                size_t block = ((size_t)p->blocks[pos / 16] * heads + h) * hd * 16;
                float got[512];
                for (uint32_t i = 0; i < hd; i++)
                    got[i] = pk[block + i * 16 + pos % 16];
                test_floats_close(name, got, k + ((size_t)pos * heads + h) * hd, hd, 1e-3, 1e-3);
                test_floats_close(name, pv + block + (pos % 16) * hd,
                                  v + ((size_t)pos * heads + h) * hd, hd, 1e-3, 1e-3);
            }
    }
}

static void ids_of(const json_t *a, uint32_t *ret, size_t n)
{
    ck_assert_uint_eq(json_array_size(a), n);
    for (size_t i = 0; i < n; i++)
        ret[i] = (uint32_t)json_integer_value(json_array_get(a, i));
}

/* All passes of one kind: given inputs, logits of all rows; then the passes run by the drafter
 * itself. */
static void check_passes(struct pair *p, const struct golden *g, json_t *c, const char *kind)
{
    struct drafter *d = p->drafter;
    const uint32_t vocab = d->cfg->draft_vocab,
                   n = (uint32_t)json_integer_value(json_object_get(c, "n"));
    bool causal = !strcmp(kind, "causal");
    json_t *passes = json_object_get(c, kind);
    float *logits = mem_array((size_t)W * vocab, sizeof(float));
    uint32_t anchor[MAX_CONTEXT + 1] = {0};
    anchor[n] = (uint32_t)json_integer_value(json_object_get(c, "anchor"));
    struct seq seq = {.tokens = anchor, .n_tokens = n + 1, .n_kv = n, .blocks = p->blocks};
    struct proposal proposal = {0};
    struct draft_round round = {.method = DRAFT_DEDIT,
                                .visibility = causal ? DRAFT_CAUSAL : DRAFT_BIDIRECTIONAL,
                                .window = W,
                                .passes = 4,
                                .max_nodes = PROPOSAL_MAX_NODES,
                                .proposal = &proposal};
    struct draft_entry entry = {.seq = &seq, .round = &round};
    struct block_drafter ops = drafter_ops(d);
    struct error err = {0};
    ck_assert_uint_eq(json_array_size(passes), 4);
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t input[W], draft[W - 1];
        char name[48];
        const json_t *pass = json_array_get(passes, j);
        ids_of(json_object_get(pass, "input"), input, W);
        ids_of(json_object_get(pass, "draft"), draft, W - 1);
        snprintf(name, sizeof(name), "c%u.%s.p%u.logits", n, j ? kind : "bidir", j + 1);
        struct drafter_block b = {.tokens = input,
                                  .n = W,
                                  .start = n,
                                  .blocks = p->blocks,
                                  .causal = causal && j,
                                  .logits = logits};
        ck_ok(drafter_run(d, &b, 1, &err), &err);
        test_floats_close(name, logits, tensor(g, name, (size_t)W * vocab), (size_t)W * vocab, 1e-3,
                          1e-3);
        if (round.done) {
            /* The fixed point came: the reference goes on and changes nothing. */
            ck_assert_mem_eq(round.tokens[round.pass - 1], draft, sizeof(draft));
            continue;
        }
        ck_ok(ops.ops->pass(ops.self, &entry, 1, &err), &err);
        ck_assert_uint_eq(round.pass, j + 1);
        ck_assert_mem_eq(round.tokens[j], draft, sizeof(draft));
    }
    ck_assert(round.done);
    ck_assert_uint_eq(proposal.n, W - 1);
    ck_assert(proposal_is_chain(&proposal));
    for (uint32_t k = 0; k + 1 < W; k++) {
        ck_assert_uint_eq(proposal.tokens[k], round.tokens[round.pass - 1][k]);
        ck_assert(proposal.confidence[k] > 0 && proposal.confidence[k] <= 1);
    }
    mem_free(logits);
}

static void run_reference(int which, const struct backend_options *o)
{
    struct pair p;
    struct golden g;
    char path[128];
    json_error_t je;
    open_pair(&p, which, o, BACKEND_DTYPE_FILE);
    snprintf(path, sizeof(path), "tests/golden/drafter/%s.blocks.safetensors", pairs[which].name);
    golden_open(&g, test_path(path));
    snprintf(path, sizeof(path), "tests/golden/drafter/%s.blocks.json", pairs[which].name);
    json_t *cases = json_load_file(test_path(path), 0, &je);
    ck_assert_msg(cases != NULL, "%s: %s", path, je.text);
    size_t i;
    json_t *c;
    const uint32_t hidden = model_file_config(drafter_get_file(p.drafter))->hidden;
    const struct drafter_config *d = drafter_get_config(p.drafter);
    ck_assert_uint_eq(json_array_size(cases), 3);
    json_array_foreach(cases, i, c)
    {
        uint32_t n = (uint32_t)json_integer_value(json_object_get(c, "n"));
        static float fused[MAX_CONTEXT * 128];
        char name[32];
        ck_assert_uint_le(hidden, 128);
        snprintf(name, sizeof(name), "c%u.taps", n);
        inject(&p, tensor(&g, name, (size_t)n * d->n_taps * d->target_hidden), 0, n, fused);
        snprintf(name, sizeof(name), "c%u.H", n);
        test_floats_close(name, fused, tensor(&g, name, (size_t)n * hidden), (size_t)n * hidden,
                          1e-3, 1e-3);
        check_kv(&p, &g, n);
        check_passes(&p, &g, c, "bidir");
        check_passes(&p, &g, c, "causal");
    }
    json_decref(cases);
    golden_close(&g);
    close_pair(&p);
}

START_TEST(reference)
{
    for (int t = 0; t < DK_TIER_COUNT; t++) {
        struct backend_options o = options((enum dk_tier)t, 2, DK_KV_F32);
        if (dk_ops((enum dk_tier)t))
            run_reference(_i, &o);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drafter");
    TCase *c = test_case(s, "reference");
    tcase_add_loop_test(c, reference, 0, 2);
    return test_main(s);
}
