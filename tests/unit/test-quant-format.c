/* SPDX-License-Identifier: Apache-2.0 */
/* Block formats: dequantisation and conversions against the reference vectors, and the packed
 * panels, which must give back the same floats and stay small. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cpu/internal.h"
#include "tests/unit/golden.h"
#include "tests/unit/guard.h"
#include "tests/unit/util.h"

static const enum dk_type quant_types[] = {DK_Q8_0, DK_Q4_0, DK_Q4_1, DK_Q5_0,
                                           DK_Q5_1, DK_Q4_K, DK_Q5_K, DK_Q6_K};

static uint32_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 1664525u + 1013904223u;
    return rng_state >> 8 ^ rng_state << 13;
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (a == 0 && b == 0) || (isnan(a) && isnan(b));
}

START_TEST(dequant_golden)
{
    struct golden g;
    golden_open(&g, test_path("tests/golden/gguf/dequant_blocks.safetensors"));
    for (unsigned t = 0; t < DK_TYPE_COUNT; t++) {
        const struct dk_type_info *info = dk_type_info((enum dk_type)t);
        if (t == DK_F32)
            continue;
        char name[32];
        size_t raw_bytes, f32_bytes;
        snprintf(name, sizeof name, "%s.raw", info->name);
        const void *raw = golden_get(&g, name, info->quantised ? "U8" : "U16", &raw_bytes);
        snprintf(name, sizeof name, "%s.f32", info->name);
        const float *want = golden_get(&g, name, "F32", &f32_bytes);
        size_t blocks = raw_bytes / info->block_bytes;
        ck_assert_uint_ge(blocks, 64);
        ck_assert_uint_eq(f32_bytes, blocks * info->block_elems * sizeof(float));
        float *got = mem_alloc(f32_bytes);
        dk_dequant((enum dk_type)t, raw, blocks, got);
        for (size_t i = 0; i < f32_bytes / sizeof(float); i++) {
            float w;
            memcpy(&w, (const char *)want + i * sizeof w, sizeof w);
            ck_assert_msg(same(got[i], w), "%s element %zu: %a, want %a", info->name, i,
                          (double)got[i], (double)w);
        }
        mem_free(got);
    }
    golden_close(&g);
}
END_TEST

START_TEST(conversions_golden)
{
    struct golden g;
    golden_open(&g, test_path("tests/golden/gguf/dequant_blocks.safetensors"));
    for (int bf = 0; bf < 2; bf++) {
        size_t n, m;
        const char *in = golden_get(&g, bf ? "f32_to_bf16.in" : "f32_to_f16.in", "F32", &n);
        const char *out = golden_get(&g, bf ? "f32_to_bf16.out" : "f32_to_f16.out", "U16", &m);
        ck_assert_uint_eq(n / 4, m / 2);
        ck_assert_uint_gt(n, 0);
        for (size_t i = 0; i < n / 4; i++) {
            float x;
            uint16_t want, got;
            memcpy(&x, in + 4 * i, 4);
            memcpy(&want, out + 2 * i, 2);
            got = bf ? dk_f32_to_bf16(x) : dk_f32_to_f16(x);
            if (isnan(x))
                ck_assert(isnan(bf ? dk_bf16_to_f32(got) : dk_f16_to_f32(got)));
            else
                ck_assert_msg(got == want, "%a: %04x, want %04x", (double)x, got, want);
        }
    }
    golden_close(&g);
}
END_TEST

/* Random bits, with scales that are finite. */
static void random_rows(enum dk_type t, uint8_t *p, size_t n_blocks)
{
    const struct dk_type_info *info = dk_type_info(t);
    for (size_t b = 0; b < n_blocks; b++, p += info->block_bytes) {
        for (uint32_t i = 0; i < info->block_bytes; i++)
            p[i] = (uint8_t)rng();
        uint32_t at = t == DK_Q6_K ? 208 : 0;
        bool two = t == DK_Q4_1 || t == DK_Q5_1 || t == DK_Q4_K || t == DK_Q5_K;
        for (uint32_t s = at; s < at + (two ? 4u : 2u); s += 2)
            if ((p[s + 1] & 0x7c) == 0x7c)
                p[s + 1] ^= 0x40;
    }
}

START_TEST(pack_gives_back_the_values)
{
    for (size_t ti = 0; ti < ARRAY_LEN(quant_types); ti++) {
        enum dk_type t = quant_types[ti];
        const struct dk_type_info *info = dk_type_info(t);
        for (int c = 0; c < 12; c++) {
            uint32_t n = 1 + rng() % 50, k = (1 + rng() % 5) * info->block_elems;
            size_t blocks = k / info->block_elems, row_bytes = blocks * info->block_bytes;
            size_t stride = row_bytes + rng() % 3, bytes;
            size_t src_bytes = stride * (n - 1) + row_bytes;
            uint8_t *src = guard_new(src_bytes, 1);
            for (uint32_t r = 0; r < n; r++)
                random_rows(t, src + r * stride, blocks);
            ck_assert(dk_weight_bytes(t, DK_LAYOUT_PANEL, n, k, &bytes));
            void *dst = guard_new(bytes, 64);
            memset(dst, 0xee, bytes);
            struct dk_weight w = {t, DK_LAYOUT_PANEL, n, k, (n + 15) / 16, dst, bytes};
            uint32_t cut = rng() % (w.n_panels + 1);
            dk_weight_pack(dst, t, w.layout, n, k, src, stride, cut, w.n_panels);
            dk_weight_pack(dst, t, w.layout, n, k, src, stride, 0, cut);
            float *want = mem_alloc(k * sizeof(float)), *got = guard_new(k * sizeof(float), 4);
            for (uint32_t r = 0; r < n; r++) {
                dk_dequant(t, src + r * stride, blocks, want);
                dk_weight_row(&w, r, got);
                for (uint32_t i = 0; i < k; i++)
                    ck_assert_msg(same(got[i], want[i]),
                                  "%s n %u k %u row %u input %u: %a, want %a", info->name, n, k, r,
                                  i, (double)got[i], (double)want[i]);
            }
            mem_free(want);
            guard_free(got, k * sizeof(float), 4);
            guard_free(dst, bytes, 64);
            guard_free(src, src_bytes, 1);
        }
    }
}
END_TEST

START_TEST(packed_size)
{
    for (size_t ti = 0; ti < ARRAY_LEN(quant_types); ti++) {
        enum dk_type t = quant_types[ti];
        const struct dk_type_info *info = dk_type_info(t);
        static const uint32_t ks[] = {64, 96, 256, 576, 1024, 1536, 1568, 3072};
        for (size_t i = 0; i < ARRAY_LEN(ks); i++) {
            size_t bytes;
            bool ok = dk_weight_bytes(t, DK_LAYOUT_PANEL, 64, ks[i], &bytes);
            ck_assert(ok == (ks[i] % info->block_elems == 0));
            if (!ok)
                continue;
            size_t file = (size_t)64 * ks[i] / info->block_elems * info->block_bytes;
            ck_assert_uint_ge(bytes, file);
            ck_assert_msg((double)bytes <= 1.10 * (double)file, "%s k %u: %zu of %zu", info->name,
                          ks[i], bytes, file);
            ck_assert_uint_eq(bytes % 64, 0);
        }
        size_t bytes = 7;
        ck_assert(!dk_weight_bytes(t, DK_LAYOUT_AMX_BF16, 64, 256, &bytes));
        ck_assert(!dk_weight_bytes(t, DK_LAYOUT_PANEL, 0, 256, &bytes));
        ck_assert(!dk_weight_bytes(t, DK_LAYOUT_PANEL, 64, 0, &bytes));
        ck_assert(!dk_weight_bytes(t, DK_LAYOUT_PANEL, 64, 48, &bytes));
        ck_assert_uint_eq(bytes, 7);
    }
}
END_TEST

int main(void)
{
    rng_state = 12345;
    Suite *s = suite_create("quant-format");
    TCase *c = test_case(s, "format");
    tcase_add_test(c, dequant_golden);
    tcase_add_test(c, conversions_golden);
    tcase_add_test(c, pack_gives_back_the_values);
    tcase_add_test(c, packed_size);
    return test_main(s);
}
