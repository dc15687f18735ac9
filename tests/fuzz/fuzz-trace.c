/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of rounds and files of costs from any bytes.  What is taken of a trace cannot end the page's script
 * element and is one JSON array; what is taken of costs is within its bounds; the rest is refused in words.
 */
#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <string.h>

#include "base/strbuf.h"
#include "client/cli-trace-lines.h"
#include "engine/cost.h"
#include "engine/json.h"
#include "engine/survival.h"

static void trace(const char *s, size_t size)
{
    struct strbuf out = {0};
    struct error err = {0};
    if (trace_embed("x", s, size, &out, &err) == 0) {
        json_error_t e;
        json_t *j = json_loadb(out.s, out.len, JSON_DECODE_INT_AS_REAL, &e);
        FUZZ_CHECK(!memchr(out.s, '<', out.len));
        FUZZ_CHECK(json_is_array(j) && json_array_size(j) > 0);
        json_decref(j);
    } else {
        FUZZ_CHECK(err.msg[0] != '\0');
    }
    strbuf_done(&out);
}

static void costs(const char *s, size_t size)
{
    struct costs c;
    struct survival drafts = {.bin = {{0, 0}}};
    struct error err = {0};
    costs_init(&c);
    if (costs_parse(&c, &drafts, s, size, "x", "k", &err) < 0) {
        FUZZ_CHECK(err.msg[0] != '\0');
        return;
    }
    for (int k = 0; k < COST_KINDS; k++)
        for (uint32_t rows = 0; rows < 600; rows += 7) {
            struct cost_load l = {.rows = rows, .entries = 100, .positions = 100.0 * rows};
            double ns = cost_of(&c.table[k], &l);
            FUZZ_CHECK(ns >= 0 && ns < 1e30);
            cost_add(&c, (enum cost_kind)k, &l, 1000);
        }
    FUZZ_CHECK(c.pace > 0);
    for (uint32_t p = 1; p <= DRAFT_MAX_PASSES; p++) {
        float reach[SURVIVAL_NODES], before = 1;
        survival_expect(&drafts, p % SURVIVAL_WINDOWS, p, reach);
        for (uint32_t i = 0; i < SURVIVAL_NODES; before = reach[i++])
            FUZZ_CHECK(reach[i] >= 0 && reach[i] <= before);
        FUZZ_CHECK(survival_match(&drafts, p) >= 0 && survival_match(&drafts, p) <= 1);
        survival_add(&drafts, p % SURVIVAL_WINDOWS, p, reach, SURVIVAL_NODES);
    }
    /* What is written is read again. */
    struct strbuf b = {0};
    struct survival again = {.of = drafts.of};
    json_t *v = NULL;
    FUZZ_CHECK(survival_write(&drafts, &b) >= 0 && js_parse_object(b.s, b.len, "x", &v, &err) == 0);
    struct js_obj o = js_root(v, "x");
    FUZZ_CHECK(survival_read(&o, &again, &err) == 0);
    FUZZ_CHECK(again.curve[1][0].n == drafts.curve[1][0].n);
    json_decref(v);
    strbuf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trace((const char *)data, size);
    costs((const char *)data, size);
    return 0;
}
