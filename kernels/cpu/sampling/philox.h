/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox4x32-10 on eight blocks at once: 64-bit lanes whose low halves are the counter's words, so
 * that one widening multiplication gives both halves of a product.  The high halves hold rubbish,
 * which the multiplication ignores.
 */
#pragma once

#include "kernels/cpu/v16.h"

#define PHILOX_M0 0xd2511f53u
#define PHILOX_M1 0xcd9e8d57u
#define PHILOX_W0 0x9e3779b9u
#define PHILOX_W1 0xbb67ae85u

struct philox_keys {
    uint32_t k0[10], k1[10];
};

V_INLINE struct philox_keys philox_schedule(const uint32_t key[2])
{
    struct philox_keys k;
    for (uint32_t r = 0; r < 10; r++) {
        k.k0[r] = key[0] + r * PHILOX_W0;
        k.k1[r] = key[1] + r * PHILOX_W1;
    }
    return k;
}

#ifdef __AVX512F__
typedef __m512i ph;
V_INLINE ph ph_set1(uint32_t x)
{
    return _mm512_set1_epi64(x);
}
V_INLINE ph ph_mul(ph a, ph b)
{
    return _mm512_mul_epu32(a, b);
}
V_INLINE ph ph_high(ph a)
{
    return _mm512_srli_epi64(a, 32);
}
V_INLINE ph ph_xor3(ph a, ph b, ph c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
#else
typedef __m256i ph;
V_INLINE ph ph_set1(uint32_t x)
{
    return _mm256_set1_epi64x(x);
}
V_INLINE ph ph_mul(ph a, ph b)
{
    return _mm256_mul_epu32(a, b);
}
V_INLINE ph ph_high(ph a)
{
    return _mm256_srli_epi64(a, 32);
}
V_INLINE ph ph_xor3(ph a, ph b, ph c)
{
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
#endif

struct ph_state {
    ph c0, c1, c2, c3;
};

V_INLINE void ph_round(struct ph_state *s, ph k0, ph k1)
{
    ph p0 = ph_mul(s->c0, ph_set1(PHILOX_M0)), p1 = ph_mul(s->c2, ph_set1(PHILOX_M1));
    s->c0 = ph_xor3(ph_high(p1), s->c1, k0);
    s->c2 = ph_xor3(ph_high(p0), s->c3, k1);
    s->c1 = p1;
    s->c3 = p0;
}

/*
 * The 32 words of blocks block .. block + 7, in order.  The lanes take the blocks in the order in
 * which the final unpacking puts them straight.
 */
V_INLINE void philox_32_words(v16i out[2], uint32_t block, const uint32_t ctr[3],
                              const struct philox_keys *k)
{
    const ph c1 = ph_set1(ctr[0]), c2 = ph_set1(ctr[1]), c3 = ph_set1(ctr[2]);
#ifdef __AVX512F__
    struct ph_state s = {
        _mm512_add_epi64(ph_set1(block), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7)), c1, c2, c3};
    V_FOR (r, 10)
        ph_round(&s, ph_set1(k->k0[r]), ph_set1(k->k1[r]));
    ph w01 = _mm512_mask_blend_epi32(0xaaaa, s.c0, _mm512_slli_epi64(s.c1, 32));
    ph w23 = _mm512_mask_blend_epi32(0xaaaa, s.c2, _mm512_slli_epi64(s.c3, 32));
    out[0] = _mm512_unpacklo_epi64(w01, w23);
    out[1] = _mm512_unpackhi_epi64(w01, w23);
#else
    struct ph_state s[2];
    s[0] = (struct ph_state){_mm256_add_epi64(ph_set1(block), _mm256_setr_epi64x(0, 2, 1, 3)), c1,
                             c2, c3};
    s[1] = (struct ph_state){_mm256_add_epi64(ph_set1(block), _mm256_setr_epi64x(4, 6, 5, 7)), c1,
                             c2, c3};
    V_FOR (r, 10) {
        ph k0 = ph_set1(k->k0[r]), k1 = ph_set1(k->k1[r]);
        ph_round(&s[0], k0, k1);
        ph_round(&s[1], k0, k1);
    }
    V_FOR (i, 2) {
        ph w01 = _mm256_blend_epi32(s[i].c0, _mm256_slli_epi64(s[i].c1, 32), 0xaa);
        ph w23 = _mm256_blend_epi32(s[i].c2, _mm256_slli_epi64(s[i].c3, 32), 0xaa);
        out[i].a = _mm256_unpacklo_epi64(w01, w23);
        out[i].b = _mm256_unpackhi_epi64(w01, w23);
    }
#endif
}
