/* SPDX-License-Identifier: Apache-2.0 */
/* All that is known of an answer: tokens with log-probabilities and alternatives, how each round went, and
 * the usage at the end, as tab-separated lines.  cc events.c $(pkg-config --cflags --libs dedit) */
#include <dedit.h>
#include <inttypes.h>
#include <stdio.h>

static int complain(const struct dedit_error *err)
{
    fprintf(stderr, "%s: %s\n", dedit_error_name(err->code), err->msg);
    return 1;
}

static void print_token(const struct dedit_token *t)
{
    printf("token\t%" PRIu32 "\t%.4f\t", t->id, (double)t->logprob);
    for (uint32_t i = 0; i < t->n_alternatives; i++)
        printf("%s%" PRIu32 ":%.4f", i ? "," : "", t->alternatives[i].id,
               (double)t->alternatives[i].logprob);
    printf("\t%s%s%s\n", t->flags & DEDIT_TOKEN_DRAFTED ? "drafted " : "",
           t->flags & DEDIT_TOKEN_BONUS ? "bonus " : "",
           t->flags & DEDIT_TOKEN_REASONING ? "reasoning" : "");
}

static void print_event(const struct dedit_event *ev)
{
    switch (ev->type) {
    case DEDIT_EVENT_TOKENS:
        for (uint32_t i = 0; i < ev->n_tokens; i++)
            print_token(&ev->tokens[i]);
        break;
    case DEDIT_EVENT_ROUND:
        printf("round\twindow %" PRIu32 "\tpasses %" PRIu32 "\tnodes %" PRIu32 "\tcommitted %" PRIu32
               "\n",
               ev->window, ev->passes, ev->nodes, ev->committed);
        break;
    case DEDIT_EVENT_FINISHED:
        printf("finished\t%s\t%" PRIu32 " prompt\t%" PRIu32 " generated\t%.3f ms\tseed %" PRIu64 "\n",
               ev->finish_reason, ev->usage.prompt_tokens, ev->usage.completion_tokens,
               (double)ev->usage.total_ns / 1e6, ev->usage.seed);
        break;
    case DEDIT_EVENT_FAILED:
        printf("failed\t%s\t%s\t%s\n", ev->finish_reason, dedit_error_name(ev->error_code),
               ev->error_message);
        break;
    default: /* of a later version */
        break;
    }
}

int main(int argc, char **argv)
{
    struct dedit_client *c;
    struct dedit_request *r;
    struct dedit_options o;
    struct dedit_event ev = {0};
    struct dedit_error err;
    int n;

    if (dedit_client_connect(NULL, &c, &err) < 0)
        return complain(&err);
    dedit_options_init(&o, sizeof o);
    o.text = argc > 1 ? argv[1] : "The capital of France is";
    o.max_tokens = 8;
    o.ignore_eos = 1;
    o.has_seed = 1;
    o.seed = 42;
    o.logprobs = 3;
    o.rounds = 1;
    if (dedit_client_submit(c, &o, &r, &err) < 0)
        return complain(&err);
    while ((n = dedit_request_next(r, &ev, -1, &err)) > 0)
        print_event(&ev);
    dedit_request_free(r);
    dedit_client_free(c);
    return n < 0 ? complain(&err) : 0;
}
