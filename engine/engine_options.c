/* SPDX-License-Identifier: Apache-2.0 */
/* Options that choose and configure the engine, and where the default model lies. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/drafter_file.h"
#include "engine/engine_options.h"

#define DEFAULT_MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"
#define SYSTEM_MODELS "/var/lib/dedit/models"
#define MAX_THREADS   64u
#define MAX_BENCH_CTX (1u << 20)

const struct option_def engine_option_defs[] = {
    {ENGINE_OPT_MODEL, "model", "PATH",
     "a .gguf file or a Hugging Face folder\n(default: the default model in the cache)"},
    {ENGINE_OPT_TIER, "tier", "T",
     "c, avx2, avx512 or amx (default: DEDIT_CPU_TIER,\nelse the best that this machine has)"},
    {ENGINE_OPT_THREADS, "threads", "N", "(default: the CPUs that this process may use)"},
    {ENGINE_OPT_KV_DTYPE, "kv-dtype", "T", "f32, bf16 or f16 (default: f32)"},
    {ENGINE_OPT_DTYPE, "dtype", "T",
     "weights as filed, or converted while loading:\nfile, bf16 or f32 (default: file)"},
    {ENGINE_OPT_EXACT, "exact", NULL, "BF16 weights never take the AMX BF16 class"},
    {ENGINE_OPT_CONTEXT, "max-model-len", "N",
     "positions of a sequence (default: the model's, at\nmost 8192)"},
    {ENGINE_OPT_DRAFTER_DTYPE, "drafter-dtype", "T",
     "its drafter's weights: auto (bf16 for a model of class\namx-bf16, else file), file, bf16, f32 or q8_0\n"
     "(default: auto)"},
    {0, NULL, NULL, NULL},
};
const struct option_def engine_drafter_defs[] = {
    {ENGINE_OPT_DRAFTER, "drafter", "PATH",
     "a drafter for the model: a DFlash folder or .gguf\nfile; none: no drafter (default: none)"},
    {0, NULL, NULL, NULL},
};
const struct option_def engine_drafter_beside_defs[] = {
    {ENGINE_OPT_DRAFTER, "drafter", "PATH",
     "a drafter for the model: a DFlash folder or .gguf\nfile; none: no drafter (default: one that "
     "lies beside\nthe model)"},
    {0, NULL, NULL, NULL},
};

void engine_options_init(struct engine_options *e)
{
    memset(e, 0, sizeof(*e));
    engine_config_init(&e->config);
}

static int set_dtype(const char *arg, bool drafter, enum backend_dtype *ret, struct error *err)
{
    static const char *const dtypes[] = {"file", "bf16", "f32", "q8_0", "auto"};
    for (size_t t = 0; t < (drafter ? ARRAY_LEN(dtypes) : 3); t++)
        if (!strcmp(arg, dtypes[t])) {
            *ret = (enum backend_dtype)t;
            return 1;
        }
    return ERR(err, INVALID, "\"%s\" is not file, bf16%s", arg,
               drafter ? ", f32, q8_0 or auto" : " or f32");
}

int engine_options_set(struct engine_options *e, int id, const char *arg, struct error *err)
{
    struct engine_config *c = &e->config;
    int r;
    switch (id) {
    case ENGINE_OPT_MODEL:
        e->model = arg;
        return 1;
    case ENGINE_OPT_TIER:
        if (!dk_tier_parse(arg, &c->tier))
            return ERR(err, INVALID, "\"%s\" is not c, avx2, avx512 or amx", arg);
        if (!dk_ops(c->tier))
            return ERR(err, UNSUPPORTED, "this machine cannot run \"%s\"; its best is \"%s\"", arg,
                       dk_tier_name(dk_tier_best()));
        e->tier_given = true;
        return 1;
    case ENGINE_OPT_THREADS:
        r = option_u32(arg, 1, MAX_THREADS, &c->n_threads, err);
        return r < 0 ? r : 1;
    case ENGINE_OPT_KV_DTYPE:
        for (int t = 0; t < DK_KV_TYPE_COUNT; t++)
            if (!strcmp(arg, dk_kv_type_name((enum dk_kv_type)t))) {
                c->kv_type = (enum dk_kv_type)t;
                return 1;
            }
        return ERR(err, INVALID, "\"%s\" is not f32, bf16 or f16", arg);
    case ENGINE_OPT_DTYPE:
        return set_dtype(arg, false, &c->dtype, err);
    case ENGINE_OPT_DRAFTER:
        e->no_drafter = strcmp(arg, "none") == 0;
        c->drafter = e->no_drafter ? NULL : arg;
        return 1;
    case ENGINE_OPT_DRAFTER_DTYPE:
        e->drafter_dtype_given = true;
        return set_dtype(arg, true, &c->drafter_dtype, err);
    case ENGINE_OPT_EXACT:
        c->exact = true;
        return 1;
    case ENGINE_OPT_CONTEXT:
        r = option_u32(arg, 1, MAX_BENCH_CTX, &c->max_context, err);
        return r < 0 ? r : 1;
    default:
        return 0;
    }
}

int engine_option_chat_format(const char *arg, enum chat_format *ret, bool *given,
                              struct error *err)
{
    if (!chat_format_parse(arg, ret))
        return ERR(err, INVALID, "\"%s\" is not chatml, qwen3, smollm2 or llama3", arg);
    *given = true;
    return 0;
}

int engine_options_tier(struct engine_options *e, struct error *err)
{
    if (e->drafter_dtype_given && !e->config.drafter)
        return ERR(err, INVALID, "--drafter-dtype needs --drafter");
    if (e->config.n_threads == 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        int n = sched_getaffinity(0, sizeof(set), &set) < 0 ? 1 : CPU_COUNT(&set);
        e->config.n_threads = n < 1 ? 1 : n < (int)MAX_THREADS ? (unsigned)n : MAX_THREADS;
    }
    int r = e->tier_given ? 0 : dk_tier_choose(getenv("DEDIT_CPU_TIER"), &e->config.tier, err);
    return r < 0 ? error_prefix(err, r, "DEDIT_CPU_TIER") : 0;
}

int engine_options_beside(struct engine_options *e, const char *model, struct error *err)
{
    _cleanup_free_ char *path = NULL;
    if (e->config.drafter || e->no_drafter)
        return 0;
    int r = drafter_beside(model, &path, err);
    if (r < 0 || !path)
        return r;
    if (strlen(path) >= sizeof(e->beside))
        return ERR(err, LIMIT, "%s: the path is too long; --drafter none leaves it alone", path);
    snprintf(e->beside, sizeof(e->beside), "%s", path);
    e->config.drafter = e->beside;
    return 0;
}

int engine_options_open(const struct engine_options *e, const char *path, struct engine **ret,
                        struct error *err)
{
    int r = engine_new(path, &e->config, NULL, NULL, ret, err);
    /* Nobody asked for it by name. */
    if (r < 0 && e->config.drafter == e->beside && err && strstr(err->msg, e->beside))
        r = error_set(err, r, __FILE__, __LINE__,
                      "%s; it lies beside the model: --drafter none leaves it alone", err->msg);
    return r;
}

int engine_default_model(char *buf, size_t size, struct error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    /* The XDG rules: a relative value is ignored. */
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(buf, size, "%s/dedit/models/" DEFAULT_MODEL, cache);
    else if (home && home[0])
        n = snprintf(buf, size, "%s/.cache/dedit/models/" DEFAULT_MODEL, home);
    if (n > 0 && (size_t)n < size && access(buf, R_OK) == 0)
        return 0;
    n = snprintf(buf, size, SYSTEM_MODELS "/" DEFAULT_MODEL);
    if (n > 0 && (size_t)n < size && access(buf, R_OK) == 0)
        return 0;
    return ERR(
        err, NOT_FOUND,
        "the default model is not in the cache; models/fetch gets it, --model PATH takes another");
}
