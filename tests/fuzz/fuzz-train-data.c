/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that training reads.  The first byte of the input says what the rest is: 'd' lines of data, 'p'
 * lines of prompts, 'c' a table of numbers.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "engine/prompt_file.h"
#include "train/csv.h"
#include "train/data.h"

static void check_record(const struct data_record *r, uint32_t vocab)
{
    uint32_t last = 0, sum = 0;
    FUZZ_CHECK(r->ids.len && r->ids.len <= DATA_MAX_TOKENS && r->n_spans <= DATA_MAX_SPANS);
    for (size_t i = 0; i < r->ids.len; i++)
        FUZZ_CHECK(r->ids.ids[i] < vocab);
    for (uint32_t i = 0; i < r->n_spans; i++) {
        FUZZ_CHECK(r->spans[i].begin >= last && r->spans[i].begin < r->spans[i].end);
        last = r->spans[i].end;
        sum += last - r->spans[i].begin;
    }
    FUZZ_CHECK(last <= r->ids.len && sum == r->n_supervised);
    FUZZ_CHECK(memchr(r->kind, '\0', sizeof(r->kind)));
}

/* What was read can be written, and is read as the same. */
static void check_written(const struct data_record *r, uint32_t vocab)
{
    _cleanup_strbuf_ struct strbuf a = {0}, b = {0};
    _cleanup_record_ struct data_record again = {0};
    struct error err = {0};
    FUZZ_CHECK(data_format_line(r, NULL, &a) == 0);
    FUZZ_CHECK(data_parse_line(a.s, a.len, "again", 1, vocab, &again, NULL, &err) == 0);
    FUZZ_CHECK(data_format_line(&again, NULL, &b) == 0);
    FUZZ_CHECK(a.len == b.len && memcmp(a.s, b.s, a.len) == 0);
}

static void lines(const char *text, size_t size)
{
    const uint32_t vocab = 1000;
    _cleanup_record_ struct data_record r = {0};
    uint64_t line = 0;
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t n = end ? (size_t)(end - (text + at)) : size - at;
        struct data_header h = {.present = false};
        struct error err = {0};
        int k = data_parse_line(text + at, n, "data", ++line, vocab, &r, &h, &err);
        FUZZ_CHECK(k >= 0 || (k == err.code && err.msg[0]));
        if (k == 0) {
            check_record(&r, vocab);
            check_written(&r, vocab);
        }
        FUZZ_CHECK(k != 1 || h.present);
        at += n + 1;
    }
}

static void prompts(const char *text, size_t size)
{
    _cleanup_prompts_ struct prompt_file f = {0};
    struct error err = {0};
    int k = prompt_file_parse(text, size, "prompts", &f, &err);
    FUZZ_CHECK(k == 0 || (k == err.code && err.msg[0]));
    FUZZ_CHECK(k < 0 || f.n);
    for (size_t i = 0; i < f.n; i++)
        FUZZ_CHECK(f.prompts[i].n_turns && f.prompts[i].n_turns <= PROMPT_MAX_TURNS &&
                   f.prompts[i].line);
}

static void table(const char *text, size_t size)
{
    struct csv c = {0};
    struct error err = {0};
    char *copy = mem_alloc(size + 1);
    FUZZ_CHECK(copy);
    memcpy(copy, text, size);
    copy[size] = '\0';
    int k = csv_parse(copy, size, "table", &c, &err);
    FUZZ_CHECK(k == 0 || (k == err.code && err.msg[0] && !c.text));
    for (size_t i = 0; k == 0 && i < c.n_rows * c.n_columns; i++)
        FUZZ_CHECK(isnan(c.values[i]) || isfinite(c.values[i]));
    csv_done(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1;
    if (size == 0)
        return 0;
    if (data[0] == 'p')
        prompts(text, size - 1);
    else if (data[0] == 'c')
        table(text, size - 1);
    else
        lines(text, size - 1);
    return 0;
}
