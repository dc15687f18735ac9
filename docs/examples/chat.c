/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation: a line of standard input is a question.  cc chat.c $(pkg-config --cflags --libs dedit)
 * Arguments: [CHAT-FORMAT [MAX-TOKENS]]; without them the model's own format, and 256. */
#include <dedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS 64

static int complain(const struct dedit_error *err)
{
    fprintf(stderr, "%s: %s\n", dedit_error_name(err->code), err->msg);
    return 1;
}

int main(int argc, char **argv)
{
    struct dedit_chat_message m[2 * TURNS];
    struct dedit_client *c;
    struct dedit_error err;
    char line[4096];
    size_t n = 0;
    int status = 0;

    if (dedit_client_connect(NULL, &c, &err) < 0)
        return complain(&err);
    memset(m, 0, sizeof m);
    while (n < 2 * TURNS && fgets(line, sizeof line, stdin)) {
        struct dedit_options o;
        struct dedit_request *r = NULL;
        char *answer = NULL;

        line[strcspn(line, "\n")] = 0;
        m[n].role = "user";
        m[n].content = strdup(line);
        n++;
        dedit_options_init(&o, sizeof o);
        o.messages = m;
        o.n_messages = n;
        o.chat_format = argc > 1 ? argv[1] : NULL;
        if (argc > 2)
            o.max_tokens = (uint32_t)atoi(argv[2]);
        /* The whole answer at once; one.c shows how to print it as it comes. */
        if (dedit_client_submit(c, &o, &r, &err) < 0 ||
            dedit_request_collect(r, &answer, NULL, NULL, &err) < 0) {
            status = complain(&err);
            dedit_request_free(r);
            break;
        }
        printf("%s\n", answer);
        m[n].role = "assistant";
        m[n].content = strdup(answer);
        n++;
        dedit_free(answer);
        dedit_request_free(r);
    }
    while (n)
        free((char *)m[--n].content);
    dedit_client_free(c);
    return status;
}
