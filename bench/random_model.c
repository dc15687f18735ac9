/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/random_model.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/parse.h"
#include "base/strbuf.h"

#define ALIGN 32u

struct shape {
    const char *name, *arch;
    uint32_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab, context;
    float theta, eps;
    bool qk_norm;
};
static const struct shape shapes[] = {
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 100000.0f, 1e-5f, false},
    {"qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1000000.0f, 1e-6f, true},
};

struct writer {
    int fd;
    struct strbuf head; /* header and directory */
    struct strbuf data; /* waiting to be written */
    uint64_t rng, offset;
    enum dk_type type;
    bool failed; /* out of memory, or errno below */
    int write_errno;
};

/* ---- bytes ---- */

static void flush(struct writer *w, struct strbuf *b)
{
    for (size_t at = 0; at < b->len && !w->failed;) {
        ssize_t n = write(w->fd, b->s + at, b->len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            w->failed = true;
            w->write_errno = errno;
            break;
        }
        at += (size_t)n;
    }
    strbuf_clear(b);
}

static void put(struct writer *w, const void *p, size_t n)
{
    if (strbuf_add(&w->head, p, n) < 0)
        w->failed = true;
}

static void put_u32(struct writer *w, uint32_t v)
{
    put(w, &v, sizeof(v));
}

static void put_u64(struct writer *w, uint64_t v)
{
    put(w, &v, sizeof(v));
}

static void put_str(struct writer *w, const char *s, size_t n)
{
    put_u64(w, n);
    put(w, s, n);
}

static void key(struct writer *w, const char *prefix, const char *name, uint32_t type)
{
    char buf[96];
    int n = snprintf(buf, sizeof(buf), "%s%s%s", prefix, *prefix ? "." : "", name);
    put_str(w, buf, (size_t)n);
    put_u32(w, type);
}

enum { TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_STRING = 8, TYPE_ARRAY = 9 };

static void kv_u32(struct writer *w, const char *prefix, const char *name, uint32_t v)
{
    key(w, prefix, name, TYPE_U32);
    put_u32(w, v);
}

static void kv_f32(struct writer *w, const char *prefix, const char *name, float v)
{
    key(w, prefix, name, TYPE_F32);
    put(w, &v, sizeof(v));
}

static void kv_str(struct writer *w, const char *prefix, const char *name, const char *v)
{
    key(w, prefix, name, TYPE_STRING);
    put_str(w, v, strlen(v));
}

/* The byte-level alphabet: printable bytes stand for themselves, the others for U+0100 and up. */
static void kv_tokens(struct writer *w)
{
    key(w, "tokenizer.ggml", "tokens", TYPE_ARRAY);
    put_u32(w, TYPE_STRING);
    put_u64(w, 257);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        char text[4];
        size_t n = utf8_encode(plain ? b : next++, text);
        put_str(w, text, n);
    }
    put_str(w, "<|endoftext|>", 13);
    key(w, "tokenizer.ggml", "token_type", TYPE_ARRAY);
    put_u32(w, TYPE_I32);
    put_u64(w, 257);
    for (uint32_t i = 0; i < 257; i++)
        put_u32(w, i < 256 ? 1 : 3);
    key(w, "tokenizer.ggml", "merges", TYPE_ARRAY);
    put_u32(w, TYPE_STRING);
    put_u64(w, 0);
}

/* ---- weights ---- */

static uint64_t next(struct writer *w)
{
    w->rng ^= w->rng << 13;
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return w->rng;
}

static void set_f16(char *p, float v)
{
    uint16_t h = dk_f32_to_f16(v);
    memcpy(p, &h, sizeof(h));
}

/* One block of random quants; its scales make weights of about +-scale. */
static void random_block(struct writer *w, char *b, float scale)
{
    const struct dk_type_info *t = dk_type_info(w->type);
    for (uint32_t i = 0; i < t->block_bytes; i += 8) {
        uint64_t r = next(w);
        memcpy(b + i, &r, t->block_bytes - i < 8 ? t->block_bytes - i : 8);
    }
    switch (w->type) {
    case DK_Q8_0:
        set_f16(b, scale / 127);
        break;
    case DK_Q4_0:
        set_f16(b, scale / 8);
        break;
    case DK_Q5_0:
        set_f16(b, scale / 16);
        break;
    case DK_Q4_1:
        set_f16(b, scale / 8);
        set_f16(b + 2, -scale);
        break;
    case DK_Q5_1:
        set_f16(b, scale / 16);
        set_f16(b + 2, -scale);
        break;
    case DK_Q4_K:
        set_f16(b, scale / (8 * 63));
        set_f16(b + 2, scale / 63);
        break;
    case DK_Q5_K:
        set_f16(b, scale / (16 * 63));
        set_f16(b + 2, scale / 63);
        break;
    case DK_Q6_K:
        set_f16(b + 208, scale / (32 * 127));
        break;
    case DK_F32:
    case DK_F16:
    case DK_BF16:
    case DK_TYPE_COUNT:
        break;
    }
}

static void random_row(struct writer *w, char *row, uint32_t k)
{
    const struct dk_type_info *t = dk_type_info(w->type);
    float scale = 1.7f / sqrtf((float)k); /* uniform in +-scale: variance 1 / k */
    for (uint32_t i = 0; i < k / t->block_elems; i++) {
        char *b = row + (size_t)i * t->block_bytes;
        if (t->quantised) {
            random_block(w, b, scale);
            continue;
        }
        float x = ((float)(next(w) >> 40) * 0x1p-23f - 1.0f) * scale;
        uint16_t h = w->type == DK_F16 ? dk_f32_to_f16(x) : dk_f32_to_bf16(x);
        memcpy(b, w->type == DK_F32 ? (const void *)&x : (const void *)&h, t->block_bytes);
    }
}

struct tensor {
    char name[48];
    uint32_t n, k; /* outputs, inputs; n 0: a vector of k ones in F32 */
};

/* Tensor i of the shape; false behind the last. */
static bool tensor_at(const struct shape *s, uint32_t layers, uint32_t i, struct tensor *t)
{
    static const struct {
        const char *name;
        uint8_t n, k; /* index into dims below; n 0: vector */
    } parts[] = {
        {"attn_norm", 0, 1},   {"attn_q", 2, 1},      {"attn_k", 3, 1},      {"attn_v", 3, 1},
        {"attn_output", 1, 2}, {"ffn_norm", 0, 1},    {"ffn_gate", 4, 1},    {"ffn_up", 4, 1},
        {"ffn_down", 1, 4},    {"attn_q_norm", 0, 5}, {"attn_k_norm", 0, 5},
    };
    const uint32_t dims[] = {0,      s->hidden,  s->heads * s->head_dim, s->kv_heads * s->head_dim,
                             s->ffn, s->head_dim};
    uint32_t per = s->qk_norm ? 11 : 9;
    if (i < 2) {
        snprintf(t->name, sizeof(t->name), "%s.weight", i ? "output_norm" : "token_embd");
        t->n = i ? 0 : s->vocab;
        t->k = s->hidden;
        return true;
    }
    uint32_t layer = (i - 2) / per, p = (i - 2) % per;
    if (layer >= layers)
        return false;
    snprintf(t->name, sizeof(t->name), "blk.%u.%s.weight", layer, parts[p].name);
    t->n = dims[parts[p].n];
    t->k = dims[parts[p].k];
    return true;
}

static size_t tensor_bytes(const struct writer *w, const struct tensor *t)
{
    const struct dk_type_info *i = dk_type_info(w->type);
    return t->n ? (size_t)t->n * (t->k / i->block_elems) * i->block_bytes : t->k * sizeof(float);
}

static void write_header(struct writer *w, const struct shape *s, uint32_t layers)
{
    /* Numbers of the types in the file. */
    static const uint32_t file_type[DK_TYPE_COUNT] = {
        [DK_F32] = 0,  [DK_F16] = 1,  [DK_BF16] = 30, [DK_Q8_0] = 8,  [DK_Q4_0] = 2, [DK_Q4_1] = 3,
        [DK_Q5_0] = 6, [DK_Q5_1] = 7, [DK_Q4_K] = 12, [DK_Q5_K] = 13, [DK_Q6_K] = 14};
    struct tensor t;
    uint32_t n = 0;
    while (tensor_at(s, layers, n, &t))
        n++;
    char name[96];
    snprintf(name, sizeof(name), "random %s %s", s->name, dk_type_info(w->type)->name);
    put(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, n);
    put_u64(w, 17);
    kv_str(w, "general", "architecture", s->arch);
    kv_str(w, "general", "name", name);
    kv_u32(w, s->arch, "block_count", layers);
    kv_u32(w, s->arch, "context_length", s->context);
    kv_u32(w, s->arch, "embedding_length", s->hidden);
    kv_u32(w, s->arch, "feed_forward_length", s->ffn);
    kv_u32(w, s->arch, "attention.head_count", s->heads);
    kv_u32(w, s->arch, "attention.head_count_kv", s->kv_heads);
    kv_u32(w, s->arch, "attention.key_length", s->head_dim);
    kv_f32(w, s->arch, "attention.layer_norm_rms_epsilon", s->eps);
    kv_f32(w, s->arch, "rope.freq_base", s->theta);
    kv_str(w, "tokenizer.ggml", "model", "gpt2");
    kv_str(w, "tokenizer.ggml", "pre", "gpt-2");
    kv_tokens(w); /* three keys */
    kv_u32(w, "tokenizer.ggml", "eos_token_id", 256);
    uint64_t offset = 0;
    for (uint32_t i = 0; tensor_at(s, layers, i, &t); i++) {
        put_str(w, t.name, strlen(t.name));
        put_u32(w, t.n ? 2 : 1);
        put_u64(w, t.k);
        if (t.n)
            put_u64(w, t.n);
        put_u32(w, t.n ? file_type[w->type] : 0);
        put_u64(w, offset);
        offset += (tensor_bytes(w, &t) + ALIGN - 1) / ALIGN * ALIGN;
    }
    while (w->head.len % ALIGN && !w->failed)
        put(w, "", 1);
    flush(w, &w->head);
}

static void write_tensor(struct writer *w, const struct tensor *t)
{
    static const char zeros[ALIGN];
    size_t bytes = tensor_bytes(w, t), row = t->n ? bytes / t->n : 0;
    const float one = 1;
    for (uint32_t i = 0; i < t->n && !w->failed; i++) {
        if (strbuf_reserve(&w->data, row) < 0) {
            w->failed = true;
            return;
        }
        random_row(w, w->data.s + w->data.len, t->k);
        w->data.len += row;
        if (w->data.len > (4u << 20))
            flush(w, &w->data);
    }
    for (uint32_t i = 0; t->n == 0 && i < t->k; i++)
        w->failed |= strbuf_add(&w->data, &one, sizeof(one)) < 0;
    w->failed |= strbuf_add(&w->data, zeros, (ALIGN - bytes % ALIGN) % ALIGN) < 0;
}

int random_model_new(const char *shape, enum dk_type type, uint32_t n_layers,
                     struct random_model *ret, struct error *err)
{
    const struct shape *s = NULL;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (!strcmp(shapes[i].name, shape))
            s = &shapes[i];
    if (!s)
        return ERR(err, INVALID, "\"%s\" is not smollm2-135m or qwen3-0.6b", shape);
    const struct dk_type_info *info = dk_type_info(type);
    if (s->hidden % info->block_elems || s->ffn % info->block_elems)
        return ERR(err, UNSUPPORTED, "%s has rows of %u, which %s (blocks of %u) cannot hold",
                   s->name, s->hidden, info->name, info->block_elems);
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(ret->dir, sizeof(ret->dir), "%s/dedit-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (n < 0 || (size_t)n >= sizeof(ret->dir) || !mkdtemp(ret->dir)) {
        n = errno;
        ret->dir[0] = '\0';
        return ERR(err, IO, "no temporary folder in %s: %s", tmp ? tmp : "/tmp", strerror(n));
    }
    snprintf(ret->path, sizeof(ret->path), "%s/model.gguf", ret->dir);
    struct writer w = {.type = type, .rng = 0x9e3779b97f4a7c15u};
    w.fd = open(ret->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (w.fd < 0) {
        n = errno;
        random_model_done(ret);
        return ERR(err, IO, "%s: %s", ret->path, strerror(n));
    }
    write_header(&w, s, n_layers ? n_layers : s->layers);
    struct tensor t;
    for (uint32_t i = 0; !w.failed && tensor_at(s, n_layers ? n_layers : s->layers, i, &t); i++)
        write_tensor(&w, &t);
    flush(&w, &w.data);
    strbuf_done(&w.head);
    strbuf_done(&w.data);
    fd_close(w.fd);
    if (!w.failed)
        return 0;
    random_model_done(ret);
    return w.write_errno ? ERR(err, IO, "%s: %s", ret->path, strerror(w.write_errno))
                         : ERR_NOMEM(err);
}

void random_model_done(struct random_model *m)
{
    if (!m->dir[0])
        return;
    (void)unlink(m->path);
    (void)rmdir(m->dir);
    m->dir[0] = '\0';
}
