/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: the portable form against double precision; every tier, batch, head range and thread
 * split against the portable form row by row; paths through a tree against the same path stored as
 * a plain sequence.  All bits.  Unused KV memory is NaN, so that anything read too far shows.
 */
#include "base/alloc.h"
#include "kernels/cpu/internal.h"
#include "tests/unit/ops.h"

#ifdef HAVE_AMX_EMU /* tests/amx-emu/attention.c */
DK_DECLARE_ATTENTION(dk_cpu_attention_bf16_amx_emu);
DK_DECLARE_ATTENTION_PART(dk_cpu_attention_part_bf16_amx_emu);
#endif

#define MAX_ROWS   64
#define MAX_BLOCKS 160

/* KV memory with a shuffled list of free blocks. */
struct pool {
    struct dk_kv kv;
    uint32_t n_heads;
    uint32_t free[MAX_BLOCKS], n_free;
};

static void pool_init(struct pool *p, struct rng *r, enum dk_kv_type type, uint32_t n_kv_heads,
                      uint32_t group, uint32_t hd)
{
    size_t bytes = (size_t)MAX_BLOCKS * 16 * n_kv_heads * hd * dk_kv_elem_bytes(type);
    *p = (struct pool){.kv = {.type = type,
                              .n_kv_heads = n_kv_heads,
                              .head_dim = hd,
                              .k = mem_aligned(64, bytes),
                              .v = mem_aligned(64, bytes)},
                       .n_heads = n_kv_heads * group};
    ck_assert(p->kv.k && p->kv.v);
    memset(p->kv.k, 0xff, bytes);
    memset(p->kv.v, 0xff, bytes);
    for (uint32_t i = 0; i < MAX_BLOCKS; i++) {
        uint32_t j = rng_below(r, i + 1);
        p->free[i] = p->free[j];
        p->free[j] = i;
    }
    p->n_free = MAX_BLOCKS;
}
static void pool_done(struct pool *p)
{
    mem_free(p->kv.k);
    mem_free(p->kv.v);
}
static uint32_t pool_block(struct pool *p)
{
    ck_assert_uint_gt(p->n_free, 0);
    return p->free[--p->n_free];
}

/* K and V of a token are a function of its content number. */
static void put(struct pool *p, uint32_t slot, uint32_t content)
{
    struct rng r = {content * 7919u + 5};
    float k[1024], v[1024];
    rng_fill(&r, k, (size_t)p->kv.n_kv_heads * p->kv.head_dim, 1);
    rng_fill(&r, v, (size_t)p->kv.n_kv_heads * p->kv.head_dim, 1);
    dk_ops(DK_TIER_C)->kv_store(&p->kv, slot, 0, p->kv.n_kv_heads, k, v);
}

/* A batch: rows with their paths, queries and the contents that each path holds. */
struct batch {
    uint32_t n_rows;
    struct dk_attn_row rows[MAX_ROWS];
    uint32_t blocks[MAX_ROWS][64], tails[MAX_ROWS][1024], n_lists;
    uint32_t content[MAX_ROWS][1024];
    float *q, *out, *want;
    size_t ld;
    float scale;
};

static void batch_init(struct batch *b, struct rng *r, const struct pool *p)
{
    memset(b, 0, sizeof *b);
    b->ld = (size_t)p->n_heads * p->kv.head_dim + 7;
    b->q = mem_array(MAX_ROWS * b->ld, sizeof(float));
    b->out = mem_array(MAX_ROWS * b->ld, sizeof(float));
    b->want = mem_array(MAX_ROWS * b->ld, sizeof(float));
    ck_assert(b->q && b->out && b->want);
    rng_fill(r, b->q, MAX_ROWS * b->ld, 1.5f);
    b->scale = 1 / sqrtf((float)p->kv.head_dim);
}
static void batch_done(struct batch *b)
{
    mem_free(b->q);
    mem_free(b->out);
    mem_free(b->want);
}

/* A sequence of n tokens in fresh blocks; its last n_rows positions become rows. */
static void add_sequence(struct batch *b, struct pool *p, uint32_t n, uint32_t n_rows,
                         uint32_t content)
{
    uint32_t *blocks = b->blocks[b->n_lists++];
    for (uint32_t i = 0; i < n; i++) {
        if (i % 16 == 0)
            blocks[i / 16] = pool_block(p);
        put(p, blocks[i / 16] * 16 + i % 16, content + i);
    }
    for (uint32_t i = n - n_rows; i < n; i++) {
        uint32_t row = b->n_rows++;
        b->rows[row] = (struct dk_attn_row){i + 1, UINT32_MAX & ~15u, blocks, NULL};
        for (uint32_t k = 0; k <= i; k++)
            b->content[row][k] = content + k;
    }
}

/*
 * A committed prefix of n tokens and a random tree of n_nodes behind it, all nodes as rows.  Tails
 * begin at the last multiple of 16 (or `early` blocks before).  Node slots are scattered over fresh
 * blocks when scatter, else they follow each other.
 */
static void add_tree(struct batch *b, struct pool *p, struct rng *r, uint32_t n, uint32_t n_nodes,
                     uint32_t early, bool scatter, uint32_t content)
{
    uint32_t *blocks = b->blocks[b->n_lists++], slot[MAX_ROWS], parent[MAX_ROWS], fresh = 0;
    uint32_t start = n / 16 > early ? (n / 16 - early) * 16 : 0, first = b->n_rows;
    for (uint32_t i = 0; i < n; i++) {
        if (i % 16 == 0)
            blocks[i / 16] = pool_block(p);
        put(p, blocks[i / 16] * 16 + i % 16, content + i);
    }
    for (uint32_t i = 0; i < n_nodes; i++) {
        if (i % (scatter ? 3 : 16) == 0)
            fresh = pool_block(p);
        slot[i] = fresh * 16 + (scatter ? (i % 3 * 5 + rng_below(r, 5)) % 16 : i % 16);
        parent[i] = i == 0 ? 0 : rng_below(r, i);
        if (i > 0 && i % 3)
            parent[i] = i - 1; /* some depth */
        put(p, slot[i], content + 5000 + i);
        uint32_t row = first + i, *tail = b->tails[row], chain[MAX_ROWS], depth = 0, at = i;
        for (chain[depth++] = at; at; chain[depth++] = at)
            at = parent[at];
        b->n_rows++;
        b->rows[row] = (struct dk_attn_row){n + depth, start, blocks, tail};
        for (uint32_t k = 0; k < n + depth; k++) {
            uint32_t node = k < n ? 0 : chain[n + depth - 1 - k];
            b->content[row][k] = k < n ? content + k : content + 5000 + node;
            if (k >= start)
                tail[k - start] = k < n ? blocks[k / 16] * 16 + k % 16 : slot[node];
        }
    }
}

static void run(const struct dk_ops *ops, const struct pool *p, const struct batch *b,
                uint32_t row0, uint32_t row1, uint32_t head0, uint32_t head1, float *out,
                void *scratch)
{
    ops->attention(&p->kv, b->rows + row0, row1 - row0, b->q + row0 * b->ld, b->ld,
                   out + row0 * b->ld, b->ld, p->n_heads, head0, head1, b->scale, scratch);
}

/* The two-step form over all heads, chunks in random portions, rows in two pieces. */
static void run_parts(const struct dk_ops *ops, const struct pool *p, const struct batch *b,
                      struct rng *r, float *part, void *scratch)
{
    uint32_t longest = 0, cut = rng_below(r, b->n_rows);
    for (uint32_t i = 0; i < b->n_rows; i++)
        longest = b->rows[i].n_vis > longest ? b->rows[i].n_vis : longest;
    uint32_t chunks = (longest + DK_ATTN_CHUNK - 1) / DK_ATTN_CHUNK;
    for (uint32_t r0 = 0, r1 = cut; r0 < b->n_rows; r0 = r1, r1 = b->n_rows) {
        for (uint32_t c = 0, n; c < chunks; c += n) {
            n = 1 + rng_below(r, chunks - c);
            uint32_t h = rng_below(r, p->n_heads + 1);
            ops->attention_part(&p->kv, b->rows + r0, r1 - r0, b->q + r0 * b->ld, b->ld, part,
                                p->n_heads, 0, h, c, c + n, b->scale, scratch);
            ops->attention_part(&p->kv, b->rows + r0, r1 - r0, b->q + r0 * b->ld, b->ld, part,
                                p->n_heads, h, p->n_heads, c, c + n, b->scale, scratch);
        }
        uint32_t h = rng_below(r, p->n_heads + 1);
        ops->attention_merge(b->rows + r0, r1 - r0, part, b->out + r0 * b->ld, b->ld, p->n_heads,
                             p->kv.head_dim, 0, h);
        ops->attention_merge(b->rows + r0, r1 - r0, part, b->out + r0 * b->ld, b->ld, p->n_heads,
                             p->kv.head_dim, h, p->n_heads);
    }
}

/* The form of one row: plain rows of the batch, blocks and dimensions in random portions. */
static bool run_shared(const struct dk_ops *ops, const struct pool *p, const struct batch *b,
                       struct rng *r, float *s, size_t lds, void *scratch)
{
    bool any = false;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        const struct dk_attn_row *row = &b->rows[i];
        const uint32_t n_blocks = (row->n_vis + 15) / 16, sixteens = (p->kv.head_dim + 15) / 16;
        if (row->tail_start < row->n_vis)
            continue;
        any = true;
        for (uint32_t h = 0; h < p->kv.n_kv_heads; h++)
            for (uint32_t k = 0, n; k < n_blocks; k += n) {
                n = 1 + rng_below(r, n_blocks - k);
                ops->attention_scores(&p->kv, row, b->q + i * b->ld, s, lds, p->n_heads, h, k,
                                      k + n, b->scale, scratch);
            }
        for (uint32_t h = 0; h < p->kv.n_kv_heads; h++)
            for (uint32_t k = 0, n; k < sixteens; k += n) {
                n = 1 + rng_below(r, sixteens - k);
                uint32_t end = 16 * (k + n) < p->kv.head_dim ? 16 * (k + n) : p->kv.head_dim;
                ops->attention_values(&p->kv, row, s, lds, b->out + i * b->ld, p->n_heads, h,
                                      16 * k, end, scratch);
            }
    }
    return any;
}

static void check(const char *what, const struct dk_ops *ops, const struct pool *p,
                  const struct batch *b)
{
    size_t n = (size_t)p->n_heads * p->kv.head_dim;
    for (uint32_t r = 0; r < b->n_rows; r++)
        for (size_t i = 0; i < b->ld; i++) {
            float want = i < n ? b->want[r * b->ld + i] : 77.0f, got = b->out[r * b->ld + i];
            ck_assert_msg(same_bits(got, want),
                          "%s, tier %s, kv %s, head_dim %u, %u/%u heads: row %u of %u (n_vis %u, "
                          "tail at %u), element %zu: %a, wanted %a",
                          what, dk_tier_name(ops->tier), dk_kv_type_name(p->kv.type),
                          p->kv.head_dim, p->n_heads, p->kv.n_kv_heads, r, b->n_rows,
                          b->rows[r].n_vis, b->rows[r].tail_start, i, (double)got, (double)want);
        }
}
static void clear(struct batch *b)
{
    for (size_t i = 0; i < MAX_ROWS * b->ld; i++)
        b->out[i] = 77.0f;
}

/* b->want: every path stored as a plain sequence in another pool, row by row, portable. */
static void oracle(struct batch *b, const struct pool *p, void *scratch)
{
    struct rng rng = {99};
    struct pool plain;
    pool_init(&plain, &rng, p->kv.type, p->kv.n_kv_heads, p->n_heads / p->kv.n_kv_heads,
              p->kv.head_dim);
    plain.kv.amx = p->kv.amx;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        uint32_t blocks[64], n = b->rows[r].n_vis;
        plain.n_free = MAX_BLOCKS - rng_below(&rng, 64);
        for (uint32_t i = 0; i < n; i++) {
            if (i % 16 == 0)
                blocks[i / 16] = pool_block(&plain);
            put(&plain, blocks[i / 16] * 16 + i % 16, b->content[r][i]);
        }
        struct dk_attn_row row = {n, (n + 15) / 16 * 16, blocks, NULL};
        dk_ops(DK_TIER_C)->attention(&plain.kv, &row, 1, b->q + r * b->ld, b->ld,
                                     b->want + r * b->ld, b->ld, p->n_heads, 0, p->n_heads,
                                     b->scale, scratch);
    }
    pool_done(&plain);
}

/* Rows with a tail have no such form: they are taken as they should be. */
static void check_shared(const struct dk_ops *ops, const struct pool *p, struct batch *b,
                         struct rng *r, void *scratch)
{
    const size_t lds = 1024 + 16 * rng_below(r, 3);
    float *s = mem_array(lds * p->n_heads, sizeof *s);
    ck_assert_ptr_nonnull(s);
    memset(s, 0xff, lds * p->n_heads * sizeof *s);
    clear(b);
    bool any = run_shared(ops, p, b, r, s, lds, scratch);
    mem_free(s);
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (b->rows[i].tail_start < b->rows[i].n_vis)
            memcpy(b->out + i * b->ld, b->want + i * b->ld,
                   (size_t)p->n_heads * p->kv.head_dim * sizeof(float));
    if (any)
        check("one row shared", ops, p, b);
}

/* The whole batch, row by row, in random pieces of rows and heads: always b->want. */
static void check_tier(const struct dk_ops *ops, struct pool *p, struct batch *b, struct rng *r,
                       bool alone, void *scratch)
{
    clear(b);
    run(ops, p, b, 0, b->n_rows, 0, p->n_heads, b->out, scratch);
    check("batch", ops, p, b);
    size_t part_bytes = (size_t)(1024 / DK_ATTN_CHUNK) * b->n_rows * p->n_heads *
                        DK_ATTN_PART(p->kv.head_dim) * sizeof(float);
    float *part = mem_aligned(64, part_bytes);
    ck_assert_ptr_nonnull(part);
    memset(part, 0xff, part_bytes);
    clear(b);
    run_parts(ops, p, b, r, part, scratch);
    mem_free(part);
    check("parts", ops, p, b);
    if (!p->kv.amx)
        check_shared(ops, p, b, r, scratch);
    if (!alone)
        return;
    clear(b);
    for (uint32_t row = 0; row < b->n_rows; row++)
        run(ops, p, b, row, row + 1, 0, p->n_heads, b->out, scratch);
    check("rows alone", ops, p, b);
    clear(b);
    for (uint32_t row = 0, n; row < b->n_rows; row += n) {
        n = 1 + rng_below(r, b->n_rows - row);
        for (uint32_t h = 0, k; h < p->n_heads; h += k) {
            k = 1 + rng_below(r, p->n_heads - h);
            run(ops, p, b, row, row + n, h, h + k, b->out, scratch);
        }
    }
    check("pieces", ops, p, b);
}

static void check_all(struct pool *p, struct batch *b, struct rng *r, void *scratch)
{
    oracle(b, p, scratch);
    for (int tier = 0; tier < DK_TIER_COUNT; tier++) {
        const struct dk_ops *ops = dk_ops((enum dk_tier)tier);
        /* The loops that follow the instruction are the same on all tiers that lack it, and slow. */
        if (ops && (!p->kv.amx || tier == DK_TIER_C || tier == DK_TIER_AMX))
            check_tier(ops, p, b, r, tier != DK_TIER_C, scratch);
    }
#ifdef HAVE_AMX_EMU
    if (p->kv.amx && dk_ops(DK_TIER_AVX512)) {
        struct dk_ops emulated = *dk_ops(DK_TIER_AVX512);
        emulated.attention = dk_cpu_attention_bf16_amx_emu;
        emulated.attention_part = dk_cpu_attention_part_bf16_amx_emu;
        check_tier(&emulated, p, b, r, true, scratch);
    }
#endif
}

static const struct {
    uint32_t kv_heads, group, hd;
} shapes[] = {{3, 3, 64}, {1, 1, 16}, {2, 4, 32}, {1, 8, 80}, {2, 2, 128}, {1, 5, 96},
              {1, 7, 48}, {2, 3, 20}, {1, 2, 33}, {1, 30, 8}, {1, 3, 256}, {1, 6, 64}};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static void with_class(size_t i, struct rng *r, bool amx,
                       void (*fill)(struct batch *, struct pool *, struct rng *, size_t))
{
    struct pool p;
    struct batch *b = mem_zalloc(sizeof *b);
    void *scratch = mem_aligned(64, DK_SCRATCH_BYTES);
    ck_assert(b && scratch);
    memset(scratch, 0xff, DK_SCRATCH_BYTES);
    pool_init(&p, r, (enum dk_kv_type)(i % 3), shapes[i / 3 % N_SHAPES].kv_heads,
              shapes[i / 3 % N_SHAPES].group, shapes[i / 3 % N_SHAPES].hd);
    p.kv.amx = amx;
    batch_init(b, r, &p);
    fill(b, &p, r, i);
    check_all(&p, b, r, scratch);
    batch_done(b);
    pool_done(&p);
    mem_free(scratch);
    mem_free(b);
}

static void with_shape(size_t i, struct rng *r,
                       void (*fill)(struct batch *, struct pool *, struct rng *, size_t))
{
    with_class(i, r, false, fill);
    if (i % 4 == 1) /* its portable twin is slow */
        with_class(i, r, true, fill);
}

static const uint32_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 512, 530, 33, 100, 272};

/* One row each of sequences of the lengths at which something changes. */
static void fill_decode(struct batch *b, struct pool *p, struct rng *r, size_t i)
{
    (void)r;
    (void)i;
    for (uint32_t k = 0; k < 8; k++)
        add_sequence(b, p, lengths[k], 1, k * 1000);
}
START_TEST(decode)
{
    struct rng r = {21};
    with_shape((size_t)_i, &r, fill_decode);
}
END_TEST

/* Chunks of prompts, mixed with single rows. */
static void fill_prefill(struct batch *b, struct pool *p, struct rng *r, size_t i)
{
    uint32_t n = lengths[i % 12];
    add_sequence(b, p, n, n < 24 ? n : 24, 0);
    add_sequence(b, p, 1 + rng_below(r, 300), 1, 3000);
    n = 20 + rng_below(r, 280);
    add_sequence(b, p, n, 20, 7000);
    add_sequence(b, p, 7, 7, 9000);
}
START_TEST(prefill)
{
    struct rng r = {22 + (uint64_t)_i};
    with_shape((size_t)_i, &r, fill_prefill);
}
END_TEST

/* Trees of two sequences and a plain row. */
static void fill_trees(struct batch *b, struct pool *p, struct rng *r, size_t i)
{
    static const uint32_t prefix[] = {0, 1, 15, 16, 100, 250, 255, 256, 300, 272};
    add_tree(b, p, r, prefix[i % 10], 1 + rng_below(r, 30), (uint32_t)i % 4 == 3 ? 2 : 0, i % 2,
             100);
    add_tree(b, p, r, 20 + rng_below(r, 240), 1 + rng_below(r, 24), 0, i % 3 == 0, 20000);
    add_sequence(b, p, 1 + rng_below(r, 60), 1, 40000);
}
START_TEST(trees)
{
    struct rng r = {23 + (uint64_t)_i};
    with_shape((size_t)_i, &r, fill_trees);
}
END_TEST

/* A path whose every position lies in a block of its own: more blocks than one pass collects. */
static void fill_scattered(struct batch *b, struct pool *p, struct rng *r, size_t i)
{
    uint32_t n = 120, *blocks = b->blocks[b->n_lists++];
    (void)i;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t slot = pool_block(p) * 16 + rng_below(r, 16);
        put(p, slot, 600 + k);
        for (uint32_t row = 0; row < 5; row++) {
            b->tails[row][k] = slot;
            b->content[row][k] = 600 + k;
        }
    }
    for (uint32_t row = 0; row < 5; row++)
        b->rows[b->n_rows++] = (struct dk_attn_row){n - row * 29, 0, blocks, b->tails[row]};
}
START_TEST(scattered)
{
    struct rng r = {24};
    with_shape((size_t)_i, &r, fill_scattered);
}
END_TEST

/*
 * Against double precision.  With u = 2^-24: a score's error is at most ds = (hd + 2) u scale
 * sum |q k|; exp adds 1 ulp and its argument's error, twice ds, and rounding of the difference;
 * the sums over at most 256 positions, the merges and the division come on top.  The AMX class
 * rounds both factors of either sum to BF16, each by at most 2^-9, and adds up 34 or 18 numbers at a time.
 */
START_TEST(definition)
{
    struct rng r = {25};
    for (size_t i = 0; i < 36; i++) {
        const bool amx = i >= 24;
        struct pool p;
        uint32_t hd = shapes[i % N_SHAPES].hd, kvh = shapes[i % N_SHAPES].kv_heads,
                 n = lengths[i % 12];
        struct batch *b = mem_zalloc(sizeof *b);
        void *scratch = mem_aligned(64, DK_SCRATCH_BYTES);
        pool_init(&p, &r, DK_KV_F32, kvh, shapes[i % N_SHAPES].group, hd);
        p.kv.amx = amx;
        batch_init(b, &r, &p);
        add_sequence(b, &p, n, 1, 50);
        oracle(b, &p, scratch);
        const float *k = p.kv.k, *v = p.kv.v;
        double s[600], ref[512], mag[512];
        for (uint32_t h = 0; h < p.n_heads; h++) {
            double m = -INFINITY, ds = 0, l = 0, worst_arg = 0;
            uint32_t kh = h / shapes[i % N_SHAPES].group;
            for (uint32_t t = 0; t < n; t++) {
                size_t base = ((size_t)b->rows[0].blocks[t / 16] * kvh + kh) * hd * 16;
                double sum = 0, abs_sum = 0;
                for (uint32_t d = 0; d < hd; d++) {
                    double x = (double)b->q[h * hd + d] * (double)k[base + d * 16 + t % 16];
                    sum += x;
                    abs_sum += fabs(x);
                }
                s[t] = sum * (double)b->scale;
                m = fmax(m, s[t]);
                ds = fmax(ds, (amx ? 0x1p-8 + 0x1p-18 + (20 + hd / 32) * 0x1p-24 * 1.01
                                   : (hd + 2) * 0x1p-24) *
                                  abs_sum * (double)b->scale);
            }
            for (uint32_t d = 0; d < hd; d++)
                ref[d] = mag[d] = 0;
            for (uint32_t t = 0; t < n; t++) {
                size_t base = ((size_t)b->rows[0].blocks[t / 16] * kvh + kh) * hd * 16;
                double e = exp(s[t] - m);
                worst_arg = fmax(worst_arg, m - s[t]);
                l += e;
                for (uint32_t d = 0; d < hd; d++) {
                    ref[d] += e * (double)v[base + t % 16 * hd + d];
                    mag[d] += e * fabs((double)v[base + t % 16 * hd + d]);
                }
            }
            double rel =
                2 * (2 * ds + worst_arg * 0x1p-24) + (256 + 16 + 8 * (n / 256 + 1) + 12) * 0x1p-24;
            if (amx) /* exponents are no longer small */
                rel = expm1(2 * (2 * ds + worst_arg * 0x1p-24)) * (1 + 0x1p-7) + 0x1p-8 + 0x1p-18 +
                      (64 + 8 * (n / 256 + 1)) * 0x1p-24;
            for (uint32_t d = 0; d < hd; d++)
                ck_assert_double_le(fabs((double)b->want[h * hd + d] - ref[d] / l),
                                    rel * mag[d] / l);
        }
        batch_done(b);
        pool_done(&p);
        mem_free(scratch);
        mem_free(b);
    }
}
END_TEST

/* An exponential just below 2^-126 rounds up to it, whatever an instruction makes of denormal numbers. */
START_TEST(denormal)
{
    struct rng r = {31};
    struct pool p;
    void *scratch = mem_aligned(64, DK_SCRATCH_BYTES);
    pool_init(&p, &r, DK_KV_BF16, 1, 1, 64);
    p.kv.amx = true;
    const uint32_t block = pool_block(&p);
    /* Scores of 0 and 698.703125, an eighth of which is 87.33789. */
    float q[64] = {1, 1}, k[2][64] = {{0}, {696, 2.703125f}}, v[2][64], out[2][64];
    for (uint32_t d = 0; d < 64; d++) {
        v[0][d] = 1;
        v[1][d] = d % 2 ? 0 : 3;
    }
    for (uint32_t i = 0; i < 2; i++)
        dk_ops(DK_TIER_C)->kv_store(&p.kv, block * 16 + i, 0, 1, k[i], v[i]);
    const struct dk_attn_row row = {2, UINT32_MAX & ~15u, &block, NULL};
    dk_ops(DK_TIER_C)->attention(&p.kv, &row, 1, q, 64, out[0], 64, 1, 0, 1, 0.125f, scratch);
    ck_assert(same_bits(out[0][1], 0x1p-126f));
    ck_assert(same_bits(out[0][0], 3));
    if (dk_ops(DK_TIER_AMX)) {
        dk_ops(DK_TIER_AMX)->attention(&p.kv, &row, 1, q, 64, out[1], 64, 1, 0, 1, 0.125f, scratch);
        ck_assert_mem_eq(out[1], out[0], sizeof(out[0]));
    }
#ifdef HAVE_AMX_EMU
    if (dk_ops(DK_TIER_AVX512)) {
        dk_cpu_attention_bf16_amx_emu(&p.kv, &row, 1, q, 64, out[1], 64, 1, 0, 1, 0.125f, scratch);
        ck_assert_mem_eq(out[1], out[0], sizeof(out[0]));
    }
#endif
    pool_done(&p);
    mem_free(scratch);
}
END_TEST

#define POISONED_ROWS 12u

/* Element d of V at the row's own position, all KV heads. */
static void poison_v(struct pool *p, const struct dk_attn_row *row, uint32_t d, float x)
{
    const uint32_t hd = p->kv.head_dim, at = row->n_vis - 1;
    for (uint32_t h = 0; h < p->kv.n_kv_heads; h++) {
        size_t i = ((size_t)row->blocks[at / 16] * p->kv.n_kv_heads + h) * hd * 16 +
                   dk_kv_v_at(&p->kv, at % 16, d);
        if (p->kv.type == DK_KV_F32)
            ((float *)p->kv.v)[i] = x;
        else
            ((uint16_t *)p->kv.v)[i] =
                p->kv.type == DK_KV_BF16 ? dk_f32_to_bf16(x) : dk_f32_to_f16(x);
    }
}

static void check_poisoned(const struct dk_ops *ops, const struct pool *p, struct batch *b,
                           void *scratch)
{
    clear(b);
    run(ops, p, b, 0, b->n_rows, 0, 3, b->out, scratch);
    for (uint32_t row = 0; row < POISONED_ROWS; row++)
        for (uint32_t i = 0; i < 192; i++) {
            float got = b->out[row * b->ld + i], want = b->want[row * b->ld + i];
            bool bad = (row == 5 && i / 64 == 1) || (row == 7 && i / 64 == 2) ||
                       (row >= 9 && i % 64 == 17) || (row >= 3 && i % 64 == 63);
            ck_assert_msg(bad ? !(fabsf(got) < INFINITY) : same_bits(got, want),
                          "%s %s: row %u, element %u", p->kv.amx ? "amx" : "exact",
                          dk_kv_type_name(p->kv.type), row, i);
        }
}

/* NaN and infinities in q and V show in the rows that see them alone, in those elements alone. */
START_TEST(poison)
{
    struct rng r = {26};
    struct pool p;
    struct batch *b = mem_zalloc(sizeof *b);
    const bool amx = _i >= DK_KV_TYPE_COUNT;
    void *scratch = mem_aligned(64, DK_SCRATCH_BYTES);
    pool_init(&p, &r, (enum dk_kv_type)(_i % DK_KV_TYPE_COUNT), 1, 3, 64);
    p.kv.amx = amx;
    batch_init(b, &r, &p);
    add_sequence(b, &p, 300, POISONED_ROWS, 0);
    oracle(b, &p, scratch);
    b->q[5 * b->ld + 64 + 3] = NAN;      /* row 5, head 1 */
    b->q[7 * b->ld + 2 * 64] = INFINITY; /* row 7, head 2 */
    poison_v(&p, &b->rows[9], 17, NAN);
    poison_v(&p, &b->rows[3], 63, -INFINITY);
    for (int tier = 0; tier < DK_TIER_COUNT; tier++) {
        const struct dk_ops *ops = dk_ops((enum dk_tier)tier);
        if (ops && (!amx || tier == DK_TIER_C || tier == DK_TIER_AMX))
            check_poisoned(ops, &p, b, scratch);
    }
#ifdef HAVE_AMX_EMU
    if (amx && dk_ops(DK_TIER_AVX512)) {
        struct dk_ops emulated = *dk_ops(DK_TIER_AVX512);
        emulated.attention = dk_cpu_attention_bf16_amx_emu;
        check_poisoned(&emulated, &p, b, scratch);
    }
#endif
    batch_done(b);
    pool_done(&p);
    mem_free(scratch);
    mem_free(b);
}
END_TEST

/* Heads and rows over threads. */
struct par_job {
    const struct dk_ops *ops;
    const struct pool *p;
    const struct batch *b;
    char *scratch;
    uint32_t grain;
};
static void par_heads(void *arg, const struct dk_par *par)
{
    struct par_job *j = arg;
    size_t h0, h1;
    dk_split(par, j->p->n_heads, j->grain, &h0, &h1);
    run(j->ops, j->p, j->b, 0, j->b->n_rows, (uint32_t)h0, (uint32_t)h1, j->b->out,
        j->scratch + par->tid * DK_SCRATCH_BYTES);
}
static void par_rows(void *arg, const struct dk_par *par)
{
    struct par_job *j = arg;
    size_t r0, r1;
    dk_split(par, j->b->n_rows, j->grain, &r0, &r1);
    run(j->ops, j->p, j->b, (uint32_t)r0, (uint32_t)r1, 0, j->p->n_heads, j->b->out,
        j->scratch + par->tid * DK_SCRATCH_BYTES);
}
START_TEST(threads)
{
    struct rng r = {27};
    struct pool p;
    struct batch *b = mem_zalloc(sizeof *b);
    char *scratch = mem_aligned(64, 3 * DK_SCRATCH_BYTES);
    pool_init(&p, &r, DK_KV_BF16, 3, 3, 64);
    batch_init(b, &r, &p);
    add_sequence(b, &p, 270, 20, 0);
    add_tree(b, &p, &r, 100, 20, 0, false, 5000);
    oracle(b, &p, scratch);
    for (unsigned n = 1; n <= 3; n++) {
        struct error err = {0};
        struct dk_pool *pool;
        ck_ok(dk_pool_new(n, &pool, &err), &err);
        FOR_TIERS(ops)
        {
            for (uint32_t grain = 1; grain <= 4; grain++) {
                struct par_job j = {ops, &p, b, scratch, grain};
                clear(b);
                dk_pool_run(pool, par_heads, &j);
                check("heads over threads", ops, &p, b);
                clear(b);
                dk_pool_run(pool, par_rows, &j);
                check("rows over threads", ops, &p, b);
            }
        }
        dk_pool_free(pool);
    }
    batch_done(b);
    pool_done(&p);
    mem_free(scratch);
    mem_free(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ops-attention");
    TCase *t = test_case(s, "attention");
    int n = (int)(3 * N_SHAPES);
    tcase_add_test(t, definition);
    tcase_add_loop_test(t, decode, 0, n);
    tcase_add_loop_test(t, prefill, 0, n);
    tcase_add_loop_test(t, trees, 0, n);
    tcase_add_loop_test(t, scattered, 0, 6);
    tcase_add_loop_test(t, poison, 0, 2 * DK_KV_TYPE_COUNT);
    tcase_add_test(t, denormal);
    tcase_add_test(t, threads);
    return test_main(s);
}
