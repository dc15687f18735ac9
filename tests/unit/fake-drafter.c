/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake-drafter.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tests/unit/util.h"

const uint32_t fake_tap_layers[2] = {0, 1};

static uint32_t n_taps(const struct engine *e)
{
    return e->model->n_layers < 2 ? 1 : 2;
}

static uint64_t fingerprint(const struct engine *e, const float *taps, uint32_t pos)
{
    return hash_bytes(taps, n_taps(e) * (size_t)e->model->hidden * sizeof(*taps), pos + 1);
}

static int inject(void *self, const struct draft_context *rows, uint32_t n, struct error *err)
{
    struct fake_drafter *f = self;
    if (f->fail_inject && --f->fail_inject == 0)
        return ERR(err, INTERNAL, "inject failed as asked");
    ck_assert_uint_le(n, f->e->drafter.max_rows);
    for (uint32_t i = 0; i < n; i++)
        f->context[rows[i].slot] = fingerprint(f->e, rows[i].taps, rows[i].pos);
    f->n_injected += n;
    return 0;
}

static const struct fake_text *text_of(const struct fake_drafter *f, const struct seq *s)
{
    for (uint32_t i = 0; i < f->n_texts; i++)
        if (f->texts[i].r && &f->texts[i].r->seq == s)
            return &f->texts[i];
    ck_abort_msg("a pass for a request that nobody knows");
}

static void check_context(const struct fake_drafter *f, const struct fake_text *t,
                          const struct seq *s)
{
    ck_fast(s->n_tokens == s->n_kv + 1);
    for (uint32_t p = 0; p < s->n_kv; p++) {
        if (s->tokens[p] != t->tokens[p])
            ck_abort_msg("position %u is another token", p);
        if (f->context[seq_slot(s, p)] != t->context[p])
            ck_abort_msg("position %u of %u has no context, or another's", p, s->n_kv);
    }
}

/* Wrong tokens become fewer from pass to pass. */
static uint32_t draft(const struct fake_drafter *f, const struct fake_text *t, uint32_t pos,
                      uint32_t pass)
{
    uint32_t token = pos < t->n ? t->tokens[pos] : 0;
    uint64_t luck = hash_mix64(pos * 977 + t->n);
    if (f->wrong && luck % f->wrong == 0 && (luck >> 32 & ((1u << pass) - 1)) != 0)
        return token;
    return f->wrong && luck % f->wrong == 0 ? (token + 1 + pass) % f->e->model->vocab_size : token;
}

static void fill_chain(struct draft_round *r)
{
    const uint32_t *last = r->tokens[r->pass - 1];
    for (uint32_t k = 0; k + 1 < r->window; k++)
        if (proposal_add(r->proposal, last[k], (int)k - 1, r->confidence[r->pass - 1][k]) < 0)
            ck_abort_msg("a node has no place");
}

/* The first pass's tokens as one branch, the last one's as another, up to the budget. */
static void fill_tree(struct draft_round *r, uint32_t vocab)
{
    int at = -1, other = -1;
    for (uint32_t k = 0; k + 1 < r->window && r->proposal->n < r->tree_budget; k++) {
        uint32_t a = (r->tokens[0][k] + (r->pass == 1)) % vocab, b = r->tokens[r->pass - 1][k];
        other = proposal_add(r->proposal, a, other, 0.25f);
        if (r->proposal->n < r->tree_budget)
            at = proposal_add(r->proposal, b, at, 0.5f);
    }
}

static void one_pass(struct fake_drafter *f, const struct draft_entry *en)
{
    struct draft_round *r = en->round;
    const struct fake_text *t = text_of(f, en->seq);
    const uint32_t anchor = en->seq->n_kv;
    check_context(f, t, en->seq);
    ck_fast(r->window >= 2 && r->window <= f->e->drafter.max_window && !r->done);
    ck_fast(anchor + r->window <= f->e->drafter.max_context);
    bool same = r->pass > 0;
    for (uint32_t k = 0; k + 1 < r->window; k++) {
        r->tokens[r->pass][k] = draft(f, t, anchor + 1 + k, r->pass);
        r->confidence[r->pass][k] = 1.0f / (float)(k + 2);
        same &= r->pass > 0 && r->tokens[r->pass][k] == r->tokens[r->pass - 1][k];
    }
    uint32_t what[3] = {anchor, r->window, r->pass};
    f->record = hash_bytes(what, sizeof(what), f->record);
    f->record = hash_bytes(r->tokens[r->pass], (r->window - 1) * sizeof(uint32_t), f->record);
    r->pass++;
    r->done = r->pass == r->passes || (f->fixed_point && same);
    if (!r->done && !r->each_pass && !r->passed)
        return;
    proposal_clear(r->proposal);
    if (r->method == DRAFT_DDTREE)
        fill_tree(r, f->e->model->vocab_size);
    else
        fill_chain(r);
    if (r->passed)
        r->passed(r->arg, r);
}

static int pass(void *self, struct draft_entry *entries, uint32_t n, struct error *err)
{
    struct fake_drafter *f = self;
    uint32_t rows = 0, first = entries[0].round->pass;
    if (f->fail_pass && --f->fail_pass == 0)
        return ERR(err, INTERNAL, "pass failed as asked");
    bool mixed = false;
    for (uint32_t i = 0; i < n; i++) {
        mixed |= entries[i].round->pass != first;
        rows += entries[i].round->window;
        one_pass(f, &entries[i]);
    }
    ck_assert_uint_le(rows, f->e->drafter.max_rows);
    f->n_passes++;
    f->n_entries += n;
    f->mixed += mixed;
    f->most_entries = n > f->most_entries ? n : f->most_entries;
    return 0;
}

static int kv_copy(void *self, const uint32_t *from, const uint32_t *to, size_t n,
                   struct error *err)
{
    struct fake_drafter *f = self;
    (void)err;
    for (size_t i = 0; i < n; i++)
        f->context[to[i]] = f->context[from[i]];
    f->n_copied += (uint32_t)n;
    return 0;
}

static const struct block_drafter_ops ops = {.inject = inject, .pass = pass, .kv_copy = kv_copy};

void fake_drafter_init(struct fake_drafter *f, struct engine *e, uint32_t window)
{
    struct error err = {0};
    *f = (struct fake_drafter){.e = e, .wrong = 4};
    f->context = calloc((size_t)e->cfg.n_kv_blocks * DK_KV_BLOCK, sizeof(*f->context));
    ck_assert_ptr_nonnull(f->context);
    e->drafter = (struct block_drafter){.ops = &ops,
                                        .self = f,
                                        .tap_layers = fake_tap_layers,
                                        .n_taps = n_taps(e),
                                        .window = window,
                                        .max_window = window,
                                        .max_rows = 40,
                                        .max_context = e->limit,
                                        .max_passes = 8};
    ck_ok(engine_drafting_buffers(e, &err), &err);
}

void fake_drafter_done(struct fake_drafter *f)
{
    free(f->context);
}

void fake_text_init(struct fake_text *t, struct engine *plain, const uint32_t *prompt, uint32_t n,
                    const struct test_request *answer)
{
    static float taps[FAKE_MAX_POSITIONS * 2 * 256];
    struct error err = {0};
    struct seq *s = NULL;
    ck_assert_uint_le(plain->model->hidden, 256);
    memset(t, 0, sizeof(*t));
    memcpy(t->tokens, prompt, n * sizeof(*prompt));
    memcpy(t->tokens + n, answer->ids.ids, answer->ids.len * sizeof(uint32_t));
    t->n = n + (uint32_t)answer->ids.len;
    ck_ok(engine_seq_new(plain, &s, &err), &err);
    test_feed(plain, s, t->tokens, t->n, 33, NULL, fake_tap_layers, n_taps(plain), taps);
    for (uint32_t p = 0; p < t->n; p++)
        t->context[p] =
            fingerprint(plain, taps + (size_t)p * n_taps(plain) * plain->model->hidden, p);
    engine_seq_free(plain, s);
}
