/* SPDX-License-Identifier: Apache-2.0 */
/* Training data: what is read, what is refused and how it is named, sets of it, memory running out. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/strbuf.h"
#include "tests/unit/util.h"
#include "train/data.h"

static int parse(const char *text, struct data_record *r, struct error *err)
{
    *err = (struct error){0};
    return data_parse_line(text, strlen(text), "x.jsonl", 7, 100, r, NULL, err);
}

START_TEST(line_is_read)
{
    _cleanup_record_ struct data_record r = {0};
    struct error err;
    ck_ok(
        parse(
            "{\"kind\":\"chat\",\"temperature\":0.7,\"end\":\"loop\",\"response_spans\":[[1,2],[2,4]],"
            "\"ids\":[5,6,7,99],\"seed\":9223372036854775807,\"n\":3,\"more\":{\"a\":[1]}}",
            &r, &err),
        &err);
    ck_assert_uint_eq(r.ids.len, 4);
    ck_assert_uint_eq(r.ids.ids[3], 99);
    ck_assert_uint_eq(r.n_spans, 2);
    ck_assert_uint_eq(r.spans[1].begin, 2);
    ck_assert_uint_eq(r.spans[1].end, 4);
    ck_assert_uint_eq(r.n_supervised, 3);
    ck_assert_str_eq(r.kind, "chat");
    ck_assert_int_eq(r.end, DATA_END_LOOP);
    ck_assert(r.temperature > 0.69 && r.temperature < 0.71);
    ck_assert(r.has_seed && r.seed == INT64_MAX && r.has_number && r.number == 3);
    /* The next line finds nothing of this one. */
    ck_ok(parse("{\"ids\":[1],\"response_spans\":[]}", &r, &err), &err);
    ck_assert(r.ids.len == 1 && r.n_spans == 0 && r.n_supervised == 0 && !r.has_seed &&
              !r.has_number && r.kind[0] == '\0' && r.temperature < 0 && r.end == DATA_END_UNKNOWN);
    ck_assert_int_eq(parse(" \t\r", &r, &err), 2);
    ck_assert_int_eq(parse("", &r, &err), 2);
}
END_TEST

static const struct {
    const char *text, *message;
} broken[] = {
    {"[]", "x.jsonl:7"},
    {"{", "x.jsonl:7:2: "},
    {"{\"response_spans\":[]}", "\"ids\" is missing"},
    {"{\"ids\":[1]}", "\"response_spans\" is missing"},
    {"{\"ids\":[],\"response_spans\":[]}", "\"ids\" is empty"},
    {"{\"ids\":1,\"response_spans\":[]}", "\"ids\""},
    {"{\"ids\":[1.5],\"response_spans\":[]}", "\"ids\"[0] is not a token id"},
    {"{\"ids\":[1,-1],\"response_spans\":[]}", "\"ids\"[1] is not a token id"},
    {"{\"ids\":[4294967295],\"response_spans\":[]}", "\"ids\"[0] is not a token id"},
    {"{\"ids\":[1,100],\"response_spans\":[]}", "\"ids\"[1] is 100; the model has 100 tokens"},
    {"{\"ids\":[1,2],\"response_spans\":[1]}", "\"response_spans\"[0] is not [begin, end]"},
    {"{\"ids\":[1,2],\"response_spans\":[[0]]}", "is not [begin, end]"},
    {"{\"ids\":[1,2],\"response_spans\":[[0,1,2]]}", "is not [begin, end]"},
    {"{\"ids\":[1,2],\"response_spans\":[[0,true]]}", "is not [begin, end]"},
    {"{\"ids\":[1,2],\"response_spans\":[[1,1]]}", "\"response_spans\"[0] is [1, 1]: spans ascend"},
    {"{\"ids\":[1,2],\"response_spans\":[[-1,1]]}", "[-1, 1]"},
    {"{\"ids\":[1,2],\"response_spans\":[[0,3]]}", "end inside the 2 ids"},
    {"{\"ids\":[1,2,3],\"response_spans\":[[1,2],[0,1]]}", "\"response_spans\"[1]"},
    {"{\"ids\":[1,2,3],\"response_spans\":[[0,2],[1,3]]}", "\"response_spans\"[1]"},
    {"{\"ids\":[1],\"response_spans\":[],\"kind\":1}", "\"kind\""},
    {"{\"ids\":[1],\"response_spans\":[],\"temperature\":-1}", "\"temperature\""},
    {"{\"ids\":[1],\"response_spans\":[],\"temperature\":\"x\"}", "\"temperature\""},
    {"{\"ids\":[1],\"response_spans\":[],\"seed\":-1}", "\"seed\" is not a whole number"},
    {"{\"ids\":[1],\"response_spans\":[],\"n\":0.5}", "\"n\" is not a whole number"},
    {"{\"ids\":[1],\"ids\":[1],\"response_spans\":[]}", "x.jsonl:7"},
    {"{\"dedit_data\":2}", "this version reads 1"},
    {"{\"dedit_data\":1,\"vocab_size\":101,\"target\":\"other\"}", "a model of 101 tokens (other)"},
    {"{\"dedit_data\":1,\"vocab_size\":0}", "\"vocab_size\""},
};
START_TEST(broken_line_is_named)
{
    _cleanup_record_ struct data_record r = {0};
    struct error err;
    int code = parse(broken[_i].text, &r, &err);
    ck_assert_msg(code < 0, "%s is taken", broken[_i].text);
    ck_assert_msg(strstr(err.msg, broken[_i].message) && !strncmp(err.msg, "x.jsonl:7", 9),
                  "%s: %s", broken[_i].text, err.msg);
}
END_TEST

START_TEST(header_is_read)
{
    _cleanup_record_ struct data_record r = {0};
    struct data_header h = {.present = false};
    struct error err = {0};
    const char *text =
        "{\"dedit_data\":1,\"target\":\"m\",\"vocab_size\":100,\"made_by\":\"synth\",\"seed\":5}";
    ck_assert_int_eq(data_parse_line(text, strlen(text), "x", 1, 100, &r, &h, &err), 1);
    ck_assert(h.present && h.vocab_size == 100 && h.seed == 5);
    ck_assert_str_eq(h.target, "m");
    ck_assert_str_eq(h.made_by, "synth");
}
END_TEST

START_TEST(line_is_written_and_read_back)
{
    _cleanup_record_ struct data_record a = {0}, b = {0};
    _cleanup_strbuf_ struct strbuf s = {0}, again = {0};
    struct error err;
    ck_ok(
        parse(
            "{\"kind\":\"a b\",\"temperature\":0.7,\"end\":\"max\",\"response_spans\":[[0,1],[3,4]],"
            "\"ids\":[50,6,7,99],\"seed\":12345678901234,\"n\":0}",
            &a, &err),
        &err);
    ck_assert_int_eq(data_format_line(&a, "[{\"role\":\"user\",\"content\":\"x\"}]", &s), 0);
    ck_assert_uint_eq(s.s[s.len - 1], '\n');
    ck_ok(parse(s.s, &b, &err), &err);
    ck_assert_int_eq(data_format_line(&b, "[{\"role\":\"user\",\"content\":\"x\"}]", &again), 0);
    ck_assert_str_eq(s.s, again.s);
    ck_assert(b.seed == 12345678901234 && b.has_number && b.number == 0 && b.n_supervised == 2);
}
END_TEST

/* ---- sets ---------------------------------------------------------------------------------------- */

static const char *file_of(const char *name, const char *text)
{
    static char paths[4][512];
    static unsigned at;
    char *path = paths[at++ % 4];
    static const char *dir;
    struct error err = {0};
    if (!dir)
        dir = test_tmpdir();
    snprintf(path, 512, "%s/%s", dir, name);
    ck_ok(file_write_atomic(path, text, strlen(text), &err), &err);
    return path;
}

static int open_one(const char *path, const struct data_options *o, struct data_set **ret,
                    struct error *err)
{
    *err = (struct error){0};
    return data_set_open(&path, 1, o, ret, err);
}

#define LINE(ids, spans) "{\"ids\":[" ids "],\"response_spans\":[" spans "]}\n"

START_TEST(set_is_read)
{
    const char *path = file_of("a.jsonl", "{\"dedit_data\":1,\"target\":\"tiny\"}\n" /* line 1 */
                               LINE("1,2,3", "[1,3]")                                /* 2 */
                               "\n" LINE("4,5,6,7", "[0,1],[2,4]")                   /* 4 */
                               LINE("1,2,3", "[1,3]")                                /* 5: as 2 */
                               "{\"ids\":[8],\"response_spans\":[[0,1]],\"kind\":\"k\"}");
    const struct data_options o = {.vocab_size = 9};
    struct data_set *d = NULL;
    struct data_set_info info;
    struct data_sample s;
    struct error err;
    uint8_t mask[4];
    uint64_t counts[9] = {0};
    ck_ok(open_one(path, &o, &d, &err), &err);
    data_set_get_info(d, &info);
    ck_assert_uint_eq(info.n, 3);
    ck_assert_uint_eq(info.n_tokens, 8);
    ck_assert_uint_eq(info.n_supervised, 6);
    ck_assert_uint_eq(info.n_duplicates, 1);
    ck_assert_uint_eq(info.max_len, 4);
    ck_assert_str_eq(info.target, "tiny");
    data_set_sample(d, 1, &s);
    ck_assert(s.n == 4 && s.n_spans == 2 && s.n_supervised == 3 && s.line == 4);
    ck_assert_str_eq(s.file, path);
    data_sample_mask(&s, mask);
    ck_assert(mask[0] == 1 && mask[1] == 0 && mask[2] == 1 && mask[3] == 1);
    data_set_sample(d, 2, &s);
    ck_assert_str_eq(data_set_kind(d, s.kind), "k");
    data_set_count(d, counts, 9);
    ck_assert(counts[2] == 1 && counts[3] == 1 && counts[4] == 1 && counts[5] == 0 &&
              counts[8] == 1);
    data_set_free(d);
}
END_TEST

/* Cutting to a length: spans end there, and what keeps none is passed over and told. */
START_TEST(long_ones_are_cut)
{
    const char *path =
        file_of("a.jsonl", LINE("1,2,3,4", "[3,4]") LINE("1,2,3,4,5", "[0,1],[1,5]"));
    const struct data_options o = {.max_len = 3};
    struct data_set *d = NULL;
    struct data_set_info info;
    struct data_sample s;
    struct error err;
    ck_ok(open_one(path, &o, &d, &err), &err);
    data_set_get_info(d, &info);
    ck_assert(info.n == 1 && info.n_cut == 2 && info.n_unsupervised == 1 && info.skipped_line == 1);
    ck_assert_str_eq(info.skipped_file, path);
    data_set_sample(d, 0, &s);
    ck_assert(s.n == 3 && s.n_spans == 2 && s.spans[1].end == 3 && s.n_supervised == 3);
    data_set_free(d);
}
END_TEST

/* TRN-02, TRN-07: an answer of nothing is an error with its line, or counted; never trained on. */
START_TEST(nothing_supervised)
{
    const char *path = file_of("a.jsonl", LINE("1,2", "[0,1]") LINE("1,2", ""));
    struct data_options o = {.vocab_size = 9};
    struct data_set *d = NULL;
    struct data_set_info info;
    struct error err;
    char want[600];
    ck_fails(open_one(path, &o, &d, &err), FORMAT, &err);
    snprintf(want, sizeof(want), "%s:2: nothing to train on", path);
    ck_assert_msg(!strncmp(err.msg, want, strlen(want)), "%s", err.msg);
    o.skip_unsupervised = true;
    ck_ok(open_one(path, &o, &d, &err), &err);
    data_set_get_info(d, &info);
    ck_assert(info.n == 1 && info.n_unsupervised == 1 && info.skipped_line == 2);
    data_set_free(d);
    path = file_of("b.jsonl", LINE("1,2", ""));
    ck_fails(open_one(path, &o, &d, &err), FORMAT, &err);
    path = file_of("c.jsonl", "");
    ck_fails(open_one(path, &o, &d, &err), FORMAT, &err);
    path = file_of("d.jsonl", LINE("1,2", "[0,1]") "{\"dedit_data\":1}\n");
    ck_fails(open_one(path, &o, &d, &err), FORMAT, &err);
    ck_assert_msg(strstr(err.msg, ":2: a header"), "%s", err.msg);
    path = "/nonexistent/x.jsonl";
    ck_fails(open_one(path, &o, &d, &err), NOT_FOUND, &err);
}
END_TEST

START_TEST(folder_in_order_of_names)
{
    const char *b = file_of("s-2.jsonl", LINE("2", "[0,1]")),
               *a = file_of("s-1.jsonl", LINE("1", "[0,1]"));
    char dir[600];
    const struct data_options o = {.vocab_size = 9};
    struct data_set *d = NULL;
    struct data_sample s;
    struct error err;
    (void)file_of("s-0.jsonl.tmp", "no data");
    (void)b;
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(a, '/') - a), a);
    ck_ok(open_one(dir, &o, &d, &err), &err);
    ck_assert_uint_eq(data_set_size(d), 2);
    data_set_sample(d, 0, &s);
    ck_assert_uint_eq(s.ids[0], 1);
    data_set_free(d);
    snprintf(dir + strlen(dir), sizeof(dir) - strlen(dir), "/empty");
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    ck_fails(open_one(dir, &o, &d, &err), NOT_FOUND, &err);
    ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* A share is held out, the same samples whatever stands around them. */
/* Twenty thousand shards are compared by what they are, not each with each: that took minutes. */
START_TEST(many_files_and_one_twice)
{
    enum { N = 20000 };
    const char *dir = test_tmpdir();
    static char text[N][64];
    static const char *paths[N + 1];
    char link_path[512];
    struct error err = {0};
    struct data_set *d = NULL;
    const struct data_options o = {0};
    for (unsigned i = 0; i < N; i++) {
        snprintf(text[i], sizeof(text[i]), "%.40s/%u", dir, i);
        FILE *f = fopen(text[i], "w");
        ck_assert_ptr_nonnull(f);
        fprintf(f, "{\"ids\":[1,%u],\"response_spans\":[[1,2]]}\n", i);
        fclose(f);
        paths[i] = text[i];
    }
    const clock_t begin = clock();
    ck_ok(data_set_open(paths, N, &o, &d, &err), &err);
    ck_assert_uint_eq(data_set_size(d), N);
    ck_assert_msg((double)(clock() - begin) / CLOCKS_PER_SEC < 30, "%.1f s",
                  (double)(clock() - begin) / CLOCKS_PER_SEC);
    data_set_free(d);
    snprintf(link_path, sizeof(link_path), "%s/link", dir);
    ck_assert_int_eq(link(text[17], link_path), 0);
    paths[N] = link_path;
    ck_assert_int_eq(data_set_open(paths, N + 1, &o, &d, &err), DEDIT_E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.msg, "link: is given twice, also as "));
    ck_assert_ptr_nonnull(strstr(err.msg, text[17]));
}
END_TEST

START_TEST(held_out_share)
{
    _cleanup_strbuf_ struct strbuf s = {0};
    for (int i = 0; i < 2000; i++)
        ck_assert_int_eq(strbuf_addf(&s, LINE("%d,%d", "[0,2]"), i, i * 7), 0);
    const char *path = file_of("a.jsonl", s.s);
    const struct data_options o = {.vocab_size = 0};
    struct data_set *d = NULL, *one = NULL;
    struct data_sample sample, alone;
    struct error err;
    unsigned held = 0;
    ck_ok(open_one(path, &o, &d, &err), &err);
    for (uint64_t i = 0; i < data_set_size(d); i++) {
        data_set_sample(d, i, &sample);
        held += data_sample_held_out(&sample, 0.05);
        ck_assert(!data_sample_held_out(&sample, 0) && data_sample_held_out(&sample, 1));
    }
    ck_assert_msg(held > 60 && held < 145, "%u of 2000", held);
    data_set_sample(d, 1234, &sample);
    path = file_of("b.jsonl", LINE("1234,8638", "[0,2]"));
    ck_ok(open_one(path, &o, &one, &err), &err);
    data_set_sample(one, 0, &alone);
    ck_assert(alone.hash == sample.hash);
    data_set_free(one);
    data_set_free(d);
}
END_TEST

START_TEST(many_kinds_end_in_other)
{
    _cleanup_strbuf_ struct strbuf s = {0};
    for (int i = 0; i < 80; i++)
        ck_assert_int_eq(
            strbuf_addf(&s, "{\"ids\":[%d],\"response_spans\":[[0,1]],\"kind\":\"k%d\"}\n", i, i),
            0);
    const char *path = file_of("a.jsonl", s.s);
    const struct data_options o = {.vocab_size = 0};
    struct data_set *d = NULL;
    struct data_sample sample;
    struct error err;
    ck_ok(open_one(path, &o, &d, &err), &err);
    data_set_sample(d, 79, &sample);
    ck_assert_str_eq(data_set_kind(d, sample.kind), "other");
    data_set_sample(d, 62, &sample);
    ck_assert_str_eq(data_set_kind(d, sample.kind), "k62");
    data_set_free(d);
}
END_TEST

START_TEST(memory_runs_out)
{
    const char *path = file_of("a.jsonl", LINE("1,2,3", "[1,3]") LINE("4,5,6,7", "[0,1],[2,4]"));
    const struct data_options o = {.vocab_size = 9};
    for (struct test_oom oom = {0}; test_oom_next(&oom);) {
        struct data_set *d = NULL;
        struct error err;
        int r = open_one(path, &o, &d, &err);
        ck_assert_msg(r == 0 || (r == DEDIT_E_NOMEM && oom.failed), "%d: %s", r, err.msg);
        data_set_free(d);
        _cleanup_record_ struct data_record rec = {0};
        _cleanup_strbuf_ struct strbuf s = {0};
        r = parse(LINE("1,2,3", "[1,3]"), &rec, &err);
        if (r == 0)
            r = data_format_line(&rec, NULL, &s);
        ck_assert(r == 0 || (r == DEDIT_E_NOMEM && oom.failed));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-data");
    TCase *tc = test_case(s, "line");
    tcase_add_test(tc, line_is_read);
    tcase_add_loop_test(tc, broken_line_is_named, 0, ARRAY_LEN(broken));
    tcase_add_test(tc, header_is_read);
    tcase_add_test(tc, line_is_written_and_read_back);
    tc = test_case(s, "set");
    tcase_add_test(tc, set_is_read);
    tcase_add_test(tc, long_ones_are_cut);
    tcase_add_test(tc, nothing_supervised);
    tcase_add_test(tc, folder_in_order_of_names);
    tcase_add_test(tc, many_files_and_one_twice);
    tcase_add_test(tc, held_out_share);
    tcase_add_test(tc, many_kinds_end_in_other);
    tcase_add_test(tc, memory_runs_out);
    return test_main(s);
}
