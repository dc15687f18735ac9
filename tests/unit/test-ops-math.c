/* SPDX-License-Identifier: Apache-2.0 */
/* exp, log, sine and cosine, Philox, Gumbel noise, and the ops built on them. */
#include <stdlib.h>

#include "base/alloc.h"
#include "tests/unit/ops.h"

/* Distance in units of the last place of the true value. */
static double ulps(float got, double want)
{
    int e;
    if (fabs(want) < 0x1p-126)
        return fabs((double)got - want) / 0x1p-149;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, e - 24);
}

START_TEST(exp_accuracy)
{
    double worst = 0;
    for (uint32_t b = 0; b <= 0x42d00000u; b += 997)
        for (int sign = 0; sign < 2; sign++) {
            float x = dk_f32_from_bits(b | (sign ? 0x80000000u : 0)), y = dk_expf(x);
            double want = (double)expl((long double)x);
            if (want > 0x1.fffffefp127) {
                ck_assert_msg(y == INFINITY, "exp(%a) = %a", (double)x, (double)y);
                continue;
            }
            double u = ulps(y, want);
            worst = u > worst ? u : worst;
        }
    ck_assert_msg(worst < 0.9, "%g ulp", worst);
}
END_TEST

START_TEST(exp_special)
{
    ck_assert(dk_expf(0.0f) == 1.0f && dk_expf(-0.0f) == 1.0f);
    ck_assert(dk_expf(INFINITY) == INFINITY && dk_expf(89.0f) == INFINITY);
    ck_assert(dk_expf(3e38f) == INFINITY);
    ck_assert(dk_f32_bits(dk_expf(-INFINITY)) == 0 && dk_f32_bits(dk_expf(-104.0f)) == 0);
    ck_assert(isnan(dk_expf(NAN)));
    ck_assert(dk_expf(-103.0f) > 0 && dk_expf(-103.0f) < 0x1p-126f); /* gradual underflow */
    ck_assert(dk_expf(88.72f) < INFINITY);
}
END_TEST

START_TEST(log_accuracy)
{
    double worst = 0;
    for (uint32_t b = 1; b < 0x7f800000u; b += 997) {
        float x = dk_f32_from_bits(b);
        double u = ulps(dk_logf(x), (double)logl((long double)x));
        worst = u > worst ? u : worst;
    }
    for (int i = -2000; i <= 2000; i++) { /* around 1, where the result passes zero */
        float x = dk_f32_from_bits(0x3f800000u + (uint32_t)i);
        if (i) {
            double u = ulps(dk_logf(x), (double)logl((long double)x));
            worst = u > worst ? u : worst;
        }
    }
    ck_assert_msg(worst < 0.95, "%g ulp", worst);
}
END_TEST

START_TEST(log_special)
{
    ck_assert(dk_logf(1.0f) == 0);
    ck_assert(dk_logf(0.0f) == -INFINITY && dk_logf(-0.0f) == -INFINITY);
    ck_assert(dk_logf(INFINITY) == INFINITY);
    ck_assert(isnan(dk_logf(-1.0f)) && isnan(dk_logf(-INFINITY)) && isnan(dk_logf(NAN)));
}
END_TEST

/* The binary FMA-less route gives what the instruction (or libm) gives. */
START_TEST(fma_exact)
{
    struct rng r = {1};
    for (int i = 0; i < 2000000; i++) {
        float a = dk_f32_from_bits(rng_u32(&r)), b = dk_f32_from_bits(rng_u32(&r));
        float c = dk_f32_from_bits(rng_u32(&r));
        if (i % 2) { /* nearly cancelling, halfway and denormal cases */
            b = rng_float(&r, 1);
            a = ldexpf(rng_float(&r, 1), (int)rng_below(&r, 40) - 20 - (i % 4 == 1 ? 130 : 0));
            c = i % 8 < 4 ? -a * b : ldexpf(a * b, -24);
        }
        float got = (float)dk_fma_odd(a, b, c), want = fmaf(a, b, c);
        ck_assert_msg(same_bits(got, want), "fma(%a, %a, %a) = %a, wanted %a", (double)a, (double)b,
                      (double)c, (double)got, (double)want);
    }
}
END_TEST

START_TEST(sincos_accuracy)
{
    struct rng r = {2};
    double worst = 0, worst_rel = 0;
    for (int i = 0; i < 400000; i++) {
        float a = i < 1000 ? (float)i : (float)rng_u32(&r) * 0x1p-8f, s, c;
        if (i % 3 == 0)
            a = dk_f32_from_bits(rng_below(&r, 0x4b800001u)); /* every binade up to 2^24 */
        if (i % 2)
            a = -a;
        if (fabsf(a) > 0x1p24f)
            continue;
        dk_sincosf(a, &s, &c);
        double ws = (double)sinl((long double)a), wc = (double)cosl((long double)a);
        worst = fmax(worst, fmax(fabs((double)s - ws), fabs((double)c - wc)));
        worst_rel = fmax(worst_rel, fmax(ulps(s, ws), ulps(c, wc)));
    }
    ck_assert_msg(worst <= 0x1.01p-25, "absolute %g", worst);
    ck_assert_msg(worst_rel < 0.51, "%g ulp", worst_rel);
}
END_TEST

START_TEST(sincos_special)
{
    float s, c;
    dk_sincosf(0.0f, &s, &c);
    ck_assert(dk_f32_bits(s) == 0 && c == 1);
    dk_sincosf(-0.0f, &s, &c);
    ck_assert(dk_f32_bits(s) == 0x80000000u && c == 1);
    const float beyond[] = {INFINITY, -INFINITY, NAN, 0x1.000002p24f};
    for (size_t i = 0; i < 4; i++) {
        dk_sincosf(beyond[i], &s, &c);
        ck_assert(isnan(s) && isnan(c));
    }
}
END_TEST

static uint32_t hex32(json_t *a, size_t i)
{
    return (uint32_t)strtoul(json_string_value(json_array_get(a, i)), NULL, 16);
}

START_TEST(philox_vectors)
{
    json_error_t e;
    json_t *all = json_load_file(test_path("tests/golden/sampling/philox4x32_10.json"), 0, &e), *v;
    ck_assert_msg(all, "%s", e.text);
    size_t i;
    ck_assert_uint_ge(json_array_size(all), 3);
    json_array_foreach(all, i, v)
    {
        json_t *jc = json_object_get(v, "counter"), *jk = json_object_get(v, "key");
        uint32_t ctr[4], key[2] = {hex32(jk, 0), hex32(jk, 1)}, out[4];
        for (size_t k = 0; k < 4; k++)
            ctr[k] = hex32(jc, k);
        dk_philox4x32_10(ctr, key, out);
        for (size_t k = 0; k < 4; k++)
            ck_assert_uint_eq(out[k], hex32(json_object_get(v, "out"), k));
        /* The vector forms: the same block as part of a run of noise. */
        if (ctr[0] > 0x3ffffff0u)
            continue;
        for (int t = 0; t < DK_TIER_COUNT; t++) {
            const struct dk_ops *ops = dk_ops((enum dk_tier)t);
            float g[4], want[4];
            for (size_t k = 0; k < 4; k++)
                want[k] = dk_gumbelf(out[k]);
            if (!ops)
                continue;
            ops->gumbel(g, key, ctr + 1, ctr[0] * 4, 4);
            ck_same_floats("gumbel", ops->tier, g, want, 4);
        }
    }
    json_decref(all);
}
END_TEST

/* Against the formula in double precision; and the extreme words. */
START_TEST(gumbel_accuracy)
{
    struct rng r = {3};
    double worst = 0;
    for (int i = 0; i < 1000000; i++) {
        uint32_t word = rng_u32(&r);
        if (i % 4 == 0)
            word >>= rng_below(&r, 32);
        if (word > 0xffff0000u)
            continue;
        double w = ((double)word + 0.5) * 0x1p-32, want = -log(-log1p(-w));
        worst = fmax(worst, fabs((double)dk_gumbelf(word) - want) / fmax(1, fabs(want)));
    }
    ck_assert_msg(worst < 0x1p-8 * 0x1p-8 * 4, "%g", worst);
    ck_assert(fabsf(dk_gumbelf(0) - 22.8739f) < 1e-3f);
    ck_assert(fabsf(dk_gumbelf(0xffffffffu) + 2.81154f) < 1e-4f);
    float before = INFINITY; /* falls with the word */
    for (uint64_t word = 0; word <= 0xffffffffu; word = word * 17 / 16 + 1) {
        float g = dk_gumbelf((uint32_t)word);
        ck_assert(g <= before);
        before = g;
    }
}
END_TEST

START_TEST(gumbel_tiers)
{
    enum { N = 3000 };
    static float want[N], got[N];
    struct rng r = {4};
    for (int round = 0; round < 40; round++) {
        uint32_t key[2] = {rng_u32(&r), rng_u32(&r)}, ctr[3] = {rng_u32(&r), rng_u32(&r), 0};
        uint32_t v0 = round < 20 ? (uint32_t)round * 5 : rng_u32(&r) / 2;
        uint32_t n = round % 4 == 0 ? N : rng_below(&r, 100);
        dk_ops(DK_TIER_C)->gumbel(want, key, ctr, v0, n);
        FOR_TIERS(ops)
        {
            memset(got, 0, sizeof got);
            ops->gumbel(got, key, ctr, v0, n);
            ck_same_floats("gumbel", ops->tier, got, want, n);
            uint32_t cut = rng_below(&r, n + 1); /* any split of the range */
            ops->gumbel(got, key, ctr, v0, cut);
            ops->gumbel(got + cut, key, ctr, v0 + cut, n - cut);
            ck_same_floats("gumbel, split", ops->tier, got, want, n);
        }
    }
}
END_TEST

/* Mean and variance of the noise: 0.5772 and pi^2 / 6. */
START_TEST(gumbel_law)
{
    enum { N = 1 << 20 };
    float *g = mem_array(N, sizeof *g);
    const uint32_t key[2] = {7, 9}, ctr[3] = {1, 2, 0};
    dk_ops(dk_tier_best())->gumbel(g, key, ctr, 0, N);
    double sum = 0, sq = 0;
    for (size_t i = 0; i < N; i++) {
        sum += (double)g[i];
        sq += (double)g[i] * (double)g[i];
    }
    double mean = sum / N, var = sq / N - mean * mean;
    ck_assert_msg(fabs(mean - 0.577216) < 5 * 1.2825 / 1024, "mean %g", mean);
    ck_assert_msg(fabs(var - 1.644934) < 0.02, "variance %g", var);
    mem_free(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ops-math");
    TCase *t = test_case(s, "scalar");
    tcase_add_test(t, exp_accuracy);
    tcase_add_test(t, exp_special);
    tcase_add_test(t, log_accuracy);
    tcase_add_test(t, log_special);
    tcase_add_test(t, fma_exact);
    tcase_add_test(t, sincos_accuracy);
    tcase_add_test(t, sincos_special);
    t = test_case(s, "noise");
    tcase_add_test(t, philox_vectors);
    tcase_add_test(t, gumbel_accuracy);
    tcase_add_test(t, gumbel_tiers);
    tcase_add_test(t, gumbel_law);
    return test_main(s);
}
