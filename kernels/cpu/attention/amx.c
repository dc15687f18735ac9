/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of the AMX BF16 class on tiles of TDPBF16PS.
 *
 * Adjacent rows with the same block list and the heads of one KV group form a tile of up to QUERIES
 * queries.  Scores are products of 16 queries by 16 positions, values of 16 queries by 16 dimensions.
 * K and V that are kept paired are tiles as they lie in the pool; others are rounded and laid out once
 * for all queries.
 *
 * Positions that a row does not see have an exponential of zero.  That is no harm as long as V there
 * is finite; blocks in which it is not, and those where tails begin, are multiplied for each row alone,
 * with zeros in place of what it does not see.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention/amx_round.h"
#include "kernels/cpu/attention/chunk.h"

#define QUERIES  48u
#define Q_TILES  (QUERIES / 16)
#define HEADS    16u /* of a KV group in one tile, at most: rows of a tile register */
#define STRIDE   (DK_MAX_HEAD_DIM + 16) /* floats; away from powers of two */
#define S_STRIDE (DK_ATTN_CHUNK + 16)
#define E_STRIDE (DK_ATTN_CHUNK + 32) /* of 16 bits */
#define D32      (DK_MAX_HEAD_DIM / 32)
#define D16      (DK_MAX_HEAD_DIM / 16)
_Static_assert(QUERIES <= TAIL_ROWS, "a tile's rows");

struct work {
    a_tile q[Q_TILES * D32];       /* [tile of queries][32 dimensions] */
    uint16_t e[QUERIES][E_STRIDE]; /* exponentials */
    k_tile k[CHUNK_BLOCKS * D32];  /* [block][32 dimensions], where K is not kept so */
    v_tile v[CHUNK_BLOCKS * D16];  /* [block][16 dimensions], of what is not kept so */
    float s[QUERIES][S_STRIDE];    /* scores */
    float u[QUERIES][S_STRIDE];    /* those of whole blocks that tails touch */
    float a[QUERIES][STRIDE];      /* weighted sums so far */
    float a_new[QUERIES][STRIDE];  /* of this chunk */
    float m[QUERIES], l[QUERIES], m_new[QUERIES], l_new[QUERIES];
    uint16_t pick[QUERIES][DK_ATTN_CHUNK];
    const char *kt[CHUNK_BLOCKS], *vt[CHUNK_BLOCKS]; /* tiles of a block */
    const char *next[CHUNK_BLOCKS];                  /* blocks that are read next, or NULL */
};
_Static_assert(sizeof(struct work) <= DK_SCRATCH_BYTES, "attention's scratch");

struct tile {
    const struct dk_kv *kv;
    const struct dk_attn_row *rows;
    uint32_t n_rows, n_heads; /* heads of one KV group; query r * n_heads + h */
    uint32_t kv_head;
    uint32_t d32, d16; /* products over the head's dimensions; sixteens of them */
    float scale;
    struct work *w;
    float *part; /* where chunks go that are not merged here: of query 0 in chunk 0; else NULL */
    size_t part_row, part_chunk;
    uint32_t end;                /* position where this call ends, whatever a row sees */
    uint32_t next_head, next_p0; /* whose K is read behind this tile's last chunk */
};

/*
 * Tile registers: 0-3 results, 4 queries, 5 K, 6 exponentials, 7 V.  A product takes as long as it has
 * queries: 16, a tile's where they are fewer, or a row's heads.
 */
static void configure(uint32_t *now, uint32_t queries)
{
    struct dk_tile_config c = {.palette = 1};
    if (*now == queries)
        return;
    *now = queries;
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = i == 6 ? 32 : 64;
        c.rows[i] = (uint8_t)(i == 5 ? 16 : i == 7 ? 8 : queries);
    }
    dk_tile_configure(&c);
}

/* ---- products ---------------------------------------------------------------------------------------- */

/* A block of K or V, of one KV head; what reads it comes much later. */
static void fetch(const char *block, size_t bytes)
{
    for (size_t i = 0; block && i < bytes; i += 64)
        __builtin_prefetch(block + i, 0, 2);
}
static size_t block_bytes(const struct dk_kv *kv)
{
    return (size_t)kv->head_dim * DK_KV_BLOCK * (kv->type == DK_KV_F32 ? 4 : 2);
}

/* The tile's number must be a constant of the instruction: `n` of four. */
#define FOUR(n, op)                                                                                \
    do {                                                                                           \
        op(0);                                                                                     \
        if ((n) > 1)                                                                               \
            op(1);                                                                                 \
        if ((n) > 2)                                                                               \
            op(2);                                                                                 \
        if ((n) > 3)                                                                               \
            op(3);                                                                                 \
    } while (0)

/* Tiles [m0, m1) of queries by the blocks in w->kt; those in w->next are asked for on the way. */
static void score(const struct tile *t, uint32_t m0, uint32_t m1, uint32_t n_blocks,
                  float (*s)[S_STRIDE])
{
    struct work *w = t->w;
    const size_t bytes = block_bytes(t->kv);
    for (uint32_t m = m0; m < m1; m++)
        for (uint32_t b = 0; b < n_blocks; b += 4) {
            const uint32_t n = n_blocks - b < 4 ? n_blocks - b : 4;
#define ZERO(i) _tile_zero(i)
#define STEP(i)                                                                                    \
    _tile_loadd(5, w->kt[b + i] + d * sizeof(k_tile), 64);                                         \
    _tile_dpbf16ps(i, 4, 5)
#define KEEP(i) _tile_stored(i, &s[16 * m][16 * (b + i)], S_STRIDE * sizeof(float))
            for (uint32_t i = 0; i < n && m == m0; i++)
                fetch(w->next[b + i], bytes);
            FOUR(n, ZERO);
            for (uint32_t d = 0; d < t->d32; d++) {
                _tile_loadd(4, w->q[m * t->d32 + d], 64);
                FOUR(n, STEP);
            }
            FOUR(n, KEEP);
#undef STEP
#undef KEEP
        }
}

/* Tiles [m0, m1) of exponentials by blocks [0, n_blocks) in w->vt; w->next as above. */
static void weigh(const struct tile *t, uint32_t m0, uint32_t m1, uint32_t n_blocks)
{
    struct work *w = t->w;
    const size_t bytes = block_bytes(t->kv);
    for (uint32_t m = m0; m < m1; m++)
        for (uint32_t d = 0; d < t->d16; d += 4) {
            const uint32_t n = t->d16 - d < 4 ? t->d16 - d : 4;
#define STEP(i)                                                                                    \
    _tile_loadd(7, w->vt[b] + (d + i) * sizeof(v_tile), 64);                                       \
    _tile_dpbf16ps(i, 6, 7)
#define KEEP(i) _tile_stored(i, &w->a_new[16 * m][16 * (d + i)], STRIDE * sizeof(float))
            FOUR(n, ZERO);
            for (uint32_t b = 0; b < n_blocks; b++) {
                if (m == m0 && d == 0)
                    fetch(w->next[b], bytes);
                _tile_loadd(6, &w->e[16 * m][16 * b], E_STRIDE * sizeof(uint16_t));
                FOUR(n, STEP);
            }
            FOUR(n, KEEP);
#undef STEP
#undef KEEP
#undef ZERO
        }
}

/* Row r by blocks [b0, ...) of the n positions that it sees; tiles are configured for its heads. */
static void weigh_row(const struct tile *t, uint32_t r, uint32_t p0, uint32_t b0, uint32_t n)
{
    struct work *w = t->w;
    const struct dk_attn_row *row = &t->rows[r];
    const uint32_t q0 = r * t->n_heads, b1 = (n + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    for (uint32_t b = b0; b < b1; b++) {
        uint32_t slots[DK_KV_BLOCK];
        for (uint32_t i = 0, p = b * DK_KV_BLOCK; i < DK_KV_BLOCK; i++, p++)
            slots[i] = p < n ? dk_attn_slot(row, p0 + p) : NO_SLOT;
        lay_v(t->kv, t->kv_head, slots, w->v + (size_t)b * t->d16);
    }
    for (uint32_t d = 0; d < t->d16; d++) {
        float *a = &w->a_new[q0][16 * d];
        if (b0)
            _tile_loadd(0, a, STRIDE * sizeof(float));
        else
            _tile_zero(0);
        for (uint32_t b = b0; b < b1; b++) {
            _tile_loadd(6, &w->e[q0][16 * b], E_STRIDE * sizeof(uint16_t));
            _tile_loadd(7, w->v[b * t->d16 + d], 64);
            _tile_dpbf16ps(0, 6, 7);
        }
        _tile_stored(0, a, STRIDE * sizeof(float));
    }
}

/* ---- one chunk ----------------------------------------------------------------------------------------- */

/* Tiles of the i-th block of K. */
static void take_k(const struct tile *t, uint32_t i, uint32_t block)
{
    struct work *w = t->w;
    w->kt[i] = block_at(t->kv, t->kv->k, block, t->kv_head, 0);
    if (dk_kv_paired(t->kv))
        return;
    lay_k(t->kv, w->kt[i], w->k + (size_t)i * t->d32);
    w->kt[i] = (const char *)(w->k + (size_t)i * t->d32);
}

/* Scores of whole blocks, all that a row of [r0, n_rows) sees.  Their V is asked for on the way. */
static void scores_plain(const struct tile *t, uint32_t r0, uint32_t p0, uint32_t n_blocks)
{
    const uint32_t *blocks = t->rows[r0].blocks + p0 / DK_KV_BLOCK;
    for (uint32_t b = 0; b < n_blocks; b++) {
        take_k(t, b, blocks[b]);
        t->w->next[b] = block_at(t->kv, t->kv->v, blocks[b], t->kv_head, 0);
    }
    score(t, r0 * t->n_heads / 16, (t->n_rows * t->n_heads + 15) / 16, n_blocks, t->w->s);
}

static void scores_tail(const struct tile *t, uint32_t r0, uint32_t p0)
{
    struct work *w = t->w;
    struct tails tails;
    const uint32_t nh = t->n_heads;
    tails_begin(&tails, t->rows, r0, t->n_rows, p0);
    while (tails.left) {
        tails_collect(&tails, t->rows, r0, t->n_rows, p0, w->pick);
        for (uint32_t b = 0; b < tails.n_blocks; b++) {
            take_k(t, b, tails.block[b]);
            w->next[b] = NULL;
        }
        score(t, tails.first * nh / 16, (tails.end * nh + 15) / 16, tails.n_blocks, w->u);
        for (uint32_t i = tails.first; i < tails.end; i++)
            for (uint32_t q = i * nh; q < (i + 1) * nh; q++)
                tails_pick(&tails, i, w->pick[i], w->u[q], w->s[q]);
    }
}

/* Exponentials to BF16, to nearest even.  The instruction takes denormal numbers for zero, of which the
 * largest would round to a normal one. */
#define DENORMAL 0x20 /* VFPCLASSPS */
static inline void put_bf16(uint16_t out[16], v16 e)
{
    __m256i h;
#ifdef __AVX512BF16__
    if (__builtin_expect(!_mm512_fpclass_ps_mask(e, DENORMAL), 1))
        h = (__m256i)_mm512_cvtneps_pbh(e);
    else
#endif
        h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(e), 16));
    _mm256_store_si256((__m256i *)(void *)out, h);
}

/* Scores of query q to exponentials, zeros behind the n that it sees up to the end of n_blocks.  The
 * largest scaled score is the largest score, scaled: rounding keeps the order. */
static inline __attribute__((always_inline)) void softmax_n(const struct tile *t, uint32_t q,
                                                            uint32_t n, uint32_t n_blocks)
{
    struct work *w = t->w;
    const float *s = w->s[q];
    uint16_t *out = w->e[q];
    const v16 low = v_set1(-__builtin_inff()), f = v_set1(t->scale);
    const uint32_t whole = n & ~15u, rest = n & 15u;
    v16 m = low, l = v_zero();
    for (uint32_t i = 0; i < whole; i += 16)
        m = v_max(m, v_load(s + i));
    if (rest)
        m = v_max(m, v_first_n(v_load(s + whole), low, rest));
    w->m_new[q] = v_fold_max(m) * t->scale;
    m = v_set1(w->m_new[q]);
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 e = v_exp_low(v_sub(v_mul(v_load(s + i), f), m));
        l = v_add(l, e);
        put_bf16(out + i, e);
    }
    if (rest) {
        v16 e = v_exp_low(v_sub(v_mul(v_load(s + whole), f), m));
        e = v_first_n(e, v_zero(), rest);
        l = v_add(l, e);
        put_bf16(out + whole, e);
    }
    for (uint32_t b = (n + 15) / 16; b < n_blocks; b++)
        put_bf16(out + (size_t)b * 16, v_zero());
    w->l_new[q] = v_fold(l);
}
static void softmax(const struct tile *t, uint32_t q, uint32_t n, uint32_t n_blocks)
{
    if (n == DK_ATTN_CHUNK)
        softmax_n(t, q, DK_ATTN_CHUNK, CHUNK_BLOCKS);
    else
        softmax_n(t, q, n, n_blocks);
}

/* Tiles of V of the first blocks, `longest` positions that some row sees; a block that not all rows
 * see, the first `all` positions, must be finite.  Returns how many blocks are so. */
static uint32_t shared_blocks(const struct tile *t, const uint32_t *blocks, uint32_t n,
                              uint32_t longest, uint32_t all)
{
    struct work *w = t->w;
    for (uint32_t b = 0; b < n; b++) {
        w->vt[b] = block_at(t->kv, t->kv->v, blocks[b], t->kv_head, 0);
        if (!dk_kv_paired(t->kv)) {
            uint32_t slots[DK_KV_BLOCK];
            for (uint32_t i = 0, p = b * DK_KV_BLOCK; i < DK_KV_BLOCK; i++, p++)
                slots[i] = p < longest ? blocks[b] * DK_KV_BLOCK + i : NO_SLOT;
            lay_v(t->kv, t->kv_head, slots, w->v + (size_t)b * t->d16);
            w->vt[b] = (const char *)(w->v + (size_t)b * t->d16);
        }
        if ((b + 1) * DK_KV_BLOCK > all && !all_finite(w->vt[b], t->d16))
            return b;
    }
    return n;
}

/* K of `head` at position p0, for weigh() to ask for; n blocks are weighed. */
static void next_k(const struct tile *t, uint32_t r0, uint32_t head, uint32_t p0, uint32_t n)
{
    const struct dk_attn_row *row = &t->rows[r0];
    const uint32_t n_next = (seen_plain(row, p0) + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    for (uint32_t b = 0; b < n; b++)
        t->w->next[b] = b < n_next
                            ? block_at(t->kv, t->kv->k, row->blocks[p0 / DK_KV_BLOCK + b], head, 0)
                            : NULL;
}

/* A query's result of the chunk at p0: into its part, or merged with what came before. */
static void finish_chunk(const struct tile *t, uint32_t q, uint32_t p0)
{
    struct work *w = t->w;
    const uint32_t hd = t->kv->head_dim;
    float *a = w->a_new[q];
    for (uint32_t d = 0; d < hd; d += 16) /* -0 of a sum that was flushed: as if zeros followed */
        v_store(a + d, v_add(v_load(a + d), v_zero()));
    if (!t->part) {
        merge(&w->m[q], &w->l[q], w->a[q], w->m_new[q], w->l_new[q], a, hd, p0 == 0);
        return;
    }
    float *o = t->part + p0 / DK_ATTN_CHUNK * t->part_chunk + q / t->n_heads * t->part_row +
               (size_t)(q % t->n_heads) * DK_ATTN_PART(hd);
    put_part(o, w->m_new[q], w->l_new[q], a, hd);
}

/* longest: of all rows' paths; tiles are configured for *queries. */
static void one_chunk(const struct tile *t, uint32_t r0, uint32_t p0, uint32_t longest,
                      uint32_t *queries)
{
    const uint32_t nh = t->n_heads, whole_tile = *queries;
    uint32_t plain = 0, most = 0, all = DK_ATTN_CHUNK, tail = DK_ATTN_CHUNK; /* the first tail's */
    for (uint32_t r = r0; r < t->n_rows; r++) {
        const uint32_t mine = seen_plain(&t->rows[r], p0), n = seen(&t->rows[r], p0);
        plain = mine > plain ? mine : plain;
        most = n > most ? n : most;
        all = n < all ? n : all;
        if (mine < n && mine < tail)
            tail = mine;
    }
    scores_plain(t, r0, p0, (plain + DK_KV_BLOCK - 1) / DK_KV_BLOCK);
    if (tail < DK_ATTN_CHUNK)
        scores_tail(t, r0, p0);
    const uint32_t n_blocks = (most + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    for (uint32_t r = r0; r < t->n_rows; r++)
        for (uint32_t h = 0; h < nh; h++)
            softmax(t, r * nh + h, seen(&t->rows[r], p0), n_blocks);
    uint32_t shared =
        tail < DK_ATTN_CHUNK ? tail / DK_KV_BLOCK : (plain + DK_KV_BLOCK - 1) / DK_KV_BLOCK;
    shared = shared_blocks(t, t->rows[r0].blocks + p0 / DK_KV_BLOCK, shared, plain, all);
    const bool last = p0 + DK_ATTN_CHUNK >= t->end || p0 + DK_ATTN_CHUNK >= longest;
    next_k(t, r0, last ? t->next_head : t->kv_head, last ? t->next_p0 : p0 + DK_ATTN_CHUNK, shared);
    if (shared)
        weigh(t, r0 * nh / 16, (t->n_rows * nh + 15) / 16, shared);
    for (uint32_t r = r0; r < t->n_rows; r++) {
        const uint32_t n = seen(&t->rows[r], p0);
        if (n > shared * DK_KV_BLOCK) {
            configure(queries, nh);
            weigh_row(t, r, p0, shared, n);
        }
        for (uint32_t h = 0; n && h < nh; h++)
            finish_chunk(t, r * nh + h, p0);
    }
    configure(queries, whole_tile);
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

/* Chunks from position p0 on. */
static void run_tile(const struct tile *t, const float *q, size_t ldq, float *out, size_t ldo,
                     uint32_t p0, uint32_t *queries)
{
    struct work *w = t->w;
    const uint32_t hd = t->kv->head_dim, nh = t->n_heads, nq = t->n_rows * nh;
    uint32_t longest = 0, r0 = 0;
    for (uint32_t j = 0; j < (nq + 15) / 16 * 16; j++) {
        const float *x = q + j / nh * ldq + (size_t)(j % nh) * hd;
        for (uint32_t d = 0; d < t->d32; d++) {
            uint16_t *to = w->q[j / 16 * t->d32 + d][j % 16];
            memset(to, 0, 64);
            if (j < nq)
                round_row(to, x + (size_t)d * 32, hd - d * 32 < 32 ? hd - d * 32 : 32);
        }
    }
    for (uint32_t r = 0; r < t->n_rows; r++)
        longest = t->rows[r].n_vis > longest ? t->rows[r].n_vis : longest;
    for (; p0 < longest && p0 < t->end; p0 += DK_ATTN_CHUNK) {
        while (t->rows[r0].n_vis <= p0)
            r0++;
        one_chunk(t, r0, p0, longest, queries);
    }
    for (uint32_t j = 0; out && j < nq; j++)
        divide(out + j / nh * ldo + (size_t)(j % nh) * hd, w->a[j], w->l[j], hd);
}

/* Cuts rows and heads into tiles; t has everything but rows and heads.  out or part is NULL. */
static void run_tiles(struct tile *t, const struct dk_attn_row *rows, uint32_t n_rows,
                      const float *q, size_t ldq, float *out, size_t ldo, float *part,
                      uint32_t n_heads, uint32_t head0, uint32_t head1, uint32_t p0)
{
    const uint32_t hd = t->kv->head_dim, group = n_heads / t->kv->n_kv_heads;
    uint32_t queries = 0; /* that tiles are configured for */
    t->d32 = (hd + 31) / 32;
    t->d16 = (hd + 15) / 16;
    t->part_row = (size_t)n_heads * DK_ATTN_PART(hd);
    t->part_chunk = n_rows * t->part_row;
    for (uint32_t h = head0; h < head1; h += t->n_heads) {
        uint32_t group_end = (h / group + 1) * group, stop = group_end < head1 ? group_end : head1;
        t->n_heads = stop - h < HEADS ? stop - h : HEADS;
        t->kv_head = h / group;
        /* The next KV head at the same place, behind the last one the first one's next chunk. */
        t->next_head = (t->kv_head + 1) % t->kv->n_kv_heads;
        t->next_p0 = t->next_head || !part ? p0 : t->end;
        const uint32_t most = QUERIES / t->n_heads;
        for (uint32_t r = 0; r < n_rows; r += t->n_rows) {
            t->rows = rows + r;
            t->n_rows = rows_together(t->rows, n_rows - r < most ? n_rows - r : most);
            configure(&queries, t->n_rows * t->n_heads < 16 ? t->n_rows * t->n_heads : 16);
            t->part = part ? part + r * t->part_row + (size_t)h * DK_ATTN_PART(hd) : NULL;
            run_tile(t, q + r * ldq + (size_t)h * hd, ldq,
                     out ? out + r * ldo + (size_t)h * hd : NULL, ldo, p0, &queries);
        }
    }
    _tile_release();
}

DK_DECLARE_ATTENTION(dk_cpu_attention_bf16_amx)
{
    struct tile t = {.kv = kv, .scale = scale, .w = scratch, .end = UINT32_MAX};
    run_tiles(&t, rows, n_rows, q, ldq, out, ldo, NULL, n_heads, head0, head1, 0);
}

DK_DECLARE_ATTENTION_PART(dk_cpu_attention_part_bf16_amx)
{
    struct tile t = {.kv = kv, .scale = scale, .w = scratch, .end = chunk1 * DK_ATTN_CHUNK};
    run_tiles(&t, rows, n_rows, q, ldq, NULL, 0, part, n_heads, head0, head1,
              chunk0 * DK_ATTN_CHUNK);
}
