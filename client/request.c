/* SPDX-License-Identifier: Apache-2.0 */
/* A request's events, read from its ring; its end, also when only the socket tells it. */
#include "client/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/strbuf.h"

_Static_assert(sizeof(struct dedit_alternative) == sizeof(struct ring_alternative) &&
                   offsetof(struct dedit_alternative, logprob) ==
                       offsetof(struct ring_alternative, logprob),
               "alternatives are handed out from the ring");

uint64_t dedit_request_id(const struct dedit_request *r)
{
    return r->id;
}

uint64_t dedit_request_seed(const struct dedit_request *r)
{
    return r->seed;
}

uint32_t dedit_request_prompt_tokens(const struct dedit_request *r)
{
    return r->prompt_tokens;
}

void dedit_request_set_user(struct dedit_request *r, void *user)
{
    r->user = user;
}

void *dedit_request_user(const struct dedit_request *r)
{
    return r->user;
}

/* ---- the end as the socket tells it --------------------------------------------------------------- */

static void take_usage(const Dedit__Wire__Usage *u, struct dedit_usage *to)
{
    to->prompt_tokens = u->prompt_tokens;
    to->completion_tokens = u->completion_tokens;
    to->cached_tokens = u->cached_tokens;
    to->preemptions = u->preemptions;
    to->queued_ns = u->queued_ns;
    to->first_token_ns = u->time_to_first_token_ns;
    to->total_ns = u->total_ns;
    to->rounds = u->rounds;
    to->drafted_tokens = u->drafted_tokens;
    to->accepted_tokens = u->accepted_tokens;
    to->committed_tokens = u->committed_tokens;
    to->method = ring_method_name(ring_method_parse(u->method)); /* outlives the message */
}

/* Skips what an abandoned request has in its slot, so that the daemon may use it again; and nothing
 * behind its last record: that once skipped, the next request may begin before we read of this one's end. */
static void skip_slot(struct slot *s)
{
    struct ring_view v;
    while (!s->ended && ring_reader_next(&s->reader, &v, NULL) == 0) {
        s->ended = v.type == RING_FINISHED || v.type == RING_FAILED;
        ring_reader_advance(&s->reader, v.size);
    }
    ring_reader_release(&s->reader);
}

/* 0 for a whole answer only: what is not said to be whole has failed. */
static int end_code(const Dedit__Wire__Finished *f)
{
    static const char *const whole[] = {"stop", "length", "cancelled"};
    if (f->error)
        return client_code_of(f->error->code ? f->error->code : "");
    for (size_t i = 0; f->finish_reason && i < ARRAY_LEN(whole); i++)
        if (strcmp(f->finish_reason, whole[i]) == 0)
            return 0;
    return DEDIT_E_INTERNAL;
}

void request_on_finished(struct dedit_client *c, const Dedit__Wire__Finished *f)
{
    for (size_t i = 0; i < c->n_slots; i++) {
        struct slot *s = c->slots[i];
        if (s && s->open && s->abandoned && s->abandoned_id == f->request_id) {
            s->abandoned = false;
            skip_slot(s);
        }
    }
    for (struct dedit_request *r = c->requests; r; r = r->next) {
        if (r->id != f->request_id || r->end.set)
            continue;
        r->end.set = true;
        snprintf(r->end.finish_reason, sizeof r->end.finish_reason, "%s",
                 f->finish_reason ? f->finish_reason : "error");
        r->end.stop_reason = copy_string(f->stop_reason);
        r->end.error_code = end_code(f);
        if (f->error)
            r->end.error_message = copy_string(f->error->message);
        if (f->usage)
            take_usage(f->usage, &r->end.usage);
        r->end.usage.seed = r->seed;
    }
}

static int end_event(struct dedit_request *r, struct dedit_event *ev)
{
    r->done = true;
    ev->finish_reason = r->end.finish_reason;
    ev->usage = r->end.usage;
    if (r->end.error_code) {
        ev->type = DEDIT_EVENT_FAILED;
        ev->error_code = r->end.error_code;
        ev->error_message = r->end.error_message ? r->end.error_message : "";
    } else {
        ev->type = DEDIT_EVENT_FINISHED;
        ev->stop_reason = r->end.stop_reason;
    }
    return 1;
}

/* ---- records as events ------------------------------------------------------------------------------ */

static void tokens_event(struct dedit_request *r, const struct ring_view *v, struct dedit_event *ev)
{
    const struct ring_alternative *alt = v->alternatives;
    const char *text = v->text;

    ev->type = DEDIT_EVENT_TOKENS;
    ev->n_tokens = v->tokens->n_tokens;
    ev->tokens = r->tokens;
    ev->text = v->text;
    ev->text_len = v->text_bytes;
    for (uint32_t i = 0; i < ev->n_tokens; i++) {
        const struct ring_token *t = &v->token[i];
        r->tokens[i] = (struct dedit_token){
            .id = t->id,
            .flags = t->flags,
            .logprob = t->logprob,
            .n_alternatives = t->n_alternatives,
            .alternatives = t->n_alternatives ? (const struct dedit_alternative *)alt : NULL,
            .text = text,
            .text_len = t->text_bytes,
        };
        alt += t->n_alternatives;
        text += t->text_bytes;
    }
}

static const char *keep_text(struct dedit_request *r, const struct ring_view *v)
{
    mem_free(r->text);
    r->text = mem_strndup(v->text, v->text_bytes);
    return r->text;
}

static void finished_event(struct dedit_request *r, const struct ring_view *v,
                           struct dedit_event *ev)
{
    static const char *const reasons[] = {
        [RING_FINISH_STOP] = "stop",
        [RING_FINISH_LENGTH] = "length",
        [RING_FINISH_CANCELLED] = "cancelled",
    };
    const struct ring_finished *f = v->finished;
    ev->type = DEDIT_EVENT_FINISHED;
    ev->finish_reason = reasons[f->reason]; /* the validator bounds it */
    ev->stop_reason = f->stop_bytes ? keep_text(r, v) : NULL;
    ev->usage = (struct dedit_usage){
        .prompt_tokens = f->prompt_tokens,
        .completion_tokens = f->completion_tokens,
        .cached_tokens = f->cached_tokens,
        .preemptions = f->preemptions,
        .queued_ns = f->queued_ns,
        .first_token_ns = f->first_token_ns,
        .total_ns = f->total_ns,
        .rounds = f->rounds,
        .drafted_tokens = f->drafted_tokens,
        .accepted_tokens = f->accepted_tokens,
        .committed_tokens = f->committed_tokens,
        .seed = f->seed,
        .method = ring_method_name(f->rec.flags),
    };
    r->done = true;
}

static bool code_is_known(int32_t code)
{
#define X(NAME, number, name, text)                                                                \
    if (code == (int32_t)DEDIT_E_##NAME)                                                           \
        return true;
    DEDIT_ERRORS(X)
#undef X
    return false;
}

static void failed_event(struct dedit_request *r, const struct ring_view *v, struct dedit_event *ev)
{
    const struct ring_failed *f = v->failed;
    ev->type = DEDIT_EVENT_FAILED;
    ev->finish_reason = f->reason == RING_FAILURE_TIMEOUT    ? "timeout"
                        : f->reason == RING_FAILURE_SHUTDOWN ? "shutdown"
                        : f->reason == RING_FAILURE_STALLED  ? "stalled"
                                                             : "error";
    /* A number that is no code must not read as success. */
    ev->error_code = code_is_known(f->code) ? f->code : DEDIT_E_INTERNAL;
    const char *m = keep_text(r, v);
    ev->error_message = m ? m : "";
    ev->usage.completion_tokens = f->completion_tokens;
    r->done = true;
}

/*
 * A private copy of the record that v shows, checked again: what was checked in shared memory could be
 * another thing a moment later, and counts are used more than once.  0 or an error.
 */
static int take_record(struct dedit_request *r, struct ring_view *v, struct error *err)
{
    const struct ring_reader *rd = &r->slot->reader;
    uint32_t size = v->size;
    if (size > r->record_bytes) {
        uint32_t room = size < 512 ? 512 : size;
        uint8_t *grown = mem_realloc(r->record, room);
        if (!grown)
            return ERR_NOMEM(err);
        r->record = grown;
        r->record_bytes = room;
    }
    memcpy(r->record, rd->data + (rd->read_pos & (rd->capacity - 1)), size);
    int e = ring_validate(r->record, size, v, err);
    if (e < 0)
        return e;
    if (e > 0 || v->size != size)
        return ERR(err, PROTOCOL, "ring record: it changed while it was read");
    return 0;
}

/* 1 with an event, 0 when the ring has none, negative when it is damaged. */
static int from_ring(struct dedit_request *r, struct dedit_event *ev, struct error *err)
{
    struct ring_view v;
    int e = ring_reader_next(&r->slot->reader, &v, err);
    if (e != 0)
        return e < 0 ? e : 0;
    e = take_record(r, &v, err);
    if (e < 0)
        return e;
    r->to_advance = v.size;
    switch (v.type) {
    case RING_TOKENS:
        tokens_event(r, &v, ev);
        break;
    case RING_ROUND:
        ev->type = DEDIT_EVENT_ROUND;
        ev->window = v.round->window;
        ev->passes = v.round->passes;
        ev->nodes = v.round->nodes;
        ev->committed = v.round->committed;
        ev->accepted = v.accepted;
        ev->confidence = v.confidence;
        ev->draft = v.draft;
        ev->node_token = v.node_token;
        ev->node_parent = v.node_parent;
        break;
    case RING_FINISHED:
        finished_event(r, &v, ev);
        break;
    case RING_FAILED:
        failed_event(r, &v, ev);
        break;
    case RING_PAD: /* never returned by ring_reader_next */
        break;
    }
    return 1;
}

void request_release(struct dedit_request *r)
{
    struct ring_reader *rd = &r->slot->reader;
    if (r->to_advance) {
        ring_reader_advance(rd, r->to_advance);
        r->to_advance = 0;
    }
    if (!ring_reader_release(rd))
        return;
    Dedit__Wire__RingMoved moved = DEDIT__WIRE__RING_MOVED__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    for (size_t i = 0; i < r->client->n_slots; i++)
        if (r->client->slots[i] == r->slot)
            moved.slot = (uint32_t)i;
    moved.has_slot = 1;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_RING_MOVED;
    m.ring_moved = &moved;
    /* A lost connection shows at the next call. */
    if (client_post(r->client, &m, NULL) < 0)
        return;
}

bool request_ready(const struct dedit_request *r)
{
    const struct ring_reader *rd = &r->slot->reader;
    return r->end.set || r->client->gone ||
           __atomic_load_n(&rd->header->write_pos, __ATOMIC_ACQUIRE) != rd->read_pos;
}

/* 1 with an event, 0 when there is none now. */
static int poll_once(struct dedit_request *r, struct dedit_event *ev, struct error *err)
{
    int e = from_ring(r, ev, err);
    if (e != 0)
        return e;
    /* The ring's last record is published before the socket's word is sent: an end that was seen
     * here, and a ring that is empty after it, is the end. */
    if (r->end.set) {
        e = from_ring(r, ev, err);
        return e != 0 ? e : end_event(r, ev);
    }
    if (r->client->gone)
        return client_gone(r->client, err);
    return 0;
}

static void spin(const struct dedit_request *r, uint64_t until)
{
    const struct ring_reader *rd = &r->slot->reader;
    while (__atomic_load_n(&rd->header->write_pos, __ATOMIC_ACQUIRE) == rd->read_pos) {
        for (int i = 0; i < 32; i++)
#if defined __x86_64__ || defined __i386__
            __builtin_ia32_pause();
#else
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
        if (clock_now_ns() >= until)
            return;
    }
}

/* Sleeps until the ring, the socket or the deadline (ns, UINT64_MAX: none) says something. */
static int sleep_for(struct dedit_request *r, uint64_t deadline, struct error *err)
{
    struct ring_reader *rd = &r->slot->reader;
    if (!ring_reader_sleep(rd))
        return 0;
    struct pollfd p[2] = {{.fd = r->client->sock, .events = POLLIN},
                          {.fd = rd->event_fd, .events = POLLIN}};
    struct timespec t, *tp = NULL;
    if (deadline != UINT64_MAX) {
        uint64_t now = clock_now_ns(), left = deadline > now ? deadline - now : 0;
        t = (struct timespec){.tv_sec = (time_t)(left / 1000000000u),
                              .tv_nsec = (long)(left % 1000000000u)};
        tp = &t;
    }
    int n = ppoll(p, 2, tp, NULL), e = errno;
    ring_reader_awake(rd);
    if (n < 0 && e != EINTR)
        return ERR(err, IO, "poll: %s", strerror(e));
    if (n > 0 && p[0].revents) {
        /* The daemon's end is told after what the ring still has. */
        if (client_pump(r->client, NULL) < 0)
            return 0;
    }
    return 0;
}

int dedit_request_next(struct dedit_request *r, struct dedit_event *ev, int timeout_ms,
                       struct dedit_error *perr)
{
    struct error err = {0};
    uint64_t now = 0, deadline = UINT64_MAX;
    bool spun = false;

    memset(ev, 0, sizeof *ev);
    if (!r->client) {
        ERR(&err, CLOSED, "the client of this request was freed");
        return public_error(DEDIT_E_CLOSED, &err, perr);
    }
    if (!r->slot)
        return 0; /* after the last event */
    request_release(r);
    if (r->done) {
        r->slot->request = NULL;
        r->slot = NULL;
        return 0;
    }
    for (;;) {
        int e = poll_once(r, ev, &err);
        if (e < 0)
            return public_error(e, &err, perr);
        if (e > 0)
            return 1;
        if (timeout_ms == 0) {
            if (client_pump(r->client, NULL) < 0 || r->end.set) {
                e = poll_once(r, ev, &err);
                return e < 0 ? public_error(e, &err, perr) : e;
            }
            return 0;
        }
        if (!now) {
            now = clock_now_ns();
            if (timeout_ms > 0)
                deadline = now + (uint64_t)timeout_ms * 1000000u;
        } else if (deadline != UINT64_MAX && clock_now_ns() >= deadline) {
            return 0;
        }
        if (!spun && r->client->spin_us) {
            spun = true;
            uint64_t until = clock_now_ns() + r->client->spin_us * 1000ull;
            spin(r, until < deadline ? until : deadline);
            continue;
        }
        e = sleep_for(r, deadline, &err);
        if (e < 0)
            return public_error(e, &err, perr);
        spun = false;
    }
}

int dedit_request_collect(struct dedit_request *r, char **ret_text, size_t *ret_len,
                          struct dedit_event *last, struct dedit_error *perr)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    struct dedit_event ev;

    if (strbuf_reserve(&text, 1) < 0)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    for (;;) {
        int e = dedit_request_next(r, &ev, -1, perr);
        if (e < 0)
            return e;
        if (e == 0) {
            struct error err = {0};
            ERR(&err, INVALID, "the request has been read to its end already");
            return public_error(DEDIT_E_INVALID, &err, perr);
        }
        if (ev.type == DEDIT_EVENT_TOKENS && strbuf_add(&text, ev.text, ev.text_len) < 0)
            return public_error(DEDIT_E_NOMEM, NULL, perr);
        if (ev.type == DEDIT_EVENT_FAILED) {
            struct error err = {0};
            error_set(&err, ev.error_code, __FILE__, __LINE__, "%s", ev.error_message);
            if (last)
                *last = ev;
            return public_error(ev.error_code, &err, perr);
        }
        if (ev.type == DEDIT_EVENT_FINISHED)
            break;
    }
    if (last)
        *last = ev;
    if (ret_len)
        *ret_len = text.len;
    *ret_text = TAKE_PTR(text.s);
    return 0;
}

int dedit_request_cancel(struct dedit_request *r, struct dedit_error *perr)
{
    struct error err = {0};
    if (!r->client || r->done || r->end.set)
        return 0;
    Dedit__Wire__Cancel cancel = DEDIT__WIRE__CANCEL__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    cancel.has_request_id = 1;
    cancel.request_id = r->id;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_CANCEL;
    m.cancel = &cancel;
    int e = client_post(r->client, &m, &err);
    return e < 0 ? public_error(e, &err, perr) : 0;
}

void request_unlink(struct dedit_request *r)
{
    struct dedit_client *c = r->client;
    if (!c)
        return;
    if (r->prev)
        r->prev->next = r->next;
    else
        c->requests = r->next;
    if (r->next)
        r->next->prev = r->prev;
}

void dedit_request_free(struct dedit_request *r)
{
    if (!r)
        return;
    if (r->client && r->slot) {
        struct slot *s = r->slot;
        if (!r->done && !r->end.set && !r->client->gone) {
            dedit_request_cancel(r, NULL);
            s->abandoned = true;
            s->abandoned_id = r->id;
            skip_slot(s); /* so that a full ring does not hold the daemon up */
        } else {
            skip_slot(s);
        }
        s->request = NULL;
    }
    request_unlink(r);
    mem_free(r->end.stop_reason);
    mem_free(r->end.error_message);
    mem_free(r->text);
    mem_free(r->record);
    mem_free(r);
}
