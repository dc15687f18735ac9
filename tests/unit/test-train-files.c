/* SPDX-License-Identifier: Apache-2.0 */
/* Loops, lists, prompts, tables and shards: what synth, regen, eval and plot stand on. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/strbuf.h"
#include "engine/prompt_file.h"
#include "tests/unit/util.h"
#include "train/csv.h"
#include "train/lists.h"
#include "train/loop_watch.h"
#include "train/shards.h"

/* ---- loops --------------------------------------------------------------------------------------- */

/* Does it loop at the end, by the definition? */
static uint32_t loops(const uint32_t *ids, size_t n)
{
    for (uint32_t p = 1; p <= LOOP_MAX_PERIOD; p++) {
        size_t len = 2 * p + 8 > 24 ? 2 * p + 8 : 24, i = 0;
        while (len <= n && i + p < len && ids[n - 1 - i] == ids[n - 1 - i - p])
            i++;
        if (len <= n && i + p == len)
            return p;
    }
    return 0;
}

START_TEST(loop_is_seen_where_it_is)
{
    uint32_t ids[400];
    unsigned found = 0;
    srand(7);
    for (int trial = 0; trial < 300; trial++) {
        const uint32_t period = 1 + (uint32_t)rand() % 90, noise = (uint32_t)rand() % 60;
        struct loop_watch w;
        loop_reset(&w);
        for (size_t n = 0; n < ARRAY_LEN(ids); n++) {
            ids[n] = n < noise + period ? (uint32_t)rand() % 5 : ids[n - period];
            const uint32_t want = loops(ids, n + 1), got = loop_push(&w, ids, n + 1);
            ck_assert_msg(want == got, "trial %d, token %zu: %u, wanted %u", trial, n, got, want);
            if (got) {
                found++;
                break;
            }
        }
    }
    ck_assert_uint_gt(found, 200);
}
END_TEST

/* ---- files --------------------------------------------------------------------------------------- */

static const char *file_of(const char *text)
{
    static char path[512];
    struct error err = {0};
    snprintf(path, sizeof(path), "%s/file", test_tmpdir());
    ck_ok(file_write_atomic(path, text, strlen(text), &err), &err);
    return path;
}

START_TEST(lists)
{
    struct text_list l = {0};
    struct error err = {0};
    ck_ok(text_list_read(file_of("# what\n\n  one \r\ntwo three\n\t#no\nfour"), &l, &err), &err);
    ck_assert_uint_eq(l.n, 3);
    ck_assert_str_eq(l.s[0], "one");
    ck_assert_str_eq(l.s[1], "two three");
    ck_assert_str_eq(l.s[2], "four");
    const uint64_t h = text_list_hash(&l);
    text_list_done(&l);
    ck_ok(text_list_read(file_of("one\ntwo three\nfive\n"), &l, &err), &err);
    ck_assert(h != text_list_hash(&l));
    text_list_done(&l);
    ck_fails(text_list_read(file_of("# nothing\n"), &l, &err), FORMAT, &err);
    ck_fails(text_list_read(file_of("ok\n\xff\n"), &l, &err), FORMAT, &err);
    ck_assert_msg(strstr(err.msg, ":2: not UTF-8"), "%s", err.msg);
    const struct text_list *const all[] = {&list_math, &list_code, &list_chat, &list_skeletons,
                                           &list_topics};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        for (size_t k = 0; k < all[i]->n; k++) {
            ck_assert(all[i]->s[k][0]);
            ck_assert_msg((strstr(all[i]->s[k], "%s") != NULL) == (all[i] == &list_skeletons), "%s",
                          all[i]->s[k]);
        }
}
END_TEST

static const struct {
    const char *text, *message;
} bad_prompts[] = {
    {"", "no prompt"},
    {"{}\n", ":1: none of \"turns\", \"messages\" and \"prompt\""},
    {"{\"prompt\":\"a\"}\n{\"turns\":[]}\n", ":2: \"turns\" is not a list of texts"},
    {"{\"turns\":[1]}\n", "\"turns\"[0] is not a text"},
    {"{\"messages\":[]}\n", "has none of the user"},
    {"{\"messages\":{}}\n", "\"messages\" is not a list"},
    {"{\"messages\":[{\"content\":\"x\"}]}\n", "\"messages\"[0] has no \"role\""},
    {"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}\n", "role \"tool\""},
    {"{\"messages\":[{\"role\":\"user\"}]}\n", "\"content\" is not a text"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}\n",
     "\"content\"[0] is not a text part"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"system\",\"content\":\"y\"}]}\n",
     "not the first"},
};
START_TEST(bad_prompts_are_named)
{
    struct prompt_file f = {0};
    struct error err = {0};
    int r = prompt_file_read(file_of(bad_prompts[_i].text), &f, &err);
    ck_assert(r < 0);
    ck_assert_msg(strstr(err.msg, bad_prompts[_i].message), "%s", err.msg);
    prompt_file_done(&f);
}
END_TEST

START_TEST(prompts)
{
    struct prompt_file f = {0};
    struct error err = {0};
    const char *path = file_of(
        "{\"prompt\":\"a\"}\n\n{\"turns\":[\"b\",\"c\"],\"id\":7}\n"
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":"
        "\"text\",\"text\":\"d\"},{\"type\":\"text\",\"text\":\"e\"}]},{\"role\":\"assistant\",\"content\":\"x\"},"
        "{\"role\":\"user\",\"content\":\"f\"}]}");
    ck_ok(prompt_file_read(path, &f, &err), &err);
    ck_assert_uint_eq(f.n, 3);
    ck_assert(f.prompts[0].n_turns == 1 && !f.prompts[0].system);
    ck_assert_str_eq(f.prompts[1].turns[1], "c");
    ck_assert_uint_eq(f.prompts[1].line, 3);
    ck_assert_str_eq(f.prompts[2].system, "s");
    ck_assert_uint_eq(f.prompts[2].n_turns, 2);
    ck_assert_str_eq(f.prompts[2].turns[0], "de");
    ck_assert_str_eq(f.prompts[2].turns[1], "f");
    prompt_file_done(&f);
    for (struct test_oom oom = {0}; test_oom_next(&oom);) {
        int r = prompt_file_read(path, &f, &err);
        ck_assert(r == 0 || (r == DEDIT_E_NOMEM && oom.failed));
        prompt_file_done(&f);
    }
}
END_TEST

START_TEST(tables)
{
    struct csv c = {0};
    struct error err = {0};
    ck_ok(csv_read(file_of("a,b\n1,2.5\n3,\n4,5"), &c, &err), &err);
    ck_assert(c.n_rows == 2 && c.n_columns == 2);
    ck_assert(csv_column(&c, "b") == 1 && csv_column(&c, "c") == -1);
    ck_assert(csv_value(&c, 0, 1) > 2.49 && csv_value(&c, 0, 1) < 2.51);
    ck_assert(isnan(csv_value(&c, 1, 1)));
    csv_done(&c);
    ck_fails(csv_read(file_of("a,b\n1\n"), &c, &err), FORMAT, &err);
    ck_assert_msg(strstr(err.msg, ":2: 1 columns"), "%s", err.msg);
    ck_fails(csv_read(file_of("a,b\n1,x\n"), &c, &err), FORMAT, &err);
    ck_assert_msg(strstr(err.msg, "column \"b\": \"x\""), "%s", err.msg);
    ck_fails(csv_read(file_of(""), &c, &err), FORMAT, &err);
}
END_TEST

/* ---- shards -------------------------------------------------------------------------------------- */

struct count {
    uint64_t n;
};
static int found(void *arg, const struct data_record *r, const char *line, size_t len,
                 struct error *err)
{
    struct count *c = arg;
    (void)err;
    ck_assert_uint_eq(r->ids.ids[0], c->n);
    ck_assert(line[0] == '{' && line[len - 1] == '}');
    c->n++;
    return 0;
}

static const char *folder(void)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s", test_tmpdir());
    return path;
}

static int open_shards(const char *dir, json_t *header, struct count *c, struct shards **ret,
                       struct shards_found *f, struct error *err)
{
    const struct shards_options o = {.dir = dir,
                                     .prefix = "t",
                                     .header = header,
                                     .vocab_size = 1000,
                                     .shard_bytes = 200,
                                     .sync_ns = 0};
    *c = (struct count){0};
    *err = (struct error){0};
    return shards_open(&o, found, c, ret, f, err);
}

static void add(struct shards *s, uint64_t from, uint64_t to)
{
    struct error err = {0};
    for (uint64_t i = from; i < to; i++) {
        char line[128];
        int n = snprintf(line, sizeof(line), "{\"ids\":[%u,7],\"response_spans\":[[1,2]]}\n",
                         (unsigned)i);
        ck_ok(shards_add(s, line, (size_t)n, &err), &err);
    }
}

START_TEST(shards_are_gone_on_with)
{
    json_t *header = json_pack("{s:s, s:{s:f}}", "made_by", "t", "recipe", "x", 0.15);
    json_t *other = json_pack("{s:s, s:{s:f}}", "made_by", "t", "recipe", "x", 0.25);
    const char *dir = folder();
    struct shards *s = NULL, *second = NULL;
    struct shards_found f;
    struct count c;
    struct error err;
    char path[600];
    ck_ok(open_shards(dir, header, &c, &s, &f, &err), &err);
    ck_assert(f.lines == 0 && f.shards == 0);
    add(s, 0, 11);
    ck_fails(open_shards(dir, header, &c, &second, &f, &err), BUSY, &err);
    ck_ok(shards_sync(s, true, &err), &err);
    shards_free(s);
    /* A line that was not written whole. */
    ck_ok(open_shards(dir, header, &c, &s, &f, &err), &err);
    ck_assert(f.lines == 11 && c.n == 11 && f.shards >= 3 && f.cut_bytes == 0);
    shards_free(s);
    snprintf(path, sizeof(path), "%s/t-%05u.jsonl", dir, f.shards - 1);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    ck_assert(write(fd, "{\"ids\":[11,7],\"resp", 19) == 19 && close(fd) == 0);
    ck_ok(open_shards(dir, header, &c, &s, &f, &err), &err);
    ck_assert(f.lines == 11 && f.cut_bytes == 19);
    add(s, 11, 20);
    ck_ok(shards_sync(s, true, &err), &err);
    shards_free(s);
    ck_ok(open_shards(dir, header, &c, &s, &f, &err), &err);
    ck_assert(c.n == 20);
    shards_free(s);
    ck_fails(open_shards(dir, other, &c, &s, &f, &err), MISMATCH, &err);
    ck_assert_msg(strstr(err.msg, "\"x\" is 0.15 there, 0.25 now"), "%s", err.msg);
    /* A dtype that nobody wrote was "file". */
    json_object_set_new(header, "dtype", json_string("file"));
    ck_ok(open_shards(dir, header, &c, &s, &f, &err), &err);
    shards_free(s);
    json_object_set_new(header, "dtype", json_string("bf16"));
    ck_fails(open_shards(dir, header, &c, &s, &f, &err), MISMATCH, &err);
    ck_assert_msg(strstr(err.msg, "\"dtype\" is \"file\" there, \"bf16\" now"), "%s", err.msg);
    json_object_del(header, "dtype");
    /* A damaged line is cut off in the last shard, and an error in one before. */
    snprintf(path, sizeof(path), "%s/t-00000.jsonl", dir);
    fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    ck_assert(write(fd, "{}\n", 3) == 3 && close(fd) == 0);
    ck_fails(open_shards(dir, header, &c, &s, &f, &err), FORMAT, &err);
    ck_assert_msg(strstr(err.msg, "t-00000.jsonl:"), "%s", err.msg);
    json_decref(header);
    json_decref(other);
}
END_TEST

/* The bytes do not depend on how often it was opened. */
START_TEST(same_bytes_in_pieces)
{
    json_t *header = json_pack("{s:s}", "made_by", "t");
    _cleanup_free_ char *a = NULL, *b = NULL;
    struct shards *s = NULL;
    struct shards_found f;
    struct count c;
    struct error err;
    char one[600], two[600], path[700];
    size_t n, k;
    snprintf(one, sizeof(one), "%s/one", folder());
    snprintf(two, sizeof(two), "%s/two", folder());
    ck_ok(open_shards(one, header, &c, &s, &f, &err), &err);
    add(s, 0, 30);
    ck_ok(shards_sync(s, true, &err), &err);
    shards_free(s);
    for (uint64_t i = 0; i < 30; i += 3) {
        ck_ok(open_shards(two, header, &c, &s, &f, &err), &err);
        ck_assert_uint_eq(c.n, i);
        add(s, i, i + 3);
        ck_ok(shards_sync(s, true, &err), &err);
        shards_free(s);
    }
    ck_ok(open_shards(two, header, &c, &s, &f, &err), &err);
    shards_free(s);
    for (uint32_t i = 0; i < f.shards; i++) {
        snprintf(path, sizeof(path), "%s/t-%05u.jsonl", one, i);
        ck_ok(file_read(path, 1 << 20, &a, &n, &err), &err);
        ck_assert_int_eq(unlink(path), 0);
        snprintf(path, sizeof(path), "%s/t-%05u.jsonl", two, i);
        ck_ok(file_read(path, 1 << 20, &b, &k, &err), &err);
        ck_assert_int_eq(unlink(path), 0);
        ck_assert(n == k && memcmp(a, b, n) == 0);
        mem_free(a);
        mem_free(b);
        a = b = NULL;
    }
    ck_assert(f.shards > 4 && rmdir(one) == 0 && rmdir(two) == 0);
    json_decref(header);
}
END_TEST

START_TEST(memory_runs_out)
{
    json_t *header = json_pack("{s:s}", "made_by", "t");
    char dir[600];
    unsigned failed = 0;
    snprintf(dir, sizeof(dir), "%s", folder());
    for (struct test_oom oom = {0}; test_oom_next(&oom);) {
        struct shards *s = NULL;
        struct shards_found f;
        struct count c;
        struct error err;
        const char *line = "{\"ids\":[0,7],\"response_spans\":[[1,2]]}\n";
        char path[700];
        int r = open_shards(dir, header, &c, &s, &f, &err);
        for (int i = 0; i < 4 && r == 0; i++)
            r = shards_add(s, line, strlen(line), &err);
        if (r == 0)
            r = shards_sync(s, true, &err);
        shards_free(s);
        ck_assert_msg(r == 0 || (r == DEDIT_E_NOMEM && oom.failed), "%d: %s", r, err.msg);
        failed += r != 0;
        for (unsigned i = 0; i < 3; i++) {
            snprintf(path, sizeof(path), "%s/t-%05u.jsonl", dir, i);
            (void)unlink(path);
        }
    }
    ck_assert_uint_ge(failed, 8);
    json_decref(header);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-files");
    TCase *tc = test_case(s, "files");
    tcase_add_test(tc, loop_is_seen_where_it_is);
    tcase_add_test(tc, lists);
    tcase_add_test(tc, prompts);
    tcase_add_loop_test(tc, bad_prompts_are_named, 0, ARRAY_LEN(bad_prompts));
    tcase_add_test(tc, tables);
    tc = test_case(s, "shards");
    tcase_add_test(tc, shards_are_gone_on_with);
    tcase_add_test(tc, same_bytes_in_pieces);
    tcase_add_test(tc, memory_runs_out);
    return test_main(s);
}
