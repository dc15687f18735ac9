/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-train regen: the target answers prompts that a user has, and that becomes training data.
 * Conversation n is prompt n % prompts, in the order of the files, for the n / prompts-th time.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/prompt_file.h"
#include "train/compose.h"

enum {
    OPT_TEMPERATURE = 300,
    OPT_MIN_P,
    OPT_SAMPLES,
    OPT_ANSWER_TOKENS,
    OPT_SYSTEM,
};

struct regen {
    struct compose c;
    struct prompt_file prompts;
    const char *system;
    float temperature, min_p;
    uint32_t samples, answer_tokens;
};

static const struct option_def regen_opts[] = {
    {OPT_TEMPERATURE, "temperature", "X", "of answers; 0 is greedy (default: 0)"},
    {OPT_MIN_P, "min-p", "X", "0 to 1 (default: 0, off)"},
    {OPT_SAMPLES, "samples", "N", "answers to each prompt (default: 1)"},
    {OPT_ANSWER_TOKENS, "answer-tokens", "N", "of an answer, at most (default: 400)"},
    {OPT_SYSTEM, "system", "TEXT",
     "system message of prompts that have none\n(default: the format's own, if any)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {compose_option_defs, regen_opts,
                                                  engine_option_defs, engine_drafter_defs, NULL};

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct regen *g = ctx;
    int r = compose_set(&g->c, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    switch (id) {
    case OPT_TEMPERATURE:
        return option_float_in(arg, 0, 100, &g->temperature, err);
    case OPT_MIN_P:
        return option_float_in(arg, 0, 1, &g->min_p, err);
    case OPT_SAMPLES:
        return option_u32(arg, 1, 1u << 20, &g->samples, err);
    case OPT_ANSWER_TOKENS:
        return option_u32(arg, 8, DATA_MAX_TOKENS, &g->answer_tokens, err);
    case OPT_SYSTEM:
        g->system = arg;
        return 0;
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

static int plan(void *arg, uint64_t n, struct author_plan *ret, struct error *err)
{
    const struct regen *g = arg;
    (void)err;
    if (n / g->prompts.n >= g->samples)
        return 1;
    const struct prompt *p = &g->prompts.prompts[n % g->prompts.n];
    *ret = (struct author_plan){
        .kind = "prompt",
        .system = p->system ? p->system : g->system,
        .turns = (const char *const *)p->turns,
        .n_given = p->n_turns,
        .n_turns = p->n_turns,
        .seed = hash_mix64(hash_mix64(g->c.seed) + n) >> 1,
        .temperature = g->temperature,
        .min_p = g->min_p,
        .max_answer = g->answer_tokens,
    };
    return 0;
}

static json_t *make_recipe(const struct regen *g)
{
    uint64_t h = g->prompts.n;
    for (size_t i = 0; i < g->prompts.n; i++) {
        const struct prompt *p = &g->prompts.prompts[i];
        if (p->system)
            h = hash_bytes(p->system, strlen(p->system) + 1, h);
        for (uint32_t k = 0; k < p->n_turns; k++)
            h = hash_bytes(p->turns[k], strlen(p->turns[k]) + 1, h);
    }
    return json_pack("{s:I, s:I, s:f, s:f, s:I, s:o}", "prompts", (json_int_t)(h >> 1), "samples",
                     (json_int_t)g->samples, "temperature", (double)g->temperature, "min_p",
                     (double)g->min_p, "answer", (json_int_t)g->answer_tokens, "system",
                     g->system ? json_string(g->system) : json_null());
}

static int run(const struct train_command *c, int argc, char **argv)
{
    struct regen g = {.samples = 1, .answer_tokens = 400};
    struct error err = {0};
    json_auto_t *recipe = NULL;
    int first, status, r = 0;
    compose_init(&g.c, c);
    g.c.plan = plan;
    g.c.plan_arg = &g;
    if (train_options(c, argc, argv, &g, &first, &status) < 0)
        goto out;
    status = TRAIN_USAGE;
    if (first == argc || !g.c.dir) {
        train_fail(c, TRAIN_USAGE, "--output FOLDER and a file of prompts are needed");
        goto out;
    }
    for (int i = first; i < argc && r == 0; i++)
        r = prompt_file_read(argv[i], &g.prompts, &err);
    g.c.planned = (uint64_t)g.prompts.n * g.samples;
    if (r < 0 || compose_open(&g.c, &err) < 0)
        status = train_error(c, &err);
    else if (!(recipe = make_recipe(&g)))
        status = train_fail(c, TRAIN_FAILED, "out of memory");
    else
        status = compose_run(&g.c, recipe);
out:
    compose_done(&g.c);
    prompt_file_done(&g.prompts);
    return status;
}

const struct train_command train_regen = {
    .name = "regen",
    .args = "FILE...",
    .summary = "The model answers given prompts: training data from what users ask.",
    .groups = groups,
    .set = set,
    .run = run,
};
