/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop strings in a stream of text.  Text goes in as the detokenizer releases it and comes out as
 * soon as no stop string can begin in it any more.  The result does not depend on how the text is
 * cut into pieces: the match is the one that is complete first and, of several that end together,
 * the longest; what comes out never holds text that would have to be taken back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/sampler.h"

struct stop_matcher;

/* Copies the strings (1..SAMPLING_MAX_STOP_STRINGS of 1..SAMPLING_MAX_STOP_BYTES bytes, checked by
 * sampling_params_check); n may be 0.  include: the released text ends with the stop string. */
int stop_matcher_new(const struct stop_string *stop, size_t n, bool include,
                     struct stop_matcher **ret, struct error *err);
struct stop_matcher *stop_matcher_free(struct stop_matcher *m);
DEFINE_CLEANUP(struct stop_matcher *, stop_matcher_free);

/*
 * Appends to *out what text[len] makes safe to release.  armed: matches that are complete in this
 * piece count (false while there are fewer than min_tokens tokens; a string may begin in an unarmed
 * piece).  Returns 1 when a stop string was met: everything before it has been released and further
 * text is ignored; 0 otherwise; negative without memory (nothing has changed then).
 */
int stop_matcher_feed(struct stop_matcher *m, const char *text, size_t len, bool armed,
                      struct strbuf *out, struct error *err);
/* The stop string that was met (a copy, NUL-terminated), or NULL. */
const struct stop_string *stop_matcher_match(const struct stop_matcher *m);
/* Bytes held back now. */
size_t stop_matcher_held(const struct stop_matcher *m);
/* End of the stream without a match: releases what was held back. */
int stop_matcher_flush(struct stop_matcher *m, struct strbuf *out, struct error *err);
