/* SPDX-License-Identifier: Apache-2.0 */
/* The engine object: configuration, loading, what it says about itself. */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/clock.h"
#include "engine/device.h"
#include "engine/engine_internal.h"

#define DEFAULT_MAX_CONTEXT 8192u
#define WARM_UP_TOKENS      16u
#define DRAFT_ROWS_MIN      64u /* drafted rows of one batch */
#define DRAFT_ROWS_MAX      256u
#define DRAFT_LOGITS_BYTES  (64u << 20) /* memory of their logits, within those bounds */

void engine_config_init(struct engine_config *c)
{
    *c = (struct engine_config){
        .tier = dk_tier_best(),
        .dtype = BACKEND_DTYPE_FILE,
        .drafter_dtype = BACKEND_DTYPE_AUTO,
        .kv_type = DK_KV_F32,
        .max_num_seqs = 64,
        .max_num_batched_tokens = 512,
        .prefill_chunk = 256,
        .max_queued = 1024,
        .cohorts = 1,
        .cohort_seqs = 2,
        .enable_prefix_caching = true,
    };
}

/* ---- configuration -------------------------------------------------------------------------- */

static int check_range(const char *field, uint32_t v, uint32_t lo, uint32_t hi, struct error *err)
{
    if (v < lo || v > hi)
        return ERR(err, INVALID, "%s %u: must be %u..%u", field, v, lo, hi);
    return 0;
}

/* How many blocks kv_bytes buy, by what the backend keeps K and V as. */
static int resolve_blocks(struct engine *e, struct backend_options *o, struct error *err)
{
    struct engine_config *c = &e->cfg;
    const struct model_config *m = e->model;
    if (c->n_kv_blocks == 0 && c->kv_bytes) {
        struct backend_memory mem;
        o->n_kv_blocks = 1;
        int r = e->space.backend->plan(e->file, o, &mem, err);
        if (r < 0)
            return r;
        uint64_t block = (uint64_t)2 * m->n_layers * m->n_kv_heads * m->head_dim * DK_KV_BLOCK *
                         dk_kv_elem_bytes(mem.kv_type);
        uint64_t n = c->kv_bytes / block;
        if (n == 0)
            return ERR(err, LIMIT, "%s: kv_bytes %llu: one block of %u positions needs %llu",
                       model_file_path(e->file), (unsigned long long)c->kv_bytes, DK_KV_BLOCK,
                       (unsigned long long)block);
        c->n_kv_blocks = n < UINT32_MAX / DK_KV_BLOCK ? (uint32_t)n : UINT32_MAX / DK_KV_BLOCK;
    }
    if (c->n_kv_blocks == 0)
        c->n_kv_blocks = engine_blocks_for(c->max_context);
    o->n_kv_blocks = c->n_kv_blocks;
    int r = check_range("n_kv_blocks", c->n_kv_blocks, 1, UINT32_MAX / DK_KV_BLOCK, err);
    return r < 0 ? error_prefix(err, r, "%s", model_file_path(e->file)) : 0;
}

/* *ret_key: the key of a configuration that was looked at last. */
static int resolve_config(struct engine_config *c, const struct model_config *m,
                          const char **ret_key, struct error *err)
{
    struct engine_config d;
    engine_config_init(&d);
    *ret_key = "max_context";
    if (c->max_context == 0)
        c->max_context =
            m->max_position < DEFAULT_MAX_CONTEXT ? m->max_position : DEFAULT_MAX_CONTEXT;
    if (c->max_context > m->max_position)
        return ERR(err, INVALID, "max_context %u: the model has %u positions", c->max_context,
                   m->max_position);
    if (c->max_num_seqs == 0)
        c->max_num_seqs = d.max_num_seqs;
    if (c->max_num_batched_tokens == 0)
        c->max_num_batched_tokens = d.max_num_batched_tokens;
    if (c->prefill_chunk == 0)
        c->prefill_chunk = d.prefill_chunk;
    if (c->cohorts == 0)
        c->cohorts = d.cohorts;
    if (c->cohort_seqs == 0)
        c->cohort_seqs = d.cohort_seqs;
    if (c->prefill_chunk > c->max_num_batched_tokens)
        c->prefill_chunk = c->max_num_batched_tokens;
    *ret_key = "exactness";
    if (c->exact && c->fast)
        return ERR(err, INVALID, "exactness: fast does not go with exact");
    *ret_key = "max_num_batched_tokens";
    int r = check_range(*ret_key, c->max_num_batched_tokens, 1, 65536, err);
    if (r < 0)
        return r;
    *ret_key = "max_num_seqs";
    r = check_range(*ret_key, c->max_num_seqs, 1, c->max_num_batched_tokens, err);
    if (r < 0)
        return r;
    *ret_key = "cohorts";
    r = check_range(*ret_key, c->cohorts, 1, ENGINE_COHORTS, err);
    if (r < 0)
        return r;
    *ret_key = "kv_dtype";
    if (r == 0 && ((unsigned)c->kv_type >= DK_KV_TYPE_COUNT))
        r = ERR(err, INVALID, "kv_type %d is unknown", (int)c->kv_type);
    if (r < 0)
        return r;
    *ret_key = "path";
    if (m->head_dim > DK_MAX_HEAD_DIM)
        r = ERR(err, UNSUPPORTED, "head_dim %u: at most %u", m->head_dim, DK_MAX_HEAD_DIM);
    return r;
}

/* Rows with taps: those of each cohort's batch, and those that wait. */
static uint32_t tap_rows(const struct engine *e)
{
    const struct engine_config *c = &e->cfg;
    return e->n_cohorts * c->max_num_batched_tokens + c->max_num_seqs * DRAFTING_BACKLOG;
}

/* The backend is chosen, or chosen again: how many cohorts there may be, and what memory they ask for. */
static void resolve_cohorts(struct engine *e, struct backend_options *o)
{
    const struct engine_config *c = &e->cfg;
    const bool able = e->space.backend->finish && (c->drafter || c->take_drafter);
    e->n_cohorts = able ? c->cohorts : 1;
    o->lanes = e->n_cohorts > 1 ? e->n_cohorts : 0;
    o->tap_rows = tap_rows(e);
}

static struct backend_options backend_options(const struct engine_config *c)
{
    return (struct backend_options){.n_threads = c->n_threads,
                                    .tier = c->tier,
                                    .exact = c->exact,
                                    .fast = c->fast,
                                    .dtype = c->dtype,
                                    .kv_type = c->kv_type,
                                    .n_kv_blocks = c->n_kv_blocks,
                                    .max_rows = c->max_num_batched_tokens,
                                    .max_context = c->max_context};
}

static int check_memory(const struct engine *e, const struct backend_options *o, struct error *err)
{
    struct backend_memory mem;
    uint64_t drafter = 0;
    int r = e->space.backend->plan(e->file, o, &mem, err);
    if (r < 0 || e->cfg.memory_limit == 0)
        return r;
    if (e->cfg.drafter)
        r = drafter_plan(e->cfg.drafter, e->space.backend, e->file, o, e->cfg.drafter_dtype,
                         &drafter, err);
    if (r < 0)
        return r;
    uint64_t other = mem.scratch_bytes + e->logits_bytes;
    uint64_t total = mem.packed_bytes + mem.kv_bytes + other + drafter;
    const double mib = 1.0 / (1 << 20);
    if (total > e->cfg.memory_limit)
        return ERR(
            err, LIMIT,
            "%s needs %.1f MiB (weights %.1f, KV pool %.1f, activations %.1f, drafter %.1f), "
            "memory_limit is %.1f MiB",
            model_file_path(e->file), (double)total * mib, (double)mem.packed_bytes * mib,
            (double)mem.kv_bytes * mib, (double)other * mib, (double)drafter * mib,
            (double)e->cfg.memory_limit * mib);
    return 0;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* A drafter is there before this is called; a test may bring its own later. */
int engine_drafting_buffers(struct engine *e, struct error *err)
{
    const size_t rows = tap_rows(e), seqs = e->cfg.max_num_seqs;
    bool made = true;
    e->taps = e->drafter.taps;
    if (!e->taps) {
        e->taps_bytes = rows * e->drafter.n_taps * e->model->hidden * sizeof(*e->taps);
        e->taps = e->own_taps = mem_map_pages(e->taps_bytes);
    }
    e->taps_held = mem_calloc(rows, sizeof(*e->taps_held));
    e->context = mem_calloc(rows, sizeof(*e->context));
    for (uint32_t i = 0; i < e->n_cohorts; i++) {
        struct step *s = &e->steps[i];
        s->draft_entries = mem_calloc(seqs, sizeof(*s->draft_entries));
        s->begun = mem_calloc(seqs, sizeof(struct request *));
        made = made && s->draft_entries && s->begun;
    }
    if (e->space.backend->collect) {
        e->feed = mem_array(e->cfg.max_num_batched_tokens, sizeof(*e->feed));
        e->trees = mem_array(e->cfg.max_num_seqs, sizeof(*e->trees));
        e->controller.ahead = e->drafter.ops->may_begin != NULL;
    }
    return made && e->taps && e->taps_held && e->context &&
                   ((e->feed && e->trees) || !e->space.backend->collect)
               ? 0
               : ERR_NOMEM(err);
}

/* What a batch of cohort i may not share with those of others. */
static int make_step(struct engine *e, uint32_t i, struct error *err)
{
    struct step *s = &e->steps[i];
    s->lane = e->n_cohorts > 1 ? 1 + i : 0;
    s->rows = mem_calloc(e->cfg.max_num_batched_tokens, sizeof(*s->rows));
    s->entries = mem_calloc((size_t)2 * e->cfg.max_num_seqs, sizeof(*s->entries));
    if (e->space.backend->draw_changes)
        s->draws = mem_array(e->cfg.max_num_seqs, sizeof(*s->draws));
    return s->rows && s->entries && (s->draws || !e->space.backend->draw_changes) ? 0
                                                                                  : ERR_NOMEM(err);
}

static int make_buffers(struct engine *e, struct error *err)
{
    const uint32_t vocab = e->model->vocab_size;
    for (uint32_t i = 0; i < e->n_cohorts; i++) {
        int r = make_step(e, i, err);
        if (r < 0)
            return r;
    }
    e->rows = mem_calloc(e->cfg.max_num_batched_tokens, sizeof(*e->rows));
    e->running = mem_calloc(e->cfg.max_num_seqs, sizeof(struct request *));
    e->members = mem_calloc(e->cfg.max_num_seqs, sizeof(struct request *));
    unsigned n = e->space.backend->threads(e->space.model);
    e->n_samplers = n < e->cfg.max_num_seqs ? n : e->cfg.max_num_seqs;
    e->cfg.n_threads = n;
    e->work = mem_map_pages((size_t)e->n_samplers * vocab * sizeof(*e->work));
    e->work_ids = mem_map_pages((size_t)e->n_samplers * vocab * sizeof(*e->work_ids));
    e->logits = mem_map_pages(e->logits_bytes);
    e->choices = mem_array(e->n_logits_rows, sizeof(*e->choices));
    if (e->space.backend->draw_changes) {
        e->drawn = mem_array(e->n_logits_rows, sizeof(*e->drawn));
        if (e->space.backend->walks)
            e->paths = mem_array(e->cfg.max_num_seqs, sizeof(*e->paths));
        if (!e->drawn || (e->space.backend->walks && !e->paths))
            return ERR_NOMEM(err);
    }
    e->tails =
        mem_array((size_t)e->n_logits_rows * (DK_KV_BLOCK + ROUND_MAX_ROWS), sizeof(*e->tails));
    if (!e->rows || !e->running || !e->members || !e->work || !e->work_ids || !e->logits ||
        !e->choices || !e->tails)
        return ERR_NOMEM(err);
    int r = controller_new_candidates(e->cfg.max_num_seqs, &e->candidates, err);
    return r == 0 && e->drafter.ops ? engine_drafting_buffers(e, err) : r;
}

struct load_progress {
    void (*fn)(void *arg, const char *phase, uint64_t done, uint64_t total);
    void *arg;
};

static void pack_progress(void *arg, uint64_t done, uint64_t total)
{
    const struct load_progress *p = arg;
    p->fn(p->arg, "pack", done, total);
}

static void tell(const struct load_progress *p, const char *phase, uint64_t done)
{
    if (p->fn)
        p->fn(p->arg, phase, done, 1);
}

/* The first batch touches every weight; its time belongs to loading, not to the first request. */
static int warm_up(struct engine *e, struct error *err)
{
    uint32_t tokens[WARM_UP_TOKENS];
    struct seq *s = NULL;
    uint32_t n = e->limit < WARM_UP_TOKENS ? e->limit : WARM_UP_TOKENS;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i % e->model->vocab_size;
    int r = engine_seq_new(e, &s, err);
    if (r < 0)
        return r;
    struct engine_feed f = {.seq = s, .tokens = tokens, .n = n, .logits = e->logits, .n_logits = 1};
    r = engine_feed(e, &f, 1, NULL, 0, err);
    engine_seq_free(e, s);
    return r;
}

static double since(uint64_t *t)
{
    uint64_t now = clock_now_ns();
    double d = (double)(now - *t) * 1e-9;
    *t = now;
    return d;
}

/* One row of logits for everyone who runs, and more for drafts. */
static uint32_t logits_rows(const struct engine_config *c, uint32_t vocab)
{
    uint64_t more = DRAFT_LOGITS_BYTES / ((uint64_t)vocab * sizeof(float));
    more = more < DRAFT_ROWS_MIN ? DRAFT_ROWS_MIN : more > DRAFT_ROWS_MAX ? DRAFT_ROWS_MAX : more;
    uint64_t n = c->max_num_seqs + more;
    return n < c->max_num_batched_tokens ? (uint32_t)n : c->max_num_batched_tokens;
}

static int load_drafter(struct engine *e, const struct backend_options *o, struct error *err)
{
    struct model_file *take = TAKE_PTR(e->cfg.take_drafter);
    if (!e->cfg.drafter && !take)
        return 0;
    int r = take ? drafter_new_file(take, e->space.backend, e->space.model, e->file, o,
                                    e->cfg.drafter_dtype, &e->own_drafter, err)
                 : drafter_new(e->cfg.drafter, e->space.backend, e->space.model, e->file, o,
                               e->cfg.drafter_dtype, &e->own_drafter, err);
    e->cfg.drafter = NULL; /* the caller's string */
    if (r == 0)
        e->drafter = drafter_ops(e->own_drafter);
    return r;
}

static int load_models(struct engine *e, const struct backend_options *o,
                       const struct load_progress *p, struct error *err)
{
    struct load_progress copy = *p;
    int r = e->space.backend->load(e->file, o, p->fn ? pack_progress : NULL, &copy, &e->space.model,
                                   err);
    return r < 0 ? r : load_drafter(e, o, err);
}

/* The device did not take the model, and the configuration leaves the choice to us. */
static int load_on_cpu(struct engine *e, struct backend_options *o, uint32_t asked_blocks,
                       const struct load_progress *p, struct error *err)
{
    (void)snprintf(e->device_note, sizeof(e->device_note), "computes on the CPU: %s", err->msg);
    if (e->space.model)
        e->space.backend->free(e->space.model);
    e->space.model = NULL;
    e->space.backend = &backend_cpu;
    o->cuda = NULL;
    *err = (struct error){0};
    e->cfg.n_kv_blocks = asked_blocks; /* what kv_bytes buy may be more here */
    resolve_cohorts(e, o);
    int r = resolve_blocks(e, o, err);
    if (r == 0)
        r = check_memory(e, o, err);
    return r < 0 ? r : load_models(e, o, p, err);
}

/* All that is looked at before anything is allocated; e->file is open.  *ret_key: the key of a configuration that is
 * wrong. */
static int prepare(struct engine *e, struct backend_options *o, bool *ret_optional,
                   uint32_t *ret_asked_blocks, const char **ret_key, struct error *err)
{
    e->model = model_file_config(e->file);
    int r = resolve_config(&e->cfg, e->model, ret_key, err);
    if (r < 0)
        return error_prefix(err, r, "%s", model_file_path(e->file));
    *o = backend_options(&e->cfg);
    e->n_logits_rows = logits_rows(&e->cfg, e->model->vocab_size);
    *ret_key = "max_num_seqs";
    if (!size_mul((size_t)e->n_logits_rows * sizeof(float), e->model->vocab_size, &e->logits_bytes))
        return ERR(err, LIMIT, "max_num_seqs %u: too many rows of logits", e->n_logits_rows);
    *ret_key = "device";
    r = device_choose(e->cfg.device, o, &e->space.backend, ret_optional, e->device_note,
                      sizeof(e->device_note), err);
    e->cfg.device = NULL; /* the caller's string */
    *ret_asked_blocks = e->cfg.n_kv_blocks;
    if (r < 0)
        return r;
    resolve_cohorts(e, o);
    *ret_key = "kv_bytes";
    r = resolve_blocks(e, o, err);
    if (r < 0)
        return r;
    *ret_key = "memory_limit";
    return check_memory(e, o, err);
}

int engine_check(struct model_file *f, const struct engine_config *c, const char **ret_key,
                 struct error *err)
{
    _cleanup_(tokenizer_freep) struct tokenizer *t = NULL;
    _cleanup_free_ struct engine *e = mem_zalloc(sizeof(*e));
    struct backend_options o;
    uint32_t blocks;
    bool optional;
    if (!e)
        return ERR_NOMEM(err);
    e->cfg = *c;
    e->file = f;
    e->space.backend = &backend_cpu;
    int r = prepare(e, &o, &optional, &blocks, ret_key, err);
    if (r < 0)
        return r;
    *ret_key = "path";
    return tokenizer_load(f, &t, err);
}

/* e->file is there, or path names it. */
static int load(struct engine *e, const char *path, const struct load_progress *p,
                struct error *err)
{
    uint64_t t = clock_now_ns();
    tell(p, "open", 0);
    int r = e->file ? 0 : model_file_open(path, &e->file, err);
    if (r < 0)
        return r;
    tell(p, "open", 1);
    struct backend_options o;
    uint32_t asked_blocks;
    const char *key;
    bool optional;
    r = prepare(e, &o, &optional, &asked_blocks, &key, err);
    if (r < 0)
        return r;
    e->timing.open = since(&t);

    tell(p, "vocabulary", 0);
    if (path) {
        r = tokenizer_load(e->file, &e->tokenizer, err);
        if (r < 0)
            return r;
    }
    tell(p, "vocabulary", 1);
    e->timing.vocabulary = since(&t);

    const char *drafter = e->cfg.drafter;
    bool again = optional && o.cuda && !e->cfg.take_drafter;
    struct error why = {0};
    r = load_models(e, &o, p, again ? &why : err);
    if (r < 0 && again) {
        if (!err)
            err = &why;
        *err = why;
        /* A device that was lost is for a new process to find again, or not. */
        if (r == DEDIT_E_DEVICE_LOST)
            return r;
        e->cfg.drafter = drafter;
        r = load_on_cpu(e, &o, asked_blocks, p, err);
    }
    if (r < 0)
        return r;
    e->timing.pack = since(&t);

    r = kv_pool_new(e->cfg.n_kv_blocks, &e->space.pool, err);
    if (r == 0)
        r = make_buffers(e, err);
    if (r < 0)
        return r;
    uint64_t positions = (uint64_t)e->cfg.n_kv_blocks * DK_KV_BLOCK;
    e->limit = positions < e->cfg.max_context ? (uint32_t)positions : e->cfg.max_context;
    e->ops = e->space.backend->ops(e->space.model);
    struct backend_memory mem;
    const char *class;
    e->space.backend->describe(e->space.model, &mem, NULL, &class);
    (void)snprintf(e->class_name, sizeof(e->class_name), "%s, kv %s", class,
                   dk_kv_type_name(mem.kv_type));
    e->timing.kv = since(&t);
    r = engine_costs_read(e, err);
    if (r < 0)
        return r;

    tell(p, "warm-up", 0);
    r = warm_up(e, err);
    if (r < 0)
        return r;
    tell(p, "warm-up", 1);
    e->timing.first_prefill = since(&t);
    return 0;
}

static int make_engine(const char *path, struct model_file *file, const struct engine_config *c,
                       const struct load_progress *p, struct engine **ret, struct error *err)
{
    _cleanup_(engine_freep) struct engine *e = mem_zalloc(sizeof(*e));
    if (!e) {
        model_file_free(file);
        model_file_free(c->take_drafter);
        return ERR_NOMEM(err);
    }
    dk_thread_init();
    e->cfg = *c;
    e->file = file;
    e->space.backend = &backend_cpu;
    e->space.drafter = &e->drafter;
    e->at = e->steps;
    e->n_cohorts = 1;
    controller_init(&e->controller);
    int r = load(e, path, p, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(e);
    return 0;
}

int engine_new(const char *path, const struct engine_config *c,
               void (*progress)(void *arg, const char *phase, uint64_t done, uint64_t total),
               void *arg, struct engine **ret, struct error *err)
{
    return make_engine(path, NULL, c, &(struct load_progress){progress, arg}, ret, err);
}

int engine_new_textless(struct model_file *take, const struct engine_config *c, struct engine **ret,
                        struct error *err)
{
    return make_engine(NULL, take, c, &(struct load_progress){NULL, NULL}, ret, err);
}

struct engine *engine_free(struct engine *e)
{
    if (!e)
        return NULL;
    request_cancel_all(e);
    engine_costs_keep(e);
    calibration_free(e->calibration);
    mem_free(e->costs_dir);
    mem_free(e->costs_key);
    drafter_free(e->own_drafter);
    model_file_free(e->cfg.take_drafter);
    if (e->space.model)
        e->space.backend->free(e->space.model);
    kv_pool_free(e->space.pool);
    tokenizer_free(e->tokenizer);
    mem_unmap_pages(e->logits, e->logits_bytes);
    mem_free(e->rows);
    for (uint32_t i = 0; i < ENGINE_COHORTS; i++) {
        mem_free(e->steps[i].rows);
        mem_free(e->steps[i].entries);
        mem_free(e->steps[i].draws);
        mem_free(e->steps[i].draft_entries);
        mem_free(e->steps[i].begun);
    }
    mem_free(e->running);
    mem_free(e->members);
    mem_free(e->choices);
    mem_free(e->drawn);
    mem_free(e->paths);
    mem_free(e->tails);
    mem_free(e->candidates);
    mem_unmap_pages(e->own_taps, e->taps_bytes);
    mem_free(e->taps_held);
    mem_free(e->context);
    mem_free(e->feed);
    mem_free(e->trees);
    size_t n = e->model ? (size_t)e->n_samplers * e->model->vocab_size : 0;
    mem_unmap_pages(e->work, n * sizeof(*e->work));
    mem_unmap_pages(e->work_ids, n * sizeof(*e->work_ids));
    strbuf_done(&e->text);
    strbuf_done(&e->piece);
    model_file_free(e->file); /* e->model points into it */
    mem_free(e);
    return NULL;
}

/* ---- what it says about itself -------------------------------------------------------------- */

const struct model_config *engine_model_config(const struct engine *e)
{
    return e->model;
}

const struct engine_config *engine_get_config(const struct engine *e)
{
    return &e->cfg;
}

const struct tokenizer *engine_tokenizer(const struct engine *e)
{
    return e->tokenizer;
}

int engine_chat_format(const struct engine *e, enum chat_format *ret, struct error *err)
{
    return chat_format_detect(model_file_chat_template(e->file), ret, err);
}

const char *engine_model_name(const struct engine *e)
{
    return model_file_name(e->file);
}

const struct drafter_config *engine_drafter_config(const struct engine *e)
{
    return e->own_drafter ? drafter_get_config(e->own_drafter) : NULL;
}

const char *engine_drafter_name(const struct engine *e)
{
    return e->own_drafter ? model_file_name(drafter_get_file(e->own_drafter)) : NULL;
}

const char *engine_device(const struct engine *e)
{
    return e->space.backend->name;
}

const char *engine_device_note(const struct engine *e)
{
    return e->device_note[0] ? e->device_note : NULL;
}

const char *engine_class(const struct engine *e)
{
    return e->class_name;
}

void engine_memory(const struct engine *e, struct backend_memory *ret)
{
    e->space.backend->describe(e->space.model, ret, NULL, NULL);
    ret->scratch_bytes += e->logits_bytes + e->taps_bytes;
    if (!e->own_drafter)
        return;
    struct backend_memory d;
    drafter_memory(e->own_drafter, &d);
    ret->weight_bytes += d.weight_bytes;
    ret->packed_bytes += d.packed_bytes;
    ret->kv_bytes += d.kv_bytes;
    ret->scratch_bytes += d.scratch_bytes;
}

void engine_timing(const struct engine *e, struct engine_load_timing *ret)
{
    *ret = e->timing;
}

const struct dk_ops *engine_ops(const struct engine *e)
{
    return e->ops;
}

void engine_get_stats(const struct engine *e, struct engine_stats *ret)
{
    *ret = e->stats;
    ret->running = e->n_running;
    ret->waiting = e->n_waiting;
    ret->parked = e->n_parked;
    ret->kv_blocks = kv_pool_total(e->space.pool);
    ret->kv_blocks_free = kv_pool_available(e->space.pool) - kv_pool_cached(e->space.pool);
    ret->kv_blocks_cached = kv_pool_cached(e->space.pool);
}
