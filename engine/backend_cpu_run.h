/* SPDX-License-Identifier: Apache-2.0 */
/* One forward call of the CPU backend, as its threads see it. */
#pragma once

#include "engine/backend_cpu.h"

/* How threads divide attention: (tile, KV head) jobs; query heads, for few rows; chunks of the path
 * too, for few rows with long paths; blocks of K and dimensions of V, for one row with a short one. */
enum cpu_attention_plan { CPU_BY_TILES, CPU_BY_HEADS, CPU_BY_CHUNKS, CPU_BY_BLOCKS };

/* The rows of a stage: row i of x and q, and which row of the batch that is. */
struct cpu_rows {
    uint32_t n;
    const uint32_t *index; /* NULL: row i is row i */
    struct dk_attn_row *paths;
    struct cpu_tile *tiles;
    uint32_t n_tiles, n_chunks; /* chunks of the longest path */
    enum cpu_attention_plan plan;
};

struct fwd {
    struct backend_model *m;
    const struct fwd_batch *b;
    struct cpu_rows all;
    struct cpu_rows live;      /* whose last layer somebody reads */
    struct cpu_rows window[2]; /* the same two as layers with a window see them (drafters) */
    bool windowed;
    uint32_t n_head; /* rows with logits: s.head_rows of the live ones, into s.head_out */
};

/* Whether threads divide n rows; then each has [*a, *b) of them in all stages but attention. */
static inline bool cpu_by_rows(const struct backend_model *m, uint32_t n)
{
    return n >= CPU_ROWS_EACH * m->n_threads;
}
static inline void cpu_split_rows(const struct backend_model *m, const struct dk_par *par,
                                  uint32_t n, size_t *a, size_t *b)
{
    dk_split(par, n, cpu_by_rows(m, n) ? CPU_ROWS_UNIT : 1, a, b);
}

/* backend_cpu_forward.c: products of a region that is not a forward pass (features of a drafter). */
void cpu_mm_group(const struct fwd *f, const struct dk_par *par, struct dk_mm *mms, unsigned n,
                  const struct dk_act *act, const void *next);
const struct dk_act *cpu_prepare(const struct fwd *f, const struct dk_par *par, unsigned forms,
                                 const float *x, size_t ldx, uint32_t k, const float *norm,
                                 const uint32_t *rows, uint32_t n);
void cpu_angles(const struct backend_model *m, uint32_t pos, float *cs);

/* backend_cpu_attention.c */
/* K/V of row r of the scratch memory: bias, norm, rotation, into the pool. */
void cpu_store_kv(struct backend_model *m, const struct cpu_layer *l, uint32_t r, uint32_t slot);
void cpu_plan_attention(const struct backend_model *m, struct cpu_rows *rows);
/* Biases, norms, rotations, and K/V into the pool, of all rows. */
void cpu_rotate_and_store(const struct fwd *f, const struct dk_par *par, const struct cpu_layer *l);
/* Hints: what these two will read first of the K/V that this thread has to do with. */
void cpu_fetch_slot(const struct fwd *f, const struct dk_par *par, const struct cpu_layer *l);
void cpu_fetch_path(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                    const struct cpu_layer *l);
/* q to att.  Contains a barrier when paths are cut into chunks or blocks. */
void cpu_attention(const struct fwd *f, const struct dk_par *par, const struct cpu_rows *rows,
                   uint32_t layer);
