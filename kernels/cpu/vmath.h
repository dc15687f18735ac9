/* SPDX-License-Identifier: Apache-2.0 */
/* exp, log and the Gumbel transform on sixteen lanes: kernels/math.h, operation by operation. */
#pragma once

#include "kernels/cpu/v16.h"
#include "kernels/math.h"

/* exp of what is not above DK_EXP_HI, of x - max(x) for one. */
V_INLINE v16 v_exp_low(v16 x)
{
    x = v_max(v_set1(DK_EXP_LO), x);
    const v16 magic = v_set1(DK_ROUND_MAGIC);
    v16 t = v_fma(x, v_set1(DK_LOG2E), magic), n = v_sub(t, magic);
    v16 r = v_fma(n, v_set1(-DK_LN2_LO), v_fma(n, v_set1(-DK_LN2_HI), x));
    v16 p = v_fma(v_set1(DK_EXP_C6), r, v_set1(DK_EXP_C5));
    p = v_fma(p, r, v_set1(DK_EXP_C4));
    p = v_fma(p, r, v_set1(DK_EXP_C3));
    p = v_fma(p, r, v_set1(DK_EXP_C2));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
#ifdef __AVX512F__
    return _mm512_scalef_ps(p, n); /* one rounding, as the second product below */
#else
    v16i k = vi_sub(v_bits(t), v_bits(magic)), k1 = vi_sra(k, 1), k2 = vi_sub(k, k1);
    const v16i bias = vi_set1(127);
    p = v_mul(p, v_from_bits(vi_sll(vi_add(k1, bias), 23)));
    return v_mul(p, v_from_bits(vi_sll(vi_add(k2, bias), 23)));
#endif
}

V_INLINE v16 v_exp(v16 x)
{
    return v_exp_low(v_min(v_set1(DK_EXP_HI), x));
}

V_INLINE v16 v_log_core(v16 f, v16 k)
{
    v16 p = v_fma(v_set1(DK_LOG_C8), f, v_set1(DK_LOG_C7));
    p = v_fma(p, f, v_set1(DK_LOG_C6));
    p = v_fma(p, f, v_set1(DK_LOG_C5));
    p = v_fma(p, f, v_set1(DK_LOG_C4));
    p = v_fma(p, f, v_set1(DK_LOG_C3));
    p = v_fma(p, f, v_set1(DK_LOG_C2));
    p = v_fma(p, f, v_set1(DK_LOG_C1));
    p = v_fma(p, f, v_set1(DK_LOG_C0));
    return v_fma(k, v_set1(DK_LN2_HI), v_fma(p, v_mul(f, f), f));
}

V_INLINE v16 v_log_split(v16 x, v16 *ret_m)
{
    const v16i base = vi_set1(DK_LOG_TWO_THIRDS);
    v16i ix = vi_sub(v_bits(x), base);
    *ret_m = v_from_bits(vi_add(vi_and(ix, vi_set1(0x7fffffu)), base));
    return vi_to_float(vi_sra(ix, 23));
}

V_INLINE v16 v_gumbel(v16i word)
{
    const v16 one = v_set1(1.0f);
    v16 lo = v_add(vi_to_float(vi_and(word, vi_set1(0xffffu))), v_set1(0.5f)), m;
    lo = v_mul(lo, v_set1(0x1p-32f));
    v16 w = v_fma(vi_to_float(vi_srl(word, 16)), v_set1(0x1p-16f), lo);
    w = v_min(v_set1(0x1.fffffep-1f), w);
    v16 k = v_log_split(v_sub(one, w), &m);
    v16 f = v_select(v_eq(k, v_zero()), v_neg(w), v_sub(m, one));
    v16 e = v_neg(v_log_core(f, k));
    k = v_log_split(e, &m);
    return v_neg(v_log_core(v_sub(m, one), k));
}
