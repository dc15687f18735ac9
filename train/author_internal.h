/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the author: author.c keeps many conversations going, author_talk.c takes one from phase to
 * phase. */
#pragma once

#include "base/strbuf.h"
#include "train/author.h"
#include "train/loop_watch.h"

enum talk_phase { TALK_ASK, TALK_ANSWER, TALK_DONE };

struct talk_answer {
    uint32_t begin; /* in its prompt's coordinates */
    uint32_t *ids;
    uint32_t n;
};

struct talk {
    uint64_t number;
    struct author_plan plan;
    enum talk_phase phase;
    uint32_t turn; /* from 0: being asked or answered */
    struct chat_message messages[2 * AUTHOR_MAX_TURNS + 1];
    char *owned[2 * AUTHOR_MAX_TURNS + 1]; /* texts of messages that are ours */
    uint32_t n_messages;
    struct talk_answer answers[AUTHOR_MAX_TURNS];
    uint32_t n_answers;
    enum author_drop drop;
    uint64_t begin_hash;
    enum data_end end;

    /* The request that runs. */
    struct request *request;
    struct token_list prompt, out;
    struct strbuf text;
    struct loop_watch loop;
    bool looped, finished;
    enum finish_reason reason;
    uint32_t stop_id;
    bool has_stop_id;
    struct error error;

    /* What it became. */
    struct data_record record;
    char *json;
};

struct author {
    struct engine *engine;
    const struct tokenizer *tokenizer;
    struct author_options o;
    struct author_sink sink;
    struct talk **ring; /* [window]: conversation n at n % window */
    uint32_t window, running;
    uint64_t first, next; /* handed over: all before first; begun: all before next */
    bool no_more;
    uint64_t generated;
};

int talk_new(struct author *a, uint64_t number, struct talk **ret, struct error *err);
void talk_free(struct talk *t);
/* Begins the next request, or ends the conversation (TALK_DONE). */
int talk_go_on(struct author *a, struct talk *t, struct error *err);
/* The request has finished: takes what it wrote. */
int talk_take(struct author *a, struct talk *t, struct error *err);
