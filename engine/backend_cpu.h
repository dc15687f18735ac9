/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the CPU backend: the packed model and the memory of one forward call.  Everything is
 * sized at load; a forward call allocates nothing.  Used by engine/backend_cpu*.c only.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"

/* Up to so many rows every thread prepares all activations for itself: cheaper than a barrier. */
#define CPU_SMALL_ROWS 4u
/* From so many rows a thread on, threads divide the rows of all products instead of their columns: what
 * a row becomes stays in one thread's caches, with two barriers a layer. */
#define CPU_ROWS_EACH 128u
#define CPU_ROWS_UNIT 32u
/* Rows of one attention unit: long enough to share the K/V of a chunk, short enough to balance. */
#define CPU_ATTN_TILE 16u
/* One row's path is divided by blocks up to so many positions: one more barrier, but even parts. */
#define CPU_BLOCKS_POSITIONS 1024u
/* Memory for partial results of attention by chunks, at most; one row always fits. */
#define CPU_PART_BYTES  (8u << 20)
#define CPU_MAX_THREADS 64u

struct cpu_layer {
    struct dk_weight q, k, v, o, gate, up, down;
    const float *attn_norm, *ffn_norm;
    const float *q_bias, *k_bias, *v_bias; /* NULL without */
    const float *q_norm, *k_norm;          /* NULL without */
    struct dk_kv kv;
};

/* What each thread has for itself. */
struct cpu_thread {
    struct dk_act act;    /* CPU_SMALL_ROWS rows */
    float *h;             /* CPU_SMALL_ROWS normalised rows */
    struct dk_act shared; /* max_rows rows in memory that all threads share */
    struct dk_act rows;   /* where threads divide rows: its own ones, in a part of that memory */
    size_t row0;          /* the first of them */
    void *scratch;        /* DK_SCRATCH_BYTES */
};

/* A tile of rows of one sequence, for attention. */
struct cpu_tile {
    uint32_t row0, row1;
    uint32_t longest; /* path of them */
    size_t part;      /* where its partial results begin, when paths are cut into chunks */
};

/* Activations of one forward call, [max_rows][ld] each; ld in floats. */
struct cpu_scratch {
    float *x;           /* residual stream, ld_x */
    float *h;           /* normalised rows, ld_x */
    float *q, *att;     /* ld_q */
    float *k, *v;       /* ld_kv */
    float *g, *u;       /* ld_f */
    float *part;        /* attention by chunks: [tile][chunks][rows][n_heads][DK_ATTN_PART] */
    float *scores;      /* attention by blocks: [n_heads][CPU_BLOCKS_POSITIONS] */
    uint32_t part_rows; /* rows that it has room for, with paths as long as the context */
    float *cs;          /* RoPE: [max_rows][head_dim] cosines, then sines */
    size_t ld_x, ld_q, ld_kv, ld_f;
    /* Of all rows, and of those whose last layer somebody reads. */
    struct dk_attn_row *paths[4]; /* [max_rows]; then the same of layers with a window */
    struct cpu_tile *tiles[4];    /* [max_rows] */
    uint32_t *live_rows;          /* [max_rows] rows of the batch */
    uint32_t *head_rows;          /* [max_rows] live rows that want logits */
    float **head_out;             /* [max_rows] where they want them */
    /* Next attention unit of each layer; claimed in any order, which changes no bits. */
    atomic_uint *next_unit;
};

struct backend_model {
    struct backend_model *target; /* of a drafter: whose threads, embedding and head it may use */
    struct model_config cfg;
    struct backend_options opt;
    struct model_file *file; /* outlives the model: look-ups of an untied embedding read it */
    const struct dk_ops *ops;
    struct dk_pool *pool;
    unsigned n_threads;

    struct cpu_layer *layers;
    struct dk_weight head;
    const struct model_tensor *embed; /* NULL when tied: the packed head serves look-ups */
    const float *final_norm;
    struct dk_weight fc;      /* drafters */
    const float *hidden_norm; /* drafters */
    float *inv_freq;          /* head_dim / 2 */
    float scale;              /* 1 / sqrt(head_dim) */
    bool amx_class;

    void *packed, *vectors, *kv, *scratch; /* the four regions */
    size_t packed_bytes, vectors_bytes, kv_bytes, scratch_bytes;
    struct cpu_scratch s;
    struct cpu_thread thread[CPU_MAX_THREADS];

    struct backend_memory mem;
    struct backend_timing timing;
};

/* backend_cpu_load.c */
int cpu_plan(const struct model_file *f, const struct backend_options *o,
             struct backend_memory *ret, struct error *err);
/* Parts of loading that drafters share.  head: the matrix to pack as the head, NULL: none. */
/* Whether one of the matrices makes a model of the AMX BF16 class. */
bool cpu_amx_class(const struct model_file *f, const struct model_tensor *head,
                   const struct backend_options *o);
int cpu_measure(const struct model_file *f, const struct model_tensor *head,
                const struct backend_options *o, unsigned n_threads, struct backend_memory *ret,
                struct error *err);
int cpu_load_into(struct backend_model *m, const struct model_tensor *head,
                  void (*progress)(void *, uint64_t, uint64_t), void *arg, struct error *err);
int cpu_load(struct model_file *f, const struct backend_options *o,
             void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg,
             struct backend_model **ret, struct error *err);
void cpu_free(struct backend_model *m);
/* Parts that the CUDA backend shares.  Type of a matrix after opt.dtype; a row of floats in a stored
 * type; the threads that 0 stands for. */
enum dk_type cpu_stored_type(const struct model_tensor *t, const struct backend_options *o);
void cpu_encode_row(enum dk_type type, const float *row, uint32_t k, char *to);
unsigned cpu_resolve_threads(unsigned n);
int cpu_check_options(const struct backend_options *o, struct error *err);
/* Row of a file tensor as floats, exactly; k elements. */
void cpu_file_row(const struct model_tensor *t, uint64_t row, uint32_t k, float *out);

/* backend_cpu_scratch.c: bytes of the activation memory, and cutting it up (base may be NULL). */
int cpu_scratch_layout(const struct model_config *c, const struct backend_options *o,
                       unsigned n_threads, void *base, struct cpu_scratch *s,
                       struct cpu_thread *threads, size_t *ret_bytes);

/* backend_cpu_drafter.c; the first four are shared with the CUDA backend. */
int cpu_drafter_options(const struct backend_options *o, enum backend_dtype dtype,
                        struct backend_options *ret, struct error *err);
struct model_tensor cpu_picked_head(const struct model_tensor *head, uint32_t n, void *data);
/* What a drafter's logits come from: its own head, or the rows of the target's that it drafts from, in
 * *p until picked_head_done(); NULL: the target's head as it is. */
struct picked_head {
    struct model_tensor tensor;
    char *rows;
};
int cpu_drafter_head(const struct model_file *f, const struct model_tensor *of_target,
                     struct picked_head *p, const struct model_tensor **ret, struct error *err);
void picked_head_done(struct picked_head *p);
int cpu_plan_drafter(const struct model_file *target, const struct model_file *f,
                     const struct backend_options *o, enum backend_dtype dtype,
                     struct backend_memory *ret, struct error *err);
int cpu_load_drafter(struct backend_model *m, struct model_file *f, enum backend_dtype dtype,
                     struct backend_model **ret, struct error *err);
int cpu_inject(struct backend_model *d, const struct ctx_row *rows, uint32_t n, struct error *err);

/* backend_cpu_forward.c */
int cpu_forward(struct backend_model *m, const struct fwd_batch *b, struct error *err);
