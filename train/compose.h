/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What synth and regen share: options, the engine, the folder of shards, resuming, progress.  They
 * differ in where plans of conversations come from.
 */
#pragma once

#include "base/hash.h"
#include "train/author.h"
#include "train/cli.h"
#include "train/shards.h"

enum {
    COMPOSE_OPT_OUTPUT = 800,
    COMPOSE_OPT_SEQUENCES,
    COMPOSE_OPT_SEED,
    COMPOSE_OPT_TOKENS,
    COMPOSE_OPT_MAX_LEN,
    COMPOSE_OPT_SHARD_SIZE,
    COMPOSE_OPT_SYNC,
    COMPOSE_OPT_CHAT_FORMAT,
    COMPOSE_OPT_RAW,
    COMPOSE_OPT_NO_THINKING,
    COMPOSE_OPT_QUIET,
};
extern const struct option_def compose_option_defs[];

struct compose {
    const struct train_command *command;
    struct engine_options engine_options;
    const char *dir;
    struct author_options author;
    bool format_given, max_len_given;
    uint64_t seed, tokens, shard_bytes; /* tokens: of answers, wanted; 0: no end */
    uint32_t sync_s;
    bool quiet,
        by_text; /* by_text: a beginning that is known is a duplicate; else the whole text */

    int (*plan)(void *arg, uint64_t n, struct author_plan *ret, struct error *err);
    void *plan_arg;
    uint64_t planned; /* conversations that there will be; 0: not known */

    struct engine *engine;
    struct shards *shards;
    struct u64map known;
    uint64_t next;                              /* number of the first conversation to be written */
    uint64_t lines, done;                       /* there, of all runs; supervised tokens */
    uint64_t dropped[AUTHOR_DROP_COUNT], loops; /* of this run */
    uint64_t begun_lines, begun_tokens;         /* before this run */
    uint64_t started_ns, told_ns;
    struct author *writer;
    bool tty, told;
};
void compose_init(struct compose *c, const struct train_command *command);
void compose_done(struct compose *c);
/* 1 when id is one of its options and was taken, 0 when it is another's, negative on error. */
int compose_set(struct compose *c, int id, const char *arg, struct error *err);
/* After the options: loads the model.  ret_status: of a usage error. */
int compose_open(struct compose *c, struct error *err);
/* Opens the folder, goes on behind what is there, writes until there is enough.  recipe: all that makes
 * the data what they are, beside model and seed.  Exit status. */
int compose_run(struct compose *c, json_t *recipe);

/* compose_progress.c: a line that says how far it is; `end`: the last one. */
void compose_tell(struct compose *c, bool end);
