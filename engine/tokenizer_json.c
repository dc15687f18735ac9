/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.json (and tokenizer_config.json) of Hugging Face: vocabulary, merges, added tokens.
 * The pipeline around the model (normalizer, pre-tokenizer, ...) is read by tokenizer_pipeline.c.
 * What is not understood is refused by name; nothing is guessed.
 */
#include "engine/tokenizer_json.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

#define MAX_ID ((json_int_t)INT32_MAX)
/* Ids without a token cost memory: their number is bounded, so that a small file stays small. */
#define MAX_GAP 1048576

/* ---- added tokens */

static int read_flag(const struct js_obj *o, const char *key, bool *ret, struct error *err)
{
    int r = js_bool(o, key, ret, err);
    return r < 0 ? r : 0;
}

static int read_id(const struct js_obj *o, uint32_t *ret, struct error *err)
{
    int r = js_u32(o, "id", 0, INT32_MAX, ret, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"%sid\" is missing", o->file, o->path);
    return r;
}

static int read_added_flags(const struct js_obj *o, struct added_token *t, struct error *err)
{
    static const char *const keys[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
    bool *const flags[] = {&t->single_word, &t->lstrip, &t->rstrip, &t->normalized, &t->special};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        int r = read_flag(o, keys[i], flags[i], err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int add_added(struct tokenizer *t, const struct js_obj *o, const struct added_token *a,
                     const char *text, size_t len, struct error *err)
{
    if (len > ADDED_MAX_BYTES)
        return ERR(err, LIMIT, "%s: \"%scontent\" of id %" PRIu32 " has %zu bytes, more than %d",
                   o->file, o->path, a->id, len, ADDED_MAX_BYTES);
    const struct added_token *same_id = added_find_id(&t->added, a->id);
    const struct added_token *same_text = added_find_text(&t->added, text, len);
    if (same_id && same_id == same_text)
        return 0;
    const struct added_token *b = same_id ? same_id : same_text;
    if (b)
        return ERR(err, FORMAT,
                   "%s: \"%scontent\": \"%s\" (id %" PRIu32 ") clashes with \"%s\" (id %" PRIu32
                   ")",
                   o->file, o->path, text, a->id, b->text, b->id);
    return added_add(&t->added, a, text, len) < 0 ? ERR_NOMEM(err) : 0;
}

static int read_added_token(struct tokenizer *t, const struct js_obj *o, uint32_t id,
                            struct error *err)
{
    struct added_token a = {.id = id};
    const char *text = NULL;
    int r = js_str(o, "content", &text, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"%scontent\" is missing", o->file, o->path);
    if (r < 0 || (r = read_added_flags(o, &a, err)) < 0)
        return r;
    return add_added(t, o, &a, text, strlen(text), err);
}

static int read_added_tokens(struct tokenizer *t, const struct js_obj *root, struct error *err)
{
    json_t *list = NULL, *v;
    size_t i;
    int r = js_array(root, "added_tokens", &list, err);
    if (r != 0)
        return r < 0 ? r : 0;
    json_array_foreach(list, i, v)
    {
        struct js_obj o = js_root(v, root->file);
        snprintf(o.path, sizeof(o.path), "added_tokens[%zu].", i);
        if (!json_is_object(v))
            return ERR(err, FORMAT, "%s: \"added_tokens[%zu]\" must be an object, is %s",
                       root->file, i, js_type_name(v));
        uint32_t id;
        r = read_id(&o, &id, err);
        if (r == 0)
            r = read_added_token(t, &o, id, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* tokenizer_config.json repeats the added tokens by id, and may have more of them. */
static int read_added_decoder(struct tokenizer *t, const struct js_obj *config, struct error *err)
{
    struct js_obj map;
    const char *key;
    json_t *v;
    int r = js_object(config, "added_tokens_decoder", &map, err);
    if (r != 0)
        return r < 0 ? r : 0;
    json_object_foreach(map.o, key, v)
    {
        uint32_t id;
        if (parse_u32(key, INT32_MAX, &id) < 0)
            return ERR(err, FORMAT, "%s: \"added_tokens_decoder\": key \"%s\" is not an id",
                       config->file, key);
        struct js_obj o = js_root(v, config->file);
        snprintf(o.path, sizeof(o.path), "added_tokens_decoder.%" PRIu32 ".", id);
        if (!json_is_object(v))
            return ERR(err, FORMAT, "%s: \"added_tokens_decoder.%" PRIu32 "\" must be an object",
                       config->file, id);
        r = read_added_token(t, &o, id, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- vocabulary */

static int check_vocab(const struct tokenizer *t, const struct js_obj *model, json_t *vocab,
                       uint32_t *ret_n_ids, struct error *err)
{
    const char *key;
    json_t *v;
    json_int_t max = -1;
    size_t n = json_object_size(vocab) + t->added.n;
    json_object_foreach(vocab, key, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > MAX_ID)
            return ERR(err, FORMAT,
                       "%s: \"model.vocab\": the id of \"%.40s\" must be an integer from 0 to %d",
                       model->file, key, INT32_MAX);
        if (id > max)
            max = id;
    }
    for (size_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.tokens[i];
        if ((json_int_t)a->id > max)
            max = a->id;
        v = json_object_get(vocab, a->text);
        if (v && json_integer_value(v) != (json_int_t)a->id)
            return ERR(err, FORMAT,
                       "%s: \"%.40s\" has id %" JSON_INTEGER_FORMAT
                       " in \"model.vocab\" and id %" PRIu32 " in \"added_tokens\"",
                       model->file, a->text, json_integer_value(v), a->id);
    }
    if (max < 0)
        return ERR(err, FORMAT, "%s: \"model.vocab\" is empty", model->file);
    if (max >= (json_int_t)n + MAX_GAP)
        return ERR(err, FORMAT,
                   "%s: \"model.vocab\": id %" JSON_INTEGER_FORMAT " is far beyond the %zu tokens",
                   model->file, max, n);
    *ret_n_ids = (uint32_t)max + 1;
    return 0;
}

static int read_vocab(struct tokenizer *t, const struct js_obj *model, json_t *vocab,
                      struct error *err)
{
    uint32_t n_ids = 0, other = 0;
    const char *key;
    json_t *v;
    int r = check_vocab(t, model, vocab, &n_ids, err);
    if (r < 0)
        return r;
    if (vocab_init(&t->vocab, n_ids, json_object_size(vocab)) < 0)
        return ERR_NOMEM(err);
    for (size_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.tokens[i];
        if (vocab_add_raw(&t->vocab, a->id, a->text, a->len,
                          TOKEN_ADDED | (a->special ? TOKEN_SPECIAL : 0)) < 0)
            return ERR_NOMEM(err);
    }
    json_object_foreach(vocab, key, v)
    {
        uint32_t id = (uint32_t)json_integer_value(v);
        size_t len = strlen(key), n;
        if (t->vocab.flags[id] & TOKEN_ADDED) {
            const char *text = tokenizer_token_bytes(t, id, &n);
            if (n != len || memcmp(text, key, len))
                return ERR(err, FORMAT,
                           "%s: id %" PRIu32 " is \"%.40s\" in \"model.vocab\" and \"%.*s\" in "
                           "\"added_tokens\"",
                           model->file, id, key, (int)(n < 40 ? n : 40), text);
            vocab_make_plain(&t->vocab, id);
            continue;
        }
        r = vocab_add_byte_level(&t->vocab, id, key, len, &other);
        if (r < 0)
            return ERR_NOMEM(err);
        if (r > 0)
            return ERR(err, FORMAT,
                       "%s: \"model.vocab\": the id of \"%.40s\", %" PRIu32
                       ", belongs to another token",
                       model->file, key, id);
    }
    return 0;
}

/* ---- merges: "a b" or ["a", "b"] */

static int read_merge(struct tokenizer *t, json_t *v, uint32_t rank, const char *name,
                      struct error *err)
{
    if (json_is_string(v)) {
        const char *s = json_string_value(v), *space = strchr(s, ' ');
        if (!space || strchr(space + 1, ' '))
            return ERR(err, FORMAT, "%s[%" PRIu32 "]: \"%.40s\" is not two texts with one space",
                       name, rank, s);
        return bpe_add_merge_text(&t->bpe, &t->vocab, s, (size_t)(space - s), space + 1,
                                  strlen(space + 1), rank, name, err);
    }
    json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_string(a) || !json_is_string(b))
        return ERR(err, FORMAT, "%s[%" PRIu32 "] must be \"a b\" or [\"a\", \"b\"]", name, rank);
    return bpe_add_merge_text(&t->bpe, &t->vocab, json_string_value(a), json_string_length(a),
                              json_string_value(b), json_string_length(b), rank, name, err);
}

static int read_merges(struct tokenizer *t, const struct js_obj *model, struct error *err)
{
    _cleanup_strbuf_ struct strbuf name = {0};
    json_t *merges = NULL, *v;
    size_t i;
    int r = js_array(model, "merges", &merges, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"model.merges\" is missing", model->file);
    if (r < 0)
        return r;
    if (bpe_init(&t->bpe, json_array_size(merges)) < 0 ||
        strbuf_addf(&name, "%s: model.merges", model->file) < 0)
        return ERR_NOMEM(err);
    json_array_foreach(merges, i, v)
    {
        r = read_merge(t, v, (uint32_t)i, name.s, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- the model */

static int refuse_text(const struct js_obj *o, const char *key, struct error *err)
{
    const char *s = "";
    int r = js_str(o, key, &s, err);
    if (r == 0 && s[0])
        return ERR(err, UNSUPPORTED, "%s: \"%s%s\" is \"%s\"; supported: none", o->file, o->path,
                   key, s);
    return r < 0 ? r : 0;
}

static int read_options(struct tokenizer *t, const struct js_obj *model, struct error *err)
{
    bool byte_fallback = false;
    double dropout = 0;
    const char *unk = NULL;
    int r;
    if ((r = refuse_text(model, "continuing_subword_prefix", err)) < 0 ||
        (r = refuse_text(model, "end_of_word_suffix", err)) < 0 ||
        (r = read_flag(model, "byte_fallback", &byte_fallback, err)) < 0 ||
        (r = read_flag(model, "fuse_unk", &t->bpe.fuse_unk, err)) < 0 ||
        (r = read_flag(model, "ignore_merges", &t->bpe.ignore_merges, err)) < 0 ||
        (r = js_f64(model, "dropout", &dropout, err)) < 0 ||
        (r = js_str(model, "unk_token", &unk, err)) < 0)
        return r;
    if (byte_fallback)
        return ERR(err, UNSUPPORTED,
                   "%s: \"model.byte_fallback\" is true (SentencePiece); supported: byte-level BPE",
                   model->file);
    if (dropout > 0 || dropout < 0)
        return ERR(err, UNSUPPORTED, "%s: \"model.dropout\" must be null or 0", model->file);
    if (unk) {
        char text[256];
        size_t n = strlen(unk);
        uint32_t id = TOK_NONE;
        if (!tokenizer_find_added(t, unk, n, &id) && n <= sizeof(text) &&
            byte_level_decode(unk, n, text, &n))
            id = vocab_find(&t->vocab, text, n);
        if (id == TOK_NONE)
            return ERR(err, FORMAT, "%s: \"model.unk_token\": \"%s\" is not in the vocabulary",
                       model->file, unk);
        /* Plain text must not give a control token: with one as unknown, bytes are dropped. */
        if (!(t->vocab.flags[id] & TOKEN_SPECIAL))
            t->bpe.unk = id;
    }
    bpe_set_bytes(&t->bpe, &t->vocab);
    return 0;
}

/* Older files leave the type out. */
static int check_type(const struct js_obj *model, struct error *err)
{
    const char *type = NULL;
    int r = js_str(model, "type", &type, err);
    if (r == 0 && strcmp(type, "BPE"))
        return ERR(err, UNSUPPORTED, "%s: \"model.type\" is \"%s\"; supported: BPE", model->file,
                   type);
    return r < 0 ? r : 0;
}

/* ---- BOS and EOS of tokenizer_config.json */

/* The text is a string or an object with "content". Returns 0 found, 1 absent. */
static int named_token(struct tokenizer *t, const struct js_obj *config, const char *key,
                       uint32_t *ret, struct error *err)
{
    json_t *v = config->o ? json_object_get(config->o, key) : NULL;
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!v || json_is_null(v))
        return 1;
    if (!json_is_string(v))
        return ERR(err, FORMAT, "%s: \"%s\" must be a string, is %s", config->file, key,
                   js_type_name(v));
    const char *text = json_string_value(v);
    size_t n = strlen(text);
    uint32_t id = TOK_NONE;
    if (!tokenizer_find_added(t, text, n, &id))
        id = vocab_find(&t->vocab, text, n);
    if (id == TOK_NONE)
        return ERR(err, FORMAT, "%s: \"%s\": \"%.60s\" is not in the vocabulary", config->file, key,
                   text);
    if (tokenizer_make_special(t, id) < 0)
        return ERR_NOMEM(err);
    *ret = id;
    return 0;
}

static int read_bos(struct tokenizer *t, const struct js_obj *config, struct error *err)
{
    bool add_bos = false;
    int r = js_bool(config, "add_bos_token", &add_bos, err);
    if (r != 0)
        return r < 0 ? r : 0; /* nothing said: the post-processor decides */
    if (add_bos && !t->add_bos) {
        r = named_token(t, config, "bos_token", &t->bos, err);
        if (r > 0)
            return ERR(err, FORMAT, "%s: \"add_bos_token\" is true without a \"bos_token\"",
                       config->file);
        if (r < 0)
            return r;
    }
    t->add_bos = add_bos;
    return 0;
}

static int load(struct tokenizer *t, const struct js_obj *root, const struct js_obj *config,
                struct error *err)
{
    struct js_obj model, vocab;
    int r;
    if ((r = read_added_tokens(t, root, err)) < 0 || (r = read_added_decoder(t, config, err)) < 0)
        return r;
    r = js_object(root, "model", &model, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"model\" is missing", root->file);
    if (r < 0 || (r = check_type(&model, err)) < 0)
        return r;
    r = js_object(&model, "vocab", &vocab, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"model.vocab\" is missing", root->file);
    /* Control tokens are all known before bytes and merges are: plain text must not give one. */
    if (r < 0 || (r = read_vocab(t, &model, vocab.o, err)) < 0 ||
        (r = named_token(t, config, "eos_token", &t->eos, err)) < 0 ||
        (r = tokenizer_read_pipeline(t, root, err)) < 0 || (r = read_bos(t, config, err)) < 0 ||
        (r = read_merges(t, &model, err)) < 0 || (r = read_options(t, &model, err)) < 0)
        return r;
    return added_build(&t->added, t->nfc) < 0 ? ERR_NOMEM(err) : 0;
}

int tokenizer_from_json(const char *json, size_t len, const char *config, size_t config_len,
                        const char *name, struct tokenizer **ret, struct error *err)
{
    _cleanup_(tokenizer_freep) struct tokenizer *t = mem_zalloc(sizeof(*t));
    _cleanup_strbuf_ struct strbuf config_name = {0};
    json_auto_t *root = NULL, *config_root = NULL;
    if (!t || !(t->name = mem_strdup(name)) ||
        strbuf_addf(&config_name, "%s (tokenizer_config.json)", name) < 0)
        return ERR_NOMEM(err);
    t->bos = t->eos = t->bpe.unk = TOK_NONE;
    int r = js_parse_object(json, len, name, &root, err);
    if (r == 0 && config)
        r = js_parse_object(config, config_len, config_name.s, &config_root, err);
    if (r < 0)
        return r;
    struct js_obj o = js_root(root, name), c = js_root(config_root, config_name.s);
    r = load(t, &o, &c, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(t);
    return 0;
}
