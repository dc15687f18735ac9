/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AMX tile instructions that the kernels use, in C, so that tile code runs on machines without
 * them: a test includes this file and then the kernel's source, under another function name.
 *
 * State is per thread, as in the processor.  What would fault there (no configuration, shapes that
 * do not fit) prints a line and aborts here.  TDPBF16PS is done with the scalar FMA instruction under
 * flush-to-zero and denormals-are-zero, not with the portable twin, so that the two check each other.
 */
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct amx_emu {
    int configured;
    uint8_t rows[8];
    uint16_t colsb[8];
    uint8_t tile[8][16][64];
    unsigned long loads, stores, products; /* for tests that count */
};
static _Thread_local struct amx_emu amx_emu;

static inline void amx_emu_fault(const char *what)
{
    fprintf(stderr, "amx-emu: %s\n", what);
    abort();
}

static inline void amx_emu_need(int t)
{
    if (t < 0 || t > 7 || !amx_emu.configured || !amx_emu.rows[t] || !amx_emu.colsb[t])
        amx_emu_fault("a tile that is not configured is used");
}

static inline void amx_emu_loadconfig(const void *p)
{
    const uint8_t *c = p;
    if (c[0] != 1 || c[1] != 0)
        amx_emu_fault("LDTILECFG: palette is not 1 or start row is not 0");
    for (int i = 2; i < 64; i++)
        if (((i >= 2 && i < 16) || (i >= 32 && i < 48) || i >= 56) && c[i])
            amx_emu_fault("LDTILECFG: a reserved byte is not zero");
    for (int t = 0; t < 8; t++) {
        uint16_t colsb = (uint16_t)(c[16 + 2 * t] | c[17 + 2 * t] << 8);
        uint8_t rows = c[48 + t];
        if (colsb > 64 || rows > 16 || !colsb != !rows)
            amx_emu_fault("LDTILECFG: a tile has a bad shape");
        amx_emu.colsb[t] = colsb;
        amx_emu.rows[t] = rows;
    }
    memset(amx_emu.tile, 0, sizeof amx_emu.tile);
    amx_emu.configured = 1;
}

static inline void amx_emu_release(void)
{
    memset(amx_emu.tile, 0, sizeof amx_emu.tile);
    amx_emu.configured = 0;
}

static inline void amx_emu_zero(int t)
{
    amx_emu_need(t);
    memset(amx_emu.tile[t], 0, sizeof amx_emu.tile[t]);
}

static inline void amx_emu_loadd(int t, const void *base, ptrdiff_t stride)
{
    amx_emu_need(t);
    memset(amx_emu.tile[t], 0, sizeof amx_emu.tile[t]);
    for (int r = 0; r < amx_emu.rows[t]; r++)
        memcpy(amx_emu.tile[t][r], (const char *)base + r * stride, amx_emu.colsb[t]);
    amx_emu.loads++;
}

static inline void amx_emu_stored(int t, void *base, ptrdiff_t stride)
{
    amx_emu_need(t);
    for (int r = 0; r < amx_emu.rows[t]; r++)
        memcpy((char *)base + r * stride, amx_emu.tile[t][r], amx_emu.colsb[t]);
    amx_emu.stores++;
}

/* C[m][n] += A[m][k] B[k][n] in elements of 4 bytes. */
static inline void amx_emu_shapes(int c, int a, int b)
{
    amx_emu_need(c);
    amx_emu_need(a);
    amx_emu_need(b);
    if (c == a || c == b || a == b)
        amx_emu_fault("a product names one tile twice");
    if (amx_emu.rows[c] != amx_emu.rows[a] || amx_emu.colsb[c] != amx_emu.colsb[b] ||
        amx_emu.colsb[a] / 4 != amx_emu.rows[b] || amx_emu.colsb[a] % 4 || amx_emu.colsb[b] % 4)
        amx_emu_fault("the shapes of a product do not fit");
    amx_emu.products++;
}

static inline void amx_emu_dpint(int c, int a, int b, int a_signed, int b_signed)
{
    amx_emu_shapes(c, a, b);
    for (int m = 0; m < amx_emu.rows[c]; m++) {
        for (int n = 0; n < amx_emu.colsb[c] / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &amx_emu.tile[c][m][4 * n], 4);
            for (int k = 0; k < amx_emu.rows[b]; k++) {
                for (int i = 0; i < 4; i++) {
                    uint8_t ua = amx_emu.tile[a][m][4 * k + i], ub = amx_emu.tile[b][k][4 * n + i];
                    int32_t va = a_signed ? (int8_t)ua : ua, vb = b_signed ? (int8_t)ub : ub;
                    sum += (uint32_t)(va * vb);
                }
            }
            memcpy(&amx_emu.tile[c][m][4 * n], &sum, 4);
        }
    }
}

static inline float amx_emu_bf16(const uint8_t *p)
{
    uint32_t u = (uint32_t)(p[0] | p[1] << 8) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Not inline: the compiler moves arithmetic across changes of MXCSR, but not calls. */
__attribute__((noinline, unused, target("fma"))) static void amx_emu_bf16_block(int c, int a, int b)
{
    for (int m = 0; m < amx_emu.rows[c]; m++) {
        for (int n = 0; n < amx_emu.colsb[c] / 4; n++) {
            __m128 even = _mm_setzero_ps(), odd = _mm_setzero_ps(), acc;
            for (int k = 0; k < amx_emu.rows[b]; k++) {
                const uint8_t *pa = &amx_emu.tile[a][m][4 * k], *pb = &amx_emu.tile[b][k][4 * n];
                even = _mm_fmadd_ss(_mm_set_ss(amx_emu_bf16(pa)), _mm_set_ss(amx_emu_bf16(pb)),
                                    even);
                odd = _mm_fmadd_ss(_mm_set_ss(amx_emu_bf16(pa + 2)),
                                   _mm_set_ss(amx_emu_bf16(pb + 2)), odd);
            }
            float f;
            memcpy(&f, &amx_emu.tile[c][m][4 * n], 4);
            acc = _mm_add_ss(_mm_set_ss(f), _mm_add_ss(even, odd));
            f = _mm_cvtss_f32(acc);
            memcpy(&amx_emu.tile[c][m][4 * n], &f, 4);
        }
    }
}

static inline void amx_emu_dpbf16ps(int c, int a, int b)
{
    amx_emu_shapes(c, a, b);
    const unsigned csr = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* all masked, nearest even, flush to zero, denormals are zero */
    amx_emu_bf16_block(c, a, b);
    _mm_setcsr(csr);
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#undef _tile_dpbf16ps
#define _tile_loadconfig(p) amx_emu_loadconfig(p)
#define _tile_release() amx_emu_release()
#define _tile_zero(t) amx_emu_zero(t)
#define _tile_loadd(t, p, s) amx_emu_loadd((t), (p), (ptrdiff_t)(s))
#define _tile_stream_loadd(t, p, s) amx_emu_loadd((t), (p), (ptrdiff_t)(s))
#define _tile_stored(t, p, s) amx_emu_stored((t), (p), (ptrdiff_t)(s))
#define _tile_dpbssd(c, a, b) amx_emu_dpint((c), (a), (b), 1, 1)
#define _tile_dpbsud(c, a, b) amx_emu_dpint((c), (a), (b), 1, 0)
#define _tile_dpbusd(c, a, b) amx_emu_dpint((c), (a), (b), 0, 1)
#define _tile_dpbuud(c, a, b) amx_emu_dpint((c), (a), (b), 0, 0)
#define _tile_dpbf16ps(c, a, b) amx_emu_dpbf16ps((c), (a), (b))
