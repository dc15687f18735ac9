/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine's tests share: loading, one-line evaluation, requests that record what they got. */
#pragma once

#include "engine/engine.h"

/* Small: 1 thread, the best tier, 512 positions. */
struct engine_config test_engine_config(void);
struct engine *test_engine(const char *path, const struct engine_config *c);

/* Token i of a fixed pseudo-random text, below vocab. */
uint32_t test_token(uint64_t seed, uint32_t i, uint32_t vocab);
void test_tokens(uint64_t seed, uint32_t vocab, uint32_t *ret, size_t n);

/* Feeds tokens in chunks; logits of all, [n][vocab]; taps [n][n_taps][hidden] or NULL. */
void test_feed(struct engine *e, struct seq *s, const uint32_t *tokens, size_t n, size_t chunk,
               float *logits, const uint32_t *tap_layers, uint32_t n_taps, float *taps);

/* A request and everything that its sink was told; fixed arrays, so that recording never fails. */
struct test_request {
    struct request *r;
    struct {
        uint32_t ids[1024];
        size_t len;
    } ids;
    struct {
        char s[4096]; /* joined text of all events, the end's included */
        size_t len;
    } text;
    uint32_t n_calls;      /* calls of tokens() */
    uint32_t n_lp;         /* log-probability entries */
    float last_lp;         /* of the last chosen token */
    uint32_t first_lp[21]; /* ids of the first token's entries */
    bool finished;
    enum finish_reason reason;
    int error; /* code */
    bool stop_is_id;
    uint32_t stop_id;
    char stop_text[256];
    struct engine_usage usage;
    uint32_t park_every; /* park after every so many calls; 0: never */
    uint32_t
        cancel_after; /* cancel itself from inside the callback after so many calls; 0: never */
    struct engine *engine;
};
/* greedy, max_tokens n, text wanted, control tokens without text. */
struct engine_request test_request_init(const uint32_t *prompt, size_t n_prompt,
                                        uint32_t max_tokens);
/* Submits q with t as its sink.  Returns engine_submit's code. */
int test_submit(struct engine *e, struct engine_request *q, struct test_request *t,
                struct error *err);
/* Steps until idle, resuming whoever is parked; fails the test after too many steps. */
void test_run(struct engine *e, struct test_request *const *parked, size_t n);
/* Submits and runs alone; fails the test on an error. */
void test_generate(struct engine *e, struct engine_request *q, struct test_request *t);
void test_request_done(struct test_request *t);
void test_same_output(const struct test_request *a, const struct test_request *b, const char *what);
/* Nothing runs, waits or is parked, and no block is held. */
void test_engine_idle(struct engine *e);
