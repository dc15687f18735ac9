/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a block's rows see and compute: the same bits whatever the batch, the chunks, the threads, the
 * tier and the slots; windows, visibility, reduced vocabularies, noise, draws, trees.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ddtree.h"
#include "engine/device.h"
#include "engine/drafter_internal.h"
#include "engine/noise.h"
#include "kernels/math.h"
#include "tests/unit/draftergen.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"

#define MAX_ROWS  288u
#define FEW_ROWS  96u /* of a batch, unless a setup says otherwise */
#define N_BLOCKS  24u
#define VOCAB     512u
#define HIDDEN    64u
#define MAX_PLACE 20u /* blocks of a sequence */

struct setup {
    enum dk_tier tier;
    unsigned threads;
    enum dk_kv_type kv;
    enum backend_dtype dtype;
    const char *device; /* NULL: the CPU */
    uint32_t rows;      /* 0: FEW_ROWS */
};
static const struct setup plain = {.tier = DK_TIER_C, .threads = 2};

struct pair {
    const struct backend *backend;
    struct model_file *file;
    struct backend_model *model;
    struct drafter *d;
};

static const char *target_path;

static void open_pair(struct pair *p, const struct gen_drafter *g, const struct setup *s)
{
    struct error err = {0};
    char dir[] = "/tmp/dedit-drafter-XXXXXX";
    struct backend_options o = {.n_threads = s->threads,
                                .tier = s->tier,
                                .exact = true,
                                .kv_type = s->kv,
                                .n_kv_blocks = N_BLOCKS,
                                .max_rows = s->rows ? s->rows : FEW_ROWS,
                                .max_context = 320};
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(g, dir);
    char note[64];
    bool optional;
    ck_ok(device_choose(s->device, &o, &p->backend, &optional, note, sizeof(note), &err), &err);
    ck_ok(model_file_open(target_path, &p->file, &err), &err);
    ck_ok(p->backend->load(p->file, &o, NULL, NULL, &p->model, &err), &err);
    int r = drafter_new(dir, p->backend, p->model, p->file, &o, s->dtype, &p->d, &err);
    gen_drafter_remove(g, dir);
    ck_ok(r, &err);
}

static void close_pair(struct pair *p)
{
    drafter_free(p->d);
    p->backend->free(p->model);
    model_file_free(p->file);
}

/* ---- a sequence's context ----------------------------------------------------------------------- */

struct place {
    uint32_t blocks[MAX_PLACE];
};
/* Blocks first, first + step, ... modulo the pool. */
static struct place place_at(uint32_t first, uint32_t step)
{
    struct place p;
    for (uint32_t i = 0; i < MAX_PLACE; i++)
        p.blocks[i] = (first + i * step) % N_BLOCKS;
    return p;
}

/* Tap values of a position: the residual stream of nothing in particular. */
static void make_taps(const struct pair *p, uint64_t seed, uint32_t pos, float *out)
{
    uint32_t n = p->d->cfg->n_taps * HIDDEN;
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + pos * 0xbf58476d1ce4e5b9ull + 1;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        out[i] = (float)((double)(x >> 40) / 8388608.0 - 1.0);
    }
}

static void inject(struct pair *p, const struct place *at, uint64_t seed, uint32_t from, uint32_t n,
                   uint32_t chunk)
{
    static float taps[MAX_ROWS][8 * HIDDEN];
    struct ctx_row rows[MAX_ROWS];
    struct error err = {0};
    for (uint32_t i = 0; i < n; i += chunk) {
        uint32_t k = n - i < chunk ? n - i : chunk;
        for (uint32_t j = 0; j < k; j++) {
            uint32_t pos = from + i + j;
            make_taps(p, seed, pos, taps[j]);
            rows[j] = (struct ctx_row){
                .taps = taps[j], .pos = pos, .slot = at->blocks[pos / 16] * 16 + pos % 16};
        }
        ck_ok(drafter_inject(p->d, rows, k, &err), &err);
    }
}

static void block_tokens(uint64_t seed, uint32_t *ret, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ret[i] = (uint32_t)((seed * 31 + i * 97 + 5) % VOCAB);
}

/* Logits of all rows of one block, alone. */
static void run_one(struct pair *p, const struct place *at, const uint32_t *tokens, uint32_t n,
                    uint32_t start, bool causal, float *logits)
{
    struct error err = {0};
    struct drafter_block b = {.tokens = tokens,
                              .n = n,
                              .start = start,
                              .blocks = at->blocks,
                              .causal = causal,
                              .logits = logits};
    ck_ok(drafter_run(p->d, &b, 1, &err), &err);
}

static float *rows_of(const struct pair *p, uint32_t n)
{
    float *x = mem_array((size_t)n * p->d->cfg->draft_vocab, sizeof(*x));
    ck_assert_ptr_nonnull(x);
    return x;
}

/* ---- the same bits ------------------------------------------------------------------------------ */

static struct gen_drafter kind(int i)
{
    struct gen_drafter g = gen_drafter_new(3);
    if (i == 1) { /* a reduced vocabulary, one layer with a window */
        g.d2t = "I32";
        g.draft_vocab = 100;
        g.sliding = 1;
        g.window = 24;
    }
    if (i == 2) { /* everything its own */
        g.own_embed = g.own_head = true;
        g.hidden = 48;
        g.target_hidden = HIDDEN;
        g.heads = 3;
        g.kv_heads = 1;
    }
    return g;
}

/* A block between others of other lengths, places and visibility. */
static void run_between(struct pair *p, const struct place *at, const uint32_t *tokens, uint32_t n,
                        uint32_t start, float *logits)
{
    struct place other = place_at(1, 2);
    uint32_t t1[8], t2[20];
    float *l1 = rows_of(p, 8), *l2 = rows_of(p, 20);
    struct error err = {0};
    block_tokens(77, t1, 8);
    block_tokens(78, t2, 20);
    inject(p, &other, 9, 0, 30, 30);
    struct drafter_block b[3] = {
        {.tokens = t1, .n = 8, .start = 30, .blocks = other.blocks, .causal = true, .logits = l1},
        {.tokens = tokens, .n = n, .start = start, .blocks = at->blocks, .logits = logits},
        {.tokens = t2, .n = 20, .start = 17, .blocks = other.blocks, .first = 3, .logits = l2},
    };
    ck_ok(drafter_run(p->d, b, 3, &err), &err);
    mem_free(l1);
    mem_free(l2);
}

START_TEST(same_bits)
{
    static const struct setup setups[] = {
        {DK_TIER_C, 1, DK_KV_F32, BACKEND_DTYPE_FILE, NULL, 0},
        {DK_TIER_C, 3, DK_KV_F32, BACKEND_DTYPE_FILE, NULL, 0},
        {DK_TIER_AVX2, 2, DK_KV_F32, BACKEND_DTYPE_FILE, NULL, 0},
        {DK_TIER_AVX512, 2, DK_KV_F32, BACKEND_DTYPE_FILE, NULL, 0},
        {DK_TIER_AVX512, 1, DK_KV_F32, BACKEND_DTYPE_FILE, NULL, 0},
        {DK_TIER_C, 1, DK_KV_F32, BACKEND_DTYPE_FILE, "emu", 0}};
    const struct gen_drafter g = kind(_i);
    const uint32_t n = 8, starts[] = {1, 16, 37, 80};
    uint32_t tokens[8];
    static float want[4][8 * VOCAB];
    block_tokens(1, tokens, n);
    for (size_t s = 0; s < sizeof(setups) / sizeof(*setups); s++) {
        if (!dk_ops(setups[s].tier) || (setups[s].device && !test_emulated_device()))
            continue;
        struct pair p;
        open_pair(&p, &g, &setups[s]);
        const size_t size = (size_t)n * p.d->cfg->draft_vocab;
        float *got = rows_of(&p, n);
        for (size_t k = 0; k < 4; k++) {
            const struct place at = place_at((uint32_t)(k + s) % 5 * 4, 5);
            const uint32_t chunks[] = {80, 1, 7, 80, 3};
            inject(&p, &at, 4, 0, starts[k], chunks[s % 5]);
            run_one(&p, &at, tokens, n, starts[k], false, got);
            if (s == 0)
                memcpy(want[k], got, size * sizeof(float));
            test_floats_equal("alone", got, want[k], size);
            run_one(&p, &at, tokens, n, starts[k], false, got);
            test_floats_equal("again: nothing of the block stays", got, want[k], size);
            if (k < 2) /* the others' blocks do not lie in this one's way */
                continue;
            const struct place free_place = place_at(0, 2);
            inject(&p, &free_place, 4, 0, starts[k], 80);
            run_between(&p, &free_place, tokens, n, starts[k], got);
            test_floats_equal("between others", got, want[k], size);
        }
        mem_free(got);
        close_pair(&p);
    }
}
END_TEST

/* From so many rows on, threads divide the rows of features instead of their columns. */
START_TEST(many_rows_at_once)
{
    static const struct setup setups[] = {{.tier = DK_TIER_C, .threads = 1, .rows = MAX_ROWS},
                                          {.tier = DK_TIER_C, .threads = 2, .rows = MAX_ROWS},
                                          {.tier = DK_TIER_AVX2, .threads = 2, .rows = MAX_ROWS},
                                          {.tier = DK_TIER_AVX512, .threads = 2, .rows = MAX_ROWS},
                                          {.tier = DK_TIER_AMX, .threads = 2, .rows = MAX_ROWS}};
    const struct gen_drafter g = kind(_i);
    const struct place at = place_at(2, 1);
    const uint32_t start = MAX_ROWS - 1;
    uint32_t tokens[8];
    static float want[8 * VOCAB];
    block_tokens(3, tokens, 8);
    for (size_t s = 0; s < sizeof(setups) / sizeof(*setups); s++) {
        struct pair p;
        if (!dk_ops(setups[s].tier))
            continue;
        open_pair(&p, &g, &setups[s]);
        const size_t size = (size_t)8 * p.d->cfg->draft_vocab;
        float *got = rows_of(&p, 8);
        inject(&p, &at, 4, 0, start, s == 0 ? 50 : start);
        run_one(&p, &at, tokens, 8, start, false, got);
        if (s == 0)
            memcpy(want, got, size * sizeof(float));
        test_floats_equal("divided by rows", got, want, size);
        mem_free(got);
        close_pair(&p);
    }
}
END_TEST

/* Positions behind the anchor's, and those of other sequences, have no say. */
START_TEST(context_ends_before_the_anchor)
{
    const struct gen_drafter g = kind(_i);
    const struct place at = place_at(2, 1);
    struct pair p;
    uint32_t tokens[8];
    block_tokens(2, tokens, 8);
    open_pair(&p, &g, &plain);
    float *a = rows_of(&p, 8), *b = rows_of(&p, 8);
    inject(&p, &at, 5, 0, 40, 40);
    run_one(&p, &at, tokens, 8, 40, false, a);
    inject(&p, &at, 6, 40, 20, 20); /* leftovers of a round that was rejected */
    run_one(&p, &at, tokens, 8, 40, false, b);
    test_floats_equal("positions from the anchor on", b, a, 8 * (size_t)p.d->cfg->draft_vocab);
    inject(&p, &at, 6, 39, 1, 1);
    run_one(&p, &at, tokens, 8, 40, false, b);
    ck_assert_int_ne(memcmp(a, b, 8 * (size_t)p.d->cfg->draft_vocab * sizeof(float)), 0);
    mem_free(a);
    mem_free(b);
    close_pair(&p);
}
END_TEST

/* ---- what rows see ------------------------------------------------------------------------------ */

static bool same_row(const float *a, const float *b, uint32_t row, uint32_t vocab)
{
    return memcmp(a + (size_t)row * vocab, b + (size_t)row * vocab, vocab * sizeof(float)) == 0;
}

/* Changes token `which` of a block and says which rows' logits changed. */
static uint32_t rows_touched(struct pair *p, uint32_t which, bool causal)
{
    const struct place at = place_at(0, 1);
    const uint32_t vocab = p->d->cfg->draft_vocab;
    uint32_t tokens[8], touched = 0;
    float *a = rows_of(p, 8), *b = rows_of(p, 8);
    block_tokens(3, tokens, 8);
    inject(p, &at, 5, 0, 20, 20);
    run_one(p, &at, tokens, 8, 20, causal, a);
    tokens[which] = (tokens[which] + 1) % VOCAB;
    run_one(p, &at, tokens, 8, 20, causal, b);
    for (uint32_t k = 0; k < 8; k++)
        touched |= (uint32_t)!same_row(a, b, k, vocab) << k;
    mem_free(a);
    mem_free(b);
    return touched;
}

START_TEST(visibility)
{
    struct gen_drafter g = gen_drafter_new(4);
    struct pair p;
    open_pair(&p, &g, &plain);
    ck_assert_uint_eq(rows_touched(&p, 5, false), 0xff);
    ck_assert_uint_eq(rows_touched(&p, 5, true), 0xe0);
    ck_assert_uint_eq(rows_touched(&p, 0, true), 0xff);
    close_pair(&p);
    /* Layers with a window are causal in the block; `causal` overrides both ways. */
    g.layers = 1;
    g.sliding = 1;
    g.window = 64;
    open_pair(&p, &g, &plain);
    ck_assert_uint_eq(rows_touched(&p, 5, false), 0xe0);
    close_pair(&p);
    g.less = "dflash_config";
    g.more = ", \"dflash_config\": {\"mask_token_id\": 3, \"target_layer_ids\": [1, 2, 4], "
             "\"causal\": false}";
    open_pair(&p, &g, &plain);
    ck_assert_uint_eq(rows_touched(&p, 5, false), 0xff);
    ck_assert_uint_eq(rows_touched(&p, 5, true), 0xe0);
    close_pair(&p);
    g.sliding = 0;
    g.window = 0;
    g.more = ", \"dflash_config\": {\"mask_token_id\": 3, \"target_layer_ids\": [1, 2, 4], "
             "\"causal\": true}";
    open_pair(&p, &g, &plain);
    ck_assert_uint_eq(rows_touched(&p, 5, false), 0xe0);
    close_pair(&p);
}
END_TEST

/* A window that holds everything is no window: same bits, whatever way the rows are found. */
START_TEST(wide_window)
{
    struct gen_drafter g = gen_drafter_new(5);
    const struct place at = place_at(3, 7);
    struct pair p;
    uint32_t tokens[8];
    static float want[8 * VOCAB];
    block_tokens(4, tokens, 8);
    for (int i = 0; i < 3; i++) {
        if (i) {
            g.less = "dflash_config";
            g.more =
                ", \"dflash_config\": {\"mask_token_id\": 259, \"target_layer_ids\": [1, 2, 4], "
                "\"causal\": false}";
            g.sliding = i == 1 ? 1 : 3;
            g.window = 90;
        }
        open_pair(&p, &g, &plain);
        float *got = rows_of(&p, 8);
        inject(&p, &at, 5, 0, 80, 80);
        run_one(&p, &at, tokens, 8, 80, false, got);
        if (i == 0)
            memcpy(want, got, sizeof(want));
        test_floats_equal("wide window", got, want, 8 * VOCAB);
        mem_free(got);
        close_pair(&p);
    }
}
END_TEST

/* One layer with a window of w: row k sees positions from s + k - (w - 1) on, and none before. */
START_TEST(window_edges)
{
    static const uint32_t starts[] = {5, 20, 64, 75};
    struct gen_drafter g = gen_drafter_new(6);
    const struct place at = place_at(1, 3);
    struct pair p;
    uint32_t tokens[8];
    g.layers = 1;
    g.sliding = 1;
    g.window = 13;
    block_tokens(5, tokens, 8);
    open_pair(&p, &g, &plain);
    float *a = rows_of(&p, 8), *b = rows_of(&p, 8);
    for (size_t i = 0; i < 4; i++) {
        const uint32_t s = starts[i];
        inject(&p, &at, 5, 0, s, 80);
        run_one(&p, &at, tokens, 8, s, false, a);
        for (uint32_t pos = s < 14 ? 0 : s - 14; pos < s; pos++) {
            inject(&p, &at, 6, pos, 1, 1);
            run_one(&p, &at, tokens, 8, s, false, b);
            for (uint32_t k = 0; k < 8; k++)
                ck_assert_int_eq(same_row(a, b, k, VOCAB), pos + 12 < s + k);
            inject(&p, &at, 5, pos, 1, 1);
        }
    }
    mem_free(a);
    mem_free(b);
    close_pair(&p);
}
END_TEST

/* Taps, RoPE and features are really used: each of these changes the logits far beyond rounding. */
START_TEST(mutations_show)
{
    const struct place at = place_at(0, 1);
    struct pair p;
    uint32_t tokens[8];
    float *want = NULL;
    block_tokens(6, tokens, 8);
    for (int i = 0; i < 4; i++) {
        struct gen_drafter g = gen_drafter_new(7);
        if (i == 1) {
            g.less = "rope_theta";
            g.more = ", \"rope_theta\": 1000.0";
        }
        open_pair(&p, &g, &plain);
        float *got = rows_of(&p, 8), worst = 0;
        inject(&p, &at, 5, 0, 40, 40);
        if (i == 2) /* features one position late */
            for (uint32_t pos = 0; pos < 40; pos++) {
                static float taps[8 * HIDDEN];
                struct error err = {0};
                make_taps(&p, 5, pos + 1, taps);
                struct ctx_row row = {
                    .taps = taps, .pos = pos, .slot = at.blocks[pos / 16] * 16 + pos % 16};
                ck_ok(drafter_inject(p.d, &row, 1, &err), &err);
            }
        run_one(&p, &at, tokens, 8, i == 3 ? 39 : 40, false, got);
        for (size_t k = 0; want && k < 8 * VOCAB; k++)
            worst = fmaxf(worst, fabsf(got[k] - want[k]));
        if (!want)
            want = got;
        else
            mem_free(got);
        ck_assert_msg(i == 0 || worst > 0.1f, "mutation %d changes logits by %g only", i,
                      (double)worst);
        close_pair(&p);
    }
    mem_free(want);
}
END_TEST

/* ---- vocabularies ------------------------------------------------------------------------------- */

/* A reduced head without a matrix of its own is the target's, row for row. */
START_TEST(reduced_head)
{
    struct gen_drafter g = gen_drafter_new(8);
    const struct place at = place_at(0, 1);
    struct pair p;
    uint32_t tokens[8];
    static float want[8 * VOCAB];
    block_tokens(7, tokens, 8);
    for (int i = 0; i < 3; i++) {
        g.d2t = i == 1 ? "I32" : i == 2 ? "I64" : NULL;
        g.draft_vocab = i ? 77 : 0;
        open_pair(&p, &g, &plain);
        float *got = rows_of(&p, 8);
        inject(&p, &at, 5, 0, 20, 20);
        run_one(&p, &at, tokens, 8, 20, false, got);
        if (i == 0)
            memcpy(want, got, sizeof(want));
        for (uint32_t k = 0; i && k < 8; k++)
            for (uint32_t v = 0; v < 77; v++)
                ck_fast(memcmp(&got[k * 77 + v], &want[k * VOCAB + v * VOCAB / 77], 4) == 0);
        mem_free(got);
        close_pair(&p);
    }
}
END_TEST

/* Weights converted at load are other weights, near the filed ones. */
START_TEST(converted_weights)
{
    struct gen_drafter g = gen_drafter_new(9);
    const struct place at = place_at(0, 1);
    struct setup s = plain;
    struct pair p;
    uint32_t tokens[8];
    static float want[8 * VOCAB];
    block_tokens(8, tokens, 8);
    static const enum backend_dtype dtypes[] = {BACKEND_DTYPE_FILE, BACKEND_DTYPE_F32,
                                                BACKEND_DTYPE_BF16, BACKEND_DTYPE_Q8_0};
    struct backend_memory mem[4];
    for (int i = 0; i < 4; i++) {
        s.dtype = dtypes[i];
        open_pair(&p, &g, &s);
        float *got = rows_of(&p, 8);
        inject(&p, &at, 5, 0, 20, 20);
        run_one(&p, &at, tokens, 8, 20, false, got);
        if (i == 0)
            memcpy(want, got, sizeof(want));
        test_floats_close("dtype", got, want, 8 * VOCAB, i < 2 ? 0 : 0.5, 0);
        ck_assert(i < 2 || memcmp(got, want, sizeof(want)) != 0);
        drafter_memory(p.d, &mem[i]);
        mem_free(got);
        close_pair(&p);
    }
    ck_assert_uint_eq(mem[0].packed_bytes, mem[1].packed_bytes);
    ck_assert_uint_lt(mem[2].packed_bytes, mem[1].packed_bytes);
    ck_assert_uint_lt(mem[3].packed_bytes, mem[2].packed_bytes);
}
END_TEST

static uint64_t planned(const char *dir, const struct model_file *file,
                        const struct backend_options *o, enum backend_dtype dtype)
{
    struct error err = {0};
    uint64_t bytes = 0;
    ck_ok(drafter_plan(dir, &backend_cpu, file, o, dtype, &bytes, &err), &err);
    return bytes;
}

/* auto: BF16 beside a model whose own products are of the AMX BF16 class, as filed beside any other. */
START_TEST(automatic_weights)
{
    struct gen_drafter g = gen_drafter_new(9);
    char dir[] = "/tmp/dedit-drafter-XXXXXX";
    const enum backend_dtype auto_ = BACKEND_DTYPE_AUTO;
    struct backend_options o = {
        .n_threads = 1, .n_kv_blocks = 4, .max_rows = 16, .max_context = 64};
    struct error err = {0};
    struct model_file *file;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(&g, dir);
    ck_ok(model_file_open(target_path, &file, &err), &err);
    for (int i = 0; i < 8; i++) {
        const bool amx = dk_ops(DK_TIER_AMX) && (i & 1), bf16 = i & 2;
        struct backend_model *model;
        struct backend_memory want, got;
        struct drafter *d;
        o.tier = amx ? DK_TIER_AMX : DK_TIER_C;
        o.dtype = bf16 ? BACKEND_DTYPE_BF16 : BACKEND_DTYPE_FILE;
        o.exact = i & 4;
        const bool converted = amx && bf16 && !o.exact;
        ck_assert_uint_eq(
            planned(dir, file, &o, auto_),
            planned(dir, file, &o, converted ? BACKEND_DTYPE_BF16 : BACKEND_DTYPE_FILE));
        ck_assert_uint_lt(planned(dir, file, &o, BACKEND_DTYPE_BF16),
                          planned(dir, file, &o, BACKEND_DTYPE_FILE));
        ck_ok(backend_cpu.load(file, &o, NULL, NULL, &model, &err), &err);
        ck_ok(drafter_new(dir, &backend_cpu, model, file, &o,
                          converted ? BACKEND_DTYPE_BF16 : BACKEND_DTYPE_FILE, &d, &err),
              &err);
        drafter_memory(d, &want);
        drafter_free(d);
        ck_ok(drafter_new(dir, &backend_cpu, model, file, &o, auto_, &d, &err), &err);
        drafter_memory(d, &got);
        ck_assert_uint_eq(got.packed_bytes, want.packed_bytes);
        drafter_free(d);
        backend_cpu.free(model);
    }
    model_file_free(file);
    gen_drafter_remove(&g, dir);
}
END_TEST

/* ---- picking ------------------------------------------------------------------------------------ */

struct picked {
    struct proposal proposal;
    struct draft_round round;
    float *logits; /* of the pass that made it, rows 1.. */
};

/* Runs all passes of a round on 33 positions of context, and computes the last pass's logits again. */
static void run_round(struct pair *p, struct picked *r, uint64_t seed)
{
    struct place at = place_at(4, 1);
    static uint32_t tokens[34];
    struct block_drafter ops = drafter_ops(p->d);
    struct error err = {0};
    tokens[33] = (uint32_t)(seed * 13 % VOCAB);
    struct seq s = {.tokens = tokens, .n_tokens = 34, .n_kv = 33, .blocks = at.blocks};
    struct draft_entry e = {.seq = &s, .round = &r->round};
    inject(p, &at, 5, 0, 33, 33);
    r->round.proposal = &r->proposal;
    while (!r->round.done)
        ck_ok(ops.ops->pass(ops.self, &e, 1, &err), &err);
    uint32_t input[DRAFT_MAX_WINDOW] = {tokens[33]}, w = r->round.window, last = r->round.pass - 1;
    for (uint32_t k = 1; k < w; k++)
        input[k] = last ? r->round.tokens[last - 1][k - 1] : p->d->cfg->mask_token;
    r->logits = rows_of(p, w);
    struct drafter_block b = {
        .tokens = input, .n = w, .start = 33, .blocks = at.blocks, .first = 1, .logits = r->logits};
    ck_ok(drafter_run(p->d, &b, 1, &err), &err);
}

static uint32_t target_id(const struct pair *p, uint32_t row)
{
    return p->d->cfg->target_ids ? p->d->cfg->target_ids[row] : row;
}

static float noise_of(uint64_t seed, uint64_t pos, uint32_t v, enum noise_stream stream)
{
    uint32_t key[2], ctr[4], out[4];
    noise_key(seed, key);
    noise_counter(pos, stream, ctr + 1);
    ctr[0] = v / 4;
    dk_philox4x32_10(ctr, key, out);
    return dk_gumbelf(out[v % 4]);
}

/* Drafts with noise are the argmax of logit / T + the target's own noise of that position and token. */
START_TEST(noise_is_the_targets)
{
    unsigned moved = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct gen_drafter g = kind(seed % 2 ? 0 : 1);
        struct picked r = {.round = {.method = DRAFT_DEDIT,
                                     .window = 8,
                                     .passes = 1 + (uint32_t)seed % 3,
                                     .max_nodes = 64,
                                     .noise = seed != 11,
                                     .temperature = seed == 12 ? 0.0f : 0.5f + 0.1f * (float)seed,
                                     .seed = seed * 12345678901ull}};
        struct pair p;
        open_pair(&p, &g, &plain);
        run_round(&p, &r, seed);
        const uint32_t dv = p.d->cfg->draft_vocab;
        bool noisy = seed < 11;
        float inv_t = noisy ? (float)(1.0 / (double)r.round.temperature) : 1.0f;
        ck_assert_uint_eq(r.proposal.n, 7);
        for (uint32_t k = 0; k < 7; k++) {
            uint32_t best = 0, top = 0;
            float score = -INFINITY;
            double sum = 0;
            const float *l = r.logits + (size_t)k * dv;
            for (uint32_t v = 0; v < dv; v++) {
                float y = l[v] * inv_t;
                if (noisy)
                    y += noise_of(r.round.seed, 34 + k, target_id(&p, v), NOISE_GUMBEL);
                if (y > score) {
                    score = y;
                    best = v;
                }
                if (l[v] > l[top])
                    top = v;
            }
            for (uint32_t v = 0; v < dv; v++)
                sum += exp(
                    (double)(l[v] * inv_t - score) +
                    (noisy ? (double)noise_of(r.round.seed, 34 + k, target_id(&p, v), NOISE_GUMBEL)
                           : 0));
            ck_assert_uint_eq(r.proposal.tokens[k], target_id(&p, best));
            ck_assert_double_eq_tol((double)r.proposal.confidence[k], 1 / sum, 1e-4);
            moved += noisy && best != top;
        }
        mem_free(r.logits);
        close_pair(&p);
    }
    ck_assert_uint_gt(moved, 20);
}
END_TEST

/* Rule B: tokens are drawn from the q that is handed out. */
START_TEST(draws_follow_q)
{
    struct gen_drafter g = kind(1);
    struct pair p;
    open_pair(&p, &g, &plain);
    float *q = mem_calloc((size_t)7 * VOCAB, sizeof(*q));
    uint32_t seen[7] = {0}, most[7] = {0}, n = 400;
    double expected[7] = {0};
    for (uint64_t seed = 1; seed <= n; seed++) {
        struct picked r = {.round = {.method = DRAFT_DFLASH,
                                     .window = 8,
                                     .passes = 1,
                                     .max_nodes = 64,
                                     .draw = true,
                                     .q = q,
                                     .temperature = 0.8f,
                                     .seed = seed}};
        run_round(&p, &r, 3);
        ck_assert_ptr_eq(r.proposal.q, q);
        for (uint32_t k = 0; k < 7; k++) {
            double sum = 0;
            for (uint32_t v = 0; v < VOCAB; v++) {
                sum += (double)q[k * VOCAB + v];
                if (q[k * VOCAB + v] > q[k * VOCAB + most[k]])
                    most[k] = v;
            }
            ck_assert_double_eq_tol(sum, 1, 1e-5);
            ck_assert(q[k * VOCAB + r.proposal.tokens[k]] > 0);
            seen[k] += r.proposal.tokens[k] == most[k];
            expected[k] = (double)q[k * VOCAB + most[k]];
        }
        mem_free(r.logits);
    }
    for (uint32_t k = 0; k < 7; k++) { /* five deviations of a binomial variable */
        double e = expected[k] * n, sd = sqrt(e * (1 - expected[k])) + 1;
        ck_assert_msg(fabs(seen[k] - e) < 5 * sd, "depth %u: %u draws, %g expected", k, seen[k], e);
    }
    mem_free(q);
    close_pair(&p);
}
END_TEST

/* The tree is that of the last pass's logits; with noise, of logit / T + the target's noise of each position
 * and token. */
START_TEST(trees)
{
    for (int i = 0; i < 4; i++) {
        const bool noisy = i >= 2;
        struct gen_drafter g = kind(i % 2);
        struct pair p;
        struct picked r = {.round = {.method = DRAFT_DDTREE,
                                     .window = 8,
                                     .passes = 2,
                                     .tree_budget = 40,
                                     .max_nodes = 31,
                                     .noise = noisy,
                                     .temperature = noisy ? 0.8f : 0,
                                     .seed = 77}};
        open_pair(&p, &g, &plain);
        run_round(&p, &r, 5);
        const uint32_t dv = p.d->cfg->draft_vocab;
        static uint32_t ids[7][VOCAB];
        static float lp[7][VOCAB];
        struct ddtree_depth depths[7];
        struct proposal want;
        for (uint32_t k = 0; k < 7; k++) {
            float *l = r.logits + (size_t)k * dv;
            float max;
            bool bad;
            for (uint32_t v = 0; noisy && v < dv; v++)
                l[v] = l[v] * (float)(1 / (double)0.8f) +
                       noise_of(r.round.seed, 34 + k, target_id(&p, v), NOISE_GUMBEL);
            (void)p.d->ops->argmax(l, dv, &max, &bad);
            float lse = p.d->ops->logsumexp(l, dv, max);
            for (uint32_t v = 0; v < dv; v++) {
                uint32_t j = v;
                for (; j && l[ids[k][j - 1]] < l[v]; j--)
                    ids[k][j] = ids[k][j - 1];
                ids[k][j] = v;
            }
            for (uint32_t v = 0; v < dv; v++) {
                lp[k][v] = l[ids[k][v]] - lse;
                ids[k][v] = target_id(&p, ids[k][v]);
            }
            depths[k] = (struct ddtree_depth){ids[k], lp[k], dv};
        }
        ck_assert_uint_eq(ddtree_build(depths, 7, 31, &want), 31);
        ck_assert_uint_eq(r.proposal.n, 31);
        ck_assert_mem_eq(r.proposal.tokens, want.tokens, 31 * sizeof(uint32_t));
        ck_assert_mem_eq(r.proposal.parent, want.parent, 31 * sizeof(int16_t));
        ck_assert(!proposal_is_chain(&r.proposal));
        mem_free(r.logits);
        close_pair(&p);
    }
}
END_TEST

START_TEST(memory_runs_out)
{
    struct gen_drafter g = kind(1);
    char dir[] = "/tmp/dedit-drafter-XXXXXX";
    struct backend_options o = {
        .n_threads = 2, .tier = DK_TIER_C, .n_kv_blocks = 4, .max_rows = 16, .max_context = 64};
    struct model_file *file;
    struct backend_model *model;
    struct error err = {0};
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(&g, dir);
    ck_ok(model_file_open(target_path, &file, &err), &err);
    ck_ok(backend_cpu.load(file, &o, NULL, NULL, &model, &err), &err);
    uint64_t bytes;
    ck_ok(drafter_plan(dir, &backend_cpu, file, &o, BACKEND_DTYPE_FILE, &bytes, &err), &err);
    ck_assert_uint_gt(bytes, 100000);
    for (struct test_oom oom = {0}; test_oom_next(&oom);) {
        struct drafter *d = NULL;
        int r = drafter_new(dir, &backend_cpu, model, file, &o, BACKEND_DTYPE_BF16, &d, &err);
        ck_assert_int_eq(r, oom.failed ? DEDIT_E_NOMEM : 0);
        drafter_free(d);
    }
    backend_cpu.free(model);
    model_file_free(file);
    gen_drafter_remove(&g, dir);
}
END_TEST

int main(void)
{
    struct fixture f = fixture_random(11);
    f.n_layers = 6;
    target_path = fixture_write(&f);
    Suite *s = suite_create("drafter-rows");
    TCase *c = test_case(s, "bits");
    tcase_add_loop_test(c, same_bits, 0, 3);
    tcase_add_loop_test(c, many_rows_at_once, 0, 3);
    tcase_add_loop_test(c, context_ends_before_the_anchor, 0, 3);
    c = test_case(s, "visibility");
    tcase_add_test(c, visibility);
    tcase_add_test(c, wide_window);
    tcase_add_test(c, window_edges);
    tcase_add_test(c, mutations_show);
    c = test_case(s, "vocabulary");
    tcase_add_test(c, reduced_head);
    tcase_add_test(c, converted_weights);
    tcase_add_test(c, automatic_weights);
    c = test_case(s, "picking");
    tcase_add_test(c, noise_is_the_targets);
    tcase_add_test(c, draws_follow_q);
    tcase_add_test(c, trees);
    tcase_add_test(c, memory_runs_out);
    return test_main(s);
}
