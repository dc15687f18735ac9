/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a request as a Submit message; prompts that outgrow a packet go into a sealed file. */
#include "client/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/parse.h"

/* Bytes that all fields but the prompt may take of a packet. */
#define ROOM_FOR_THE_REST 16384u

void dedit_options_init(struct dedit_options *o, size_t size)
{
    struct dedit_options d = {
        .size = size < sizeof d ? size : sizeof d,
        .text_len = (size_t)-1,
        .enable_thinking = -1,
        .temperature = 1.0f,
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .max_tokens = 256,
        .logprobs = -1,
        .skip_special_tokens = 1,
        .want_text = 1,
    };
    memset(o, 0, size);
    memcpy(o, &d, d.size);
    o->size = size;
}

/* Memory for message parts; all of it goes with the arena. */
static void *part(struct wire_arena *a, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / size)
        return NULL;
    return arena_zalloc(a->arena, n * size);
}

/* The library takes const strings, protobuf-c wants char *; it only reads them. */
static char *unconst(const char *s)
{
    return (char *)(uintptr_t)s;
}

static int check_utf8(const char *what, const char *s, size_t n, struct error *err)
{
    if (!utf8_valid(s, n))
        return ERR(err, INVALID, "%s: must be UTF-8", what);
    return 0;
}

static int to_memfd(const void *data, size_t n, int *ret_fd, struct error *err)
{
    _cleanup_fd_ int fd = memfd_new("dedit-prompt", n, err);
    if (fd < 0)
        return fd;
    for (size_t done = 0; done < n;) {
        ssize_t w = write(fd, (const char *)data + done, n - done);
        if (w < 0)
            return ERR(err, IO, "writing a prompt of %zu bytes to a memory file: %m", n);
        done += (size_t)w;
    }
    int r = memfd_seal(fd, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW, err);
    if (r < 0)
        return r;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int use_memfd(Dedit__Wire__Submit *s, struct wire_arena *a,
                     Dedit__Wire__MemfdPrompt__Kind kind, const void *data, size_t n, int *ret_fd,
                     struct error *err)
{
    Dedit__Wire__MemfdPrompt *m = part(a, 1, sizeof *m);
    if (!m)
        return ERR_NOMEM(err);
    dedit__wire__memfd_prompt__init(m);
    m->has_kind = 1;
    m->kind = kind;
    m->has_size = 1;
    m->size = n;
    s->prompt_case = DEDIT__WIRE__SUBMIT__PROMPT_MEMFD;
    s->memfd = m;
    return to_memfd(data, n, ret_fd, err);
}

static int pack_text(const struct dedit_options *o, Dedit__Wire__Submit *s, struct wire_arena *a,
                     int *ret_fd, struct error *err)
{
    size_t n = o->text_len == (size_t)-1 ? strlen(o->text) : o->text_len;
    int r = check_utf8("text", o->text, n, err);
    if (r < 0)
        return r;
    if (n > WIRE_MAX_PACKET - ROOM_FOR_THE_REST || memchr(o->text, 0, n))
        return use_memfd(s, a, DEDIT__WIRE__MEMFD_PROMPT__KIND__TEXT, o->text, n, ret_fd, err);
    char *copy = arena_strndup(a->arena, o->text, n);
    if (!copy)
        return ERR_NOMEM(err);
    s->prompt_case = DEDIT__WIRE__SUBMIT__PROMPT_TEXT;
    s->text = copy;
    return 0;
}

static int pack_ids(const struct dedit_options *o, Dedit__Wire__Submit *s, struct wire_arena *a,
                    int *ret_fd, struct error *err)
{
    if (o->n_ids > (WIRE_MAX_PACKET - ROOM_FOR_THE_REST) / 5) /* a varint has up to 5 bytes */
        return use_memfd(s, a, DEDIT__WIRE__MEMFD_PROMPT__KIND__IDS, o->ids, o->n_ids * 4, ret_fd,
                         err);
    Dedit__Wire__TokenIds *t = part(a, 1, sizeof *t);
    if (!t)
        return ERR_NOMEM(err);
    dedit__wire__token_ids__init(t);
    t->n_ids = o->n_ids;
    t->ids = (uint32_t *)(uintptr_t)o->ids;
    s->prompt_case = DEDIT__WIRE__SUBMIT__PROMPT_TOKEN_IDS;
    s->token_ids = t;
    return 0;
}

static int pack_chat(const struct dedit_options *o, Dedit__Wire__Submit *s, struct wire_arena *a,
                     int *ret_fd, struct error *err)
{
    Dedit__Wire__ChatMessages *c = part(a, 1, sizeof *c);
    Dedit__Wire__ChatMessage *m = part(a, o->n_messages, sizeof *m);
    Dedit__Wire__ChatMessage **list = part(a, o->n_messages, sizeof *list);
    if (!c || !m || !list)
        return ERR_NOMEM(err);
    dedit__wire__chat_messages__init(c);
    for (size_t i = 0; i < o->n_messages; i++) {
        const struct dedit_chat_message *from = &o->messages[i];
        const char *const texts[] = {from->role, from->content, from->reasoning,
                                     from->tool_calls_json};
        if (!from->role || !from->content)
            return ERR(err, INVALID, "messages[%zu]: role and content must be set", i);
        for (size_t k = 0; k < ARRAY_LEN(texts); k++)
            if (texts[k] && !utf8_valid(texts[k], strlen(texts[k])))
                return ERR(err, INVALID, "messages[%zu]: must be UTF-8", i);
        dedit__wire__chat_message__init(&m[i]);
        m[i].role = unconst(from->role);
        m[i].content = unconst(from->content);
        m[i].reasoning_content = unconst(from->reasoning);
        m[i].tool_calls_json = unconst(from->tool_calls_json);
        list[i] = &m[i];
    }
    c->n_messages = o->n_messages;
    c->messages = list;
    c->format = unconst(o->chat_format);
    c->tools_json = unconst(o->tools_json);
    if (o->enable_thinking >= 0) {
        c->has_enable_thinking = 1;
        c->enable_thinking = o->enable_thinking != 0;
    }
    size_t n = dedit__wire__chat_messages__get_packed_size(c);
    if (n > WIRE_MAX_PACKET - ROOM_FOR_THE_REST) {
        _cleanup_free_ uint8_t *packed = mem_alloc(n);
        if (!packed)
            return ERR_NOMEM(err);
        dedit__wire__chat_messages__pack(c, packed);
        return use_memfd(s, a, DEDIT__WIRE__MEMFD_PROMPT__KIND__CHAT, packed, n, ret_fd, err);
    }
    s->prompt_case = DEDIT__WIRE__SUBMIT__PROMPT_CHAT;
    s->chat = c;
    return 0;
}

static int pack_sampling(const struct dedit_options *o, Dedit__Wire__Submit *s,
                         struct wire_arena *a, struct error *err)
{
    Dedit__Wire__Sampling *p = part(a, 1, sizeof *p);
    if (!p)
        return ERR_NOMEM(err);
    dedit__wire__sampling__init(p);
#define SET(field) (p->has_##field = 1, p->field = o->field)
    SET(temperature);
    SET(top_k);
    SET(top_p);
    SET(min_p);
    SET(repetition_penalty);
    SET(frequency_penalty);
    SET(presence_penalty);
    SET(max_tokens);
    SET(min_tokens);
    SET(ignore_eos);
    SET(include_stop_str_in_output);
    SET(skip_special_tokens);
    if (o->has_seed)
        SET(seed);
#undef SET
    if (o->logprobs >= 0) {
        p->has_logprobs = 1;
        p->logprobs = (uint32_t)o->logprobs;
    }
    Dedit__Wire__LogitBias *b = part(a, o->n_logit_bias, sizeof *b);
    Dedit__Wire__LogitBias **list = part(a, o->n_logit_bias, sizeof *list);
    if (!b || !list)
        return ERR_NOMEM(err);
    for (size_t i = 0; i < o->n_logit_bias; i++) {
        dedit__wire__logit_bias__init(&b[i]);
        b[i].has_token = b[i].has_bias = 1;
        b[i].token = o->logit_bias[i].token;
        b[i].bias = o->logit_bias[i].bias;
        list[i] = &b[i];
    }
    p->n_logit_bias = o->n_logit_bias;
    p->logit_bias = list;
    p->n_stop_token_ids = o->n_stop_token_ids;
    p->stop_token_ids = (uint32_t *)(uintptr_t)o->stop_token_ids;
    for (size_t i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !utf8_valid(o->stop[i], strlen(o->stop[i])))
            return ERR(err, INVALID, "stop[%zu]: must be UTF-8 text", i);
    p->n_stop = o->n_stop;
    p->stop = (char **)(uintptr_t)o->stop;
    s->sampling = p;
    return 0;
}

static int pack_drafting(const struct dedit_options *o, Dedit__Wire__Submit *s,
                         struct wire_arena *a, struct error *err)
{
    Dedit__Wire__Drafting *d = part(a, 1, sizeof *d);
    Dedit__Wire__ReturnOptions *r = part(a, 1, sizeof *r);
    if (!d || !r)
        return ERR_NOMEM(err);
    dedit__wire__drafting__init(d);
    d->method = unconst(o->method);
    d->edit_visibility = unconst(o->edit_visibility);
    d->verification = unconst(o->verification);
    d->has_no_noise = 1;
    d->no_noise = o->no_noise != 0;
#define SET(field)                                                                                 \
    do                                                                                             \
        if (o->field) {                                                                            \
            d->has_##field = 1;                                                                    \
            d->field = o->field;                                                                   \
        }                                                                                          \
    while (0)
    SET(window);
    SET(passes);
    SET(tree_budget);
#undef SET
    s->drafting = d;
    dedit__wire__return_options__init(r);
    r->has_rounds = 1;
    r->rounds = o->rounds != 0;
    r->has_text = 1;
    r->text = o->want_text != 0;
    if (o->ring_bytes) {
        r->has_ring_bytes = 1;
        r->ring_bytes = o->ring_bytes;
    }
    s->returns = r;
    return 0;
}

int submit_pack(const struct dedit_options *o, Dedit__Wire__Submit *s, struct wire_arena *a,
                int *ret_fd, struct error *err)
{
    int kinds = (o->text != NULL) + (o->messages != NULL) + (o->ids != NULL);
    if (kinds != 1)
        return ERR(err, INVALID, "exactly one of text, messages and ids must be set, %d are", kinds);
    s->model = unconst(o->model);
    s->cache_salt = unconst(o->cache_salt);
    s->has_priority = 1;
    s->priority = o->priority;
    if (o->timeout_ms) {
        s->has_timeout_ms = 1;
        s->timeout_ms = o->timeout_ms;
    }
    s->has_parse_special = s->has_raw = 1;
    s->parse_special = o->parse_special != 0;
    s->raw = o->raw != 0;
    int r = pack_sampling(o, s, a, err);
    if (r == 0)
        r = pack_drafting(o, s, a, err);
    if (r < 0)
        return r;
    if (o->text)
        return pack_text(o, s, a, ret_fd, err);
    if (o->ids)
        return pack_ids(o, s, a, ret_fd, err);
    return pack_chat(o, s, a, ret_fd, err);
}
