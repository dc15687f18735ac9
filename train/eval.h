/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-train eval: what a drafter is worth on prompts.  Every prompt is answered once with each
 * setting, many prompts at once; what is counted does not depend on that, and no time is measured (for
 * that there is dedit-bench eval).  eval.c runs, eval_report.c prints.
 */
#pragma once

#include <stdio.h>

#include "engine/prompt_file.h"
#include "train/cli.h"
#include "train/gain.h"

#define EVAL_MAX_SETTINGS 64u
#define EVAL_MAX_SUITES   32u
#define EVAL_MAX_LIST     8u
#define EVAL_NAME         64u

struct eval_setting {
    uint32_t window, passes, tree; /* tree 0: a chain */
};

/* Of one suite and setting. */
struct eval_result {
    uint64_t responses, loops; /* answers that had a round; of them, those that loop */
    uint64_t tokens, rounds, committed, drafted;
    double tau, tau_straight;      /* sums of each response's mean; of those that do not loop */
    uint64_t at[DRAFT_MAX_WINDOW]; /* rounds that accepted more than i drafts */
    /* Of pass p against the one before: rounds by how many more drafts agree with the text. */
    uint64_t gain[DRAFT_MAX_PASSES][2 * DRAFT_MAX_WINDOW + 1];
    uint64_t unchanged[DRAFT_MAX_PASSES]; /* rounds whose pass p changed no token */
};
static inline uint64_t *eval_gain(struct eval_result *r, uint32_t pass, int gain)
{
    return &r->gain[pass][gain + (int)DRAFT_MAX_WINDOW];
}
/* Rounds that the pass made better, or worse. */
uint64_t eval_helped(const struct eval_result *r, uint32_t pass);
uint64_t eval_harmed(const struct eval_result *r, uint32_t pass);

struct eval_suite {
    char name[EVAL_NAME];
    struct prompt_file prompts;
    struct eval_result results[EVAL_MAX_SETTINGS];
};

struct eval {
    struct engine_options engine;
    struct eval_setting settings[EVAL_MAX_SETTINGS];
    unsigned n_settings;
    struct eval_suite suites[EVAL_MAX_SUITES];
    unsigned n_suites;
    uint32_t windows[EVAL_MAX_LIST], passes[EVAL_MAX_LIST], trees[EVAL_MAX_LIST];
    size_t n_windows, n_passes, n_trees;
    enum draft_visibility visibility;
    uint32_t samples, max_prompt, max_tokens, sequences;
    float temperature;
    uint64_t seed;
    int thinking;
    enum chat_format format;
    bool format_given, raw, quiet;
    const char *csv;
    struct gain_bins gains[EVAL_MAX_SETTINGS][DRAFT_MAX_PASSES]; /* of all suites */
    uint64_t differ; /* answers that are not those of the first setting */
};

void eval_setting_name(const struct eval_setting *s, char name[EVAL_NAME]);
void eval_report(struct eval *e, FILE *f);
void eval_write_csv(const struct eval *e, FILE *f);
