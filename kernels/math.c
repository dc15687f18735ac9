/* SPDX-License-Identifier: Apache-2.0 */
/* The scalar functions of kernels.h; their definitions are in math.h. */
#include "config.h"

#include "kernels/cpu/internal.h"
#include "kernels/math.h"

/* The FMA instruction where there is one: the same bits, several times faster. */
float dk_expf(float x)
{
#ifdef DEDIT_TIER_AVX2
    if (dk_cpu()->avx2)
        return dk_cpu_expf_avx2(x);
#endif
    return dk_exp_def(x);
}

float dk_logf(float x)
{
#ifdef DEDIT_TIER_AVX2
    if (dk_cpu()->avx2)
        return dk_cpu_logf_avx2(x);
#endif
    return dk_log_def(x);
}

void dk_sincosf(float a, float *ret_sin, float *ret_cos)
{
    dk_sincos_def(a, ret_sin, ret_cos);
}

void dk_philox4x32_10(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    dk_philox_def(ctr, key, out);
}
