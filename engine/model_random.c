/* SPDX-License-Identifier: Apache-2.0 */
/* Models with random weights: all matrices in one anonymous mapping, 64-byte aligned. */
#include "engine/model_random.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/hash.h"
#include "engine/hf_config.h"
#include "engine/model_file_internal.h"

#define ALIGN 64u

/* Where the 16-bit floats of a block are, and what they get: values of a block are then about
 * 2^-6 at most.  The rest of a block is random bits, all of which are valid. */
static const struct block_scales {
    unsigned n, at[2];
    uint16_t value[2];
} scales[DK_TYPE_COUNT] = {
    [DK_Q8_0] = {1, {0}, {0x0c00}},            /* 2^-12 */
    [DK_Q4_0] = {1, {0}, {0x1800}},            /* 2^-9 */
    [DK_Q4_1] = {2, {0, 2}, {0x1800, 0xa400}}, /* minimum -2^-6 */
    [DK_Q5_0] = {1, {0}, {0x1400}},            /* 2^-10 */
    [DK_Q5_1] = {2, {0, 2}, {0x1400, 0xa400}}, /* minimum -2^-6 */
    [DK_Q4_K] = {2, {0, 2}, {0x0100, 0x0400}}, /* times scales of 6 bits */
    [DK_Q5_K] = {2, {0, 2}, {0x0080, 0x0400}},
    [DK_Q6_K] = {1, {208}, {0x0020}}, /* times scales of 8 bits with a sign */
};

static void fill_bits(void *p, size_t bytes, uint64_t *state)
{
    uint8_t *out = p;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t v = hash_mix64(++*state);
        memcpy(out + i, &v, bytes - i < sizeof(v) ? bytes - i : sizeof(v));
    }
}

/* Sign and mantissa stay random, the exponent becomes 2^-6. */
static void fix_floats(void *p, enum dk_type type, size_t n)
{
    uint32_t *w = p;
    uint16_t *h = p;
    for (size_t i = 0; i < n; i++) {
        if (type == DK_F32)
            w[i] = (w[i] & 0x807fffffu) | 121u << 23;
        else if (type == DK_F16)
            h[i] = (uint16_t)((h[i] & 0x83ffu) | 9u << 10);
        else
            h[i] = (uint16_t)((h[i] & 0x807fu) | 121u << 7);
    }
}

static void fill_matrix(void *p, enum dk_type type, size_t bytes, uint64_t *state)
{
    const struct dk_type_info *info = dk_type_info(type);
    const struct block_scales *s = &scales[type];
    fill_bits(p, bytes, state);
    if (s->n == 0)
        fix_floats(p, type, bytes / info->block_bytes);
    for (uint8_t *b = p; s->n && b < (uint8_t *)p + bytes; b += info->block_bytes)
        for (unsigned i = 0; i < s->n; i++)
            memcpy(b + s->at[i], &s->value[i], sizeof(s->value[i]));
}

/* Bytes of a tensor of this shape; in 0: a vector of F32. */
static int tensor_bytes(enum dk_type type, uint64_t out, uint64_t in, size_t *ret,
                        struct error *err)
{
    const struct dk_type_info *info = dk_type_info(in ? type : DK_F32);
    size_t blocks;
    if (in % info->block_elems)
        return ERR(err, UNSUPPORTED, "random model: rows of %" PRIu64 " are not whole blocks of %s",
                   in, info->name);
    if (!size_mul((size_t)out, in ? (size_t)in / info->block_elems : 1, &blocks) ||
        !size_mul(blocks, info->block_bytes, ret))
        return ERR(err, LIMIT, "random model: it exceeds the address space");
    return 0;
}

/* One tensor: counted into *at (base NULL), or placed there and filled. */
static int make_tensor(struct model_file *f, enum model_tensor_role role, uint32_t layer,
                       enum dk_type type, size_t *at, uint64_t *state, struct error *err)
{
    uint64_t out, in;
    size_t bytes = 0, end;
    char name[48];
    if (!model_role_shape(&f->cfg, role, &out, &in))
        return 0;
    int r = tensor_bytes(type, out, in, &bytes, err);
    if (r < 0)
        return r;
    if (!size_add(*at, bytes, &end) || !size_round_up(end, ALIGN, &end))
        return ERR(err, LIMIT, "random model: it exceeds the address space");
    if (f->pages) {
        size_t i =
            role < MT_ATTN_NORM ? (size_t)role : (size_t)layer * MODEL_LAYER_ROLES + (size_t)role;
        void *data = (uint8_t *)f->pages + *at;
        float *ones = data;
        snprintf(name, sizeof(name), "random.%" PRIu32 ".%d", layer, (int)role);
        f->tensors[i] = (struct model_tensor){.name = arena_strndup(f->arena, name, sizeof(name)),
                                              .type = in ? type : DK_F32,
                                              .n_dims = in ? 2 : 1,
                                              .dims = {out, in},
                                              .data = data,
                                              .bytes = bytes};
        if (!f->tensors[i].name)
            return ERR_NOMEM(err);
        bool bias = role == MT_Q_BIAS || role == MT_K_BIAS || role == MT_V_BIAS;
        if (in)
            fill_matrix(data, type, bytes, state);
        else
            for (uint64_t k = 0; k < out && !bias; k++)
                ones[k] = 1.0f;
        f->weight_bytes += bytes;
    }
    *at = end;
    return 0;
}

/* A drafter's part of the configuration becomes the file's own. */
static int take_drafter(struct model_file *f, const struct drafter_config *d, struct error *err)
{
    if (!d)
        return 0;
    if (!d->n_taps || !d->target_hidden || !d->draft_vocab || d->block_size < 2)
        return ERR(err, INVALID, "random drafter: a size is missing");
    f->drafter = *d;
    f->cfg.drafter = &f->drafter;
    if (!d->target_ids)
        return 0;
    uint32_t *ids = arena_alloc(f->arena, (size_t)d->draft_vocab * sizeof(*ids));
    if (!ids)
        return ERR_NOMEM(err);
    memcpy(ids, d->target_ids, (size_t)d->draft_vocab * sizeof(*ids));
    f->drafter.target_ids = ids;
    return 0;
}

static int make_tensors(struct model_file *f, enum dk_type type, size_t *at, uint64_t seed,
                        struct error *err)
{
    int r = 0;
    *at = 0;
    for (int role = 0; role < MT_ATTN_NORM && r >= 0; role++)
        r = make_tensor(f, (enum model_tensor_role)role, 0, type, at, &seed, err);
    for (uint32_t l = 0; l < f->cfg.n_layers; l++)
        for (int role = MT_ATTN_NORM; role < MT_ROLE_COUNT && r >= 0; role++)
            r = make_tensor(f, (enum model_tensor_role)role, l, type, at, &seed, err);
    return r;
}

int model_file_random(const char *name, const struct model_config *c, enum dk_type type,
                      uint64_t seed, struct model_file **ret, struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    size_t bytes;
    if (!c->n_layers || !c->hidden || !c->ffn || !c->vocab_size || !c->n_heads || !c->n_kv_heads ||
        !c->head_dim || type >= DK_TYPE_COUNT)
        return ERR(err, INVALID, "random model: a size or the type is missing");
    int r = model_config_check(c, "random model", err);
    if (r >= 0)
        r = model_file_new("random", &f, err);
    if (r < 0)
        return r;
    f->cfg = *c;
    f->cfg.rope_freq_factors = NULL;
    r = take_drafter(f, c->drafter, err);
    if (r < 0)
        return r;
    f->name = mem_strdup(name);
    f->tensors = arena_zalloc(f->arena, (MT_ATTN_NORM + (size_t)c->n_layers * MODEL_LAYER_ROLES) *
                                            sizeof(*f->tensors));
    if (!f->name || !f->tensors)
        return ERR_NOMEM(err);
    r = make_tensors(f, type, &bytes, seed, err);
    if (r < 0)
        return r;
    f->pages = mem_map_pages(bytes);
    if (!f->pages)
        return ERR_NOMEM(err);
    f->pages_bytes = bytes;
    r = make_tensors(f, type, &bytes, seed, err);
    if (r < 0)
        return r;
    if (c->tied && !c->drafter)
        f->tensors[MT_HEAD] = f->tensors[MT_EMBED];
    *ret = TAKE_PTR(f);
    return 0;
}
