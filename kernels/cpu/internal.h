/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CPU kernels share among themselves: one function per op and tier, named
 * dk_cpu_<op>_<tier>, and the split of products, activations and packing between float weights
 * (matmul/, act/, weight/) and block-quantised weights (matmul-quant/, quant/).
 *
 * A tier that has no variant of its own for an op uses the next lower tier's function in its table
 * (dispatch.c).  Files of a tier are compiled with that tier's instructions, so nothing in them may
 * run before the CPU was checked: no static constructors, no shared non-static inline functions.
 */
#pragma once

#include "kernels/kernels.h"

#if defined(__x86_64__)
#define DK_X86 1
#else
#define DK_X86 0
#endif

/* Float activations and weights are padded with zeros to a multiple of this many inputs. */
#define DK_K_PAD 16u
#define DK_PANEL 16u /* outputs of a panel */

static inline uint32_t dk_pad_k(uint32_t k, uint32_t unit)
{
    return (k + unit - 1) / unit * unit;
}

/* ---- activations: three areas of dk_act.mem, each 64-byte aligned ------------------------------ */

/* Bytes of each area for a capacity (rows and k as dk_act_bytes gets them). */
size_t dk_act_bytes_f32(uint32_t max_rows, uint32_t max_k);
size_t dk_act_bytes_bf16(uint32_t max_rows, uint32_t max_k);
size_t dk_act_bytes_int(uint32_t max_rows, uint32_t max_k); /* quant */
/* Start of each area. */
void *dk_act_f32(const struct dk_act *a);
void *dk_act_bf16(const struct dk_act *a);
void *dk_act_int(const struct dk_act *a);

typedef void (*dk_act_fn)(struct dk_act *a, unsigned forms, const float *x, size_t ldx,
                          uint32_t row0, uint32_t row1);
typedef void (*dk_matmul_fn)(const struct dk_mm *mm, const struct dk_act *a, uint32_t panel0,
                             uint32_t panel1, void *scratch);
#define DK_DECLARE_ACT(name)                                                                       \
    void name(struct dk_act *a, unsigned forms, const float *x, size_t ldx, uint32_t row0,         \
              uint32_t row1)
#define DK_DECLARE_MATMUL(name)                                                                    \
    void name(const struct dk_mm *mm, const struct dk_act *a, uint32_t panel0, uint32_t panel1,    \
              void *scratch)

/* The forms DK_FORM_F32 and DK_FORM_BF16 (..._float) and DK_FORM_INT (..._quant); each looks only
 * at its own bits of forms. */
DK_DECLARE_ACT(dk_cpu_act_float_c);
DK_DECLARE_ACT(dk_cpu_act_float_avx2);
DK_DECLARE_ACT(dk_cpu_act_float_avx512);
DK_DECLARE_ACT(dk_cpu_act_float_amx);
DK_DECLARE_ACT(dk_cpu_act_quant_c);
DK_DECLARE_ACT(dk_cpu_act_quant_avx2);
DK_DECLARE_ACT(dk_cpu_act_quant_avx512);

/* F32, F16, BF16 weights in DK_LAYOUT_PANEL. */
DK_DECLARE_MATMUL(dk_cpu_matmul_float_c);
DK_DECLARE_MATMUL(dk_cpu_matmul_float_avx2);
DK_DECLARE_MATMUL(dk_cpu_matmul_float_avx512);
/* DK_LAYOUT_AMX_BF16: the instruction, and the loop that follows it bit for bit. */
DK_DECLARE_MATMUL(dk_cpu_matmul_bf16_amx);
DK_DECLARE_MATMUL(dk_cpu_matmul_bf16_amx_ref);
/* Block types. */
DK_DECLARE_MATMUL(dk_cpu_matmul_quant_c);
DK_DECLARE_MATMUL(dk_cpu_matmul_quant_avx2);
DK_DECLARE_MATMUL(dk_cpu_matmul_quant_avx512);
DK_DECLARE_MATMUL(dk_cpu_matmul_quant_amx);

/* ---- weights ------------------------------------------------------------------------------------ */

bool dk_weight_bytes_float(enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k, size_t *ret);
bool dk_weight_bytes_quant(enum dk_type t, uint32_t n, uint32_t k, size_t *ret);
void dk_weight_pack_float(void *dst, enum dk_type t, enum dk_layout l, uint32_t n, uint32_t k,
                          const void *src, size_t src_row_bytes, uint32_t panel0, uint32_t panel1);
void dk_weight_pack_quant(void *dst, enum dk_type t, uint32_t n, uint32_t k, const void *src,
                          size_t src_row_bytes, uint32_t panel0, uint32_t panel1);
void dk_weight_row_float(const struct dk_weight *w, uint32_t row, float *out);
void dk_weight_row_quant(const struct dk_weight *w, uint32_t row, float *out);

/* ---- the other ops ------------------------------------------------------------------------------ */

/* kv->amx: the instruction, and the loops that follow it bit for bit. */
#define DK_DECLARE_ATTENTION(name)                                                                 \
    void name(const struct dk_kv *kv, const struct dk_attn_row *rows, uint32_t n_rows,             \
              const float *q, size_t ldq, float *out, size_t ldo, uint32_t n_heads,                \
              uint32_t head0, uint32_t head1, float scale, void *scratch)
#define DK_DECLARE_ATTENTION_PART(name)                                                            \
    void name(const struct dk_kv *kv, const struct dk_attn_row *rows, uint32_t n_rows,             \
              const float *q, size_t ldq, float *part, uint32_t n_heads, uint32_t head0,           \
              uint32_t head1, uint32_t chunk0, uint32_t chunk1, float scale, void *scratch)
typedef DK_DECLARE_ATTENTION((*dk_attention_fn));
typedef DK_DECLARE_ATTENTION_PART((*dk_attention_part_fn));
DK_DECLARE_ATTENTION(dk_cpu_attention_bf16_amx);
DK_DECLARE_ATTENTION(dk_cpu_attention_bf16_amx_ref);
DK_DECLARE_ATTENTION_PART(dk_cpu_attention_part_bf16_amx);
DK_DECLARE_ATTENTION_PART(dk_cpu_attention_part_bf16_amx_ref);

/* Where position p of the path lies. */
static inline uint32_t dk_attn_slot(const struct dk_attn_row *r, uint32_t p)
{
    return p < r->tail_start ? r->blocks[p / DK_KV_BLOCK] * DK_KV_BLOCK + p % DK_KV_BLOCK
                             : r->tail[p - r->tail_start];
}

/* Chunks so far of one row and head; the first chunk is taken as it is. */
struct dk_attn_sum {
    float m, l, *a;
};
void dk_attn_merge(struct dk_attn_sum *s, float m1, float l1, const float *a1, size_t hd,
                   bool first);

#define DK_DECLARE_OPS(tier)                                                                       \
    void dk_cpu_rmsnorm_##tier(float *y, const float *x, const float *w, uint32_t n, float eps);   \
    void dk_cpu_add_##tier(float *x, const float *y, uint32_t n);                                  \
    void dk_cpu_silu_mul_##tier(float *out, const float *g, const float *u, uint32_t n);           \
    void dk_cpu_rope_##tier(float *x, uint32_t n_heads, uint32_t head_dim, const float *cs,        \
                            enum dk_rope_pairing pairing);                                         \
    void dk_cpu_kv_store_##tier(const struct dk_kv *kv, uint32_t slot, uint32_t head0,            \
                                uint32_t head1, const float *k_row,                                \
                                const float *v_row);                                               \
    DK_DECLARE_ATTENTION(dk_cpu_attention_##tier);                                                 \
    DK_DECLARE_ATTENTION_PART(dk_cpu_attention_part_##tier);                                       \
    void dk_cpu_attention_merge_##tier(                                                            \
        const struct dk_attn_row *rows, uint32_t n_rows, const float *part, float *out,            \
        size_t ldo, uint32_t n_heads, uint32_t head_dim, uint32_t head0, uint32_t head1);          \
    void dk_cpu_attention_scores_##tier(const struct dk_kv *kv, const struct dk_attn_row *row,     \
                                        const float *q, float *s, size_t lds, uint32_t n_heads,    \
                                        uint32_t kv_head, uint32_t block0, uint32_t block1,        \
                                        float scale, void *scratch);                               \
    void dk_cpu_attention_values_##tier(const struct dk_kv *kv, const struct dk_attn_row *row,     \
                                        const float *s, size_t lds, float *out, uint32_t n_heads,  \
                                        uint32_t kv_head, uint32_t dim0, uint32_t dim1,            \
                                        void *scratch);                                            \
    uint32_t dk_cpu_argmax_##tier(const float *x, uint32_t n, float *ret_max, bool *ret_bad);      \
    float dk_cpu_logsumexp_##tier(const float *x, uint32_t n, float max);                          \
    void dk_cpu_gumbel_##tier(float *out, const uint32_t key[2], const uint32_t ctr[3],            \
                              uint32_t v0, uint32_t n)
DK_DECLARE_OPS(c);
DK_DECLARE_OPS(avx2);
DK_DECLARE_OPS(avx512);
float dk_cpu_expf_avx2(float x);
float dk_cpu_logf_avx2(float x);

/* ---- what the CPU has ----------------------------------------------------------------------------- */

struct dk_cpu {
    bool avx2;   /* AVX2, FMA, F16C, and the system saves the registers */
    bool avx512; /* F, BW, DQ, VL, VNNI, and the system saves the registers */
    bool amx;    /* tiles, INT8, BF16, on top of avx512; the system grants tile data */
};
const struct dk_cpu *dk_cpu(void); /* asked once, any thread */
