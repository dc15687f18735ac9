/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of every tier, and inside products and activations the way by weight type.
 *
 * A line of a tier's table names that tier's own variant, or that of the next lower tier where it
 * has none.  Tiers that the compiler could not build have no table.
 */
#include "config.h"

#include "kernels/cpu/internal.h"

/* ---- products and activations: float, block-quantised, AMX BF16 --------------------------------- */

struct route {
    dk_act_fn act_float, act_quant;
    dk_matmul_fn mm_float, mm_quant, mm_amx_bf16;
    dk_attention_fn att_amx_bf16;
    dk_attention_part_fn att_part_amx_bf16;
};

static inline void route_act(const struct route *r, struct dk_act *a, unsigned forms,
                             const float *x, size_t ldx, uint32_t row0, uint32_t row1)
{
    if (forms & (DK_FORM_F32 | DK_FORM_BF16))
        r->act_float(a, forms, x, ldx, row0, row1);
    if (forms & DK_FORM_INT)
        r->act_quant(a, forms, x, ldx, row0, row1);
}

static inline void route_matmul(const struct route *r, const struct dk_mm *mm,
                                const struct dk_act *a, uint32_t panel0, uint32_t panel1,
                                void *scratch)
{
    if (dk_type_info(mm->w->type)->quantised)
        r->mm_quant(mm, a, panel0, panel1, scratch);
    else if (mm->w->layout == DK_LAYOUT_AMX_BF16)
        r->mm_amx_bf16(mm, a, panel0, panel1, scratch);
    else
        r->mm_float(mm, a, panel0, panel1, scratch);
}

#define DEFINE_ROUTE(tier)                                                                         \
    static DK_DECLARE_ACT(act_##tier)                                                              \
    {                                                                                              \
        route_act(&route_##tier, a, forms, x, ldx, row0, row1);                                    \
    }                                                                                              \
    static DK_DECLARE_MATMUL(matmul_##tier)                                                        \
    {                                                                                              \
        route_matmul(&route_##tier, mm, a, panel0, panel1, scratch);                               \
    }

/* Attention of the tier `own`, or of the AMX BF16 class. */
#define DEFINE_ATTENTION(tier, own)                                                                \
    static DK_DECLARE_ATTENTION(attention_##tier)                                                  \
    {                                                                                              \
        (kv->amx ? route_##tier.att_amx_bf16 : dk_cpu_attention_##own)(                            \
            kv, rows, n_rows, q, ldq, out, ldo, n_heads, head0, head1, scale, scratch);            \
    }                                                                                              \
    static DK_DECLARE_ATTENTION_PART(attention_part_##tier)                                        \
    {                                                                                              \
        (kv->amx ? route_##tier.att_part_amx_bf16                                                  \
                 : dk_cpu_attention_part_##own)(kv, rows, n_rows, q, ldq, part, n_heads, head0,    \
                                                head1, chunk0, chunk1, scale, scratch);            \
    }

/* All ops but products and attention. */
#define OTHER_OPS(tier)                                                                            \
    .rmsnorm = dk_cpu_rmsnorm_##tier, .add = dk_cpu_add_##tier,                                    \
    .silu_mul = dk_cpu_silu_mul_##tier, .rope = dk_cpu_rope_##tier,                                \
    .kv_store = dk_cpu_kv_store_##tier, .attention_merge = dk_cpu_attention_merge_##tier,          \
    .attention_scores = dk_cpu_attention_scores_##tier,                                            \
    .attention_values = dk_cpu_attention_values_##tier, .argmax = dk_cpu_argmax_##tier,            \
    .logsumexp = dk_cpu_logsumexp_##tier, .gumbel = dk_cpu_gumbel_##tier

/* ---- portable C ------------------------------------------------------------------------------------ */

static const struct route route_c = {
    .act_float = dk_cpu_act_float_c,
    .act_quant = dk_cpu_act_quant_c,
    .mm_float = dk_cpu_matmul_float_c,
    .mm_quant = dk_cpu_matmul_quant_c,
    .mm_amx_bf16 = dk_cpu_matmul_bf16_amx_ref,
    .att_amx_bf16 = dk_cpu_attention_bf16_amx_ref,
    .att_part_amx_bf16 = dk_cpu_attention_part_bf16_amx_ref,
};
DEFINE_ROUTE(c)
DEFINE_ATTENTION(c, c)

static const struct dk_ops ops_c = {
    .tier = DK_TIER_C,
    .act_prepare = act_c,
    .matmul = matmul_c,
    .attention = attention_c,
    .attention_part = attention_part_c,
    OTHER_OPS(c),
};

/* ---- AVX2, FMA, F16C ------------------------------------------------------------------------------- */

#ifdef DEDIT_TIER_AVX2
static const struct route route_avx2 = {
    .act_float = dk_cpu_act_float_avx2,
    .act_quant = dk_cpu_act_quant_avx2,
    .mm_float = dk_cpu_matmul_float_avx2,
    .mm_quant = dk_cpu_matmul_quant_avx2,
    .mm_amx_bf16 = dk_cpu_matmul_bf16_amx_ref,
    .att_amx_bf16 = dk_cpu_attention_bf16_amx_ref,
    .att_part_amx_bf16 = dk_cpu_attention_part_bf16_amx_ref,
};
DEFINE_ROUTE(avx2)
DEFINE_ATTENTION(avx2, avx2)

static const struct dk_ops ops_avx2 = {
    .tier = DK_TIER_AVX2,
    .act_prepare = act_avx2,
    .matmul = matmul_avx2,
    .attention = attention_avx2,
    .attention_part = attention_part_avx2,
    OTHER_OPS(avx2),
};
#endif

/* ---- AVX-512 with VNNI ------------------------------------------------------------------------------- */

#ifdef DEDIT_TIER_AVX512
static const struct route route_avx512 = {
    .act_float = dk_cpu_act_float_avx512,
    .act_quant = dk_cpu_act_quant_avx512,
    .mm_float = dk_cpu_matmul_float_avx512,
    .mm_quant = dk_cpu_matmul_quant_avx512,
    .mm_amx_bf16 = dk_cpu_matmul_bf16_amx_ref,
    .att_amx_bf16 = dk_cpu_attention_bf16_amx_ref,
    .att_part_amx_bf16 = dk_cpu_attention_part_bf16_amx_ref,
};
DEFINE_ROUTE(avx512)
DEFINE_ATTENTION(avx512, avx512)

static const struct dk_ops ops_avx512 = {
    .tier = DK_TIER_AVX512,
    .act_prepare = act_avx512,
    .matmul = matmul_avx512,
    .attention = attention_avx512,
    .attention_part = attention_part_avx512,
    OTHER_OPS(avx512),
};
#endif

/* ---- AMX on top of AVX-512 ----------------------------------------------------------------------------- */

#if defined(DEDIT_TIER_AMX) && defined(DEDIT_TIER_AVX512)
static const struct route route_amx = {
    .act_float = dk_cpu_act_float_amx,
    .act_quant = dk_cpu_act_quant_avx512,
    .mm_float = dk_cpu_matmul_float_avx512,
    .mm_quant = dk_cpu_matmul_quant_amx,
    .mm_amx_bf16 = dk_cpu_matmul_bf16_amx,
    .att_amx_bf16 = dk_cpu_attention_bf16_amx,
    .att_part_amx_bf16 = dk_cpu_attention_part_bf16_amx,
};
DEFINE_ROUTE(amx)
DEFINE_ATTENTION(amx, avx512)

static const struct dk_ops ops_amx = {
    .tier = DK_TIER_AMX,
    .act_prepare = act_amx,
    .matmul = matmul_amx,
    .attention = attention_amx,
    .attention_part = attention_part_amx,
    OTHER_OPS(avx512),
};
#endif

const struct dk_ops *dk_ops(enum dk_tier t)
{
    const struct dk_cpu *cpu = dk_cpu();
    (void)cpu;
    switch (t) {
    case DK_TIER_C:
        return &ops_c;
    case DK_TIER_AVX2:
#ifdef DEDIT_TIER_AVX2
        if (cpu->avx2)
            return &ops_avx2;
#endif
        return NULL;
    case DK_TIER_AVX512:
#ifdef DEDIT_TIER_AVX512
        if (cpu->avx512)
            return &ops_avx512;
#endif
        return NULL;
    case DK_TIER_AMX:
#if defined(DEDIT_TIER_AMX) && defined(DEDIT_TIER_AVX512)
        if (cpu->amx)
            return &ops_amx;
#endif
        return NULL;
    case DK_TIER_COUNT:
        break;
    }
    return NULL;
}
