/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train fit and widen: their options.  What they do stands in fit.c. */
#include "train/fit.h"

#include <stdio.h>
#include <string.h>

#include "train/cli.h"

enum {
    OPT_OUTPUT = 300,
    OPT_FROM,
    OPT_FRESH,
    OPT_LAYERS,
    OPT_FFN,
    OPT_HEADS,
    OPT_KV_HEADS,
    OPT_HEAD_DIM,
    OPT_TAPS,
    OPT_WINDOW,
    OPT_DRAFT_VOCAB,
    OPT_MASK_TOKEN,
    OPT_INIT,
    OPT_OBJECTIVE,
    OPT_VISIBILITY,
    OPT_MIX,
    OPT_ETA,
    OPT_GAMMA,
    OPT_P2_WEIGHT,
    OPT_DISTILL,
    OPT_DISTILL_TOP,
    OPT_STEPS,
    OPT_P1_ONLY,
    OPT_BATCH,
    OPT_ANCHORS,
    OPT_MAX_LEN,
    OPT_LR,
    OPT_NORM_LR,
    OPT_BETA1,
    OPT_BETA2,
    OPT_WEIGHT_DECAY,
    OPT_CLIP,
    OPT_WARMUP,
    OPT_AVERAGE,
    OPT_HELD_OUT,
    OPT_SEED,
    OPT_CACHE,
    OPT_CACHE_SIZE,
    OPT_MEMORY_LIMIT,
    OPT_BF16,
    OPT_CHECKPOINT_EVERY,
    OPT_KEEP,
    OPT_REPORT_EVERY,
    OPT_QUIET,
};

struct fit_command {
    struct engine_options engine;
    struct fit_options o;
};

static const struct option_def common_opts[] = {
    {OPT_OUTPUT, "output", "FOLDER",
     "checkpoints and metrics.csv go there; a run that is\nthere is gone on with (default: none, it "
     "must be\ngiven)"},
    {OPT_FRESH, "fresh", NULL, "refuse a folder that has a run, rather than go on"},
    {ENGINE_OPT_MODEL, "model", "PATH",
     "the model that is drafted for: a .gguf file or a\nHugging Face folder (default: the default "
     "model in\nthe cache)"},
    {ENGINE_OPT_DTYPE, "dtype", "T",
     "its weights as filed, or converted while loading:\nfile, bf16 or f32 (default: file)"},
    {ENGINE_OPT_TIER, "tier", "T",
     "c, avx2, avx512 or amx (default: DEDIT_CPU_TIER,\nelse the best that this machine has)"},
    {ENGINE_OPT_THREADS, "threads", "N", "(default: the CPUs that this process may use)"},
    {OPT_BF16, "bf16", NULL,
     "products of factors rounded to BF16 where that is\nfast (AMX, AVX-512 BF16); else F32"},
    {OPT_SEED, "seed", "N", "(default: 0)"},
    {OPT_QUIET, "quiet", NULL, "no progress on standard error"},
    {0, NULL, NULL, NULL},
};
static const struct option_def shape_opts[] = {
    {OPT_LAYERS, "layers", "N", "(default: 2)"},
    {OPT_FFN, "ffn", "N", "inner width (default: the model's)"},
    {OPT_HEADS, "heads", "N", "of queries (default: the model's)"},
    {OPT_KV_HEADS, "kv-heads", "N", "(default: the model's)"},
    {OPT_HEAD_DIM, "head-dim", "N", "(default: the model's)"},
    {OPT_TAPS, "taps", "L,L,...",
     "layers of the model whose output the drafter sees,\nfrom 0 (default: five, spread evenly)"},
    {OPT_WINDOW, "window", "W", "rows of a block, the anchor included, 2 to 64\n(default: 8)"},
    {OPT_DRAFT_VOCAB, "draft-vocab", "N",
     "draft the N tokens that answers have most often;\n0: all (default: 0)"},
    {OPT_MASK_TOKEN, "mask-token", "ID", "(default: one that the data never have)"},
    {OPT_INIT, "init", "I", "target (its last layers) or random (default: target)"},
    {OPT_FROM, "from", "PATH",
     "start from the weights of a drafter or a checkpoint,\nwith a fresh schedule (default: none)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def objective_opts[] = {
    {OPT_OBJECTIVE, "objective", "O",
     "dedit (proposals and edits) or dflash (proposals\nalone) (default: dedit)"},
    {OPT_VISIBILITY, "visibility", "V",
     "of edit passes: bidirectional or causal\n(default: bidirectional)"},
    {OPT_MIX, "mix", "M",
     "what edit passes are shown: mix (ProposalMix) or\nproposals as they are (default: mix)"},
    {OPT_ETA, "eta", "X", "confidence from which mix shows the truth\n(default: 0.5)"},
    {OPT_GAMMA, "gamma", "X", "decay of weights along the block (default: W / 2)"},
    {OPT_P2_WEIGHT, "p2-weight", "X", "of the edit pass's loss (default: 1)"},
    {OPT_DISTILL, "distill", "X",
     "share of the model's own probabilities in the\nlabels, 0 to 1 (default: 0)"},
    {OPT_DISTILL_TOP, "distill-top", "N", "how many of them (default: 16)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def schedule_opts[] = {
    {OPT_STEPS, "steps", "N", "(default: 5000)"},
    {OPT_P1_ONLY, "p1-only", "N",
     "first steps without edits, at most all\n(default: 30 % of them)"},
    {OPT_ANCHORS, "anchors", "N", "blocks of a conversation (default: 32)"},
    {OPT_LR, "lr", "X", "highest learning rate (default: 1.3e-3)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def widen_opts[] = {
    {OPT_FROM, "from", "PATH",
     "a checkpoint, or a run's folder: its newest\n(default: none, it must be given)"},
    {OPT_WINDOW, "window", "W", "rows of a block, at most 64 (default: twice those it\nhas)"},
    {OPT_STEPS, "steps", "N", "(default: a quarter of those it had, at least 100)"},
    {OPT_P1_ONLY, "p1-only", "N", "first steps without edits (default: 0)"},
    {OPT_ANCHORS, "anchors", "N",
     "blocks of a conversation (default: 32 less the factor\nby which blocks are longer)"},
    {OPT_LR, "lr", "X", "highest learning rate (default: 3.25e-4)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def step_opts[] = {
    {OPT_BATCH, "batch", "N", "conversations of a step (default: 8)"},
    {OPT_MAX_LEN, "max-len", "N",
     "tokens of one that are used, at most the model's\npositions (default: 1024)"},
    {OPT_NORM_LR, "norm-lr", "X", "of norm gains (default: 5 times lr)"},
    {OPT_BETA1, "beta1", "X", "(default: 0.9)"},
    {OPT_BETA2, "beta2", "X", "(default: 0.95)"},
    {OPT_WEIGHT_DECAY, "weight-decay", "X", "(default: 0)"},
    {OPT_CLIP, "clip", "X", "norm that gradients are cut to (default: 1)"},
    {OPT_WARMUP, "warmup", "X", "share of the steps (default: 0.04)"},
    {OPT_AVERAGE, "average", "X", "decay of averaged weights; 0: none (default: 0.999)"},
    {OPT_HELD_OUT, "held-out", "X", "share of the data never trained on (default: 0.05)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def run_opts[] = {
    {OPT_CACHE, "cache", "FILE",
     "keep the model's features there\n(default: none, they are computed each time)"},
    {OPT_CACHE_SIZE, "cache-size", "BYTES", "of it, at most; 0: what is needed (default: 0)"},
    {OPT_MEMORY_LIMIT, "memory-limit", "BYTES", "refuse to start above; 0: none (default: 0)"},
    {OPT_CHECKPOINT_EVERY, "checkpoint-every", "SECONDS", "(default: 600)"},
    {OPT_KEEP, "keep", "N", "checkpoints that are kept (default: 2)"},
    {OPT_REPORT_EVERY, "report-every", "N", "steps of a row of metrics.csv (default: 10)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const fit_groups[] = {
    common_opts, shape_opts, objective_opts, schedule_opts, step_opts, run_opts, NULL};
static const struct option_def *const widen_groups[] = {common_opts, widen_opts, objective_opts,
                                                        step_opts,   run_opts,   NULL};

/* "a" or "b". */
static int choose(const char *arg, const char *a, const char *b, unsigned *ret, struct error *err)
{
    if (strcmp(arg, a) != 0 && strcmp(arg, b) != 0)
        return ERR(err, INVALID, "\"%s\" is not %s or %s", arg, a, b);
    *ret = strcmp(arg, b) == 0;
    return 0;
}

/* 1 when id is one of the shape and was taken. */
static int set_shape(struct fit_options *o, int id, const char *arg, struct error *err)
{
    unsigned v = 0;
    size_t n;
    int r;
    switch (id) {
    case OPT_LAYERS:
        r = option_u32(arg, 1, DRAFTER_MAX_LAYERS, &o->layers, err);
        break;
    case OPT_FFN:
        r = option_u32(arg, 1, 1u << 20, &o->ffn, err);
        break;
    case OPT_HEADS:
        r = option_u32(arg, 1, 1u << 12, &o->heads, err);
        break;
    case OPT_KV_HEADS:
        r = option_u32(arg, 1, 1u << 12, &o->kv_heads, err);
        break;
    case OPT_HEAD_DIM:
        r = option_u32(arg, 2, 1u << 12, &o->head_dim, err);
        break;
    case OPT_TAPS:
        r = option_u32_list(arg, 0, o->taps, DRAFTER_MAX_TAPS, &n, err);
        if (r == 0)
            o->n_taps = (uint32_t)n;
        break;
    case OPT_WINDOW:
        r = option_u32(arg, 2, 64, &o->window, err);
        break;
    case OPT_DRAFT_VOCAB:
        r = option_u32(arg, 0, 1u << 24, &o->draft_vocab, err);
        break;
    case OPT_MASK_TOKEN:
        r = option_u32(arg, 0, UINT32_MAX - 1, &o->mask_token, err);
        break;
    case OPT_INIT:
        r = choose(arg, "target", "random", &v, err);
        o->init = v ? FIT_INIT_RANDOM : FIT_INIT_TARGET;
        break;
    case OPT_FROM:
        o->from = arg;
        return 1;
    default:
        return 0;
    }
    return r < 0 ? r : 1;
}

static int set_objective(struct fit_options *o, int id, const char *arg, struct error *err)
{
    unsigned v = 0;
    int r;
    switch (id) {
    case OPT_OBJECTIVE:
        r = choose(arg, "dedit", "dflash", &v, err);
        o->objective = v ? FIT_DFLASH : FIT_DEDIT;
        break;
    case OPT_VISIBILITY:
        r = choose(arg, "bidirectional", "causal", &v, err);
        o->visibility = v ? FIT_CAUSAL : FIT_BIDIRECTIONAL;
        break;
    case OPT_MIX:
        r = choose(arg, "mix", "proposals", &v, err);
        o->mix = v ? FIT_PROPOSALS : FIT_PROPOSAL_MIX;
        break;
    case OPT_ETA:
        r = option_float_in(arg, 0, 1, &o->eta, err);
        break;
    case OPT_GAMMA:
        r = option_float_in(arg, 1e-3, 1e6, &o->gamma, err);
        break;
    case OPT_P2_WEIGHT:
        r = option_float_in(arg, 0, 1e3, &o->p2_weight, err);
        break;
    case OPT_DISTILL:
        r = option_float_in(arg, 0, 1, &o->distill, err);
        break;
    case OPT_DISTILL_TOP:
        r = option_u32(arg, 1, 1024, &o->distill_top, err);
        break;
    default:
        return 0;
    }
    return r < 0 ? r : 1;
}

static int set_step(struct fit_options *o, int id, const char *arg, struct error *err)
{
    int r;
    switch (id) {
    case OPT_STEPS:
        r = option_u64(arg, &o->steps, err);
        break;
    case OPT_P1_ONLY:
        r = option_u64(arg, &o->p1_only, err);
        break;
    case OPT_BATCH:
        r = option_u32(arg, 1, 1u << 16, &o->batch, err);
        break;
    case OPT_ANCHORS:
        r = option_u32(arg, 1, 1u << 16, &o->anchors, err);
        break;
    case OPT_MAX_LEN:
        r = option_u32(arg, 8, 1u << 20, &o->max_len, err);
        break;
    case OPT_LR:
        r = option_float_in(arg, 0, 10, &o->lr, err);
        break;
    case OPT_NORM_LR:
        r = option_float_in(arg, 0, 1e3, &o->norm_lr, err);
        break;
    case OPT_BETA1:
        r = option_float_in(arg, 0, 0.999999, &o->beta1, err);
        break;
    case OPT_BETA2:
        r = option_float_in(arg, 0, 0.999999, &o->beta2, err);
        break;
    case OPT_WEIGHT_DECAY:
        r = option_float_in(arg, 0, 1e3, &o->weight_decay, err);
        break;
    case OPT_CLIP:
        r = option_float_in(arg, 0, 1e9, &o->clip, err);
        break;
    case OPT_WARMUP:
        r = option_float_in(arg, 0, 1, &o->warmup, err);
        break;
    case OPT_AVERAGE:
        r = option_float_in(arg, 0, 0.9999999, &o->average, err);
        break;
    case OPT_HELD_OUT:
        r = option_float_in(arg, 0, 0.9, &o->held_out, err);
        break;
    default:
        return 0;
    }
    return r < 0 ? r : 1;
}

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct fit_command *f = ctx;
    struct fit_options *o = &f->o;
    int r = engine_options_set(&f->engine, id, arg, err);
    if (r == 0)
        r = set_shape(o, id, arg, err);
    if (r == 0)
        r = set_objective(o, id, arg, err);
    if (r == 0)
        r = set_step(o, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    switch (id) {
    case OPT_OUTPUT:
        o->out = arg;
        return 0;
    case OPT_FRESH:
        o->restart = true;
        return 0;
    case OPT_SEED: /* in a checkpoint's JSON it has a sign, as in the data's */
        r = option_u64(arg, &o->seed, err);
        return r == 0 && o->seed > INT64_MAX
                   ? ERR(err, INVALID, "at most %lld", (long long)INT64_MAX)
                   : r;
    case OPT_BF16:
        o->bf16 = true;
        return 0;
    case OPT_QUIET:
        o->quiet = true;
        return 0;
    case OPT_CACHE:
        o->cache = arg;
        return 0;
    case OPT_CACHE_SIZE:
        return option_size(arg, &o->cache_bytes, err);
    case OPT_MEMORY_LIMIT:
        return option_size(arg, &o->memory_limit, err);
    case OPT_CHECKPOINT_EVERY:
        return option_u32(arg, 1, 1u << 30, &o->checkpoint_every, err);
    case OPT_KEEP:
        return option_u32(arg, 1, 1u << 20, &o->keep, err);
    case OPT_REPORT_EVERY:
        return option_u32(arg, 1, 1u << 30, &o->report_every, err);
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

static int run_it(const struct train_command *c, int argc, char **argv, bool widen,
                  int (*go)(const struct fit_options *o, struct error *err))
{
    struct fit_command f;
    struct error err = {0};
    char model[4096];
    int first, status;
    engine_options_init(&f.engine);
    if (widen)
        widen_options_init(&f.o);
    else
        fit_options_init(&f.o);
    if (train_options(c, argc, argv, &f, &first, &status) < 0)
        return status;
    if (!f.o.out || first == argc || (widen && !f.o.from))
        return train_fail(c, TRAIN_USAGE, "--output FOLDER, %sand files of data are needed",
                          widen ? "--from PATH " : "");
    if (engine_options_tier(&f.engine, &err) < 0 ||
        train_model_path(&f.engine, model, sizeof(model), &err) < 0)
        return train_error(c, &err);
    f.o.target = model;
    f.o.data = (const char *const *)(argv + first);
    f.o.n_data = (uint32_t)(argc - first);
    f.o.threads = f.engine.config.n_threads;
    f.o.tier = f.engine.config.tier;
    f.o.dtype = f.engine.config.dtype;
    f.o.stop = &train_stop;
    train_catch_signals();
    int r = go(&f.o, &err);
    if (r < 0)
        return train_error(c, &err);
    return r == 1 ? TRAIN_INTERRUPTED : TRAIN_OK;
}

static int run_fit(const struct train_command *c, int argc, char **argv)
{
    return run_it(c, argc, argv, false, train_fit);
}

static int run_widen(const struct train_command *c, int argc, char **argv)
{
    return run_it(c, argc, argv, true, train_widen);
}

const struct train_command train_fit_command = {
    .name = "fit",
    .args = "DATA...",
    .summary = "Trains a drafter on data that its model wrote (files or folders of JSON lines).",
    .groups = fit_groups,
    .set = set,
    .run = run_fit,
};
const struct train_command train_widen_command = {
    .name = "widen",
    .args = "DATA...",
    .summary = "Trains a drafter further, with a longer block.",
    .groups = widen_groups,
    .set = set,
    .run = run_widen,
};
