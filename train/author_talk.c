/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One conversation: question, answer, question, answer.  Each is a request of its own; the prefix cache
 * spares feeding the conversation again.
 *
 * Prompts are made of the messages' texts, exactly as a daemon would make them later, so the tokens of
 * an earlier answer may come out otherwise than the model wrote them (it may spell a word in pieces).
 * Then they are context, but not trained on.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "engine/json.h"
#include "train/author_internal.h"

#define MIN_ANSWER 8u /* tokens: less room than that is no room */

void talk_free(struct talk *t)
{
    if (!t)
        return;
    request_free(t->request);
    for (size_t i = 0; i < ARRAY_LEN(t->owned); i++)
        mem_free(t->owned[i]);
    for (uint32_t i = 0; i < t->n_answers; i++)
        mem_free(t->answers[i].ids);
    token_list_done(&t->prompt);
    token_list_done(&t->out);
    strbuf_done(&t->text);
    data_record_done(&t->record);
    mem_free(t->json);
    mem_free(t);
}

static int add_message(struct talk *t, const char *role, const char *text, size_t len, char *owned,
                       struct error *err)
{
    if (t->n_messages == ARRAY_LEN(t->messages)) {
        mem_free(owned);
        return ERR(err, LIMIT, "more than %u turns", AUTHOR_MAX_TURNS);
    }
    t->owned[t->n_messages] = owned;
    t->messages[t->n_messages++] =
        (struct chat_message){.role = role, .content = text, .content_len = len};
    return 0;
}

int talk_new(struct author *a, uint64_t number, struct talk **ret, struct error *err)
{
    struct talk *t = mem_zalloc(sizeof(*t));
    if (!t)
        return ERR_NOMEM(err);
    t->number = number;
    int r = a->sink.plan(a->sink.arg, number, &t->plan, err);
    if (r == 0 && (t->plan.n_turns == 0 || t->plan.n_turns > AUTHOR_MAX_TURNS ||
                   t->plan.n_given > t->plan.n_turns))
        r = ERR(err, INVALID, "a conversation of %u turns", t->plan.n_turns);
    if (r == 0 && a->o.raw) {
        t->plan.n_turns = 1;
        t->plan.n_given = t->plan.n_given > 1 ? 1 : t->plan.n_given;
        t->plan.whole = true;
        t->plan.system = NULL;
    }
    if (r == 0 && t->plan.system)
        r = add_message(t, "system", t->plan.system, strlen(t->plan.system), NULL, err);
    if (r) {
        talk_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

/* ---- prompts ------------------------------------------------------------------------------------- */

static int render(const struct author *a, const struct chat_message *m, size_t n, bool open,
                  struct token_list *out, struct error *err)
{
    const struct chat_options o = {.add_generation_prompt = open, .enable_thinking = a->o.thinking};
    if (a->o.raw)
        return tokenizer_encode(a->tokenizer, m[0].content, m[0].content_len, TOKENIZE_BOS, out,
                                NULL, err);
    return chat_render_ids(a->o.format, a->tokenizer, m, n, &o, out, err);
}

int author_open_turn(const struct tokenizer *t, const struct author_options *o,
                     const struct chat_message *m, size_t n, struct token_list *out,
                     struct error *err)
{
    static const char *const texts[2] = {"a", "B"};
    _cleanup_token_list_ struct token_list a = {0}, b = {0};
    struct token_list *lists[2] = {&a, &b};
    struct chat_message all[2 * AUTHOR_MAX_TURNS + 2];
    const struct chat_options options = {.enable_thinking = o->thinking};
    if (n >= ARRAY_LEN(all))
        return ERR(err, LIMIT, "more than %u turns", AUTHOR_MAX_TURNS);
    if (n)
        memcpy(all, m, n * sizeof(*m));
    /* What two different texts share is what stands before the text. */
    for (int i = 0; i < 2; i++) {
        all[n] = (struct chat_message){.role = "user", .content = texts[i], .content_len = 1};
        int r = chat_render_ids(o->format, t, all, n + 1, &options, lists[i], err);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < a.len && i < b.len && a.ids[i] == b.ids[i]; i++)
        if (token_list_add(out, a.ids[i]) < 0)
            return ERR_NOMEM(err);
    return 0;
}

/* ---- requests ------------------------------------------------------------------------------------ */

static int on_tokens(void *arg, struct request *r, const struct engine_token *tokens, size_t n)
{
    struct talk *t = arg;
    struct author *a = request_user(r);
    for (size_t i = 0; i < n && !t->looped && !t->error.code; i++) {
        a->generated++;
        if (token_list_add(&t->out, tokens[i].id) < 0 ||
            strbuf_add(&t->text, tokens[i].text, tokens[i].text_len) < 0)
            (void)ERR_NOMEM(&t->error);
        else if (loop_push(&t->loop, t->out.ids, t->out.len))
            t->looped = true;
    }
    if (t->looped || t->error.code)
        engine_cancel(a->engine, r);
    return 0;
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct talk *t = arg;
    (void)r;
    t->finished = true;
    t->reason = f->reason;
    t->has_stop_id = f->stop_is_id;
    t->stop_id = f->stop_id;
    if (f->error && !t->error.code)
        t->error = *f->error;
    if (f->text_len && strbuf_add(&t->text, f->text, f->text_len) < 0)
        (void)ERR_NOMEM(&t->error);
}

static int submit(struct author *a, struct talk *t, bool ask, uint32_t max_tokens,
                  struct error *err)
{
    struct engine_request q = {
        .prompt = t->prompt.ids,
        .n_prompt = t->prompt.len,
        .drafting.method = a->o.draft ? DRAFT_AUTO : DRAFT_AR,
        .sink = {.tokens = on_tokens, .finished = on_finished, .arg = t},
        .skip_special = true,
        .want_tokens_text = true,
    };
    sampling_params_init(&q.sampling);
    q.sampling.temperature = ask ? a->o.user_temperature : t->plan.temperature;
    q.sampling.min_p = ask ? a->o.user_min_p : t->plan.min_p;
    q.sampling.has_seed = true;
    q.sampling.seed = hash_mix64(t->plan.seed + 2 * t->turn + ask);
    q.sampling.max_tokens = max_tokens;
    t->out.len = 0;
    strbuf_clear(&t->text);
    loop_reset(&t->loop);
    t->looped = t->finished = false;
    t->request = request_free(t->request);
    int r = engine_submit(a->engine, &q, &t->request, err);
    if (r == 0) {
        request_set_user(t->request, a);
        a->running++;
    }
    return r;
}

static int begin_question(struct author *a, struct talk *t, struct error *err)
{
    t->phase = TALK_ASK;
    t->prompt.len = 0;
    int r = author_open_turn(a->tokenizer, &a->o, t->messages, t->n_messages, &t->prompt, err);
    if (r == 0 && t->turn == 0 && t->plan.text[0])
        r = tokenizer_encode(a->tokenizer, t->plan.text, strlen(t->plan.text), 0, &t->prompt, NULL,
                             err);
    return r < 0 ? r : submit(a, t, true, a->o.max_user, err);
}

/* 1: there is no room for it, or nothing to go on from. */
static int begin_answer(struct author *a, struct talk *t, struct error *err)
{
    t->phase = TALK_ANSWER;
    t->prompt.len = 0;
    int r = render(a, t->messages, t->n_messages, true, &t->prompt, err);
    if (r < 0)
        return r;
    if (t->prompt.len == 0 || t->prompt.len + MIN_ANSWER > a->o.max_len)
        return 1;
    uint32_t room = a->o.max_len - (uint32_t)t->prompt.len;
    return submit(a, t, false, room < t->plan.max_answer ? room : t->plan.max_answer, err);
}

/* ---- the end ------------------------------------------------------------------------------------- */

static int messages_json(struct talk *t, struct error *err)
{
    json_auto_t *list = json_array();
    for (uint32_t i = 0; list && i < t->n_messages; i++) {
        const struct chat_message *m = &t->messages[i];
        json_t *o =
            json_pack("{s:s, s:s%}", "role", m->role, "content", m->content, m->content_len);
        if (!o || json_array_append_new(list, o) < 0)
            return ERR_NOMEM(err);
    }
    t->json = list ? json_dumps(list, JSON_COMPACT) : NULL; /* memory of base/alloc.h */
    return t->json ? 0 : ERR_NOMEM(err);
}

/* An answer's prompt and tokens are the conversation so far.  Now, since the next question, which may
 * lead to nothing, makes a prompt of its own. */
static int keep_ids(struct talk *t, struct error *err)
{
    struct token_list *ids = &t->record.ids;
    int k = 0;
    ids->len = 0;
    for (size_t i = 0; i < t->prompt.len && k == 0; i++)
        k = token_list_add(ids, t->prompt.ids[i]);
    for (size_t i = 0; i < t->out.len && k == 0; i++)
        k = token_list_add(ids, t->out.ids[i]);
    return k < 0 ? ERR_NOMEM(err) : 0;
}

/* The last answer ends the conversation; earlier ones are found in it. */
static int finish(struct talk *t, struct error *err)
{
    struct data_record *r = &t->record;
    int k;
    t->phase = TALK_DONE;
    for (uint32_t i = 0; i < t->n_answers; i++) {
        const struct talk_answer *w = &t->answers[i];
        if ((uint64_t)w->begin + w->n > r->ids.len ||
            memcmp(r->ids.ids + w->begin, w->ids, w->n * sizeof(*w->ids)) != 0)
            continue;
        if ((k = data_record_add_span(r, (struct data_span){w->begin, w->begin + w->n}, err)) < 0)
            return k;
    }
    memcpy(r->kind, t->plan.kind, sizeof(r->kind));
    r->end = t->end;
    r->temperature = (double)t->plan.temperature;
    /* As a person would write it: 0.7, not the float's digits. */
    r->temperature = (double)(int)(r->temperature * 1e4 + 0.5) / 1e4;
    r->has_seed = r->has_number = true;
    r->seed = t->plan.seed;
    r->number = t->number;
    return messages_json(t, err);
}

static int drop(struct talk *t, enum author_drop why, struct error *err)
{
    if (t->n_answers) /* what was answered before is kept */
        return finish(t, err);
    t->drop = why;
    t->phase = TALK_DONE;
    return 0;
}

/* ---- from phase to phase ------------------------------------------------------------------------- */

uint64_t author_begin_hash(const char *system, const char *text, size_t len)
{
    return hash_bytes(text, len, system ? hash_bytes(system, strlen(system), 1) : 0);
}

/* The user said this; is the conversation's beginning new? */
static int add_question(struct author *a, struct talk *t, const char *text, size_t len, char *owned,
                        struct error *err)
{
    int r = add_message(t, "user", text, len, owned, err);
    if (r < 0 || t->turn > 0)
        return r;
    t->begin_hash = author_begin_hash(t->plan.system, text, len);
    if (!a->sink.known(a->sink.arg, t->begin_hash))
        return 0;
    t->drop = AUTHOR_REPEATED;
    t->phase = TALK_DONE;
    return 0;
}

static int answer_or_drop(struct author *a, struct talk *t, struct error *err)
{
    int r = begin_answer(a, t, err);
    if (r != 1)
        return r;
    t->n_messages--; /* a question without an answer; its text stays until the end */
    return drop(t, AUTHOR_LONG, err);
}

int talk_go_on(struct author *a, struct talk *t, struct error *err)
{
    const struct author_plan *p = &t->plan;
    if (t->turn == p->n_turns)
        return finish(t, err);
    const bool given = t->turn < p->n_given, whole = t->turn == 0 && p->n_given == 0 && p->whole;
    if (!given && !whole)
        return begin_question(a, t, err);
    const char *text = given ? p->turns[t->turn] : p->text;
    int r = add_question(a, t, text, strlen(text), NULL, err);
    if (r < 0 || t->phase == TALK_DONE)
        return r;
    return answer_or_drop(a, t, err);
}

/* A copy, without NUL characters, which JSON files of ours do not have. */
static char *copy_text(const char *s, size_t n, size_t *ret_len)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    int r = strbuf_reserve(&b, n + 1);
    for (size_t i = 0; i < n && r == 0; i++)
        r = s[i] ? strbuf_addc(&b, s[i]) : strbuf_adds(&b, "\xef\xbf\xbd");
    if (r < 0)
        return NULL;
    b.s[b.len] = '\0';
    *ret_len = b.len;
    return TAKE_PTR(b.s);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int take_question(struct author *a, struct talk *t, struct error *err)
{
    _cleanup_strbuf_ struct strbuf all = {0};
    if (t->looped)
        return drop(t, AUTHOR_LOOPING, err);
    if ((t->turn == 0 && strbuf_adds(&all, t->plan.text) < 0) ||
        strbuf_add(&all, t->text.s ? t->text.s : "", t->text.len) < 0)
        return ERR_NOMEM(err);
    size_t from = 0, to = all.len;
    while (from < to && is_blank(all.s[from]))
        from++;
    while (to > from && is_blank(all.s[to - 1]))
        to--;
    /* An opening that the model had nothing to add to is no question of its own. */
    if (from == to || t->text.len == 0)
        return drop(t, AUTHOR_EMPTY, err);
    size_t len = 0;
    char *own = copy_text(all.s + from, to - from, &len);
    if (!own)
        return ERR_NOMEM(err);
    int r = add_question(a, t, own, len, own, err);
    if (r < 0 || t->phase == TALK_DONE)
        return r;
    return answer_or_drop(a, t, err);
}

static int take_answer(struct author *a, struct talk *t, struct error *err)
{
    struct talk_answer *w = &t->answers[t->n_answers];
    if (t->reason == FINISH_STOP && t->has_stop_id &&
        (!t->out.len || t->out.ids[t->out.len - 1] != t->stop_id) &&
        token_list_add(&t->out, t->stop_id) < 0)
        return ERR_NOMEM(err);
    if (t->out.len == 0 || t->text.len == 0) {
        t->n_messages--;
        return drop(t, AUTHOR_EMPTY, err);
    }
    t->end = t->looped ? DATA_END_LOOP : t->reason == FINISH_STOP ? DATA_END_EOS : DATA_END_MAX;
    *w = (struct talk_answer){.begin = (uint32_t)t->prompt.len,
                              .ids = mem_memdup(t->out.ids, t->out.len * sizeof(*t->out.ids)),
                              .n = (uint32_t)t->out.len};
    size_t len = 0;
    char *own = copy_text(t->text.s, t->text.len, &len);
    if (!w->ids || !own) {
        mem_free(w->ids);
        mem_free(own);
        return ERR_NOMEM(err);
    }
    t->n_answers++;
    int r = add_message(t, "assistant", own, len, own, err);
    if (r == 0)
        r = keep_ids(t, err);
    if (r < 0)
        return r;
    t->turn++;
    /* Nobody goes on talking to what did not come to an end, but for questions that are given. */
    if (t->end != DATA_END_EOS && t->turn >= t->plan.n_given)
        return finish(t, err);
    return talk_go_on(a, t, err);
}

int talk_take(struct author *a, struct talk *t, struct error *err)
{
    a->running--;
    t->request = request_free(t->request);
    if (t->error.code || (t->reason == FINISH_ERROR)) {
        *err = t->error;
        return err->code ? err->code : ERR(err, INTERNAL, "a request failed without a reason");
    }
    return t->phase == TALK_ASK ? take_question(a, t, err) : take_answer(a, t, err);
}
