/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target writes conversations: many at once, handed over in the order of their numbers.
 *
 * A conversation is a function of its plan alone: the engine gives each request the same tokens whatever
 * runs beside it, and every random number is keyed by the plan's seed.  So a run that was interrupted
 * goes on as if it had not been.  One thread; the engine is used by nobody else meanwhile.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"
#include "train/data.h"

#define AUTHOR_MAX_TURNS 64u
#define AUTHOR_MAX_TEXT  2048u

/* What one conversation is to be.  Borrowed texts must last until it has been handed over. */
struct author_plan {
    char kind[DATA_MAX_NAME];
    const char *system;       /* or NULL: the format's own, if it has one */
    const char *const *turns; /* the user's, as far as they are given */
    uint32_t n_given;
    char text[AUTHOR_MAX_TEXT]; /* without given ones: what the model's own first turn begins with;
                                   with `whole` it is that turn */
    bool whole;
    uint32_t n_turns; /* answers; the model asks what is not given */
    uint64_t seed;
    float temperature, min_p; /* of answers */
    uint32_t max_answer;
};

/* Why a conversation is left out. */
enum author_drop {
    AUTHOR_KEPT,
    AUTHOR_EMPTY,    /* a user's turn, or the answer, has no text */
    AUTHOR_LOOPING,  /* a user's turn goes round in circles */
    AUTHOR_LONG,     /* no room for an answer */
    AUTHOR_REPEATED, /* the sink says that it knows its beginning */
    AUTHOR_DROP_COUNT
};
const char *author_drop_name(enum author_drop d);

/* The record's memory is the author's until the call returns. */
struct author_result {
    uint64_t number;
    enum author_drop drop;
    const struct data_record *record; /* NULL when dropped */
    const char *messages;             /* JSON */
    uint64_t begin_hash;              /* of all that the user said first */
};

struct author_sink {
    /* Plan of conversation n; 1: there are no more. */
    int (*plan)(void *arg, uint64_t n, struct author_plan *ret, struct error *err);
    /* Is a conversation that begins so known already?  May say no too often, never yes wrongly: a later
     * take() decides. */
    bool (*known)(void *arg, uint64_t begin_hash);
    /* In order of numbers, each once.  1: enough, stop. */
    int (*take)(void *arg, const struct author_result *r, struct error *err);
    /* After each step of the engine; 1: stop. */
    int (*tick)(void *arg, struct error *err);
    void *arg;
};

struct author_options {
    enum chat_format format;
    bool raw;           /* no chat: what the user says is a text that is gone on with; one turn */
    int thinking;       /* chat_options.enable_thinking */
    uint32_t sequences; /* at once */
    uint32_t max_len;   /* tokens of a conversation */
    uint32_t max_user;  /* tokens of a turn that the model asks */
    float user_temperature, user_min_p;
    bool draft; /* the engine has a drafter: use it */
};

struct author_stats {
    uint64_t generated; /* tokens, of users' turns too, handed over or not */
    uint32_t running;
};

struct author;
int author_new(struct engine *e, const struct author_options *o, const struct author_sink *s,
               uint64_t first, struct author **ret, struct error *err);
struct author *author_free(struct author *a); /* what is under way is dropped */
DEFINE_CLEANUP(struct author *, author_free);
/* 0: no more plans; 1: a sink stopped it. */
int author_run(struct author *a, struct error *err);
void author_get_stats(const struct author *a, struct author_stats *ret);
/* Of what a user says first, and the system before; system may be NULL. */
uint64_t author_begin_hash(const char *system, const char *text, size_t len);
/* Ids of a conversation's user turn up to where its text begins; messages before it may be none. */
int author_open_turn(const struct tokenizer *t, const struct author_options *o,
                     const struct chat_message *m, size_t n, struct token_list *out,
                     struct error *err);
