/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of a tier, scalar conversions, and the portable fused multiply-add. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/internal.h"
#include "kernels/fma.h"
#include "tests/unit/util.h"

START_TEST(tier_names)
{
    enum dk_tier t;
    for (unsigned i = 0; i < DK_TIER_COUNT; i++) {
        t = DK_TIER_COUNT;
        ck_assert(dk_tier_parse(dk_tier_name((enum dk_tier)i), &t));
        ck_assert_uint_eq(t, i);
    }
    t = DK_TIER_AMX;
    ck_assert(!dk_tier_parse("AVX2", &t));
    ck_assert(!dk_tier_parse("", &t));
    ck_assert_uint_eq(t, DK_TIER_AMX);
    ck_assert_str_eq(dk_tier_name(DK_TIER_COUNT), "unknown");
}
END_TEST

START_TEST(tier_choice)
{
    struct error err = {0};
    enum dk_tier best = dk_tier_best(), t;
    ck_assert_ptr_nonnull(dk_ops(DK_TIER_C));
    ck_assert_ptr_nonnull(dk_ops(best));
    ck_assert_ptr_null(dk_ops(DK_TIER_COUNT));
    t = DK_TIER_COUNT;
    ck_ok(dk_tier_choose(NULL, &t, &err), &err);
    ck_assert_uint_eq(t, best);
    ck_ok(dk_tier_choose("", &t, &err), &err);
    ck_assert_uint_eq(t, best);
    for (unsigned i = 0; i < DK_TIER_COUNT; i++) {
        const struct dk_ops *ops = dk_ops((enum dk_tier)i);
        t = DK_TIER_COUNT;
        if (ops) {
            ck_assert_uint_eq(ops->tier, i);
            ck_assert_uint_le(i, best);
            ck_ok(dk_tier_choose(dk_tier_name((enum dk_tier)i), &t, &err), &err);
            ck_assert_uint_eq(t, i);
        } else {
            ck_fails(dk_tier_choose(dk_tier_name((enum dk_tier)i), &t, &err), UNSUPPORTED, &err);
            ck_assert_ptr_nonnull(strstr(err.msg, dk_tier_name(best)));
            ck_assert_uint_eq(t, DK_TIER_COUNT);
        }
    }
    ck_fails(dk_tier_choose("sse9", &t, &err), INVALID, &err);
    ck_assert_ptr_null(strstr(err.msg, "DEDIT_CPU_TIER")); /* who asked knows where it stands */
    ck_assert_ptr_nonnull(strstr(err.msg, "sse9"));
}
END_TEST

START_TEST(tables_are_full)
{
    for (unsigned i = 0; i < DK_TIER_COUNT; i++) {
        const struct dk_ops *o = dk_ops((enum dk_tier)i);
        if (!o)
            continue;
        ck_assert(o->act_prepare && o->matmul && o->rmsnorm && o->add && o->silu_mul && o->rope);
        ck_assert(o->kv_store && o->attention && o->argmax && o->logsumexp && o->gumbel);
    }
}
END_TEST

START_TEST(type_table)
{
    for (unsigned t = 0; t < DK_TYPE_COUNT; t++) {
        const struct dk_type_info *i = dk_type_info((enum dk_type)t);
        ck_assert_ptr_nonnull(i->name);
        ck_assert(i->block_elems && i->block_bytes);
        ck_assert(i->quantised == (i->block_elems > 1));
    }
    ck_assert_uint_eq(dk_type_info(DK_Q6_K)->block_bytes, 210);
}
END_TEST

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint64_t rng = 1;
static uint32_t rnd(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 32);
}

START_TEST(half_all)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = dk_f16_to_f32((uint16_t)h), b = dk_bf16_to_f32((uint16_t)h);
        int e = h >> 10 & 31, m = h & 1023;
        if (e == 31) {
            ck_assert(m ? isnan(f) : isinf(f));
        } else {
            double want = ldexp(e ? 1024 + m : m, (e ? e : 1) - 25);
            ck_assert(fabs((double)f) == want && !signbit(f) == !(h >> 15));
        }
        if (!isnan(f))
            ck_assert_uint_eq(dk_f32_to_f16(f), h);
        if (!isnan(b))
            ck_assert_uint_eq(dk_f32_to_bf16(b), h);
        else
            ck_assert(isnan(dk_bf16_to_f32(dk_f32_to_bf16(b))));
        ck_assert(!isnan(f) || isnan(dk_f16_to_f32(dk_f32_to_f16(f))));
    }
}
END_TEST

/* Between two neighbours: the nearer one, and on a tie the even one. */
START_TEST(half_rounding)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double lo = (double)dk_f16_to_f32((uint16_t)h);
        double hi = h == 0x7bff ? 65536.0 : (double)dk_f16_to_f32((uint16_t)(h + 1));
        float mid = (float)((lo + hi) / 2); /* exact */
        ck_assert_uint_eq(dk_f32_to_f16(mid), h + (h & 1));
        ck_assert_uint_eq(dk_f32_to_f16(nextafterf(mid, 0)), h);
        ck_assert_uint_eq(dk_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        ck_assert_uint_eq(dk_f32_to_f16(-nextafterf(mid, INFINITY)), (h + 1) | 0x8000);
    }
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t mid = h << 16 | 0x8000;
        ck_assert_uint_eq(dk_f32_to_bf16(of_bits(mid)), h + (h & 1));
        ck_assert_uint_eq(dk_f32_to_bf16(of_bits(mid - 1)), h);
        ck_assert_uint_eq(dk_f32_to_bf16(of_bits(mid + 1)), h + 1);
    }
    ck_assert(isnan(dk_bf16_to_f32(dk_f32_to_bf16(of_bits(0x7f800001)))));
    ck_assert(isnan(dk_bf16_to_f32(dk_f32_to_bf16(of_bits(0xffffffff)))));
}
END_TEST

static void check_fma(float a, float b, float c)
{
    float got = (float)dk_fma_odd(a, b, c), want = fmaf(a, b, c);
    if (bits(got) != bits(want) && !(isnan(got) && isnan(want)))
        ck_abort_msg("fma(%a, %a, %a) = %a, not %a", (double)a, (double)b, (double)c, (double)got,
                     (double)want);
}

START_TEST(portable_fma)
{
    /* any bits, bits of like size, results near the denormals, and sums that nearly cancel */
    for (int i = 0; i < 300000; i++) {
        float a = of_bits(rnd()), b = of_bits(rnd()), c = of_bits(rnd());
        check_fma(a, b, c);
        a = of_bits((rnd() & 0x807fffff) | (100 + rnd() % 60) << 23);
        b = of_bits((rnd() & 0x807fffff) | (100 + rnd() % 60) << 23);
        check_fma(a, b, of_bits((rnd() & 0x807fffff) | (100 + rnd() % 60) << 23));
        check_fma(a, b, -(a * b));
        check_fma(a, b, -nextafterf(a * b, 0));
        float s = of_bits((rnd() & 0x807fffff) | (1 + rnd() % 60) << 23);
        check_fma(s, of_bits((rnd() & 0x807fffff) | (1 + rnd() % 130) << 23),
                  of_bits(rnd() & 0x80ffffff));
        /* halfway cases: short operands */
        check_fma(of_bits(bits(a) & 0xfffff000), of_bits(bits(b) & 0xfffff000),
                  of_bits(bits(a * b) & 0xffffff00));
        check_fma(1.0f + 0x1p-12f, 1.0f + 0x1p-12f, of_bits(bits(s) & 0xff800000));
    }
    const float edge[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 0x1p-149f, 0x1p-126f,
                          0x1.fffffep127f, -0x1.fffffep127f, 0x1.fffffep-127f, 0x1p-75f};
    for (size_t i = 0; i < sizeof edge / sizeof *edge; i++)
        for (size_t j = 0; j < sizeof edge / sizeof *edge; j++)
            for (size_t k = 0; k < sizeof edge / sizeof *edge; k++)
                check_fma(edge[i], edge[j], edge[k]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tier");
    TCase *t = test_case(s, "tier");
    tcase_add_test(t, tier_names);
    tcase_add_test(t, tier_choice);
    tcase_add_test(t, tables_are_full);
    t = test_case(s, "dtype");
    tcase_add_test(t, type_table);
    tcase_add_test(t, half_all);
    tcase_add_test(t, half_rounding);
    t = test_case(s, "fma");
    tcase_add_test(t, portable_fma);
    return test_main(s);
}
