/* SPDX-License-Identifier: Apache-2.0 */
/* Submit: a message and perhaps a memory file become a job.  Everything is checked here or when the
 * prompt is prepared; nothing that a peer sent reaches the engine unchecked. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/hash.h"
#include "base/parse.h"
#include "daemon/peer.h"
#include "daemon/server.h"

#define MAX_CACHE_SALT 64u
#define MAX_MESSAGES   1024u

static int keep(struct job *j, const char *s, size_t n, char **ret, struct error *err)
{
    *ret = arena_strndup(j->arena, s ? s : "", s ? n : 0);
    return *ret ? 0 : ERR_NOMEM(err);
}

static int keep_text(struct job *j, const char *what, const char *s, const char **ret,
                     struct error *err)
{
    char *copy = NULL;
    if (!s) {
        *ret = NULL;
        return 0;
    }
    size_t n = strlen(s);
    if (!utf8_valid(s, n))
        return ERR(err, INVALID, "%s: must be UTF-8", what);
    int r = keep(j, s, n, &copy, err);
    *ret = copy;
    return r;
}

/* ---- prompts ------------------------------------------------------------------------------------------ */

static int take_text(struct job *j, const char *s, size_t n, struct error *err)
{
    if (!utf8_valid(s, n))
        return ERR(err, INVALID, "text: must be UTF-8");
    j->prompt_kind = JOB_TEXT;
    j->text_len = n;
    return keep(j, s, n, &j->text, err);
}

static int take_ids(struct job *j, const uint32_t *ids, size_t n, struct error *err)
{
    j->prompt_kind = JOB_IDS;
    j->ids = arena_alloc(j->arena, n * sizeof *ids + 1);
    if (!j->ids)
        return ERR_NOMEM(err);
    if (n)
        memcpy(j->ids, ids, n * sizeof *ids);
    j->n_ids = n;
    return 0;
}

static int take_chat(struct job *j, const Dedit__Wire__ChatMessages *c, struct error *err)
{
    if (c->n_messages == 0 || c->n_messages > MAX_MESSAGES)
        return ERR(err, INVALID, "messages: %zu, must be 1 to %u", c->n_messages, MAX_MESSAGES);
    j->prompt_kind = JOB_CHAT;
    j->n_messages = c->n_messages;
    j->messages = arena_zalloc(j->arena, c->n_messages * sizeof *j->messages);
    if (!j->messages)
        return ERR_NOMEM(err);
    int r = 0;
    for (size_t i = 0; i < c->n_messages && r == 0; i++) {
        const Dedit__Wire__ChatMessage *from = c->messages[i];
        struct chat_message *to = &j->messages[i];
        char what[48];
        if (!from->role || !from->content)
            return ERR(err, INVALID, "messages[%zu]: role and content must be set", i);
        snprintf(what, sizeof what, "messages[%zu]", i);
        r = keep_text(j, what, from->role, &to->role, err);
        if (r == 0)
            r = keep_text(j, what, from->content, &to->content, err);
        if (r == 0)
            r = keep_text(j, what, from->reasoning_content, &to->reasoning, err);
        if (r == 0)
            r = keep_text(j, what, from->tool_calls_json, &to->tool_calls_json, err);
        if (r == 0)
            to->content_len = strlen(to->content);
    }
    if (r < 0)
        return r;
    j->chat.add_generation_prompt = c->has_add_generation_prompt ? c->add_generation_prompt : true;
    j->chat.enable_thinking = c->has_enable_thinking ? c->enable_thinking : -1;
    r = keep_text(j, "tools_json", c->tools_json, &j->chat.tools_json, err);
    if (r == 0 && c->format && *c->format) {
        if (!chat_format_parse(c->format, &j->format))
            return ERR(err, INVALID, "format: %s is none of chatml, qwen3, smollm2, llama3",
                       c->format);
        j->has_format = true;
    }
    return r;
}

/* The sealed file of a long prompt: mapped, copied, unmapped; its owner cannot change it meanwhile. */
static int take_memfd(struct peer *p, struct job *j, const Dedit__Wire__MemfdPrompt *m,
                      struct packet_fds *fds, struct error *err)
{
    size_t size = 0;
    if (fds->n != 1)
        return ERR(err, PROTOCOL, "memfd prompt: the packet has %u descriptors, must be 1", fds->n);
    if (m->size > p->server->config->max_prompt_bytes)
        return ERR(err, LIMIT, "max_prompt_bytes: the prompt has %llu bytes, the limit is %llu",
                   (unsigned long long)m->size,
                   (unsigned long long)p->server->config->max_prompt_bytes);
    int r = memfd_check(fds->fd[0], F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW, 0, &size, err);
    if (r < 0)
        return r;
    if (m->size > size)
        return ERR(err, INVALID, "memfd prompt: size %llu is over the file's %zu bytes",
                   (unsigned long long)m->size, size);
    if (m->size == 0)
        return ERR(err, INVALID, "memfd prompt: size must not be 0");
    void *map = mmap(NULL, m->size, PROT_READ, MAP_SHARED, fds->fd[0], 0);
    if (map == MAP_FAILED)
        return ERR(err, IO, "memfd prompt: mapping %llu bytes: %m", (unsigned long long)m->size);
    switch (m->kind) {
    case DEDIT__WIRE__MEMFD_PROMPT__KIND__TEXT:
        r = take_text(j, map, m->size, err);
        break;
    case DEDIT__WIRE__MEMFD_PROMPT__KIND__IDS:
        r = m->size % 4
                ? ERR(err, INVALID, "memfd prompt: %llu bytes of ids, must be a multiple of 4",
                      (unsigned long long)m->size)
                : take_ids(j, map, m->size / 4, err);
        break;
    case DEDIT__WIRE__MEMFD_PROMPT__KIND__CHAT: {
        struct wire_arena w;
        r = wire_arena_init_limit(&w, 8 * m->size + WIRE_MAX_UNPACKED);
        if (r < 0) {
            r = ERR_NOMEM(err);
            break;
        }
        const Dedit__Wire__ChatMessages *c =
            dedit__wire__chat_messages__unpack(&w.allocator, m->size, map);
        r = c ? take_chat(j, c, err)
              : ERR(err, PROTOCOL, "memfd prompt: cannot be read as ChatMessages");
        wire_arena_done(&w);
        break;
    }
    case _DEDIT__WIRE__MEMFD_PROMPT__KIND_IS_INT_SIZE:
    default:
        r = ERR(err, UNSUPPORTED, "memfd prompt: kind %d is not known", (int)m->kind);
        break;
    }
    munmap(map, m->size);
    j->prompt_bytes = m->size;
    return r;
}

/* ---- parameters ----------------------------------------------------------------------------------------- */

static int take_lists(struct job *j, const Dedit__Wire__Sampling *w, struct error *err)
{
    struct sampling_params *s = &j->sampling;
    if (w->n_logit_bias > SAMPLING_MAX_LOGIT_BIAS)
        return ERR(err, LIMIT, "logit_bias: %zu entries, the limit is %d", w->n_logit_bias,
                   SAMPLING_MAX_LOGIT_BIAS);
    if (w->n_stop_token_ids > SAMPLING_MAX_STOP_IDS)
        return ERR(err, LIMIT, "stop_token_ids: %zu entries, the limit is %d", w->n_stop_token_ids,
                   SAMPLING_MAX_STOP_IDS);
    if (w->n_stop > SAMPLING_MAX_STOP_STRINGS)
        return ERR(err, LIMIT, "stop: %zu entries, the limit is %d", w->n_stop,
                   SAMPLING_MAX_STOP_STRINGS);
    struct logit_bias *bias = arena_zalloc(j->arena, w->n_logit_bias * sizeof *bias + 1);
    uint32_t *ids = arena_zalloc(j->arena, w->n_stop_token_ids * sizeof *ids + 1);
    struct stop_string *stop = arena_zalloc(j->arena, w->n_stop * sizeof *stop + 1);
    if (!bias || !ids || !stop)
        return ERR_NOMEM(err);
    for (size_t i = 0; i < w->n_logit_bias; i++)
        bias[i] = (struct logit_bias){w->logit_bias[i]->token, w->logit_bias[i]->bias};
    for (size_t i = 0; i < w->n_stop_token_ids; i++)
        ids[i] = w->stop_token_ids[i];
    for (size_t i = 0; i < w->n_stop; i++) {
        int r = keep_text(j, "stop", w->stop[i], &stop[i].s, err);
        if (r < 0)
            return r;
        stop[i].len = strlen(stop[i].s);
    }
    s->logit_bias = bias;
    s->n_logit_bias = w->n_logit_bias;
    s->stop_ids = ids;
    s->n_stop_ids = w->n_stop_token_ids;
    s->stop = stop;
    s->n_stop = w->n_stop;
    return 0;
}

static int take_sampling(struct job *j, const Dedit__Wire__Sampling *w, struct error *err)
{
    struct sampling_params *s = &j->sampling;
    sampling_params_init(s);
    s->max_tokens = 256;
    j->skip_special = true;
    if (w) {
#define GET(field)                                                                                 \
    do                                                                                             \
        if (w->has_##field)                                                                        \
            s->field = w->field;                                                                   \
    while (0)
        GET(temperature);
        GET(top_k);
        GET(top_p);
        GET(min_p);
        GET(repetition_penalty);
        GET(frequency_penalty);
        GET(presence_penalty);
        GET(max_tokens);
        GET(min_tokens);
        GET(ignore_eos);
#undef GET
        if (w->has_seed) {
            s->has_seed = true;
            s->seed = w->seed;
        }
        if (w->has_logprobs) {
            if (w->logprobs > SAMPLING_MAX_LOGPROBS)
                return ERR(err, INVALID, "logprobs: %u, must be 0 to %d", w->logprobs,
                           SAMPLING_MAX_LOGPROBS);
            s->logprobs = (int32_t)w->logprobs;
        }
        if (w->has_include_stop_str_in_output)
            s->include_stop_in_output = w->include_stop_str_in_output;
        if (w->has_skip_special_tokens)
            j->skip_special = w->skip_special_tokens;
        int r = take_lists(j, w, err);
        if (r < 0)
            return r;
    }
    if (!s->has_seed) {
        if (getrandom(&s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed)
            s->seed = hash_mix64(clock_now_ns());
        s->seed >>= 11; /* 53 bits: exact in every client's JSON */
        s->has_seed = true;
    }
    return 0;
}

/* The names here; what goes together is for the engine to say, once the model is known. */
static int take_drafting(struct job *j, const Dedit__Wire__Drafting *d, struct error *err)
{
    struct drafting_params *p = &j->drafting;
    if (!d)
        return 0;
    if (d->method && *d->method && !draft_method_parse(d->method, &p->method))
        return ERR(err, UNSUPPORTED,
                   "method: %s is not known; auto, ar, ngram, dflash, dedit and ddtree are",
                   d->method);
    if (p->method == DRAFT_SCRIPTED || p->method == DRAFT_SYNTHETIC)
        return ERR(err, UNSUPPORTED, "method: %s is for tests and benchmarks only", d->method);
    /* 0 is the engine's word for "not given". */
    if (d->has_window && d->window == 0)
        return ERR(err, INVALID, "window: 0, must be 2 to %u", DRAFT_MAX_WINDOW);
    if (d->has_passes && d->passes == 0)
        return ERR(err, INVALID, "passes: 0, must be 1 to %u", DRAFT_MAX_PASSES);
    if (d->has_tree_budget && d->tree_budget == 0)
        return ERR(err, INVALID, "tree_budget: 0, must be 1 to %u", PROPOSAL_MAX_NODES);
    p->window = d->window;
    p->passes = d->passes;
    p->tree_budget = d->tree_budget;
    p->no_noise = d->no_noise;
    const char *v = d->edit_visibility;
    if (v && *v && strcmp(v, "bidirectional") != 0) {
        if (strcmp(v, "causal") != 0)
            return ERR(err, INVALID, "edit_visibility: %s is neither bidirectional nor causal", v);
        p->visibility = DRAFT_CAUSAL;
    }
    v = d->verification;
    if (v && *v && strcmp(v, "exact") != 0) {
        if (strcmp(v, "rejection") != 0)
            return ERR(err, INVALID, "verification: %s is neither exact nor rejection", v);
        p->verification = DRAFT_REJECTION;
    }
    return 0;
}

/* Fields whose numbers are taken already, for what comes later. */
static int check_reserved(const Dedit__Wire__Submit *s, struct error *err)
{
    const char *what = s->has_n && s->n != 1 ? "n (several samples)"
                       : s->json_schema      ? "json_schema"
                       : s->grammar          ? "grammar"
                       : s->lora             ? "lora"
                       : s->n_images         ? "images"
                       : s->parse_tool_calls ? "parse_tool_calls"
                                             : NULL;
    if (what)
        return ERR(err, UNSUPPORTED, "%s: not supported by this version", what);
    return 0;
}

static int check_priority(const struct peer *p, int32_t priority, struct error *err)
{
    const struct config *c = p->server->config;
    if (!p->privileged && (priority < c->min_priority || priority > c->max_priority))
        return ERR(err, DENIED, "priority: %d, the policy allows %d to %d", priority,
                   c->min_priority, c->max_priority);
    return 0;
}

/* Prefixes are shared within a user; across users only by an explicit salt. */
static int take_namespace(struct peer *p, struct job *j, const char *salt, struct error *err)
{
    if (!salt || !*salt) {
        j->uid_namespace = (uint64_t)p->uid + 1;
        return 0;
    }
    size_t n = strlen(salt);
    if (n > MAX_CACHE_SALT)
        return ERR(err, INVALID, "cache_salt: %zu bytes, at most %u", n, MAX_CACHE_SALT);
    j->uid_namespace = hash_bytes(salt, n, 0x73616c74u) | 1ull << 63;
    return 0;
}

static int take_returns(struct peer *p, struct job *j, const Dedit__Wire__ReturnOptions *r,
                        uint32_t *ret_ring, struct error *err)
{
    const struct config *c = p->server->config;
    uint64_t want = r && r->has_ring_bytes && r->ring_bytes ? r->ring_bytes : c->ring_bytes;
    uint32_t bytes = RING_MIN_CAPACITY;

    j->want_text = !r || !r->has_text || r->text;
    j->drafting.want_rounds = r && r->rounds;
    if (r && r->no_ring) {
        *ret_ring = 0;
        return 0;
    }
    uint64_t most = c->max_ring_bytes < RING_MAX_CAPACITY ? c->max_ring_bytes : RING_MAX_CAPACITY;
    if (want > most)
        return ERR(err, LIMIT, "max_ring_bytes: ring_bytes is %llu, the limit is %llu",
                   (unsigned long long)want, (unsigned long long)most);
    while (bytes < want)
        bytes *= 2;
    *ret_ring = bytes;
    return 0;
}

static int take_prompt(struct peer *p, struct job *j, const Dedit__Wire__Submit *s,
                       struct packet_fds *fds, struct error *err)
{
    j->parse_special = s->parse_special;
    j->add_bos = !s->raw;
    if (fds->n && s->prompt_case != DEDIT__WIRE__SUBMIT__PROMPT_MEMFD)
        return ERR(err, PROTOCOL, "submit: %u descriptors without a memfd prompt", fds->n);
    switch (s->prompt_case) {
    case DEDIT__WIRE__SUBMIT__PROMPT_TEXT:
        j->prompt_bytes = strlen(s->text);
        return take_text(j, s->text, strlen(s->text), err);
    case DEDIT__WIRE__SUBMIT__PROMPT_CHAT:
        j->prompt_bytes = dedit__wire__chat_messages__get_packed_size(s->chat);
        return take_chat(j, s->chat, err);
    case DEDIT__WIRE__SUBMIT__PROMPT_TOKEN_IDS:
        j->prompt_bytes = s->token_ids->n_ids * 4;
        return take_ids(j, s->token_ids->ids, s->token_ids->n_ids, err);
    case DEDIT__WIRE__SUBMIT__PROMPT_MEMFD:
        return take_memfd(p, j, s->memfd, fds, err);
    case DEDIT__WIRE__SUBMIT__PROMPT__NOT_SET:
    case _DEDIT__WIRE__SUBMIT__PROMPT__CASE_IS_INT_SIZE:
        break;
    }
    return ERR(err, INVALID, "prompt: one of text, chat, token_ids and memfd must be set");
}

/* ---- the message ------------------------------------------------------------------------------------------ */

static int fill_job(struct peer *p, struct job *j, const Dedit__Wire__Submit *s,
                    struct packet_fds *fds, uint32_t *ret_ring, struct error *err)
{
    int r = check_reserved(s, err);
    if (r == 0)
        r = take_drafting(j, s->drafting, err);
    if (r == 0)
        r = check_priority(p, s->priority, err);
    if (r == 0)
        r = take_namespace(p, j, s->cache_salt, err);
    if (r == 0)
        r = take_returns(p, j, s->returns, ret_ring, err);
    if (r == 0)
        r = take_sampling(j, s->sampling, err);
    if (r == 0)
        r = take_prompt(p, j, s, fds, err);
    if (r < 0)
        return r;
    j->priority = s->priority;
    j->submitted_ns = clock_now_ns();
    if (s->timeout_ms) {
        if (s->timeout_ms > UINT64_MAX / 4000000u)
            return ERR(err, INVALID, "timeout_ms: %llu is too large",
                       (unsigned long long)s->timeout_ms);
        j->deadline_ns = j->submitted_ns + s->timeout_ms * 1000000u;
    }
    return 0;
}

/* Counts the job against the limits.  All or nothing. */
static int charge(struct peer *p, struct job *j, struct error *err)
{
    struct server *s = p->server;
    const struct config *c = s->config;
    if (s->draining)
        return ERR(err, CLOSED, "the daemon is draining: no new requests");
    if (p->n_jobs >= c->max_requests_per_connection)
        return ERR(err, LIMIT, "max_requests_per_connection: %u are under way, the limit is %u",
                   p->n_jobs, c->max_requests_per_connection);
    if (s->n_jobs >= c->max_requests)
        return ERR(err, BUSY, "max_requests: %u are under way, the limit is %u", s->n_jobs,
                   c->max_requests);
    if (j->prompt_bytes > c->max_prompt_bytes)
        return ERR(err, LIMIT, "max_prompt_bytes: the prompt has %llu bytes, the limit is %llu",
                   (unsigned long long)j->prompt_bytes, (unsigned long long)c->max_prompt_bytes);
    int r = quota_charge(&s->quota, p->account, QUOTA_REQUESTS, 1, err);
    if (r < 0)
        return r;
    r = quota_charge(&s->quota, p->account, QUOTA_PROMPT_BYTES, j->prompt_bytes, err);
    if (r < 0)
        quota_release(p->account, QUOTA_REQUESTS, 1);
    return r;
}

/* A client may have read the end of a request that the engine thread has not reported yet: it was put
 * aside between the two.  What such requests hold is about to be free, so a refusal for it would be
 * wrong: they do not count. */
static int charge_but_endings(struct peer *p, struct job *j, struct error *err)
{
    struct server *s = p->server;
    struct account *a = p->account;
    uint32_t all = 0, own = 0;
    uint64_t requests = 0, bytes = 0;
    for (struct peer *q = s->peers; q; q = q->next)
        for (struct job *k = q->jobs; k; k = k->next) {
            if (!__atomic_load_n(&k->ending, __ATOMIC_ACQUIRE))
                continue;
            all++;
            own += q == p;
            requests += q->account == a;
            bytes += q->account == a ? k->prompt_bytes : 0;
        }
    if (!all)
        return err->code;
    s->n_jobs -= all;
    p->n_jobs -= own;
    quota_release(a, QUOTA_REQUESTS, requests);
    quota_release(a, QUOTA_PROMPT_BYTES, bytes);
    int r = charge(p, j, err);
    a->used[QUOTA_REQUESTS] += requests; /* until they are reported */
    a->used[QUOTA_PROMPT_BYTES] += bytes;
    p->n_jobs += own;
    s->n_jobs += all;
    return r;
}

void peer_submit(struct peer *p, const Dedit__Wire__ClientMessage *m, struct packet_fds *fds)
{
    struct server *s = p->server;
    struct error err = {0};
    uint32_t ring = 0;
    bool fresh = false;
    uint64_t tag = m->has_tag ? m->tag : 0;

    /* A client that has just read the end of a request may use its slot and its share again. */
    server_take_reports(s);
    struct job *j = job_new();
    int r = j ? fill_job(p, j, m->submit, fds, &ring, &err) : ERR_NOMEM(&err);

    if (r == 0) {
        j->model = models_find(s, m->submit->model);
        if (!j->model)
            r = ERR(&err, NOT_FOUND, "model: %s is not known here",
                    m->submit->model && *m->submit->model ? m->submit->model
                                                          : "no default model is configured;");
    }
    if (r == 0) {
        r = charge(p, j, &err);
        if (r == DEDIT_E_LIMIT || r == DEDIT_E_BUSY)
            r = charge_but_endings(p, j, &err);
    }
    if (r < 0) {
        peer_send_error(p, tag, &err);
        job_free(j);
        return;
    }
    j->tag = tag;
    j->account = quota_account(&s->quota, p->uid);
    if (ring)
        r = slot_take(p, ring, &j->slot, &fresh, &err);
    if (r < 0) {
        quota_release(p->account, QUOTA_REQUESTS, 1);
        quota_release(p->account, QUOTA_PROMPT_BYTES, j->prompt_bytes);
        quota_unref(&s->quota, j->account);
        peer_send_error(p, tag, &err);
        job_free(j);
        return;
    }
    if (j->slot) {
        j->slot->job = j;
        j->slot->released = false;
    }
    j->id = p->next_request_id++;
    j->peer = p;
    j->next = p->jobs;
    if (p->jobs)
        p->jobs->prev = j;
    p->jobs = j;
    p->n_jobs++;
    s->n_jobs++;
    server_start_job(s, j);
}
