/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training kernels: products and all others the same bits on every tier as in C, for every split;
 * BF16 products within their bound, those of AMX as its portable twin; every gradient against finite
 * differences.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cpu/amx_ref.h"
#include "kernels/train.h"
#include "tests/unit/util.h"
#include "train/anchors.h"

static const enum dk_tier tiers[] = {DK_TIER_AVX2, DK_TIER_AVX512, DK_TIER_AMX};

static float noise(uint64_t i)
{
    return (float)(train_random(7, STREAM_INIT, 0, i) >> 40) * 0x1p-23f - 1.0f;
}

static float *noises(size_t n, uint64_t from)
{
    float *x = mem_array(n ? n : 1, sizeof(*x));
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++)
        x[i] = noise(from + i);
    return x;
}

static const struct dk_train_ops *tier(int i)
{
    const struct dk_train_ops *t = dk_train_ops(tiers[i]);
    if (!t)
        TEST_SKIP_HARDWARE("no %s", dk_tier_name(tiers[i]));
    return t;
}

/* ---- products ---------------------------------------------------------------------------------------- */

static const struct {
    uint32_t m, n, k;
} shapes[] = {{1, 1, 1},     {14, 32, 8},   {15, 33, 17},   {6, 16, 256},
              {29, 65, 257}, {331, 40, 64}, {3, 1100, 20},  {40, 48, 600},
              {5, 7, 0},     {64, 31, 513}, {2, 900, 1601}, {270, 17, 1100}};

/* Every way to lie in memory: A by rows or columns, B by rows or columns. */
static struct dk_gemm gemm_of(int shape, int form, const float *a, const float *b, float *c)
{
    struct dk_gemm g = {.m = shapes[shape].m,
                        .n = shapes[shape].n,
                        .k = shapes[shape].k,
                        .flags = form & 4 ? DK_GEMM_ADD : 0,
                        .a = a,
                        .b = b,
                        .c = c,
                        .ldc = shapes[shape].n + 3};
    g.a_row = form & 1 ? 1 : g.k;
    g.a_col = form & 1 ? g.m : 1;
    g.b_row = form & 2 ? 1 : g.n;
    g.b_col = form & 2 ? g.k : 1;
    return g;
}

START_TEST(test_gemm)
{
    const struct dk_train_ops *t = tier(_i), *c = dk_train_ops(DK_TIER_C);
    void *scratch = mem_aligned(64, DK_GEMM_SCRATCH);
    for (int s = 0; s < (int)ARRAY_LEN(shapes); s++)
        for (int form = 0; form < 8; form++) {
            const size_t na = (size_t)shapes[s].m * shapes[s].k,
                         nb = (size_t)shapes[s].k * shapes[s].n,
                         nc = (size_t)shapes[s].m * (shapes[s].n + 3);
            float *a = noises(na, 0), *b = noises(nb, na), *x = noises(nc, 5), *y = noises(nc, 5);
            struct dk_gemm g = gemm_of(s, form, a, b, x), h = gemm_of(s, form, a, b, y);
            c->gemm(&g, scratch);
            /* In two parts along the longer side: a sum does not know. */
            struct dk_gemm p = h, q = h;
            if (h.m > h.n) {
                p.m = h.m / 3;
                q.m = h.m - p.m;
                q.a += p.m * h.a_row;
                q.c += p.m * h.ldc;
            } else {
                p.n = h.n / 3;
                q.n = h.n - p.n;
                q.b += p.n * h.b_col;
                q.c += p.n;
            }
            t->gemm(&p, scratch);
            t->gemm(&q, scratch);
            test_floats_equal("gemm", y, x, nc); /* what lies between the rows too */
            mem_free(a);
            mem_free(b);
            mem_free(x);
            mem_free(y);
        }
    mem_free(scratch);
}
END_TEST

START_TEST(test_gemm_bf16)
{
    const struct dk_train_ops *t = dk_train_ops(_i ? DK_TIER_AMX : DK_TIER_AVX512),
                              *c = dk_train_ops(DK_TIER_C);
    if (!t || !t->bf16)
        TEST_SKIP_HARDWARE("no %s BF16", _i ? "AMX" : "AVX-512");
    void *scratch = mem_aligned(64, DK_GEMM_SCRATCH);
    for (int s = 0; s < (int)ARRAY_LEN(shapes); s++)
        for (int form = 0; form < 8; form++) {
            const size_t na = (size_t)shapes[s].m * shapes[s].k,
                         nb = (size_t)shapes[s].k * shapes[s].n,
                         nc = (size_t)shapes[s].m * (shapes[s].n + 3);
            float *a = noises(na, 0), *b = noises(nb, na), *x = noises(nc, 5), *y = noises(nc, 5);
            struct dk_gemm g = gemm_of(s, form, a, b, x), h = gemm_of(s, form, a, b, y);
            h.flags |= DK_GEMM_BF16;
            t->gemm(&h, scratch);
            for (size_t i = 0; i < na; i++)
                a[i] = dk_bf16_to_f32(dk_f32_to_bf16(a[i]));
            for (size_t i = 0; i < nb; i++)
                b[i] = dk_bf16_to_f32(dk_f32_to_bf16(b[i]));
            c->gemm(&g, scratch);
            /* The same factors; sums of k terms below 1 and an old value below 1 in another order. */
            double bound = 2.0 * (shapes[s].k + 2) * 0x1p-24 * (shapes[s].k + 1);
            test_floats_close("bf16", y, x, nc, bound, 0);
            mem_free(a);
            mem_free(b);
            mem_free(x);
            mem_free(y);
        }
    mem_free(scratch);
}
END_TEST

/* ---- AMX ------------------------------------------------------------------------------------------------ */

#ifdef HAVE_AMX_EMU
void dk_cpu_gemm_amx_emu(const struct dk_gemm *g, void *scratch);
void dk_cpu_gemm_amx_pack_emu(const struct dk_gemm *g, uint32_t j0, uint32_t j1, void *dst);
#endif

/* A factor as VCVTNE2PS2BF16 rounds it: denormals are zero. */
static uint16_t factor(float x)
{
    const uint16_t h = dk_f32_to_bf16(x);
    return fabsf(x) < 0x1p-126f ? h & 0x8000 : h;
}

/* What the header promises of DK_GEMM_BF16, with the order of TDPBF16PS. */
static void amx_twin(const struct dk_gemm *g)
{
    const uint32_t kp = (g->k + 31) / 32 * 32;
    uint16_t *x = mem_calloc((size_t)g->m * kp, sizeof(*x)), *w = mem_calloc(kp, sizeof(*w));
    for (uint32_t i = 0; i < g->m; i++)
        for (uint32_t l = 0; l < g->k; l++)
            x[(size_t)i * kp + l] = factor(g->a[i * g->a_row + l * g->a_col]);
    for (uint32_t j = 0; j < g->n; j++) {
        for (uint32_t l = 0; l < g->k; l++)
            w[l] = factor(g->b[l * g->b_row + j * g->b_col]);
        for (uint32_t i = 0; i < g->m; i++) {
            float acc = g->flags & DK_GEMM_ADD ? g->c[i * g->ldc + j] : 0;
            for (uint32_t l = 0; l < kp; l += 32)
                acc = dk_tdp_element(acc, x + (size_t)i * kp + l, w + l, 2);
            g->c[i * g->ldc + j] = acc;
        }
    }
    mem_free(x);
    mem_free(w);
}

/* g in quarters: rows from m0 on, columns from n0 on, and the others. */
static void quarters(const struct dk_train_ops *t, const struct dk_gemm *g, float *c, uint32_t m0,
                     uint32_t n0, void *scratch)
{
    for (int quarter = 0; quarter < 4; quarter++) {
        struct dk_gemm p = *g;
        const uint32_t i = quarter & 1 ? m0 : 0, j = quarter & 2 ? n0 : 0;
        p.m = quarter & 1 ? g->m - m0 : m0;
        p.n = quarter & 2 ? g->n - n0 : n0;
        p.a += i * p.a_row;
        p.b += j * p.b_col;
        p.c = c + i * p.ldc + j;
        if (g->packed)
            p.packed = (const char *)g->packed + dk_gemm_packed(j, g->k);
        t->gemm(&p, scratch);
    }
}

/* All of g at once, in quarters that are no multiples of a tile, and with B packed in two parts. */
static void amx_follows(const struct dk_train_ops *t, struct dk_gemm g, size_t nc, void *scratch)
{
    float *want = noises(nc, 5), *y = noises(nc, 5), *z = noises(nc, 5);
    g.flags |= DK_GEMM_BF16;
    g.c = want;
    amx_twin(&g);
    g.c = y;
    t->gemm(&g, scratch);
    test_floats_equal("amx", y, want, nc); /* what lies between the rows too */
    quarters(t, &g, z, g.m / 3, g.n / 3, scratch);
    test_floats_equal("amx in quarters", z, want, nc);
    mem_free(z);
    if (g.k) {
        const uint32_t half = g.n / 2 / DK_GEMM_COLS * DK_GEMM_COLS;
        void *packed = mem_aligned(64, dk_gemm_packed(g.n + DK_GEMM_COLS, g.k));
        z = noises(nc, 5);
        t->pack(&g, 0, half, packed);
        t->pack(&g, half, g.n, packed);
        g.packed = packed;
        quarters(t, &g, z, g.m / 2, half, scratch);
        test_floats_equal("amx, packed", z, want, nc);
        mem_free(packed);
        mem_free(z);
    }
    mem_free(want);
    mem_free(y);
}

/* Tiles, natively and emulated, against the portable twin: every form in memory, edges on all sides,
 * several blocks of inputs, columns and rows. */
START_TEST(test_gemm_amx)
{
    const struct dk_train_ops *t = dk_train_ops(_i ? DK_TIER_AVX512 : DK_TIER_AMX);
#ifdef HAVE_AMX_EMU
    const struct dk_train_ops emu = {.gemm = dk_cpu_gemm_amx_emu, .pack = dk_cpu_gemm_amx_pack_emu};
    if (_i)
        t = t && t->bf16 ? &emu : NULL;
#endif
    if (!t || !t->pack)
        TEST_SKIP_HARDWARE("no %s", _i ? "AVX-512 BF16" : "AMX");
    void *scratch = mem_aligned(64, DK_GEMM_SCRATCH);
    for (int s = 0; s < (int)ARRAY_LEN(shapes); s++)
        for (int form = 0; form < 8; form++) {
            const size_t na = (size_t)shapes[s].m * shapes[s].k,
                         nb = (size_t)shapes[s].k * shapes[s].n;
            float *a = noises(na, 0), *b = noises(nb, na);
            /* Denormals, and products that are. */
            for (size_t i = 0; i < na; i += 7)
                a[i] *= 0x1p-120f;
            for (size_t i = 0; i < nb; i += 5)
                b[i] *= i % 2 ? 0x1p-20f : 0x1p-126f;
            amx_follows(t, gemm_of(s, form, a, b, NULL), (size_t)shapes[s].m * (shapes[s].n + 3),
                        scratch);
            mem_free(a);
            mem_free(b);
        }
    mem_free(scratch);
}
END_TEST

/* ---- the same bits on every tier ------------------------------------------------------------------------ */

#define N 77u

static void all_ops(const struct dk_train_ops *t, float *out)
{
    float *x = noises(N, 1), *y = noises(N, 2), *w = noises(N, 3), *p;
    struct dk_adamw o = {.clip = 0.7f,
                         .keep = 0.99f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .step = 0.01f,
                         .inv_sqrt_c2 = 4,
                         .eps = 1e-8f};
    struct dk_ce ce;
    float r;
    memset(out, 0, 16 * N * sizeof(*out));
    t->rmsnorm(out, x, w, N, 1e-5f, &r);
    p = out + N;
    memcpy(p, y, N * sizeof(*p));
    t->rmsnorm_grad(p, y, x, w, r, N, true);
    t->rmsnorm_grad(p + N, y, x, w, r, N, false);
    t->rmsnorm_grad_w(p + 2 * N, y, x, r, N);
    t->silu_mul(p + 3 * N, x, y, N);
    memcpy(p + 4 * N, x, N * sizeof(*p));
    memcpy(p + 5 * N, y, N * sizeof(*p));
    t->silu_mul_grad(p + 4 * N, p + 5 * N, w, N);
    memcpy(p + 6 * N, x, N * sizeof(*p));
    t->scale(p + 6 * N, N, 9);
    t->cross_entropy(p + 6 * N, N, 0.3f, &ce);
    p[7 * N] = ce.confidence;
    p[7 * N + 1] = (float)ce.argmax;
    p[7 * N + 2] = ce.log_sum;
    p[7 * N + 3] = ce.max;
    p[7 * N + 4] = t->dot(x, y, N);
    p[7 * N + 5] = (float)t->sum_squares(x, N);
    p[7 * N + 6] = t->max(x, N);
    memcpy(p + 8 * N, x, N * sizeof(*p));
    p[7 * N + 7] = t->exp_sum(p + 8 * N, N, 1);
    memcpy(p + 9 * N, w, N * sizeof(*p));
    t->softmax_grad(p + 9 * N, y, N, 0.1f, 2);
    memcpy(p + 10 * N, x, N * sizeof(*p));
    memcpy(p + 11 * N, y, N * sizeof(*p));
    memcpy(p + 12 * N, w, N * sizeof(*p));
    for (uint32_t i = 0; i < N; i++)
        p[12 * N + i] *= p[12 * N + i];
    t->adamw(p + 10 * N, p + 11 * N, p + 12 * N, w, N, &o);
    memcpy(p + 13 * N, x, N * sizeof(*p));
    t->add(p + 13 * N, y, N);
    mem_free(x);
    mem_free(y);
    mem_free(w);
}

START_TEST(test_tiers)
{
    static float a[16 * N], b[16 * N];
    all_ops(dk_train_ops(DK_TIER_C), a);
    all_ops(tier(_i), b);
    test_floats_equal("ops", b, a, 16 * N);
}
END_TEST

/* ---- finite differences ---------------------------------------------------------------------------------- */

/* f(x + h) - f(x - h) over 2h against the gradient, each entry; f in double of float ops. */
#define H 1e-2f
static void differences(const char *what, double (*f)(const float *x, void *arg), void *arg,
                        float *x, const float *grad, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float old = x[i];
        x[i] = old + H;
        double up = f(x, arg);
        x[i] = old - H;
        double down = f(x, arg);
        x[i] = old;
        double want = (up - down) / (2.0 * (double)H);
        ck_assert_msg(fabs(want - (double)grad[i]) <= 1e-3 + 2e-3 * fabs(want),
                      "%s[%u]: gradient %.6g, difference %.6g", what, i, (double)grad[i], want);
    }
}

struct fd {
    const struct dk_train_ops *t;
    float *x, *w, *u, *dy;
};

static double weighted(const float *y, const float *dy)
{
    double s = 0;
    for (uint32_t i = 0; i < N; i++)
        s += (double)y[i] * (double)dy[i];
    return s;
}

static double norm_of_x(const float *x, void *arg)
{
    const struct fd *f = arg;
    float y[N], r;
    f->t->rmsnorm(y, x, f->w, N, 1e-5f, &r);
    return weighted(y, f->dy);
}

static double norm_of_w(const float *w, void *arg)
{
    const struct fd *f = arg;
    float y[N], r;
    f->t->rmsnorm(y, f->x, w, N, 1e-5f, &r);
    return weighted(y, f->dy);
}

static double silu_of_g(const float *g, void *arg)
{
    const struct fd *f = arg;
    float y[N];
    f->t->silu_mul(y, g, f->u, N);
    return weighted(y, f->dy);
}

static double silu_of_u(const float *u, void *arg)
{
    const struct fd *f = arg;
    float y[N];
    f->t->silu_mul(y, f->x, u, N);
    return weighted(y, f->dy);
}

/* Cross-entropy of label 5. */
static double ce_of_z(const float *z, void *arg)
{
    const struct fd *f = arg;
    float y[N];
    struct dk_ce ce;
    memcpy(y, z, sizeof(y));
    f->t->cross_entropy(y, N, 0, &ce);
    return (double)ce.log_sum + (double)ce.max - (double)z[5];
}

static double softmax_of_s(const float *s, void *arg)
{
    const struct fd *f = arg;
    float y[N];
    memcpy(y, s, sizeof(y));
    f->t->scale(y, N, 0.5f);
    float sum = f->t->exp_sum(y, N, f->t->max(y, N));
    f->t->scale(y, N, 1 / sum);
    return weighted(y, f->dy);
}

START_TEST(test_differences)
{
    struct fd f = {.t = dk_train_ops(DK_TIER_C),
                   .x = noises(N, 11),
                   .w = noises(N, 12),
                   .u = noises(N, 13),
                   .dy = noises(N, 14)};
    float y[N], r, g[N], h[N];
    struct dk_ce ce;
    f.t->rmsnorm(y, f.x, f.w, N, 1e-5f, &r);
    f.t->rmsnorm_grad(g, f.dy, f.x, f.w, r, N, false);
    differences("rmsnorm x", norm_of_x, &f, f.x, g, N);
    memset(g, 0, sizeof(g));
    f.t->rmsnorm_grad_w(g, f.dy, f.x, r, N);
    differences("rmsnorm w", norm_of_w, &f, f.w, g, N);
    memcpy(g, f.x, sizeof(g));
    memcpy(h, f.u, sizeof(h));
    f.t->silu_mul_grad(g, h, f.dy, N);
    differences("silu g", silu_of_g, &f, f.x, g, N);
    differences("silu u", silu_of_u, &f, f.u, h, N);
    memcpy(g, f.x, sizeof(g));
    f.t->cross_entropy(g, N, 1, &ce);
    g[5] -= 1;
    differences("cross-entropy", ce_of_z, &f, f.x, g, N);
    /* Attention's softmax, scale 0.5. */
    memcpy(g, f.x, sizeof(g));
    f.t->scale(g, N, 0.5f);
    float sum = f.t->exp_sum(g, N, f.t->max(g, N));
    f.t->scale(g, N, 1 / sum);
    f.t->softmax_grad(g, f.dy, N, f.t->dot(g, f.dy, N), 0.5f);
    differences("softmax", softmax_of_s, &f, f.x, g, N);
    mem_free(f.x);
    mem_free(f.w);
    mem_free(f.u);
    mem_free(f.dy);
}
END_TEST

/* ---- bad numbers ----------------------------------------------------------------------------------------- */

START_TEST(test_cross_entropy)
{
    const struct dk_train_ops *t = dk_train_ops(_i ? DK_TIER_AVX2 : DK_TIER_C);
    if (!t)
        TEST_SKIP_HARDWARE("no AVX2");
    for (uint32_t n = 1; n < 40; n++) {
        float *z = noises(n, n);
        struct dk_ce ce;
        uint32_t best = 0;
        double sum = 0;
        for (uint32_t i = 1; i < n; i++)
            best = z[i] > z[best] ? i : best;
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)z[i] - (double)z[best]);
        t->cross_entropy(z, n, 1, &ce);
        ck_assert_uint_eq(ce.argmax, best);
        ck_assert(!ce.bad);
        ck_assert(fabs((double)ce.confidence - 1 / sum) < 1e-6);
        ck_assert(fabs((double)ce.log_sum - log(sum)) < 1e-6);
        z[n - 1] = n % 2 ? (float)NAN : (float)INFINITY;
        t->cross_entropy(z, n, 1, &ce);
        ck_assert(ce.bad && ce.argmax < n);
        mem_free(z);
    }
    float same[20] = {0};
    struct dk_ce ce;
    t->cross_entropy(same, 20, 1, &ce);
    ck_assert_uint_eq(ce.argmax, 0); /* the lowest among equals */
    float far[3] = {0, 200, -3e4f};
    t->cross_entropy(far, 3, 1, &ce);
    ck_assert(!ce.bad && ce.argmax == 1 && ce.confidence == 1 && far[2] == 0);
}
END_TEST

/* ---- AdamW: TRN-03 ------------------------------------------------------------------------------------------ */

START_TEST(test_small_rate)
{
    const struct dk_train_ops *t = dk_train_ops(DK_TIER_C);
    float p = 1, m = 0, v = 0;
    const float g = 1;
    for (int k = 1; k <= 100; k++) {
        struct dk_adamw o = {.clip = 1,
                             .keep = 1,
                             .beta1 = 0.9f,
                             .beta2 = 0.999f,
                             .step = (float)(6e-4 / (1 - pow(0.9, k))),
                             .inv_sqrt_c2 = (float)(1 / sqrt(1 - pow(0.999, k))),
                             .eps = 1e-8f};
        t->adamw(&p, &m, &v, &g, 1, &o);
    }
    ck_assert(fabs((double)p - 0.94) < 1e-6 * 20);
    ck_assert(dk_bf16_to_f32(dk_f32_to_bf16(p)) == 0.94140625f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-kernels");
    TCase *c = test_case(s, "kernels");
    tcase_add_loop_test(c, test_gemm, 0, ARRAY_LEN(tiers));
    tcase_add_loop_test(c, test_gemm_bf16, 0, 2);
    tcase_add_loop_test(c, test_gemm_amx, 0, 2);
    tcase_add_loop_test(c, test_tiers, 0, ARRAY_LEN(tiers));
    tcase_add_test(c, test_differences);
    tcase_add_loop_test(c, test_cross_entropy, 0, 2);
    tcase_add_test(c, test_small_rate);
    return test_main(s);
}
