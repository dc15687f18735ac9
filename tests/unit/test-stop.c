/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings: what is released, what is held, and that pieces do not matter. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/stop.h"
#include "tests/unit/util.h"

static struct stop_matcher *matcher(const char *const *stops, size_t n, bool include)
{
    struct stop_string s[SAMPLING_MAX_STOP_STRINGS];
    for (size_t i = 0; i < n; i++)
        s[i] = (struct stop_string){stops[i], strlen(stops[i])};
    struct stop_matcher *m = NULL;
    struct error err = {0};
    ck_ok(stop_matcher_new(s, n, include, &m, &err), &err);
    return m;
}

/* Feeds pieces until a match; every event goes to `events` followed by '|'.  Returns the index of
 * the piece that met a stop, or -1; then what flush gives follows after '!'. */
static int run(struct stop_matcher *m, const char *const *pieces, size_t n, struct strbuf *events)
{
    struct error err = {0};
    for (size_t i = 0; i < n; i++) {
        _cleanup_strbuf_ struct strbuf out = {0};
        int r = stop_matcher_feed(m, pieces[i], strlen(pieces[i]), true, &out, &err);
        ck_assert_int_ge(r, 0);
        ck_assert_int_eq(strbuf_add(events, out.s ? out.s : "", out.len), 0);
        ck_assert_int_eq(strbuf_addc(events, '|'), 0);
        if (r)
            return (int)i;
    }
    ck_assert_int_eq(strbuf_addc(events, '!'), 0);
    ck_ok(stop_matcher_flush(m, events, &err), &err);
    return -1;
}

/* GTW-03: tokens of "The quick brown fox jumps". */
START_TEST(gtw_03)
{
    static const char *const pieces[] = {"The", " quick", " brown", " fox", " jumps"};
    static const struct {
        const char *stop[2];
        size_t n;
        const char *events;
        int at;
    } cases[] = {
        {{"own fox"}, 1, "The| quick| br||", 3},
        {{"fox", "brown fox"}, 2, "The| quick| ||", 3},
        {{"x j"}, 1, "The| quick| brown| fo||", 4},
        {{"zzz"}, 1, "The| quick| brown| fox| jumps|!", -1},
        {{"jumps over", "s "}, 2, "The| quick| brown| fox| |!jumps", -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_(stop_matcher_freep) struct stop_matcher *m =
            matcher(cases[i].stop, cases[i].n, false);
        _cleanup_strbuf_ struct strbuf events = {0};
        ck_assert_int_eq(run(m, pieces, ARRAY_LEN(pieces), &events), cases[i].at);
        ck_assert_str_eq(events.s, cases[i].events);
        ck_assert_uint_eq(stop_matcher_held(m), 0);
        if (cases[i].at >= 0) {
            ck_assert_ptr_nonnull(stop_matcher_match(m));
            /* Nothing comes any more. */
            struct error err = {0};
            _cleanup_strbuf_ struct strbuf out = {0};
            ck_assert_int_eq(stop_matcher_feed(m, "more", 4, true, &out, &err), 1);
            ck_ok(stop_matcher_flush(m, &out, &err), &err);
            ck_assert_uint_eq(out.len, 0);
        }
    }
}
END_TEST

/* DEC-01: one letter a token, a block of many at once or alone. */
START_TEST(dec_01)
{
    static const char *const letters[] = {"b", "c", "d", "e", "f", "g", "h", "i"};
    static const struct {
        const char *stop, *text;
        int at;
    } cases[] = {{"de", "bc", 3}, {"bc", "", 1}, {"i", "bcdefgh", 7}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        _cleanup_(stop_matcher_freep) struct stop_matcher *m = matcher(&cases[i].stop, 1, false);
        struct error err = {0};
        _cleanup_strbuf_ struct strbuf out = {0};
        int at = -1;
        for (int k = 0; k < (int)ARRAY_LEN(letters) && at < 0; k++)
            if (stop_matcher_feed(m, letters[k], 1, true, &out, &err) == 1)
                at = k;
        ck_assert_int_eq(at, cases[i].at);
        ck_assert_str_eq(out.s ? out.s : "", cases[i].text);
        ck_assert_str_eq(stop_matcher_match(m)->s, cases[i].stop);
    }
}
END_TEST

START_TEST(include_and_empty)
{
    static const char *const stops[] = {"END"};
    static const char *const pieces[] = {"a", "", "bE", "N", "Dc"};
    _cleanup_(stop_matcher_freep) struct stop_matcher *m = matcher(stops, 1, true);
    _cleanup_strbuf_ struct strbuf events = {0};
    ck_assert_int_eq(run(m, pieces, ARRAY_LEN(pieces), &events), 4);
    ck_assert_str_eq(events.s, "a||b||END|");

    _cleanup_(stop_matcher_freep) struct stop_matcher *none = matcher(NULL, 0, false);
    _cleanup_strbuf_ struct strbuf all = {0};
    ck_assert_int_eq(run(none, pieces, ARRAY_LEN(pieces), &all), -1);
    ck_assert_str_eq(all.s, "a||bE|N|Dc|!");
}
END_TEST

/* Matches that are complete before min_tokens do not count, but may still lead to later ones. */
START_TEST(unarmed)
{
    static const char *const stops[] = {"aa"};
    struct error err = {0};
    _cleanup_(stop_matcher_freep) struct stop_matcher *m = matcher(stops, 1, false);
    _cleanup_strbuf_ struct strbuf out = {0};
    ck_assert_int_eq(stop_matcher_feed(m, "xaa", 3, false, &out, &err), 0);
    ck_assert_str_eq(out.s, "xa"); /* the last a may begin the next */
    ck_assert_int_eq(stop_matcher_feed(m, "b", 1, true, &out, &err), 0);
    ck_assert_str_eq(out.s, "xaab");
    ck_assert_int_eq(stop_matcher_feed(m, "a", 1, false, &out, &err), 0);
    ck_assert_int_eq(stop_matcher_feed(m, "a", 1, true, &out, &err), 1);
    ck_assert_str_eq(out.s, "xaab");
}
END_TEST

START_TEST(utf8_boundaries)
{
    /* Held text starts at the first byte of a stop string, so at a character. */
    static const char *const stops[] = {"é漢", "漢字x"};
    static const char *const pieces[] = {"caf", "é", "漢", "字", "y", "漢字", "x"};
    _cleanup_(stop_matcher_freep) struct stop_matcher *m = matcher(stops + 1, 1, false);
    _cleanup_strbuf_ struct strbuf events = {0};
    ck_assert_int_eq(run(m, pieces, ARRAY_LEN(pieces), &events), 6);
    ck_assert_str_eq(events.s, "caf|é|||漢字y|||");
    _cleanup_(stop_matcher_freep) struct stop_matcher *m2 = matcher(stops, 2, false);
    _cleanup_strbuf_ struct strbuf events2 = {0};
    ck_assert_int_eq(run(m2, pieces, ARRAY_LEN(pieces), &events2), 2);
    ck_assert_str_eq(events2.s, "caf|||");
}
END_TEST

/* Reference: scan every end, earliest first, longest string first. */
static long reference(const char *text, const char *const *stops, size_t n, size_t *ret_start)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n; i++) {
            size_t len = strlen(stops[i]);
            if (len <= end && !memcmp(text + end - len, stops[i], len) && len > longest)
                longest = len;
        }
        if (longest) {
            *ret_start = end - longest;
            return (long)end;
        }
    }
    return -1;
}

/* Longest suffix of text that is a proper prefix of a stop string. */
static size_t reference_held(const char *text, const char *const *stops, size_t n)
{
    size_t len = strlen(text);
    for (size_t k = len; k > 0; k--)
        for (size_t i = 0; i < n; i++)
            if (strlen(stops[i]) > k && !memcmp(text + len - k, stops[i], k))
                return k;
    return 0;
}

START_TEST(random_against_reference)
{
    srand(7);
    for (int round = 0; round < 20000; round++) {
        char text[40], buf[4][8];
        const char *stops[4];
        size_t n = 1 + (size_t)(rand() % 4), len = (size_t)(rand() % 39);
        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + rand() % 2);
        text[len] = '\0';
        for (size_t i = 0; i < n; i++) {
            size_t l = 1 + (size_t)(rand() % 7);
            for (size_t j = 0; j < l; j++)
                buf[i][j] = (char)('a' + rand() % (round % 3 ? 2 : 3));
            buf[i][l] = '\0';
            stops[i] = buf[i];
        }
        size_t start = 0;
        long end = reference(text, stops, n, &start);
        _cleanup_(stop_matcher_freep) struct stop_matcher *m = matcher(stops, n, false);
        _cleanup_strbuf_ struct strbuf out = {0};
        struct error err = {0};
        bool met = false;
        for (size_t at = 0; at < len && !met;) {
            size_t piece = 1 + (size_t)(rand() % 5);
            piece = piece < len - at ? piece : len - at;
            met = stop_matcher_feed(m, text + at, piece, true, &out, &err) == 1;
            at += piece;
            if (!met) {
                char seen[40];
                memcpy(seen, text, at);
                seen[at] = '\0';
                ck_assert_uint_eq(stop_matcher_held(m), reference_held(seen, stops, n));
            }
            ck_assert_uint_le(out.len, end >= 0 ? start : len);
        }
        ck_assert_int_eq(met, end >= 0);
        ck_ok(stop_matcher_flush(m, &out, &err), &err);
        ck_assert_uint_eq(out.len, end >= 0 ? start : len);
        ck_assert(out.len == 0 || !memcmp(out.s, text, out.len));
    }
}
END_TEST

START_TEST(limits)
{
    struct error err = {0};
    struct stop_matcher *m = NULL;
    const struct stop_string empty = {"", 0};
    ck_fails(stop_matcher_new(&empty, 1, false, &m, &err), INVALID, &err);
    struct stop_string many[SAMPLING_MAX_STOP_STRINGS + 1];
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = (struct stop_string){"x", 1};
    ck_fails(stop_matcher_new(many, ARRAY_LEN(many), false, &m, &err), INVALID, &err);
    ck_assert_ptr_null(m);
    /* The largest allowed: 64 strings of 256 bytes. */
    char longest[SAMPLING_MAX_STOP_BYTES];
    memset(longest, 'a', sizeof(longest));
    for (size_t i = 0; i < SAMPLING_MAX_STOP_STRINGS; i++)
        many[i] = (struct stop_string){longest, sizeof(longest)};
    ck_ok(stop_matcher_new(many, SAMPLING_MAX_STOP_STRINGS, false, &m, &err), &err);
    _cleanup_strbuf_ struct strbuf out = {0};
    for (int i = 0; i < 255; i++)
        ck_assert_int_eq(stop_matcher_feed(m, "a", 1, true, &out, &err), 0);
    ck_assert_uint_eq(out.len, 0);
    ck_assert_int_eq(stop_matcher_feed(m, "a", 1, true, &out, &err), 1);
    stop_matcher_free(m);
}
END_TEST

START_TEST(allocation_failure)
{
    static const char *const stops[] = {"abc", "bcd"};
    struct test_oom o = {0};
    while (test_oom_next(&o)) {
        struct error err = {0};
        struct stop_string s[] = {{stops[0], 3}, {stops[1], 3}};
        struct stop_matcher *m = NULL;
        _cleanup_strbuf_ struct strbuf out = {0};
        int r = stop_matcher_new(s, 2, false, &m, &err);
        if (r == 0)
            r = stop_matcher_feed(m, "xxabxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxab", 38, true, &out,
                                  &err);
        if (r == 0)
            r = stop_matcher_flush(m, &out, &err);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        stop_matcher_free(m);
    }
    ck_assert_uint_ge(o.nth, 6);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stop");
    TCase *t = test_case(s, "stop");
    tcase_add_test(t, gtw_03);
    tcase_add_test(t, dec_01);
    tcase_add_test(t, include_and_empty);
    tcase_add_test(t, unarmed);
    tcase_add_test(t, utf8_boundaries);
    tcase_add_test(t, random_against_reference);
    tcase_add_test(t, limits);
    tcase_add_test(t, allocation_failure);
    return test_main(s);
}
