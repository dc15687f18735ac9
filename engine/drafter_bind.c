/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a drafter's tensors say beside the roles: whether it brings an embedding and a head of its
 * own, how large a reduced draft vocabulary is, and which token each of its rows stands for.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/model_file_internal.h"

#define MAX_VOCAB (1u << 24)

struct src_tensor *src_find_drafter(const struct src_table *s, const char *name)
{
    char prefixed[128];
    struct src_tensor *t = src_find(s, name);
    if (t || !s->hf)
        return t;
    snprintf(prefixed, sizeof(prefixed), "model.%s", name);
    return src_find(s, prefixed);
}

static struct src_tensor *find(const struct src_table *s, const char *hf, const char *gguf)
{
    return src_find_drafter(s, s->hf ? hf : gguf);
}

/* A dimension of an optional tensor, where the configuration leaves a size open. */
static int size_of(const struct src_tensor *t, uint32_t n_dims, uint32_t *ret, struct error *err)
{
    if (t->n_dims != n_dims || t->dims[0] == 0 || t->dims[0] > MAX_VOCAB)
        return ERR(err, FORMAT,
                   "%s: tensor \"%.*s\" must have %" PRIu32 " dimension%s and from 1 to %u rows",
                   t->file, SRC_NAME(t), n_dims, n_dims > 1 ? "s" : "", MAX_VOCAB);
    *ret = (uint32_t)t->dims[0];
    return 0;
}

int drafter_look(struct model_file *f, const struct src_table *s, struct error *err)
{
    struct drafter_config *d = &f->drafter;
    const struct src_tensor *embed = find(s, "embed_tokens.weight", "token_embd.weight");
    const struct src_tensor *head = find(s, "lm_head.weight", "output.weight");
    const struct src_tensor *d2t = find(s, "d2t", "d2t");
    int r = 0;
    d->own_embed = embed != NULL;
    d->own_head = head != NULL;
    if (d->draft_vocab == 0 && d2t)
        r = size_of(d2t, 1, &d->draft_vocab, err);
    else if (d->draft_vocab == 0)
        d->draft_vocab = f->cfg.vocab_size;
    if (r < 0)
        return r;
    if (!d2t && d->draft_vocab != f->cfg.vocab_size)
        return ERR(err, FORMAT,
                   "%s: tensor \"d2t\" is missing: draft_vocab_size %" PRIu32 " of %" PRIu32
                   " tokens needs it",
                   s->missing, d->draft_vocab, f->cfg.vocab_size);
    const struct src_tensor *fc = find(s, "fc.weight", "fc.weight");
    uint64_t width = (uint64_t)d->n_taps * d->target_hidden;
    if (fc && fc->n_dims == 2 && fc->dims[1] != width)
        return ERR(err, MISMATCH,
                   "%s: tensor \"%.*s\" reads %" PRIu64
                   " values, \"target_layer_ids\" with %" PRIu32 " layers of %" PRIu32
                   " gives %" PRIu64,
                   fc->file, SRC_NAME(fc), fc->dims[1], d->n_taps, d->target_hidden, width);
    return 0;
}

/* Entry i of d2t: a signed offset. */
static int64_t offset_at(const struct src_tensor *t, bool wide, size_t i)
{
    int32_t n;
    int64_t w;
    if (wide) {
        memcpy(&w, (const char *)t->data + i * sizeof(w), sizeof(w));
        return w;
    }
    memcpy(&n, (const char *)t->data + i * sizeof(n), sizeof(n));
    return n;
}

static int take_ids(struct model_file *f, const struct src_tensor *t, bool wide, uint8_t *seen,
                    struct error *err)
{
    const uint32_t n = f->drafter.draft_vocab, vocab = f->cfg.vocab_size;
    uint32_t *ids = arena_alloc(f->arena, (size_t)n * sizeof(*ids));
    if (!ids)
        return ERR_NOMEM(err);
    for (uint32_t i = 0; i < n; i++) {
        int64_t offset = offset_at(t, wide, i);
        if (offset < -(int64_t)i || offset >= (int64_t)vocab - i)
            return ERR(err, FORMAT,
                       "%s: tensor \"%.*s\"[%" PRIu32 "] is %" PRId64
                       ": row + offset must be a token below %" PRIu32,
                       t->file, SRC_NAME(t), i, offset, vocab);
        uint32_t id = (uint32_t)(i + offset);
        if (seen[id / 8] >> id % 8 & 1)
            return ERR(err, FORMAT,
                       "%s: tensor \"%.*s\"[%" PRIu32 "]: token %" PRIu32 " has two rows", t->file,
                       SRC_NAME(t), i, id);
        seen[id / 8] |= (uint8_t)(1u << id % 8);
        ids[i] = id;
    }
    f->drafter.target_ids = ids;
    return 0;
}

int drafter_bind(struct model_file *f, const struct src_table *s, struct error *err)
{
    struct src_tensor *t = find(s, "d2t", "d2t"), *t2d = find(s, "t2d", "t2d");
    if (t2d)
        t2d->used = true; /* the same table from the other side, as a mask */
    if (!t)
        return 0;
    bool wide = !strcmp(t->type_name, "I64"), narrow = !strcmp(t->type_name, "I32");
    t->used = true;
    if (!wide && !narrow)
        return ERR(err, UNSUPPORTED,
                   "%s: tensor \"%.*s\": type %s is not supported (supported: I32 I64)", t->file,
                   SRC_NAME(t), t->type_name);
    if (t->n_dims != 1 || t->dims[0] != f->drafter.draft_vocab ||
        t->bytes != t->dims[0] * (wide ? sizeof(int64_t) : sizeof(int32_t)))
        return ERR(err, MISMATCH,
                   "%s: tensor \"%.*s\" must be [%" PRIu32 "], one offset for each draft token",
                   t->file, SRC_NAME(t), f->drafter.draft_vocab);
    _cleanup_free_ uint8_t *seen = mem_zalloc((size_t)f->cfg.vocab_size / 8 + 1);
    return seen ? take_ids(f, t, wide, seen, err) : ERR_NOMEM(err);
}
