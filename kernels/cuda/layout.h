/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where things lie in device memory: areas of prepared activations, panels of weights, partial
 * results of attention.  Shared by the host's C and the kernels.
 */
#pragma once

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/fma.h"

#define DCU_PANEL     16u  /* outputs of a panel */
#define DCU_QBLOCK    32u  /* inputs of a block */
#define DCU_QROWS     8u   /* rows of a record of the INT form */
#define DCU_QRECORD   896u /* its bytes: 3 planes of 256, four scales of 32 */
#define DCU_MMA_ROWS  4u   /* rows of a tile of the BF16 and F16 forms: hi and lo make 8 columns */
#define DCU_MMA_K     16u
#define DCU_MMA_TILE  256u  /* bytes of 4 rows by 16 inputs */
#define DCU_MMA_WTILE 512u  /* bytes of 16 outputs by 16 inputs */
#define DCU_MMA_SPLIT 16u   /* partial sums of a product */
#define DCU_MMA_GROUP 1024u /* inputs whose sum is formed before groups are added */
/* Products of many rows are cut by groups where there are no more blocks of results than this; each leaves
 * DCU_SPLIT_SUMS floats a group. */
#define DCU_SPLIT_PLACES 160u
#define DCU_SPLIT_SUMS   4096u
#define DCU_ACT_ALIGN    256u

DK_FN size_t dcu_up(size_t x, size_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* Bytes of one form. */
DK_FN size_t dcu_form_bytes(unsigned form, uint32_t rows, uint32_t k)
{
    switch (form) {
    case DCU_FORM_F32:
        return dcu_up((size_t)rows * dcu_up(k, 16) * 4, DCU_ACT_ALIGN);
    case DCU_FORM_INT:
        return dcu_up(rows, DCU_QROWS) / DCU_QROWS * (dcu_up(k, DCU_QBLOCK) / DCU_QBLOCK) *
               DCU_QRECORD;
    case DCU_FORM_ROW_BF16:
        return (size_t)rows * dcu_up(k, 16) * 2;
    case DCU_FORM_ROW_F16:
        return dcu_up((size_t)rows * dcu_up(k, 16) * 2, DCU_ACT_ALIGN) + (size_t)rows * 4;
    case DCU_FORM_BF16:
    case DCU_FORM_F16:
        return dcu_up(rows, DCU_MMA_ROWS) / DCU_MMA_ROWS * (dcu_up(k, DCU_MMA_K) / DCU_MMA_K) *
                   DCU_MMA_TILE +
               (form == DCU_FORM_F16 ? dcu_up((size_t)dcu_up(rows, DCU_MMA_ROWS) * 4, DCU_ACT_ALIGN)
                                     : 0);
    default:
        return 0;
    }
}

/* Behind all forms: blocks that arrived, and sums of groups. */
DK_FN size_t dcu_split_bytes(unsigned forms, uint32_t k)
{
    const size_t groups = ((size_t)k + DCU_MMA_GROUP - 1) / DCU_MMA_GROUP;
    if (!(forms & (DCU_FORM_BF16 | DCU_FORM_F16)) || groups < 2)
        return 0;
    return dcu_up(DCU_SPLIT_PLACES * 4, DCU_ACT_ALIGN) +
           groups * DCU_SPLIT_PLACES * DCU_SPLIT_SUMS * 4;
}

/* Offset of a form's area. */
DK_FN size_t dcu_form_at(const struct dcu_act *a, unsigned form)
{
    size_t at = 0;
    for (unsigned f = 1; f < form; f *= 2)
        if (a->forms & f)
            at += dcu_up(dcu_form_bytes(f, a->max_rows, a->max_k), DCU_ACT_ALIGN);
    return at;
}

/* Where the F16 form keeps 2^-e of each row. */
DK_FN size_t dcu_f16_scales_at(const struct dcu_act *a)
{
    return dcu_form_at(a, DCU_FORM_F16) + dcu_up(a->max_rows, DCU_MMA_ROWS) / DCU_MMA_ROWS *
                                              (dcu_up(a->max_k, DCU_MMA_K) / DCU_MMA_K) *
                                              DCU_MMA_TILE;
}

/* Where the ROW_F16 form keeps them. */
DK_FN size_t dcu_row_f16_scales_at(const struct dcu_act *a)
{
    return dcu_form_at(a, DCU_FORM_ROW_F16) +
           dcu_up((size_t)a->max_rows * dcu_up(a->max_k, 16) * 2, DCU_ACT_ALIGN);
}

/* Rows that cuBLASLt computes for so many: few sizes, so that each is settled when a model is loaded.  A
 * power of two up to 64, then at most an eighth more; never more than `most`. */
DK_FN uint32_t dcu_blas_rows(uint32_t rows, uint32_t most)
{
    uint32_t step = 1;
    if (rows <= 64) {
        while (step < rows)
            step *= 2;
    } else {
        for (step = 64; step < (rows + 7) / 8;)
            step *= 2;
    }
    const size_t up = dcu_up(rows, step);
    return up < most ? (uint32_t)up : most;
}

/* Scratch of sampling, for each row: bests of the parts of raw logits, of processed ones and of scores,
 * and the cut. */
struct dcu_row_scratch {
    struct dcu_best raw[DCU_VOCAB_PARTS], y[DCU_VOCAB_PARTS], draw[DCU_VOCAB_PARTS];
    uint32_t cut_key, cut_id; /* key 0: no cut */
    uint32_t pad[14];
};
