/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that a request gave, to be compared with what the same request gave elsewhere. */
#pragma once

#include "engine/engine.h"
#include "engine/proposal.h"

#define TEST_RECORD_IDS 36u

struct test_record {
    uint32_t most; /* ids that may come, set by the caller; TEST_RECORD_IDS at most */
    uint32_t ids[TEST_RECORD_IDS], n;
    char text[1024];
    size_t text_len;
    uint64_t logprobs; /* fingerprint of all entries */
    enum finish_reason reason;
    bool finished;
    struct engine_usage usage;
    struct proposal verified; /* in the round whose tokens come next */
    uint32_t branches;        /* nodes taken that were not the first child */
    uint32_t park_every;      /* calls after which the request parks, set by the caller; 0: never */
    uint32_t n_calls;
};

/* Fills o; a request that ends with an error fails the test. */
struct engine_sink test_record_sink(struct test_record *o);
/* Ids, reason, text and every bit of the log-probabilities; a has finished. */
void test_records_equal(const struct test_record *a, const struct test_record *b, const char *what);
