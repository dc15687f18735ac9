/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cost.h"

/* Every size up to where tiles of rows make steps, then ever fewer. */
const uint16_t cost_sizes[COST_SIZES] = {1,  2,  3,  4,  5,  6,   7,   8,   9,   10, 11,
                                         12, 13, 14, 15, 16, 18,  20,  22,  24,  28, 32,
                                         40, 48, 64, 80, 96, 128, 192, 256, 384, 512};
#define EACH           16   /* so far, every size is there */
#define GUESSED_GROWTH 0.03 /* of the time, by one more row, where nothing is known */
#define SETTLED        16   /* times seen, after which a size moves slowly */
#define PACE_RATE      0.05
#define OUTLIER        2.0 /* no call is believed to be so much slower or faster than it should be */

void costs_init(struct costs *c)
{
    *c = (struct costs){.pace = 1};
}

/* The size that stands for this number of rows: the nearest one. */
static int size_index(uint32_t rows)
{
    int i = 0;
    while (i + 1 < COST_SIZES && 2 * rows > (uint32_t)cost_sizes[i] + cost_sizes[i + 1])
        i++;
    return i;
}

/* Beyond what is known: as the last two known sizes grow. */
static double beyond(const struct cost_table *t, int last, uint32_t rows)
{
    int before = last - 1;
    while (before >= 0 && t->ns[before] == 0)
        before--;
    double growth = GUESSED_GROWTH / (1 + GUESSED_GROWTH * cost_sizes[last]) * t->ns[last];
    if (before >= 0 && t->ns[last] > t->ns[before])
        growth = (t->ns[last] - t->ns[before]) / (cost_sizes[last] - cost_sizes[before]);
    return t->ns[last] + growth * ((double)rows - cost_sizes[last]);
}

double cost_of_rows(const struct cost_table *t, uint32_t rows)
{
    if (rows == 0)
        return 0;
    int i = rows < EACH ? (int)rows - 1 : EACH - 1;
    while (i < COST_SIZES && cost_sizes[i] < rows)
        i++;
    if (i < COST_SIZES && cost_sizes[i] == rows && t->ns[i] > 0)
        return t->ns[i];
    int lo = i - 1, hi = i;
    while (hi < COST_SIZES && t->ns[hi] == 0)
        hi++;
    while (lo >= 0 && t->ns[lo] == 0)
        lo--;
    if (hi == COST_SIZES)
        return lo < 0 ? 0 : beyond(t, lo, rows);
    if (lo < 0)
        return t->ns[hi] * (1 - 0.5 * (1 - (double)rows / cost_sizes[hi]));
    double part = ((double)rows - cost_sizes[lo]) / (double)(cost_sizes[hi] - cost_sizes[lo]);
    return t->ns[lo] + part * (t->ns[hi] - t->ns[lo]);
}

static double context_ns(const struct cost_table *t, const struct cost_load *l)
{
    return t->entry_ns * l->entries + t->row_ns * l->positions;
}

double cost_of(const struct cost_table *t, const struct cost_load *l)
{
    double base = cost_of_rows(t, l->rows);
    return base > 0 ? base + context_ns(t, l) : 0;
}

/* How much of one it is believed to be. */
static double believed(double ratio)
{
    return ratio > OUTLIER ? OUTLIER : ratio < 1 / OUTLIER ? 1 / OUTLIER : ratio;
}

/* More rows never cost less: what was seen last is believed, its neighbours follow. */
static void agree(struct cost_table *t, int i)
{
    for (int j = 0; j < COST_SIZES; j++)
        if (t->ns[j] > 0 && ((j < i && t->ns[j] > t->ns[i]) || (j > i && t->ns[j] < t->ns[i])))
            t->ns[j] = t->ns[i];
}

void cost_level(struct cost_table *t)
{
    double least = 0;
    for (int i = COST_SIZES - 1; i >= 0; i--) {
        if (t->ns[i] > 0 && least > 0 && t->ns[i] > least)
            t->ns[i] = least;
        if (t->ns[i] > 0)
            least = t->ns[i];
    }
}

void cost_add(struct costs *c, enum cost_kind kind, const struct cost_load *l, uint64_t ns)
{
    struct cost_table *t = &c->table[kind];
    if (l->rows == 0 || ns == 0)
        return;
    const int i = size_index(l->rows);
    double expected = cost_of(t, l), x = (double)ns / c->pace;
    double base = x - context_ns(t, l), floor = 0.1 * x;
    if (base < floor)
        base = floor;
    if (l->rows != cost_sizes[i] && expected > 0) /* what the size itself would have taken */
        base *= cost_of_rows(t, cost_sizes[i]) / cost_of_rows(t, l->rows);
    if (t->ns[i] == 0) {
        t->ns[i] = base;
        t->seen[i] = 1;
        agree(t, i);
        return;
    }
    double rate = 1.0 / (1 + (t->seen[i] < SETTLED ? t->seen[i] : SETTLED));
    t->ns[i] *= 1 + rate * (believed(base / t->ns[i]) - 1);
    t->seen[i] += t->seen[i] < UINT32_MAX;
    agree(t, i);
    if (t->seen[i] > 2)
        c->pace *= 1 + PACE_RATE * (believed(x / expected) - 1);
}

void cost_set(struct cost_table *t, uint32_t rows, double ns)
{
    int i = size_index(rows);
    t->ns[i] = ns;
    t->seen[i] = SETTLED;
}

void cost_fill(struct cost_table *t, double ns, double slope)
{
    *t = (struct cost_table){0};
    for (int i = 0; i < COST_SIZES; i++) {
        t->ns[i] = ns * (1 + slope * (cost_sizes[i] - 1));
        t->seen[i] = SETTLED;
    }
}

void cost_context(struct cost_table *t, double one_ns, double n_ns, uint32_t n, double positions)
{
    double one = one_ns / positions, many = n_ns / positions;
    if (one < 0)
        one = 0;
    t->row_ns = many > one && n > 1 ? (many - one) / (n - 1) : 0;
    t->entry_ns = one > t->row_ns ? one - t->row_ns : 0;
}
