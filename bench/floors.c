/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peaks of the machine.  The loops are compiled for their instruction set one by one and chosen by
 * the tier, so the program still starts on any x86-64.
 */
#include "bench/floors.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/train.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define X86    1
#define AVX2   __attribute__((target("avx2,fma"), noinline))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,fma"), noinline))
#else
#define X86 0
#endif

#define CHUNK      (256u << 10) /* bytes that a thread reads before it looks for more work */
#define PEAK_LOOPS 400000u

struct floors {
    struct dk_pool *pool;
    enum dk_tier tier;
    char *buf;
    size_t bytes;
    double rate[64]; /* of each thread */
    float sink[64];
    int variant;
};

/* ---- reading: each returns something that depends on every byte -------------------------------- */

static float read_c(const char *p, size_t n)
{
    uint64_t s[4] = {0}, v[4];
    for (size_t i = 0; i < n; i += 32) {
        memcpy(v, p + i, 32);
        for (int j = 0; j < 4; j++)
            s[j] ^= v[j];
    }
    return (float)(s[0] ^ s[1] ^ s[2] ^ s[3]);
}

#if X86
AVX2 static float read_avx2(const char *p, size_t n)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 128) {
        const __m256i *v = (const void *)(p + i);
        a = _mm256_xor_si256(a, _mm256_load_si256(v));
        b = _mm256_xor_si256(b, _mm256_load_si256(v + 1));
        c = _mm256_xor_si256(c, _mm256_load_si256(v + 2));
        d = _mm256_xor_si256(d, _mm256_load_si256(v + 3));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    return (float)_mm256_extract_epi32(a, 0);
}

AVX2 static float read_avx2_ahead(const char *p, size_t n)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 128) {
        const __m256i *v = (const void *)(p + i);
        _mm_prefetch(p + i + 2048, _MM_HINT_T0);
        _mm_prefetch(p + i + 2048 + 64, _MM_HINT_T0);
        a = _mm256_xor_si256(a, _mm256_load_si256(v));
        b = _mm256_xor_si256(b, _mm256_load_si256(v + 1));
        c = _mm256_xor_si256(c, _mm256_load_si256(v + 2));
        d = _mm256_xor_si256(d, _mm256_load_si256(v + 3));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    return (float)_mm256_extract_epi32(a, 0);
}

/* Four streams, a quarter of the chunk apart. */
AVX2 static float read_avx2_streams(const char *p, size_t n)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    size_t q = n / 4;
    for (size_t i = 0; i < q; i += 64) {
        const __m256i *v0 = (const void *)(p + i), *v1 = (const void *)(p + q + i);
        const __m256i *v2 = (const void *)(p + 2 * q + i), *v3 = (const void *)(p + 3 * q + i);
        a = _mm256_xor_si256(a, _mm256_xor_si256(_mm256_load_si256(v0), _mm256_load_si256(v0 + 1)));
        b = _mm256_xor_si256(b, _mm256_xor_si256(_mm256_load_si256(v1), _mm256_load_si256(v1 + 1)));
        c = _mm256_xor_si256(c, _mm256_xor_si256(_mm256_load_si256(v2), _mm256_load_si256(v2 + 1)));
        d = _mm256_xor_si256(d, _mm256_xor_si256(_mm256_load_si256(v3), _mm256_load_si256(v3 + 1)));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    return (float)_mm256_extract_epi32(a, 0);
}

AVX512 static float read_avx512(const char *p, size_t n)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 256) {
        a = _mm512_xor_si512(a, _mm512_load_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_load_si512(p + i + 64));
        c = _mm512_xor_si512(c, _mm512_load_si512(p + i + 128));
        d = _mm512_xor_si512(d, _mm512_load_si512(p + i + 192));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return (float)_mm512_reduce_or_epi32(a);
}

AVX512 static float read_avx512_ahead(const char *p, size_t n)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 256) {
        for (int j = 0; j < 256; j += 64)
            _mm_prefetch(p + i + 2048 + j, _MM_HINT_T0);
        a = _mm512_xor_si512(a, _mm512_load_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_load_si512(p + i + 64));
        c = _mm512_xor_si512(c, _mm512_load_si512(p + i + 128));
        d = _mm512_xor_si512(d, _mm512_load_si512(p + i + 192));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return (float)_mm512_reduce_or_epi32(a);
}
#endif

static const struct {
    enum dk_tier tier;
    float (*read)(const char *p, size_t n);
} readers[] = {
    {DK_TIER_C, read_c},
#if X86
    {DK_TIER_AVX2, read_avx2},
    {DK_TIER_AVX2, read_avx2_ahead},
    {DK_TIER_AVX2, read_avx2_streams},
    {DK_TIER_AVX512, read_avx512},
    {DK_TIER_AVX512, read_avx512_ahead},
#endif
};

static void read_region(void *arg, const struct dk_par *par)
{
    struct floors *f = arg;
    size_t a, b;
    /* Each thread its own contiguous part, as the engine's threads have. */
    dk_split(par, f->bytes, CHUNK, &a, &b);
    float s = 0;
    for (size_t at = a; at < b; at += CHUNK)
        s += readers[f->variant].read(f->buf + at, CHUNK);
    f->sink[par->tid] = s;
}

double floors_read(struct floors *f)
{
    double best = 1e30;
    for (size_t v = 0; v < ARRAY_LEN(readers); v++) {
        if (readers[v].tier > f->tier)
            continue;
        f->variant = (int)v;
        uint64_t t = clock_now_ns();
        dk_pool_run(f->pool, read_region, f);
        double s = (double)(clock_now_ns() - t) * 1e-9;
        best = s < best ? s : best;
    }
    return best;
}

/* ---- arithmetic ---------------------------------------------------------------------------------- */

/* Each returns the operations of `loops` turns and leaves the result in *sink. */
static double fma_c(unsigned loops, float *sink)
{
    float a[16];
    for (int i = 0; i < 16; i++)
        a[i] = (float)i;
    for (unsigned l = 0; l < loops; l++)
        for (int i = 0; i < 16; i++)
            a[i] = a[i] * 0.999f + 0.001f;
    float s = 0;
    for (int i = 0; i < 16; i++)
        s += a[i];
    *sink = s;
    return 32.0 * loops;
}

static double int_c(unsigned loops, float *sink)
{
    /* Sums wrap, as they do in vectors. */
    uint32_t a[16] = {0}, s = 0;
    for (unsigned l = 0; l < loops; l++)
        for (int i = 0; i < 16; i++)
            a[i] += (uint32_t)((int8_t)(l + (unsigned)i) * (int8_t)(l * 3));
    for (int i = 0; i < 16; i++)
        s += a[i];
    *sink = (float)s;
    return 16.0 * loops;
}

#if X86
AVX2 static double fma_avx2(unsigned loops, float *sink)
{
    __m256 a[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        a[i] = _mm256_set1_ps((float)i);
    for (unsigned l = 0; l < loops; l++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            a[i] = _mm256_fmadd_ps(a[i], x, y);
    }
#pragma GCC unroll 12
    for (int i = 1; i < 12; i++)
        a[0] = _mm256_add_ps(a[0], a[i]);
    *sink = _mm256_cvtss_f32(a[0]);
    return 12.0 * 16 * loops;
}

AVX2 static double int_avx2(unsigned loops, float *sink)
{
    __m256i a[10], x = _mm256_set1_epi16(3), y = _mm256_set1_epi16(5);
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++)
        a[i] = _mm256_set1_epi32(i);
    for (unsigned l = 0; l < loops; l++) {
#pragma GCC unroll 10
        for (int i = 0; i < 10; i++) {
            __asm__("" : "+x"(x)); /* another x for all the compiler knows: no product is shared */
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(x, y));
        }
    }
#pragma GCC unroll 10
    for (int i = 1; i < 10; i++)
        a[0] = _mm256_add_epi32(a[0], a[i]);
    *sink = (float)_mm256_extract_epi32(a[0], 0);
    return 10.0 * 16 * loops;
}

AVX512 static double fma_avx512(unsigned loops, float *sink)
{
    __m512 a[16], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (unsigned l = 0; l < loops; l++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            a[i] = _mm512_fmadd_ps(a[i], x, y);
    }
#pragma GCC unroll 16
    for (int i = 1; i < 16; i++)
        a[0] = _mm512_add_ps(a[0], a[i]);
    *sink = _mm512_reduce_add_ps(a[0]);
    return 16.0 * 32 * loops;
}

AVX512 static double int_avx512(unsigned loops, float *sink)
{
    __m512i a[16], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_set1_epi32(i);
    for (unsigned l = 0; l < loops; l++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            a[i] = _mm512_dpbusd_epi32(a[i], x, y);
    }
#pragma GCC unroll 16
    for (int i = 1; i < 16; i++)
        a[0] = _mm512_add_epi32(a[0], a[i]);
    *sink = _mm512_reduce_add_ps(_mm512_cvtepi32_ps(a[0]));
    return 16.0 * 64 * loops;
}

/* The tile unit's loop is that of training. */
static double amx_bf16(unsigned loops, float *sink)
{
    *sink = 0;
    return dk_train_ops(DK_TIER_AMX)->fma_peak(loops / 16, true);
}
#endif

enum peak { PEAK_FMA, PEAK_INT, PEAK_AMX };
struct peak_run {
    struct floors *f;
    double (*loop)(unsigned loops, float *sink);
};

static void peak_region(void *arg, const struct dk_par *par)
{
    struct peak_run *r = arg;
    /* All threads at once: the clock falls with the number of busy cores. */
    dk_barrier(par);
    uint64_t t = clock_now_ns();
    double ops = r->loop(PEAK_LOOPS, &r->f->sink[par->tid]);
    r->f->rate[par->tid] = ops / ((double)(clock_now_ns() - t) * 1e-9);
}

static double peak(struct floors *f, enum peak p)
{
    double (*loop)(unsigned, float *) = p == PEAK_FMA ? fma_c : int_c, sum = 0;
#if X86
    if (f->tier >= DK_TIER_AVX512)
        loop = p == PEAK_FMA ? fma_avx512 : int_avx512;
    else if (f->tier >= DK_TIER_AVX2)
        loop = p == PEAK_FMA ? fma_avx2 : int_avx2;
    if (p == PEAK_AMX)
        loop = amx_bf16;
#endif
    struct peak_run r = {f, loop};
    dk_pool_run(f->pool, peak_region, &r);
    for (unsigned i = 0; i < dk_pool_size(f->pool); i++)
        sum += f->rate[i];
    return sum;
}

double floors_fma(struct floors *f)
{
    return peak(f, PEAK_FMA);
}

double floors_int(struct floors *f)
{
    return peak(f, PEAK_INT);
}

double floors_amx(struct floors *f)
{
    return X86 && f->tier >= DK_TIER_AMX ? peak(f, PEAK_AMX) : 0;
}

size_t floors_bytes(const struct floors *f)
{
    return f->bytes;
}

/* ---- object ------------------------------------------------------------------------------------ */

static void touch_region(void *arg, const struct dk_par *par)
{
    struct floors *f = arg;
    size_t a, b;
    dk_split(par, f->bytes, CHUNK, &a, &b);
    memset(f->buf + a, 0x5a, b - a);
}

int floors_new(unsigned n_threads, enum dk_tier tier, size_t bytes, struct floors **ret,
               struct error *err)
{
    _cleanup_(floors_freep) struct floors *f = mem_zalloc(sizeof(*f));
    if (!f)
        return ERR_NOMEM(err);
    f->tier = tier;
    f->bytes = bytes < CHUNK ? CHUNK : bytes / CHUNK * CHUNK;
    f->buf = mem_map_pages(f->bytes);
    if (!f->buf)
        return ERR(err, NOMEM, "no memory for a read buffer of %zu bytes", f->bytes);
    int r = dk_pool_new(n_threads, &f->pool, err);
    if (r < 0)
        return r;
    dk_pool_run(f->pool, touch_region, f);
    *ret = TAKE_PTR(f);
    return 0;
}

struct floors *floors_free(struct floors *f)
{
    if (!f)
        return NULL;
    dk_pool_free(f->pool);
    if (f->buf)
        mem_unmap_pages(f->buf, f->bytes);
    mem_free(f);
    return NULL;
}
