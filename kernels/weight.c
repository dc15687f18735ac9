/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights: the way by type, and the two layouts of float weights. */
#include <string.h>

#include "base/checked.h"
#include "kernels/cpu/internal.h"

/* Inputs of a row in the layout: whole tiles for AMX, whole lines otherwise. */
static uint32_t padded_k(enum dk_layout l, uint32_t k)
{
    return dk_pad_k(k, l == DK_LAYOUT_AMX_BF16 ? 32 : DK_K_PAD);
}

bool dk_weight_bytes_float(enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k, size_t *ret)
{
    if (n == 0 || k == 0 || k > UINT32_MAX - 32 || (l == DK_LAYOUT_AMX_BF16 && t != DK_BF16))
        return false;
    size_t outputs, elems;
    return size_round_up(n, DK_PANEL, &outputs) && size_mul(outputs, padded_k(l, k), &elems) &&
           size_mul(elems, dk_type_info(t)->block_bytes, ret);
}

bool dk_weight_bytes(enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k, size_t *ret)
{
    if (dk_type_info(t)->quantised)
        return l == DK_LAYOUT_PANEL && dk_weight_bytes_quant(t, n, k, ret);
    return dk_weight_bytes_float(t, l, n, k, ret);
}

/* [panel][k][16] of 2- or 4-byte elements.  src is read in squares of 16 rows by 16 inputs, so that
 * both sides stay within a few lines of cache. */
#define DEFINE_PACK_PANEL(name, T)                                                                 \
    static void name(T *dst, const char *src, size_t src_row_bytes, uint32_t rows, uint32_t k)     \
    {                                                                                              \
        uint32_t kp = dk_pad_k(k, DK_K_PAD);                                                       \
        for (uint32_t k0 = 0; k0 < kp; k0 += 16, dst += 16 * DK_PANEL) {                           \
            uint32_t kn = k - k0 < 16 ? k - k0 : 16;                                               \
            if (rows < DK_PANEL || kn < 16)                                                        \
                memset(dst, 0, sizeof(T) * 16 * DK_PANEL);                                         \
            for (uint32_t r = 0; r < rows; r++) {                                                  \
                T line[16];                                                                        \
                memcpy(line, src + r * src_row_bytes + k0 * sizeof(T), kn * sizeof(T));            \
                for (uint32_t i = 0; i < kn; i++)                                                  \
                    dst[i * DK_PANEL + r] = line[i];                                               \
            }                                                                                      \
        }                                                                                          \
    }
DEFINE_PACK_PANEL(pack_panel_16, uint16_t)
DEFINE_PACK_PANEL(pack_panel_32, uint32_t)

/* [k/32][16 pairs][16 outputs][2]: the pair is one 32-bit element. */
static void pack_amx(uint16_t *dst, const char *src, size_t src_row_bytes, uint32_t rows,
                     uint32_t k)
{
    uint32_t kp = dk_pad_k(k, 32);
    for (uint32_t k0 = 0; k0 < kp; k0 += 32, dst += 32 * DK_PANEL) {
        uint32_t kn = k - k0 < 32 ? k - k0 : 32;
        if (rows < DK_PANEL || kn < 32)
            memset(dst, 0, 2 * 32 * DK_PANEL);
        for (uint32_t r = 0; r < rows; r++) {
            uint16_t line[32] = {0};
            memcpy(line, src + r * src_row_bytes + k0 * sizeof line[0], kn * sizeof line[0]);
            for (uint32_t i = 0; i < 16; i++)
                memcpy(dst + i * 2 * DK_PANEL + 2 * r, line + 2 * i, 2 * sizeof line[0]);
        }
    }
}

void dk_weight_pack_float(void *dst, enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k,
                          const void *src, size_t src_row_bytes, uint32_t panel0, uint32_t panel1)
{
    size_t elem = dk_type_info(t)->block_bytes;
    size_t panel_bytes = (size_t)padded_k(l, k) * DK_PANEL * elem;
    for (uint32_t p = panel0; p < panel1; p++) {
        uint32_t row0 = p * DK_PANEL, rows = n - row0 < DK_PANEL ? n - row0 : DK_PANEL;
        void *d = (char *)dst + p * panel_bytes;
        const char *s = (const char *)src + row0 * src_row_bytes;
        if (l == DK_LAYOUT_AMX_BF16)
            pack_amx(d, s, src_row_bytes, rows, k);
        else if (elem == 2)
            pack_panel_16(d, s, src_row_bytes, rows, k);
        else
            pack_panel_32(d, s, src_row_bytes, rows, k);
    }
}

void dk_weight_pack(void *dst, enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k,
                    const void *src, size_t src_row_bytes, uint32_t panel0, uint32_t panel1)
{
    if (dk_type_info(t)->quantised)
        dk_weight_pack_quant(dst, t, n, k, src, src_row_bytes, panel0, panel1);
    else
        dk_weight_pack_float(dst, t, l, n, k, src, src_row_bytes, panel0, panel1);
}

void dk_weight_row_float(const struct dk_weight *w, uint32_t row, float *out)
{
    size_t kp = padded_k(w->layout, w->k), panel = row / DK_PANEL, r = row % DK_PANEL;
    size_t at = panel * kp * DK_PANEL;
    const uint16_t *h = (const uint16_t *)w->data + at;
    if (w->layout == DK_LAYOUT_AMX_BF16) {
        for (uint32_t i = 0; i < w->k; i++)
            out[i] = dk_bf16_to_f32(h[i / 2 * 2 * DK_PANEL + 2 * r + i % 2]);
    } else if (w->type == DK_F32) {
        const float *f = (const float *)w->data + at + r;
        for (uint32_t i = 0; i < w->k; i++)
            out[i] = f[i * DK_PANEL];
    } else if (w->type == DK_F16) {
        for (uint32_t i = 0; i < w->k; i++)
            out[i] = dk_f16_to_f32(h[i * DK_PANEL + r]);
    } else {
        for (uint32_t i = 0; i < w->k; i++)
            out[i] = dk_bf16_to_f32(h[i * DK_PANEL + r]);
    }
}

void dk_weight_row(const struct dk_weight *w, uint32_t row, float *out)
{
    /* Few bytes of many lines: all are asked for at once, not waited for one by one. */
    size_t panel = w->bytes / w->n_panels;
    const char *lines = (const char *)w->data + row / DK_PANEL * panel;
    for (size_t i = 0; i < panel; i += 64)
        __builtin_prefetch(lines + i, 0, 2);
    if (dk_type_info(w->type)->quantised)
        dk_weight_row_quant(w, row, out);
    else
        dk_weight_row_float(w, row, out);
}

unsigned dk_weight_form(const struct dk_weight *w)
{
    if (dk_type_info(w->type)->quantised)
        return DK_FORM_INT;
    return w->layout == DK_LAYOUT_AMX_BF16 ? DK_FORM_BF16 : DK_FORM_F32;
}
