/* SPDX-License-Identifier: Apache-2.0 */
/* Products with float weights: the same bits on every tier, for every number of rows and split, and
 * within the bound that follows from the type and the length. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cpu/internal.h"
#include "tests/unit/guard.h"
#include "tests/unit/util.h"

/* Under a sanitizer the portable loops crawl: fewer and smaller problems, the same cases. */
#ifdef DEDIT_SANITIZED
#define SLOW 4u
#else
#define SLOW 1u
#endif

static uint64_t rng_state;

static uint32_t rnd(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

static uint32_t below(uint32_t n)
{
    return rnd() % n;
}

/* Exponents spread over a few powers of two. */
static float value(void)
{
    float f = ((float)below(2000001) - 1000000.0f) * 1e-6f;
    return ldexpf(f, (int)below(8) - 4);
}

/* All bit patterns: infinities, NaNs, denormals, huge and tiny values. */
static float any_bits(void)
{
    uint32_t u = rnd() << 16 ^ rnd();
    if (below(4) == 0)
        u &= 0x807fffff; /* denormal or zero */
    else if (below(40))
        u = (u & 0x807fffff) | (64 + below(120)) << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

struct problem {
    enum dk_type type;
    enum dk_layout layout;
    uint32_t n, k, rows;
    float *x, *wf; /* wf: weights as floats, [n][k] */
    char *file;    /* rows as in a file */
    size_t row_bytes;
    struct dk_weight w;
    void *data;
};

static void put(struct problem *p, uint32_t o, uint32_t k, float f)
{
    char *d = p->file + o * p->row_bytes;
    if (p->type == DK_F32) {
        memcpy(d + 4 * k, &f, 4);
    } else {
        uint16_t h = p->type == DK_F16 ? dk_f32_to_f16(f) : dk_f32_to_bf16(f);
        f = p->type == DK_F16 ? dk_f16_to_f32(h) : dk_bf16_to_f32(h);
        memcpy(d + 2 * k, &h, 2);
    }
    p->wf[(size_t)o * p->k + k] = f;
}

static void pack(struct problem *p)
{
    ck_assert(dk_weight_bytes(p->type, p->layout, p->n, p->k, &p->w.bytes));
    p->data = guard_new(p->w.bytes, 64); /* all ones: padding must be written */
    uint32_t panels = (p->n + 15) / 16, cut = below(panels + 1);
    dk_weight_pack(p->data, p->type, p->layout, p->n, p->k, p->file, p->row_bytes, cut, panels);
    dk_weight_pack(p->data, p->type, p->layout, p->n, p->k, p->file, p->row_bytes, 0, cut);
    p->w.type = p->type;
    p->w.layout = p->layout;
    p->w.n = p->n;
    p->w.k = p->k;
    p->w.n_panels = panels;
    p->w.data = p->data;
}

static struct problem problem_new(enum dk_type type, enum dk_layout layout, uint32_t n, uint32_t k,
                                  uint32_t rows, float (*gen)(void))
{
    struct problem p = {.type = type, .layout = layout, .n = n, .k = k, .rows = rows};
    p.row_bytes = (size_t)k * dk_type_info(type)->block_bytes + 2 * below(5); /* may be apart */
    p.file = guard_new((n - 1) * p.row_bytes + (size_t)k * dk_type_info(type)->block_bytes, 2);
    p.wf = mem_array((size_t)n * k, sizeof(float));
    p.x = guard_new((size_t)rows * k * sizeof(float), sizeof(float));
    for (uint32_t o = 0; o < n; o++)
        for (uint32_t i = 0; i < k; i++)
            put(&p, o, i, gen());
    for (size_t i = 0; i < (size_t)rows * k; i++)
        p.x[i] = gen();
    pack(&p);
    return p;
}

static void problem_done(struct problem *p)
{
    guard_free(p->file,
               (p->n - 1) * p->row_bytes + (size_t)p->k * dk_type_info(p->type)->block_bytes, 2);
    mem_free(p->wf);
    guard_free(p->x, (size_t)p->rows * p->k * sizeof(float), sizeof(float));
    guard_free(p->data, p->w.bytes, 64);
}

#ifdef HAVE_AMX_EMU
DK_DECLARE_MATMUL(dk_cpu_matmul_bf16_amx_emu);
#endif

/* Rows [row0, row0 + rows) in one product, cut into random pieces of rows and panels; y: rows * n.
 * Everything that the product touches ends at a page that may not be touched. */
static void run(const struct dk_ops *ops, const struct problem *p, uint32_t row0, uint32_t rows,
                unsigned flags, float *y, unsigned cuts)
{
    uint32_t max_rows = rows + (cuts ? 3 : 0), max_k = p->k + (cuts ? 5 : 0);
    size_t bytes = dk_act_bytes(max_rows, max_k), y_bytes = (size_t)rows * p->n * sizeof(float);
    void *mem = guard_new(bytes, 64);
    static void *scratch; /* for all products of a test: it is large, and its content is garbage */
    if (!scratch)
        scratch = guard_new(DK_SCRATCH_BYTES, 64);
    float *out = guard_new(y_bytes, sizeof(float));
    memcpy(out, y, y_bytes);
    struct dk_act a;
    dk_act_init(&a, max_rows, max_k, mem);
    ck_assert_uint_eq(a.bytes, bytes);
    a.rows = rows;
    a.k = p->k;
    const float *x = p->x + (size_t)row0 * p->k;
    struct dk_mm mm = {.w = &p->w, .y = out, .ldy = p->n, .flags = flags};
    uint32_t at = 0;
    for (unsigned c = 0; c <= cuts; c++) {
        uint32_t to = c == cuts ? rows : at + below(rows - at + 1);
        ops->act_prepare(&a, dk_weight_form(&p->w), x, p->k, at, to);
        at = to;
    }
    at = 0;
    for (unsigned c = 0; c <= cuts; c++) {
        uint32_t to = c == cuts ? p->w.n_panels : at + below(p->w.n_panels - at + 1);
        ops->matmul(&mm, &a, at, to, scratch);
        at = to;
    }
    memcpy(y, out, y_bytes);
    guard_free(out, y_bytes, sizeof(float));
    guard_free(mem, bytes, 64);
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b));
}

static void same_all(const char *what, const struct problem *p, const float *got, const float *want)
{
    for (size_t i = 0; i < (size_t)p->rows * p->n; i++)
        if (!same(got[i], want[i]))
            ck_abort_msg("%s: %s n %u k %u rows %u: row %zu output %zu is %a, not %a", what,
                         dk_type_info(p->type)->name, p->n, p->k, p->rows, i / p->n, i % p->n,
                         (double)got[i], (double)want[i]);
}

/* Everything that must not change a bit, against one row at a time on the portable tier. */
static void invariance(struct problem *p)
{
    size_t count = (size_t)p->rows * p->n;
    float *want = mem_array(count, sizeof(float)), *y = mem_array(count, sizeof(float));
    for (uint32_t r = 0; r < p->rows; r++)
        run(dk_ops(DK_TIER_C), p, r, 1, 0, want + (size_t)r * p->n, 0);
    for (unsigned t = 0; t < DK_TIER_COUNT; t++) {
        const struct dk_ops *ops = dk_ops((enum dk_tier)t);
        if (!ops)
            continue;
        for (unsigned cuts = 0; cuts < 4; cuts += 3) {
            memset(y, 0xff, count * sizeof *y);
            run(ops, p, 0, p->rows, 0, y, cuts);
            same_all(dk_tier_name((enum dk_tier)t), p, y, want);
        }
        /* any part of the rows alone */
        uint32_t r0 = below(p->rows), rn = 1 + below(p->rows - r0);
        run(ops, p, r0, rn, 0, y, 1);
        for (size_t i = 0; i < (size_t)rn * p->n; i++)
            ck_assert(same(y[i], want[(size_t)r0 * p->n + i]));
        /* y = y_old + acc */
        for (size_t i = 0; i < count; i++)
            y[i] = (float)i * 0.25f - 3.0f;
        run(ops, p, 0, p->rows, DK_MM_ADD, y, 2);
        for (size_t i = 0; i < count; i++)
            ck_assert(same(y[i], ((float)i * 0.25f - 3.0f) + want[i]));
    }
    mem_free(want);
    mem_free(y);
}

static const enum dk_type types[] = {DK_F32, DK_F16, DK_BF16};

START_TEST(rows_1_to_64)
{
    rng_state = (uint64_t)_i + 1;
    for (uint32_t rows = 1; rows <= 64; rows++) {
        uint32_t n = 1 + below(100 / SLOW), k = 1 + below(300 / SLOW);
        struct problem p = problem_new(types[_i], DK_LAYOUT_PANEL, n, k, rows, value);
        invariance(&p);
        problem_done(&p);
    }
}
END_TEST

START_TEST(shapes)
{
    static const uint32_t sizes[][3] = {
        /* n, k, rows */
        {1, 1, 1},     {16, 16, 1},  {17, 16, 2},    {15, 48, 3},   {64, 576, 1},
        {63, 560, 7},  {80, 208, 8}, {33, 1536, 13}, {48, 272, 25}, {16, 193, 200},
        {21, 255, 37}, {130, 17, 5}, {16, 48, 2100},
    };
    rng_state = 77;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (SLOW > 1 && sizes[i][1] * sizes[i][2] > 10000)
            continue;
        struct problem p =
            problem_new(types[_i], DK_LAYOUT_PANEL, sizes[i][0], sizes[i][1], sizes[i][2], value);
        invariance(&p);
        problem_done(&p);
    }
}
END_TEST

START_TEST(special_values)
{
    rng_state = 5;
    for (unsigned i = 0; i < 60 / SLOW; i++) {
        struct problem p = problem_new(types[_i], DK_LAYOUT_PANEL, 1 + below(60), 1 + below(100),
                                       1 + below(20), any_bits);
        invariance(&p);
        problem_done(&p);
    }
}
END_TEST

/* |y - exact| <= gamma(K) * sum |w x| + K * 2^-150. */
START_TEST(error_bound)
{
    rng_state = 9;
    const double u = 0x1p-24;
    for (int i = 0; i < 12; i++) {
        uint32_t n = 20, k = 8 + below(2000), rows = 3;
        struct problem p = problem_new(types[_i], DK_LAYOUT_PANEL, n, k, rows, value);
        float y[60];
        run(dk_ops(dk_tier_best()), &p, 0, rows, 0, y, 0);
        double kp = (k + 15) / 16 * 16, gamma = kp * u / (1 - kp * u), worst = 0;
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t o = 0; o < n; o++) {
                double sum = 0, mag = 0;
                for (uint32_t j = 0; j < k; j++) {
                    double t = (double)p.wf[(size_t)o * k + j] * (double)p.x[(size_t)r * k + j];
                    sum += t;
                    mag += fabs(t);
                }
                double e = fabs((double)y[r * n + o] - sum);
                ck_assert_msg(e <= gamma * mag + kp * 0x1p-150, "k %u: %g > %g", k, e, gamma * mag);
                worst = fmax(worst, e / (gamma * mag));
            }
        }
        ck_assert(worst > 0); /* not the reference itself */
        problem_done(&p);
    }
}
END_TEST

/* ---- the AMX BF16 class ------------------------------------------------------------------------ */

/* Values whose sums run into the denormals of every kind now and then. */
static float tiny_value(void)
{
    return below(3) ? ldexpf(value(), -(int)below(75)) : value();
}

/* The portable twin one row at a time against the tile code, executed on the emulated instructions
 * everywhere and on the real ones where they are. */
static void amx_invariance(struct problem *p)
{
    size_t count = (size_t)p->rows * p->n;
    float *want = mem_array(count, sizeof(float)), *y = mem_array(count, sizeof(float));
    ck_assert_uint_eq(dk_weight_form(&p->w), DK_FORM_BF16);
    for (uint32_t r = 0; r < p->rows; r++)
        run(dk_ops(DK_TIER_C), p, r, 1, 0, want + (size_t)r * p->n, 0);
    struct dk_ops table[DK_TIER_COUNT + 1];
    unsigned n = 0;
    for (unsigned t = 0; t < DK_TIER_COUNT; t++)
        if (dk_ops((enum dk_tier)t))
            table[n++] = *dk_ops((enum dk_tier)t);
#ifdef HAVE_AMX_EMU
    table[n] = *dk_ops(DK_TIER_C);
    table[n++].matmul = dk_cpu_matmul_bf16_amx_emu;
#endif
    for (unsigned t = 0; t < n; t++) {
        for (unsigned cuts = 0; cuts < 3; cuts += 2) {
            memset(y, 0xff, count * sizeof *y);
            run(&table[t], p, 0, p->rows, 0, y, cuts);
            same_all("AMX BF16", p, y, want);
        }
        for (size_t i = 0; i < count; i++)
            y[i] = (float)i * 0.25f - 3.0f;
        run(&table[t], p, 0, p->rows, DK_MM_ADD, y, 2);
        for (size_t i = 0; i < count; i++)
            ck_assert(same(y[i], ((float)i * 0.25f - 3.0f) + want[i]));
    }
    mem_free(want);
    mem_free(y);
}

START_TEST(amx_rows_1_to_64)
{
    rng_state = 31;
    for (uint32_t rows = 1; rows <= 64; rows++) {
        struct problem p = problem_new(DK_BF16, DK_LAYOUT_AMX_BF16, 1 + below(150 / SLOW),
                                       1 + below(200 / SLOW), rows, value);
        amx_invariance(&p);
        problem_done(&p);
    }
}
END_TEST

START_TEST(amx_special_values)
{
    rng_state = 32;
    for (unsigned i = 0; i < 60 / SLOW; i++) {
        struct problem p =
            problem_new(DK_BF16, DK_LAYOUT_AMX_BF16, 1 + below(70), 1 + below(150), 1 + below(40),
                        i % 2 ? any_bits : tiny_value);
        amx_invariance(&p);
        problem_done(&p);
    }
}
END_TEST

/* Rounding the activation moves each term by 2^-8 of it at most.  A term then goes through at most 16
 * roundings of its chain, one of the two chains' sum, and one a block of 32.  Flushing loses at most
 * 2^-126 each time. */
START_TEST(amx_error_bound)
{
    rng_state = 33;
    for (int i = 0; i < 12; i++) {
        uint32_t n = 20, k = 8 + below(2000), rows = 2;
        struct problem p = problem_new(DK_BF16, DK_LAYOUT_AMX_BF16, n, k, rows, value);
        float y[40];
        run(dk_ops(dk_tier_best()), &p, 0, rows, 0, y, 0);
        double steps = 16 + (double)(k + 31) / 32 + 1, gamma = steps * 0x1p-24, worst = 0;
        gamma = gamma / (1 - gamma);
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t o = 0; o < n; o++) {
                double sum = 0, mag = 0;
                for (uint32_t j = 0; j < k; j++) {
                    double t = (double)p.wf[(size_t)o * k + j] * (double)p.x[(size_t)r * k + j];
                    sum += t;
                    mag += fabs(t);
                }
                double e = fabs((double)y[r * n + o] - sum), u = 0x1p-8;
                double bound = (u + gamma * (1 + u)) * mag + 2 * k * 0x1p-126;
                ck_assert_msg(e <= bound, "k %u: %g > %g", k, e, bound);
                worst = fmax(worst, e / bound);
            }
        }
        ck_assert(worst > 1e-4);
        problem_done(&p);
    }
}
END_TEST

/* ---- threads ------------------------------------------------------------------------------------ */

struct shared {
    const struct dk_ops *ops;
    const struct problem *p;
    struct dk_act act;
    float *y;
    void *scratch[3];
};

/* As a step does it: rows over the members, then panels over the members, three products in a row. */
static void product(void *arg, const struct dk_par *par)
{
    struct shared *s = arg;
    const struct problem *p = s->p;
    struct dk_mm mm = {.w = &p->w, .y = s->y, .ldy = p->n};
    size_t a, b;
    for (int i = 0; i < 3; i++) {
        dk_split(par, p->rows, 1, &a, &b);
        s->ops->act_prepare(&s->act, dk_weight_form(&p->w), p->x, p->k, (uint32_t)a, (uint32_t)b);
        dk_barrier(par);
        dk_split(par, p->w.n_panels, 1, &a, &b);
        s->ops->matmul(&mm, &s->act, (uint32_t)a, (uint32_t)b, s->scratch[par->tid]);
        dk_barrier(par);
    }
}

static void pack_part(void *arg, const struct dk_par *par)
{
    struct problem *p = arg;
    size_t a, b;
    dk_split(par, p->w.n_panels, 1, &a, &b);
    dk_weight_pack(p->data, p->type, p->layout, p->n, p->k, p->file, p->row_bytes, (uint32_t)a,
                   (uint32_t)b);
}

START_TEST(threads_1_2_3)
{
    rng_state = (uint64_t)_i + 50;
    for (unsigned round = 0; round < 12 / SLOW; round++) {
        uint32_t rows = 1 + below(40), n = 1 + below(200), k = 1 + below(300 / SLOW);
        struct problem p = problem_new(_i < 3 ? types[_i] : DK_BF16,
                                       _i < 3 ? DK_LAYOUT_PANEL : DK_LAYOUT_AMX_BF16, n, k, rows,
                                       value);
        size_t count = (size_t)rows * n;
        float *want = mem_array(count, sizeof(float)), *y = mem_array(count, sizeof(float));
        run(dk_ops(DK_TIER_C), &p, 0, rows, 0, want, 0);
        for (unsigned t = 1; t <= 3; t++) {
            struct dk_pool *pool;
            struct error err;
            ck_ok(dk_pool_new(t, &pool, &err), &err);
            memset(p.data, 0xff, p.w.bytes);
            dk_pool_run(pool, pack_part, &p);
            struct shared s = {.ops = dk_ops(round % 2 ? DK_TIER_C : dk_tier_best()), .p = &p, .y = y};
            dk_act_init(&s.act, rows, k, mem_aligned(64, dk_act_bytes(rows, k)));
            s.act.rows = rows;
            s.act.k = k;
            for (int i = 0; i < 3; i++)
                s.scratch[i] = mem_aligned(64, DK_SCRATCH_BYTES);
            memset(y, 0xff, count * sizeof *y);
            dk_pool_run(pool, product, &s);
            same_all("threads", &p, y, want);
            for (int i = 0; i < 3; i++)
                mem_free(s.scratch[i]);
            mem_free(s.act.mem);
            dk_pool_free(pool);
        }
        mem_free(want);
        mem_free(y);
        problem_done(&p);
    }
}
END_TEST

START_TEST(row_lookup)
{
    rng_state = 21;
    for (int i = 0; i < 30; i++) {
        uint32_t n = 1 + below(70), k = 1 + below(130);
        struct problem p =
            problem_new(_i < 3 ? types[_i] : DK_BF16,
                        _i < 3 ? DK_LAYOUT_PANEL : DK_LAYOUT_AMX_BF16, n, k, 1, value);
        float *row = mem_array(k, sizeof(float));
        for (uint32_t o = 0; o < n; o++) {
            dk_weight_row(&p.w, o, row);
            ck_assert_mem_eq(row, p.wf + (size_t)o * k, k * sizeof(float));
        }
        mem_free(row);
        problem_done(&p);
    }
}
END_TEST

START_TEST(weight_sizes)
{
    size_t b = 7;
    ck_assert(dk_weight_bytes(DK_BF16, DK_LAYOUT_PANEL, 17, 17, &b));
    ck_assert_uint_eq(b, 32 * 32 * 2);
    ck_assert(dk_weight_bytes(DK_F32, DK_LAYOUT_PANEL, 16, 16, &b));
    ck_assert_uint_eq(b, 16 * 16 * 4);
    ck_assert(dk_weight_bytes(DK_BF16, DK_LAYOUT_AMX_BF16, 1, 48, &b));
    ck_assert_uint_eq(b, 16 * 64 * 2);
    b = 7;
    ck_assert(!dk_weight_bytes(DK_F16, DK_LAYOUT_AMX_BF16, 16, 32, &b));
    ck_assert(!dk_weight_bytes(DK_F32, DK_LAYOUT_PANEL, 0, 32, &b));
    ck_assert(!dk_weight_bytes(DK_F32, DK_LAYOUT_PANEL, 32, 0, &b));
    ck_assert(!dk_weight_bytes(DK_F32, DK_LAYOUT_PANEL, 32, UINT32_MAX, &b));
    ck_assert(!dk_weight_bytes(DK_F32, DK_LAYOUT_PANEL, UINT32_MAX, UINT32_MAX - 100, &b));
    ck_assert_uint_eq(b, 7);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("matmul");
    TCase *t = test_case(s, "bits");
    tcase_add_loop_test(t, rows_1_to_64, 0, 3);
    tcase_add_loop_test(t, shapes, 0, 3);
    tcase_add_loop_test(t, special_values, 0, 3);
    tcase_add_test(t, amx_rows_1_to_64);
    tcase_add_test(t, amx_special_values);
    tcase_add_loop_test(t, threads_1_2_3, 0, 4);
    t = test_case(s, "bound");
    tcase_add_loop_test(t, error_bound, 0, 3);
    tcase_add_test(t, amx_error_bound);
    t = test_case(s, "weights");
    tcase_add_loop_test(t, row_lookup, 0, 4);
    tcase_add_test(t, weight_sizes);
    return test_main(s);
}
