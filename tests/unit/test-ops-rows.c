/* SPDX-License-Identifier: Apache-2.0 */
/* Row ops: the portable form against double precision, every tier against the portable form. */
#include "base/alloc.h"
#include "tests/unit/ops.h"

#define N_MAX 4096
#define PAD   16
static float x[N_MAX + PAD], y[N_MAX + PAD], w[N_MAX + PAD], want[N_MAX + PAD], got[N_MAX + PAD];

/* Lengths around the lane count, model widths, and random ones. */
static uint32_t some_length(struct rng *r, int i)
{
    static const uint32_t special[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 576, 1536, 4096};
    return i < (int)(sizeof special / sizeof *special) ? special[i] : 1 + rng_below(r, 2000);
}

/* Writes a pattern behind the result, to see that nothing is written there. */
static void guard(float *p, uint32_t n)
{
    for (uint32_t i = 0; i < PAD; i++)
        p[n + i] = 123.5f;
}
static void check_guard(const float *p, uint32_t n)
{
    for (uint32_t i = 0; i < PAD; i++)
        ck_assert_msg(p[n + i] == 123.5f, "element %u behind the end was written", i);
}

/* Now and then a value at the edge of the format. */
static void spice(struct rng *r, float *p, uint32_t n, bool with_nonfinite)
{
    static const float odd[] = {0.0f, -0.0f, 1e-40f, -1e-44f, 3e38f, -3e38f, 1e-20f};
    for (uint32_t i = 0; i < 4; i++)
        p[rng_below(r, n)] = odd[rng_below(r, 7)];
    if (with_nonfinite) {
        p[rng_below(r, n)] = INFINITY;
        p[rng_below(r, n)] = -INFINITY;
        p[rng_below(r, n)] = NAN;
    }
}

START_TEST(rmsnorm)
{
    struct rng r = {10};
    const struct dk_ops *c = dk_ops(DK_TIER_C);
    for (int i = 0; i < 120; i++) {
        uint32_t n = some_length(&r, i);
        float eps = i % 2 ? 1e-5f : 1e-6f;
        rng_fill(&r, x, n, i % 5 == 4 ? 1e-18f : 3);
        rng_fill(&r, w, n, 1);
        if (i % 7 == 6)
            spice(&r, x, n, i % 2);
        guard(want, n);
        c->rmsnorm(want, x, w, n, eps);
        check_guard(want, n);
        double ss = 0;
        for (uint32_t k = 0; k < n; k++)
            ss += (double)x[k] * (double)x[k];
        double f = 1 / sqrt(ss / n + (double)eps);
        /* gamma(n / 16 + 5) / 2 for the root of the sum, 4 roundings behind it */
        double bound = (n / 32.0 + 8) * 0x1p-24;
        for (uint32_t k = 0; i % 7 != 6 && k < n; k++) {
            double ref = (double)x[k] * f * (double)w[k];
            ck_assert_double_le(fabs((double)want[k] - ref), bound * fabs(ref) + 1e-40);
        }
        FOR_TIERS(ops)
        {
            guard(got, n);
            ops->rmsnorm(got, x, w, n, eps);
            check_guard(got, n);
            ck_same_floats("rmsnorm", ops->tier, got, want, n);
            memcpy(got, x, n * sizeof *x); /* in place */
            ops->rmsnorm(got, got, w, n, eps);
            ck_same_floats("rmsnorm in place", ops->tier, got, want, n);
        }
    }
}
END_TEST

START_TEST(add)
{
    struct rng r = {11};
    for (int i = 0; i < 60; i++) {
        uint32_t n = some_length(&r, i);
        rng_fill(&r, x, n, 1);
        rng_fill(&r, y, n, 1);
        spice(&r, y, n, true);
        FOR_TIERS(ops)
        {
            memcpy(got, x, n * sizeof *x);
            guard(got, n);
            ops->add(got, y, n);
            check_guard(got, n);
            memcpy(want, x, n * sizeof *x);
            dk_ops(DK_TIER_C)->add(want, y, n);
            for (uint32_t k = 0; k < n; k++)
                ck_assert(same_bits(want[k], x[k] + y[k]));
            ck_same_floats("add", ops->tier, got, want, n);
        }
    }
}
END_TEST

START_TEST(silu_mul)
{
    struct rng r = {12};
    const struct dk_ops *c = dk_ops(DK_TIER_C);
    for (int i = 0; i < 120; i++) {
        uint32_t n = some_length(&r, i);
        rng_fill(&r, x, n, i % 3 == 0 ? 60 : 4);
        rng_fill(&r, y, n, 2);
        if (i % 7 == 6) {
            spice(&r, x, n, true);
            spice(&r, y, n, true);
        }
        guard(want, n);
        c->silu_mul(want, x, y, n);
        check_guard(want, n);
        for (uint32_t k = 0; i % 7 != 6 && k < n; k++) {
            double g = (double)x[k], ref = g / (1 + exp(-g)) * (double)y[k];
            /* exp within 1 ulp, then three roundings; below -88.7 exp(-g) is inf, the result 0 */
            ck_assert_double_le(fabs((double)want[k] - ref),
                                5 * 0x1p-24 * fabs(ref) + 3e-37 * fabs((double)y[k]));
        }
        FOR_TIERS(ops)
        {
            guard(got, n);
            ops->silu_mul(got, x, y, n);
            check_guard(got, n);
            ck_same_floats("silu_mul", ops->tier, got, want, n);
            memcpy(got, y, n * sizeof *y);
            ops->silu_mul(got, x, got, n);
            ck_same_floats("silu_mul over u", ops->tier, got, want, n);
            memcpy(got, x, n * sizeof *x);
            ops->silu_mul(got, got, y, n);
            ck_same_floats("silu_mul over g", ops->tier, got, want, n);
        }
    }
}
END_TEST

START_TEST(rope)
{
    struct rng r = {13};
    static const uint32_t dims[] = {2, 4, 16, 18, 32, 34, 64, 80, 96, 100, 128, 256};
    for (int i = 0; i < 96; i++) {
        uint32_t hd = dims[i % 12], heads = 1 + rng_below(&r, 9), n = hd * heads;
        enum dk_rope_pairing pairing = i / 12 % 2 ? DK_ROPE_INTERLEAVED : DK_ROPE_HALVES;
        float cs[512];
        for (uint32_t k = 0; k < hd / 2; k++) {
            float s;
            dk_sincosf(rng_float(&r, 1000), &s, &cs[k]);
            cs[hd / 2 + k] = s;
        }
        rng_fill(&r, x, n, 2);
        memcpy(want, x, n * sizeof *x);
        guard(want, n);
        dk_ops(DK_TIER_C)->rope(want, heads, hd, cs, pairing);
        check_guard(want, n);
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t k = 0; k < hd / 2; k++) {
                uint32_t ia = h * hd + (pairing == DK_ROPE_HALVES ? k : 2 * k);
                uint32_t ib = ia + (pairing == DK_ROPE_HALVES ? hd / 2 : 1);
                double a = (double)x[ia], b = (double)x[ib], co = (double)cs[k];
                double si = (double)cs[hd / 2 + k], tol = 0x1p-23 * (fabs(a) + fabs(b));
                ck_assert_double_le(fabs((double)want[ia] - (a * co - b * si)), tol);
                ck_assert_double_le(fabs((double)want[ib] - (a * si + b * co)), tol);
            }
        FOR_TIERS(ops)
        {
            memcpy(got, x, n * sizeof *x);
            guard(got, n);
            ops->rope(got, heads, hd, cs, pairing);
            check_guard(got, n);
            ck_same_floats("rope", ops->tier, got, want, n);
        }
    }
}
END_TEST

START_TEST(kv_store)
{
    struct rng r = {14};
    static const uint32_t dims[] = {16, 64, 80, 5, 33, 128};
    for (int i = 0; i < 108; i++) {
        uint32_t hd = dims[i % 6], heads = 1 + rng_below(&r, 3), n = hd * heads;
        enum dk_kv_type type = (enum dk_kv_type)(i / 6 % 3);
        const bool amx = i >= 54, paired = amx && type == DK_KV_BF16 && hd % 32 == 0;
        uint32_t es = dk_kv_elem_bytes(type);
        size_t bytes = (size_t)3 * n * DK_KV_BLOCK * es;
        char *mem[4];
        for (int k = 0; k < 4; k++) {
            mem[k] = mem_aligned(64, bytes);
            memset(mem[k], 0x55, bytes);
        }
        for (uint32_t k = 0; k < n; k++) { /* any bits but NaN, whose payload is free */
            x[k] = i % 2 ? rng_float(&r, 1) : dk_f32_from_bits(rng_u32(&r));
            y[k] = i % 2 ? rng_float(&r, 1) : ldexpf(rng_float(&r, 1), (int)rng_below(&r, 48) - 30);
            if (x[k] != x[k])
                x[k] = INFINITY;
        }
        uint32_t slot = rng_below(&r, 48);
        struct dk_kv kv = {type, heads, hd, mem[0], mem[1], amx};
        dk_ops(DK_TIER_C)->kv_store(&kv, slot, 0, kv.n_kv_heads, x, y);
        size_t written = 0;
        for (size_t b = 0; b < bytes / es; b++) {
            char untouched[4] = {0x55, 0x55, 0x55, 0x55};
            written += memcmp(mem[0] + b * es, untouched, es) != 0;
        }
        ck_assert_uint_eq(written, n);
        for (uint32_t h = 0; h < heads; h++) /* at the documented places */
            for (uint32_t d = 0; d < hd; d++) {
                size_t base = (slot / 16 * heads + h) * hd * 16;
                size_t ik = base + d * 16 + slot % 16, iv = base + slot % 16 * hd + d;
                if (paired) {
                    ik = base + d / 2 * 32 + slot % 16 * 2 + d % 2;
                    iv = base + d / 16 * 256 + slot % 16 / 2 * 32 + d % 16 * 2 + slot % 2;
                }
                if (type == DK_KV_F32) {
                    ck_assert(same_bits(((float *)mem[0])[ik], x[h * hd + d]));
                    ck_assert(same_bits(((float *)mem[1])[iv], y[h * hd + d]));
                } else {
                    uint16_t (*to)(float) = type == DK_KV_BF16 ? dk_f32_to_bf16 : dk_f32_to_f16;
                    ck_assert_uint_eq(((uint16_t *)mem[0])[ik], to(x[h * hd + d]));
                    ck_assert_uint_eq(((uint16_t *)mem[1])[iv], to(y[h * hd + d]));
                }
            }
        FOR_TIERS(ops)
        {
            struct dk_kv kv2 = {type, heads, hd, mem[2], mem[3], amx};
            memset(mem[2], 0x55, bytes);
            memset(mem[3], 0x55, bytes);
            ops->kv_store(&kv2, slot, 0, kv2.n_kv_heads, x, y);
            ck_assert_mem_eq(mem[2], mem[0], bytes);
            ck_assert_mem_eq(mem[3], mem[1], bytes);
        }
        for (int k = 0; k < 4; k++)
            mem_free(mem[k]);
    }
}
END_TEST

/* A NaN stays one in 16 bits, whatever its payload. */
START_TEST(kv_store_nan)
{
    const uint32_t nans[] = {0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7fc00000u, 0xffffffffu};
    float k[16], v[16];
    for (int i = 0; i < 16; i++)
        k[i] = v[i] = dk_f32_from_bits(nans[i % 5]);
    for (int t = 0; t < DK_TIER_COUNT; t++)
        for (int type = DK_KV_BF16; type < DK_KV_TYPE_COUNT && dk_ops((enum dk_tier)t); type++) {
            _Alignas(64) uint16_t mk[256], mv[256];
            struct dk_kv kv = {(enum dk_kv_type)type, 1, 16, mk, mv, false};
            dk_ops((enum dk_tier)t)->kv_store(&kv, 3, 0, kv.n_kv_heads, k, v);
            for (int d = 0; d < 16; d++) {
                uint16_t h = mk[d * 16 + 3];
                float f = type == DK_KV_BF16 ? dk_bf16_to_f32(h) : dk_f16_to_f32(h);
                ck_assert(f != f);
            }
        }
}
END_TEST

START_TEST(argmax)
{
    struct rng r = {15};
    for (int i = 0; i < 400; i++) {
        uint32_t n = some_length(&r, i % 40);
        rng_fill(&r, x, n, 5);
        if (i % 4 == 1) /* many ties: the lowest id wins */
            for (uint32_t k = 0; k < n; k++)
                x[k] = (float)(int)rng_below(&r, 3);
        if (i % 4 == 2) {
            for (uint32_t k = 0; k < n; k++)
                x[k] = k % 3 ? -INFINITY : i % 8 == 2 ? -0.0f : 0.0f;
            x[rng_below(&r, n)] = 0.0f;
        }
        bool has_bad = i % 4 == 3;
        if (has_bad)
            x[rng_below(&r, n)] = i % 8 == 3 ? NAN : INFINITY;
        uint32_t id = 0;
        for (uint32_t k = 0; k < n; k++)
            if (x[k] > x[id] || x[id] != x[id])
                id = k;
        for (int t = 0; t < DK_TIER_COUNT; t++) {
            const struct dk_ops *ops = dk_ops((enum dk_tier)t);
            float max = 77;
            bool bad = !has_bad;
            if (!ops)
                continue;
            uint32_t at = ops->argmax(x, n, &max, &bad);
            ck_assert_msg(bad == has_bad, "%s, n %u", dk_tier_name(ops->tier), n);
            if (!has_bad) {
                ck_assert_uint_eq(at, id);
                ck_assert(same_bits(max, x[id]));
            }
        }
    }
}
END_TEST

START_TEST(argmax_bad)
{
    /* Nothing but -inf is bad; a NaN or +inf anywhere, tails included, is seen. */
    for (int t = 0; t < DK_TIER_COUNT; t++)
        for (uint32_t n = 1; n < 100 && dk_ops((enum dk_tier)t); n++) {
            const struct dk_ops *ops = dk_ops((enum dk_tier)t);
            float max;
            bool bad = false;
            for (uint32_t k = 0; k < n; k++)
                x[k] = -INFINITY;
            ck_assert_uint_eq(ops->argmax(x, n, &max, &bad), 0);
            ck_assert(bad && max == -INFINITY);
            x[n - 1] = -3e38f;
            ck_assert_uint_eq(ops->argmax(x, n, &max, &bad), n - 1);
            ck_assert(!bad && max == -3e38f);
            for (uint32_t k = 0; k < n; k++) {
                const float poison[] = {NAN, INFINITY, -NAN};
                for (int j = 0; j < 3; j++) {
                    float keep = x[k];
                    x[k] = poison[j];
                    bad = false;
                    uint32_t id = ops->argmax(x, n, &max, &bad);
                    ck_assert(bad && id < n);
                    x[k] = keep;
                }
            }
        }
}
END_TEST

START_TEST(logsumexp)
{
    struct rng r = {16};
    for (int i = 0; i < 120; i++) {
        uint32_t n = some_length(&r, i);
        float max = -INFINITY;
        double sum = 0;
        rng_fill(&r, x, n, 6);
        if (i % 5 == 4)
            for (uint32_t k = 0; k < n; k += 2)
                x[k] = -INFINITY;
        x[n - 1] = 1;
        for (uint32_t k = 0; k < n; k++)
            max = x[k] > max ? x[k] : max;
        for (uint32_t k = 0; k < n; k++)
            sum += exp((double)x[k] - (double)max);
        float ref = dk_ops(DK_TIER_C)->logsumexp(x, n, max);
        /* relative error of the sum: gamma(n / 16 + 4) and 1 ulp of exp; one ulp of log and sum */
        double bound = (n / 16.0 + 8) * 0x1p-24 + 0x1p-23 * (fabs((double)max) + log(sum));
        ck_assert_double_le(fabs((double)ref - (log(sum) + (double)max)), bound);
        FOR_TIERS(ops)
        {
            float v = ops->logsumexp(x, n, max);
            ck_same_floats("logsumexp", ops->tier, &v, &ref, 1);
        }
    }
}
END_TEST

/* exp of the vector tiers over its whole range, by way of silu_mul: bits of the scalar function. */
START_TEST(exp_tiers)
{
    enum { N = 1024 };
    struct rng r = {17};
    for (int round = 0; round < 400; round++) {
        for (uint32_t i = 0; i < N; i++) {
            x[i] = dk_f32_from_bits(rng_u32(&r));
            if (round % 2)
                x[i] = rng_float(&r, 60);
            y[i] = 1;
            want[i] = x[i] / (1.0f + dk_expf(-x[i])) * y[i];
        }
        FOR_TIERS(ops)
        {
            ops->silu_mul(got, x, y, N);
            ck_same_floats("exp", ops->tier, got, want, N);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ops-rows");
    TCase *t = test_case(s, "rows");
    tcase_add_test(t, rmsnorm);
    tcase_add_test(t, add);
    tcase_add_test(t, silu_mul);
    tcase_add_test(t, rope);
    tcase_add_test(t, kv_store);
    tcase_add_test(t, kv_store_nan);
    tcase_add_test(t, argmax);
    tcase_add_test(t, argmax_bad);
    tcase_add_test(t, logsumexp);
    tcase_add_test(t, exp_tiers);
    return test_main(s);
}
