/* SPDX-License-Identifier: Apache-2.0 */
/* The target writes conversations: the same ones whatever runs beside them, and what is left out. */
#include <string.h>

#include "base/alloc.h"
#include "base/strbuf.h"
#include "tests/unit/fixture.h"
#include "tests/unit/util.h"
#include "train/author.h"

#define N_TALKS 24u

struct got {
    struct strbuf text; /* all lines, in order */
    uint64_t next;
    uint64_t dropped[AUTHOR_DROP_COUNT];
    uint64_t stop_at; /* conversations, then stop */
    uint64_t known;   /* hash that is known already */
    uint32_t n_plans;
    const struct author_plan *plans; /* NULL: drawn from the number */
    struct author_result last;
    struct data_span spans[8];
    uint32_t n_spans, n_ids, ids[256];
    enum chat_format format; /* 0: ChatML */
    int think;               /* 1: yes, 0: as the format has it, -1: no */
};

static int plan(void *arg, uint64_t n, struct author_plan *ret, struct error *err)
{
    const struct got *g = arg;
    (void)err;
    if (n >= g->n_plans)
        return 1;
    if (g->plans) {
        *ret = g->plans[n];
        return 0;
    }
    *ret = (struct author_plan){.kind = "test",
                                .n_turns = 1 + n % 3,
                                .seed = n * 77,
                                .temperature = n % 2 ? 1 : 0,
                                .max_answer = 10 + (uint32_t)n};
    if (n % 3 == 0)
        snprintf(ret->text, sizeof(ret->text), "Word %u", (unsigned)n);
    return 0;
}

static bool known(void *arg, uint64_t hash)
{
    const struct got *g = arg;
    return g->known && g->known == hash;
}

static int take(void *arg, const struct author_result *r, struct error *err)
{
    struct got *g = arg;
    ck_assert_uint_eq(r->number, g->next);
    ck_assert((r->record != NULL) == (r->drop == AUTHOR_KEPT));
    g->next++;
    g->dropped[r->drop]++;
    g->last = *r;
    if (r->record) {
        g->n_spans = r->record->n_spans;
        g->n_ids = (uint32_t)r->record->ids.len;
        for (uint32_t i = 0; i < g->n_ids && i < ARRAY_LEN(g->ids); i++)
            g->ids[i] = r->record->ids.ids[i];
        for (uint32_t i = 0; i < r->record->n_spans && i < ARRAY_LEN(g->spans); i++)
            g->spans[i] = r->record->spans[i];
        if (data_format_line(r->record, r->messages, &g->text) < 0)
            return ERR_NOMEM(err);
    }
    return g->next == g->stop_at;
}

static int tick(void *arg, struct error *err)
{
    (void)arg;
    (void)err;
    return 0;
}

static struct engine *open_model(const char *path)
{
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};
    engine_config_init(&c);
    c.n_threads = 1;
    c.n_kv_blocks = 200;
    ck_ok(engine_new(path, &c, NULL, NULL, &e, &err), &err);
    return e;
}

static struct engine *open_engine(void)
{
    return open_model(test_path("tests/golden/models/a_llama_tied"));
}

static int run(struct engine *e, struct got *g, uint32_t sequences, struct error *err)
{
    const struct author_options o = {.format = g->format,
                                     .thinking = g->think < 0   ? 0
                                                 : g->think > 0 ? 1
                                                                : -1,
                                     .sequences = sequences,
                                     .max_len = 200,
                                     .max_user = 9,
                                     .user_temperature = 1};
    const struct author_sink s = {plan, known, take, tick, g};
    struct author *a = NULL;
    *err = (struct error){0};
    ck_ok(author_new(e, &o, &s, g->next, &a, err), err);
    int r = author_run(a, err);
    author_free(a);
    return r;
}

START_TEST(same_whatever_runs_beside)
{
    struct engine *e = open_engine();
    struct got one = {.n_plans = N_TALKS}, many = {.n_plans = N_TALKS};
    struct error err;
    ck_ok(run(e, &one, 1, &err), &err);
    ck_ok(run(e, &many, 8, &err), &err);
    ck_assert_uint_eq(one.next, N_TALKS);
    ck_assert_uint_eq(many.next, N_TALKS);
    ck_assert_str_eq(one.text.s, many.text.s);
    /* Stopped and gone on with. */
    struct got parts = {.n_plans = N_TALKS, .stop_at = 5};
    ck_assert_int_eq(run(e, &parts, 3, &err), 1);
    ck_assert_uint_eq(parts.next, 5);
    parts.stop_at = 0;
    ck_ok(run(e, &parts, 5, &err), &err);
    ck_assert_str_eq(one.text.s, parts.text.s);
    strbuf_done(&one.text);
    strbuf_done(&many.text);
    strbuf_done(&parts.text);
    engine_free(e);
}
END_TEST

static const char *const two[] = {"Hello", "And again?"};
static char too_long[900];
static const char *const long_turn[] = {too_long}, *const then_long[] = {"Hello", too_long};

/* Spans are the answers: what stands before the first one is the prompt as a daemon would make it. */
START_TEST(spans_are_the_answers)
{
    struct engine *e = open_engine();
    const struct author_plan plans[] = {
        {.turns = two, .n_given = 2, .n_turns = 2, .system = "Be brief.", .max_answer = 12}};
    const struct chat_message m[] = {
        {.role = "system", .content = "Be brief.", .content_len = 9},
        {.role = "user", .content = two[0], .content_len = 5},
    };
    const struct chat_options o = {.add_generation_prompt = true, .enable_thinking = -1};
    _cleanup_token_list_ struct token_list ids = {0};
    struct got g = {.n_plans = 1, .plans = plans};
    struct error err;
    ck_ok(run(e, &g, 2, &err), &err);
    ck_ok(chat_render_ids(CHAT_CHATML, engine_tokenizer(e), m, 2, &o, &ids, &err), &err);
    ck_assert_uint_eq(g.dropped[AUTHOR_KEPT], 1);
    ck_assert_uint_ge(g.n_spans, 1);
    /* The last answer ends the conversation; the first one, if it came out as it was, follows its
     * prompt. */
    ck_assert_uint_eq(g.spans[g.n_spans - 1].end, g.n_ids);
    ck_assert_uint_le(g.spans[g.n_spans - 1].end - g.spans[g.n_spans - 1].begin, 12);
    if (g.n_spans == 2)
        ck_assert_uint_eq(g.spans[0].begin, ids.len);
    ck_assert(strstr(g.text.s, "\"content\":\"And again?\"") != NULL);
    strbuf_done(&g.text);
    engine_free(e);
}
END_TEST

/*
 * TRN-07: what is trained on is the answer and its end, in every format of ChatML's tokens, whatever
 * the prompt says: here it says what the model answers, and a thinking block that is closed at once
 * belongs to the prompt.
 */
START_TEST(only_answers_are_trained)
{
    static const enum chat_format formats[] = {CHAT_CHATML, CHAT_QWEN3, CHAT_SMOLLM2};
    static const char *const says[] = {"Say A", "A"};
    struct engine *e = open_engine();
    for (size_t i = 0; i < ARRAY_LEN(formats) * 4; i++) {
        const bool with_system = i & 1;
        const int think = i & 2 ? -1 : 0;
        const struct author_plan plans[] = {{.turns = says,
                                             .n_given = 1,
                                             .n_turns = 1,
                                             .system = with_system ? "A" : NULL,
                                             .max_answer = 12}};
        const struct chat_message m[] = {{.role = "system", .content = "A", .content_len = 1},
                                         {.role = "user", .content = says[0], .content_len = 5}};
        const struct chat_options o = {.add_generation_prompt = true,
                                       .enable_thinking = think < 0 ? 0 : -1};
        _cleanup_token_list_ struct token_list ids = {0};
        struct got g = {.n_plans = 1, .plans = plans, .format = formats[i / 4], .think = think};
        struct error err;
        ck_ok(run(e, &g, 2, &err), &err);
        ck_ok(chat_render_ids(formats[i / 4], engine_tokenizer(e), m + !with_system,
                              2 - (size_t)!with_system, &o, &ids, &err),
              &err);
        ck_assert_uint_eq(g.dropped[AUTHOR_KEPT], 1);
        ck_assert_uint_eq(g.n_spans, 1);
        ck_assert_uint_eq(g.spans[0].begin, ids.len);
        ck_assert_uint_eq(g.spans[0].end, g.n_ids);
        ck_assert_uint_gt(g.n_ids, ids.len);
        ck_assert_uint_lt(ids.len, ARRAY_LEN(g.ids));
        ck_assert_int_eq(memcmp(g.ids, ids.ids, ids.len * sizeof(*g.ids)), 0);
        strbuf_done(&g.text);
    }
    engine_free(e);
}
END_TEST

/* A second question that leads to nothing, given or the model's own, leaves the first answer as it was. */
START_TEST(only_the_first_answer)
{
    struct engine *e = open_engine();
    memset(too_long, 'x', sizeof(too_long) - 1);
    const struct author_plan plans[] = {
        {.turns = then_long, .n_given = 2, .n_turns = 2, .max_answer = 12},
        {.turns = then_long, .n_given = 1, .n_turns = 1, .max_answer = 12},
    };
    const struct chat_message m = {.role = "user", .content = "Hello", .content_len = 5};
    const struct chat_options o = {.add_generation_prompt = true, .enable_thinking = -1};
    _cleanup_token_list_ struct token_list ids = {0};
    uint32_t n_ids = 0;
    struct error err;
    ck_ok(chat_render_ids(CHAT_CHATML, engine_tokenizer(e), &m, 1, &o, &ids, &err), &err);
    for (unsigned i = 0; i < ARRAY_LEN(plans); i++) {
        struct got g = {.n_plans = 1, .plans = plans + i};
        ck_ok(run(e, &g, 1, &err), &err);
        ck_assert_uint_eq(g.dropped[AUTHOR_KEPT], 1);
        ck_assert_uint_eq(g.n_spans, 1);
        ck_assert_uint_eq(g.spans[0].begin, ids.len);
        ck_assert_uint_eq(g.spans[0].end, g.n_ids);
        ck_assert(strstr(g.text.s, "xxxx") == NULL);
        ck_assert(i == 0 || g.n_ids == n_ids);
        n_ids = g.n_ids;
        strbuf_done(&g.text);
    }
    engine_free(e);
}
END_TEST

START_TEST(what_is_left_out)
{
    struct engine *e = open_engine();
    struct error err;
    memset(too_long, 'x', sizeof(too_long) - 1);
    const struct author_plan plans[] = {
        {.turns = long_turn, .n_given = 1, .n_turns = 1, .max_answer = 8},
        {.text = "Known", .whole = true, .n_turns = 1, .max_answer = 8},
        {.text = "New", .whole = true, .n_turns = 1, .max_answer = 8},
    };
    struct got g = {.n_plans = 3, .plans = plans, .known = author_begin_hash(NULL, "Known", 5)};
    ck_ok(run(e, &g, 3, &err), &err);
    ck_assert_uint_eq(g.dropped[AUTHOR_LONG], 1);
    ck_assert_uint_eq(g.dropped[AUTHOR_REPEATED], 1);
    ck_assert_uint_eq(g.dropped[AUTHOR_KEPT], 1);
    strbuf_done(&g.text);
    /* Plans that cannot be are errors. */
    const struct author_plan none[] = {{.n_turns = 0}}, many[] = {{.n_turns = 1000}};
    g = (struct got){.n_plans = 1, .plans = none};
    ck_fails(run(e, &g, 1, &err), INVALID, &err);
    g = (struct got){.n_plans = 1, .plans = many};
    ck_fails(run(e, &g, 1, &err), INVALID, &err);
    engine_free(e);
}
END_TEST

/* Every token is followed by itself: an answer goes round in circles, and is cut there. */
START_TEST(loops_are_cut)
{
    struct fixture_chain chain;
    fixture_chain_init(&chain);
    const struct fixture f = fixture_script(fixture_chain_logit, &chain);
    struct engine *e = open_model(fixture_write(&f));
    const struct author_plan plans[] = {
        {.turns = two, .n_given = 1, .n_turns = 2, .max_answer = 60},
        {.n_turns = 1, .max_answer = 60},
    };
    struct got g = {.n_plans = 2, .plans = plans};
    struct error err;
    ck_ok(run(e, &g, 2, &err), &err);
    ck_assert_uint_eq(g.dropped[AUTHOR_KEPT], 1); /* a looping answer has no second turn */
    ck_assert(g.n_spans == 1 && g.spans[0].end - g.spans[0].begin == 24);
    ck_assert(strstr(g.text.s, "\"end\": \"loop\"") != NULL);
    /* Its own question is newlines only. */
    ck_assert_uint_eq(g.dropped[AUTHOR_EMPTY], 1);
    strbuf_done(&g.text);
    engine_free(e);
}
END_TEST

/* Answers that end by themselves: the end-of-turn token is trained on, and the talk goes on. */
START_TEST(turns_end_by_themselves)
{
    struct fixture_chain chain;
    fixture_chain_init(&chain);
    chain.next['\n'] = 'a'; /* after a header */
    chain.next['a'] = 'b';
    chain.next['b'] = FIXTURE_EOS;
    const struct fixture f = fixture_script(fixture_chain_logit, &chain);
    struct engine *e = open_model(fixture_write(&f));
    const struct author_plan plans[] = {{.n_turns = 3, .max_answer = 60, .kind = "k"}};
    struct got g = {.n_plans = 1, .plans = plans};
    struct error err;
    ck_ok(run(e, &g, 2, &err), &err);
    ck_assert_uint_eq(g.n_spans, 3);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(g.spans[i].end - g.spans[i].begin, 3);
    ck_assert(strstr(g.text.s,
                     "{\"role\":\"user\",\"content\":\"ab\"},{\"role\":\"assistant\",\"content\":"
                     "\"ab\"},{\"role\":\"user\",\"content\":\"ab\"}") != NULL);
    ck_assert(strstr(g.text.s, "\"end\": \"eos\"") != NULL);
    strbuf_done(&g.text);
    engine_free(e);
}
END_TEST

/* The header of a user's turn is what renderings of two texts share. */
START_TEST(open_turn)
{
    struct engine *e = open_engine();
    const struct author_options o = {.format = CHAT_CHATML, .thinking = -1};
    const struct tokenizer *t = engine_tokenizer(e);
    _cleanup_token_list_ struct token_list ids = {0};
    _cleanup_strbuf_ struct strbuf text = {0};
    struct detokenizer d = {.n_pending = 0};
    struct error err = {0};
    ck_ok(author_open_turn(t, &o, NULL, 0, &ids, &err), &err);
    for (size_t i = 0; i < ids.len; i++)
        ck_assert_int_eq(detokenizer_push(&d, t, ids.ids[i], 0, &text), 0);
    ck_assert_str_eq(text.s, "<|im_start|>user\n");
    engine_free(e);
}
END_TEST

START_TEST(memory_runs_out)
{
    struct engine *e = open_engine();
    static const struct author_plan plans[] = {
        {.turns = two, .n_given = 1, .n_turns = 2, .max_answer = 4},
        {.text = "Word", .n_turns = 1, .max_answer = 4},
    };
    unsigned failed = 0;
    for (struct test_oom oom = {0}; test_oom_next(&oom);) {
        struct got g = {.n_plans = 2, .plans = plans};
        const struct author_options o = {.format = CHAT_CHATML,
                                         .thinking = -1,
                                         .sequences = 2,
                                         .max_len = 100,
                                         .max_user = 3,
                                         .user_temperature = 1};
        const struct author_sink s = {plan, known, take, tick, &g};
        struct author *a = NULL;
        struct error err = {0};
        int r = author_new(e, &o, &s, 0, &a, &err);
        if (r == 0)
            r = author_run(a, &err);
        author_free(a);
        strbuf_done(&g.text);
        ck_assert_msg(r == 0 || (r == DEDIT_E_NOMEM && oom.failed), "%d: %s", r, err.msg);
        failed += r != 0;
    }
    ck_assert_uint_ge(failed, 20);
    engine_free(e);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-author");
    TCase *tc = test_case(s, "author");
    tcase_add_test(tc, same_whatever_runs_beside);
    tcase_add_test(tc, spans_are_the_answers);
    tcase_add_test(tc, only_answers_are_trained);
    tcase_add_test(tc, only_the_first_answer);
    tcase_add_test(tc, what_is_left_out);
    tcase_add_test(tc, loops_are_cut);
    tcase_add_test(tc, turns_end_by_themselves);
    tcase_add_test(tc, open_turn);
    tcase_add_test(tc, memory_runs_out);
    return test_main(s);
}
