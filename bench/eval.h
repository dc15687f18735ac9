/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval: what drafting gains on suites of prompts; controller: what the method auto makes of it.
 * eval.c and controller.c are the commands, eval_run.c runs, eval_settings.c reads settings and suites,
 * eval_report.c prints.
 */
#pragma once

#include <signal.h>
#include <stdio.h>

#include "base/out_file.h"
#include "bench/bench.h"
#include "engine/prompt_file.h"

#define EVAL_MAX_SETTINGS 32u
#define EVAL_MAX_SUITES   32u
#define EVAL_MAX_TURNS    8u
#define EVAL_NAME         64u
#define EVAL_MAX_CLIENTS  64u
#define EVAL_MAX_GROUP    256u /* prompts that clients ask in turn, with one setting */

/* Seconds of the calls that a round is made of, added up. */
struct eval_parts {
    unsigned n;
    double pass, verify, inject; /* means; verify: of plain decoding, its one row */
};

/* One way to decode.  Setting 0 of a temperature is plain decoding. */
struct eval_setting {
    char name[EVAL_NAME]; /* as it was asked for */
    struct drafting_params drafting;
    float temperature;
    uint32_t baseline; /* index of ar at this temperature */
    /* Made-up acceptance of each position given those before it, so that a round commits `tau`. */
    double tau; /* 0: the drafter's own */
    float acceptance[DRAFT_MAX_WINDOW - 1];
    struct eval_parts parts;
    double predicted; /* speed-up by the cost model; 0: it has none */
    double kernels;   /* seconds that the calls of all rounds take alone */
};

/* Of one suite and setting; responses in order. */
struct eval_result {
    size_t n, cap;
    double *tau;  /* tokens of a round, bonus included, mean of the response */
    double *tpot; /* seconds a token after the first */
    uint64_t tokens, rounds, committed, drafted, accepted, passes;
    uint64_t plain;                   /* rounds, of those, that had no draft */
    uint64_t after[DRAFT_MAX_PASSES]; /* drafts that agree with the text, by pass */
    uint64_t helpful, harmful;
    double draft_s, verify_s, round_s; /* round_s: all time after the first token */
};

struct eval_suite {
    char name[EVAL_NAME];
    struct prompt_file prompts;  /* empty with --random */
    size_t next;                 /* prompt to be asked */
    bool off[EVAL_MAX_SETTINGS]; /* settings that are left out */
    struct eval_result results[EVAL_MAX_SETTINGS];
};

struct eval {
    struct engine_options engine;
    struct eval_setting settings[EVAL_MAX_SETTINGS];
    unsigned n_settings;
    struct eval_suite suites[EVAL_MAX_SUITES];
    unsigned n_suites;
    const char *asked[EVAL_MAX_SETTINGS];
    unsigned n_asked;
    uint32_t samples, max_prompt, max_tokens, turns, warmup, clients;
    uint64_t seed;
    float temperature;
    const char *csv_path, *svg_path, *answers_path; /* NULL: not asked for */
    struct out_file csv, svg, answers;              /* .f: NULL then; open from the start */
    const char *random;                             /* shape with random weights, or NULL */
    enum dk_type type;
    uint32_t layers, drafter_layers, draft_vocab, prompt_tokens;
    bool quiet, format_given;
    enum chat_format format;
    int thinking;
    unsigned differ; /* responses that are not ar's */
    /* Called by eval_open() once it is known whether there is a drafter; or NULL. */
    void (*prepare)(struct eval *e);
};

/* "dedit,w=8,k=3,t=0.7": a method and what it should be given. */
int eval_parse_setting(const char *text, float temperature, struct eval_setting *ret,
                       struct error *err);
/* Settings out of what was asked for, each temperature's ar first. */
int eval_make_settings(struct eval *e, struct error *err);
/* Lines as engine/prompt_file.h has them; the suite's name is the file's. */
int eval_read_suite(const char *path, struct eval_suite *ret, struct error *err);
void eval_suite_done(struct eval_suite *s);

void eval_results_done(struct eval_suite *s); /* what was counted is forgotten */

/* eval_run.c */
extern volatile sig_atomic_t eval_interrupted;
/* Settings, suites and the model; costs are measured if a setting is auto. */
int eval_open(struct eval *e, int n, char **files, struct engine **ret, enum chat_format *format,
              struct error *err);
/* Suites, and files that were not written. */
void eval_done(struct eval *e);
/* The next prompts of the suite, at most `samples` (0: all that are left) of those that are short enough. */
int eval_run_suite(struct eval *e, struct engine *en, struct eval_suite *s, enum chat_format format,
                   uint32_t samples, struct error *err);
/* The same with e->clients prompts at a time (eval_clients.c). */
int eval_run_clients(struct eval *e, struct engine *en, struct eval_suite *s,
                     enum chat_format format, struct error *err);
int eval_render(const struct eval *e, struct engine *en, enum chat_format format,
                const struct chat_message *messages, size_t n, struct token_list *ret,
                struct error *err);
int eval_run_random(struct eval *e, struct engine *en, struct error *err);

/* What a request gave. */
struct eval_answer {
    struct token_list ids;
    struct strbuf text;
    struct engine_usage usage;
    bool finished;
    struct error error;
};
void eval_answer_done(struct eval_answer *a);
/* Runs a request to its end; *stop: cancels it.  *ret is zeroed before. */
int eval_ask(struct engine *en, const struct eval *e, const struct eval_setting *s,
             const struct token_list *prompt, uint64_t seed, struct eval_answer *ret,
             const volatile sig_atomic_t *stop, struct error *err);
/* n requests, EVAL_MAX_GROUP at most, `at_once` of them at a time; seeds one after the other; ret: as many answers. */
int eval_ask_all(struct engine *en, const struct eval *e, const struct eval_setting *s,
                 const struct token_list *prompts, uint32_t n, uint32_t at_once, uint64_t seed,
                 struct eval_answer *ret, const volatile sig_atomic_t *stop, struct error *err);
int eval_count(struct eval_result *r, const struct eval_answer *a, struct error *err);
/* Tells an answer of setting j that is not its baseline's. */
void eval_compare(struct eval *e, const struct eval_suite *s, size_t prompt, unsigned j,
                  const struct eval_answer *a, const struct eval_answer *base);

/* Mean over a result's responses; 0 without any. */
double eval_mean(const double *x, size_t n);
/* ar's time of a token over the setting's: of means. */
double eval_speedup(const struct eval_suite *s, const struct eval *e, unsigned setting);
void eval_table(const struct eval *e, FILE *f);
/* Where the time goes: a pass, a verification, and what is left of a round. */
void eval_costs(const struct eval *e, FILE *f);
/* With --random: the calls that the settings' rounds are made of, after their answers; then speed-ups by the
 * cost model, and their table. */
int eval_time_parts(struct eval *e, struct engine *en, const struct eval_answer *a,
                    struct error *err);
void eval_predict(struct eval *e);
void eval_predictions(const struct eval *e, FILE *f);
int eval_csv(const struct eval *e, FILE *f, struct error *err);
/* Settings with and without the target's noise, by pairs of answers (eval_pairs.c). */
int eval_pairs(const struct eval *e, FILE *f, struct error *err);
/* Every answer, a line each. */
void eval_answers(const struct eval *e, FILE *f);
/* Speed-ups as bars. */
void eval_bars(const struct eval *e, FILE *f);
void eval_svg(const struct eval *e, FILE *f);
