/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models from Hugging Face folders and GGUF files: the reference models, metadata good and
 * bad, shapes, shards, cut files, and allocation failures (known faults LOD-03, LOD-05, LOD-06).
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "engine/gguf.h"
#include "engine/hf_config.h"
#include "engine/model_file.h"
#include "engine/model_file_internal.h"
#include "engine/model_random.h"
#include "tests/unit/modelgen.h"
#include "tests/unit/util.h"

static const char *const hf_models[] = {"a_llama_tied", "b_llama_rope3", "c_qwen2", "d_qwen3",
                                        "e_odd"};
static const char *const gguf_models[] = {
    "a_llama_tied.F32",  "a_llama_tied.F16",   "a_llama_tied.BF16", "a_llama_tied.Q8_0",
    "a_llama_tied.Q4_0", "a_llama_tied.Q4_1",  "a_llama_tied.Q5_0", "a_llama_tied.Q5_1",
    "b_llama_rope3.F32", "b_llama_rope3.Q8_0", "c_qwen2.F32",       "c_qwen2.Q8_0",
    "d_qwen3.Q8_0",      "k_qwen3.Q4_K",       "k_qwen3.Q5_K",      "k_qwen3.Q6_K",
    "k_qwen3.MIX"};

static struct model_file *open_good(const char *path)
{
    struct error err = {0};
    struct model_file *f = NULL;
    ck_ok(model_file_open(path, &f, &err), &err);
    return f;
}

static void open_bad(const char *path, int code, const char *word1, const char *word2)
{
    struct error err = {0};
    struct model_file *f = NULL;
    int r = model_file_open(path, &f, &err);
    ck_assert_msg(r == code, "%s (%s), wanted %s", error_name(r), err.msg, error_name(code));
    ck_assert_ptr_null(f);
    ck_assert_msg(strstr(err.msg, word1), "no \"%s\": %s", word1, err.msg);
    ck_assert_msg(!word2 || strstr(err.msg, word2), "no \"%s\": %s", word2, err.msg);
}
#define FORMAT      DEDIT_E_FORMAT
#define UNSUPPORTED DEDIT_E_UNSUPPORTED
#define MISMATCH    DEDIT_E_MISMATCH

static const char *hf_path(const char *name)
{
    char rel[128];
    snprintf(rel, sizeof(rel), "tests/golden/models/%s", name);
    return test_path(rel);
}

static const char *gguf_golden(const char *name)
{
    char rel[128];
    snprintf(rel, sizeof(rel), "tests/golden/gguf/%s.gguf", name);
    return test_path(rel);
}

/* The temporary folder with the tiny model in it. */
static const char *tiny_folder(const struct tiny *t)
{
    tiny_write_hf(t, test_tmpdir());
    return test_tmpdir();
}

static const char *tiny_gguf_file(const struct tiny *t)
{
    static char path[PATH_MAX];
    _cleanup_strbuf_ struct strbuf b = {0};
    tiny_gguf(t, &b);
    write_file(test_tmpdir(), "tiny.gguf", b.s, b.len);
    snprintf(path, sizeof(path), "%s/tiny.gguf", test_tmpdir());
    return path;
}

/* ---- good models ------------------------------------------------------------------------------- */

/* Everything that the header promises about a file that opened. */
static void check_promises(const struct model_file *f)
{
    const struct model_config *c = model_file_config(f);
    uint64_t total = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        for (int r = l ? MT_ATTN_NORM : 0; r < MT_ROLE_COUNT; r++) {
            const struct model_tensor *t = model_file_tensor(f, (enum model_tensor_role)r, l);
            bool bias = r == MT_Q_BIAS || r == MT_K_BIAS || r == MT_V_BIAS;
            bool norm = r == MT_Q_NORM || r == MT_K_NORM;
            bool drafter = r == MT_FC || r == MT_HIDDEN_NORM;
            ck_assert_int_eq(t != NULL, bias ? c->qkv_bias : norm ? c->qk_norm : !drafter);
            if (!t)
                continue;
            const struct dk_type_info *info = dk_type_info(t->type);
            uint64_t elems = t->dims[0] * (t->n_dims == 2 ? t->dims[1] : 1);
            ck_assert_uint_eq(t->bytes, elems / info->block_elems * info->block_bytes);
            ck_assert(t->n_dims == 2 || t->type == DK_F32);
            ck_assert_uint_eq((uintptr_t)t->data % (t->type == DK_F32 ? 4 : 2), 0);
            if (r != MT_HEAD || !c->tied)
                total += t->bytes;
        }
    }
    ck_assert_uint_eq(total, model_file_weight_bytes(f));
    ck_assert_ptr_null(model_file_tensor(f, MT_Q, c->n_layers));
    const struct model_tensor *embed = model_file_tensor(f, MT_EMBED, 99);
    const struct model_tensor *head = model_file_tensor(f, MT_HEAD, 0);
    ck_assert_int_eq(embed->data == head->data, c->tied);
    ck_assert_uint_eq(embed->dims[0], c->vocab_size);
    ck_assert_uint_eq(embed->dims[1], c->hidden);
    ck_assert_uint_eq(c->n_eos_ids, 1);
    ck_assert_uint_eq(c->eos_ids[0], 318);
    ck_assert(c->has_bos && !c->add_bos && c->bos_id == 316);
}

START_TEST(reference_folders)
{
    for (size_t i = 0; i < ARRAY_LEN(hf_models); i++) {
        struct model_file *f = open_good(hf_path(hf_models[i]));
        size_t len;
        check_promises(f);
        ck_assert_str_eq(model_file_name(f), hf_models[i]);
        ck_assert_str_eq(model_file_path(f), hf_path(hf_models[i]));
        ck_assert_int_eq(model_file_config(f)->rope_pairing, DK_ROPE_HALVES);
        ck_assert_ptr_null(model_file_gguf(f));
        ck_assert_ptr_nonnull(model_file_tokenizer_json(f, &len));
        ck_assert_uint_gt(len, 4000);
        ck_assert_ptr_null(model_file_tokenizer_config_json(f, &len));
        ck_assert_ptr_null(model_file_chat_template(f));
        model_file_free(f);
    }
    ck_assert_ptr_null(model_file_free(NULL));
}
END_TEST

START_TEST(reference_ggufs)
{
    for (size_t i = 0; i < ARRAY_LEN(gguf_models); i++) {
        struct model_file *f = open_good(gguf_golden(gguf_models[i]));
        size_t len;
        check_promises(f);
        ck_assert_int_eq(model_file_config(f)->rope_pairing,
                         model_file_config(f)->family == MODEL_LLAMA ? DK_ROPE_INTERLEAVED
                                                                     : DK_ROPE_HALVES);
        ck_assert_ptr_nonnull(model_file_gguf(f));
        ck_assert_ptr_null(model_file_tokenizer_json(f, &len));
        ck_assert(!strncmp(model_file_name(f), "tiny ", 5));
        ck_assert_ptr_nonnull(strstr(model_file_chat_template(f), "<|im_start|>"));
        model_file_free(f);
    }
}
END_TEST

START_TEST(configurations)
{
    struct model_file *f = open_good(hf_path("b_llama_rope3"));
    const struct model_config *c = model_file_config(f);
    ck_assert_int_eq(c->family, MODEL_LLAMA);
    ck_assert_int_eq(c->rope_scaling, ROPE_SCALING_LLAMA3);
    ck_assert_double_eq(c->rope_factor, 8);
    ck_assert_double_eq(c->rope_low_freq_factor, 1);
    ck_assert_double_eq(c->rope_high_freq_factor, 4);
    ck_assert_uint_eq(c->rope_original_context, 64);
    ck_assert(!c->tied && !c->qkv_bias && !c->qk_norm);
    model_file_free(f);
    /* The same in GGUF form: divisors, no scaling type. */
    f = open_good(gguf_golden("b_llama_rope3.F32"));
    c = model_file_config(f);
    ck_assert_int_eq(c->rope_scaling, ROPE_SCALING_NONE);
    ck_assert_ptr_nonnull(c->rope_freq_factors);
    ck_assert(c->rope_freq_factors[0] == 1.0f);
    ck_assert(c->rope_freq_factors[7] == 8.0f);
    model_file_free(f);
    f = open_good(hf_path("e_odd"));
    c = model_file_config(f);
    ck_assert_uint_eq(c->vocab_size, 331);
    ck_assert_uint_eq(c->n_heads, 5);
    ck_assert_uint_eq(c->n_kv_heads, 1);
    ck_assert_uint_eq(c->max_position, 512);
    ck_assert(c->rms_eps == 1e-3f);
    ck_assert_double_eq(c->rope_theta, 10000.0);
    ck_assert_int_eq(model_file_tensor(f, MT_Q, 0)->type, DK_F16);
    model_file_free(f);
    f = open_good(hf_path("d_qwen3"));
    c = model_file_config(f);
    ck_assert_int_eq(c->family, MODEL_QWEN3);
    ck_assert_str_eq(model_family_name(c->family), "qwen3");
    ck_assert_uint_eq(c->head_dim, 32);
    ck_assert_uint_eq(c->hidden, 64);
    ck_assert(c->tied && !c->qkv_bias && c->qk_norm);
    model_file_free(f);
}
END_TEST

/* LOD-06: only llama's q and k rows differ between the forms, and the pairing says so. */
START_TEST(row_order)
{
    static const char *const families[] = {"llama", "qwen3", "qwen2"};
    for (size_t k = 0; k < ARRAY_LEN(families); k++) {
        struct tiny t = tiny_new(families[k]);
        struct model_file *hf = open_good(tiny_folder(&t)), *gg = open_good(tiny_gguf_file(&t));
        bool llama = !strcmp(families[k], "llama");
        uint32_t hd = t.head_dim;
        ck_assert_int_eq(model_file_config(gg)->rope_pairing,
                         llama ? DK_ROPE_INTERLEAVED : DK_ROPE_HALVES);
        for (int role = MT_ATTN_NORM; role < MT_ROLE_COUNT; role++) {
            const struct model_tensor *a = model_file_tensor(hf, (enum model_tensor_role)role, 1);
            const struct model_tensor *b = model_file_tensor(gg, (enum model_tensor_role)role, 1);
            ck_assert_int_eq(a != NULL, b != NULL);
            if (!a)
                continue;
            size_t row = a->bytes / a->dims[0];
            bool moved = llama && (role == MT_Q || role == MT_K);
            for (uint32_t r = 0; r < a->dims[0]; r++) {
                uint32_t from = !moved ? r : r / hd * hd + (r % hd) % 2 * (hd / 2) + (r % hd) / 2;
                ck_assert_msg(!memcmp((const char *)a->data + from * row,
                                      (const char *)b->data + r * row, row),
                              "%s row %u", b->name, r);
            }
        }
        model_file_free(hf);
        model_file_free(gg);
    }
}
END_TEST

/* The same for the reference models: GGUF row 2i+j of a head is HF row j*hd/2+i. */
START_TEST(row_order_reference)
{
    struct model_file *hf = open_good(hf_path("a_llama_tied"));
    struct model_file *gg = open_good(gguf_golden("a_llama_tied.F32"));
    uint32_t hd = model_file_config(hf)->head_dim;
    const struct model_tensor *a = model_file_tensor(hf, MT_K, 1),
                              *b = model_file_tensor(gg, MT_K, 1);
    size_t row = a->bytes / a->dims[0];
    for (uint32_t r = 0; r < a->dims[0]; r++) {
        uint32_t from = r / hd * hd + (r % hd) % 2 * (hd / 2) + (r % hd) / 2;
        ck_assert(
            !memcmp((const char *)a->data + from * row, (const char *)b->data + r * row, row));
    }
    model_file_free(hf);
    model_file_free(gg);
}
END_TEST

/* ---- shapes (LOD-05) --------------------------------------------------------------------------- */

START_TEST(head_dim_given)
{
    struct tiny t = tiny_new("qwen3");
    struct model_file *f = open_good(tiny_folder(&t));
    ck_assert_uint_eq(model_file_config(f)->head_dim, 32);
    ck_assert_uint_eq(model_file_tensor(f, MT_Q, 0)->dims[0], 128);
    model_file_free(f);
    f = open_good(tiny_gguf_file(&t));
    ck_assert_uint_eq(model_file_config(f)->head_dim, 32);
    model_file_free(f);
}
END_TEST

START_TEST(head_dim_absent)
{
    struct tiny t = tiny_new("qwen3");
    t.head_dim = 16;
    t.config_less = "head_dim";
    struct model_file *f = open_good(tiny_folder(&t));
    ck_assert_uint_eq(model_file_config(f)->head_dim, 16);
    model_file_free(f);
    t.config_less = "attention.key_length";
    f = open_good(tiny_gguf_file(&t));
    ck_assert_uint_eq(model_file_config(f)->head_dim, 16);
    model_file_free(f);
}
END_TEST

START_TEST(head_dim_wrong)
{
    struct tiny t = tiny_new("qwen3");
    t.head_dim = 16;
    t.config_head_dim = 32;
    open_bad(tiny_folder(&t), MISMATCH, "\"model.layers.0.self_attn.q_proj.weight\"",
             "is [64, 64], the configuration wants [128, 64]");
    open_bad(tiny_gguf_file(&t), MISMATCH, "\"blk.0.attn_q.weight\"",
             "is [64, 64], the configuration wants [128, 64]");
}
END_TEST

START_TEST(tensor_set)
{
    static const char *const families[] = {"llama", "qwen2", "qwen3"};
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        struct tiny t = tiny_new(families[i]);
        t.tied = i != 0;
        model_file_free(open_good(tiny_folder(&t)));
        model_file_free(open_good(tiny_gguf_file(&t)));
        t.skip = "model.layers.1.mlp.down_proj.weight";
        open_bad(tiny_folder(&t), FORMAT, "\"model.layers.1.mlp.down_proj.weight\" [64, 48]",
                 "missing");
        t.skip = "blk.1.ffn_down.weight";
        open_bad(tiny_gguf_file(&t), FORMAT, "\"blk.1.ffn_down.weight\" [64, 48]", "missing");
        t.skip = "model.norm.weight";
        open_bad(tiny_folder(&t), FORMAT, "\"model.norm.weight\" [64]", "missing");
    }
    struct tiny t = tiny_new("qwen2");
    t.skip = "model.layers.0.self_attn.k_proj.bias";
    open_bad(tiny_folder(&t), FORMAT, "self_attn.k_proj.bias\" [64]", "missing");
    t = tiny_new("qwen3");
    t.skip = "blk.1.attn_k_norm.weight";
    open_bad(tiny_gguf_file(&t), FORMAT, "attn_k_norm.weight\" [32]", "missing");
    t = tiny_new("llama");
    t.tied = false;
    t.skip = "lm_head.weight";
    open_bad(tiny_folder(&t), FORMAT, "\"lm_head.weight\" [40, 64]", "missing");
    t.skip = "token_embd.weight";
    open_bad(tiny_gguf_file(&t), FORMAT, "\"token_embd.weight\"", "missing");
}
END_TEST

START_TEST(unknown_tensors)
{
    struct tiny t = tiny_new("llama");
    t.extra = "model.layers.0.self_attn.q_proj.bias";
    open_bad(tiny_folder(&t), UNSUPPORTED, t.extra, "no part of a llama model of 2 layers");
    t.extra = "blk.0.ffn_gate_inp.weight";
    open_bad(tiny_gguf_file(&t), UNSUPPORTED, t.extra, "no part of a llama model");
    t.extra = "model.layers.2.mlp.up_proj.weight";
    open_bad(tiny_folder(&t), UNSUPPORTED, t.extra, "of 2 layers");
    t = tiny_new("qwen3");
    t.extra = "rope_freqs.weight";
    open_bad(tiny_gguf_file(&t), UNSUPPORTED, t.extra, "no part of a qwen3 model");
    /* The two that carry nothing. */
    t = tiny_new("llama");
    t.extra = "model.layers.0.self_attn.rotary_emb.inv_freq";
    model_file_free(open_good(tiny_folder(&t)));
    t.extra = "lm_head.weight";
    model_file_free(open_good(tiny_folder(&t)));
    t = tiny_new("llama");
    t.head_dim = 128;
    t.extra = "rope_freqs.weight"; /* 64 divisors, some of them negative */
    open_bad(tiny_gguf_file(&t), FORMAT, "rope_freqs.weight", "above 0");
    t.head_dim = 32;
    open_bad(tiny_gguf_file(&t), MISMATCH, "rope_freqs.weight",
             "is [64], the configuration wants [16]");
}
END_TEST

START_TEST(dtypes)
{
    struct tiny t = tiny_new("qwen3");
    t.dtype = "BF16";
    struct model_file *f = open_good(tiny_folder(&t));
    ck_assert_int_eq(model_file_tensor(f, MT_Q, 0)->type, DK_BF16);
    ck_assert_int_eq(model_file_tensor(f, MT_Q_NORM, 0)->type, DK_F32);
    ck_assert_uint_eq(model_file_tensor(f, MT_Q_NORM, 0)->bytes, 128);
    model_file_free(f);
    t.dtype = "I16";
    open_bad(tiny_folder(&t), UNSUPPORTED, "\"model.embed_tokens.weight\"",
             "type I16 is not supported (supported: F32 F16 BF16)");
}
END_TEST

/* Weights behind a header of any length: copies are handed out where the file is not aligned. */
START_TEST(unaligned_data)
{
    struct tiny t = tiny_new("llama");
    struct model_file *good = open_good(tiny_folder(&t));
    for (unsigned blanks = 1; blanks < 4; blanks++) {
        struct tiny u = t;
        u.blanks = blanks;
        char *dir = mem_strdup(test_tmpdir());
        _cleanup_strbuf_ struct strbuf weights = {0};
        tiny_safetensors(&u, &weights);
        model_file_free(good);
        write_file(dir, "model.safetensors", weights.s, weights.len);
        struct model_file *f = open_good(dir);
        const struct model_tensor *q = model_file_tensor(f, MT_Q, 1);
        ck_assert_uint_eq((uintptr_t)q->data % 4, 0);
        struct model_file *gg = open_good(tiny_gguf_file(&t));
        const struct model_tensor *v = model_file_tensor(gg, MT_V, 1);
        ck_assert(!memcmp(model_file_tensor(f, MT_V, 1)->data, v->data, v->bytes));
        const struct model_tensor *norm = model_file_tensor(gg, MT_FINAL_NORM, 0);
        ck_assert(!memcmp(model_file_tensor(f, MT_FINAL_NORM, 0)->data, norm->data, norm->bytes));
        model_file_release(f, q); /* a copy: nothing happens */
        model_file_release(gg, v);
        model_file_free(gg);
        mem_free(dir);
        good = f;
    }
    model_file_free(good);
}
END_TEST

START_TEST(release)
{
    struct model_file *f = open_good(hf_path("c_qwen2"));
    for (int r = 0; r < MT_ROLE_COUNT; r++) {
        const struct model_tensor *t = model_file_tensor(f, (enum model_tensor_role)r, 1);
        if (!t)
            continue;
        void *before = mem_memdup(t->data, t->bytes);
        model_file_release(f, t);
        ck_assert(!memcmp(before, t->data, t->bytes));
        mem_free(before);
    }
    model_file_free(f);
}
END_TEST

/* ---- folders ----------------------------------------------------------------------------------- */

START_TEST(folder_files)
{
    struct tiny t = tiny_new("qwen3");
    size_t len;
    const char *dir = tiny_folder(&t);
    struct model_file *f = open_good(dir);
    ck_assert_ptr_null(model_file_tokenizer_json(f, &len)); /* none: the tokenizer complains */
    model_file_free(f);
    write_file(dir, "tokenizer_config.json", "{\"chat_template\": \"A\"}", 22);
    write_file(dir, "tokenizer.json", "{}", 2);
    f = open_good(dir);
    ck_assert_str_eq(model_file_chat_template(f), "A");
    ck_assert_ptr_nonnull(model_file_tokenizer_config_json(f, &len));
    ck_assert_uint_eq(len, 22);
    ck_assert(!memcmp(model_file_tokenizer_json(f, &len), "{}", 2));
    ck_assert_uint_eq(len, 2);
    model_file_free(f);
    write_file(dir, "chat_template.jinja", "B", 1);
    f = open_good(dir);
    ck_assert_str_eq(model_file_chat_template(f), "B");
    model_file_free(f);
    /* A trailing slash is no part of the name. */
    char slashes[256];
    snprintf(slashes, sizeof(slashes), "%s//", dir);
    f = open_good(slashes);
    ck_assert_str_eq(model_file_name(f), strrchr(dir, '/') + 1);
    model_file_free(f);
    /* A dangling link is a broken download, not an absent file. */
    char link_path[256];
    snprintf(link_path, sizeof(link_path), "%s/generation_config.json", dir);
    ck_assert_int_eq(symlink("gone", link_path), 0);
    open_bad(dir, DEDIT_E_NOT_FOUND, "generation_config.json", NULL);
}
END_TEST

START_TEST(wrong_paths)
{
    const char *dir = test_tmpdir();
    char path[256];
    open_bad(dir, DEDIT_E_NOT_FOUND, "has no config.json", dir);
    _cleanup_strbuf_ struct strbuf b = {0};
    struct tiny t = tiny_new("llama");
    tiny_config(&t, &b);
    write_file(dir, "config.json", b.s, b.len);
    open_bad(dir, DEDIT_E_NOT_FOUND, "neither model.safetensors nor model.safetensors.index.json",
             dir);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    open_bad(path, DEDIT_E_INVALID, "name the folder", path);
    open_bad("/nonexistent/model.gguf", DEDIT_E_NOT_FOUND, "/nonexistent", NULL);
    open_bad("", DEDIT_E_INVALID, "empty", NULL);
    open_bad(test_path("LICENSE"), FORMAT, "not a GGUF file", NULL);
}
END_TEST

/* A folder like c_qwen2 whose shards are links to the reference's. */
static const char *sharded(const char *index)
{
    static const char *const shards[] = {"model-00001-of-00003.safetensors",
                                         "model-00002-of-00003.safetensors",
                                         "model-00003-of-00003.safetensors", "config.json"};
    const char *dir = test_tmpdir();
    for (size_t i = 0; i < ARRAY_LEN(shards); i++) {
        char to[PATH_MAX], from[PATH_MAX], full[PATH_MAX];
        snprintf(from, sizeof(from), "%s/%s", hf_path("c_qwen2"), shards[i]);
        snprintf(to, sizeof(to), "%s/%s", dir, shards[i]);
        ck_assert_ptr_nonnull(realpath(from, full));
        (void)unlink(to);
        ck_assert_int_eq(symlink(full, to), 0);
    }
    write_file(dir, "model.safetensors.index.json", index, strlen(index));
    return dir;
}

START_TEST(shards)
{
    struct error err = {0};
    char path[PATH_MAX], *index;
    size_t len;
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", hf_path("c_qwen2"));
    ck_ok(file_read(path, 1 << 20, &index, &len, &err), &err);
    model_file_free(open_good(sharded(index)));
    static const char norm[] = "\"model.norm.weight\": \"model-0000";
    char *at = strstr(index, norm);
    ck_assert_ptr_nonnull(at);
    char *digit = at + strlen(norm), right = *digit;
    *digit = right == '1' ? '2' : '1';
    open_bad(sharded(index), MISMATCH, "\"model.norm.weight\"", "where the index says");
    *digit = '9';
    open_bad(sharded(index), DEDIT_E_NOT_FOUND, "model-00009-of-00003.safetensors", NULL);
    *digit = right;
    char first = at[1];
    at[1] = 'M';
    open_bad(sharded(index), MISMATCH, "\"Model.norm.weight\"", "not in");
    at[1] = first;
    /* A tensor that the index forgets: its entry becomes another's duplicate is refused by JSON, so
     * it is cut out whole. */
    char *line = at, *end = strchr(at, '\n');
    while (line[-1] != '\n')
        line--;
    bool last = end[-1] != ',';
    char *cut = mem_strdup(index);
    size_t a = (size_t)(line - index), n = (size_t)(end + 1 - line);
    if (last) { /* also the comma before it */
        a -= 2;
        n += 1;
    }
    memmove(cut + a, cut + a + n, strlen(cut + a + n) + 1);
    open_bad(sharded(cut), MISMATCH, "\"model.norm.weight\"", "not in the index");
    mem_free(cut);
    mem_free(index);
    open_bad(sharded("{\"weight_map\": {}}"), FORMAT, "\"weight_map\" is missing or empty", NULL);
    open_bad(sharded("{}"), FORMAT, "\"weight_map\" is missing or empty", NULL);
    open_bad(sharded("{\"weight_map\": 1}"), FORMAT, "\"weight_map\"", NULL);
    open_bad(sharded("{\"weight_map\": {\"a\": \"../x.safetensors\"}}"), FORMAT, "\"a\"",
             "of the folder");
    open_bad(sharded("{\"weight_map\": {\"a\": \"x.bin\"}}"), FORMAT, "\"a\"", ".safetensors");
    open_bad(sharded("{\"weight_map\": {\"a\": 1}}"), FORMAT, "\"a\"", NULL);
    open_bad(sharded("{\"weight_map\": {\"a\": \"/tmp/x.safetensors\"}}"), FORMAT, "\"a\"", NULL);
}
END_TEST

/* ---- GGUF metadata ----------------------------------------------------------------------------- */

/* A tiny GGUF with one more key, which add() encodes. */
static void gguf_key(const char *family, int code, const char *word1, const char *word2,
                     void (*add)(struct strbuf *))
{
    struct tiny t = tiny_new(family);
    add(&t.kv_more);
    t.kv_more_n = 1;
    if (code == 0)
        model_file_free(open_good(tiny_gguf_file(&t)));
    else
        open_bad(tiny_gguf_file(&t), code, word1, word2);
    strbuf_done(&t.kv_more);
}

#define KEY(NAME, CALL)                                                                            \
    static void NAME(struct strbuf *b)                                                             \
    {                                                                                              \
        CALL;                                                                                      \
    }
KEY(key_experts, gg_kv_u32(b, "llama.expert_count", 8))
KEY(key_no_experts, gg_kv_u32(b, "llama.expert_count", 0))
KEY(key_window, gg_kv_u32(b, "llama.attention.sliding_window", 64))
KEY(key_wide_window, gg_kv_u32(b, "llama.attention.sliding_window", 128))
KEY(key_yarn, gg_kv_str(b, "llama.rope.scaling.type", "yarn"))
KEY(key_none, gg_kv_str(b, "llama.rope.scaling.type", "none"))
KEY(key_rotary, gg_kv_u32(b, "llama.rope.dimension_count", 16))
KEY(key_value_length, gg_kv_u32(b, "llama.attention.value_length", 16))
KEY(key_vocab, gg_kv_u32(b, "llama.vocab_size", 41))
KEY(key_right_vocab, gg_kv_u32(b, "llama.vocab_size", 40))
KEY(key_causal, gg_kv_bool(b, "llama.attention.causal", 0))
KEY(key_layout, gg_kv_str(b, "llama.tensor_data_layout", "Meta AI original pth"))
KEY(key_adapter, gg_kv_str(b, "general.type", "adapter"))
KEY(key_split, gg_kv_u32(b, "split.count", 3))
KEY(key_eos, gg_kv_u32(b, "tokenizer.ggml.eos_token_id", 40))
KEY(key_bos, gg_kv_u32(b, "tokenizer.ggml.bos_token_id", 40))
KEY(key_add_bos, gg_kv_bool(b, "tokenizer.ggml.add_bos_token", 1))
KEY(key_logit_scale, gg_kv_f32(b, "llama.logit_scale", 0.5f))
KEY(key_name_type, gg_kv_u32(b, "general.name", 1))
KEY(key_pooling, gg_kv_u32(b, "qwen3.pooling_type", 3))
KEY(key_theta_text, gg_kv_str(b, "llama.rope.freq_base", "1e4"))

START_TEST(gguf_keys)
{
    static const char only[] = "supported: dense llama, qwen2, qwen3";
    gguf_key("llama", UNSUPPORTED, "\"llama.expert_count\"", only, key_experts);
    gguf_key("llama", 0, NULL, NULL, key_no_experts);
    gguf_key("llama", UNSUPPORTED, "\"llama.attention.sliding_window\"", "full attention",
             key_window);
    gguf_key("llama", 0, NULL, NULL, key_wide_window);
    gguf_key("llama", UNSUPPORTED, "\"llama.rope.scaling.type\": \"yarn\"", "none, linear",
             key_yarn);
    gguf_key("llama", 0, NULL, NULL, key_none);
    gguf_key("llama", UNSUPPORTED, "\"llama.rope.dimension_count\" is 16", "partial", key_rotary);
    gguf_key("llama", UNSUPPORTED, "\"llama.attention.value_length\" is 16", NULL,
             key_value_length);
    gguf_key("llama", MISMATCH, "\"llama.vocab_size\" is 41", "has 40 rows", key_vocab);
    gguf_key("llama", 0, NULL, NULL, key_right_vocab);
    gguf_key("llama", UNSUPPORTED, "\"llama.attention.causal\"", "causal models", key_causal);
    gguf_key("llama", UNSUPPORTED, "\"llama.tensor_data_layout\"", "reference", key_layout);
    gguf_key("llama", UNSUPPORTED, "general.type \"adapter\"", only, key_adapter);
    gguf_key("llama", UNSUPPORTED, "one of 3 parts", "merge", key_split);
    gguf_key("llama", FORMAT, "tokenizer.ggml.eos_token_id", "id 40", key_eos);
    gguf_key("llama", FORMAT, "tokenizer.ggml.bos_token_id", "id 40", key_bos);
    gguf_key("llama", FORMAT, "tokenizer.ggml.add_bos_token", "missing", key_add_bos);
    gguf_key("llama", UNSUPPORTED, "\"llama.logit_scale\"", only, key_logit_scale);
    gguf_key("llama", FORMAT, "\"general.name\" must be a string, is u32", NULL, key_name_type);
    gguf_key("qwen3", UNSUPPORTED, "\"qwen3.pooling_type\"", "embedding models", key_pooling);
    gguf_key("llama", FORMAT, "\"llama.rope.freq_base\" must be a number", NULL, key_theta_text);
}
END_TEST

START_TEST(gguf_missing_keys)
{
    static const char *const keys[] = {"block_count", "embedding_length", "attention.head_count",
                                       "feed_forward_length", "context_length"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct tiny t = tiny_new("qwen2");
        char word[96];
        t.config_less = keys[i];
        snprintf(word, sizeof(word), "\"qwen2.%s\" is missing", keys[i]);
        open_bad(tiny_gguf_file(&t), FORMAT, word, "tiny.gguf");
    }
    struct tiny t = tiny_new("qwen2moe");
    open_bad(tiny_gguf_file(&t), UNSUPPORTED, "\"qwen2moe\" (a mixture-of-experts model)",
             "supported: dense llama, qwen2, qwen3");
    t = tiny_new("clip");
    open_bad(tiny_gguf_file(&t), UNSUPPORTED, "mmproj", NULL);
    t = tiny_new("llama");
    t.config_less = "attention.head_count_kv";
    t.kv_heads = t.heads;
    struct model_file *f = open_good(tiny_gguf_file(&t));
    ck_assert_uint_eq(model_file_config(f)->n_kv_heads, 4);
    ck_assert_str_eq(model_file_name(f), "tiny");
    ck_assert_uint_eq(model_file_config(f)->n_eos_ids, 0);
    model_file_free(f);
}
END_TEST

START_TEST(gguf_tokens)
{
    struct tiny t = tiny_new("llama");
    gg_kv_u32(&t.kv_more, "tokenizer.ggml.eos_token_id", 7);
    gg_kv_u32(&t.kv_more, "tokenizer.ggml.eot_token_id", 9);
    gg_kv_u32(&t.kv_more, "tokenizer.ggml.eom_token_id", 7);
    gg_kv_u32(&t.kv_more, "tokenizer.ggml.bos_token_id", 1);
    gg_kv_str(&t.kv_more, "tokenizer.ggml.pre", "llama-bpe");
    gg_kv_str(&t.kv_more, "general.name", "N");
    gg_kv_f32(&t.kv_more, "llama.rope.scaling.factor", 4.0f);
    gg_kv_f32(&t.kv_more, "llama.rope.freq_base", 5e5f);
    t.kv_more_n = 8;
    struct model_file *f = open_good(tiny_gguf_file(&t));
    const struct model_config *c = model_file_config(f);
    ck_assert_uint_eq(c->n_eos_ids, 2);
    ck_assert_uint_eq(c->eos_ids[1], 9);
    ck_assert(c->has_bos && c->add_bos && c->bos_id == 1);
    ck_assert_int_eq(c->rope_scaling, ROPE_SCALING_LINEAR);
    ck_assert_double_eq(c->rope_factor, 4);
    ck_assert_double_eq(c->rope_theta, 5e5);
    ck_assert_str_eq(model_file_name(f), "N");
    model_file_free(f);
    strbuf_done(&t.kv_more);
    /* More tokens than rows would index past the embedding; fewer are padding. */
    for (unsigned n = 39; n <= 41; n++) {
        t = tiny_new("llama");
        gg_key(&t.kv_more, "tokenizer.ggml.tokens", GGUF_ARRAY);
        put_u32(&t.kv_more, GGUF_STRING);
        put_u64(&t.kv_more, n);
        for (unsigned i = 0; i < n; i++)
            gg_str(&t.kv_more, "x");
        t.kv_more_n = 1;
        if (n <= 40)
            model_file_free(open_good(tiny_gguf_file(&t)));
        else
            open_bad(tiny_gguf_file(&t), MISMATCH, "has 41 tokens", "has 40 rows");
        strbuf_done(&t.kv_more);
    }
}
END_TEST

/* ---- damaged files ----------------------------------------------------------------------------- */

static void cut_one_byte(const char *from, const char *name)
{
    struct error err = {0};
    char *data;
    size_t len;
    ck_ok(file_read(from, 1 << 22, &data, &len, &err), &err);
    write_file(test_tmpdir(), name, data, len - 1);
    mem_free(data);
}

/* LOD-03: every reference model cut by one byte names the last tensor, its end and the size. */
START_TEST(cut_by_one_byte)
{
    for (size_t i = 0; i < ARRAY_LEN(gguf_models); i++) {
        char path[256];
        struct stat st;
        cut_one_byte(gguf_golden(gguf_models[i]), "cut.gguf");
        snprintf(path, sizeof(path), "%s/cut.gguf", test_tmpdir());
        ck_assert_int_eq(stat(path, &st), 0);
        char word[64];
        snprintf(word, sizeof(word), "the file has %lld bytes", (long long)st.st_size);
        open_bad(path, FORMAT, word, "tensor \"");
    }
    for (size_t i = 0; i < ARRAY_LEN(hf_models); i++) {
        char from[PATH_MAX];
        bool sharded_one = !strcmp(hf_models[i], "c_qwen2");
        const char *file = sharded_one ? "model-00003-of-00003.safetensors" : "model.safetensors";
        if (sharded_one) {
            struct error err = {0};
            char *index;
            size_t len;
            char link_path[256];
            snprintf(from, sizeof(from), "%s/model.safetensors.index.json", hf_path(hf_models[i]));
            ck_ok(file_read(from, 1 << 20, &index, &len, &err), &err);
            sharded(index);
            mem_free(index);
            snprintf(link_path, sizeof(link_path), "%s/%s", test_tmpdir(), file);
            ck_assert_int_eq(unlink(link_path), 0);
            snprintf(link_path, sizeof(link_path), "%s/model.safetensors", test_tmpdir());
            (void)unlink(link_path);
        } else {
            char link_path[256];
            snprintf(link_path, sizeof(link_path), "%s/config.json", test_tmpdir());
            (void)unlink(link_path);
            struct error err = {0};
            char *config;
            size_t len;
            snprintf(from, sizeof(from), "%s/config.json", hf_path(hf_models[i]));
            ck_ok(file_read(from, 1 << 20, &config, &len, &err), &err);
            write_file(test_tmpdir(), "config.json", config, len);
            mem_free(config);
        }
        snprintf(from, sizeof(from), "%s/%s", hf_path(hf_models[i]), file);
        cut_one_byte(from, file);
        open_bad(test_tmpdir(), FORMAT, "the file has", "tensor \"");
    }
}
END_TEST

/* Every bit of a whole tiny model's header and of its config turned over: never a crash, and what
 * still opens keeps its promises (a sanitizer watches the reads). */
START_TEST(every_bit)
{
    _cleanup_strbuf_ struct strbuf b = {0}, config = {0};
    struct tiny t = tiny_new("qwen2");
    t.layers = 1;
    t.hidden = t.ffn = 8;
    t.head_dim = 2;
    t.vocab = 4;
    tiny_gguf(&t, &b);
    size_t opened = 0;
    for (size_t bit = 0; bit < (b.len - 1024) * 8; bit++) {
        struct error err = {0};
        struct model_file *f = NULL;
        b.s[bit / 8] = (char)(b.s[bit / 8] ^ (1 << bit % 8));
        int r = model_parse_gguf(b.s, b.len, "flip.gguf", &f, &err);
        ck_assert_msg(r == 0 || (r == err.code && strstr(err.msg, "flip.gguf")), "%s", err.msg);
        opened += r == 0;
        model_file_free(f);
        b.s[bit / 8] = (char)(b.s[bit / 8] ^ (1 << bit % 8));
    }
    ck_assert_uint_gt(opened, 0);
    tiny_config(&t, &config);
    for (size_t bit = 0; bit < config.len * 8; bit++) {
        struct error err = {0};
        struct model_config c;
        config.s[bit / 8] = (char)(config.s[bit / 8] ^ (1 << bit % 8));
        struct hf_texts texts = {.config = {config.s, config.len, "config.json"}};
        int r = hf_config_parse(&texts, &c, &err);
        ck_assert_msg(r == 0 || (r == err.code && strstr(err.msg, "config.json")), "%s", err.msg);
        config.s[bit / 8] = (char)(config.s[bit / 8] ^ (1 << bit % 8));
    }
}
END_TEST

/* ---- random models ----------------------------------------------------------------------------- */

START_TEST(random_models)
{
    struct model_file *like = open_good(gguf_golden("k_qwen3.MIX"));
    struct model_config c = *model_file_config(like);
    model_file_free(like);
    for (int type = 0; type < DK_TYPE_COUNT; type++) {
        for (int tied = 0; tied < 2; tied++) {
            struct error err = {0};
            struct model_file *f = NULL, *g = NULL;
            c.tied = tied;
            ck_ok(model_file_random("random", &c, (enum dk_type)type, 5, &f, &err), &err);
            ck_ok(model_file_random("random", &c, (enum dk_type)type, 5, &g, &err), &err);
            check_promises(f);
            const struct model_tensor *t = model_file_tensor(f, MT_DOWN, 0);
            ck_assert_int_eq((int)t->type, type);
            ck_assert(!memcmp(t->data, model_file_tensor(g, MT_DOWN, 0)->data, t->bytes));
            const struct dk_type_info *info = dk_type_info(t->type);
            size_t n = t->bytes / info->block_bytes;
            float *values = mem_array(n * info->block_elems, sizeof(float));
            double sum = 0, top = 0;
            dk_dequant(t->type, t->data, n, values);
            for (size_t i = 0; i < n * info->block_elems; i++) {
                double v = (double)values[i];
                sum += v * v;
                top = v > top ? v : -v > top ? -v : top;
            }
            /* Small, finite and not all the same. */
            ck_assert_msg(top < 0.5 && sum > 1e-6 * (double)n, "%s: top %g sum %g", info->name, top,
                          sum);
            mem_free(values);
            model_file_release(f, t);
            model_file_free(f);
            model_file_free(g);
        }
    }
    struct error err = {0};
    struct model_file *f = NULL;
    c.ffn = 160;
    ck_fails(model_file_random("random", &c, DK_Q4_K, 1, &f, &err), UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "rows of 160 are not whole blocks of Q4_K"));
    c.n_layers = 0;
    ck_fails(model_file_random("random", &c, DK_F32, 1, &f, &err), INVALID, &err);
}
END_TEST

#define TOKENIZER                                                                                  \
    "{\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\"}, {\"id\": 6, \"content\": \"</s>\"}],"  \
    "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"},"     \
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}},"       \
    "{\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [5]}}}]},"          \
    "\"model\": {\"vocab\": {\"a\": 1, \"<end>\": 7}}}"

/* ---- memory ------------------------------------------------------------------------------------ */

static void torture(const char *path)
{
    struct test_oom oom = {0};
    size_t runs = 0;
    while (test_oom_next(&oom)) {
        struct error err = {0};
        struct model_file *f = NULL;
        size_t live = mem_live_count();
        int r = model_file_open(path, &f, &err);
        ck_assert_msg(r == (oom.failed ? DEDIT_E_NOMEM : 0), "%s, allocation %zu: %s (%s)", path,
                      runs, error_name(r), err.msg);
        model_file_free(f);
        ck_assert_uint_eq(mem_live_count(), live);
        runs++;
    }
    ck_assert_uint_gt(runs, 15);
}

START_TEST(allocation_failures)
{
    struct tiny t = tiny_new("qwen3");
    t.dtype = "BF16"; /* vectors are converted */
    const char *dir = tiny_folder(&t);
    static const char config[] = "{\"eos_token\": \"</s>\", \"bos_token\": \"<s>\","
                                 " \"chat_template\": \"T\"}";
    write_file(dir, "tokenizer_config.json", config, sizeof(config) - 1);
    write_file(dir, "tokenizer.json", TOKENIZER, sizeof(TOKENIZER) - 1);
    write_file(dir, "generation_config.json", "{\"eos_token_id\": [1]}", 21);
    torture(dir);
    torture(hf_path("c_qwen2"));
    torture(gguf_golden("k_qwen3.MIX"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model-file");
    TCase *t = test_case(s, "good");
    tcase_add_test(t, reference_folders);
    tcase_add_test(t, reference_ggufs);
    tcase_add_test(t, configurations);
    tcase_add_test(t, row_order);
    tcase_add_test(t, row_order_reference);
    t = test_case(s, "tensors");
    tcase_add_test(t, head_dim_given);
    tcase_add_test(t, head_dim_absent);
    tcase_add_test(t, head_dim_wrong);
    tcase_add_test(t, tensor_set);
    tcase_add_test(t, unknown_tensors);
    tcase_add_test(t, dtypes);
    tcase_add_test(t, unaligned_data);
    tcase_add_test(t, release);
    t = test_case(s, "folder");
    tcase_add_test(t, folder_files);
    tcase_add_test(t, wrong_paths);
    tcase_add_test(t, shards);
    t = test_case(s, "gguf");
    tcase_add_test(t, gguf_keys);
    tcase_add_test(t, gguf_missing_keys);
    tcase_add_test(t, gguf_tokens);
    t = test_case(s, "damage");
    tcase_add_test(t, cut_by_one_byte);
    tcase_add_test(t, every_bit);
    t = test_case(s, "random");
    tcase_add_test(t, random_models);
    t = test_case(s, "memory");
    tcase_add_test(t, allocation_failures);
    return test_main(s);
}
