/* SPDX-License-Identifier: Apache-2.0 */
/* Checks one ring record.  Pure; used by the library, the tests and the fuzzer. */
#include "proto/ring.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"

/* Takes n items of size bytes off the rest; false when they do not fit. */
static bool take(const uint8_t **p, size_t *left, uint64_t n, size_t size)
{
    uint64_t bytes = n * size; /* n < 2^60, size <= 16: no overflow */
    if (bytes > *left)
        return false;
    *p += bytes;
    *left -= bytes;
    return true;
}

/* What may follow the counted content: only the alignment of the record's end. */
static int check_rest(size_t left, const char *what, struct error *err)
{
    if (left >= 8)
        return ERR(err, PROTOCOL, "ring record %s: %zu bytes more than its counts say", what, left);
    return 0;
}

static int check_tokens(const uint8_t *rec, uint32_t size, struct ring_view *v, struct error *err)
{
    if (size < sizeof(struct ring_tokens))
        return ERR(err, PROTOCOL, "ring record TOKENS: %u bytes, fixed part has %zu", size,
                   sizeof(struct ring_tokens));
    const struct ring_tokens *t = (const void *)rec;
    const uint8_t *p = rec + sizeof *t;
    size_t left = size - sizeof *t;
    if (t->n_tokens > RING_MAX_TOKENS)
        return ERR(err, PROTOCOL, "ring record TOKENS: %u tokens, at most %u", t->n_tokens,
                   RING_MAX_TOKENS);
    v->tokens = t;
    v->token = (const void *)p;
    if (!take(&p, &left, t->n_tokens, sizeof(struct ring_token)))
        return ERR(err, PROTOCOL, "ring record TOKENS: %u tokens do not fit", t->n_tokens);
    v->alternatives = (const void *)p;
    if (!take(&p, &left, t->n_alternatives, sizeof(struct ring_alternative)))
        return ERR(err, PROTOCOL, "ring record TOKENS: %u alternatives do not fit",
                   t->n_alternatives);
    v->text = (const char *)p;
    v->text_bytes = t->text_bytes;
    if (!take(&p, &left, t->text_bytes, 1))
        return ERR(err, PROTOCOL, "ring record TOKENS: %u bytes of text do not fit", t->text_bytes);

    uint64_t alternatives = 0, text = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        const struct ring_token *k = &v->token[i];
        if (k->n_alternatives > RING_MAX_ALTERNATIVES)
            return ERR(err, PROTOCOL,
                       "ring record TOKENS: %u alternatives of one token, at most %u",
                       k->n_alternatives, RING_MAX_ALTERNATIVES);
        if (k->text_bytes > t->text_bytes - text || !utf8_valid(v->text + text, k->text_bytes))
            return ERR(err, PROTOCOL, "ring record TOKENS: text of token %u is not whole UTF-8", i);
        alternatives += k->n_alternatives;
        text += k->text_bytes;
    }
    if (alternatives != t->n_alternatives)
        return ERR(err, PROTOCOL,
                   "ring record TOKENS: tokens have %llu alternatives, record says %u",
                   (unsigned long long)alternatives, t->n_alternatives);
    if (t->n_tokens == 0 && !utf8_valid(v->text, t->text_bytes))
        return ERR(err, PROTOCOL, "ring record TOKENS: text is not whole UTF-8");
    if (t->n_tokens != 0 && text != t->text_bytes)
        return ERR(err, PROTOCOL,
                   "ring record TOKENS: tokens have %llu bytes of text, record says %u",
                   (unsigned long long)text, t->text_bytes);
    return check_rest(left, "TOKENS", err);
}

static int check_round(const uint8_t *rec, uint32_t size, struct ring_view *v, struct error *err)
{
    if (size < sizeof(struct ring_round))
        return ERR(err, PROTOCOL, "ring record ROUND: %u bytes, fixed part has %zu", size,
                   sizeof(struct ring_round));
    const struct ring_round *r = (const void *)rec;
    const uint8_t *p = rec + sizeof *r;
    size_t left = size - sizeof *r;
    v->round = r;
    v->accepted = (const void *)p;
    if (!take(&p, &left, r->passes, sizeof(uint32_t)))
        return ERR(err, PROTOCOL, "ring record ROUND: %u passes do not fit", r->passes);
    v->confidence = (const void *)p;
    if (!take(&p, &left, r->window, sizeof(float)))
        return ERR(err, PROTOCOL, "ring record ROUND: %u confidences do not fit", r->window);
    v->draft = (const void *)p;
    if (!take(&p, &left, (uint64_t)r->passes * r->window, sizeof(uint32_t)))
        return ERR(err, PROTOCOL, "ring record ROUND: %u drafts of %u do not fit", r->passes,
                   r->window);
    v->node_token = (const void *)p;
    if (!take(&p, &left, r->nodes, sizeof(uint32_t)))
        return ERR(err, PROTOCOL, "ring record ROUND: %u nodes do not fit", r->nodes);
    v->node_parent = (const void *)p;
    if (!take(&p, &left, r->nodes, sizeof(int32_t)))
        return ERR(err, PROTOCOL, "ring record ROUND: %u parents do not fit", r->nodes);
    for (uint32_t i = 0; i < r->nodes; i++)
        if (v->node_parent[i] < -1 || v->node_parent[i] >= (int32_t)i)
            return ERR(err, PROTOCOL, "ring record ROUND: node %u has parent %d", i,
                       v->node_parent[i]);
    return check_rest(left, "ROUND", err);
}

/* FINISHED and FAILED: a fixed part and a text. */
static int check_end(const uint8_t *rec, uint32_t size, size_t fixed, uint32_t text_bytes,
                     const char *what, struct ring_view *v, struct error *err)
{
    const uint8_t *p = rec + fixed;
    size_t left = size - fixed;
    v->text = (const char *)p;
    v->text_bytes = text_bytes;
    if (!take(&p, &left, text_bytes, 1))
        return ERR(err, PROTOCOL, "ring record %s: %u bytes of text do not fit", what, text_bytes);
    if (!utf8_valid(v->text, text_bytes))
        return ERR(err, PROTOCOL, "ring record %s: text is not UTF-8", what);
    return check_rest(left, what, err);
}

static const char *const method_names[] = {
    [RING_METHOD_AR] = "ar",       [RING_METHOD_NGRAM] = "ngram",   [RING_METHOD_DFLASH] = "dflash",
    [RING_METHOD_DEDIT] = "dedit", [RING_METHOD_DDTREE] = "ddtree",
};

const char *ring_method_name(uint32_t method)
{
    return method < ARRAY_LEN(method_names) ? method_names[method] : NULL;
}

uint16_t ring_method_parse(const char *name)
{
    for (uint16_t i = RING_METHOD_AR; name && i < ARRAY_LEN(method_names); i++)
        if (strcmp(name, method_names[i]) == 0)
            return i;
    return RING_METHOD_UNKNOWN;
}

static int check_finished(const uint8_t *rec, uint32_t size, struct ring_view *v, struct error *err)
{
    if (size < sizeof(struct ring_finished))
        return ERR(err, PROTOCOL, "ring record FINISHED: %u bytes, fixed part has %zu", size,
                   sizeof(struct ring_finished));
    v->finished = (const void *)rec;
    if (v->finished->reason < RING_FINISH_STOP || v->finished->reason > RING_FINISH_CANCELLED)
        return ERR(err, PROTOCOL, "ring record FINISHED: unknown reason %u", v->finished->reason);
    return check_end(rec, size, sizeof *v->finished, v->finished->stop_bytes, "FINISHED", v, err);
}

static int check_failed(const uint8_t *rec, uint32_t size, struct ring_view *v, struct error *err)
{
    if (size < sizeof(struct ring_failed))
        return ERR(err, PROTOCOL, "ring record FAILED: %u bytes, fixed part has %zu", size,
                   sizeof(struct ring_failed));
    v->failed = (const void *)rec;
    return check_end(rec, size, sizeof *v->failed, v->failed->message_bytes, "FAILED", v, err);
}

int ring_validate(const void *rec, size_t avail, struct ring_view *ret, struct error *err)
{
    const struct ring_record *h = rec;
    struct ring_view v = {0};
    int r = 1;

    if (avail < sizeof *h)
        return ERR(err, PROTOCOL, "ring record: %zu bytes left, its header has %zu", avail,
                   sizeof *h);
    if (h->size < sizeof *h || h->size % 8 != 0 || h->size > avail)
        return ERR(err, PROTOCOL,
                   "ring record: size %u must be a multiple of 8, at least 8 and at most the %zu "
                   "bytes published",
                   h->size, avail);
    v.size = h->size;
    if (h->type != RING_PAD && h->size > RING_MAX_RECORD)
        return ERR(err, PROTOCOL, "ring record: size %u is over the limit of %u", h->size,
                   RING_MAX_RECORD);
    switch (h->type) {
    case RING_TOKENS:
        r = check_tokens(rec, h->size, &v, err);
        break;
    case RING_ROUND:
        r = check_round(rec, h->size, &v, err);
        break;
    case RING_FINISHED:
        r = check_finished(rec, h->size, &v, err);
        break;
    case RING_FAILED:
        r = check_failed(rec, h->size, &v, err);
        break;
    default: /* PAD, or a record of a later version */
        break;
    }
    if (r < 0)
        return r;
    v.type = (enum ring_record_type)h->type;
    *ret = v;
    return r;
}
