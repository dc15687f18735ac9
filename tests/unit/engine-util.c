/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the engine's tests. */
#include "tests/unit/engine-util.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/util.h"

struct engine_config test_engine_config(void)
{
    struct engine_config c;
    engine_config_init(&c);
    struct error err = {0};
    ck_ok(dk_tier_choose(getenv("DEDIT_CPU_TIER"), &c.tier, &err), &err);
    c.device = getenv("DEDIT_TEST_DEVICE"); /* the suite runs on the emulated device as well */
    c.n_threads = 1; /* barriers crawl where the machine is busy; some tests ask for more */
    c.max_context = 512;
    c.max_num_seqs = 16;
    return c;
}

struct engine *test_engine(const char *path, const struct engine_config *c)
{
    struct error err = {0};
    struct engine *e = NULL;
    int r = engine_new(path, c, NULL, NULL, &e, &err);
    ck_assert_msg(r == 0, "%s: %s", path, err.msg);
    return e;
}

uint32_t test_token(uint64_t seed, uint32_t i, uint32_t vocab)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + (uint64_t)i * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebull;
    x ^= x >> 29;
    return (uint32_t)(x >> 20) % vocab;
}

void test_tokens(uint64_t seed, uint32_t vocab, uint32_t *ret, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ret[i] = test_token(seed, (uint32_t)i, vocab);
}

void test_feed(struct engine *e, struct seq *s, const uint32_t *tokens, size_t n, size_t chunk,
               float *logits, const uint32_t *tap_layers, uint32_t n_taps, float *taps)
{
    const struct model_config *m = engine_model_config(e);
    struct error err = {0};
    for (size_t i = 0; i < n; i += chunk) {
        size_t k = n - i < chunk ? n - i : chunk;
        struct engine_feed f = {.seq = s,
                                .tokens = tokens + i,
                                .n = k,
                                .logits = logits ? logits + i * m->vocab_size : NULL,
                                .n_logits = logits ? k : 0,
                                .taps = taps ? taps + i * n_taps * m->hidden : NULL};
        ck_ok(engine_feed(e, &f, 1, tap_layers, n_taps, &err), &err);
    }
}

/* ---- requests --------------------------------------------------------------------------------- */

static void record_text(struct test_request *q, const char *s, size_t n)
{
    ck_assert_uint_lt(q->text.len + n, sizeof(q->text.s));
    memcpy(q->text.s + q->text.len, s, n);
    q->text.len += n;
    q->text.s[q->text.len] = '\0';
}

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct test_request *q = arg;
    ck_assert(!q->finished);
    ck_assert_ptr_eq(request_user(r), q);
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_lt(q->ids.len, sizeof(q->ids.ids) / sizeof(*q->ids.ids));
        q->ids.ids[q->ids.len++] = t[i].id;
        record_text(q, t[i].text, t[i].text_len);
        if (t[i].n_logprobs) {
            ck_assert_uint_eq(t[i].logprobs[0].token, t[i].id);
            if (q->n_lp == 0)
                for (uint32_t j = 0; j < t[i].n_logprobs; j++)
                    q->first_lp[j] = t[i].logprobs[j].token;
            q->last_lp = t[i].logprobs[0].logprob;
        }
        q->n_lp += t[i].n_logprobs;
    }
    q->n_calls++;
    if (q->cancel_after && q->n_calls == q->cancel_after)
        engine_cancel(q->engine, r);
    return q->park_every && q->n_calls % q->park_every == 0;
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct test_request *q = arg;
    ck_assert(!q->finished);
    ck_assert_ptr_eq(request_user(r), q);
    q->finished = true;
    q->reason = f->reason;
    q->error = f->error ? f->error->code : 0;
    q->stop_is_id = f->stop_is_id;
    q->stop_id = f->stop_id;
    q->usage = f->usage;
    record_text(q, f->text, f->text_len);
    if (f->stop_text)
        memcpy(q->stop_text, f->stop_text, strlen(f->stop_text) + 1);
    ck_assert_int_eq(f->error != NULL, f->reason == FINISH_ERROR);
    ck_assert_uint_eq(f->usage.completion_tokens, q->ids.len);
}

struct engine_request test_request_init(const uint32_t *prompt, size_t n_prompt,
                                        uint32_t max_tokens)
{
    struct engine_request q = {
        .prompt = prompt, .n_prompt = n_prompt, .skip_special = true, .want_tokens_text = true};
    sampling_params_init(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.max_tokens = max_tokens;
    q.sampling.seed = 1;
    q.sampling.has_seed = true;
    return q;
}

int test_submit(struct engine *e, struct engine_request *q, struct test_request *t,
                struct error *err)
{
    t->engine = e;
    q->sink = (struct engine_sink){.tokens = on_tokens, .finished = on_finished, .arg = t};
    int r = engine_submit(e, q, &t->r, err);
    if (r == 0)
        request_set_user(t->r, t);
    return r;
}

void test_run(struct engine *e, struct test_request *const *parked, size_t n)
{
    struct error err = {0};
    for (int steps = 0; steps < 100000; steps++) {
        int r = engine_step(e, &err);
        ck_assert_msg(r >= 0, "%s", err.msg);
        bool any = false;
        for (size_t i = 0; i < n; i++)
            if (parked[i]->r && !parked[i]->finished) {
                engine_resume(e, parked[i]->r);
                any = true;
            }
        if (r == 0 && !any)
            return;
    }
    ck_abort_msg("still not idle after 100000 steps");
}

void test_generate(struct engine *e, struct engine_request *q, struct test_request *t)
{
    struct error err = {0};
    *t = (struct test_request){.park_every = t->park_every};
    ck_ok(test_submit(e, q, t, &err), &err);
    test_run(e, &t, 1);
    ck_assert(t->finished);
}

void test_request_done(struct test_request *t)
{
    t->r = request_free(t->r);
}

void test_same_output(const struct test_request *a, const struct test_request *b, const char *what)
{
    ck_assert_msg(a->ids.len == b->ids.len, "%s: %zu tokens against %zu", what, a->ids.len,
                  b->ids.len);
    for (size_t i = 0; i < a->ids.len; i++)
        ck_assert_msg(a->ids.ids[i] == b->ids.ids[i], "%s: token %zu is %u against %u", what, i,
                      a->ids.ids[i], b->ids.ids[i]);
    ck_assert_uint_eq(a->text.len, b->text.len);
    ck_assert_str_eq(a->text.s, b->text.s);
    ck_assert_int_eq(a->reason, b->reason);
    ck_assert_uint_eq(a->n_lp, b->n_lp);
    ck_assert(a->n_lp == 0 || memcmp(&a->last_lp, &b->last_lp, sizeof(float)) == 0);
}

void test_engine_idle(struct engine *e)
{
    struct engine_stats s;
    engine_get_stats(e, &s);
    ck_assert_uint_eq(s.running, 0);
    ck_assert_uint_eq(s.waiting, 0);
    ck_assert_uint_eq(s.parked, 0);
    ck_assert_uint_eq(s.kv_blocks_free + s.kv_blocks_cached, s.kv_blocks);
}
