/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of the device layouts: sizes, and packing of weights.  Needs no CUDA. */
#include "kernels/cuda/layout.h"

#include <string.h>

#include "base/checked.h"

unsigned dcu_weight_form(enum dk_type t, enum dcu_layout l)
{
    if (dk_type_info(t)->quantised)
        return DCU_FORM_INT;
    if (l == DCU_LAYOUT_PANEL || t == DK_F32)
        return DCU_FORM_F32;
    if (l == DCU_LAYOUT_ROWS)
        return t == DK_F16 ? DCU_FORM_ROW_F16 : DCU_FORM_ROW_BF16;
    return t == DK_F16 ? DCU_FORM_F16 : DCU_FORM_BF16;
}

bool dcu_weight_bytes(enum dk_type t, enum dcu_layout l, uint32_t n, uint32_t k, size_t *ret)
{
    if (l == DCU_LAYOUT_PANEL)
        return dk_weight_bytes(t, DK_LAYOUT_PANEL, n, k, ret);
    if ((t != DK_F16 && t != DK_BF16 && (t != DK_F32 || l != DCU_LAYOUT_ROWS)) || n == 0 || k == 0 || k > UINT32_MAX - DCU_MMA_K)
        return false;
    return size_mul(((size_t)n + DCU_PANEL - 1) / DCU_PANEL, dcu_panel_bytes(t, l, k), ret);
}

size_t dcu_panel_bytes(enum dk_type t, enum dcu_layout l, uint32_t k)
{
    size_t bytes = 0;
    if (l == DCU_LAYOUT_MMA)
        return dcu_up(k, DCU_MMA_K) / DCU_MMA_K * DCU_MMA_WTILE;
    if (l == DCU_LAYOUT_ROWS)
        return DCU_PANEL * dcu_up(k, 16) * dk_type_info(t)->block_bytes;
    (void)dk_weight_bytes(t, DK_LAYOUT_PANEL, DCU_PANEL, k, &bytes);
    return bytes;
}

/* Element of (output, input) of a tile: register by row half and input half, see mma.m16n8k16. */
static unsigned fragment_at(unsigned o, unsigned i)
{
    unsigned lane = o % 8 * 4 + i % 8 / 2, reg = o / 8 + 2 * (i / 8);
    return lane * 8 + reg * 2 + i % 2;
}

static void pack_mma(uint16_t *dst, uint32_t rows, uint32_t k, const char *src, size_t row_bytes)
{
    for (uint32_t k0 = 0; k0 < k; k0 += DCU_MMA_K, dst += DCU_MMA_WTILE / 2) {
        uint32_t kn = k - k0 < DCU_MMA_K ? k - k0 : DCU_MMA_K;
        if (rows < DCU_PANEL || kn < DCU_MMA_K)
            memset(dst, 0, DCU_MMA_WTILE);
        for (uint32_t o = 0; o < rows; o++) {
            uint16_t line[DCU_MMA_K];
            memcpy(line, src + o * row_bytes + k0 * sizeof line[0], kn * sizeof line[0]);
            for (uint32_t i = 0; i < kn; i++)
                dst[fragment_at(o, i)] = line[i];
        }
    }
}

static void pack_rows(char *dst, uint32_t rows, size_t row_bytes, size_t bytes, const char *src,
                      size_t src_row_bytes)
{
    memset(dst, 0, DCU_PANEL * row_bytes);
    for (uint32_t o = 0; o < rows; o++)
        memcpy(dst + o * row_bytes, src + o * src_row_bytes, bytes);
}

void dcu_weight_pack(void *dst, enum dk_type t, enum dcu_layout l, uint32_t n, uint32_t k,
                     const void *src, size_t src_row_bytes, uint32_t panel0, uint32_t panel1)
{
    const size_t panel_bytes = dcu_panel_bytes(t, l, k);
    for (uint32_t p = panel0; p < panel1; p++) {
        uint32_t row0 = p * DCU_PANEL, rows = n - row0 < DCU_PANEL ? n - row0 : DCU_PANEL;
        const char *s = (const char *)src + row0 * src_row_bytes;
        void *d = (char *)dst + (p - panel0) * panel_bytes;
        if (l == DCU_LAYOUT_MMA)
            pack_mma(d, rows, k, s, src_row_bytes);
        else if (l == DCU_LAYOUT_ROWS)
            pack_rows(d, rows, panel_bytes / DCU_PANEL, (size_t)k * dk_type_info(t)->block_bytes, s,
                      src_row_bytes);
        else
            dk_weight_pack(d, t, DK_LAYOUT_PANEL, rows, k, s, src_row_bytes, 0, 1);
    }
}

size_t dcu_act_bytes(unsigned forms, uint32_t max_rows, uint32_t max_k)
{
    size_t bytes = 0;
    for (unsigned f = DCU_FORM_F32; f < DCU_FORM_END; f *= 2)
        if (forms & f)
            bytes += dcu_up(dcu_form_bytes(f, max_rows, max_k), DCU_ACT_ALIGN);
    return bytes + dcu_split_bytes(forms, max_k);
}

size_t dcu_attention_part_floats(uint32_t n_rows, uint32_t n_heads, uint32_t head_dim,
                                 uint32_t max_vis)
{
    return ((size_t)max_vis + DK_ATTN_CHUNK - 1) / DK_ATTN_CHUNK * n_rows * n_heads *
           DK_ATTN_PART(head_dim);
}

size_t dcu_sample_scratch_bytes(uint32_t rows)
{
    return (size_t)rows * sizeof(struct dcu_row_scratch);
}
