/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the kernels' ops share: random numbers, tiers, comparison by bits. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/math.h"
#include "tests/unit/util.h"

struct rng {
    uint64_t s;
};
static inline uint32_t rng_u32(struct rng *r)
{
    r->s = r->s * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = r->s ^ r->s >> 29;
    return (uint32_t)(x * 0x9e3779b97f4a7c15u >> 32);
}
static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)((uint64_t)rng_u32(r) * n >> 32);
}
/* About normal, times scale. */
static inline float rng_float(struct rng *r, float scale)
{
    float x = 0;
    for (int i = 0; i < 4; i++)
        x += (float)(rng_u32(r) >> 8) * 0x1p-24f - 0.5f;
    return x * 1.7f * scale;
}
static inline void rng_fill(struct rng *r, float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(r, scale);
}

/* Equal bits, or both NaN. */
static inline bool same_bits(float a, float b)
{
    return dk_f32_bits(a) == dk_f32_bits(b) || (a != a && b != b);
}
#define ck_same_floats(what, tier, got, want, n)                                                   \
    do {                                                                                           \
        for (size_t ck_i_ = 0; ck_i_ < (size_t)(n); ck_i_++)                                       \
            ck_assert_msg(same_bits((got)[ck_i_], (want)[ck_i_]),                                  \
                          "%s, tier %s: element %zu of %zu: %a, wanted %a", (what),                \
                          dk_tier_name(tier), ck_i_, (size_t)(n), (double)(got)[ck_i_],            \
                          (double)(want)[ck_i_]);                                                  \
    } while (0)

/* Every tier of this machine but the portable one, which is the oracle. */
#define FOR_TIERS(ops)                                                                             \
    for (int tier_ = DK_TIER_C + 1; tier_ < DK_TIER_COUNT; tier_++)                                \
        for (const struct dk_ops *ops = dk_ops((enum dk_tier)tier_); ops; ops = NULL)
