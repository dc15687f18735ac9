/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_k, min_p and top_p.  Ordered best first (larger value, then lower id), each of them keeps a
 * prefix, so together they are one cut: the last id kept.  No sort: block maxima give a threshold
 * that few ids pass, and selection works on those.
 *
 * Definition (z as in sampler_choose.c, which is monotonic in y):
 *   top_k   the k best, exactly k.
 *   min_p   z >= log(min_p), log as dk_logf.
 *   top_p   the shortest prefix whose mass reaches ceil(top_p * total).  Mass is counted in integers:
 *           q_v = round(exp(z_v) * 2^42), exp as dk_expf, so sums have no order.  total is the sum of
 *           q over what top_k and min_p kept; where neither is on, the sum over pieces of 1,024 ids
 *           of exp(logsumexp(z)) * 2^42, pieces ascending, in double.
 */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "engine/sampler_internal.h"

#define MAX_BLOCKS 4096u
#define MASS_ONE   0x1p42
#define PIECE      1024u
#define BUCKETS    1024u

struct keys {
    const float *y;
    float max, inv_t;
};

static bool id_better(const struct keys *k, uint32_t a, uint32_t b)
{
    return sampler_better(k->y[a], a, k->y[b], b);
}

static uint64_t mass(const struct keys *k, uint32_t id)
{
    return (uint64_t)((double)dk_expf(sampler_z(k->y[id], k->max, k->inv_t)) * MASS_ONE + 0.5);
}

/* z from 0 down, in steps of 1/32; the last bucket holds everything that is further down. */
static uint32_t bucket(const struct keys *k, uint32_t id)
{
    float down = sampler_z(k->y[id], k->max, k->inv_t) * -32.0f;
    return down < (float)(BUCKETS - 1) ? (uint32_t)down : BUCKETS - 1;
}

static uint64_t round_up(double x)
{
    uint64_t t = (uint64_t)x;
    return t + ((double)t < x);
}

/* Moves the better ids of ids[lo, hi) before a pivot; returns the pivot's place. */
static uint32_t partition(const struct keys *k, uint32_t *ids, uint32_t lo, uint32_t hi)
{
    /* A place that no input can aim at; the result of a selection does not depend on it. */
    uint32_t at = lo + (uint32_t)(hash_mix64((uint64_t)lo << 32 | hi) % (hi - lo));
    uint32_t pivot = ids[at], put = lo;
    ids[at] = ids[hi - 1];
    ids[hi - 1] = pivot;
    for (uint32_t i = lo; i < hi - 1; i++) {
        uint32_t id = ids[i];
        if (id_better(k, id, pivot)) {
            ids[i] = ids[put];
            ids[put++] = id;
        }
    }
    ids[hi - 1] = ids[put];
    ids[put] = pivot;
    return put;
}

/* Brings the k best of ids[n] to the front, the k-th to ids[k - 1]; 1 <= k <= n. */
static void select_k(const struct keys *k, uint32_t *ids, uint32_t n, uint32_t want)
{
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1) {
        uint32_t p = partition(k, ids, lo, hi);
        if (p == want - 1)
            return;
        if (p < want - 1)
            lo = p + 1;
        else
            hi = p;
    }
}

/* Finds the last id of the shortest prefix of ids[n] whose mass, with `before` added, reaches target;
 * false when all together do not. */
static bool select_mass(const struct keys *k, uint32_t *ids, uint32_t n, uint64_t before,
                        uint64_t target, uint32_t *ret_last)
{
    uint32_t lo = 0, hi = n;
    while (lo < hi) {
        uint32_t p = partition(k, ids, lo, hi);
        uint64_t left = 0;
        for (uint32_t i = lo; i < p; i++)
            left += mass(k, ids[i]);
        if (before + left >= target) { /* before is below target, so left is not empty */
            hi = p;
            continue;
        }
        before += left + mass(k, ids[p]);
        *ret_last = ids[p];
        if (before >= target)
            return true;
        lo = p + 1;
    }
    return false;
}

/* The same for many ids: one pass puts their mass into buckets of z, selection works on the bucket
 * in which the target is reached. */
static bool find_mass(const struct keys *k, uint32_t *ids, uint32_t n, uint64_t target,
                      uint32_t *ret_last)
{
    if (n <= BUCKETS)
        return select_mass(k, ids, n, 0, target, ret_last);
    uint64_t bucket_mass[BUCKETS] = {0};
    for (uint32_t i = 0; i < n; i++)
        bucket_mass[bucket(k, ids[i])] += mass(k, ids[i]);
    uint64_t before = 0;
    uint32_t b = 0, in_bucket = 0;
    while (b < BUCKETS - 1 && before + bucket_mass[b] < target)
        before += bucket_mass[b++];
    for (uint32_t i = 0; i < n; i++) {
        ids[in_bucket] = ids[i];
        in_bucket += bucket(k, ids[i]) == b;
    }
    return select_mass(k, ids, in_bucket, before, target, ret_last);
}

static int float_cmp_desc(float a, float b)
{
    return (a < b) - (a > b);
}

/* k-th largest of x[n], which is reordered. */
static float kth_float(float *x, uint32_t n, uint32_t k)
{
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1) {
        uint32_t at = lo + (uint32_t)(hash_mix64((uint64_t)lo << 32 | hi) % (hi - lo)), lt = lo;
        uint32_t i = lo, gt = hi;
        float pivot = x[at];
        while (i < gt) { /* larger | equal | smaller: ties are common among block maxima */
            int c = float_cmp_desc(x[i], pivot);
            float t = x[i];
            if (c < 0) {
                x[i++] = x[lt];
                x[lt++] = t;
            } else if (c > 0) {
                x[i] = x[--gt];
                x[gt] = t;
            } else {
                i++;
            }
        }
        if (k - 1 < lt)
            hi = lt;
        else if (k - 1 < gt)
            return pivot;
        else
            lo = gt;
    }
    return x[lo];
}

/* Maxima of the blocks of y. */
struct blocks {
    uint32_t n, size;
    float max[MAX_BLOCKS];
};

/* want: about how many blocks. */
static void block_maxima(const struct dk_ops *ops, const float *y, uint32_t n, uint32_t want,
                         struct blocks *b)
{
    want = want < 512 ? 512 : want < MAX_BLOCKS ? want : MAX_BLOCKS;
    uint32_t size = ((n + want - 1) / want + 15) / 16 * 16;
    b->size = size;
    b->n = 0;
    for (uint32_t first = 0; first < n; first += size) {
        bool bad;
        (void)ops->argmax(y + first, n - first < size ? n - first : size, &b->max[b->n++], &bad);
    }
}

/* Ids with y >= least (but -inf), ascending. */
static uint32_t collect(const struct blocks *b, const float *y, uint32_t n, float least,
                        uint32_t *ids)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        if (b->max[i] < least || b->max[i] == -INFINITY)
            continue;
        uint32_t end = n - i * b->size < b->size ? n : (i + 1) * b->size;
        for (uint32_t v = i * b->size; v < end; v++) {
            ids[found] = v;
            found += y[v] >= least && y[v] > -INFINITY;
        }
    }
    return found;
}

uint32_t sampler_top(const struct dk_ops *ops, const float *y, uint32_t n, uint32_t k,
                     uint32_t *ids)
{
    const struct keys keys = {.y = y};
    struct blocks b;
    block_maxima(ops, y, n, k < MAX_BLOCKS / 8 ? k * 8 : MAX_BLOCKS, &b);
    float least = -INFINITY;
    if (k <= b.n) {
        /* At least k blocks reach this, so the k best do. */
        float copy[MAX_BLOCKS];
        memcpy(copy, b.max, b.n * sizeof(*copy));
        least = kth_float(copy, b.n, k);
    }
    uint32_t found = collect(&b, y, n, least, ids);
    if (found <= k)
        return found;
    select_k(&keys, ids, found, k);
    return k;
}

static struct sampler_cut cut_at(const float *y, uint32_t id)
{
    return (struct sampler_cut){y[id], id};
}

/* The worst id of ids[n]. */
static uint32_t worst(const struct keys *k, const uint32_t *ids, uint32_t n)
{
    uint32_t w = ids[0];
    for (uint32_t i = 1; i < n; i++)
        if (id_better(k, w, ids[i]))
            w = ids[i];
    return w;
}

/* y of the smallest z that is still >= z_least, or a little less: a filter, not the rule. */
static float y_of_z(const struct keys *k, float z_least)
{
    float y = k->max + z_least / k->inv_t;
    float slack = (fabsf(y) + fabsf(k->max)) * 0x1p-20f;
    return slack < INFINITY ? y - slack : -INFINITY;
}

/* top_p over ids[n], all that top_k and min_p kept. */
static struct sampler_cut cut_mass(const struct keys *k, float top_p, uint32_t *ids, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += mass(k, ids[i]);
    double target = (double)top_p * (double)total;
    uint32_t last = ids[0];
    (void)find_mass(k, ids, n, round_up(target), &last); /* always reached: top_p < 1 */
    return cut_at(k->y, last);
}

/* Mass of all ids over MASS_ONE; z is made piece by piece and not stored. */
static double total_mass(const struct dk_ops *ops, const struct keys *k, uint32_t n)
{
    float z[PIECE];
    double total = 0;
    for (uint32_t first = 0; first < n; first += PIECE) {
        uint32_t len = n - first < PIECE ? n - first : PIECE;
        if (len == PIECE)
            for (uint32_t i = 0; i < PIECE; i++)
                z[i] = sampler_z(k->y[first + i], k->max, k->inv_t);
        else
            for (uint32_t i = 0; i < len; i++)
                z[i] = sampler_z(k->y[first + i], k->max, k->inv_t);
        total += (double)dk_expf(ops->logsumexp(z, len, 0));
    }
    return total;
}

/* top_p alone: only ids that can be in the prefix are looked at.  Those with p < (1 - top_p) / 2n
 * have together less than half of the mass that may be left out. */
static struct sampler_cut cut_top_p(const struct sampler *s, const struct dk_ops *ops,
                                    const struct keys *k, uint32_t *ids)
{
    const uint32_t n = s->vocab;
    double total = total_mass(ops, k, n);
    float lse = dk_logf((float)total);
    uint64_t target = round_up((double)s->top_p * total * MASS_ONE);
    float rest = (float)((1.0 - (double)s->top_p) / (2.0 * (double)n));
    struct blocks b;
    block_maxima(ops, k->y, n, 1024, &b);
    uint32_t last = 0;
    uint32_t found = collect(&b, k->y, n, y_of_z(k, lse + dk_logf(rest)), ids);
    if (!find_mass(k, ids, found, target, &last)) {
        /* logsumexp's rounding: look at everything */
        found = collect(&b, k->y, n, -INFINITY, ids);
        if (!find_mass(k, ids, found, target, &last))
            return (struct sampler_cut){-INFINITY, 0};
    }
    return cut_at(k->y, last);
}

struct sampler_cut sampler_find_cut(const struct sampler *s, const struct dk_ops *ops,
                                    const float *y, float max, uint32_t *ids)
{
    struct sampler_cut cut = {-INFINITY, 0};
    const struct keys k = {y, max, (float)(1.0 / (double)s->temperature)};
    if (!s->top_k && s->min_p <= 0 && s->top_p >= 1)
        return cut;
    if (!s->top_k && s->min_p <= 0)
        return cut_top_p(s, ops, &k, ids);
    float z_least = s->min_p > 0 ? dk_logf(s->min_p) : -INFINITY;
    uint32_t n;
    if (s->top_k) {
        n = sampler_top(ops, y, s->vocab, s->top_k, ids);
    } else {
        struct blocks b;
        block_maxima(ops, y, s->vocab, 1024, &b);
        n = collect(&b, y, s->vocab, y_of_z(&k, z_least), ids);
    }
    if (s->min_p > 0) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++)
            if (sampler_z(y[ids[i]], max, k.inv_t) >= z_least)
                ids[kept++] = ids[i];
        n = kept; /* the maximum itself has z = 0 and stays */
    }
    if (s->top_p < 1)
        return cut_mass(&k, s->top_p, ids, n);
    return cut_at(y, worst(&k, ids, n));
}
