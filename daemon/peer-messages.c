/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch of what clients send, and the short messages. */
#include <string.h>

#include "daemon/peer.h"
#include "daemon/server.h"

#include <config.h>

static void hello(struct peer *p, uint64_t tag, const Dedit__Wire__Hello *h)
{
    struct server *s = p->server;
    struct error err = {0};
    uint32_t lo = h->has_min_version ? h->min_version : 1;
    uint32_t hi = h->has_max_version ? h->max_version : 1;

    if (p->greeted) {
        ERR(&err, PROTOCOL, "hello: only once in a connection");
        peer_refuse(p, tag, &err);
        return;
    }
    if (lo > WIRE_VERSION || hi < WIRE_VERSION) {
        ERR(&err, UNSUPPORTED, "hello: versions %u to %u are spoken there, %u here", lo, hi,
            WIRE_VERSION);
        peer_refuse(p, tag, &err);
        return;
    }
    p->greeted = true;

    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__HelloReply r = DEDIT__WIRE__HELLO_REPLY__INIT;
    char server[] = "dedit-d " PACKAGE_VERSION;
    char *names[64];
    const struct model *def = models_find(s, NULL);
    for (const struct model *k = s->models; k && r.n_models < ARRAY_LEN(names); k = k->next)
        names[r.n_models++] = k->name;
    r.models = names;
    r.has_version = r.has_max_packet = r.has_max_requests = r.has_max_prompt_bytes = 1;
    r.has_privileged = r.has_ring_version = 1;
    r.version = WIRE_VERSION;
    r.server = server;
    r.max_packet = WIRE_MAX_PACKET;
    r.max_requests = s->config->max_requests_per_connection;
    r.max_prompt_bytes = s->config->max_prompt_bytes;
    r.default_model = def ? def->name : NULL;
    r.privileged = p->privileged;
    r.ring_version = RING_VERSION;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_HELLO;
    m.hello = &r;
    peer_send(p, &m, tag, NULL);
}

static void cancel(struct peer *p, uint64_t tag, const Dedit__Wire__Cancel *c)
{
    struct job *j = p->jobs;
    while (j && j->id != c->request_id)
        j = j->next;
    if (j)
        server_cancel_job(p->server, j, JOB_CANCEL_CLIENT);
    if (tag)
        peer_send_ok(p, tag);
}

static void release_slot(struct peer *p, uint64_t tag, uint32_t number)
{
    struct slot *s = number < p->n_slots ? p->slots[number] : NULL;
    if (s && !s->job)
        s->released = true;
    if (tag)
        peer_send_ok(p, tag);
}

static void ring_moved(struct peer *p, uint32_t number)
{
    struct slot *s = number < p->n_slots ? p->slots[number] : NULL;
    struct job *j = s ? s->job : NULL;
    if (!j || j->state != JOB_RUNNING)
        return;
    /* One order under way at a time, however often the client says so. */
    if (__atomic_exchange_n(&j->resume_asked, true, __ATOMIC_ACQ_REL))
        return;
    j->ordered = true;
    engine_thread_order(p->server->engines, ORDER_RESUME, j, 0);
}

void peer_message(struct peer *p, const Dedit__Wire__ClientMessage *m, struct packet_fds *fds)
{
    struct error err = {0};
    uint64_t tag = m->has_tag ? m->tag : 0;

    if (!p->greeted && m->body_case != DEDIT__WIRE__CLIENT_MESSAGE__BODY_HELLO) {
        ERR(&err, PROTOCOL, "the first message must be hello");
        peer_refuse(p, tag, &err);
        return;
    }
    if (fds->n && m->body_case != DEDIT__WIRE__CLIENT_MESSAGE__BODY_SUBMIT) {
        ERR(&err, PROTOCOL, "only submit may carry a descriptor, this packet has %u", fds->n);
        peer_refuse(p, tag, &err);
        return;
    }
    switch (m->body_case) {
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_HELLO:
        hello(p, tag, m->hello);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_SUBMIT:
        peer_submit(p, m, fds);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_CANCEL:
        cancel(p, tag, m->cancel);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_RELEASE_SLOT:
        release_slot(p, tag, m->release_slot->slot);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_RING_MOVED:
        ring_moved(p, m->ring_moved->slot);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_LIST_MODELS:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_GET_MODEL:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_STATS:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_HEALTH:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_TOKENIZE:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_DETOKENIZE:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_LOAD_MODEL:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_UNLOAD_MODEL:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_RELOAD:
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_DRAIN:
        peer_admin(p, m);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY__NOT_SET:
    case _DEDIT__WIRE__CLIENT_MESSAGE__BODY__CASE_IS_INT_SIZE:
        ERR(&err, UNSUPPORTED, "this message is not known to protocol version %u", WIRE_VERSION);
        peer_send_error(p, tag, &err);
        break;
    }
}

/* ---- events ------------------------------------------------------------------------------------------ */

void peer_send_accepted(struct job *j)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__Accepted a = DEDIT__WIRE__ACCEPTED__INIT;
    bool fresh = j->slot && !j->slot->announced;

    if (!j->peer)
        return;
    a.has_request_id = a.has_prompt_tokens = a.has_seed = a.has_max_tokens = a.has_has_ring = 1;
    a.request_id = j->id;
    a.prompt_tokens = (uint32_t)j->n_ids;
    a.seed = j->sampling.seed;
    a.max_tokens = j->sampling.max_tokens;
    a.has_ring = j->slot != NULL;
    if (j->slot) {
        a.has_slot = a.has_new_slot = a.has_start = 1;
        a.slot = j->slot->number;
        a.new_slot = fresh;
        a.start = ring_writer_begin(&j->slot->ring, j->id);
        j->slot->announced = true;
    }
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_ACCEPTED;
    m.accepted = &a;
    peer_send(j->peer, &m, j->tag, fresh ? j->slot : NULL);
}

static const char *finish_text(const struct job *j)
{
    switch (j->cancel) {
    case JOB_CANCEL_TIMEOUT:
        return "timeout";
    case JOB_CANCEL_SHUTDOWN:
        return "shutdown";
    case JOB_CANCEL_STALLED:
        return "stalled";
    case JOB_NOT_CANCELLED:
    case JOB_CANCEL_CLIENT:
    case JOB_CANCEL_GONE:
        break;
    }
    return j->error.code ? "error" : finish_reason_name(j->finish);
}

void peer_send_finished(struct job *j)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__Finished f = DEDIT__WIRE__FINISHED__INIT;
    Dedit__Wire__Usage u = DEDIT__WIRE__USAGE__INIT;
    Dedit__Wire__Error e = DEDIT__WIRE__ERROR__INIT;

    if (!j->peer)
        return;
    f.has_request_id = 1;
    f.request_id = j->id;
    f.finish_reason = (char *)(uintptr_t)finish_text(j);
    if (j->error.code) {
        e.code = (char *)(uintptr_t)error_name(j->error.code);
        e.message = j->error.msg;
        f.error = &e;
    }
#define SET(field, value) (u.has_##field = 1, u.field = (value))
    SET(prompt_tokens, j->usage.prompt_tokens);
    SET(completion_tokens, j->usage.completion_tokens);
    SET(cached_tokens, j->usage.cached_tokens);
    SET(queued_ns, j->usage.queued_ns);
    SET(time_to_first_token_ns, j->usage.first_token_ns);
    SET(total_ns, j->usage.total_ns);
    SET(rounds, j->usage.drafting.rounds);
    SET(drafted_tokens, j->usage.drafting.drafted);
    SET(accepted_tokens, j->usage.drafting.accepted);
    SET(committed_tokens, j->usage.drafting.committed);
    SET(preemptions, j->usage.preemptions);
#undef SET
    u.method = (char *)(uintptr_t)draft_method_name(engine_main_method(&j->usage.drafting));
    f.usage = &u;
    if (j->stop_reason[0])
        f.stop_reason = j->stop_reason;
    if (!j->slot) {
        f.has_text = f.has_text_cut = 1;
        f.text.data = (uint8_t *)j->output.s;
        f.text.len = j->output.len;
        f.text_cut = j->output_cut;
        f.n_ids = j->output_ids.len;
        f.ids = j->output_ids.ids;
    }
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_FINISHED;
    m.finished = &f;
    peer_send(j->peer, &m, 0, NULL);
}
