/* SPDX-License-Identifier: Apache-2.0 */
/* One prompt, its answer as it comes.  cc one.c $(pkg-config --cflags --libs dedit) */
#include <dedit.h>
#include <stdio.h>

static int complain(const struct dedit_error *err)
{
    fprintf(stderr, "%s: %s\n", dedit_error_name(err->code), err->msg);
    return 1;
}

int main(int argc, char **argv)
{
    struct dedit_client *c;
    struct dedit_request *r;
    struct dedit_options o;
    struct dedit_event ev;
    struct dedit_error err;
    int n;

    if (dedit_client_connect(NULL, &c, &err) < 0)
        return complain(&err);
    dedit_options_init(&o, sizeof o);
    o.text = argc > 1 ? argv[1] : "The capital of France is";
    o.temperature = 0;
    o.max_tokens = 32;
    if (dedit_client_submit(c, &o, &r, &err) < 0)
        return complain(&err);
    while ((n = dedit_request_next(r, &ev, -1, &err)) > 0) {
        if (ev.type == DEDIT_EVENT_TOKENS)
            fwrite(ev.text, 1, ev.text_len, stdout);
        if (ev.type == DEDIT_EVENT_FAILED)
            fprintf(stderr, "%s: %s\n", ev.finish_reason, ev.error_message);
        if (ev.type == DEDIT_EVENT_FINISHED || ev.type == DEDIT_EVENT_FAILED)
            break;
    }
    putchar('\n');
    dedit_request_free(r);
    dedit_client_free(c);
    return n < 0 ? complain(&err) : ev.type != DEDIT_EVENT_FINISHED;
}
