/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafter files in both forms: what is read, default taps, borrowed and own matrices, and known-faults
 * row LOD-07: every inconsistency of a drafter's configuration is refused by name.
 */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/drafter_file.h"
#include "engine/model_file_internal.h"
#include "tests/unit/draftergen.h"
#include "tests/unit/modelgen.h"
#include "tests/unit/util.h"

static struct model_config target_of(uint32_t layers)
{
    return (struct model_config){
        .family = MODEL_QWEN3, .n_layers = layers, .hidden = 64, .vocab_size = 512};
}

static struct model_file *open_hf(const struct gen_drafter *g, const struct model_config *target,
                                  int *ret, struct error *err)
{
    struct model_file *f = NULL;
    char dir[] = "/tmp/dedit-drafter-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(g, dir);
    *ret = drafter_file_open(dir, target, &f, err);
    gen_drafter_remove(g, dir);
    return f;
}

static void good(const struct gen_drafter *g, const struct model_config *target,
                 struct drafter_config *ret)
{
    struct error err = {0};
    int r;
    struct model_file *f = open_hf(g, target, &r, &err);
    ck_ok(r, &err);
    const struct model_config *c = model_file_config(f);
    ck_assert_ptr_nonnull(c->drafter);
    *ret = *c->drafter;
    ck_assert_uint_eq(c->n_layers, g->layers);
    ck_assert_uint_eq(c->vocab_size, 512);
    ck_assert(!c->tied && c->qk_norm && !c->qkv_bias && c->rope_pairing == DK_ROPE_HALVES);
    ck_assert_int_eq(model_file_tensor(f, MT_EMBED, 0) != NULL, g->own_embed);
    ck_assert_int_eq(model_file_tensor(f, MT_HEAD, 0) != NULL, g->own_head);
    const struct model_tensor *fc = model_file_tensor(f, MT_FC, 0);
    ck_assert_uint_eq(fc->dims[0], g->hidden);
    ck_assert_uint_eq(fc->dims[1], (uint64_t)ret->n_taps * g->target_hidden);
    ck_assert_ptr_nonnull(model_file_tensor(f, MT_HIDDEN_NORM, 0));
    if (ret->target_ids) {
        for (uint32_t i = 0; i < ret->draft_vocab; i++)
            ck_assert_uint_eq(ret->target_ids[i], i * 512 / ret->draft_vocab);
        ret->target_ids = NULL; /* goes with the file */
    }
    model_file_free(f);
}

static void bad_code(const struct gen_drafter *g, uint32_t target_layers, int code,
                     const char *word, const char *word2)
{
    struct model_config target = target_of(target_layers);
    struct error err = {0};
    int r;
    struct model_file *f = open_hf(g, &target, &r, &err);
    model_file_free(f);
    ck_assert_msg(r == code, "%s: %s (%s), wanted %s", word, error_name(r), err.msg,
                  error_name(code));
    ck_assert_msg(strstr(err.msg, "/tmp/dedit-drafter"), "no file: %s", err.msg);
    ck_assert_msg(strstr(err.msg, word), "no %s: %s", word, err.msg);
    ck_assert_msg(!word2 || strstr(err.msg, word2), "no %s: %s", word2, err.msg);
}
#define bad(g, layers, CODE, ...) bad_code(g, layers, DEDIT_E_##CODE, __VA_ARGS__)

/* ---- good files ------------------------------------------------------------------------------- */

START_TEST(forms)
{
    struct model_config target = target_of(6);
    for (int i = 0; i < 12; i++) {
        struct gen_drafter g = gen_drafter_new(1);
        struct drafter_config d;
        g.prefix = i % 2 ? "model." : "";
        g.shards = i % 3;
        g.own_embed = i & 4;
        g.own_head = i & 8;
        if (i > 5) {
            g.d2t = i % 2 ? "I32" : "I64";
            g.draft_vocab = 100;
        }
        good(&g, &target, &d);
        ck_assert_uint_eq(d.block_size, 8);
        ck_assert_uint_eq(d.mask_token, 259);
        ck_assert_uint_eq(d.n_taps, 3);
        ck_assert_mem_eq(d.tap_layers, g.taps, sizeof(uint32_t) * 3);
        ck_assert_uint_eq(d.draft_vocab, i > 5 ? 100 : 512);
        ck_assert_int_eq(d.causal, DRAFTER_BY_LAYER);
        ck_assert(d.sliding == 0);
    }
}
END_TEST

/* The size of a reduced vocabulary may be said by the table alone. */
START_TEST(draft_vocabulary_from_the_table)
{
    struct model_config target = target_of(6);
    struct gen_drafter g = gen_drafter_new(1);
    struct drafter_config d;
    g.d2t = "I32";
    g.draft_vocab = 64;
    g.less = "draft_vocab_size";
    good(&g, &target, &d);
    ck_assert_uint_eq(d.draft_vocab, 64);
}
END_TEST

/* An own width needs own matrices; the taps keep the target's. */
START_TEST(another_width)
{
    struct model_config target = target_of(6);
    struct gen_drafter g = gen_drafter_new(1);
    struct drafter_config d;
    g.hidden = 96;
    g.own_embed = g.own_head = true;
    good(&g, &target, &d);
    ck_assert_uint_eq(d.target_hidden, 64);
    g.own_head = false;
    bad(&g, 6, MISMATCH, "hidden_size is 96", "target's is 64");
}
END_TEST

START_TEST(attention_kinds)
{
    struct model_config target = target_of(6);
    struct gen_drafter g = gen_drafter_new(1);
    struct drafter_config d;
    g.sliding = 2;
    g.window = 32;
    good(&g, &target, &d);
    ck_assert(d.sliding == 2 && d.window == 32 && d.causal == DRAFTER_BY_LAYER);
    g.less = "sliding_window";
    bad(&g, 6, FORMAT, "\"sliding_window\" is missing", NULL);
    g.less = NULL;
    g.window = 7;
    bad(&g, 6, UNSUPPORTED, "\"sliding_window\"", "block of 8");
    g = gen_drafter_new(1);
    g.more = ", \"layer_types\": [\"full_attention\", \"chunked_attention\"]";
    g.less = "layer_types";
    bad(&g, 6, UNSUPPORTED, "chunked_attention", "layer_types");
    g.more = ", \"layer_types\": [\"full_attention\"]";
    bad(&g, 6, FORMAT, "layer_types", "num_hidden_layers is 2");
    g.more = ", \"use_sliding_window\": true, \"sliding_window\": 64";
    bad(&g, 6, FORMAT, "use_sliding_window", "layer_types");
    g.less = "dflash_config";
    g.more = ", \"dflash_config\": {\"mask_token_id\": 3, \"target_layer_ids\": [1, 2, 4], "
             "\"causal\": true}";
    good(&g, &target, &d);
    ck_assert_int_eq(d.causal, DRAFTER_CAUSAL);
    g.more = ", \"dflash_config\": {\"mask_token_id\": 3, \"target_layer_ids\": [1, 2, 4], "
             "\"causal\": false}";
    good(&g, &target, &d);
    ck_assert_int_eq(d.causal, DRAFTER_BIDIRECTIONAL);
}
END_TEST

/* As the authors' program spreads them, halves to the even layer. */
START_TEST(default_taps)
{
    static const struct {
        uint32_t target, n, taps[8];
    } want[] = {
        {36, 5, {1, 9, 17, 25, 33}},
        {30, 5, {1, 8, 14, 20, 27}}, /* 7.5 and 20.5 */
        {28, 5, {1, 7, 13, 19, 25}},
        {48, 8, {1, 7, 14, 20, 26, 32, 39, 45}},
        {24, 1, {12}},
        {6, 2, {1, 3}},
        {5, 2, {1, 2}},
    };
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        struct model_config target = target_of(want[i].target);
        struct gen_drafter g = gen_drafter_new(1);
        struct drafter_config d;
        g.layers = g.n_taps = want[i].n;
        g.target_layers = want[i].target;
        g.less = "target_layer_ids";
        good(&g, &target, &d);
        ck_assert_uint_eq(d.n_taps, want[i].n);
        for (uint32_t k = 0; k < d.n_taps; k++)
            ck_assert_uint_eq(d.tap_layers[k], want[i].taps[k]);
    }
}
END_TEST

START_TEST(gguf_form)
{
    struct model_config target = target_of(6);
    for (int i = 0; i < 6; i++) {
        struct gen_drafter g = gen_drafter_new(1);
        _cleanup_strbuf_ struct strbuf b = {0};
        struct model_file *f = NULL;
        struct error err = {0};
        g.own_embed = i & 1;
        g.own_head = i & 2;
        if (i > 2) {
            g.d2t = i % 2 ? "I32" : "I64";
            g.draft_vocab = 100;
            g.sliding = 1;
            g.window = 16;
        }
        gen_drafter_gguf(&g, &b);
        ck_ok(drafter_parse_gguf(b.s, b.len, "d.gguf", &target, &f, &err), &err);
        const struct model_config *c = model_file_config(f);
        const struct drafter_config *d = c->drafter;
        ck_assert_uint_eq(c->n_layers, 2);
        ck_assert_uint_eq(d->n_taps, 3);
        ck_assert_mem_eq(d->tap_layers, g.taps, sizeof(uint32_t) * 3);
        ck_assert_uint_eq(d->mask_token, 259);
        ck_assert_uint_eq(d->block_size, 8);
        ck_assert_uint_eq(d->draft_vocab, i > 2 ? 100 : 512);
        ck_assert_int_eq(d->target_ids != NULL, i > 2);
        ck_assert(d->sliding == (i > 2) && d->window == (i > 2 ? 16u : 0u));
        ck_assert_int_eq(d->causal, DRAFTER_BY_LAYER);
        ck_assert_int_eq(model_file_tensor(f, MT_HEAD, 0) != NULL, g.own_head);
        model_file_free(f);
    }
}
END_TEST

/* ---- LOD-07 ----------------------------------------------------------------------------------- */

START_TEST(lod_07)
{
    struct model_config two = target_of(2);
    struct gen_drafter g = gen_drafter_new(1);
    struct drafter_config d;
    /* (a) no taps, and none can be spread over a target of two layers. */
    g.target_layers = 2;
    g.n_taps = 2;
    g.taps[0] = 0;
    g.taps[1] = 1;
    g.less = "target_layer_ids";
    bad(&g, 2, FORMAT, "target_layer_ids", NULL);
    /* (a) default taps that fc does not fit. */
    g = gen_drafter_new(1);
    g.less = "target_layer_ids";
    bad(&g, 6, MISMATCH, "target_layer_ids", "fc.weight");
    /* (b) a layer that the target does not have. */
    g = gen_drafter_new(1);
    g.target_layers = 2;
    g.n_taps = 2;
    g.taps[0] = 0;
    g.taps[1] = 2;
    bad(&g, 2, MISMATCH, "\"target_layer_ids\"[1] is 2", "layers 0 to 1");
    /* (c) the last layer is one like any other. */
    g.taps[1] = 1;
    good(&g, &two, &d);
    ck_assert_uint_eq(d.tap_layers[1], 1);
    /* (d) a number of taps that fc does not fit. */
    g.fc_width = 3 * 64;
    bad(&g, 2, MISMATCH, "target_layer_ids", "fc.weight");
    /* (e) no mask token; never the padding token instead. */
    g = gen_drafter_new(1);
    g.less = "mask_token_id";
    g.more = ", \"pad_token_id\": 3";
    bad(&g, 6, FORMAT, "mask_token_id", "missing");
    /* (f) a mask token without a row. */
    g = gen_drafter_new(1);
    g.mask = 512;
    bad(&g, 6, FORMAT, "\"mask_token_id\" is 512", "0 to 511");
}
END_TEST

START_TEST(refused_by_name)
{
    struct gen_drafter g = gen_drafter_new(1);
    g.target_layers = 7;
    bad(&g, 6, MISMATCH, "\"num_target_layers\" is 7", "has 6");
    g = gen_drafter_new(1);
    g.vocab = 640;
    bad(&g, 6, MISMATCH, "\"vocab_size\" is 640", "512");
    g = gen_drafter_new(1);
    g.hidden = g.target_hidden = 96;
    bad(&g, 6, MISMATCH, "96", "64");
    g = gen_drafter_new(1);
    g.less = "block_size";
    bad(&g, 6, FORMAT, "\"block_size\" is missing", NULL);
    g = gen_drafter_new(1);
    g.block = 1;
    bad(&g, 6, FORMAT, "block_size", NULL);
    g = gen_drafter_new(1);
    g.taps[1] = 1;
    bad(&g, 6, UNSUPPORTED, "target_layer_ids", "ascend");
    g = gen_drafter_new(1);
    g.less = "architectures";
    bad(&g, 6, FORMAT, "architectures", NULL);
    g.more = ", \"architectures\": [\"Qwen3DSparkModel\"]";
    bad(&g, 6, UNSUPPORTED, "Qwen3DSparkModel", "DFlashDraftModel");
    g = gen_drafter_new(1);
    g.more = ", \"sample_from_anchor\": true";
    bad(&g, 6, UNSUPPORTED, "sample_from_anchor", NULL);
    g = gen_drafter_new(1);
    g.less = "dflash_config";
    g.more = ", \"dflash_config\": {\"mask_token_id\": 3, \"projector_type\": \"domino\", "
             "\"target_layer_ids\": [1, 2, 4]}";
    bad(&g, 6, UNSUPPORTED, "projector_type", "domino");
    g.more = ", \"dflash_config\": {\"mask_token_id\": 3, \"target_layer_ids\": [1, 2, \"4\"]}";
    bad(&g, 6, FORMAT, "target_layer_ids", NULL);
    g.more = ", \"dflash_config\": {\"mask_token_id\": 3, \"target_layer_ids\": []}";
    bad(&g, 6, FORMAT, "target_layer_ids", NULL);
    g = gen_drafter_new(1);
    g.less = "model_type";
    g.more = ", \"model_type\": \"llama\"";
    bad(&g, 6, UNSUPPORTED, "llama", "qwen3");
    g = gen_drafter_new(1);
    g.more = ", \"speculators_model_type\": \"dflash\"";
    bad(&g, 6, UNSUPPORTED, "speculators_model_type", NULL);
    g = gen_drafter_new(1);
    g.layers = 65;
    g.less = "layer_types";
    bad(&g, 6, LIMIT, "num_hidden_layers", "64");
}
END_TEST

START_TEST(tensors_refused)
{
    struct gen_drafter g = gen_drafter_new(1);
    g.skip = "hidden_norm.weight";
    bad(&g, 6, FORMAT, "hidden_norm.weight", "missing");
    g = gen_drafter_new(1);
    g.skip = "fc.weight";
    bad(&g, 6, FORMAT, "fc.weight", "missing");
    g = gen_drafter_new(1);
    g.skip = "layers.1.self_attn.k_norm.weight";
    bad(&g, 6, FORMAT, "layers.1.self_attn.k_norm.weight", "missing");
    g = gen_drafter_new(1);
    g.extra = "markov_head.markov_w1.weight";
    bad(&g, 6, UNSUPPORTED, "markov_w1", "DFlash");
    g = gen_drafter_new(1);
    g.draft_vocab = 100;
    bad(&g, 6, FORMAT, "d2t", "draft_vocab_size 100");
    g.d2t = "I32";
    g.d2t_shift = 1000;
    bad(&g, 6, FORMAT, "d2t", "below 512");
    g.d2t_shift = -600;
    bad(&g, 6, FORMAT, "d2t", NULL);
    g.d2t_shift = -2; /* the last row becomes a token that an earlier one has */
    g.draft_vocab = 256;
    bad(&g, 6, FORMAT, "two rows", NULL);
    g = gen_drafter_new(1);
    g.d2t = "I32";
    g.draft_vocab = 100;
    g.less = "draft_vocab_size";
    g.more = ", \"draft_vocab_size\": 99";
    bad(&g, 6, MISMATCH, "d2t", "99");
    g.more = ", \"draft_vocab_size\": 1000";
    bad(&g, 6, FORMAT, "draft_vocab_size", "512");
}
END_TEST

START_TEST(gguf_refused)
{
    static const struct {
        const char *less, *word;
    } cases[] = {
        {"dflash.block_size", "dflash.block_size"},
        {"tokenizer.ggml.mask_token_id", "mask_token_id"},
        {"dflash.target_layers", "target_layer_ids"},
        {"dflash.block_count", "dflash.block_count"},
        {"dflash.attention.sliding_window_pattern", "sliding_window_pattern"},
    };
    struct model_config target = target_of(6);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct gen_drafter g = gen_drafter_new(1);
        _cleanup_strbuf_ struct strbuf b = {0};
        struct model_file *f = NULL;
        struct error err = {0};
        g.less = cases[i].less;
        g.window = 16;
        g.sliding = 1;
        gen_drafter_gguf(&g, &b);
        int r = drafter_parse_gguf(b.s, b.len, "d.gguf", &target, &f, &err);
        ck_assert_msg(r < 0, "%s: taken", cases[i].less);
        ck_assert_msg(strstr(err.msg, cases[i].word) && strstr(err.msg, "d.gguf"), "%s", err.msg);
    }
    /* A target is no drafter, nor the reverse. */
    struct model_file *f = NULL;
    struct error err = {0};
    _cleanup_strbuf_ struct strbuf b = {0}, t = {0};
    struct gen_drafter g = gen_drafter_new(1);
    gen_drafter_gguf(&g, &b);
    ck_fails(model_parse_gguf(b.s, b.len, "d.gguf", &f, &err), UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "dflash"));
    struct tiny tiny = tiny_new("qwen3");
    tiny_gguf(&tiny, &t);
    ck_fails(drafter_parse_gguf(t.s, t.len, "t.gguf", &target, &f, &err), UNSUPPORTED, &err);
    ck_assert_ptr_nonnull(strstr(err.msg, "qwen3"));
}
END_TEST

START_TEST(memory_runs_out)
{
    struct model_config target = target_of(6);
    struct gen_drafter g = gen_drafter_new(1);
    char dir[] = "/tmp/dedit-drafter-XXXXXX";
    g.d2t = "I32";
    g.draft_vocab = 100;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    gen_drafter_write(&g, dir);
    for (struct test_oom o = {0}; test_oom_next(&o);) {
        struct model_file *f = NULL;
        struct error err = {0};
        int r = drafter_file_open(dir, &target, &f, &err);
        ck_assert_int_eq(r, o.failed ? DEDIT_E_NOMEM : 0);
        model_file_free(f);
    }
    gen_drafter_remove(&g, dir);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drafter-file");
    TCase *c = test_case(s, "good");
    tcase_add_test(c, forms);
    tcase_add_test(c, draft_vocabulary_from_the_table);
    tcase_add_test(c, another_width);
    tcase_add_test(c, attention_kinds);
    tcase_add_test(c, default_taps);
    tcase_add_test(c, gguf_form);
    c = test_case(s, "bad");
    tcase_add_test(c, lod_07);
    tcase_add_test(c, refused_by_name);
    tcase_add_test(c, tensors_refused);
    tcase_add_test(c, gguf_refused);
    tcase_add_test(c, memory_runs_out);
    return test_main(s);
}
