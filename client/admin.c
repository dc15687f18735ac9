/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are not about one answer: models, statistics, health, token ids, administration. */
#include "client/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"

struct dedit_model_list {
    size_t n;
    struct reply reply; /* the strings live there */
    struct strbuf *methods;
    struct dedit_model m[];
};

static const char *text_or_empty(const char *s)
{
    return s ? s : "";
}

static int join(struct strbuf *b, size_t n, char *const *s)
{
    int r = strbuf_reserve(b, 1);
    for (size_t i = 0; i < n && r == 0; i++) {
        if (i)
            r = strbuf_addc(b, ' ');
        if (r == 0)
            r = strbuf_adds(b, s[i]);
    }
    return r;
}

static int take_model(const Dedit__Wire__Model *m, struct strbuf *methods, struct dedit_model *to)
{
    if (join(methods, m->n_methods, m->methods) < 0)
        return DEDIT_E_NOMEM;
    *to = (struct dedit_model){
        .name = text_or_empty(m->name),
        .path = text_or_empty(m->path),
        .state = text_or_empty(m->state),
        .family = text_or_empty(m->family),
        .chat_format = text_or_empty(m->chat_format),
        .numeric_class = text_or_empty(m->numeric_class),
        .drafter = text_or_empty(m->drafter),
        .methods = methods->s,
        .error = text_or_empty(m->error),
        .progress_percent = m->progress_percent,
        .vocab_size = m->vocab_size,
        .max_context = m->max_context,
        .running = m->running,
        .waiting = m->waiting,
        .weight_bytes = m->weight_bytes,
        .kv_bytes = m->kv_bytes,
        .memory_bytes = m->memory_bytes,
        .is_default = m->is_default,
    };
    return 0;
}

void dedit_model_list_free(struct dedit_model_list *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->n && l->methods; i++)
        strbuf_done(&l->methods[i]);
    mem_free(l->methods);
    reply_done(&l->reply);
    mem_free(l);
}

DEFINE_CLEANUP(struct dedit_model_list *, dedit_model_list_free);

int dedit_client_models(struct dedit_client *c, const char *name, struct dedit_model_list **ret,
                        struct dedit_error *perr)
{
    struct error err = {0};
    _cleanup_reply_ struct reply r = {0};
    Dedit__Wire__ListModels list = DEDIT__WIRE__LIST_MODELS__INIT;
    Dedit__Wire__GetModel get = DEDIT__WIRE__GET_MODEL__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;

    if (name) {
        get.name = (char *)(uintptr_t)name;
        m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_GET_MODEL;
        m.get_model = &get;
    } else {
        m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_LIST_MODELS;
        m.list_models = &list;
    }
    int e = client_call(c, &m, -1,
                        name ? DEDIT__WIRE__DAEMON_MESSAGE__BODY_MODEL
                             : DEDIT__WIRE__DAEMON_MESSAGE__BODY_MODELS,
                        &r, &err);
    if (e < 0)
        return public_error(e, &err, perr);
    size_t n = name ? 1 : r.msg->models->n_models;
    _cleanup_(dedit_model_list_freep) struct dedit_model_list *l =
        mem_zalloc(sizeof *l + n * sizeof l->m[0]);
    if (!l)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    l->n = n;
    l->reply = r;
    r = (struct reply){0};
    l->methods = mem_calloc(n ? n : 1, sizeof *l->methods);
    if (!l->methods)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    for (size_t i = 0; i < n; i++) {
        const Dedit__Wire__Model *from =
            name ? l->reply.msg->model : l->reply.msg->models->models[i];
        if (take_model(from, &l->methods[i], &l->m[i]) < 0)
            return public_error(DEDIT_E_NOMEM, NULL, perr);
    }
    *ret = TAKE_PTR(l);
    return 0;
}

size_t dedit_model_list_len(const struct dedit_model_list *l)
{
    return l->n;
}

const struct dedit_model *dedit_model_list_at(const struct dedit_model_list *l, size_t i)
{
    return i < l->n ? &l->m[i] : NULL;
}

int dedit_client_stats(struct dedit_client *c, char **ret_text, struct dedit_error *perr)
{
    struct error err = {0};
    _cleanup_reply_ struct reply r = {0};
    Dedit__Wire__Stats s = DEDIT__WIRE__STATS__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    s.has_prometheus = 1;
    s.prometheus = 1;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_STATS;
    m.stats = &s;
    int e = client_call(c, &m, -1, DEDIT__WIRE__DAEMON_MESSAGE__BODY_STATS, &r, &err);
    if (e < 0)
        return public_error(e, &err, perr);
    char *t = mem_strdup(text_or_empty(r.msg->stats->text));
    if (!t)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    *ret_text = t;
    return 0;
}

int dedit_client_health(struct dedit_client *c, char status[32], uint64_t *ret_uptime_ns,
                        struct dedit_error *perr)
{
    struct error err = {0};
    _cleanup_reply_ struct reply r = {0};
    Dedit__Wire__Health h = DEDIT__WIRE__HEALTH__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_HEALTH;
    m.health = &h;
    int e = client_call(c, &m, -1, DEDIT__WIRE__DAEMON_MESSAGE__BODY_HEALTH, &r, &err);
    if (e < 0)
        return public_error(e, &err, perr);
    if (status)
        snprintf(status, 32, "%s", text_or_empty(r.msg->health->status));
    if (ret_uptime_ns)
        *ret_uptime_ns = r.msg->health->uptime_ns;
    return r.msg->health->ready ? 1 : 0;
}

int dedit_client_tokenize(struct dedit_client *c, const char *model, const char *text, size_t len,
                          int parse_special, uint32_t **ret_ids, size_t *ret_n,
                          struct dedit_error *perr)
{
    struct error err = {0};
    _cleanup_reply_ struct reply r = {0};
    _cleanup_free_ char *copy = mem_strndup(text, len);
    Dedit__Wire__Tokenize t = DEDIT__WIRE__TOKENIZE__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;

    if (!copy)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    if (memchr(text, 0, len)) {
        ERR(&err, INVALID, "text: must not hold a NUL byte");
        return public_error(DEDIT_E_INVALID, &err, perr);
    }
    t.model = (char *)(uintptr_t)model;
    t.text = copy;
    t.has_parse_special = 1;
    t.parse_special = parse_special != 0;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_TOKENIZE;
    m.tokenize = &t;
    int e = client_call(c, &m, -1, DEDIT__WIRE__DAEMON_MESSAGE__BODY_TOKENS, &r, &err);
    if (e < 0)
        return public_error(e, &err, perr);
    uint32_t *ids = mem_alloc(r.msg->tokens->n_ids * sizeof *ids);
    if (!ids)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    if (r.msg->tokens->n_ids)
        memcpy(ids, r.msg->tokens->ids, r.msg->tokens->n_ids * sizeof *ids);
    *ret_ids = ids;
    *ret_n = r.msg->tokens->n_ids;
    return 0;
}

int dedit_client_detokenize(struct dedit_client *c, const char *model, const uint32_t *ids,
                            size_t n, char **ret_text, size_t *ret_len, struct dedit_error *perr)
{
    struct error err = {0};
    _cleanup_reply_ struct reply r = {0};
    Dedit__Wire__Detokenize d = DEDIT__WIRE__DETOKENIZE__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    d.model = (char *)(uintptr_t)model;
    d.n_ids = n;
    d.ids = (uint32_t *)(uintptr_t)ids;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_DETOKENIZE;
    m.detokenize = &d;
    int e = client_call(c, &m, -1, DEDIT__WIRE__DAEMON_MESSAGE__BODY_TEXT, &r, &err);
    if (e < 0)
        return public_error(e, &err, perr);
    char *t = mem_strndup(r.msg->text->text.data ? (const char *)r.msg->text->text.data : "",
                          r.msg->text->text.len);
    if (!t)
        return public_error(DEDIT_E_NOMEM, NULL, perr);
    *ret_text = t;
    *ret_len = r.msg->text->text.len;
    return 0;
}

/* A message whose only good answer is Ok. */
static int call_ok(struct dedit_client *c, Dedit__Wire__ClientMessage *m, struct dedit_error *perr)
{
    struct error err = {0};
    _cleanup_reply_ struct reply r = {0};
    int e = client_call(c, m, -1, DEDIT__WIRE__DAEMON_MESSAGE__BODY_OK, &r, &err);
    return e < 0 ? public_error(e, &err, perr) : 0;
}

int dedit_client_load(struct dedit_client *c, const char *name, const char *path,
                      struct dedit_error *perr)
{
    return dedit_client_load_drafted(c, name, path, NULL, perr);
}

int dedit_client_load_drafted(struct dedit_client *c, const char *name, const char *path,
                              const char *drafter, struct dedit_error *perr)
{
    Dedit__Wire__LoadModel l = DEDIT__WIRE__LOAD_MODEL__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    l.name = (char *)(uintptr_t)name;
    l.path = (char *)(uintptr_t)path;
    l.drafter = (char *)(uintptr_t)drafter;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_LOAD_MODEL;
    m.load_model = &l;
    return call_ok(c, &m, perr);
}

int dedit_client_unload(struct dedit_client *c, const char *name, struct dedit_error *perr)
{
    Dedit__Wire__UnloadModel u = DEDIT__WIRE__UNLOAD_MODEL__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    u.name = (char *)(uintptr_t)name;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_UNLOAD_MODEL;
    m.unload_model = &u;
    return call_ok(c, &m, perr);
}

int dedit_client_reload(struct dedit_client *c, struct dedit_error *perr)
{
    Dedit__Wire__Reload x = DEDIT__WIRE__RELOAD__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_RELOAD;
    m.reload = &x;
    return call_ok(c, &m, perr);
}

int dedit_client_drain(struct dedit_client *c, int stop, struct dedit_error *perr)
{
    Dedit__Wire__Drain d = DEDIT__WIRE__DRAIN__INIT;
    Dedit__Wire__ClientMessage m = DEDIT__WIRE__CLIENT_MESSAGE__INIT;
    d.has_stop = 1;
    d.stop = stop != 0;
    m.body_case = DEDIT__WIRE__CLIENT_MESSAGE__BODY_DRAIN;
    m.drain = &d;
    return call_ok(c, &m, perr);
}
