/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run needs before its first step: data split, draft vocabulary, shape, target, first
 * values, or all of it from the newest checkpoint; and whether it fits into the memory that it may
 * use.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "train/fit_internal.h"
#include "train/from_drafter.h"
#include "train/vocabulary.h"

void fit_say(const struct fit *f, const char *fmt, ...)
{
    va_list ap;
    if (f->o.quiet)
        return;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

/* ---- options --------------------------------------------------------------------------------- */

static unsigned cpus(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > (int)TRAIN_MAX_THREADS ? TRAIN_MAX_THREADS : (unsigned)n;
}

static int between(const char *name, double v, double lo, double hi, struct error *err)
{
    return v >= lo && v <= hi ? 0
                              : ERR(err, INVALID, "%s %g: must be from %g to %g", name, v, lo, hi);
}

static int resolve(struct fit *f, struct error *err)
{
    struct fit_options *o = &f->o;
    if (!o->target || !o->out || !o->n_data)
        return ERR(err, INVALID, "fit needs a target model, data, and a folder for its results");
    if (o->threads == 0)
        o->threads = cpus();
    if (o->gamma == 0)
        o->gamma = (float)o->window / 2;
    if (o->norm_lr == 0)
        o->norm_lr = 5 * o->lr;
    if (o->p1_only == UINT64_MAX)
        o->p1_only = o->steps * 3 / 10;
    const struct {
        const char *name;
        double v, lo, hi;
    } rules[] = {
        {"--window", o->window, 2, DRAFT_MAX_WINDOW},
        {"--steps", (double)o->steps, 1, 1e12},
        {"--batch", o->batch, 1, 64},
        {"--anchors", o->anchors, 1, 65536},
        {"--max-len", o->max_len, 2, 1 << 20},
        {"--eta", (double)o->eta, 0, 2},
        {"--gamma", (double)o->gamma, 1e-3, 1e6},
        {"--p2-weight", (double)o->p2_weight, 0, 1e3},
        {"--distill", (double)o->distill, 0, 1},
        {"--distill-top", o->distill_top, 1, 256},
        {"--lr", (double)o->lr, 0, 10},
        {"--norm-lr", (double)o->norm_lr, 0, 10},
        {"--beta1", (double)o->beta1, 0, 0.99999},
        {"--beta2", (double)o->beta2, 0, 0.99999},
        {"--weight-decay", (double)o->weight_decay, 0, 10},
        {"--clip", (double)o->clip, 0, 1e9},
        {"--warmup", (double)o->warmup, 0, 1},
        {"--average", (double)o->average, 0, 0.9999999},
        {"--held-out", (double)o->held_out, 0, 0.9},
        {"--threads", o->threads, 1, TRAIN_MAX_THREADS},
        {"--report-every", o->report_every, 1, 1e9},
    };
    int r = 0;
    if (o->p1_only > o->steps && o->objective == FIT_DEDIT)
        r = ERR(err, INVALID, "--p1-only %" PRIu64 ": must be at most --steps %" PRIu64, o->p1_only,
                o->steps);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(rules); i++)
        r = between(rules[i].name, rules[i].v, rules[i].lo, rules[i].hi, err);
    return r;
}

/* ---- data ------------------------------------------------------------------------------------ */

static int load_data(struct fit *f, uint32_t vocab, struct error *err)
{
    const struct data_options d = {.vocab_size = vocab, .max_len = f->o.max_len};
    int r = data_set_open(f->o.data, f->o.n_data, &d, &f->data, err);
    if (r < 0)
        return r;
    const uint64_t n = data_set_size(f->data);
    f->train = mem_array(n ? n : 1, sizeof(*f->train));
    f->held = mem_array(n ? n : 1, sizeof(*f->held));
    if (!f->train || !f->held)
        return ERR_NOMEM(err);
    for (uint64_t i = 0; i < n; i++) {
        struct data_sample s;
        data_set_sample(f->data, i, &s);
        if (data_sample_held_out(&s, (double)f->o.held_out))
            f->held[f->n_held++] = (uint32_t)i;
        else
            f->train[f->n_train++] = (uint32_t)i;
    }
    if (f->n_train == 0)
        return ERR(err, INVALID, "--held-out %g leaves no conversation to train on",
                   (double)f->o.held_out);
    struct data_set_info info;
    data_set_get_info(f->data, &info);
    fit_say(f,
            "data: %" PRIu64 " conversations, %" PRIu64 " tokens, %" PRIu64
            " of them supervised; %u held out",
            info.n, info.n_tokens, info.n_supervised, f->n_held);
    return 0;
}

/* ---- shape ----------------------------------------------------------------------------------- */

static int choose_taps(const struct fit_options *o, struct train_shape *s, struct error *err)
{
    struct drafter_config d = {0};
    s->n_taps = o->n_taps;
    memcpy(s->tap_layers, o->taps, sizeof(s->tap_layers));
    for (uint32_t i = 0; i < s->n_taps; i++)
        if (o->taps[i] >= s->target_layers || (i && o->taps[i] <= o->taps[i - 1]))
            return ERR(err, INVALID,
                       "--taps: layer %" PRIu32 ": the model has layers 0 to %" PRIu32
                       ", and they must ascend",
                       o->taps[i], s->target_layers - 1);
    if (s->n_taps)
        return 0;
    uint32_t n = s->target_layers > 8 ? 5 : s->target_layers > 3 ? s->target_layers - 3 : 1;
    int r = drafter_default_taps(&d, n, s->target_layers, o->target, err);
    s->n_taps = d.n_taps;
    memcpy(s->tap_layers, d.tap_layers, sizeof(s->tap_layers));
    return r;
}

/* What options say of heads and of the draft vocabulary, in their words. */
static int check_sizes(const struct fit_options *o, const struct train_shape *s, struct error *err)
{
    if (s->heads % s->kv_heads)
        return ERR(err, INVALID,
                   "--heads %" PRIu32 ": must be a multiple of --kv-heads, which is %" PRIu32 "%s",
                   s->heads, s->kv_heads, o->kv_heads ? "" : ", the model's");
    if (o->draft_vocab > s->vocab)
        return ERR(err, INVALID,
                   "--draft-vocab %" PRIu32 ": the model has %" PRIu32 " tokens; 0: all of them",
                   o->draft_vocab, s->vocab);
    return 0;
}

static int choose_shape(struct fit *f, struct train_shape *s, uint32_t **ids, struct error *err)
{
    const struct fit_options *o = &f->o;
    const struct model_config *c = model_file_config(f->target);
    double coverage;
    *s = (struct train_shape){
        .layers = o->layers ? o->layers : 2,
        .hidden = c->hidden,
        .ffn = o->ffn ? o->ffn : c->ffn,
        .heads = o->heads ? o->heads : c->n_heads,
        .kv_heads = o->kv_heads ? o->kv_heads : c->n_kv_heads,
        .head_dim = o->head_dim ? o->head_dim : c->head_dim,
        .target_hidden = c->hidden,
        .target_layers = c->n_layers,
        .window = o->window,
        .mask_token = o->mask_token,
        .vocab = c->vocab_size,
        .eps = c->rms_eps,
        .rope_theta = c->rope_theta,
        .max_position = o->max_len + o->window,
    };
    int r = check_sizes(o, s, err);
    if (r == 0)
        r = choose_taps(o, s, err);
    if (r == 0 && o->mask_token == FIT_MASK_AUTO)
        r = vocabulary_mask(f->data, c, &s->mask_token, err);
    if (r == 0)
        r = vocabulary_choose(f->data, c->vocab_size, o->draft_vocab, ids, &s->draft_vocab,
                              &coverage, err);
    if (r == 0)
        fit_say(f, "draft vocabulary: %" PRIu32 " tokens cover %.2f %% of the supervised ones",
                s->draft_vocab, 100 * coverage);
    return r;
}

/* ---- a fresh state, or the newest ------------------------------------------------------------ */

static void skipped(void *arg, const char *why)
{
    fit_say(arg, "passed over: %s", why);
}

/* The state's parameters become the model's. */
static int adopt(struct fit *f, struct error *err)
{
    int r = train_model_init(&f->m, &f->state.shape, f->target, f->state.target_ids, err);
    if (r < 0)
        return r;
    mem_free(f->m.p);
    f->m.p = f->state.param;
    return 0;
}

static int fresh(struct fit *f, struct error *err)
{
    struct train_shape s;
    _cleanup_free_ uint32_t *ids = NULL;
    int r = choose_shape(f, &s, &ids, err);
    if (r == 0)
        r = train_shape_check(&s, err);
    if (r < 0)
        return r;
    f->state.shape = s;
    train_layout_init(&f->state.layout, &s);
    r = train_state_alloc(&f->state, f->o.average > 0, err);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < s.draft_vocab; i++)
        f->state.target_ids[i] = ids ? ids[i] : i;
    r = adopt(f, err);
    if (r == 0)
        r = train_init(&f->m, f->target, f->o.init == FIT_INIT_TARGET, f->o.seed, err);
    if (r == 0 && f->state.average)
        memcpy(f->state.average, f->state.param, f->state.layout.total * sizeof(float));
    snprintf(f->state.target, sizeof(f->state.target), "%s", model_file_name(f->target));
    return r;
}

static int from_drafter(struct fit *f, struct error *err)
{
    int r = state_from_drafter(f->o.from, f->target, f->o.average > 0, &f->state, err);
    if (r == 0)
        r = recipe_shape(&f->o, &f->state.shape, f->o.from, err);
    f->state.shape.window = f->o.window;
    f->state.shape.max_position = f->o.max_len + f->o.window;
    if (r == 0)
        fit_say(f, "starting from the drafter %s", f->o.from);
    return r < 0 ? r : adopt(f, err);
}

/* Weights of another run, with a fresh schedule and moments. */
static int from_other(struct fit *f, struct error *err)
{
    struct train_state s = {0};
    int r = checkpoint_open(f->o.from, &s, err);
    if (r < 0)
        return r;
    const size_t bytes = s.layout.total * sizeof(float);
    if (s.average)
        memcpy(s.param, s.average, bytes);
    memset(s.m, 0, bytes);
    memset(s.v, 0, bytes);
    if (f->o.average > 0 && !s.average) {
        s.average = mem_calloc(s.layout.total, sizeof(float));
        if (!s.average)
            r = ERR_NOMEM(err);
        else
            memcpy(s.average, s.param, bytes);
    } else if (!(f->o.average > 0)) {
        mem_free(s.average);
        s.average = NULL;
    }
    s.step = s.updates = 0;
    s.shape.window = f->o.window;
    s.shape.max_position = f->o.max_len + f->o.window;
    f->state = s;
    if (r == 0)
        r = recipe_shape(&f->o, &s.shape, f->o.from, err);
    return r < 0 ? r : adopt(f, err);
}

static int resume(struct fit *f, struct error *err)
{
    char *path = NULL;
    int r = checkpoint_newest(f->o.out, &f->state, &path, skipped, f, err);
    if (r < 0)
        return r;
    if (f->o.restart)
        r = ERR(err, INVALID,
                "%s is there: not gone on with, as --fresh asks; give an empty folder", path);
    if (r == 0)
        r = recipe_same(f->state.recipe, f->recipe, path, err);
    if (r == 0)
        r = recipe_shape(&f->o, &f->state.shape, path, err);
    if (r == 0 && strcmp(f->state.target, model_file_name(f->target)) != 0)
        fit_say(f, "%s was trained for %s, the model is now %s", path, f->state.target,
                model_file_name(f->target));
    if (r == 0)
        fit_say(f, "resuming at step %" PRIu64 " from %s", f->state.step, path);
    mem_free(path);
    if (r == 0)
        r = adopt(f, err);
    return r;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* The path without its last part and the slashes before that; its length. */
static size_t cut_last(char *path)
{
    size_t n = strlen(path);
    while (n && path[n - 1] == '/')
        n--;
    while (n && path[n - 1] != '/')
        n--;
    while (n && path[n - 1] == '/')
        n--;
    path[n] = '\0';
    return n;
}

/* How much of a path is there already. */
static size_t part_there(const char *path)
{
    struct stat st;
    _cleanup_free_ char *part = mem_strdup(path);
    size_t n = part ? strlen(part) : 0;
    while (n && stat(part, &st) < 0)
        n = cut_last(part);
    return n;
}

/* Takes back the folders that a run which is refused has made, as far as they are empty. */
static void drop_folder(const struct fit *f)
{
    _cleanup_free_ char *path = f->dir_fd >= 0 ? mem_strdup(f->o.out) : NULL;
    for (size_t n = path ? strlen(path) : 0; n > f->was && rmdir(path) == 0;)
        n = cut_last(path);
}

/* The run's folder, which nobody else may write to meanwhile. */
static int open_folder(struct fit *f, struct error *err)
{
    f->was = part_there(f->o.out);
    int r = folders_make(f->o.out, 0777, err);
    if (r < 0)
        return r;
    f->dir_fd = folder_lock(f->o.out, "another run", err);
    return f->dir_fd < 0 ? f->dir_fd : 0;
}

static int open_run(struct fit *f, struct error *err)
{
    struct data_set_info info;
    int r = resolve(f, err);
    if (r == 0)
        r = model_file_open(f->o.target, &f->target, err);
    if (r == 0 && f->o.max_len > model_file_config(f->target)->max_position)
        f->o.max_len = model_file_config(f->target)->max_position;
    if (r == 0)
        r = load_data(f, model_file_config(f->target)->vocab_size, err);
    if (r < 0)
        return r;
    r = open_folder(f, err);
    if (r < 0)
        return r;
    data_set_get_info(f->data, &info);
    f->recipe = recipe_of(&f->o, info.hash);
    if (!f->recipe)
        return ERR_NOMEM(err);
    bool first = false, drafter = false;
    r = resume(f, err);
    if (r == DEDIT_E_NOT_FOUND) {
        r = f->o.from ? drafter_is(f->o.from, &drafter, err) : 0;
        first = !f->o.from || drafter;
        if (r == 0)
            r = drafter ? from_drafter(f, err) : f->o.from ? from_other(f, err) : fresh(f, err);
    }
    if (r < 0)
        return r;
    json_decref(f->state.recipe);
    f->state.recipe = json_incref(f->recipe);
    r = train_par_init(&f->par, f->o.tier, f->o.threads, f->o.bf16, err);
    if (r == 0)
        r = fit_taps(f, err);
    if (r == 0 && first)
        r = fit_measure(f, err);
    if (r == 0 && drafter)
        state_unfold_taps(&f->state);
    if (r == 0)
        r = train_work_init(&f->w, &f->m, &f->par, f->o.batch, f->o.batch * f->o.max_len,
                            f->o.batch * f->o.anchors, f->o.max_len, err);
    if (r == 0)
        r = fit_buffers(f, err);
    if (r == 0)
        r = train_order_init(&f->order, f->o.seed, f->n_train, err);
    if (r == 0)
        r = metrics_open(&f->metrics, f->o.out, f->state.step, f->o.quiet, err);
    if (r == 0)
        f->metrics.peak = metrics_peak(&f->par);
    return r;
}

int fit_open(struct fit *f, const struct fit_options *o, struct error *err)
{
    memset(f, 0, sizeof(*f));
    f->dir_fd = -1;
    f->o = *o;
    int r = open_run(f, err);
    if (r < 0) {
        drop_folder(f);
        fit_close(f);
    }
    return r;
}

void fit_close(struct fit *f)
{
    metrics_close(&f->metrics);
    for (uint32_t i = 0; i < f->o.batch; i++) {
        if (f->masks)
            mem_free(f->masks[i]);
        if (f->anchors)
            mem_free(f->anchors[i]);
        if (f->features)
            mem_unmap_pages(f->features[i], fit_feature_bytes(f));
        if (f->soft)
            mem_free(f->soft[i]);
        if (f->soft_ids)
            mem_free(f->soft_ids[i]);
    }
    mem_free(f->want);
    mem_free(f->items);
    mem_free(f->masks);
    mem_free(f->anchors);
    mem_free(f->features);
    mem_free(f->soft);
    mem_free(f->soft_ids);
    train_work_done(&f->w);
    if (f->m.p == f->state.param)
        f->m.p = NULL;
    train_model_done(&f->m);
    train_state_done(&f->state);
    train_par_done(&f->par);
    train_order_done(&f->order);
    taps_free(f->taps);
    json_decref(f->recipe);
    data_set_free(f->data);
    mem_free(f->train);
    mem_free(f->held);
    model_file_free(f->target);
    fd_close(f->dir_fd); /* gives the lock back */
    memset(f, 0, sizeof(*f));
    f->dir_fd = -1;
}
