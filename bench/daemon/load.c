/* SPDX-License-Identifier: Apache-2.0 */
/* Clients with a connection each that ask one prompt after the other, all in one thread with poll. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/daemon/measure.h"
#include "client/dedit.h"

struct asker {
    struct dedit_client *c;
    struct dedit_request *r;
    uint32_t asked;
    uint64_t tokens;
    double first_ms; /* time to the first token of the last answer that ended */
};

static int complain(const struct dedit_error *e)
{
    fprintf(stderr, "measure: %s: %s\n", dedit_error_name(e->code), e->msg);
    return -1;
}

static int ask(struct asker *a, const struct measure *m, uint32_t who)
{
    struct dedit_options o;
    struct dedit_error e;
    char prompt[96];
    dedit_options_init(&o, sizeof o);
    snprintf(prompt, sizeof prompt, "Client %u asks for its story number %u. Once upon a time", who,
             a->asked);
    o.model = m->model;
    o.text = prompt;
    o.temperature = 0;
    o.ignore_eos = 1;
    o.max_tokens = m->tokens;
    o.method = "ar";
    a->asked++;
    return dedit_client_submit(a->c, &o, &a->r, &e) < 0 ? complain(&e) : 0;
}

/* Takes what there is; 1 when the client has all its answers. */
static int take(struct asker *a, const struct measure *m, uint32_t who)
{
    struct dedit_event ev;
    struct dedit_error e;
    int n;
    while (a->r && (n = dedit_request_next(a->r, &ev, 0, &e)) != 0) {
        if (n < 0)
            return complain(&e);
        if (ev.type == DEDIT_EVENT_TOKENS)
            a->tokens += ev.n_tokens;
        if (ev.type == DEDIT_EVENT_FAILED) {
            fprintf(stderr, "measure: %s\n", ev.error_message);
            return -1;
        }
        if (ev.type != DEDIT_EVENT_FINISHED)
            continue;
        a->first_ms = (double)ev.usage.first_token_ns / 1e6;
        dedit_request_free(a->r);
        a->r = NULL;
        if (a->asked < m->rounds && ask(a, m, who) < 0)
            return -1;
    }
    return a->r == NULL;
}

/* Waits until one of them has something. */
static int wait_for_any(struct asker *a, struct pollfd *p, uint32_t n)
{
    struct dedit_error e;
    bool sleep = true;
    for (uint32_t i = 0; i < n; i++) {
        int r = dedit_client_prepare(a[i].c, &e);
        if (r < 0)
            return complain(&e);
        sleep = sleep && r == 1;
        p[i] = (struct pollfd){.fd = dedit_client_fd(a[i].c), .events = POLLIN};
    }
    if (sleep && poll(p, n, -1) < 0 && errno != EINTR)
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (dedit_client_dispatch(a[i].c, &e) < 0)
            return complain(&e);
    return 0;
}

static void report(const struct asker *a, uint32_t n, double s, const double *share)
{
    uint64_t tokens = 0;
    double least = 1e300, most = 0, mean = 0;
    for (uint32_t i = 0; i < n; i++) {
        tokens += a[i].tokens;
        least = share[i] < least ? share[i] : least;
        most = share[i] > most ? share[i] : most;
        mean += share[i] / n;
    }
    printf("%u clients: %llu tokens in %.2f s, %.1f tokens/s; shares of the mean %.2f to %.2f\n", n,
           (unsigned long long)tokens, s, (double)tokens / s, least / mean, most / mean);
}

int measure_load(const struct measure *m)
{
    uint32_t n = m->clients ? m->clients : 8, left = n;
    struct dedit_error e;
    struct asker *a = mem_calloc(n, sizeof *a);
    struct pollfd *p = mem_calloc(n, sizeof *p);
    double *share = mem_calloc(n, sizeof *share);
    int r = a && p && share ? 0 : -1;

    for (uint32_t i = 0; i < n && r == 0; i++)
        if (dedit_client_connect(m->socket, &a[i].c, &e) < 0)
            r = complain(&e);
    uint64_t start = clock_now_ns();
    for (uint32_t i = 0; i < n && r == 0; i++)
        r = ask(&a[i], m, i);
    while (r == 0 && left) {
        uint32_t was = left;
        left = n;
        for (uint32_t i = 0; i < n && r >= 0; i++) {
            r = take(&a[i], m, i);
            left -= r > 0;
        }
        /* When the first has all its answers: how far are the others? */
        if (was == n && left < n)
            for (uint32_t i = 0; i < n; i++)
                share[i] = (double)a[i].tokens;
        r = r < 0 ? r : left ? wait_for_any(a, p, n) : 0;
    }
    if (r == 0)
        report(a, n, (double)(clock_now_ns() - start) / 1e9, share);
    for (uint32_t i = 0; i < n && a; i++) {
        dedit_request_free(a[i].r);
        dedit_client_free(a[i].c);
    }
    mem_free(a);
    mem_free(p);
    mem_free(share);
    return r == 0 ? 0 : 1;
}
