/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-quantised products: every tier against the portable one, bit for bit; rows, panels and
 * threads in every split; the derived error bound against exact products in binary64.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cpu/quant/layout.h"
#include "tests/unit/guard.h"
#include "tests/unit/quant-case.h"
#include "tests/unit/util.h"

static const enum dk_type types[] = {DK_Q8_0, DK_Q4_0, DK_Q4_1, DK_Q5_0,
                                     DK_Q5_1, DK_Q4_K, DK_Q5_K, DK_Q6_K};

#ifdef HAVE_AMX_EMU
DK_DECLARE_MATMUL(dk_cpu_matmul_quant_amx_emu);
#endif
#define EMULATED DK_TIER_COUNT /* AMX on emulated tile instructions, from one row on */
#define N_TIERS  (DK_TIER_COUNT + 1)

/* NULL where this machine cannot run it. */
static const struct dk_ops *tier(unsigned t)
{
    if (t < DK_TIER_COUNT)
        return dk_ops((enum dk_tier)t);
#ifdef HAVE_AMX_EMU
    static struct dk_ops emulated;
    if (dk_ops(DK_TIER_AVX512)) {
        emulated = *dk_ops(DK_TIER_AVX512);
        emulated.matmul = dk_cpu_matmul_quant_amx_emu;
        return &emulated;
    }
#endif
    return NULL;
}

static const char *tier_name(unsigned t)
{
    return t == EMULATED ? "amx emulated" : dk_tier_name((enum dk_tier)t);
}

static void equals_portable(const struct qcase *c, const float *want)
{
    for (unsigned t = DK_TIER_AVX2; t < N_TIERS; t++) {
        if (!tier(t))
            continue;
        float *got = qcase_run(c, tier(t));
        qcase_equal(c, tier_name(t), got, want);
        mem_free(got);
    }
}

/* Loop test: one type each. */
START_TEST(tiers_agree)
{
    enum dk_type t = types[_i];
    struct qrng g = {.state = 99 + (uint32_t)_i};
    for (uint32_t rows = 1; rows <= 64; rows++) {
        struct qcase c;
        uint32_t k = (1 + qrng(&g) % (rows % 8 ? 4 : 12)) * dk_type_info(t)->block_elems;
        qcase_new(&c, &g, t, 1 + qrng(&g) % 70, k, rows, rows % 2 ? DK_MM_ADD : 0);
        float *want = qcase_run(&c, tier(DK_TIER_C));
        equals_portable(&c, want);
        mem_free(want);
        qcase_free(&c);
    }
}
END_TEST

/* Quants of all zeros or all ones (Q8_0: -128, 127), scales as they are. */
static void extreme_quants(struct qcase *c)
{
    const struct dk_type_info *info = dk_type_info(c->w.type);
    const bool two = dk_qgeom(c->w.type).kind == DK_QK_MIN;
    for (uint32_t o = 0; o < c->w.n; o++)
        for (uint8_t *b = c->src + o * c->row_bytes; b < c->src + (o + 1) * c->row_bytes;
             b += info->block_bytes) {
            const size_t scales = c->w.type == DK_Q6_K ? 208 : 0;
            uint8_t kept[4];
            memcpy(kept, b + scales, two ? 4 : 2);
            memset(b, c->w.type == DK_Q8_0 ? (o % 2 ? 0x80 : 0x7f) : (o % 2 ? 0 : 0xff),
                   info->block_bytes);
            memcpy(b + scales, kept, two ? 4 : 2);
        }
    dk_weight_pack(c->packed, c->w.type, DK_LAYOUT_PANEL, c->w.n, c->w.k, c->src, c->row_bytes, 0,
                   c->w.n_panels);
}

/* Sums as large as they can be: whatever a tier adds, shifts or places must hold them. */
START_TEST(largest_sums)
{
    /* Per row: the first input, which sets the step, then all others, in steps.  518136 has the
     * least mid and low planes below the largest high one; 16 * 127 + 7 only these. */
    static const int32_t rows[][2] = {{DK_QMAX, DK_QMAX},  {DK_QMAX, -DK_QMAX}, {DK_QMAX, 518136},
                                      {-DK_QMAX, -518136}, {DK_QMAX, 2039},     {DK_QMAX, -2056},
                                      {DK_QMAX, 1},        {DK_QMAX, 0},        {DK_QMAX, 4096},
                                      {-DK_QMAX, -520192}};
    struct qrng g = {.state = 5 + (uint32_t)_i};
    struct qcase c;
    qcase_new(&c, &g, types[_i], 34, 512, 2 * ARRAY_LEN(rows), 0);
    extreme_quants(&c);
    for (uint32_t r = 0; r < c.rows; r++)
        for (uint32_t i = 0; i < c.w.k; i++)
            c.x_mem[r * c.ldx + i] = (float)rows[r / 2][i % 32 != 0] * (r % 2 ? 0x1p-19f : 1);
    float *want = qcase_run(&c, tier(DK_TIER_C));
    for (uint32_t r = 0; r < c.rows; r++)
        ck_assert(isfinite(want[r * c.ldy]));
    equals_portable(&c, want);
    mem_free(want);
    qcase_free(&c);
}
END_TEST

/* Many inputs (several chunks of blocks in every tier), rows (several chunks of rows) and panels. */
START_TEST(large_sizes_agree)
{
    enum dk_type t = types[_i];
    struct qrng g = {.state = 7 + (uint32_t)_i};
    const uint32_t sizes[][3] = {{17, 40192, 3}, {20, 40192, 21}, {40, 512, 150}, {16, 1536, 65},
                                 {560, 160, 32}, {1040, 96, 7},   {2150, 1024, 1}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct qcase c;
        if (sizes[i][1] % dk_type_info(t)->block_elems)
            continue;
        qcase_new(&c, &g, t, sizes[i][0], sizes[i][1], sizes[i][2], 0);
        float *want = qcase_run(&c, tier(DK_TIER_C));
        equals_portable(&c, want);
        mem_free(want);
        qcase_free(&c);
    }
}
END_TEST

/* A row alone, rows in any batch, panels in any split, activations prepared in any split. */
START_TEST(rows_and_splits)
{
    enum dk_type t = types[_i];
    for (unsigned ti = 0; ti < N_TIERS; ti++) {
        const struct dk_ops *ops = tier(ti);
        if (!ops)
            continue;
        struct qrng g = {.state = 1234 + (uint32_t)_i};
        struct qcase c;
        qcase_new(&c, &g, t, 37, 3 * 256, 64, 0);
        float *want = qcase_run(&c, ops);
        for (uint32_t rows = 1; rows <= 64; rows += ti == DK_TIER_C || ti == EMULATED ? 9 : 1) {
            struct qcase part = c;
            uint32_t first = qrng(&g) % (64 - rows + 1);
            part.rows = rows;
            part.x = c.x + first * c.ldx;
            part.cut_rows = qrng(&g) % (rows + 1);
            part.cut_panels = qrng(&g) % (c.w.n_panels + 1);
            float *got = qcase_run(&part, ops);
            qcase_equal(&part, tier_name(ti), got, want + first * c.ldy);
            mem_free(got);
        }
        mem_free(want);
        qcase_free(&c);
    }
}
END_TEST

struct threaded {
    const struct qcase *c;
    const struct dk_ops *ops;
    struct dk_act act;
    struct dk_mm mm;
    char *scratch;
};

static void threaded_run(void *arg, const struct dk_par *par)
{
    struct threaded *t = arg;
    size_t a, b;
    dk_split(par, t->c->rows, 1, &a, &b);
    t->ops->act_prepare(&t->act, DK_FORM_INT, t->c->x, t->c->ldx, (uint32_t)a, (uint32_t)b);
    dk_barrier(par);
    dk_split(par, t->c->w.n_panels, 1, &a, &b);
    t->ops->matmul(&t->mm, &t->act, (uint32_t)a, (uint32_t)b,
                   t->scratch + par->tid * (size_t)DK_SCRATCH_BYTES);
}

START_TEST(threads)
{
    enum dk_type t = types[_i];
    struct qrng g = {.state = 55 + (uint32_t)_i};
    struct qcase c;
    qcase_new(&c, &g, t, 100, 512, 13, 0);
    float *want = qcase_run(&c, tier(DK_TIER_C));
    for (unsigned n = 1; n <= 3; n++) {
        struct error err;
        struct dk_pool *pool;
        ck_ok(dk_pool_new(n, &pool, &err), &err);
        for (unsigned ti = 0; ti < N_TIERS; ti++) {
            if (!tier(ti))
                continue;
            struct threaded th = {.c = &c, .ops = tier(ti)};
            size_t bytes = dk_act_bytes(c.rows, c.w.k);
            void *mem = guard_new(bytes, 64);
            dk_act_init(&th.act, c.rows, c.w.k, mem);
            th.act.rows = c.rows;
            th.act.k = c.w.k;
            float *got = mem_alloc(c.rows * c.ldy * sizeof(float));
            memcpy(got, c.y0, c.rows * c.ldy * sizeof(float));
            th.mm = (struct dk_mm){.w = &c.w, .y = got, .ldy = c.ldy, .flags = c.flags};
            th.scratch = mem_aligned(64, n * (size_t)DK_SCRATCH_BYTES);
            dk_pool_run(pool, threaded_run, &th);
            qcase_equal(&c, tier_name(ti), got, want);
            mem_free(th.scratch);
            mem_free(got);
            guard_free(mem, bytes, 64);
        }
        dk_pool_free(pool);
    }
    mem_free(want);
    qcase_free(&c);
}
END_TEST

/*
 * kernels/README.md: |y - exact| <= 0.6 * sum of d |w| + gamma(N + 3) * sum of |terms|, N fused
 * operations, d the block's step, terms as the product adds them.
 */
START_TEST(error_bound)
{
    enum dk_type t = types[_i];
    struct dk_qgeom geom = dk_qgeom(t);
    struct qrng g = {.state = 4321 + (uint32_t)_i};
    double worst = 0;
    for (int i = 0; i < 6; i++) {
        struct qcase c;
        qcase_new(&c, &g, t, 33, (1 + qrng(&g) % 8) * 256, 5, 0);
        float *got = qcase_run(&c, tier(DK_TIER_C));
        uint32_t blocks = c.w.k / DK_QBLOCK;
        double n_fma = blocks * (geom.kind == DK_QK_ZERO ? 1.0 : 2.0);
        double gamma = (n_fma + 3) * 0x1p-24 / (1 - (n_fma + 3) * 0x1p-24);
        for (uint32_t r = 0; r < c.rows; r++) {
            for (uint32_t o = 0; o < c.w.n; o++) {
                double exact = 0, quant = 0, terms = 0, tiny = 0;
                bool bad = false;
                for (uint32_t b = 0; b < blocks; b++) {
                    const float *x = c.x + r * c.ldx + (size_t)b * DK_QBLOCK;
                    struct dk_qblock q;
                    float w[32], dw[2], mw, amax = 0;
                    dk_qblock_from_file(t, c.src + o * c.row_bytes, b, &q);
                    dk_qblock_values(t, &q, w);
                    dk_qblock_scales(t, &q, dw, &mw);
                    for (unsigned k = 0; k < 32; k++) {
                        bad |= !isfinite(x[k]);
                        amax = fmaxf(amax, fabsf(x[k]));
                    }
                    double d = (double)amax / DK_QMAX;
                    for (unsigned k = 0; k < 32; k++) {
                        double v = (double)w[k] - (geom.kind == DK_QK_MIN ? (double)mw : 0);
                        exact += (double)w[k] * (double)x[k];
                        quant += d * fabs((double)w[k]);
                        terms += (fabs(v) + fabs((double)mw)) * (fabs((double)x[k]) + d);
                        tiny += fabs((double)w[k]) * 0x1p-96;
                    }
                }
                float y = got[r * c.ldy + o];
                if (bad) {
                    ck_assert(isnan(y));
                    continue;
                }
                double bound = 0.6 * quant + gamma * terms + tiny + n_fma * 0x1p-149;
                double diff = fabs((double)y - exact);
                if (terms > (double)FLT_MAX / 4)
                    continue; /* may overflow, as the exact product may */
                ck_assert_msg(diff <= bound, "%s row %u output %u: %a, exact %a, bound %a",
                              dk_type_info(t)->name, r, o, (double)y, exact, bound);
                worst = bound > 0 ? fmax(worst, diff / bound) : worst;
            }
        }
        mem_free(got);
        qcase_free(&c);
    }
    ck_assert_msg(worst > 0.005, "the bound is not sharp: %g", worst);
}
END_TEST

/* The prepared row itself: step size, error and the blocks without a step. */
START_TEST(activation_quantisation)
{
    struct qrng g = {.state = 77};
    struct qcase c;
    qcase_new(&c, &g, DK_Q8_0, 1, 1024, 60, 0);
    size_t bytes = dk_act_bytes(c.rows, c.w.k);
    void *mem = guard_new(bytes, 64);
    struct dk_act a;
    dk_act_init(&a, c.rows, c.w.k, mem);
    a.rows = c.rows;
    a.k = c.w.k;
    tier(DK_TIER_C)->act_prepare(&a, DK_FORM_INT, c.x, c.ldx, 0, c.rows);
    const struct dk_qact *act = dk_act_int(&a);
    unsigned kinds[3] = {0};
    for (uint32_t r = 0; r < c.rows; r++) {
        for (uint32_t b = 0; b < c.w.k / DK_QBLOCK; b++) {
            const struct dk_qact *v = act + dk_qact_at(c.rows, c.w.k / DK_QBLOCK, r, b);
            const float *x = c.x + r * c.ldx + (size_t)b * DK_QBLOCK;
            int32_t q[32], sum = 0, half = 0, top = 0;
            float amax = 0;
            bool bad = false;
            for (unsigned k = 0; k < 32; k++) {
                bad |= !isfinite(x[k]);
                amax = fmaxf(amax, fabsf(x[k]));
                q[k] = 16 * v->words.w[k] + v->words.low[k];
                sum += q[k];
                half += k < 16 ? q[k] : 0;
                top = abs(q[k]) > top ? abs(q[k]) : top;
            }
            kinds[bad ? 0 : amax < DK_QTINY ? 1 : 2]++;
            ck_assert_int_eq(v->nsum, -sum);
            ck_assert_int_eq(v->nsum_sub[0], -half);
            ck_assert_int_eq(v->nsum_sub[1], half - sum);
            if (bad) {
                ck_assert(isnan(v->d) && isnan(v->sum) && top == 0);
            } else if (amax < DK_QTINY) {
                ck_assert(v->d == 0 && v->sum == 0 && top == 0);
            } else {
                ck_assert_int_eq(top, DK_QMAX);
                for (unsigned k = 0; k < 32; k++)
                    ck_assert(fabs((double)x[k] - (double)v->d * q[k]) <= 0.6 * (double)v->d);
            }
        }
    }
    ck_assert(kinds[0] >= 3 && kinds[1] > 5 && kinds[2] > 100);
    guard_free(mem, bytes, 64);
    qcase_free(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quant-mm");
    TCase *c = test_case(s, "mm");
    tcase_add_loop_test(c, tiers_agree, 0, (int)ARRAY_LEN(types));
    tcase_add_loop_test(c, largest_sums, 0, (int)ARRAY_LEN(types));
    tcase_add_loop_test(c, large_sizes_agree, 0, (int)ARRAY_LEN(types));
    tcase_add_loop_test(c, rows_and_splits, 0, (int)ARRAY_LEN(types));
    tcase_add_loop_test(c, threads, 0, (int)ARRAY_LEN(types));
    tcase_add_loop_test(c, error_bound, 0, (int)ARRAY_LEN(types));
    tcase_add_test(c, activation_quantisation);
    return test_main(s);
}
