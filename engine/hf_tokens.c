/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop ids, BOS and chat template from the JSON files of a folder.  The set of stop ids is the
 * union of config.json, generation_config.json and tokenizer_config.json: published models
 * disagree with themselves, and missing one means that generation does not end.
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/hf_config.h"

int model_config_add_eos(struct model_config *c, uint32_t id, const char *file, const char *key,
                         struct error *err)
{
    if (id >= c->vocab_size)
        return ERR(err, FORMAT, "%s: \"%s\": id %" PRIu32 " is outside the vocabulary of %" PRIu32,
                   file, key, id, c->vocab_size);
    for (uint32_t i = 0; i < c->n_eos_ids; i++)
        if (c->eos_ids[i] == id)
            return 0;
    if (c->n_eos_ids == MODEL_MAX_STOP_IDS)
        return ERR(err, LIMIT, "%s: \"%s\": more than %d stop ids", file, key, MODEL_MAX_STOP_IDS);
    c->eos_ids[c->n_eos_ids++] = id;
    return 0;
}

/* "eos_token_id": an integer, a list of them, or null. */
static int add_eos_ids(const struct js_obj *o, struct model_config *c, struct error *err)
{
    static const char key[] = "eos_token_id";
    json_t *v = json_object_get(o->o, key);
    bool list = json_is_array(v);
    size_t n = list ? json_array_size(v) : v && !json_is_null(v);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = list ? json_array_get(v, i) : v;
        if (!json_is_integer(id))
            return ERR(err, FORMAT, "%s: \"%s\" must be an integer or a list of them, has %s",
                       o->file, key, js_type_name(id));
        json_int_t value = json_integer_value(id);
        if (value < 0 || value >= (json_int_t)c->vocab_size)
            return ERR(err, FORMAT,
                       "%s: \"%s\": %" JSON_INTEGER_FORMAT " is outside the vocabulary of %" PRIu32,
                       o->file, key, value, c->vocab_size);
        int r = model_config_add_eos(c, (uint32_t)value, o->file, key, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The text of "bos_token" / "eos_token": a string or an object with "content".  0, 1 absent. */
static int token_text(const struct js_obj *o, const char *key, const char **ret, struct error *err)
{
    struct js_obj token;
    if (!json_is_object(json_object_get(o->o, key)))
        return js_str(o, key, ret, err);
    int r = js_object(o, key, &token, err);
    if (r >= 0)
        r = js_str(&token, "content", ret, err);
    return r;
}

/* "added_tokens_decoder": {"151643": {"content": "<|endoftext|>"}}.  0 found, 1 not. */
static int find_in_decoder(const struct js_obj *o, const char *text, uint32_t *ret,
                           struct error *err)
{
    struct js_obj decoder;
    const char *key, *content;
    json_t *v;
    int r = js_object(o, "added_tokens_decoder", &decoder, err);
    if (r != 0)
        return r;
    json_object_foreach(decoder.o, key, v)
    {
        struct js_obj token = js_root(v, o->file);
        if (!json_is_object(v) || js_str(&token, "content", &content, NULL) != 0)
            return ERR(err, FORMAT,
                       "%s: \"added_tokens_decoder\": \"%.32s\" must have a \"content\"", o->file,
                       key);
        if (strcmp(content, text) != 0)
            continue;
        if (parse_u32(key, UINT32_MAX, ret) < 0)
            return ERR(err, FORMAT, "%s: \"added_tokens_decoder\": \"%.32s\" is not a token id",
                       o->file, key);
        return 0;
    }
    return 1;
}

/* tokenizer.json's members that are needed here, parsed alone: the file itself is big. */
struct tokenizer_parts {
    const struct hf_text *file;
    json_t *added, *post, *model; /* NULL until asked for, or absent */
};

static void parts_done(struct tokenizer_parts *p)
{
    json_decref(p->added);
    json_decref(p->post);
    json_decref(p->model);
}

static int parse_part(const struct tokenizer_parts *p, const char *key, json_t **part,
                      struct error *err)
{
    size_t at, len;
    if (*part || !p->file->text)
        return 0;
    if (!js_member_text(p->file->text, p->file->len, key, &at, &len))
        return 0;
    return js_parse(p->file->text + at, len, p->file->name, part, err);
}

/* 0 found, 1 not. */
static int find_in_tokenizer(struct tokenizer_parts *p, const char *text, uint32_t *ret,
                             struct error *err)
{
    int r = parse_part(p, "added_tokens", &p->added, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < json_array_size(p->added); i++) {
        struct js_obj token = js_root(json_array_get(p->added, i), p->file->name);
        const char *content;
        if (!json_is_object(token.o) || js_str(&token, "content", &content, NULL) != 0)
            return ERR(err, FORMAT, "%s: \"added_tokens\"[%zu] must have a \"content\"",
                       p->file->name, i);
        if (!strcmp(content, text)) {
            r = js_u32(&token, "id", 0, UINT32_MAX, ret, err);
            return r == 1 ? ERR(err, FORMAT, "%s: \"added_tokens\"[%zu] must have an \"id\"",
                                p->file->name, i)
                          : r;
        }
    }
    r = parse_part(p, "model", &p->model, err);
    if (r < 0 || !json_is_object(p->model))
        return r < 0 ? r : 1;
    struct js_obj model = js_root(p->model, p->file->name), vocab;
    r = js_object(&model, "vocab", &vocab, err);
    return r == 0 ? js_u32(&vocab, text, 0, UINT32_MAX, ret, err) : r;
}

/* The id of o's "bos_token" or "eos_token".  0, 1 when the key is absent or null. */
static int named_token(const struct js_obj *o, const char *key, struct tokenizer_parts *parts,
                       const struct model_config *c, uint32_t *ret, struct error *err)
{
    const char *text;
    uint32_t id = 0;
    int r = token_text(o, key, &text, err);
    if (r != 0)
        return r;
    r = find_in_decoder(o, text, &id, err);
    if (r == 1)
        r = find_in_tokenizer(parts, text, &id, err);
    if (r < 0)
        return r;
    if (r == 1)
        return ERR(err, FORMAT, "%s: \"%s\": \"%.64s\" is no token of the vocabulary", o->file, key,
                   text);
    if (id >= c->vocab_size)
        return ERR(err, FORMAT,
                   "%s: \"%s\": \"%.64s\" has id %" PRIu32 ", outside the vocabulary of %" PRIu32,
                   o->file, key, text, id, c->vocab_size);
    *ret = id;
    return 0;
}

/* Whether tokenizer.json's post-processor puts this id before a single text. */
static bool template_starts_with(const json_t *post, uint32_t id)
{
    const json_t *type = json_object_get(post, "type");
    const char *name = type ? json_string_value(type) : NULL;
    const json_t *list = json_object_get(post, "processors");
    for (size_t i = 0; name && !strcmp(name, "Sequence") && i < json_array_size(list); i++) {
        const json_t *inner = json_object_get(json_array_get(list, i), "type");
        if (json_is_string(inner) && !strcmp(json_string_value(inner), "TemplateProcessing"))
            return template_starts_with(json_array_get(list, i), id);
    }
    if (!name || strcmp(name, "TemplateProcessing") != 0)
        return false;
    const json_t *first =
        json_object_get(json_array_get(json_object_get(post, "single"), 0), "SpecialToken");
    const char *token = json_string_value(json_object_get(first, "id"));
    if (!token)
        return false;
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(post, "special_tokens"), token), "ids");
    const json_t *value = json_array_get(ids, 0);
    return json_is_integer(value) && json_integer_value(value) == (json_int_t)id;
}

/* BOS and EOS by name.  "add_bos_token" decides whether BOS is put first; without the key it is
 * tokenizer.json's post-processor. */
static int read_tokenizer_config(const struct js_obj *o, struct tokenizer_parts *parts,
                                 struct model_config *c, struct error *err)
{
    uint32_t id;
    int r = named_token(o, "eos_token", parts, c, &id, err);
    if (r == 0)
        r = model_config_add_eos(c, id, o->file, "eos_token", err);
    if (r < 0)
        return r;
    r = named_token(o, "bos_token", parts, c, &id, err);
    if (r < 0)
        return r;
    c->has_bos = r == 0;
    if (c->has_bos)
        c->bos_id = id;
    int has_key = js_bool(o, "add_bos_token", &c->add_bos, err);
    if (has_key < 0)
        return has_key;
    if (c->add_bos && !c->has_bos)
        return ERR(err, FORMAT, "%s: \"add_bos_token\" is true, but there is no \"bos_token\"",
                   o->file);
    if (has_key == 1 && c->has_bos) {
        r = parse_part(parts, "post_processor", &parts->post, err);
        if (r < 0)
            return r;
        c->add_bos = template_starts_with(parts->post, c->bos_id);
    }
    return 0;
}

int hf_token_ids(const struct hf_texts *t, const struct js_obj *config, struct model_config *c,
                 struct error *err)
{
    _cleanup_(parts_done) struct tokenizer_parts parts = {.file = &t->tokenizer};
    json_auto_t *generation = NULL, *tokenizer = NULL;
    int r = add_eos_ids(config, c, err);
    if (r >= 0 && t->generation.text) {
        r = js_parse_object(t->generation.text, t->generation.len, t->generation.name, &generation,
                            err);
        struct js_obj o = js_root(generation, t->generation.name);
        if (r >= 0)
            r = add_eos_ids(&o, c, err);
    }
    if (r < 0)
        return r;
    if (t->tokenizer_config.text) {
        r = js_parse_object(t->tokenizer_config.text, t->tokenizer_config.len,
                            t->tokenizer_config.name, &tokenizer, err);
        struct js_obj o = js_root(tokenizer, t->tokenizer_config.name);
        return r < 0 ? r : read_tokenizer_config(&o, &parts, c, err);
    }
    r = js_u32(config, "bos_token_id", 0, c->vocab_size - 1, &c->bos_id, err);
    if (r < 0)
        return r;
    c->has_bos = r == 0;
    if (c->has_bos) {
        r = parse_part(&parts, "post_processor", &parts.post, err);
        if (r < 0)
            return r;
        c->add_bos = template_starts_with(parts.post, c->bos_id);
    }
    return 0;
}

int hf_chat_template(const struct hf_text *tokenizer_config, char **ret, struct error *err)
{
    json_auto_t *root = NULL;
    const char *text = NULL;
    int r = js_parse_object(tokenizer_config->text, tokenizer_config->len, tokenizer_config->name,
                            &root, err);
    if (r < 0)
        return r;
    struct js_obj o = js_root(root, tokenizer_config->name);
    const json_t *v = json_object_get(root, "chat_template");
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v) && !text; i++) {
            struct js_obj entry = js_root(json_array_get(v, i), o.file);
            const char *name;
            if (!json_is_object(entry.o))
                return ERR(err, FORMAT, "%s: \"chat_template\"[%zu] must be an object", o.file, i);
            r = js_str(&entry, "name", &name, err);
            if (r == 0 && !strcmp(name, "default"))
                r = js_str(&entry, "template", &text, err);
            if (r < 0)
                return r;
        }
    } else {
        r = js_str(&o, "chat_template", &text, err);
        if (r < 0)
            return r;
    }
    *ret = NULL;
    if (text) {
        *ret = mem_strdup(text);
        if (!*ret)
            return ERR_NOMEM(err);
    }
    return 0;
}
