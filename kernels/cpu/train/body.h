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
#if defined(__AVX512F__)
    return (vf)_mm512_mask_loadu_ps(_mm512_set1_ps(rest), (__mmask16)((1u << n) - 1), p);
#else
    vf x = (vf){0} + rest;
    memcpy(&x, p, n * sizeof(*p));
    return x;
#endif
}
V_INLINE void v_store_n(float *p, vf x, uint32_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
    memcpy(p, &x, n * sizeof(*p));
#endif
}
V_INLINE vf v_select(vi m, vf a, vf b)
{
    return (vf)((m & (vi)a) | (~m & (vi)b));
}
/* a > b ? a : b, lane by lane. */
V_INLINE vf v_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return v_select(a > b, a, b);
#endif
}
/* 8-4-2-1: lane i and lane i + w become one. */
#if defined(__AVX512F__)
#define FOLD(name, op256, op128)                                                                   \
    V_INLINE float name(vf x)                                                                      \
    {                                                                                              \
        const __m256 y =                                                                           \
            op256(_mm512_extractf32x8_ps((__m512)x, 1), _mm512_castps512_ps256((__m512)x));        \
        __m128 z = op128(_mm256_extractf128_ps(y, 1), _mm256_castps256_ps128(y));                  \
        z = op128(_mm_movehl_ps(z, z), z);                                                         \
        return _mm_cvtss_f32(op128(_mm_movehdup_ps(z), z));                                        \
    }
FOLD(v_fold, _mm256_add_ps, _mm_add_ps)
FOLD(v_fold_max, _mm256_max_ps, _mm_max_ps)
#else
#define FOLD(name, op)                                                                             \
    V_INLINE float name(vf x)                                                                      \
    {                                                                                              \
        float t[16];                                                                               \
        memcpy(t, &x, sizeof(t));                                                                  \
        for (int w = 8; w > 0; w /= 2)                                                             \
            for (int i = 0; i < w; i++)                                                            \
                t[i] = op(t[i + w], t[i]);                                                         \
        return t[0];                                                                               \
    }
#define SUM(a, b)    ((a) + (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
FOLD(v_fold, SUM)
FOLD(v_fold_max, LARGER)
#endif

/* Vectors whose exponentials are computed side by side: one is a chain of 25 instructions, and a
 * processor that finds them one behind the other starts the second late.  V_KEEP makes the compiler
 * leave a step of all of them in its place.  As registers allow. */
#if defined(__AVX512F__)
#define EXP_SIDE  4
#define V_KEEP(x) __asm__ volatile("" : "+v"(x))
#else
#define EXP_SIDE  1
#define V_KEEP(x) ((void)0)
#endif
#define SIDE(n) _Pragma("GCC unroll 4") for (int v = 0; v < (n); v++)
#define STEP(to, value)                                                                            \
    SIDE(n)                                                                                        \
    {                                                                                              \
        to = value;                                                                                \
        V_KEEP(to);                                                                                \
    }

/* As dk_exp_def, with products and sums rounded apart: ln 2 in two parts, the first short enough
 * that its product with the whole number is exact.  Below -87 it is 0. */
V_INLINE void v_exps(vf *x, const int n)
{
    const float magic = DK_ROUND_MAGIC;
    vi under[EXP_SIDE];
    vf t[EXP_SIDE], r[EXP_SIDE], p[EXP_SIDE];
    SIDE(n) under[v] = x[v] < -87.0f;
    STEP(x[v], v_select(x[v] > 88.0f, (vf){0} + 88.0f, v_select(under[v], (vf){0} - 87.0f, x[v])))
    STEP(t[v], x[v] * DK_LOG2E + magic)
    STEP(r[v], x[v] - (t[v] - magic) * 0x1.63p-1f)
    STEP(r[v], r[v] - (t[v] - magic) * -0x1.bd0106p-13f)
    STEP(p[v], DK_EXP_C6 * r[v] + DK_EXP_C5)
    STEP(p[v], p[v] * r[v] + DK_EXP_C4)
    STEP(p[v], p[v] * r[v] + DK_EXP_C3)
    STEP(p[v], p[v] * r[v] + DK_EXP_C2)
    STEP(p[v], p[v] * r[v])
    STEP(p[v], p[v] * r[v] + r[v] + 1.0f)
    STEP(p[v], p[v] * (vf)(((vi)t[v] - (vi)((vf){0} + magic) + 127) << 23))
    SIDE(n) x[v] = v_select(under[v], (vf){0}, p[v]);
}

V_INLINE vf v_exp(vf x)
{
    v_exps(&x, 1);
    return x;
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
    for (; EXP_SIDE > 1 && i + EXP_SIDE * 16 <= n; i += EXP_SIDE * 16) {
        float *at = x + i;
        vf e[EXP_SIDE];
        SIDE(EXP_SIDE) e[v] = v_load(at + 16 * v) - max;
        v_exps(e, EXP_SIDE);
        SIDE(EXP_SIDE)
        {
            v_store(at + 16 * v, e[v]);
            s += e[v];
        }
    }
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
