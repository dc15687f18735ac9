/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens into the ring.  All tokens of one commit become visible together: the records are reserved
 * and filled first, then published by one store.  After each commit there must be room for the next
 * one; otherwise the request is parked before it can produce what has no place.
 */
#include "daemon/sink.h"

#include <string.h>

#include "daemon/slot.h"

/* Tokens of a later commit that must find room: the largest record, twice (text of a flush). */
#define ROOM_FOR_NEXT    (2u * RING_MAX_RECORD)
#define NO_RING_MAX_TEXT 60000u
#define NO_RING_MAX_IDS  4096u

static uint32_t round8(size_t n)
{
    return (uint32_t)((n + 7) & ~(size_t)7);
}

/* Bytes of a record of these tokens. */
static size_t record_bytes(const struct engine_token *t, size_t n)
{
    size_t bytes = sizeof(struct ring_tokens) + n * sizeof(struct ring_token);
    for (size_t i = 0; i < n; i++)
        bytes += t[i].n_logprobs * sizeof(struct ring_alternative) + t[i].text_len;
    return bytes;
}

/* The longest run of tokens that fits one record (at least one: a token's text is bounded). */
static size_t fitting(const struct engine_token *t, size_t n)
{
    size_t k = 1, bytes = record_bytes(t, 1);
    if (n > RING_MAX_TOKENS)
        n = RING_MAX_TOKENS;
    while (k < n) {
        size_t more = sizeof(struct ring_token) + t[k].text_len +
                      t[k].n_logprobs * sizeof(struct ring_alternative);
        if (bytes + more > RING_MAX_RECORD - 8)
            break;
        bytes += more;
        k++;
    }
    return k;
}

/* Thinking models: what stands between the markers is flagged. */
static bool is_text(const struct engine_token *t, const char *s)
{
    size_t n = strlen(s);
    return t->text_len == n && memcmp(t->text, s, n) == 0;
}

static uint16_t token_flags(struct job *j, const struct engine_token *t)
{
    uint16_t f = 0;
    if (t->flags & ENGINE_TOKEN_DRAFTED)
        f |= RING_TOKEN_DRAFTED;
    if (t->flags & ENGINE_TOKEN_EDITED)
        f |= RING_TOKEN_EDITED;
    if (t->flags & ENGINE_TOKEN_BONUS)
        f |= RING_TOKEN_BONUS;
    if (j->format == CHAT_QWEN3 && j->prompt_kind == JOB_CHAT) {
        bool was = j->in_reasoning;
        if (is_text(t, "<think>"))
            j->in_reasoning = was = true;
        else if (is_text(t, "</think>"))
            j->in_reasoning = false;
        if (was)
            f |= RING_TOKEN_REASONING;
    }
    return f;
}

/* Writes one record; the caller has made sure that n tokens fit. */
static void fill(struct job *j, void *p, uint32_t size, const struct engine_token *t, size_t n)
{
    struct ring_tokens *rec = p;
    struct ring_token *tok = (struct ring_token *)(rec + 1);
    struct ring_alternative *alt = (struct ring_alternative *)(tok + n);

    memset((char *)p + size - 8, 0, 8); /* the padding at the end */
    rec->rec = (struct ring_record){.size = size, .type = RING_TOKENS};
    rec->round = j->round;
    rec->n_tokens = (uint32_t)n;
    rec->n_alternatives = 0;
    rec->text_bytes = 0;
    rec->first_index = j->n_tokens;
    for (size_t i = 0; i < n; i++) {
        tok[i] = (struct ring_token){
            .id = t[i].id,
            .flags = token_flags(j, &t[i]),
            .n_alternatives = (uint16_t)t[i].n_logprobs,
            .logprob = t[i].n_logprobs ? t[i].logprobs[0].logprob : 0.0f,
            .text_bytes = j->want_text ? (uint32_t)t[i].text_len : 0,
        };
        for (uint32_t k = 0; k < t[i].n_logprobs; k++)
            *alt++ = (struct ring_alternative){t[i].logprobs[k].token, t[i].logprobs[k].logprob};
        rec->n_alternatives += t[i].n_logprobs;
        rec->text_bytes += tok[i].text_bytes;
    }
    char *text = (char *)alt;
    for (size_t i = 0; i < n; i++) {
        memcpy(text, t[i].text, tok[i].text_bytes);
        text += tok[i].text_bytes;
    }
    j->n_tokens += (uint32_t)n;
}

/* no_ring: the answer is collected, bounded by what one packet can carry. */
static int collect(struct job *j, const struct engine_token *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (j->output.len + t[i].text_len > NO_RING_MAX_TEXT ||
            j->output_ids.len >= NO_RING_MAX_IDS) {
            j->output_cut = true;
            continue;
        }
        if (j->output_cut)
            continue;
        if (strbuf_add(&j->output, t[i].text, t[i].text_len) < 0 ||
            token_list_add(&j->output_ids, t[i].id) < 0)
            j->output_cut = true;
    }
    j->n_tokens += (uint32_t)n;
    return 0;
}

static void stop_ring(struct job *j, const struct error *e)
{
    j->slot->broken = true;
    ring_discard(&j->slot->ring);
    if (j->error.code == 0)
        j->error = *e;
}

void sink_round(struct job *j, const struct engine_round *info)
{
    const struct proposal *t = info->proposal;
    const uint32_t w = info->window, passes = info->passes;
    struct error err = {0};
    void *p = NULL;
    if (!j->slot || j->slot->broken)
        return;
    size_t words = passes + w + (size_t)passes * w + 2 * (size_t)t->n;
    uint32_t size = round8(sizeof(struct ring_round) + 4 * words);
    if (ring_reserve(&j->slot->ring, size, &p, &err) != 0)
        return; /* there is room for two of the largest records; a lying cursor shows at the tokens */
    memset(p, 0, size);
    struct ring_round *rec = p;
    *rec = (struct ring_round){.rec = {.size = size, .type = RING_ROUND},
                               .round = j->round,
                               .window = w,
                               .passes = passes,
                               .nodes = t->n,
                               .committed = info->committed};
    uint32_t *accepted = (uint32_t *)(rec + 1), *confidence = accepted + passes;
    uint32_t *draft = confidence + w, *token = draft + (size_t)passes * w, *parent = token + t->n;
    if (w) {
        const float one = 1;
        memcpy(accepted, info->accepted_after, passes * sizeof *accepted);
        memcpy(confidence, &one, sizeof one);
        memcpy(confidence + 1, info->confidence[passes - 1], (w - 1) * sizeof(float));
    }
    for (uint32_t i = 0; i < passes; i++)
        memcpy(draft + (size_t)i * w + 1, info->tokens[i], (w - 1) * sizeof *draft);
    memcpy(token, t->tokens, t->n * sizeof *token);
    for (uint32_t i = 0; i < t->n; i++)
        parent[i] = (uint32_t)t->parent[i];
}

int sink_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct job *j = arg;
    struct error err = {0};
    (void)r;

    if (!j->slot)
        return collect(j, t, n);
    struct ring_writer *w = &j->slot->ring;
    if (j->slot->broken)
        return 1;
    while (n > 0) {
        size_t k = fitting(t, n);
        uint32_t size = round8(record_bytes(t, k));
        void *p = NULL;
        int e = ring_reserve(w, size, &p, &err);
        if (e != 0) {
            /* Full although room was left after the last commit: only a damaged cursor does that. */
            if (e > 0)
                ERR(&err, INTERNAL, "ring: no room for a commit of %zu tokens", k);
            stop_ring(j, &err);
            return 1;
        }
        fill(j, p, size, t, k);
        t += k;
        n -= k;
    }
    ring_publish(w);
    j->round++;
    /* Room for the next commit? Otherwise park until the reader moves. */
    void *probe = NULL;
    uint64_t pending = w->pending;
    int e = 0;
    for (unsigned k = 0; k < ROOM_FOR_NEXT / RING_MAX_RECORD && e == 0; k++)
        e = ring_reserve(w, RING_MAX_RECORD, &probe, &err);
    w->pending = pending;
    if (e > 0)
        e = ring_writer_stall(w, &err);
    if (e < 0) {
        stop_ring(j, &err);
        return 1;
    }
    if (e > 0)
        j->stalled = true;
    return e;
}

void sink_flush_text(struct job *j, const char *text, size_t len)
{
    struct error err = {0};
    void *p = NULL;

    if (!len)
        return;
    if (!j->slot) {
        if (!j->output_cut && strbuf_add(&j->output, text, len) < 0)
            j->output_cut = true;
        return;
    }
    uint32_t size = round8(sizeof(struct ring_tokens) + len);
    if (!j->want_text || j->slot->broken || size > RING_MAX_RECORD ||
        ring_reserve(&j->slot->ring, size, &p, &err) != 0)
        return;
    struct ring_tokens *rec = p;
    memset((char *)p + size - 8, 0, 8);
    *rec = (struct ring_tokens){.rec = {.size = size, .type = RING_TOKENS},
                                .round = j->round,
                                .text_bytes = (uint32_t)len,
                                .first_index = j->n_tokens};
    memcpy(rec + 1, text, len);
}

bool sink_can_resume(struct job *j)
{
    struct error err = {0};
    if (!j->slot || j->slot->broken)
        return false;
    int e = ring_writer_stalled(&j->slot->ring, &err);
    if (e < 0)
        stop_ring(j, &err);
    if (e != 0)
        return false;
    j->stalled = false;
    return true;
}

static void end_finished(struct job *j)
{
    struct error err = {0};
    size_t n = strlen(j->stop_reason);
    void *p = NULL;
    uint32_t size = round8(sizeof(struct ring_finished) + n);
    if (ring_reserve(&j->slot->ring, size, &p, &err) != 0)
        return;
    struct ring_finished *f = p;
    memset((char *)p + size - 8, 0, 8);
    *f = (struct ring_finished){
        .rec = {.size = size,
                .type = RING_FINISHED,
                .flags =
                    ring_method_parse(draft_method_name(engine_main_method(&j->usage.drafting)))},
        .reason = j->finish == FINISH_STOP     ? RING_FINISH_STOP
                  : j->finish == FINISH_LENGTH ? RING_FINISH_LENGTH
                                               : RING_FINISH_CANCELLED,
        .prompt_tokens = j->usage.prompt_tokens,
        .completion_tokens = j->usage.completion_tokens,
        .cached_tokens = j->usage.cached_tokens,
        .queued_ns = j->usage.queued_ns,
        .first_token_ns = j->usage.first_token_ns,
        .total_ns = j->usage.total_ns,
        .rounds = j->usage.drafting.rounds,
        .drafted_tokens = j->usage.drafting.drafted,
        .accepted_tokens = j->usage.drafting.accepted,
        .committed_tokens = j->usage.drafting.committed,
        .seed = j->usage.seed,
        .preemptions = j->usage.preemptions,
        .stop_bytes = (uint32_t)n,
    };
    memcpy(f + 1, j->stop_reason, n);
}

static void end_failed(struct job *j)
{
    struct error err = {0};
    size_t n = strlen(j->error.msg);
    void *p = NULL;
    uint32_t size = round8(sizeof(struct ring_failed) + n);
    if (ring_reserve(&j->slot->ring, size, &p, &err) != 0)
        return;
    struct ring_failed *f = p;
    memset((char *)p + size - 8, 0, 8);
    *f = (struct ring_failed){
        .rec = {.size = size, .type = RING_FAILED},
        .code = j->error.code,
        .completion_tokens = j->usage.completion_tokens,
        .reason = j->cancel == JOB_CANCEL_TIMEOUT    ? RING_FAILURE_TIMEOUT
                  : j->cancel == JOB_CANCEL_SHUTDOWN ? RING_FAILURE_SHUTDOWN
                  : j->cancel == JOB_CANCEL_STALLED  ? RING_FAILURE_STALLED
                                                     : RING_FAILURE_ERROR,
        .message_bytes = (uint32_t)n,
    };
    memcpy(f + 1, j->error.msg, n);
}

void sink_end(struct job *j)
{
    if (!j->slot || j->slot->broken || j->cancel == JOB_CANCEL_GONE)
        return;
    /* Release: before the record by which a client learns of it. */
    __atomic_store_n(&j->ending, true, __ATOMIC_RELEASE);
    if (j->error.code)
        end_failed(j);
    else
        end_finished(j);
    ring_publish(&j->slot->ring);
    ring_writer_end(&j->slot->ring);
}
