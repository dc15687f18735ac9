/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about the daemon and its models. */
#include <string.h>

#include "base/clock.h"
#include "base/strbuf.h"
#include "daemon/peer.h"
#include "daemon/server.h"

#include <config.h>

static void fill_model(const struct peer *p, const struct model *m, Dedit__Wire__Model *w)
{
    static char names[][8] = {"auto", "ar", "ngram", "dflash", "dedit", "ddtree"};
    static char *methods[] = {names[0], names[1], names[2], names[3], names[4], names[5]};
    enum { WITHOUT_DRAFTER = 3 };

    dedit__wire__model__init(w);
    w->name = m->name;
    if (p->privileged)
        w->path = m->path;
    w->state = (char *)(uintptr_t)model_state_name(m->state);
    w->has_progress_percent = 1;
    w->progress_percent = __atomic_load_n(&m->progress_percent, __ATOMIC_RELAXED);
    w->has_is_default = 1;
    w->is_default = m->is_default;
    w->has_running = w->has_waiting = 1;
    w->running = m->running;
    w->waiting = (uint32_t)(m->queue.len + m->waiting.len) + m->preparing;
    if (m->state == MODEL_FAILED)
        w->error = (char *)(uintptr_t)m->error.msg;
    if (!m->served)
        return;
    w->family = (char *)(uintptr_t)m->family;
    w->chat_format = (char *)(uintptr_t)(m->has_format ? chat_format_name(m->format) : "");
    w->has_vocab_size = w->has_max_context = 1;
    w->vocab_size = m->vocab;
    w->max_context = m->max_context;
    w->has_weight_bytes = w->has_kv_bytes = w->has_memory_bytes = 1;
    w->weight_bytes = m->memory.weight_bytes;
    w->kv_bytes = m->memory.kv_bytes;
    w->memory_bytes = m->memory.packed_bytes + m->memory.kv_bytes + m->memory.scratch_bytes;
    w->numeric_class = (char *)(uintptr_t)m->numeric_class;
    w->drafter = (char *)(uintptr_t)m->drafter;
    const struct drafting_params drafted = {.method = DRAFT_DFLASH};
    w->n_methods = engine_check_drafting(m->served->engine, &drafted, NULL) == 0
                       ? ARRAY_LEN(methods)
                       : WITHOUT_DRAFTER;
    w->methods = methods;
}

static void list_models(struct peer *p, uint64_t tag)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__ModelList l = DEDIT__WIRE__MODEL_LIST__INIT;
    struct error err = {0};
    size_t n = 0, i = 0;

    for (const struct model *k = p->server->models; k; k = k->next)
        n++;
    _cleanup_free_ Dedit__Wire__Model *w = mem_calloc(n + 1, sizeof *w);
    _cleanup_free_ Dedit__Wire__Model **list = mem_calloc(n + 1, sizeof(Dedit__Wire__Model *));
    if (!w || !list) {
        ERR_NOMEM(&err);
        peer_send_error(p, tag, &err);
        return;
    }
    for (const struct model *k = p->server->models; k; k = k->next, i++) {
        fill_model(p, k, &w[i]);
        list[i] = &w[i];
    }
    l.n_models = n;
    l.models = list;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_MODELS;
    m.models = &l;
    peer_send(p, &m, tag, NULL);
}

static int find(struct peer *p, const char *name, struct model **ret, struct error *err)
{
    *ret = models_find(p->server, name);
    if (!*ret)
        return ERR(err, NOT_FOUND, "model: %s is not known here",
                   name && *name ? name : "no default model is configured;");
    return 0;
}

static int get_model(struct peer *p, uint64_t tag, const char *name, struct error *err)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__Model w;
    struct model *k;
    int r = find(p, name, &k, err);
    if (r < 0)
        return r;
    fill_model(p, k, &w);
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_MODEL;
    m.model = &w;
    peer_send(p, &m, tag, NULL);
    return 0;
}

static int stats(struct peer *p, uint64_t tag, const Dedit__Wire__Stats *q, struct error *err)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__StatsReply r = DEDIT__WIRE__STATS_REPLY__INIT;
    _cleanup_strbuf_ struct strbuf text = {0};
    (void)q; /* both forms carry the text; the list of numbers is read from it */

    if (metrics_render(p->server->metrics, p->server, &text) < 0)
        return ERR_NOMEM(err);
    r.text = text.s;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_STATS;
    m.stats = &r;
    peer_send(p, &m, tag, NULL);
    return 0;
}

static void health(struct peer *p, uint64_t tag)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__HealthReply r = DEDIT__WIRE__HEALTH_REPLY__INIT;
    char version[] = PACKAGE_VERSION;
    const char *status = server_status(p->server);
    r.has_ready = r.has_uptime_ns = 1;
    r.ready = strcmp(status, "ready") == 0;
    r.status = (char *)(uintptr_t)status;
    r.uptime_ns = clock_now_ns() - p->server->started_ns;
    r.version = version;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_HEALTH;
    m.health = &r;
    peer_send(p, &m, tag, NULL);
}

/* ---- token ids ------------------------------------------------------------------------------------------- */

static int find_loaded(struct peer *p, const char *name, struct model **ret, struct error *err)
{
    int r = find(p, name, ret, err);
    if (r == 0 && !(*ret)->tokenizer)
        r = ERR(err, BUSY, "model: %s is not loaded", (*ret)->name);
    return r;
}

static int tokenize(struct peer *p, uint64_t tag, const Dedit__Wire__Tokenize *q, struct error *err)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__TokenizeReply t = DEDIT__WIRE__TOKENIZE_REPLY__INIT;
    _cleanup_token_list_ struct token_list ids = {0};
    struct model *k;
    const char *text = q->text ? q->text : "";
    unsigned flags = (q->parse_special ? TOKENIZE_SPECIAL : 0) | (q->add_bos ? TOKENIZE_BOS : 0);

    int r = find_loaded(p, q->model, &k, err);
    if (r == 0)
        r = tokenizer_encode(k->tokenizer, text, strlen(text), flags, &ids, NULL, err);
    if (r < 0)
        return r;
    t.n_ids = ids.len;
    t.ids = ids.ids;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_TOKENS;
    m.tokens = &t;
    peer_send(p, &m, tag, NULL);
    return 0;
}

static int detokenize(struct peer *p, uint64_t tag, const Dedit__Wire__Detokenize *q,
                      struct error *err)
{
    Dedit__Wire__DaemonMessage m = DEDIT__WIRE__DAEMON_MESSAGE__INIT;
    Dedit__Wire__DetokenizeReply t = DEDIT__WIRE__DETOKENIZE_REPLY__INIT;
    _cleanup_strbuf_ struct strbuf text = {0};
    struct detokenizer d = {.n_pending = 0};
    struct model *k;

    int r = find_loaded(p, q->model, &k, err);
    for (size_t i = 0; i < q->n_ids && r == 0; i++) {
        if (q->ids[i] >= k->vocab)
            return ERR(err, INVALID, "ids[%zu]: %u, the vocabulary has %u", i, q->ids[i], k->vocab);
        if (detokenizer_push(&d, k->tokenizer, q->ids[i],
                             q->skip_special ? DETOKENIZE_SKIP_SPECIAL : 0, &text) < 0)
            return ERR_NOMEM(err);
    }
    if (r == 0 && detokenizer_flush(&d, &text) < 0)
        return ERR_NOMEM(err);
    if (r < 0)
        return r;
    t.has_text = 1;
    t.text.data = (uint8_t *)text.s;
    t.text.len = text.len;
    m.body_case = DEDIT__WIRE__DAEMON_MESSAGE__BODY_TEXT;
    m.text = &t;
    peer_send(p, &m, tag, NULL);
    return 0;
}

/* ---- privileged ------------------------------------------------------------------------------------------- */

static int load(struct peer *p, uint64_t tag, const Dedit__Wire__LoadModel *q, struct error *err)
{
    struct server *s = p->server;
    struct model *m;
    int r;
    if (q->path && *q->path)
        r = models_add(s, q->name, q->path, q->drafter, &m, err);
    else if (q->drafter && *q->drafter)
        return ERR(err, INVALID, "drafter: needs path, a configured model has its own");
    else
        r = find(p, q->name, &m, err);
    if (r < 0)
        return r;
    if (m->state == MODEL_READY) {
        peer_send_ok(p, tag);
        return 0;
    }
    if (m->state == MODEL_DRAINING)
        return ERR(err, BUSY, "model: %s is being unloaded", m->name);
    if (m->state != MODEL_LOADING) {
        r = models_load(s, m, false, err);
        if (r < 0)
            return r;
    }
    return model_add_waiter(m, p, tag, false, err);
}

static int unload(struct peer *p, uint64_t tag, const Dedit__Wire__UnloadModel *q,
                  struct error *err)
{
    struct model *m;
    int r = find(p, q->name, &m, err);
    if (r < 0)
        return r;
    if (m->state == MODEL_LOADING)
        return ERR(err, BUSY, "model: %s is being loaded", m->name);
    if (!m->served) {
        peer_send_ok(p, tag);
        return 0;
    }
    r = model_add_waiter(m, p, tag, true, err);
    if (r == 0)
        models_unload(p->server, m);
    return r;
}

static int reload(struct peer *p, uint64_t tag, struct error *err)
{
    struct server *s = p->server;
    int r = s->reload ? s->reload(s->reload_arg, err)
                      : ERR(err, UNSUPPORTED, "reload: there is no configuration to read");
    if (r == 0)
        peer_send_ok(p, tag);
    return r;
}

static int privileged(struct peer *p, uint64_t tag, const Dedit__Wire__ClientMessage *m,
                      struct error *err)
{
    if (!p->privileged)
        return ERR(err, DENIED, "user %u may not administrate this daemon (privileged_uids)",
                   (unsigned)p->uid);
    switch ((int)m->body_case) {
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_LOAD_MODEL:
        return load(p, tag, m->load_model, err);
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_UNLOAD_MODEL:
        return unload(p, tag, m->unload_model, err);
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_RELOAD:
        return reload(p, tag, err);
    default: /* drain */
        peer_send_ok(p, tag);
        server_drain(p->server, m->drain->stop);
        return 0;
    }
}

void peer_admin(struct peer *p, const Dedit__Wire__ClientMessage *m)
{
    struct error err = {0};
    uint64_t tag = m->has_tag ? m->tag : 0;
    int r = 0;

    switch ((int)m->body_case) {
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_LIST_MODELS:
        list_models(p, tag);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_GET_MODEL:
        r = get_model(p, tag, m->get_model->name, &err);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_STATS:
        r = stats(p, tag, m->stats, &err);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_HEALTH:
        health(p, tag);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_TOKENIZE:
        r = tokenize(p, tag, m->tokenize, &err);
        break;
    case DEDIT__WIRE__CLIENT_MESSAGE__BODY_DETOKENIZE:
        r = detokenize(p, tag, m->detokenize, &err);
        break;
    default:
        r = privileged(p, tag, m, &err);
        break;
    }
    if (r < 0)
        peer_send_error(p, tag, &err);
}
