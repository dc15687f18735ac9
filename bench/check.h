/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench check: runs every case of a folder of reference values.  Each kind of case has one
 * function; a later part of the project adds its own to the table in check.c.
 */
#pragma once

#include <jansson.h>

#include "bench/bench.h"
#include "engine/safetensors.h"

struct check {
    struct engine_options engine;
    bool tap;
    uint32_t chunk;           /* prompt rows of one feed; 0: all */
    const char *only;         /* kinds to run, "," between them; NULL: all */
    const char *qwen3;        /* tokenizer.json of Qwen3, or NULL: looked for */
    const char *dir;          /* the folder that is being checked */
    char model[4096];         /* SmolLM2, "" when it is not there */
    struct error model_error; /* why not */
    unsigned passed, failed, skipped;
};

/* One line a case.  kind: "models", name: "a_llama_tied/2". */
void check_result(struct check *k, bool ok, const char *kind, const char *name, const char *fmt,
                  ...) __attribute__((format(printf, 5, 6)));
void check_skip(struct check *k, const char *kind, const char *name, const char *why);

/* The kinds. */
void check_models(struct check *k, const char *kind);
void check_dequant(struct check *k, const char *kind);
void check_smollm2(struct check *k, const char *kind);
void check_tokenizer(struct check *k, const char *kind);
void check_chat(struct check *k, const char *kind);
void check_sampling(struct check *k, const char *kind);
void check_drafter(struct check *k, const char *kind);
void check_verify(struct check *k, const char *kind);

/* ---- reading cases ---- */

/* dir/kind/rest; static ring of eight buffers. */
const char *check_path(const struct check *k, const char *kind, const char *rest);
bool check_exists(const char *path);
/* Names in the folder dir/kind that end in suffix, sorted, without it.  Free with check_names_done. */
struct check_names {
    char **names;
    size_t n;
};
int check_list(const struct check *k, const char *kind, const char *suffix, struct check_names *ret,
               struct error *err);
void check_names_done(struct check_names *n);

int check_read_json(const char *path, json_t **ret, struct error *err);
/* Lines of a .jsonl file. */
struct check_lines {
    const char *path;
    char *text;
    size_t len, at;
    int number;
};
int check_lines_open(struct check_lines *l, const char *path, struct error *err);
/* 1: *ret is the next object, 0: no more, negative: a bad line. */
int check_lines_next(struct check_lines *l, json_t **ret, struct error *err);
void check_lines_done(struct check_lines *l);

/* A list of token ids; the array is freed with mem_free. */
struct check_ids {
    uint32_t *v;
    size_t n;
};
int check_get_ids(const json_t *o, const char *key, struct check_ids *ret, struct error *err);
int check_get_str(const json_t *o, const char *key, const char **ret, struct error *err);
int check_get_num(const json_t *o, const char *key, double *ret, struct error *err);
/* The tensor, which must be of this dtype and have n_dims dimensions. */
int check_tensor(const struct safetensors *s, const char *name, enum st_dtype dtype,
                 uint32_t n_dims, const struct st_tensor **ret, struct error *err);

/* Logits, and everything else of a model, may differ by t + t |b|; this is t.  1e-3, also with
 * block-quantised weights; more where values are rounded to 16 bits: KV in BF16 or F16, BF16
 * activations of the AMX class. */
double check_tolerance(const struct engine *e);

/* Largest |a - b| / (abs + rel |b|) over n floats; above 1 is a failure; NaN counts as infinite.
 * *worst_diff (may be NULL) gets the largest |a - b|. */
double check_excess(const float *a, const float *b, size_t n, double abs_tol, double rel_tol,
                    double *worst_diff);
bool check_ids_equal(const uint32_t *a, size_t na, const struct check_ids *b);
