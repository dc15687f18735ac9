/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests at once in one thread, with poll.  cc many.c $(pkg-config --cflags --libs dedit) */
#include <dedit.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define MANY 16

struct answer {
    struct dedit_request *r;
    unsigned tokens;
    int done;
};

static int complain(const struct dedit_error *err)
{
    fprintf(stderr, "%s: %s\n", dedit_error_name(err->code), err->msg);
    return 1;
}

/* Takes all that an answer has now.  Negative: the connection is lost. */
static int drain(struct answer *a, struct dedit_error *err)
{
    struct dedit_event ev;
    int n;
    while (!a->done && (n = dedit_request_next(a->r, &ev, 0, err)) != 0) {
        if (n < 0)
            return n;
        if (ev.type == DEDIT_EVENT_TOKENS)
            a->tokens += ev.n_tokens;
        else if (ev.type == DEDIT_EVENT_FINISHED || ev.type == DEDIT_EVENT_FAILED)
            a->done = 1;
    }
    return 0;
}

int main(void)
{
    struct answer a[MANY] = {{0}};
    struct dedit_client *c;
    struct dedit_error err;
    int left = MANY;

    if (dedit_client_connect(NULL, &c, &err) < 0)
        return complain(&err);
    for (int i = 0; i < MANY; i++) {
        struct dedit_options o;
        char prompt[64];
        dedit_options_init(&o, sizeof o);
        snprintf(prompt, sizeof prompt, "%d and %d are", i, i + 1);
        o.text = prompt;
        o.has_seed = 1;
        o.seed = (uint64_t)i;
        o.max_tokens = 16;
        if (dedit_client_submit(c, &o, &a[i].r, &err) < 0)
            return complain(&err);
    }
    while (left) {
        left = 0;
        for (int i = 0; i < MANY; i++) {
            if (drain(&a[i], &err) < 0)
                return complain(&err);
            left += !a[i].done;
        }
        int r = left ? dedit_client_prepare(c, &err) : 0;
        if (r == 1) {
            struct pollfd p = {.fd = dedit_client_fd(c), .events = POLLIN};
            poll(&p, 1, -1);
        }
        if (r < 0 || (left && dedit_client_dispatch(c, &err) < 0))
            return complain(&err);
    }
    for (int i = 0; i < MANY; i++) {
        printf("%d: %u tokens\n", i, a[i].tokens);
        dedit_request_free(a[i].r);
    }
    dedit_client_free(c);
    return 0;
}
