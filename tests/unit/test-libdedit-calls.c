/* SPDX-License-Identifier: Apache-2.0 */
/* libdedit: arguments, the calls that are not about an answer, and every allocation refused once. */
#include <stddef.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "config.h"
#include "tests/unit/libdedit-util.h"

/* ---- other calls -------------------------------------------------------------------------------------------------- */

static void answers_calls(struct fake_peer *p, int arg)
{
    (void)arg;
    fake_hello(p);
    for (;;) {
        Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
        Dedit__Wire__Model model = DEDIT__WIRE__MODEL__INIT, *models[2] = {&model, &model};
        Dedit__Wire__ModelList list = DEDIT__WIRE__MODEL_LIST__INIT;
        Dedit__Wire__StatsReply stats = DEDIT__WIRE__STATS_REPLY__INIT;
        Dedit__Wire__HealthReply health = DEDIT__WIRE__HEALTH_REPLY__INIT;
        Dedit__Wire__TokenizeReply tokens = DEDIT__WIRE__TOKENIZE_REPLY__INIT;
        Dedit__Wire__DetokenizeReply text = DEDIT__WIRE__DETOKENIZE_REPLY__INIT;
        Dedit__Wire__Ok good = DEDIT__WIRE__OK__INIT;
        char name[] = "tiny", ar[] = "ar", edit[] = "d-edit", *methods[2] = {ar, edit},
             word[] = "ready";
        uint32_t ids[] = {1, 70000};
        fake_read(p);
        model.name = name;
        model.methods = methods;
        model.n_methods = 2;
        list.models = models;
        list.n_models = 2;
        stats.text = name;
        health.has_ready = health.ready = 1;
        health.status = word;
        tokens.n_ids = 2;
        tokens.ids = ids;
        text.has_text = 1;
        text.text = (ProtobufCBinaryData){4, (uint8_t *)name};
        switch ((int)p->msg->body_case) { /* the rest: Ok */
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_LIST_MODELS:
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_MODELS;
            m.models = &list;
            break;
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_GET_MODEL:
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_MODEL;
            m.model = &model;
            break;
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_STATS:
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_STATS;
            m.stats = &stats;
            break;
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_HEALTH:
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_HEALTH;
            m.health = &health;
            break;
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_TOKENIZE:
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_TOKENS;
            m.tokens = &tokens;
            break;
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_DETOKENIZE:
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_TEXT;
            m.text = &text;
            break;
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_SUBMIT:
            fake_accept(p);
            fake_tokens(p, 5, "one ");
            fake_finished(p);
            fake_told(p, "stop", NULL);
            continue;
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_CANCEL:
        case DEDIT__WIRE__CLIENT_MESSAGE__BODY_RING_MOVED:
            continue;
        default:
            m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_OK;
            m.ok = &good;
            break;
        }
        fake_answer(p, &m, NULL, 0);
    }
}

START_TEST(other_calls)
{
    struct dedit_error e;
    struct dedit_model_list *l = NULL;
    struct fake f;
    char *text = NULL, word[32];
    uint32_t *ids = NULL;
    size_t n = 0, len = 0;
    fake_start(&f, answers_calls, 0);
    struct dedit_client *c = connected(&f);
    ck_dedit(dedit_client_models(c, NULL, &l, &e), &e);
    ck_assert_uint_eq(dedit_model_list_len(l), 2);
    ck_assert_str_eq(dedit_model_list_at(l, 1)->name, "tiny");
    ck_assert_str_eq(dedit_model_list_at(l, 1)->methods, "ar d-edit");
    ck_assert_str_eq(dedit_model_list_at(l, 1)->family, "");
    ck_assert_ptr_null(dedit_model_list_at(l, 2));
    dedit_model_list_free(l);
    ck_dedit(dedit_client_models(c, "tiny", &l, &e), &e);
    ck_assert_uint_eq(dedit_model_list_len(l), 1);
    dedit_model_list_free(l);
    ck_dedit(dedit_client_stats(c, &text, &e), &e);
    ck_assert_str_eq(text, "tiny");
    dedit_free(text);
    ck_assert_int_eq(dedit_client_health(c, word, NULL, &e), 1);
    ck_assert_str_eq(word, "ready");
    ck_dedit(dedit_client_tokenize(c, NULL, "x", 1, 0, &ids, &n, &e), &e);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(ids[1], 70000);
    fails_with(dedit_client_tokenize(c, NULL, "a\0b", 3, 0, &ids, &n, &e), DEDIT_ERR_INVALID, &e,
               "NUL");
    ck_dedit(dedit_client_detokenize(c, NULL, ids, n, &text, &len, &e), &e);
    ck_assert_uint_eq(len, 4);
    dedit_free(text);
    dedit_free(ids);
    ck_dedit(dedit_client_load(c, "a", "/b", &e), &e);
    ck_dedit(dedit_client_load_drafted(c, "a", "/b", "none", &e), &e);
    ck_dedit(dedit_client_unload(c, "a", &e), &e);
    ck_dedit(dedit_client_reload(c, &e), &e);
    ck_dedit(dedit_client_drain(c, 1, &e), &e);
    ck_assert_str_eq(dedit_version(), PACKAGE_VERSION);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

START_TEST(arguments_are_checked)
{
    struct dedit_error e;
    struct dedit_options o;
    struct dedit_request *r = NULL;
    struct fake f;
    const uint32_t ids[] = {1};
    const char *stop[] = {"\xff"};
    struct dedit_chat_message m[] = {{.role = "user"}},
                              bad[] = {{.role = "user", .content = "\xc3"}};
    fake_start(&f, answers_calls, 0);
    struct dedit_client *c = connected(&f);
    dedit_options_init(&o, sizeof o);
    fails_with(dedit_client_submit(c, &o, &r, &e), DEDIT_ERR_INVALID, &e, "exactly one");
    o.text = "x";
    o.ids = ids;
    o.n_ids = 1;
    fails_with(dedit_client_submit(c, &o, &r, &e), DEDIT_ERR_INVALID, &e, "exactly one");
    dedit_options_init(&o, sizeof o);
    o.text = "\xff";
    fails_with(dedit_client_submit(c, &o, &r, &e), DEDIT_ERR_INVALID, &e, "text: must be UTF-8");
    o.text = "x";
    o.stop = stop;
    o.n_stop = 1;
    fails_with(dedit_client_submit(c, &o, &r, &e), DEDIT_ERR_INVALID, &e, "stop[0]");
    dedit_options_init(&o, sizeof o);
    o.messages = m;
    o.n_messages = 1;
    fails_with(dedit_client_submit(c, &o, &r, &e), DEDIT_ERR_INVALID, &e, "messages[0]");
    o.messages = bad;
    fails_with(dedit_client_submit(c, &o, &r, &e), DEDIT_ERR_INVALID, &e, "messages[0]");
    /* A caller of an older header has a shorter struct: what it lacks has its default. */
    dedit_options_init(&o, sizeof o);
    o.text = "x";
    o.size = offsetof(struct dedit_options, chat_format);
    memset((char *)&o + o.size, 0xee, sizeof o - o.size);
    ck_dedit(dedit_client_submit(c, &o, &r, &e), &e);
    dedit_request_free(r);
    ck_assert_ptr_nonnull(dedit_client_socket(c) >= 0 ? &f : NULL);
    dedit_client_free(c);
    fake_stop(&f);
}
END_TEST

/* ---- no memory ----------------------------------------------------------------------------------------------------- */

static int all_of_it(const struct fake *f, int kind)
{
    struct dedit_error e;
    struct dedit_client *c = NULL;
    struct dedit_request *r = NULL;
    struct dedit_model_list *l = NULL;
    struct dedit_options o;
    static char big[100000];
    static uint32_t many[30000];
    struct dedit_chat_message m[] = {{.role = "user", .content = "x"},
                                     {.role = "assistant", .content = big}};
    char *text = NULL;
    uint32_t *ids = NULL;
    size_t n = 0;
    memset(big, 'a', sizeof big - 1);
    dedit_options_init(&o, sizeof o);
    if (kind == 0)
        o.text = "hello";
    else if (kind == 1)
        o.text = big;
    else if (kind < 4) {
        o.messages = m;
        o.n_messages = kind == 2 ? 1 : 2;
    } else {
        o.ids = many;
        o.n_ids = kind == 4 ? 2 : ARRAY_LEN(many);
    }
    int code = dedit_client_connect(f->path, &c, &e);
    if (code == 0)
        code = dedit_client_submit(c, &o, &r, &e);
    if (code == 0)
        code = dedit_request_collect(r, &text, NULL, NULL, &e);
    if (code == 0 && kind == 0)
        code = dedit_client_models(c, NULL, &l, &e);
    dedit_free(text);
    text = NULL;
    if (code == 0 && kind == 0)
        code = dedit_client_stats(c, &text, &e);
    if (code == 0 && kind == 0)
        code = dedit_client_tokenize(c, NULL, "x", 1, 0, &ids, &n, &e);
    dedit_free(text);
    text = NULL;
    if (code == 0 && kind == 0)
        code = dedit_client_detokenize(c, NULL, ids, n, &text, &n, &e);
    dedit_free(text);
    dedit_free(ids);
    dedit_model_list_free(l);
    dedit_request_free(r);
    dedit_client_free(c);
    return code;
}

START_TEST(no_memory)
{
    struct fake f;
    fake_start(&f, answers_calls, 0);
    int fds = fd_count();
    size_t live = mem_live_count();
    unsigned runs = 0;
    for (struct test_oom o = {0}; test_oom_next(&o); runs++) {
        int code = all_of_it(&f, _i);
        mem_set_fail_hook(NULL, NULL);
        /* An answer whose last record is in the ring is whole, whatever happened to the socket. */
        if (o.failed)
            ck_assert_msg(code == DEDIT_ERR_NOMEM || (code == 0 && _i > 0), "allocation %zu: %s",
                          o.nth, dedit_error_name(code));
        else
            ck_assert_int_eq(code, 0);
        ck_assert_int_eq(fd_count(), fds);
        ck_assert_uint_eq(mem_live_count(), live);
    }
    ck_assert_uint_gt(runs, 10);
    fake_stop(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("libdedit");
    TCase *t = test_case(s, "calls");
    tcase_add_test(t, other_calls);
    tcase_add_test(t, arguments_are_checked);
    tcase_add_loop_test(t, no_memory, 0, 6);
    return test_main(s);
}
