/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of drafter/: P.blocks.json with P.blocks.safetensors (features, logits of every pass) and
 * P.generate.json (whole generations, round by round).  The drafter is the folder P; its target is the
 * folder "target", or, for "random", d_qwen3 of the models.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/check.h"
#include "engine/drafter.h"

#define MAX_CONTEXT 512u

struct drafter_case {
    struct check *k;
    const char *name;
    struct model_file *file;
    struct backend_model *model;
    struct drafter *drafter;
    struct safetensors *tensors;
    uint32_t blocks[MAX_CONTEXT / 16];
    double tolerance;
};

static const char *target_path(const struct check *k, const char *name)
{
    return strcmp(name, "random") ? check_path(k, "drafter", "target")
                                  : check_path(k, "models", "d_qwen3");
}

/* ---- blocks ------------------------------------------------------------------------------------- */

/* The reference has the weights as they are filed. */
static enum backend_dtype case_dtype(const struct check *k)
{
    return k->engine.drafter_dtype_given ? k->engine.config.drafter_dtype : BACKEND_DTYPE_FILE;
}

static int open_case(struct drafter_case *c, struct error *err)
{
    const struct engine_config *cfg = &c->k->engine.config;
    char rest[300];
    struct backend_options o = {.n_threads = cfg->n_threads,
                                .tier = cfg->tier,
                                .exact = cfg->exact,
                                .dtype = cfg->dtype,
                                .kv_type = cfg->kv_type,
                                .n_kv_blocks = MAX_CONTEXT / 16,
                                .max_rows = MAX_CONTEXT,
                                .max_context = MAX_CONTEXT};
    for (uint32_t i = 0; i < MAX_CONTEXT / 16; i++)
        c->blocks[i] = MAX_CONTEXT / 16 - 1 - i;
    snprintf(rest, sizeof(rest), "%s.blocks.safetensors", c->name);
    int r = safetensors_open(check_path(c->k, "drafter", rest), &c->tensors, err);
    if (r == 0)
        r = model_file_open(target_path(c->k, c->name), &c->file, err);
    if (r == 0)
        r = backend_cpu.load(c->file, &o, NULL, NULL, &c->model, err);
    if (r == 0)
        r = drafter_new(check_path(c->k, "drafter", c->name), &backend_cpu, c->model, c->file, &o,
                        case_dtype(c->k), &c->drafter, err);
    return r;
}

static void close_case(struct drafter_case *c)
{
    drafter_free(c->drafter);
    if (c->model)
        backend_cpu.free(c->model);
    model_file_free(c->file);
    safetensors_free(c->tensors);
}

static int tensor(const struct drafter_case *c, const char *name, uint64_t rows, uint64_t cols,
                  const float **ret, struct error *err)
{
    const struct st_tensor *t;
    int r = check_tensor(c->tensors, name, ST_F32, 2, &t, err);
    if (r < 0)
        return r;
    if (t->dims[0] != rows || t->dims[1] != cols)
        return ERR(err, MISMATCH, "%s has another shape than the case", name);
    *ret = t->data;
    return 0;
}

/* Context of n positions into the pool; compares the features. */
static int inject(struct drafter_case *c, uint32_t n, double *excess, double *diff,
                  struct error *err)
{
    const struct drafter_config *d = drafter_get_config(c->drafter);
    const uint32_t hidden = model_file_config(drafter_get_file(c->drafter))->hidden;
    const uint32_t width = d->n_taps * d->target_hidden;
    const float *taps, *want;
    char name[48];
    snprintf(name, sizeof(name), "c%u.taps", n);
    int r = tensor(c, name, n, width, &taps, err);
    snprintf(name, sizeof(name), "c%u.H", n);
    if (r == 0)
        r = tensor(c, name, n, hidden, &want, err);
    if (r < 0)
        return r;
    _cleanup_free_ float *fused = mem_array((size_t)n * hidden, sizeof(*fused));
    _cleanup_free_ struct ctx_row *rows = mem_array(n, sizeof(*rows));
    if (!fused || !rows)
        return ERR_NOMEM(err);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct ctx_row){.taps = taps + (size_t)i * width,
                                   .pos = i,
                                   .slot = c->blocks[i / 16] * 16 + i % 16,
                                   .fused = fused + (size_t)i * hidden};
    r = drafter_inject(c->drafter, rows, n, err);
    *excess = check_excess(fused, want, (size_t)n * hidden, c->tolerance, c->tolerance, diff);
    return r;
}

/* One pass: all rows' logits, and the drafts unless they are too close to call. */
static int one_pass(struct drafter_case *c, const json_t *p, const char *kind, uint32_t n,
                    uint32_t pass, double *excess, double *diff, bool *ret_same, struct error *err)
{
    struct check_ids input = {0}, draft = {0};
    const uint32_t vocab = drafter_get_config(c->drafter)->draft_vocab;
    const float *want = NULL;
    double margin = 0;
    char name[64];
    int r = check_get_ids(p, "input", &input, err);
    if (r == 0)
        r = check_get_ids(p, "draft", &draft, err);
    if (r == 0)
        r = check_get_num(p, "margin", &margin, err);
    snprintf(name, sizeof(name), "c%u.%s.p%u.logits", n, pass > 1 ? kind : "bidir", pass);
    if (r == 0 && (input.n != draft.n + 1 || input.n > DRAFT_MAX_WINDOW))
        r = ERR(err, FORMAT, "pass %u: %zu rows and %zu drafts", pass, input.n, draft.n);
    if (r == 0)
        r = tensor(c, name, input.n, vocab, &want, err);
    float *logits = r == 0 ? mem_array(input.n * vocab, sizeof(float)) : NULL;
    if (r == 0 && !logits)
        r = ERR_NOMEM(err);
    struct drafter_block b = {.tokens = input.v,
                              .n = (uint32_t)input.n,
                              .start = n,
                              .blocks = c->blocks,
                              .causal = pass > 1 && !strcmp(kind, "causal"),
                              .logits = logits};
    if (r == 0)
        r = drafter_run(c->drafter, &b, 1, err);
    if (r == 0) {
        double x = check_excess(logits, want, input.n * vocab, c->tolerance, c->tolerance, diff);
        *excess = x > *excess ? x : *excess;
        for (size_t k = 1; k < input.n && margin > 8 * c->tolerance; k++) {
            float top;
            bool bad;
            uint32_t id = backend_cpu.ops(c->model)->argmax(logits + k * vocab, vocab, &top, &bad);
            *ret_same = *ret_same && !bad && id == draft.v[k - 1];
        }
    }
    mem_free(logits);
    mem_free(input.v);
    mem_free(draft.v);
    return r;
}

static void block_case(struct drafter_case *c, const json_t *o)
{
    static const char *const kinds[] = {"bidir", "causal"};
    double n = 0, h = 0, h_diff = 0, excess = 0, diff = 0;
    struct error err = {0};
    bool same = true;
    char name[300];
    int r = check_get_num(o, "n", &n, &err);
    if (r == 0 && (n < 1 || n > MAX_CONTEXT))
        r = ERR(&err, FORMAT, "\"n\" is %g", n);
    if (r == 0)
        r = inject(c, (uint32_t)n, &h, &h_diff, &err);
    for (int i = 0; i < 2 && r == 0; i++) {
        const json_t *passes = json_object_get(o, kinds[i]), *p;
        size_t j;
        if (!json_is_array(passes))
            r = ERR(&err, FORMAT, "\"%s\" is not a list", kinds[i]);
        json_array_foreach(passes, j, p)
        {
            if (r == 0)
                r = one_pass(c, p, kinds[i], (uint32_t)n, (uint32_t)j + 1, &excess, &diff, &same,
                             &err);
        }
    }
    snprintf(name, sizeof(name), "%s/block/%.0f", c->name, n);
    if (r < 0)
        check_result(c->k, false, "drafter", name, "%s", err.msg);
    else
        check_result(c->k, h <= 1 && excess <= 1 && same, "drafter", name,
                     "features differ by at most %.1e, logits by %.1e (%.2g of the tolerance); "
                     "drafts %s",
                     h_diff, diff, excess > h ? excess : h, same ? "equal" : "differ");
}

static void check_blocks(struct check *k, const char *pair)
{
    struct drafter_case c = {.k = k, .name = pair};
    struct error err = {0};
    char rest[300];
    json_t *cases = NULL;
    snprintf(rest, sizeof(rest), "%s.blocks.json", pair);
    int r = check_read_json(check_path(k, "drafter", rest), &cases, &err);
    if (r == 0 && !json_is_array(cases))
        r = ERR(&err, FORMAT, "%s is not a list", rest);
    if (r == 0)
        r = open_case(&c, &err);
    c.tolerance =
        k->engine.config.kv_type != DK_KV_F32 || case_dtype(k) != BACKEND_DTYPE_FILE ? 0.6 : 1e-3;
    if (r < 0)
        check_result(k, false, "drafter", pair, "%s", err.msg);
    const json_t *o;
    size_t i;
    if (r == 0)
        json_array_foreach(cases, i, o)
        {
            block_case(&c, o);
        }
    close_case(&c);
    json_decref(cases);
}

/* ---- generations -------------------------------------------------------------------------------- */

/* What a request's rounds must be, and how far they were. */
struct rounds {
    const json_t *want;
    size_t at;
    struct check_ids tokens; /* all that were committed */
    size_t cap;
    char problem[200];
};

static bool equal_ids(const json_t *a, const uint32_t *v, size_t n)
{
    if (json_array_size(a) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (json_integer_value(json_array_get(a, i)) != v[i])
            return false;
    return true;
}

static void on_round(void *arg, struct request *r, const struct engine_round *t)
{
    struct rounds *w = arg;
    (void)r;
    const json_t *want = json_array_get(w->want, w->at);
    if (!want || w->problem[0] || w->tokens.n == 0)
        return; /* the reference ended before, or the prompt gave its first token */
    if (t->passes == 0) {
        snprintf(w->problem, sizeof(w->problem), "round %zu: nothing was drafted", w->at);
        return;
    }
    const json_t *drafts = json_object_get(want, "drafts");
    /* A fixed point ends our passes; the reference's later ones repeat it. */
    for (size_t p = 0; p < json_array_size(drafts) && !w->problem[0]; p++) {
        uint32_t mine = p < t->passes ? (uint32_t)p : t->passes - 1;
        if (!equal_ids(json_array_get(drafts, p), t->tokens[mine], t->window - 1))
            snprintf(w->problem, sizeof(w->problem), "round %zu: pass %zu drafts something else",
                     w->at, p + 1);
    }
    if (!w->problem[0] && json_integer_value(json_object_get(want, "accepted")) != t->accepted)
        snprintf(w->problem, sizeof(w->problem), "round %zu: %u drafts accepted, not %d", w->at,
                 t->accepted, (int)json_integer_value(json_object_get(want, "accepted")));
    w->at++;
}

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct rounds *w = arg;
    (void)r;
    for (size_t i = 0; i < n && w->tokens.n < w->cap; i++)
        w->tokens.v[w->tokens.n++] = t[i].id;
    return 0;
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct rounds *w = arg;
    (void)r;
    if (f->error)
        snprintf(w->problem, sizeof(w->problem), "%.190s", f->error->msg);
}

static int generate(struct engine *e, const json_t *c, const char *run, struct rounds *w,
                    struct error *err)
{
    struct check_ids prompt = {0};
    struct request *r = NULL;
    double max_new = 0;
    int k = check_get_ids(c, "prompt", &prompt, err);
    if (k == 0)
        k = check_get_num(c, "max_new_tokens", &max_new, err);
    /* The reference's last round may run past its end: whole rounds are compared. */
    w->cap = (size_t)max_new + DRAFT_MAX_WINDOW;
    w->tokens.v = mem_array(w->cap, sizeof(*w->tokens.v));
    if (k == 0 && !w->tokens.v)
        k = ERR_NOMEM(err);
    struct engine_request q = {
        .prompt = prompt.v,
        .n_prompt = prompt.n,
        .drafting = {.method = run[1] == '1' ? DRAFT_DFLASH : DRAFT_DEDIT,
                     .passes = (uint32_t)(run[1] - '0'),
                     .visibility = strstr(run, "causal") ? DRAFT_CAUSAL : DRAFT_BIDIRECTIONAL,
                     .want_rounds = true},
        .sink = {.tokens = on_tokens, .finished = on_finished, .round = on_round, .arg = w}};
    sampling_params_init(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.max_tokens = (uint32_t)w->cap;
    q.sampling.ignore_eos = true;
    if (k == 0)
        k = engine_submit(e, &q, &r, err);
    while (k >= 0 && (k = engine_step(e, err)) > 0)
        ;
    request_free(r);
    mem_free(prompt.v);
    return k;
}

static void generation(struct check *k, struct engine *e, const char *pair, size_t i,
                       const json_t *c, const char *run, const json_t *want)
{
    struct rounds w = {.want = want};
    struct error err = {0};
    struct check_ids greedy = {0};
    char name[300];
    snprintf(name, sizeof(name), "%s/generate/%zu/%s", pair, i, run);
    int r = run[0] == 'K' && run[1] >= '1' && run[1] <= '8'
                ? 0
                : ERR(&err, FORMAT, "run \"%s\" is unknown", run);
    if (r == 0)
        r = check_get_ids(c, "greedy", &greedy, &err);
    if (r == 0)
        r = generate(e, c, run, &w, &err);
    bool text = r >= 0 && w.tokens.n >= greedy.n &&
                !memcmp(w.tokens.v, greedy.v, greedy.n * sizeof(*greedy.v));
    if (r < 0)
        check_result(k, false, "drafter", name, "%s", err.msg);
    else if (w.problem[0])
        check_result(k, false, "drafter", name, "%s", w.problem);
    else
        check_result(k, text && w.at >= json_array_size(want), "drafter", name,
                     "%zu rounds equal, tokens %s", json_array_size(want),
                     text ? "those of greedy decoding" : "differ from greedy decoding");
    mem_free(w.tokens.v);
    mem_free(greedy.v);
}

static void check_generations(struct check *k, const char *pair)
{
    struct engine_options b = k->engine;
    struct engine *e = NULL;
    struct error err = {0};
    char rest[300];
    json_t *root = NULL, *run;
    const char *key;
    snprintf(rest, sizeof(rest), "%s.generate.json", pair);
    int r = check_read_json(check_path(k, "drafter", rest), &root, &err);
    b.config.drafter = check_path(k, "drafter", pair);
    if (r == 0)
        r = engine_options_open(&b, target_path(k, pair), &e, &err);
    const json_t *c, *cases = json_object_get(root, "cases");
    size_t i;
    if (r == 0 && !json_is_array(cases))
        r = ERR(&err, FORMAT, "\"cases\" is not a list");
    if (r < 0)
        check_result(k, false, "drafter", rest, "%s", err.msg);
    else
        json_array_foreach(cases, i, c)
        {
            json_object_foreach(json_object_get(c, "runs"), key, run)
                generation(k, e, pair, i, c, key, run);
        }
    engine_free(e);
    json_decref(root);
}

void check_drafter(struct check *k, const char *kind)
{
    struct check_names list = {NULL, 0};
    struct error err = {0};
    if (check_list(k, kind, ".blocks.json", &list, &err) < 0) {
        check_result(k, false, kind, "", "%s", err.msg);
        return;
    }
    for (size_t i = 0; i < list.n; i++) {
        char rest[300];
        snprintf(rest, sizeof(rest), "%s.generate.json", list.names[i]);
        check_blocks(k, list.names[i]);
        if (check_exists(check_path(k, kind, rest)))
            check_generations(k, list.names[i]);
    }
    check_names_done(&list);
}
