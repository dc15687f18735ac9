/* SPDX-License-Identifier: Apache-2.0 */
/* Options: defaults, and those that a run may not change when it resumes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "train/fit_internal.h"

void fit_options_init(struct fit_options *o)
{
    *o = (struct fit_options){
        .window = 8,
        .mask_token = FIT_MASK_AUTO,
        .eta = 0.5f,
        .gamma = 0,
        .p2_weight = 1,
        .distill_top = 16,
        .steps = 5000,
        .p1_only = UINT64_MAX,
        .batch = 8,
        .anchors = 32,
        .max_len = 1024,
        .lr = 1.3e-3f,
        .norm_lr = 0,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .clip = 1,
        .warmup = 0.04f,
        .average = 0.999f,
        .held_out = 0.05f,
        .tier = dk_tier_best(),
        .dtype = BACKEND_DTYPE_FILE,
        .checkpoint_every = 600,
        .keep = 2,
        .report_every = 10,
    };
}

void widen_options_init(struct fit_options *o)
{
    fit_options_init(o);
    o->window = 0;
    o->steps = WIDEN_DEFAULT;
    o->anchors = WIDEN_DEFAULT;
    o->lr = -1;
}

const char *train_dtype_name(enum backend_dtype t)
{
    switch (t) {
    case BACKEND_DTYPE_BF16:
        return "bf16";
    case BACKEND_DTYPE_F32:
        return "f32";
    case BACKEND_DTYPE_Q8_0:
        return "q8_0";
    case BACKEND_DTYPE_FILE:
    case BACKEND_DTYPE_AUTO:
        break;
    }
    return "file";
}

json_t *recipe_of(const struct fit_options *o, uint64_t data_hash)
{
    char hash[17];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)data_hash);
    return json_pack(
        "{ss sI sI sI sI ss ss ss sf sf sf sf sI sI sI sI sf sf sf sf sf sf sf sf sf sb ss ss}",
        "data", hash, "window", (json_int_t)o->window, "seed", (json_int_t)o->seed, "steps",
        (json_int_t)o->steps, "p1_only", (json_int_t)o->p1_only, "objective",
        o->objective == FIT_DFLASH ? "dflash" : "dedit", "visibility",
        o->visibility == FIT_CAUSAL ? "causal" : "bidirectional", "mix",
        o->mix == FIT_PROPOSALS ? "proposals" : "proposal-mix", "eta", (double)o->eta, "gamma",
        (double)o->gamma, "p2_weight", (double)o->p2_weight, "distill", (double)o->distill,
        "distill_top", (json_int_t)(o->distill > 0 ? o->distill_top : 0), "batch",
        (json_int_t)o->batch, "anchors", (json_int_t)o->anchors, "max_len", (json_int_t)o->max_len,
        "lr", (double)o->lr, "norm_lr", (double)o->norm_lr, "beta1", (double)o->beta1, "beta2",
        (double)o->beta2, "weight_decay", (double)o->weight_decay, "clip", (double)o->clip,
        "warmup", (double)o->warmup, "average", (double)o->average, "held_out", (double)o->held_out,
        "bf16", (int)o->bf16, "dtype", train_dtype_name(o->dtype), "init",
        o->init == FIT_INIT_RANDOM ? "random" : "target");
}

/* Options are floats: no more digits than those have. */
static void value_text(const json_t *v, char *ret, size_t size)
{
    char *text = json_is_real(v) ? NULL : v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    if (json_is_real(v))
        snprintf(ret, size, "%.7g", json_real_value(v));
    else
        snprintf(ret, size, "%s", text ? text : v ? "?" : "absent");
    mem_free(text);
}

#define INSTEAD "or start from it with a fresh schedule (--from) in another folder"

/* name: of the option, with underscores. */
static int other(const char *where, const char *name, const char *have, const char *want,
                 struct error *err)
{
    char option[32];
    snprintf(option, sizeof(option), "%s", name);
    for (char *s = option; *s; s++)
        *s = *s == '_' ? '-' : *s;
    return ERR(
        err, MISMATCH,
        "%s was trained with --%s %s, now it is %s: give the same options to resume, " INSTEAD,
        where, option, have, want);
}

/* What runs had that did not write it. */
static bool is_absent_default(const char *key, const json_t *v)
{
    const char *text = json_string_value(v);
    return text && ((!strcmp(key, "dtype") && !strcmp(text, "file")) ||
                    (!strcmp(key, "init") && !strcmp(text, "target")));
}

int recipe_same(const json_t *have, const json_t *want, const char *where, struct error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)want, key, v)
    {
        const json_t *old = json_object_get(have, key);
        char a[64], b[64];
        if (json_equal(old, v) || strcmp(key, "data") == 0 || (!old && is_absent_default(key, v)))
            continue;
        value_text(old, a, sizeof(a));
        value_text(v, b, sizeof(b));
        return other(where, key, a, b, err);
    }
    /* Last: what is used of the data depends on options, too. */
    if (!json_equal(json_object_get(have, "data"), json_object_get(want, "data")))
        return ERR(
            err, MISMATCH,
            "%s was trained on other data: give the same files in the same order to resume, " INSTEAD,
            where);
    return 0;
}

int recipe_shape(const struct fit_options *o, const struct train_shape *s, const char *where,
                 struct error *err)
{
    const struct {
        const char *name;
        bool given;
        uint32_t want, have;
    } sizes[] = {
        {"layers", o->layers != 0, o->layers, s->layers},
        {"ffn", o->ffn != 0, o->ffn, s->ffn},
        {"heads", o->heads != 0, o->heads, s->heads},
        {"kv_heads", o->kv_heads != 0, o->kv_heads, s->kv_heads},
        {"head_dim", o->head_dim != 0, o->head_dim, s->head_dim},
        {"draft_vocab", o->draft_vocab != 0, o->draft_vocab < s->vocab ? o->draft_vocab : s->vocab,
         s->draft_vocab},
        {"mask_token", o->mask_token != FIT_MASK_AUTO, o->mask_token, s->mask_token},
    };
    char a[16], b[16];
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        if (!sizes[i].given || sizes[i].want == sizes[i].have)
            continue;
        snprintf(a, sizeof(a), "%" PRIu32, sizes[i].have);
        snprintf(b, sizeof(b), "%" PRIu32, sizes[i].want);
        return other(where, sizes[i].name, a, b, err);
    }
    bool same = !o->n_taps || o->n_taps == s->n_taps;
    for (uint32_t i = 0; same && i < o->n_taps; i++)
        same = o->taps[i] == s->tap_layers[i];
    if (!same)
        return other(where, "taps", "of other layers", "these", err);
    return 0;
}
