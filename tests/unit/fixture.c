/* SPDX-License-Identifier: Apache-2.0 */
/* Writer of small models: config, byte tokenizer, safetensors. */
#include "tests/unit/fixture.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "kernels/kernels.h"

#define HEAD_SCALE                                                                                 \
    22.62159f /* 1 / sqrt(1 / 512 + 1e-6): what the final norm makes of a unit vector */

/* Folders are also written before libcheck runs, where its assertions do not work. */
static void need(bool ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "fixture: cannot get %s\n", what);
    exit(99);
}

struct fixture fixture_random(uint64_t seed)
{
    return (struct fixture){.family = FIXTURE_QWEN3,
                            .n_layers = 2,
                            .hidden = 64,
                            .n_heads = 4,
                            .n_kv_heads = 2,
                            .head_dim = 32,
                            .ffn = 96,
                            .vocab = FIXTURE_VOCAB,
                            .max_position = 4096,
                            .seed = seed};
}

struct fixture fixture_script(float (*logit)(const void *arg, uint32_t x, uint32_t y),
                              const void *arg)
{
    struct fixture f = fixture_random(1);
    f.n_layers = 1;
    f.hidden = FIXTURE_VOCAB;
    f.logit = logit;
    f.arg = arg;
    return f;
}

void fixture_chain_init(struct fixture_chain *c)
{
    for (uint32_t i = 0; i < FIXTURE_VOCAB; i++)
        c->next[i] = i;
}

float fixture_chain_logit(const void *chain, uint32_t x, uint32_t y)
{
    const struct fixture_chain *c = chain;
    return c->next[x] == y ? 10.0f : 0.0f;
}

/* ---- text files ------------------------------------------------------------------------------- */

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    need(f != NULL, path);
    return f;
}

static void write_config(const struct fixture *f, const char *dir)
{
    static const char *const arch[] = {"Llama", "Qwen2", "Qwen3"};
    static const char *const type[] = {"llama", "qwen2", "qwen3"};
    static const char *const dtype[] = {"float32", "bfloat16", "float16"};
    FILE *o = create(dir, "config.json");
    (void)fprintf(
        o,
        "{\"architectures\":[\"%sForCausalLM\"],\"model_type\":\"%s\",\"torch_dtype\":\"%s\","
        "\"hidden_size\":%u,\"num_hidden_layers\":%u,\"num_attention_heads\":%u,"
        "\"num_key_value_heads\":%u,\"head_dim\":%u,\"intermediate_size\":%u,\"vocab_size\":%u,"
        "\"max_position_embeddings\":%u,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
        "\"tie_word_embeddings\":%s,\"hidden_act\":\"silu\",\"attention_bias\":false,"
        "\"bos_token_id\":256,\"eos_token_id\":%u}\n",
        arch[f->family], type[f->family], dtype[f->dtype], f->hidden, f->n_layers, f->n_heads,
        f->n_kv_heads, f->head_dim, f->ffn, f->vocab, f->max_position, f->tied ? "true" : "false",
        FIXTURE_EOS);
    (void)fclose(o);
    o = create(dir, "generation_config.json");
    if (f->generation_config)
        (void)fputs(f->generation_config, o);
    else
        (void)fprintf(o, "{\"eos_token_id\":%u}\n", FIXTURE_EOS);
    (void)fclose(o);
    o = create(dir, "tokenizer_config.json");
    (void)fputs("{\"add_bos_token\":false,\"bos_token\":null,\"eos_token\":\"<|im_end|>\"}\n", o);
    (void)fclose(o);
}

/* The byte-level alphabet: printable bytes stand for themselves, the others for U+0100 on. */
static void write_tokenizer(const char *dir)
{
    static const char *const added[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"};
    FILE *o = create(dir, "tokenizer.json");
    (void)fputs("{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[", o);
    for (int i = 0; i < 4; i++)
        (void)fprintf(o,
                      "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                      "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                      i ? "," : "", 256 + i, added[i]);
    (void)fputs("],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{",
                o);
    unsigned other = 0;
    for (unsigned b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        (void)fprintf(o, "%s\"\\u%04x\":%u", b ? "," : "", plain ? b : 256 + other, b);
        other += !plain;
    }
    (void)fputs("},\"merges\":[]}}\n", o);
    (void)fclose(o);
}

/* ---- weights ---------------------------------------------------------------------------------- */

struct writer {
    const struct fixture *f;
    char *header;
    size_t header_len;
    FILE *header_file;
    uint8_t *data;
    size_t len, cap;
    uint64_t state;
    bool first;
};

/* Sum of four uniforms: near enough to a normal variable of deviation 1. */
static float noise(struct writer *w)
{
    double s = 0;
    for (int i = 0; i < 4; i++) {
        w->state = w->state * 6364136223846793005ull + 1442695040888963407ull;
        s += (double)(w->state >> 40) / 16777216.0 - 0.5;
    }
    return (float)(s * 1.7320508);
}

static void put(struct writer *w, float x)
{
    uint16_t h = w->f->dtype == FIXTURE_BF16 ? dk_f32_to_bf16(x) : dk_f32_to_f16(x);
    size_t n = w->f->dtype == FIXTURE_F32 ? 4 : 2;
    if (w->len + n > w->cap) {
        w->cap = w->cap ? 2 * w->cap : 1 << 20;
        w->data = realloc(w->data, w->cap);
        need(w->data != NULL, "memory");
    }
    memcpy(w->data + w->len, n == 4 ? (const void *)&x : (const void *)&h, n);
    w->len += n;
}

static void begin(struct writer *w, uint32_t n, uint32_t k, size_t bytes, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void begin(struct writer *w, uint32_t n, uint32_t k, size_t bytes, const char *fmt, ...)
{
    static const char *const dtype[] = {"F32", "BF16", "F16"};
    va_list ap;
    (void)fputs(w->first ? "\"" : ",\"", w->header_file);
    w->first = false;
    va_start(ap, fmt);
    (void)vfprintf(w->header_file, fmt, ap);
    va_end(ap);
    (void)fprintf(w->header_file, "\":{\"dtype\":\"%s\",\"shape\":[%u", dtype[w->f->dtype], n);
    if (k)
        (void)fprintf(w->header_file, ",%u", k);
    (void)fprintf(w->header_file, "],\"data_offsets\":[%zu,%zu]}", w->len, w->len + bytes);
}

enum fill { FILL_NOISE, FILL_EMBED, FILL_ZERO, FILL_IDENTITY, FILL_NORM, FILL_SCRIPT };

static void tensor(struct writer *w, enum fill fill, float scale, uint32_t n, uint32_t k,
                   const char *name, uint32_t layer)
{
    size_t bytes = (size_t)n * (k ? k : 1) * (w->f->dtype == FIXTURE_F32 ? 4 : 2);
    if (layer == UINT32_MAX)
        begin(w, n, k, bytes, "%s", name);
    else
        begin(w, n, k, bytes, "model.layers.%u.%s", layer, name);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < (k ? k : 1); j++)
            switch (fill) {
            case FILL_NOISE:
                put(w, scale * noise(w));
                break;
            case FILL_EMBED:
                put(w, w->f->poison && i == FIXTURE_POISON ? NAN : noise(w));
                break;
            case FILL_ZERO:
                put(w, 0.0f);
                break;
            case FILL_IDENTITY:
                put(w, i == j ? 1.0f : 0.0f);
                break;
            case FILL_NORM:
                put(w, w->f->logit ? 1.0f : 1.0f + 0.1f * noise(w));
                break;
            case FILL_SCRIPT:
                put(w, w->f->logit(w->f->arg, j, i) / HEAD_SCALE);
                break;
            }
}

static void layer_tensors(struct writer *w, uint32_t l)
{
    const struct fixture *f = w->f;
    const uint32_t q = f->n_heads * f->head_dim, kv = f->n_kv_heads * f->head_dim;
    const float in = 1.0f / sqrtf((float)f->hidden);
    enum fill out = f->logit ? FILL_ZERO : FILL_NOISE;
    tensor(w, FILL_NORM, 1, f->hidden, 0, "input_layernorm.weight", l);
    tensor(w, FILL_NOISE, 2 * in, q, f->hidden, "self_attn.q_proj.weight", l);
    tensor(w, FILL_NOISE, 2 * in, kv, f->hidden, "self_attn.k_proj.weight", l);
    tensor(w, FILL_NOISE, in, kv, f->hidden, "self_attn.v_proj.weight", l);
    tensor(w, out, 1.0f / sqrtf((float)q), f->hidden, q, "self_attn.o_proj.weight", l);
    if (f->family == FIXTURE_QWEN2) {
        tensor(w, FILL_NOISE, 0.5f, q, 0, "self_attn.q_proj.bias", l);
        tensor(w, FILL_NOISE, 0.5f, kv, 0, "self_attn.k_proj.bias", l);
        tensor(w, FILL_NOISE, 0.5f, kv, 0, "self_attn.v_proj.bias", l);
    }
    if (f->family == FIXTURE_QWEN3) {
        tensor(w, FILL_NORM, 1, f->head_dim, 0, "self_attn.q_norm.weight", l);
        tensor(w, FILL_NORM, 1, f->head_dim, 0, "self_attn.k_norm.weight", l);
    }
    tensor(w, FILL_NORM, 1, f->hidden, 0, "post_attention_layernorm.weight", l);
    tensor(w, FILL_NOISE, in, f->ffn, f->hidden, "mlp.gate_proj.weight", l);
    tensor(w, FILL_NOISE, in, f->ffn, f->hidden, "mlp.up_proj.weight", l);
    tensor(w, out, 1.0f / sqrtf((float)f->ffn), f->hidden, f->ffn, "mlp.down_proj.weight", l);
}

static void write_weights(const struct fixture *f, const char *dir)
{
    struct writer w = {.f = f, .state = f->seed * 2862933555777941757ull + 1, .first = true};
    w.header_file = open_memstream(&w.header, &w.header_len);
    need(w.header_file != NULL, "memory");
    (void)fputs("{", w.header_file);
    tensor(&w, f->logit ? FILL_IDENTITY : FILL_EMBED, 1.0f, f->vocab, f->hidden,
           "model.embed_tokens.weight", UINT32_MAX);
    for (uint32_t l = 0; l < f->n_layers; l++)
        layer_tensors(&w, l);
    tensor(&w, FILL_NORM, 1, f->hidden, 0, "model.norm.weight", UINT32_MAX);
    if (!f->tied)
        tensor(&w, f->logit ? FILL_SCRIPT : FILL_NOISE, 3.0f / sqrtf((float)f->hidden), f->vocab,
               f->hidden, "lm_head.weight", UINT32_MAX);
    (void)fputs("}", w.header_file);
    while (ftell(w.header_file) % 8)
        (void)fputc(' ', w.header_file);
    (void)fclose(w.header_file);
    uint64_t n = w.header_len;
    FILE *o = create(dir, "model.safetensors");
    need(fwrite(&n, 8, 1, o) == 1, "model.safetensors");
    need(fwrite(w.header, 1, w.header_len, o) == w.header_len, "model.safetensors");
    need(fwrite(w.data, 1, w.len, o) == w.len, "model.safetensors");
    (void)fclose(o);
    free(w.header);
    free(w.data);
}

/* ---- folders ---------------------------------------------------------------------------------- */

#define MAX_FOLDERS 64
static struct folder {
    char path[256];
    pid_t owner; /* tests run in children, which must not remove what their parent made */
} folders[MAX_FOLDERS];
static unsigned n_folders;

static void remove_folders(void)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors"};
    for (unsigned i = 0; i < n_folders; i++) {
        if (folders[i].owner != getpid())
            continue;
        for (unsigned j = 0; j < sizeof(names) / sizeof(*names); j++) {
            char path[320];
            (void)snprintf(path, sizeof(path), "%.255s/%s", folders[i].path, names[j]);
            (void)unlink(path);
        }
        (void)rmdir(folders[i].path);
    }
}

const char *fixture_write(const struct fixture *f)
{
    const char *base = getenv("TMPDIR");
    need(n_folders < MAX_FOLDERS, "a folder more");
    struct folder *folder = &folders[n_folders];
    (void)snprintf(folder->path, sizeof(folder->path), "%s/dedit-model-XXXXXX",
                   base ? base : "/tmp");
    need(mkdtemp(folder->path) != NULL, folder->path);
    folder->owner = getpid();
    static bool registered;
    if (!registered)
        (void)atexit(remove_folders);
    registered = true;
    n_folders++;
    const char *dir = folder->path;
    write_config(f, dir);
    write_tokenizer(dir);
    write_weights(f, dir);
    return dir;
}

const char *fixture_write_alphabet(void)
{
    struct fixture_chain c;
    fixture_chain_init(&c);
    for (uint32_t b = 'a'; b < 'z'; b++)
        c.next[b] = b + 1;
    c.next['z'] = FIXTURE_EOS;
    struct fixture f = fixture_script(fixture_chain_logit, &c);
    return fixture_write(&f);
}
