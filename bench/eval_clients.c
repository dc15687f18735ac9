/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval --clients N: groups of prompts, N asked at once and the next one when one is answered, with
 * every setting in turn.  A group has several prompts for each client: at its end, clients that have nothing more
 * to ask make the batch smaller, whoever is first to be ready.  The time of a token is that of the whole group
 * over its tokens, prompts included, so speed-ups are ratios of tokens a second.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "bench/eval.h"

#define EACH 4u /* prompts of a group for each client */
_Static_assert(EACH *EVAL_MAX_CLIENTS <= EVAL_MAX_GROUP, "a group");

struct group {
    struct token_list ids[EVAL_MAX_GROUP];
    size_t prompt[EVAL_MAX_GROUP]; /* in the suite */
    uint32_t n;
};

static void group_done(struct group *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        token_list_done(&g->ids[i]);
    g->n = 0;
}

/* The next prompts that are short enough. */
static int fill(const struct eval *e, struct engine *en, struct eval_suite *s,
                enum chat_format format, uint32_t n, struct group *g, struct error *err)
{
    for (; g->n < n && s->next < s->prompts.n; s->next++) {
        const struct prompt *p = &s->prompts.prompts[s->next];
        const char *text = p->turns[0];
        const struct chat_message m[2] = {
            {.role = "system",
             .content = p->system,
             .content_len = p->system ? strlen(p->system) : 0},
            {.role = "user", .content = text, .content_len = strlen(text)}};
        const size_t first = p->system ? 0 : 1;
        struct token_list *ids = &g->ids[g->n];
        *ids = (struct token_list){0};
        int r = eval_render(e, en, format, m + first, 2 - first, ids, err);
        if (r < 0 || ids->len > e->max_prompt) {
            token_list_done(ids);
            if (r < 0)
                return r;
            continue;
        }
        g->prompt[g->n++] = s->next;
    }
    return 0;
}

static int count(struct eval *e, struct eval_suite *s, const struct group *g, unsigned j,
                 struct eval_answer *a, const struct eval_answer *base, double seconds,
                 struct error *err)
{
    struct eval_result *r = &s->results[j];
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < g->n; i++)
        tokens += a[i].ids.len;
    for (uint32_t i = 0; i < g->n; i++) {
        const size_t before = r->n;
        int k = eval_count(r, &a[i], err);
        if (k < 0)
            return k;
        if (r->n > before && tokens)
            r->tpot[before] = seconds / (double)tokens;
        eval_compare(e, s, g->prompt[i], j, &a[i], &base[i]);
    }
    return 0;
}

/* One group, or the first n of it, with every setting; the baselines' answers are kept, the others compared with
 * them. */
static int run_group(struct eval *e, struct engine *en, struct eval_suite *s, const struct group *g,
                     uint32_t n, bool counted, struct error *err)
{
    static struct eval_answer a[EVAL_MAX_SETTINGS][EVAL_MAX_GROUP];
    int r = 0;
    memset(a, 0, sizeof(a));
    for (unsigned j = 0; j < e->n_settings && r == 0 && !eval_interrupted; j++) {
        const uint64_t t = clock_now_ns();
        r = eval_ask_all(en, e, &e->settings[j], g->ids, n, e->clients, e->seed, a[j],
                         &eval_interrupted, err);
        if (r == 0 && counted && !eval_interrupted)
            r = count(e, s, g, j, a[j], a[e->settings[j].baseline],
                      (double)(clock_now_ns() - t) * 1e-9, err);
    }
    for (unsigned j = 0; j < e->n_settings; j++)
        for (uint32_t i = 0; i < n; i++)
            eval_answer_done(&a[j][i]);
    return r;
}

int eval_run_clients(struct eval *e, struct engine *en, struct eval_suite *s,
                     enum chat_format format, struct error *err)
{
    uint32_t done = 0;
    int r = 0;
    while (r == 0 && !eval_interrupted && (!e->samples || done < e->samples)) {
        struct group g = {.n = 0};
        uint32_t want = EACH * e->clients;
        if (e->samples && e->samples - done < want)
            want = e->samples - done;
        r = fill(e, en, s, format, want, &g, err);
        if (g.n == 0)
            break;
        if (r == 0 && e->warmup)
            r = run_group(e, en, s, &g, g.n < e->clients ? g.n : e->clients, false, err);
        e->warmup = 0;
        if (r == 0)
            r = run_group(e, en, s, &g, g.n, true, err);
        done += g.n;
        group_done(&g);
        if (!e->quiet)
            fprintf(stderr, "\r%s: %u ", s->name, done);
    }
    return r < 0 ? error_prefix(err, r, "%s", s->name) : 0;
}
