/* SPDX-License-Identifier: Apache-2.0 */
/* A long answer that is stopped after some tokens.  cc cancel.c $(pkg-config --cflags --libs dedit) */
#include <dedit.h>
#include <stdio.h>
#include <stdlib.h>

static int complain(const struct dedit_error *err)
{
    fprintf(stderr, "%s: %s\n", dedit_error_name(err->code), err->msg);
    return 1;
}

int main(int argc, char **argv)
{
    unsigned enough = argc > 1 ? (unsigned)atoi(argv[1]) : 20, tokens = 0;
    struct dedit_client *c;
    struct dedit_request *r;
    struct dedit_options o;
    struct dedit_event ev = {0};
    struct dedit_error err;
    int n;

    if (dedit_client_connect(NULL, &c, &err) < 0)
        return complain(&err);
    dedit_options_init(&o, sizeof o);
    o.text = "Once upon a time";
    o.max_tokens = 400;
    o.ignore_eos = 1;
    if (dedit_client_submit(c, &o, &r, &err) < 0)
        return complain(&err);
    /* A timeout of 100 ms: there is time for other things in between. */
    while ((n = dedit_request_next(r, &ev, 100, &err)) >= 0) {
        if (n == 0)
            continue;
        if (ev.type == DEDIT_EVENT_FINISHED || ev.type == DEDIT_EVENT_FAILED)
            break;
        if (ev.type != DEDIT_EVENT_TOKENS)
            continue;
        tokens += ev.n_tokens;
        /* Later calls do nothing; tokens that are on their way still come. */
        if (tokens >= enough && dedit_request_cancel(r, &err) < 0)
            return complain(&err);
    }
    if (n < 0)
        return complain(&err);
    printf("%s after %u tokens\n", ev.finish_reason, tokens);
    dedit_request_free(r);
    dedit_client_free(c);
    return ev.type != DEDIT_EVENT_FINISHED;
}
