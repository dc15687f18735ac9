/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON files of a Hugging Face folder.  Input: config.json, generation_config.json,
 * tokenizer_config.json and tokenizer.json, with a NUL between two; a text that is left out is an
 * absent file.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/hf_config.h"

/* Cuts the text up to the next NUL off the input. */
static struct hf_text next_text(const uint8_t **data, size_t *size, const char *name)
{
    struct hf_text t = {.name = name};
    if (!*data)
        return t;
    const uint8_t *end = *size ? memchr(*data, '\0', *size) : NULL;
    t.text = (const char *)*data;
    t.len = end ? (size_t)(end - *data) : *size;
    *size -= end ? t.len + 1 : t.len;
    *data = end ? end + 1 : NULL;
    return t;
}

static void check_config(const struct model_config *c)
{
    FUZZ_CHECK(c->n_layers && c->hidden && c->ffn && c->vocab_size && c->max_position);
    FUZZ_CHECK(c->n_kv_heads && c->n_heads % c->n_kv_heads == 0);
    FUZZ_CHECK(c->head_dim && c->head_dim % 2 == 0 && c->head_dim <= DK_MAX_HEAD_DIM);
    FUZZ_CHECK(c->rms_eps > 0 && c->rope_theta >= 1);
    FUZZ_CHECK(c->n_eos_ids <= MODEL_MAX_STOP_IDS);
    for (uint32_t i = 0; i < c->n_eos_ids; i++)
        FUZZ_CHECK(c->eos_ids[i] < c->vocab_size);
    FUZZ_CHECK(!c->has_bos || c->bos_id < c->vocab_size);
    FUZZ_CHECK(c->has_bos || !c->add_bos);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hf_texts t;
    struct model_config c;
    struct error err = {0};
    t.config = next_text(&data, &size, "config.json");
    t.generation = next_text(&data, &size, "generation_config.json");
    t.tokenizer_config = next_text(&data, &size, "tokenizer_config.json");
    t.tokenizer = next_text(&data, &size, "tokenizer.json");
    if (!t.config.text)
        return 0;
    int r = hf_config_parse(&t, &c, &err);
    FUZZ_CHECK(r == 0 || (r == err.code && err.msg[0]));
    if (r == 0)
        check_config(&c);
    if (t.tokenizer_config.text) {
        char *template = NULL;
        r = hf_chat_template(&t.tokenizer_config, &template, &err);
        FUZZ_CHECK(r == 0 || !template);
        mem_free(template);
    }
    return 0;
}
