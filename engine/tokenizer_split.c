/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pre-tokenizer: a chain of steps, each of which cuts every piece that the step before it made.
 * Pieces run through the whole chain one after the other, so nothing is collected; depth of the
 * recursion is the number of steps.  A step sees its piece alone, never the text around it.
 */
#include <string.h>

#include <utf8proc.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/tokenizer_internal.h"

void split_done(struct split *s)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->steps[i].re)
            pcre2_code_free(s->steps[i].re);
        mem_free(s->steps[i].str);
    }
    *s = (struct split){0};
}

static int add_step(struct split *s, const struct split_step *step, const char *name,
                    struct error *err)
{
    if (s->n == SPLIT_MAX_STEPS)
        return ERR(err, LIMIT, "%s: more than %d steps", name, SPLIT_MAX_STEPS);
    s->steps[s->n++] = *step;
    return 0;
}

int split_add_regex(struct split *s, const char *pattern, size_t len, enum split_behavior behavior,
                    bool invert, const char *name, struct error *err)
{
    struct split_step step = {.kind = STEP_REGEX, .behavior = behavior, .invert = invert};
    int r = regex_compile(pattern, len, &step.re, &step.jit, name, err);
    if (r < 0)
        return r;
    r = add_step(s, &step, name, err);
    if (r < 0)
        pcre2_code_free(step.re);
    return r;
}

int split_add_string(struct split *s, const char *str, size_t len, enum split_behavior behavior,
                     bool invert, const char *name, struct error *err)
{
    if (len == 0)
        return ERR(err, FORMAT, "%s: the string to split at is empty", name);
    struct split_step step = {.kind = STEP_STRING,
                              .behavior = behavior,
                              .invert = invert,
                              .str = mem_strndup(str, len),
                              .str_len = len};
    if (!step.str)
        return ERR_NOMEM(err);
    int r = add_step(s, &step, name, err);
    if (r < 0)
        mem_free(step.str);
    return r;
}

int split_add_digits(struct split *s, bool individual, const char *name, struct error *err)
{
    struct split_step step = {.kind = STEP_DIGITS,
                              .behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return add_step(s, &step, name, err);
}

int split_add_prefix_space(struct split *s, const char *name, struct error *err)
{
    return add_step(s, &(struct split_step){.kind = STEP_PREFIX_SPACE}, name, err);
}

/* ---- joining matches and what lies between them, by the behaviour */

struct joiner {
    struct encoder *e;
    size_t step; /* that the pieces go to */
    const char *text;
    enum split_behavior behavior;
    bool invert;
    bool pending; /* a range [start, end) waits for what follows */
    size_t start, end;
    bool pending_is_match; /* of the last range that went into it */
};

static int flush(struct joiner *j)
{
    if (!j->pending)
        return 0;
    j->pending = false;
    return split_run(j->e, j->step, j->text + j->start, j->end - j->start);
}

/* The next range, adjacent to the one before. */
static int join(struct joiner *j, size_t start, size_t end, bool match)
{
    bool extend = false;
    match ^= j->invert;
    switch (j->behavior) {
    case SPLIT_ISOLATED:
        break;
    case SPLIT_REMOVED:
        if (match)
            return 0;
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        extend = match && j->pending && !j->pending_is_match;
        break;
    case SPLIT_MERGED_WITH_NEXT:
        extend = !match && j->pending && j->pending_is_match;
        break;
    case SPLIT_CONTIGUOUS:
        extend = j->pending && match == j->pending_is_match;
        break;
    }
    if (!extend) {
        int r = flush(j);
        if (r < 0)
            return r;
        j->start = start;
    }
    j->end = end;
    j->pending = true;
    j->pending_is_match = match;
    return 0;
}

/* ---- finders */

static int find_regex(const struct split_step *s, struct encoder *e, const char *text, size_t len,
                      size_t from, size_t *ret_start, size_t *ret_end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int n = PCRE2_ERROR_JIT_STACKLIMIT;
    if (s->jit)
        n = pcre2_jit_match(s->re, subject, len, from, 0, e->md, e->mctx);
    if (n ==
        PCRE2_ERROR_JIT_STACKLIMIT) /* a long run: the interpreter keeps its state on the heap */
        n = pcre2_match(s->re, subject, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->md,
                        e->mctx);
    if (n == PCRE2_ERROR_NOMATCH)
        return 1;
    if (n == PCRE2_ERROR_NOMEMORY)
        return ERR_NOMEM(e->err);
    if (n < 0) {
        char why[128];
        pcre2_get_error_message(n, (PCRE2_UCHAR *)why, sizeof(why));
        return ERR(e->err, LIMIT, "%s: the pre-tokenizer's regular expression gave up: %s",
                   e->t->name, why);
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(e->md);
    *ret_start = v[0];
    *ret_end = v[1];
    return 0;
}

static size_t char_len(const char *s, size_t n)
{
    uint32_t cp;
    size_t len = utf8_decode(s, n, &cp);
    return len ? len : 1;
}

static int run_regex(const struct split_step *s, struct joiner *j, size_t len)
{
    size_t done = 0, from = 0, start = 0, end = 0;
    bool had_match = false;
    size_t last_end = 0;
    for (;;) {
        int r = from <= len ? find_regex(s, j->e, j->text, len, from, &start, &end) : 1;
        if (r < 0)
            return r;
        if (r > 0)
            break;
        if (end <= start && had_match && last_end == end) {
            /* Nothing more behind the last match: look on from the next character. */
            if (from >= len)
                break;
            from += char_len(j->text + from, len - from);
            continue;
        }
        /* \K and look-behind cannot go back: \K is refused, a match starts at or after from. */
        if (start > done)
            r = join(j, done, start, false);
        if (r == 0)
            r = join(j, start, end, true);
        if (r < 0)
            return r;
        done = from = last_end = end;
        had_match = true;
    }
    return done < len ? join(j, done, len, false) : 0;
}

static int run_string(const struct split_step *s, struct joiner *j, size_t len)
{
    size_t done = 0;
    while (done < len) {
        const char *p = memmem(j->text + done, len - done, s->str, s->str_len);
        size_t at = p ? (size_t)(p - j->text) : len;
        int r = at > done ? join(j, done, at, false) : 0;
        if (r == 0 && p)
            r = join(j, at, at + s->str_len, true);
        if (r < 0)
            return r;
        done = p ? at + s->str_len : len;
    }
    return 0;
}

/* Numeric: general categories Nd, Nl, No. */
static bool is_number(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

static int run_digits(struct joiner *j, size_t len)
{
    size_t done = 0, at = 0;
    while (at < len) {
        uint32_t cp = 0;
        size_t n = utf8_decode(j->text + at, len - at, &cp);
        if (n == 0)
            n = 1; /* not reached: text is valid UTF-8 */
        if (is_number(cp)) {
            int r = at > done ? join(j, done, at, false) : 0;
            if (r == 0)
                r = join(j, at, at + n, true);
            if (r < 0)
                return r;
            done = at + n;
        }
        at += n;
    }
    return done < len ? join(j, done, len, false) : 0;
}

static int run_prefix_space(struct encoder *e, size_t step, const char *piece, size_t len)
{
    if (piece[0] == ' ')
        return split_run(e, step + 1, piece, len);
    _cleanup_free_ char *with = mem_alloc(len + 1);
    if (!with)
        return ERR_NOMEM(e->err);
    with[0] = ' ';
    memcpy(with + 1, piece, len);
    return split_run(e, step + 1, with, len + 1);
}

int split_run(struct encoder *e, size_t step, const char *piece, size_t len)
{
    if (len == 0)
        return 0;
    if (step == e->t->split.n)
        return bpe_encode(e, piece, len);
    const struct split_step *s = &e->t->split.steps[step];
    struct joiner j = {
        .e = e, .step = step + 1, .text = piece, .behavior = s->behavior, .invert = s->invert};
    int r = 0;
    switch (s->kind) {
    case STEP_REGEX:
        r = run_regex(s, &j, len);
        break;
    case STEP_STRING:
        r = run_string(s, &j, len);
        break;
    case STEP_DIGITS:
        r = run_digits(&j, len);
        break;
    case STEP_PREFIX_SPACE:
        return run_prefix_space(e, step, piece, len);
    }
    return r < 0 ? r : flush(&j);
}
