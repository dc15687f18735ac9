/* SPDX-License-Identifier: Apache-2.0 */
/* Scalar exp and log with the FMA instruction. */
#include "kernels/cpu/internal.h"
#include "kernels/math.h"

float dk_cpu_expf_avx2(float x)
{
    return dk_exp_def(x);
}

float dk_cpu_logf_avx2(float x)
{
    return dk_log_def(x);
}
