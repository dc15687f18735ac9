/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of the AMX BF16 class on tiles of TDPBF16PS.
 *
 * Adjacent rows with the same block list and the heads of one KV group form a tile of up to QUERIES
 * queries.  K and V of a chunk are rounded once for all of them and laid out as the instruction wants
 * them, pairs of dimensions (of positions) by 16 positions (dimensions); scores are products of 16
 * queries by 16 positions, values of 16 queries by 16 dimensions.
 *
 * Positions that a row does not see have an exponential of zero.  That is no harm as long as V there
 * is finite; groups of 32 positions in which it is not, and those where tails begin, are multiplied
 * for each row alone, with zeros in place of what it does not see.
 */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention/amx_round.h"
#include "kernels/cpu/attention/chunk.h"

#define QUERIES  48u
#define Q_TILES  (QUERIES / 16)
#define HEADS    16u /* of a KV group in one tile, at most: rows of a tile register */
#define STRIDE   (DK_MAX_HEAD_DIM + 16) /* floats; away from powers of two */
#define S_STRIDE (DK_ATTN_CHUNK + 16)
#define GROUPS   (DK_ATTN_CHUNK / GROUP)
#define D32      (DK_MAX_HEAD_DIM / 32)
#define D16      (DK_MAX_HEAD_DIM / 16)
_Static_assert(QUERIES <= TAIL_ROWS, "a tile's rows");

struct work {
    a_tile q[Q_TILES * D32]; /* [tile of queries][32 dimensions] */
    a_tile e[Q_TILES * GROUPS], row_e[GROUPS];
    b_tile k[CHUNK_BLOCKS * D32]; /* [block][32 dimensions] */
    b_tile v[GROUPS * D16];       /* [group][16 dimensions] */
    float s[QUERIES][S_STRIDE];   /* scores */
    float u[QUERIES][S_STRIDE];   /* those of whole blocks that tails touch */
    float a[QUERIES][STRIDE];     /* weighted sums so far */
    float a_new[QUERIES][STRIDE]; /* of this chunk */
    float m[QUERIES], l[QUERIES], m_new[QUERIES], l_new[QUERIES];
    uint16_t pick[QUERIES][DK_ATTN_CHUNK];
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
    uint32_t end; /* position where this call ends, whatever a row sees */
};

/* Tile registers: 0-3 results, 4 queries or exponentials, 5 K or V; 6 and 7 results and exponentials
 * of the heads of one row. */
static void configure(uint32_t heads)
{
    struct dk_tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = (uint8_t)(i >= 6 ? heads : 16);
    }
    dk_tile_configure(&c);
}

/* ---- products ---------------------------------------------------------------------------------------- */

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

/* Tiles [m0, m1) of queries by the blocks in w->k. */
static void score(const struct tile *t, uint32_t m0, uint32_t m1, uint32_t n_blocks,
                  float (*s)[S_STRIDE])
{
    struct work *w = t->w;
    for (uint32_t m = m0; m < m1; m++)
        for (uint32_t b = 0; b < n_blocks; b += 4) {
            const uint32_t n = n_blocks - b < 4 ? n_blocks - b : 4;
#define ZERO(i) _tile_zero(i)
#define STEP(i)                                                                                    \
    _tile_loadd(5, w->k[(b + i) * t->d32 + d], 64);                                                \
    _tile_dpbf16ps(i, 4, 5)
#define KEEP(i) _tile_stored(i, &s[16 * m][16 * (b + i)], S_STRIDE * sizeof(float))
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

/* Tiles [m0, m1) of exponentials by groups [0, groups) of V. */
static void weigh(const struct tile *t, uint32_t m0, uint32_t m1, uint32_t groups)
{
    struct work *w = t->w;
    for (uint32_t m = m0; m < m1; m++)
        for (uint32_t d = 0; d < t->d16; d += 4) {
            const uint32_t n = t->d16 - d < 4 ? t->d16 - d : 4;
#define STEP(i)                                                                                    \
    _tile_loadd(5, w->v[g * t->d16 + d + i], 64);                                                  \
    _tile_dpbf16ps(i, 4, 5)
#define KEEP(i) _tile_stored(i, &w->a_new[16 * m][16 * (d + i)], STRIDE * sizeof(float))
            FOUR(n, ZERO);
            for (uint32_t g = 0; g < groups; g++) {
                _tile_loadd(4, w->e[m * GROUPS + g], 64);
                FOUR(n, STEP);
            }
            FOUR(n, KEEP);
#undef STEP
#undef KEEP
#undef ZERO
        }
}

/* Row r by groups [g0, g1), of which the last may be seen in part. */
static void weigh_row(const struct tile *t, uint32_t r, uint32_t p0, uint32_t g0, uint32_t n)
{
    struct work *w = t->w;
    const struct dk_attn_row *row = &t->rows[r];
    const uint32_t q0 = r * t->n_heads, g1 = (n + GROUP - 1) / GROUP;
    for (uint32_t g = g0; g < g1; g++) {
        const void *v[GROUP];
        for (uint32_t i = 0; i < GROUP; i++) {
            const uint32_t p = g * GROUP + i, slot = p < n ? dk_attn_slot(row, p0 + p) : 0;
            v[i] = p < n ? block_at(t->kv, t->kv->v, slot / DK_KV_BLOCK, t->kv_head,
                                    slot % DK_KV_BLOCK)
                         : NULL;
        }
        (void)round_group(t->kv, v, NULL, w->v + (size_t)g * t->d16);
        for (uint32_t h = 0; h < t->n_heads; h++)
            memcpy(w->row_e[g][h], w->e[(q0 + h) / 16 * GROUPS + g][(q0 + h) % 16],
                   sizeof(w->row_e[g][h]));
    }
    for (uint32_t d = 0; d < t->d16; d++) {
        float *a = &w->a_new[q0][16 * d];
        if (g0)
            _tile_loadd(6, a, STRIDE * sizeof(float));
        else
            _tile_zero(6);
        for (uint32_t g = g0; g < g1; g++) {
            _tile_loadd(7, w->row_e[g], 64);
            _tile_loadd(5, w->v[g * t->d16 + d], 64);
            _tile_dpbf16ps(6, 7, 5);
        }
        _tile_stored(6, a, STRIDE * sizeof(float));
    }
}

/* ---- one chunk ----------------------------------------------------------------------------------------- */

/* Scores of whole blocks, all that a row of [r0, n_rows) sees. */
static void scores_plain(const struct tile *t, uint32_t r0, uint32_t p0, uint32_t n_blocks)
{
    const uint32_t *blocks = t->rows[r0].blocks + p0 / DK_KV_BLOCK;
    for (uint32_t b = 0, next = 2; b < n_blocks; b++, next++) {
        const void *k = block_at(t->kv, t->kv->k, blocks[b], t->kv_head, 0);
        const bool of_k = next < n_blocks; /* then the first two of V */
        const uint32_t block = blocks[of_k ? next : (next - n_blocks) % n_blocks];
        round_block(t->kv, k, block_at(t->kv, of_k ? t->kv->k : t->kv->v, block, t->kv_head, 0),
                    t->w->k + (size_t)b * t->d32);
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
            const void *k = block_at(t->kv, t->kv->k, tails.block[b], t->kv_head, 0);
            round_block(t->kv, k, k, w->k + (size_t)b * t->d32);
        }
        score(t, tails.first * nh / 16, (tails.end * nh + 15) / 16, tails.n_blocks, w->u);
        for (uint32_t i = tails.first; i < tails.end; i++)
            for (uint32_t q = i * nh; q < (i + 1) * nh; q++)
                tails_pick(&tails, i, w->pick[i], w->u[q], w->s[q]);
    }
}

/* Scores of query q to exponentials, zeros behind the n that it sees up to the end of `groups`. */
static void softmax(const struct tile *t, uint32_t q, uint32_t n, uint32_t groups)
{
    struct work *w = t->w;
    float *s = w->s[q];
    const v16 low = v_set1(-__builtin_inff()), f = v_set1(t->scale);
    const uint32_t whole = n & ~15u, rest = n & 15u;
    v16 m = low, l = v_zero();
    for (uint32_t i = 0; i < n; i += 16) {
        v16 x = v_mul(v_load(s + i), f);
        v_store(s + i, x);
        m = v_max(m, i < whole ? x : v_first_n(x, low, rest));
    }
    w->m_new[q] = v_fold_max(m);
    m = v_set1(w->m_new[q]);
    for (uint32_t i = 0; i < groups * GROUP; i += 16) {
        v16 e = v_zero();
        if (i < n) {
            e = v_exp(v_sub(v_load(s + i), m));
            e = i < whole ? e : v_first_n(e, v_zero(), rest);
            l = v_add(l, e);
        }
        _mm256_storeu_si256(
            (__m256i *)(void *)&w->e[q / 16 * GROUPS + i / GROUP][q % 16][i % GROUP],
            _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(e), 16)));
    }
    w->l_new[q] = v_fold(l);
}

/* V of the positions of group g of whole blocks, as far as `longest`. */
static void plain_group(const struct tile *t, const uint32_t *blocks, uint32_t g, uint32_t longest,
                        const void **v)
{
    for (uint32_t i = 0; i < GROUP; i++) {
        const uint32_t p = g * GROUP + i;
        v[i] = p < longest
                   ? block_at(t->kv, t->kv->v, blocks[p / DK_KV_BLOCK], t->kv_head, p % DK_KV_BLOCK)
                   : NULL;
    }
}

/* V of whole groups for all rows; how many groups are so. */
static uint32_t shared_groups(const struct tile *t, uint32_t r0, uint32_t p0, uint32_t groups,
                              uint32_t longest)
{
    const uint32_t *blocks = t->rows[r0].blocks + p0 / DK_KV_BLOCK;
    const void *v[2][GROUP];
    plain_group(t, blocks, 0, longest, v[0]);
    for (uint32_t g = 0; g < groups; g++) {
        plain_group(t, blocks, g + 1, longest, v[(g + 1) % 2]);
        if (!round_group(t->kv, v[g % 2], v[(g + 1) % 2], t->w->v + (size_t)g * t->d16))
            return g;
    }
    return groups;
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

static void one_chunk(const struct tile *t, uint32_t r0, uint32_t p0)
{
    const uint32_t nh = t->n_heads;
    uint32_t plain = 0, most = 0, tail = DK_ATTN_CHUNK; /* where the first tail begins */
    for (uint32_t r = r0; r < t->n_rows; r++) {
        const uint32_t mine = seen_plain(&t->rows[r], p0), n = seen(&t->rows[r], p0);
        plain = mine > plain ? mine : plain;
        most = n > most ? n : most;
        if (mine < n && mine < tail)
            tail = mine;
    }
    scores_plain(t, r0, p0, (plain + DK_KV_BLOCK - 1) / DK_KV_BLOCK);
    if (tail < DK_ATTN_CHUNK)
        scores_tail(t, r0, p0);
    const uint32_t groups = (most + GROUP - 1) / GROUP;
    for (uint32_t r = r0; r < t->n_rows; r++)
        for (uint32_t h = 0; h < nh; h++)
            softmax(t, r * nh + h, seen(&t->rows[r], p0), groups);
    uint32_t shared = tail < DK_ATTN_CHUNK ? tail / GROUP : (plain + GROUP - 1) / GROUP;
    shared = shared_groups(t, r0, p0, shared, plain);
    if (shared)
        weigh(t, r0 * nh / 16, (t->n_rows * nh + 15) / 16, shared);
    for (uint32_t r = r0; r < t->n_rows; r++) {
        const uint32_t n = seen(&t->rows[r], p0);
        if (n > shared * GROUP)
            weigh_row(t, r, p0, shared, n);
        for (uint32_t h = 0; n && h < nh; h++)
            finish_chunk(t, r * nh + h, p0);
    }
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

/* Chunks from position p0 on. */
static void run_tile(const struct tile *t, const float *q, size_t ldq, float *out, size_t ldo,
                     uint32_t p0)
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
        one_chunk(t, r0, p0);
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
    uint32_t configured = 0;
    t->d32 = (hd + 31) / 32;
    t->d16 = (hd + 15) / 16;
    t->part_row = (size_t)n_heads * DK_ATTN_PART(hd);
    t->part_chunk = n_rows * t->part_row;
    for (uint32_t h = head0; h < head1; h += t->n_heads) {
        uint32_t group_end = (h / group + 1) * group, stop = group_end < head1 ? group_end : head1;
        t->n_heads = stop - h < HEADS ? stop - h : HEADS;
        t->kv_head = h / group;
        if (t->n_heads != configured)
            configure(configured = t->n_heads);
        const uint32_t most = QUERIES / t->n_heads;
        for (uint32_t r = 0; r < n_rows; r += t->n_rows) {
            t->rows = rows + r;
            t->n_rows = rows_together(t->rows, n_rows - r < most ? n_rows - r : most);
            t->part = part ? part + r * t->part_row + (size_t)h * DK_ATTN_PART(hd) : NULL;
            run_tile(t, q + r * ldq + (size_t)h * hd, ldq,
                     out ? out + r * ldo + (size_t)h * hd : NULL, ldo, p0);
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
