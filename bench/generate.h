/* SPDX-License-Identifier: Apache-2.0 */
/* State of dedit-bench generate, and its output side. */
#pragma once

#include "bench/bench.h"

struct generate {
    struct engine_options engine;
    struct sampling_params sampling;
    struct drafting_params drafting;
    struct draft_script script;
    struct stop_string stop[SAMPLING_MAX_STOP_STRINGS];
    uint32_t stop_ids[SAMPLING_MAX_STOP_IDS];
    struct logit_bias bias[SAMPLING_MAX_LOGIT_BIAS];
    enum chat_format format;
    bool format_given, raw, ids, json;
    int thinking;
    const char *system;

    bool finished, cancelled;
    int write_error; /* errno, once */
    bool ends_line;  /* the last byte written was a newline */
    uint64_t load_ns;
    enum finish_reason reason;
    struct engine_usage usage;
    struct error error;
};

/* Writes tokens (text or JSON) to standard output, each commit at once. */
struct engine_sink generate_sink(struct generate *g);
/* The one line of statistics on standard error. */
void generate_statistics(struct generate *g, const struct engine *e);
