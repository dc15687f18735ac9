/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON files of a Hugging Face folder as texts: architectures good and bad, RoPE, windows, stop
 * ids, BOS and chat templates.
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/hf_config.h"
#include "tests/unit/modelgen.h"
#include "tests/unit/util.h"

#define FORMAT      DEDIT_E_FORMAT
#define UNSUPPORTED DEDIT_E_UNSUPPORTED
#define MISMATCH    DEDIT_E_MISMATCH

/* ---- configuration texts ----------------------------------------------------------------------- */

static const char *config_text(const char *family, const char *more, const char *less,
                               struct strbuf *b)
{
    struct tiny t = tiny_new(family);
    t.config_more = more;
    t.config_less = less;
    strbuf_clear(b);
    tiny_config(&t, b);
    return b->s;
}

static int parse_texts(const char *config, const char *generation, const char *tokenizer_config,
                       const char *tokenizer, struct model_config *c, struct error *err)
{
    struct hf_texts t = {.config = {config, strlen(config), "config.json"}};
    if (generation)
        t.generation = (struct hf_text){generation, strlen(generation), "generation_config.json"};
    if (tokenizer_config)
        t.tokenizer_config =
            (struct hf_text){tokenizer_config, strlen(tokenizer_config), "tokenizer_config.json"};
    if (tokenizer)
        t.tokenizer = (struct hf_text){tokenizer, strlen(tokenizer), "tokenizer.json"};
    return hf_config_parse(&t, c, err);
}

static void config_bad(const char *family, const char *more, const char *less, int code,
                       const char *word1, const char *word2)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct model_config c;
    struct error err = {0};
    int r = parse_texts(config_text(family, more, less, &b), NULL, NULL, NULL, &c, &err);
    ck_assert_msg(r == code, "%s: %s (%s), wanted %s", more ? more : "", error_name(r), err.msg,
                  error_name(code));
    ck_assert_msg(strstr(err.msg, "config.json"), "no file: %s", err.msg);
    ck_assert_msg(strstr(err.msg, word1), "no \"%s\": %s", word1, err.msg);
    ck_assert_msg(!word2 || strstr(err.msg, word2), "no \"%s\": %s", word2, err.msg);
}

static struct model_config config_good(const char *family, const char *more, const char *less)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct model_config c = {0};
    struct error err = {0};
    ck_ok(parse_texts(config_text(family, more, less, &b), NULL, NULL, NULL, &c, &err), &err);
    return c;
}

START_TEST(unsupported_models)
{
    static const char only[] = "supported: dense llama, qwen2, qwen3";
    struct error err = {0};
    struct model_config c;
    static const struct {
        const char *text, *word;
    } whole[] = {
        {"{\"model_type\": \"qwen3_moe\"}", "\"qwen3_moe\" (a mixture-of-experts model)"},
        {"{\"model_type\": \"qwen2_5_vl\"}", "\"qwen2_5_vl\" (a vision model)"},
        {"{\"model_type\": \"mistral\"}", "\"mistral\" is not supported"},
    };
    for (size_t i = 0; i < ARRAY_LEN(whole); i++) {
        ck_fails(parse_texts(whole[i].text, NULL, NULL, NULL, &c, &err), UNSUPPORTED, &err);
        ck_assert_msg(strstr(err.msg, whole[i].word) && strstr(err.msg, only), "%s", err.msg);
    }
    config_bad("llama", ", \"num_experts\": 8", NULL, UNSUPPORTED, "\"num_experts\"", only);
    config_bad("llama", ", \"num_local_experts\": 8", NULL, UNSUPPORTED, "MoE", only);
    config_bad("qwen2", ", \"vision_config\": {}", NULL, UNSUPPORTED, "vision", only);
    config_bad("qwen3", ", \"quantization_config\": {\"bits\": 4}", NULL, UNSUPPORTED, "quantised",
               only);
    config_bad("llama", ", \"attention_bias\": true", NULL, UNSUPPORTED, "\"attention_bias\"",
               only);
    config_bad("qwen3", ", \"attention_bias\": true", NULL, UNSUPPORTED, "\"attention_bias\"",
               only);
    config_bad("llama", ", \"mlp_bias\": true", NULL, UNSUPPORTED, "\"mlp_bias\"", only);
    config_bad("qwen3", ", \"partial_rotary_factor\": 0.5", NULL, UNSUPPORTED,
               "\"partial_rotary_factor\"", "supported: 1.0");
}
END_TEST

/* Text of a whole config.json in which one member is replaced. */
static void replaced_bad(const char *from, const char *to, int code, const char *word1,
                         const char *word2)
{
    _cleanup_strbuf_ struct strbuf b = {0}, changed = {0};
    struct model_config c;
    struct error err = {0};
    const char *text = config_text("llama", NULL, NULL, &b);
    const char *at = strstr(text, from);
    ck_assert_msg(at, "%s", from);
    put_bytes(&changed, text, (size_t)(at - text));
    put_bytes(&changed, to, strlen(to));
    put_bytes(&changed, at + strlen(from), strlen(at + strlen(from)));
    int r = parse_texts(changed.s, NULL, NULL, NULL, &c, &err);
    ck_assert_msg(r == code, "%s: %s (%s), wanted %s", to, error_name(r), err.msg,
                  error_name(code));
    ck_assert_msg(strstr(err.msg, word1), "no \"%s\": %s", word1, err.msg);
    ck_assert_msg(!word2 || strstr(err.msg, word2), "no \"%s\": %s", word2, err.msg);
}

START_TEST(replaced_members)
{
    replaced_bad("\"silu\"", "\"gelu\"", UNSUPPORTED, "hidden_act \"gelu\"", "supported: silu");
    replaced_bad("LlamaForCausalLM", "LlamaForSequenceClassification", UNSUPPORTED,
                 "\"LlamaForSequenceClassification\"", "LlamaForCausalLM is");
    replaced_bad("[\"LlamaForCausalLM\"]", "[5]", FORMAT, "\"architectures\"", NULL);
    replaced_bad("1e-6", "0", FORMAT, "epsilon", NULL);
    replaced_bad("1e-6", "\"1e-6\"", FORMAT, "\"rms_norm_eps\" must be a number", NULL);
    replaced_bad("10000.0", "0.5", FORMAT, "RoPE base", NULL);
    replaced_bad("\"hidden_size\": 64", "\"hidden_size\": 0", FORMAT, "\"hidden_size\"", "is 0");
    replaced_bad("\"hidden_size\": 64", "\"hidden_size\": 99999999999", FORMAT, "\"hidden_size\"",
                 "is 99999999999");
    replaced_bad("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", FORMAT,
                 "4 query heads", "3 key/value heads");
    replaced_bad("\"head_dim\": 32", "\"head_dim\": 31", UNSUPPORTED, "head_dim", "is 31");
    replaced_bad("\"head_dim\": 32", "\"head_dim\": 514", UNSUPPORTED, "at most 512", "is 514");
    replaced_bad("\"eos_token_id\": 2", "\"eos_token_id\": 40", FORMAT, "\"eos_token_id\"",
                 "40 is outside the vocabulary of 40");
    replaced_bad("\"eos_token_id\": 2", "\"eos_token_id\": [1, -1]", FORMAT, "\"eos_token_id\"",
                 "-1 is outside");
    replaced_bad("\"eos_token_id\": 2", "\"eos_token_id\": \"x\"", FORMAT, "\"eos_token_id\"",
                 "a string");
    replaced_bad("\"eos_token_id\": 2",
                 "\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", DEDIT_E_LIMIT,
                 "\"eos_token_id\"", "more than 16");
    replaced_bad("\"model_type\": \"llama\"", "\"model_type\": 1", FORMAT, "\"model_type\"", NULL);
    replaced_bad("\"model_type\": \"llama\", ", "", FORMAT, "\"model_type\" is missing", NULL);
    replaced_bad("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1", FORMAT,
                 "\"tie_word_embeddings\"", NULL);
}
END_TEST

START_TEST(required_members)
{
    static const char *const keys[] = {"num_hidden_layers",   "hidden_size",
                                       "num_attention_heads", "intermediate_size",
                                       "vocab_size",          "max_position_embeddings"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        char word[64];
        snprintf(word, sizeof(word), "\"%s\" is missing", keys[i]);
        config_bad("llama", NULL, keys[i], FORMAT, word, NULL);
    }
    ck_assert_uint_eq(config_good("llama", NULL, "num_key_value_heads").n_kv_heads, 4);
    ck_assert_uint_eq(config_good("llama", NULL, "head_dim").head_dim, 16);
    struct model_config c;
    struct error err = {0};
    ck_fails(parse_texts("[]", NULL, NULL, NULL, &c, &err), FORMAT, &err);
    ck_fails(parse_texts("", NULL, NULL, NULL, &c, &err), FORMAT, &err);
    ck_fails(parse_texts("{", NULL, NULL, NULL, &c, &err), FORMAT, &err);
}
END_TEST

START_TEST(rope)
{
    struct model_config c = config_good("llama", ", \"rope_scaling\": null", NULL);
    ck_assert_int_eq(c.rope_scaling, ROPE_SCALING_NONE);
    c = config_good("llama", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", NULL);
    ck_assert_int_eq(c.rope_scaling, ROPE_SCALING_LINEAR);
    ck_assert_double_eq(c.rope_factor, 2);
    c = config_good("llama", ", \"rope_scaling\": {\"rope_type\": \"default\"}", NULL);
    ck_assert_int_eq(c.rope_scaling, ROPE_SCALING_NONE);
    c = config_good(
        "llama", ", \"rope_parameters\": {\"rope_theta\": 10000, \"partial_rotary_factor\": 1.0}",
        NULL);
    ck_assert_double_eq(c.rope_theta, 10000);
#define LLAMA3                                                                                     \
    "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4"
    c = config_good("llama",
                    ", \"rope_scaling\": {" LLAMA3 "}, \"original_max_position_embeddings\": 32",
                    NULL);
    ck_assert_uint_eq(c.rope_original_context, 32);
    config_bad("llama", ", \"rope_scaling\": {" LLAMA3 "}", NULL, FORMAT,
               "\"rope_scaling.original_max_position_embeddings\" is missing", NULL);
    config_bad("llama", ", \"rope_scaling\": {\"type\": \"linear\"}", NULL, FORMAT,
               "\"rope_scaling.factor\" is missing", NULL);
    config_bad("llama", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": -1}", NULL, FORMAT,
               "factor", "is -1");
    static const char *const types[] = {"yarn", "dynamic", "longrope", "su", "mrope", "ntk"};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        char more[128], word[64];
        snprintf(more, sizeof(more), ", \"rope_scaling\": {\"rope_type\": \"%s\", \"factor\": 2}",
                 types[i]);
        snprintf(word, sizeof(word), "\"%s\" is not supported", types[i]);
        config_bad("qwen3", more, NULL, UNSUPPORTED, word, "supported: default, linear, llama3");
    }
    config_bad(
        "llama",
        ", \"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"llama3\", \"factor\": 2}",
        NULL, MISMATCH, "\"rope_scaling.rope_type\" is \"llama3\"", "linear");
    config_bad("llama", ", \"rope_parameters\": {\"rope_theta\": 500.0}", NULL, MISMATCH,
               "\"rope_theta\" is 10000", "\"rope_parameters.rope_theta\" is 500");
    config_bad("llama", ", \"rope_parameters\": {\"full_attention\": {}}", NULL, UNSUPPORTED,
               "\"rope_parameters.full_attention\"", "layer to layer");
    config_bad("llama", ", \"rope_parameters\": {\"partial_rotary_factor\": 0.25}", NULL,
               UNSUPPORTED, "\"rope_parameters.partial_rotary_factor\"", NULL);
    config_bad("llama", ", \"rope_scaling\": 5", NULL, FORMAT, "\"rope_scaling\" must be an object",
               NULL);
}
END_TEST

START_TEST(sliding_window)
{
    config_bad("qwen2",
               ", \"use_sliding_window\": true, \"sliding_window\": 64, "
               "\"max_window_layers\": 1",
               NULL, UNSUPPORTED, "\"use_sliding_window\"", "supported: full attention");
    config_bad("qwen3", ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]", NULL,
               UNSUPPORTED, "\"layer_types\"[1]: \"sliding_attention\"", NULL);
    config_bad("qwen3", ", \"layer_types\": [\"full_attention\"]", NULL, FORMAT, "1 entries",
               "num_hidden_layers is 2");
    config_bad("qwen3", ", \"layer_types\": [1, 2]", NULL, FORMAT, "\"layer_types\"[0]", NULL);
    /* Present, but no layer uses it. */
    config_good("qwen2", ", \"use_sliding_window\": false, \"sliding_window\": 64", NULL);
    config_good("qwen2",
                ", \"use_sliding_window\": true, \"sliding_window\": 64, "
                "\"max_window_layers\": 2",
                NULL);
    config_good("qwen2",
                ", \"use_sliding_window\": true, \"sliding_window\": 128, "
                "\"max_window_layers\": 0",
                NULL);
    config_good("qwen2", ", \"use_sliding_window\": true, \"sliding_window\": null", NULL);
    config_good("qwen2", ", \"attention_bias\": true", NULL);
    config_good("qwen3", ", \"layer_types\": [\"full_attention\", \"full_attention\"]", NULL);
}
END_TEST

/* ---- stop ids, BOS, template ------------------------------------------------------------------- */

#define TOKENIZER                                                                                  \
    "{\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\"}, {\"id\": 6, \"content\": \"</s>\"}],"  \
    "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"},"     \
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}},"       \
    "{\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [5]}}}]},"          \
    "\"model\": {\"vocab\": {\"a\": 1, \"<end>\": 7}}}"

static struct model_config tokens(const char *generation, const char *tokenizer_config,
                                  const char *tokenizer)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct model_config c = {0};
    struct error err = {0};
    const char *text = config_text("llama", ", \"bos_token_id\": 3", NULL, &b);
    ck_ok(parse_texts(text, generation, tokenizer_config, tokenizer, &c, &err), &err);
    return c;
}

START_TEST(stop_ids)
{
    struct model_config c = tokens(NULL, NULL, NULL);
    ck_assert_uint_eq(c.n_eos_ids, 1);
    ck_assert_uint_eq(c.eos_ids[0], 2);
    c = tokens("{\"eos_token_id\": [8, 2]}", "{\"eos_token\": \"</s>\"}", TOKENIZER);
    ck_assert_uint_eq(c.n_eos_ids, 3);
    ck_assert_uint_eq(c.eos_ids[0], 2);
    ck_assert_uint_eq(c.eos_ids[1], 8);
    ck_assert_uint_eq(c.eos_ids[2], 6);
    c = tokens("{\"eos_token_id\": 2}", "{\"eos_token\": {\"content\": \"<end>\"}}", TOKENIZER);
    ck_assert_uint_eq(c.n_eos_ids, 2);
    ck_assert_uint_eq(c.eos_ids[1], 7);
    c = tokens(NULL,
               "{\"eos_token\": \"x\", \"added_tokens_decoder\": {\"9\": {\"content\": \"x\"}}}",
               NULL);
    ck_assert_uint_eq(c.eos_ids[1], 9);
    c = tokens("{\"eos_token_id\": null}", "{\"eos_token\": null}", TOKENIZER);
    ck_assert_uint_eq(c.n_eos_ids, 1);
}
END_TEST

START_TEST(bos)
{
    struct model_config c = tokens(NULL, NULL, NULL);
    ck_assert(c.has_bos && !c.add_bos && c.bos_id == 3);
    /* tokenizer_config.json wins: Qwen's config.json has an id, its tokenizer has no BOS. */
    c = tokens(NULL, "{\"bos_token\": null}", TOKENIZER);
    ck_assert(!c.has_bos && !c.add_bos);
    c = tokens(NULL, "{\"bos_token\": \"<s>\"}", TOKENIZER);
    ck_assert(c.has_bos && c.add_bos && c.bos_id == 5);
    c = tokens(NULL, "{\"bos_token\": \"<s>\", \"add_bos_token\": false}", TOKENIZER);
    ck_assert(c.has_bos && !c.add_bos);
    c = tokens(NULL, "{\"bos_token\": \"</s>\"}", TOKENIZER);
    ck_assert(c.has_bos && !c.add_bos && c.bos_id == 6);
    c = tokens(NULL, "{\"bos_token\": \"</s>\", \"add_bos_token\": true}", TOKENIZER);
    ck_assert(c.add_bos);
}
END_TEST

static void tokens_bad(const char *generation, const char *tokenizer_config, const char *tokenizer,
                       const char *word1, const char *word2)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct model_config c = {0};
    struct error err = {0};
    const char *text = config_text("llama", NULL, NULL, &b);
    int r = parse_texts(text, generation, tokenizer_config, tokenizer, &c, &err);
    ck_assert_msg(r == FORMAT, "%s: %s", error_name(r), err.msg);
    ck_assert_msg(strstr(err.msg, word1), "no \"%s\": %s", word1, err.msg);
    ck_assert_msg(strstr(err.msg, word2), "no \"%s\": %s", word2, err.msg);
}

START_TEST(bad_token_files)
{
    tokens_bad("[]", NULL, NULL, "generation_config.json", "object");
    tokens_bad("{\"eos_token_id\": 1.5}", NULL, NULL, "generation_config.json", "real number");
    tokens_bad(NULL, "5", NULL, "tokenizer_config.json", "object");
    tokens_bad(NULL, "{\"eos_token\": 5}", NULL, "tokenizer_config.json", "\"eos_token\"");
    tokens_bad(NULL, "{\"eos_token\": \"<no>\"}", TOKENIZER, "\"<no>\"", "no token");
    tokens_bad(NULL, "{\"eos_token\": \"<no>\"}", NULL, "\"<no>\"", "no token");
    tokens_bad(NULL, "{\"add_bos_token\": true}", NULL, "\"add_bos_token\"", "no \"bos_token\"");
    tokens_bad(NULL, "{\"add_bos_token\": 1}", NULL, "\"add_bos_token\"", "true or false");
    tokens_bad(NULL, "{\"eos_token\": \"</s>\"}", "{\"added_tokens\": [5]}", "tokenizer.json",
               "\"added_tokens\"[0]");
    tokens_bad(NULL, "{\"eos_token\": \"</s>\"}", "{\"added_tokens\": [{\"content\": \"</s>\"}]}",
               "tokenizer.json", "\"id\"");
    tokens_bad(NULL, "{\"eos_token\": \"</s>\"}",
               "{\"added_tokens\": [{\"id\": 40, \"content\": \"</s>\"}]}", "has id 40",
               "vocabulary of 40");
    tokens_bad(NULL,
               "{\"eos_token\": \"x\", \"added_tokens_decoder\": {\"z\": {\"content\": \"x\"}}}",
               NULL, "\"z\"", "token id");
    tokens_bad(NULL, "{\"eos_token\": \"x\", \"added_tokens_decoder\": {\"1\": {}}}", NULL, "\"1\"",
               "content");
}
END_TEST

START_TEST(chat_template)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{\"chat_template\": \"T\"}", "T"},
        {"{}", NULL},
        {"{\"chat_template\": null}", NULL},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"A\"},"
         " {\"name\": \"default\", \"template\": \"B\"}]}",
         "B"},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"A\"}]}", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = {0};
        char *got = NULL;
        struct hf_text t = {cases[i].text, strlen(cases[i].text), "tokenizer_config.json"};
        ck_ok(hf_chat_template(&t, &got, &err), &err);
        if (cases[i].want)
            ck_assert_str_eq(got, cases[i].want);
        else
            ck_assert_ptr_null(got);
        mem_free(got);
    }
    static const char *const bad[] = {"{\"chat_template\": 5}", "{\"chat_template\": [5]}",
                                      "{\"chat_template\": [{\"name\": 5}]}", "[]"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct error err = {0};
        char *got = NULL;
        struct hf_text t = {bad[i], strlen(bad[i]), "tokenizer_config.json"};
        ck_fails(hf_chat_template(&t, &got, &err), FORMAT, &err);
        ck_assert_ptr_nonnull(strstr(err.msg, "tokenizer_config.json"));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model-config");
    TCase *t = test_case(s, "config");
    tcase_add_test(t, unsupported_models);
    tcase_add_test(t, replaced_members);
    tcase_add_test(t, required_members);
    tcase_add_test(t, rope);
    tcase_add_test(t, sliding_window);
    t = test_case(s, "tokens");
    tcase_add_test(t, stop_ids);
    tcase_add_test(t, bos);
    tcase_add_test(t, bad_token_files);
    tcase_add_test(t, chat_template);
    return test_main(s);
}
