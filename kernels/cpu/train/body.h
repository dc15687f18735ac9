/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All training kernels but products, on sixteen lanes of the compiler's own vectors: one source for
 * every tier.  No FMA here, so that the bits are the same on all of them.  TRAIN_NAME names a
 * function of the tier; fma_peak is the tier's own.
 */
#pragma once

#include <string.h>

#include "kernels/cpu/train/internal.h"
#include "kernels/math.h"

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed to inlined functions only */

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
#define V_INLINE static inline __attribute__((always_inline))

V_INLINE vf v_load(const float *p)
{
    vf x;
    memcpy(&x, p, sizeof(x));
    return x;
}
V_INLINE void v_store(float *p, vf x)
{
    memcpy(p, &x, sizeof(x));
}
/* The first n lanes, n = 1..15; the others are `rest`. */
V_INLINE vf v_load_n(const float *p, uint32_t n, float rest)
{
    vf x = (vf){0} + rest;
    memcpy(&x, p, n * sizeof(*p));
    return x;
}
V_INLINE void v_store_n(float *p, vf x, uint32_t n)
{
    memcpy(p, &x, n * sizeof(*p));
}
V_INLINE vf v_select(vi m, vf a, vf b)
{
    return (vf)((m & (vi)a) | (~m & (vi)b));
}
V_INLINE vf v_max(vf a, vf b)
{
    return v_select(a > b, a, b);
}
V_INLINE float v_fold(vf x)
{
    float t[16];
    memcpy(t, &x, sizeof(t));
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            t[i] += t[i + w];
    return t[0];
}
V_INLINE float v_fold_max(vf x)
{
    float t[16];
    memcpy(t, &x, sizeof(t));
    for (int i = 1; i < 16; i++)
        t[0] = t[i] > t[0] ? t[i] : t[0];
    return t[0];
}

/* As dk_exp_def, with products and sums rounded apart: ln 2 in two parts, the first short enough
 * that its product with n is exact.  Below -87 it is 0. */
V_INLINE vf v_exp(vf x)
{
    const float magic = DK_ROUND_MAGIC;
    vi under = x < -87.0f;
    x = v_select(x > 88.0f, (vf){0} + 88.0f, v_select(under, (vf){0} - 87.0f, x));
    vf t = x * DK_LOG2E + magic, n = t - magic;
    vf r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
    vf p = DK_EXP_C6 * r + DK_EXP_C5;
    p = p * r + DK_EXP_C4;
    p = p * r + DK_EXP_C3;
    p = p * r + DK_EXP_C2;
    p = (p * r) * r + r + 1.0f;
    vi k = (vi)t - (vi)((vf){0} + magic);
    p = p * (vf)((k + 127) << 23);
    return v_select(under, (vf){0}, p);
}

#define FOR_LANES(i, n, whole, part)                                                               \
    do {                                                                                           \
        uint32_t i = 0;                                                                            \
        for (; i + 16 <= (n); i += 16)                                                             \
            whole;                                                                                 \
        if (i < (n))                                                                               \
            part;                                                                                  \
    } while (0)

static float dot(const float *x, const float *y, uint32_t n)
{
    vf s = {0};
    FOR_LANES(i, n, s += v_load(x + i) * v_load(y + i),
              s += v_load_n(x + i, n - i, 0) * v_load_n(y + i, n - i, 0));
    return v_fold(s);
}

static double sum_squares(const float *x, uint32_t n)
{
    double s[16] = {0}, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        s[i % 16] += (double)x[i] * (double)x[i];
    for (int l = 0; l < 16; l++)
        sum += s[l];
    return sum;
}

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps, float *ret_r)
{
    float r = 1.0f / __builtin_sqrtf(dot(x, x, n) / (float)n + eps);
    FOR_LANES(i, n, v_store(y + i, (v_load(x + i) * r) * v_load(w + i)),
              v_store_n(y + i, (v_load_n(x + i, n - i, 0) * r) * v_load_n(w + i, n - i, 0), n - i));
    *ret_r = r;
}

V_INLINE vf norm_grad(vf dy, vf x, vf w, float r, float c)
{
    return (dy * w) * r - x * c;
}

static void rmsnorm_grad(float *dx, const float *dy, const float *x, const float *w, float r,
                         uint32_t n, bool add)
{
    vf s = {0};
    FOR_LANES(i, n, s += (v_load(dy + i) * v_load(w + i)) * v_load(x + i),
              s +=
              (v_load_n(dy + i, n - i, 0) * v_load_n(w + i, n - i, 0)) * v_load_n(x + i, n - i, 0));
    const float c = v_fold(s) * r * r * r / (float)n, keep = add ? 1.0f : 0.0f;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf g = norm_grad(v_load(dy + i), v_load(x + i), v_load(w + i), r, c);
        v_store(dx + i, add ? v_load(dx + i) + g : g);
    }
    for (; i < n; i++)
        dx[i] = (add ? dx[i] * keep : 0.0f) + ((dy[i] * w[i]) * r - x[i] * c);
}

static void rmsnorm_grad_w(float *dw, const float *dy, const float *x, float r, uint32_t n)
{
    FOR_LANES(i, n, v_store(dw + i, v_load(dw + i) + (v_load(dy + i) * v_load(x + i)) * r),
              v_store_n(dw + i,
                        v_load_n(dw + i, n - i, 0) +
                            (v_load_n(dy + i, n - i, 0) * v_load_n(x + i, n - i, 0)) * r,
                        n - i));
}

V_INLINE vf silu(vf g, vf u)
{
    return g / (1.0f + v_exp(-g)) * u;
}

static void silu_mul(float *out, const float *g, const float *u, uint32_t n)
{
    FOR_LANES(
        i, n, v_store(out + i, silu(v_load(g + i), v_load(u + i))),
        v_store_n(out + i, silu(v_load_n(g + i, n - i, 0), v_load_n(u + i, n - i, 0)), n - i));
}

V_INLINE void silu_grad(vf *g, vf *u, vf d)
{
    vf s = 1.0f / (1.0f + v_exp(-*g)), a = *g * s;
    *g = d * *u * (s + a * (1.0f - s));
    *u = d * a;
}

static void silu_mul_grad(float *g, float *u, const float *d, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf a = v_load(g + i), b = v_load(u + i);
        silu_grad(&a, &b, v_load(d + i));
        v_store(g + i, a);
        v_store(u + i, b);
    }
    if (i < n) {
        vf a = v_load_n(g + i, n - i, 0), b = v_load_n(u + i, n - i, 0);
        silu_grad(&a, &b, v_load_n(d + i, n - i, 0));
        v_store_n(g + i, a, n - i);
        v_store_n(u + i, b, n - i);
    }
}

static float max_of(const float *x, uint32_t n)
{
    vf m = (vf){0} - __builtin_inff();
    FOR_LANES(i, n, m = v_max(m, v_load(x + i)),
              m = v_max(m, v_load_n(x + i, n - i, -__builtin_inff())));
    return v_fold_max(m);
}

static float exp_sum(float *x, uint32_t n, float max)
{
    vf s = {0};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf e = v_exp(v_load(x + i) - max);
        v_store(x + i, e);
        s += e;
    }
    if (i < n) {
        vf e = v_exp(v_load_n(x + i, n - i, max - 100.0f) - max); /* the rest gives 0 */
        v_store_n(x + i, e, n - i);
        s += e;
    }
    return v_fold(s);
}

static void scale(float *x, uint32_t n, float f)
{
    FOR_LANES(i, n, v_store(x + i, v_load(x + i) * f),
              v_store_n(x + i, v_load_n(x + i, n - i, 0) * f, n - i));
}

static void softmax_grad(float *p, const float *d, uint32_t n, float sub, float f)
{
    FOR_LANES(
        i, n, v_store(p + i, v_load(p + i) * (v_load(d + i) - sub) * f),
        v_store_n(p + i, v_load_n(p + i, n - i, 0) * (v_load_n(d + i, n - i, 0) - sub) * f, n - i));
}

static void add(float *x, const float *y, uint32_t n)
{
    FOR_LANES(i, n, v_store(x + i, v_load(x + i) + v_load(y + i)),
              v_store_n(x + i, v_load_n(x + i, n - i, 0) + v_load_n(y + i, n - i, 0), n - i));
}

/* Largest value, its lowest index, and whether all values are finite. */
static void look(const float *z, uint32_t n, struct dk_ce *ret)
{
    const vi lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vf m = (vf){0} - __builtin_inff(), zero = {0};
    vi at = lanes;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf x = v_load(z + i);
        vi more = x > m;
        m = v_select(more, x, m);
        at = (more & (lanes + (int32_t)i)) | (~more & at);
        zero += x * 0.0f; /* a NaN stays when x is no number */
    }
    float tm[16], tz[16];
    int32_t ta[16];
    memcpy(tm, &m, sizeof(tm));
    memcpy(ta, &at, sizeof(ta));
    memcpy(tz, &zero, sizeof(tz));
    for (; i < n; i++) {
        if (z[i] > tm[i % 16]) {
            tm[i % 16] = z[i];
            ta[i % 16] = (int32_t)i;
        }
        tz[i % 16] += z[i] * 0.0f;
    }
    ret->max = tm[0];
    int32_t best = ta[0];
    ret->bad = !(tz[0] == 0);
    for (int l = 1; l < 16; l++) {
        if (tm[l] > ret->max || (tm[l] == ret->max && ta[l] < best)) {
            ret->max = tm[l];
            best = ta[l];
        }
        ret->bad |= !(tz[l] == 0);
    }
    ret->argmax = (uint32_t)best < n ? (uint32_t)best : 0;
}

static void cross_entropy(float *z, uint32_t n, float f, struct dk_ce *ret)
{
    look(z, n, ret);
    float sum = exp_sum(z, n, ret->max);
    ret->confidence = 1.0f / sum;
    ret->log_sum = dk_logf(sum);
    if (f == 0)
        memset(z, 0, n * sizeof(*z));
    else
        scale(z, n, f / sum);
}

V_INLINE vf v_sqrt(vf x)
{
    float t[16];
    memcpy(t, &x, sizeof(t));
    for (int i = 0; i < 16; i++)
        t[i] = __builtin_sqrtf(t[i]);
    memcpy(&x, t, sizeof(x));
    return x;
}

V_INLINE void adamw_lanes(vf *p, vf *m, vf *v, vf g, const struct dk_adamw *o)
{
    g = g * o->clip;
    *m = *m * o->beta1 + g * (1.0f - o->beta1);
    *v = *v * o->beta2 + g * g * (1.0f - o->beta2);
    *p = *p * o->keep - o->step * *m / (v_sqrt(*v) * o->inv_sqrt_c2 + o->eps);
}

static void adamw(float *p, float *m, float *v, const float *g, uint32_t n,
                  const struct dk_adamw *o)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf a = v_load(p + i), b = v_load(m + i), c = v_load(v + i);
        adamw_lanes(&a, &b, &c, v_load(g + i), o);
        v_store(p + i, a);
        v_store(m + i, b);
        v_store(v + i, c);
    }
    if (i < n) {
        vf a = v_load_n(p + i, n - i, 0), b = v_load_n(m + i, n - i, 0),
           c = v_load_n(v + i, n - i, 0);
        adamw_lanes(&a, &b, &c, v_load_n(g + i, n - i, 0), o);
        v_store_n(p + i, a, n - i);
        v_store_n(m + i, b, n - i);
        v_store_n(v + i, c, n - i);
    }
}

#define TRAIN_TABLE                                                                                \
    .rmsnorm = rmsnorm, .rmsnorm_grad = rmsnorm_grad, .rmsnorm_grad_w = rmsnorm_grad_w,            \
    .silu_mul = silu_mul, .silu_mul_grad = silu_mul_grad, .cross_entropy = cross_entropy,          \
    .exp_sum = exp_sum, .max = max_of, .dot = dot, .scale = scale, .softmax_grad = softmax_grad,   \
    .add = add, .adamw = adamw, .sum_squares = sum_squares
