/* SPDX-License-Identifier: Apache-2.0 */
/* Argmax, log-sum-exp and Gumbel noise on sixteen lanes. */
#pragma once

#include <string.h>

#include "kernels/cpu/internal.h"
#include "kernels/cpu/sampling/philox.h"
#include "kernels/cpu/vmath.h"

uint32_t V_NAME(dk_cpu_argmax)(const float *x, uint32_t n, float *ret_max, bool *ret_bad)
{
    /* Every lane keeps the first of its largest values; two sets, so that compares overlap. */
    const v16 inf = v_set1(__builtin_inff());
    v16 best0 = v_neg(inf), best1 = best0;
    v16i at0 = vi_set1(0), at1 = at0, i0 = vi_iota(), i1 = vi_add(i0, vi_set1(16));
    v16m bad = v_nlt(v_zero(), inf);
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        v16 a = v_load(x + i), b = v_load(x + i + 16);
        v16m ga = v_gt(a, best0), gb = v_gt(b, best1);
        bad = v_mask_or(bad, v_mask_or(v_nlt(a, inf), v_nlt(b, inf)));
        best0 = v_select(ga, a, best0);
        at0 = vi_select(ga, i0, at0);
        best1 = v_select(gb, b, best1);
        at1 = vi_select(gb, i1, at1);
        i0 = vi_add(i0, vi_set1(32));
        i1 = vi_add(i1, vi_set1(32));
    }
    float best[32], max = -__builtin_inff();
    uint32_t at[32], id = UINT32_MAX;
    v_store(best, best0);
    v_store(best + 16, best1);
    vi_store(at, at0);
    vi_store(at + 16, at1);
    bool any_bad = v_any(bad);
    for (uint32_t l = 0; l < 32; l++)
        max = best[l] > max ? best[l] : max;
    for (uint32_t l = 0; l < 32; l++)
        id = best[l] == max && at[l] < id ? at[l] : id;
    for (; i < n; i++) {
        any_bad |= !(x[i] < __builtin_inff());
        if (x[i] > max) {
            max = x[i];
            id = i;
        }
    }
    *ret_max = max > -__builtin_inff() ? x[id] : max; /* the sign of a zero, too */
    *ret_bad = any_bad || max == -__builtin_inff();
    return id;
}

float V_NAME(dk_cpu_logsumexp)(const float *x, uint32_t n, float max)
{
    v16 sum = v_zero(), m = v_set1(max);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        sum = v_add(sum, v_exp_low(v_sub(v_load(x + i), m)));
    if (i < n) {
        v16 e = v_exp_low(v_sub(v_load_n(x + i, n - i), m));
        sum = v_add(sum, v_first_n(e, v_zero(), n - i));
    }
    return dk_log_def(v_fold(sum)) + max;
}

void V_NAME(dk_cpu_gumbel)(float *out, const uint32_t key[2], const uint32_t ctr[3], uint32_t v0,
                           uint32_t n)
{
    /* Whole groups of 64 from multiples of 64 on; the ends go through a buffer. */
    v16i words[4];
    float g[64];
    struct philox_keys keys = philox_schedule(key);
    for (uint32_t i = 0; i < n;) {
        uint32_t v = v0 + i, skip = v % 64, take = 64 - skip < n - i ? 64 - skip : n - i;
        philox_32_words(words, (v - skip) / 4, ctr, &keys);
        philox_32_words(words + 2, (v - skip) / 4 + 8, ctr, &keys);
        float *dst = take == 64 ? out + i : g;
        V_FOR (k, 4)
            v_store(dst + 16 * k, v_gumbel(words[k]));
        if (take < 64)
            memcpy(out + i, g + skip, take * sizeof *g);
        i += take;
    }
}
