/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench eval: one answer, what is counted of it, and whether it is that of plain decoding. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/eval.h"

void eval_answer_done(struct eval_answer *a)
{
    token_list_done(&a->ids);
    strbuf_done(&a->text);
}

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct eval_answer *a = arg;
    (void)r;
    for (size_t i = 0; i < n; i++)
        if (token_list_add(&a->ids, t[i].id) < 0 ||
            strbuf_add(&a->text, t[i].text, t[i].text_len) < 0)
            (void)ERR_NOMEM(&a->error);
    return 0;
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct eval_answer *a = arg;
    (void)r;
    a->finished = true;
    a->usage = f->usage;
    if (f->error)
        a->error = *f->error;
    if (f->text_len && strbuf_add(&a->text, f->text, f->text_len) < 0)
        (void)ERR_NOMEM(&a->error);
}

static void fill_request(const struct eval *e, const struct eval_setting *s,
                         const struct token_list *prompt, uint64_t seed, struct eval_answer *a,
                         struct engine_request *q)
{
    *q = (struct engine_request){
        .prompt = prompt->ids,
        .n_prompt = prompt->len,
        .drafting = s->drafting,
        .sink = {.tokens = on_tokens, .finished = on_finished, .arg = a},
        .skip_special = true,
        .want_tokens_text = !e->random,
    };
    sampling_params_init(&q->sampling);
    q->sampling.ignore_eos = e->random != NULL;
    q->sampling.temperature = s->temperature;
    q->sampling.seed = seed;
    q->sampling.has_seed = true;
    q->sampling.max_tokens = e->max_tokens;
}

int eval_ask_all(struct engine *en, const struct eval *e, const struct eval_setting *s,
                 const struct token_list *prompts, uint32_t n, uint32_t at_once, uint64_t seed,
                 struct eval_answer *ret, const volatile sig_atomic_t *stop, struct error *err)
{
    struct request *r[EVAL_MAX_GROUP] = {NULL};
    struct engine_request q;
    uint32_t asked = 0, running = 0;
    int k = 0;
    do {
        for (; asked < n && running < at_once && k >= 0 && !*stop; asked++, running++) {
            fill_request(e, s, &prompts[asked], seed + asked, &ret[asked], &q);
            k = engine_submit(en, &q, &r[asked], err);
            if (k < 0)
                k = error_prefix(err, k, "%s", s->name);
        }
        if (k >= 0 && running)
            k = engine_step(en, err);
        running = 0;
        for (uint32_t i = 0; i < asked; i++) {
            if (*stop && !ret[i].finished)
                engine_cancel(en, r[i]);
            running += !ret[i].finished;
        }
    } while (k >= 0 && (running || (asked < n && !*stop)));
    for (uint32_t i = 0; i < asked; i++) {
        request_free(r[i]);
        if (k >= 0 && ret[i].error.code) {
            *err = ret[i].error;
            k = err->code;
        }
    }
    return k < 0 ? k : 0;
}

int eval_ask(struct engine *en, const struct eval *e, const struct eval_setting *s,
             const struct token_list *prompt, uint64_t seed, struct eval_answer *ret,
             const volatile sig_atomic_t *stop, struct error *err)
{
    return eval_ask_all(en, e, s, prompt, 1, 1, seed, ret, stop, err);
}

/* ---- figures ------------------------------------------------------------------------------------ */

int eval_count(struct eval_result *r, const struct eval_answer *a, struct error *err)
{
    const struct engine_drafting *d = &a->usage.drafting;
    uint64_t rounds = d->rounds + d->plain_rounds, committed = d->committed + d->plain_rounds;
    uint64_t n = a->ids.len;
    if (n < 2)
        return 0; /* the prompt's own token: nothing to draft, no time between tokens */
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 64;
        double *tau = mem_realloc_array(r->tau, cap, sizeof(*tau));
        if (tau)
            r->tau = tau;
        double *tpot = tau ? mem_realloc_array(r->tpot, cap, sizeof(*tpot)) : NULL;
        if (tpot)
            r->tpot = tpot;
        if (!tau || !tpot)
            return ERR_NOMEM(err);
        r->cap = cap;
    }
    r->tau[r->n] = rounds ? (double)committed / (double)rounds : 1.0;
    r->tpot[r->n++] =
        (double)(a->usage.total_ns - a->usage.first_token_ns) * 1e-9 / (double)(n - 1);
    r->tokens += n;
    r->rounds += rounds ? rounds : n - 1;
    r->plain += rounds ? d->plain_rounds : n - 1;
    r->committed += rounds ? committed : n - 1;
    r->drafted += d->drafted;
    r->accepted += d->accepted;
    r->passes += d->passes;
    r->helpful += d->edits_helpful;
    r->harmful += d->edits_harmful;
    for (unsigned p = 0; p < DRAFT_MAX_PASSES; p++)
        r->after[p] += d->accepted_after[p];
    r->draft_s += (double)d->draft_ns * 1e-9;
    r->verify_s += (double)d->verify_ns * 1e-9;
    r->round_s += (double)(a->usage.total_ns - a->usage.first_token_ns) * 1e-9;
    return 0;
}

void eval_compare(struct eval *e, const struct eval_suite *s, size_t prompt, unsigned j,
                  const struct eval_answer *a, const struct eval_answer *base)
{
    const struct eval_setting *t = &e->settings[j];
    if (t->drafting.verification == DRAFT_REJECTION || t->tau > 0)
        return; /* equal in law only, or made up */
    size_t n = a->ids.len < base->ids.len ? a->ids.len : base->ids.len, i = 0;
    while (i < n && a->ids.ids[i] == base->ids.ids[i])
        i++;
    if (i == a->ids.len && i == base->ids.len)
        return;
    e->differ++;
    fprintf(stderr, "%s, prompt %zu: %s differs from %s at token %zu\n", s->name, prompt, t->name,
            e->settings[t->baseline].name, i);
}
