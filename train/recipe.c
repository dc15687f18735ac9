/* SPDX-License-Identifier: Apache-2.0 */
/* Options: defaults, and those that a run may not change when it resumes. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "train/fit_internal.h"

void fit_options_init(struct fit_options *o)
{
    *o = (struct fit_options){
        .layers = 2,
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

json_t *recipe_of(const struct fit_options *o, uint64_t data_hash)
{
    char hash[17];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)data_hash);
    return json_pack(
        "{ss sI sI sI ss ss ss sf sf sf sf sI sI sI sI sf sf sf sf sf sf sf sf sf sb sI}", "data",
        hash, "seed", (json_int_t)o->seed, "steps", (json_int_t)o->steps, "p1_only",
        (json_int_t)o->p1_only, "objective", o->objective == FIT_DFLASH ? "dflash" : "dedit",
        "visibility", o->visibility == FIT_CAUSAL ? "causal" : "bidirectional", "mix",
        o->mix == FIT_PROPOSALS ? "proposals" : "proposal-mix", "eta", (double)o->eta, "gamma",
        (double)o->gamma, "p2_weight", (double)o->p2_weight, "distill", (double)o->distill,
        "distill_top", (json_int_t)(o->distill > 0 ? o->distill_top : 0), "batch",
        (json_int_t)o->batch, "anchors", (json_int_t)o->anchors, "max_len", (json_int_t)o->max_len,
        "lr", (double)o->lr, "norm_lr", (double)o->norm_lr, "beta1", (double)o->beta1, "beta2",
        (double)o->beta2, "weight_decay", (double)o->weight_decay, "clip", (double)o->clip,
        "warmup", (double)o->warmup, "average", (double)o->average, "held_out", (double)o->held_out,
        "bf16", (int)o->bf16, "window", (json_int_t)o->window);
}

int recipe_same(const json_t *have, const json_t *want, const char *where, struct error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)want, key, v)
    {
        json_t *old = json_object_get(have, key);
        if (json_equal(old, v))
            continue;
        char *a = old ? json_dumps(old, JSON_ENCODE_ANY) : NULL;
        char *b = json_dumps(v, JSON_ENCODE_ANY);
        int r =
            ERR(err, MISMATCH,
                "%s was trained with \"%s\" %s, now it is %s: give the same options to resume, or "
                "start from it with a fresh schedule (--from) in another folder",
                where, key, a ? a : "absent", b ? b : "?");
        mem_free(a);
        mem_free(b);
        return r;
    }
    return 0;
}
