/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block drafter for tests of the scheduler.  Its context of a position is a fingerprint of the
 * position and its taps; before every pass it compares the context of the whole prefix with what the
 * target gives for that text, so a missing, stale or misplaced row fails the test at once.  It drafts
 * the known answer with mistakes.
 */
#pragma once

#include "engine/engine_internal.h"
#include "tests/unit/engine-util.h"

#define FAKE_MAX_POSITIONS 1024u

/* The text that a request will have, and the context that belongs to it. */
struct fake_text {
    const struct request *r;
    uint32_t tokens[FAKE_MAX_POSITIONS], n;
    uint64_t context[FAKE_MAX_POSITIONS];
};

struct fake_drafter {
    struct engine *e;
    uint64_t *context; /* by slot */
    struct fake_text *texts;
    uint32_t n_texts;
    uint32_t
        wrong; /* one of so many tokens of the first pass is wrong; each later pass mends half */
    uint32_t n_passes, n_entries, n_injected, n_copied, most_entries, mixed; /* passes with entries
                                                                                 of several numbers */
    bool fixed_point;           /* say done when nothing changed */
    int fail_pass, fail_inject; /* so many calls from now fail; 0: none */
    uint64_t record; /* fingerprint of (anchor position, window, pass, tokens) of all passes */
};

/* Puts a drafter of that window into e.  f must outlive e. */
void fake_drafter_init(struct fake_drafter *f, struct engine *e, uint32_t window);
void fake_drafter_done(struct fake_drafter *f);
/* The text of a request: prompt and plain answer.  The context is computed by feeding it to `plain`, an
 * engine of its own of the same model. */
void fake_text_init(struct fake_text *t, struct engine *plain, const uint32_t *prompt, uint32_t n,
                    const struct test_request *answer);
extern const uint32_t fake_tap_layers[2];
