/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/record.h"

#include <string.h>

#include "base/hash.h"
#include "tests/unit/util.h"

static void add_text(struct test_record *o, const char *s, size_t n)
{
    ck_fast(o->text_len + n <= sizeof(o->text));
    memcpy(o->text + o->text_len, s, n);
    o->text_len += n;
}

static void count_branches(struct test_record *o, const struct engine_token *t, size_t n)
{
    int at = -1;
    for (size_t i = 0; i < n; i++) {
        int next = proposal_child(&o->verified, at, t[i].id);
        if (next < 0)
            return;
        for (int k = at + 1; k < next; k++)
            if (o->verified.parent[k] == at) {
                o->branches++;
                break;
            }
        at = next;
    }
}

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct test_record *o = arg;
    (void)r;
    count_branches(o, t, n);
    o->verified.n = 0;
    for (size_t i = 0; i < n; i++) {
        ck_fast(o->n < o->most);
        o->ids[o->n++] = t[i].id;
        add_text(o, t[i].text, t[i].text_len);
        for (uint32_t k = 0; k < t[i].n_logprobs; k++)
            o->logprobs = hash_bytes(&t[i].logprobs[k], sizeof(t[i].logprobs[k]), o->logprobs);
    }
    o->n_calls++;
    return o->park_every && o->n_calls % o->park_every == 0;
}

static void on_round(void *arg, struct request *r, const struct engine_round *round)
{
    struct test_record *o = arg;
    (void)r;
    o->verified = *round->proposal;
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct test_record *o = arg;
    (void)r;
    ck_fast(!o->finished);
    ck_assert_msg(!f->error, "%s", f->error ? f->error->msg : "");
    o->finished = true;
    o->reason = f->reason;
    o->usage = f->usage;
    add_text(o, f->text, f->text_len);
}

struct engine_sink test_record_sink(struct test_record *o)
{
    ck_assert(o->most > 0 && o->most <= TEST_RECORD_IDS);
    return (struct engine_sink){
        .tokens = on_tokens, .finished = on_finished, .round = on_round, .arg = o};
}

void test_records_equal(const struct test_record *a, const struct test_record *b, const char *what)
{
    ck_assert_msg(a->finished && a->n == b->n && a->reason == b->reason,
                  "%s: %u tokens and %s, wanted %u and %s", what, a->n,
                  finish_reason_name(a->reason), b->n, finish_reason_name(b->reason));
    for (uint32_t i = 0; i < a->n; i++)
        ck_assert_msg(a->ids[i] == b->ids[i], "%s: token %u is %u, wanted %u", what, i, a->ids[i],
                      b->ids[i]);
    ck_assert_msg(a->text_len == b->text_len && !memcmp(a->text, b->text, a->text_len),
                  "%s: other text", what);
    ck_assert_msg(a->logprobs == b->logprobs, "%s: other log-probabilities", what);
}
