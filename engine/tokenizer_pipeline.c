/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tokenizer.json says around the model: normalizer (NFC), pre_tokenizer (Split, Digits,
 * ByteLevel), post_processor (a template that puts BOS first), decoder (ByteLevel).  Any other part
 * is refused by its name.
 */
#include <stdio.h>
#include <string.h>

#include "engine/tokenizer_json.h"

/* Calls each for every member of a Sequence (recursively), or once for anything else. */
struct walk {
    const char *what; /* "pre_tokenizer" */
    const char *list; /* key of a Sequence's members */
    int (*each)(struct tokenizer *t, const struct js_obj *o, const char *type, struct error *err);
};

static int walk_part(struct tokenizer *t, const struct walk *w, const struct js_obj *o,
                     unsigned depth, struct error *err)
{
    const char *type = NULL;
    int r = js_str(o, "type", &type, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"%stype\" is missing", o->file, o->path);
    if (r < 0)
        return r;
    if (strcmp(type, "Sequence"))
        return w->each(t, o, type, err);
    json_t *list = NULL, *v;
    size_t i;
    if (depth == 4)
        return ERR(err, LIMIT, "%s: \"%s\": Sequences nested deeper than 4", o->file, w->what);
    r = js_array(o, w->list, &list, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"%s%s\" is missing", o->file, o->path, w->list);
    if (r < 0)
        return r;
    json_array_foreach(list, i, v)
    {
        struct js_obj sub = js_root(v, o->file);
        snprintf(sub.path, sizeof(sub.path), "%s.%s[%zu].", w->what, w->list, i);
        if (!json_is_object(v))
            return ERR(err, FORMAT, "%s: \"%s\" has a member that is no object", o->file, w->what);
        r = walk_part(t, w, &sub, depth + 1, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Returns 1 when the part is absent or null. */
static int walk_root(struct tokenizer *t, const struct walk *w, const struct js_obj *root,
                     struct error *err)
{
    struct js_obj o;
    int r = js_object(root, w->what, &o, err);
    return r != 0 ? r : walk_part(t, w, &o, 0, err);
}

static int each_normalizer(struct tokenizer *t, const struct js_obj *o, const char *type,
                           struct error *err)
{
    if (strcmp(type, "NFC"))
        return ERR(err, UNSUPPORTED, "%s: normalizer \"%s\"; supported: NFC", o->file, type);
    t->nfc = true;
    return 0;
}

/* ---- pre_tokenizer */

static int read_behavior(const struct js_obj *o, enum split_behavior *ret, struct error *err)
{
    static const struct {
        const char *name;
        enum split_behavior behavior;
    } names[] = {
        {"Isolated", SPLIT_ISOLATED},
        {"Removed", SPLIT_REMOVED},
        {"MergedWithPrevious", SPLIT_MERGED_WITH_PREVIOUS},
        {"MergedWithNext", SPLIT_MERGED_WITH_NEXT},
        {"Contiguous", SPLIT_CONTIGUOUS},
    };
    const char *s = NULL;
    int r = js_str(o, "behavior", &s, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"%sbehavior\" is missing", o->file, o->path);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (!strcmp(s, names[i].name)) {
            *ret = names[i].behavior;
            return 0;
        }
    return ERR(err, UNSUPPORTED,
               "%s: \"%sbehavior\" is \"%s\"; supported: Isolated, Removed, MergedWithPrevious, "
               "MergedWithNext, Contiguous",
               o->file, o->path, s);
}

static int read_split(struct tokenizer *t, const struct js_obj *o, const char *name,
                      struct error *err)
{
    enum split_behavior behavior = SPLIT_ISOLATED;
    bool invert = false;
    struct js_obj pattern;
    const char *s = NULL;
    int r = read_behavior(o, &behavior, err);
    if (r < 0 || (r = js_bool(o, "invert", &invert, err)) < 0)
        return r;
    r = js_object(o, "pattern", &pattern, err);
    if (r < 0)
        return r;
    if (r == 0) {
        r = js_str(&pattern, "Regex", &s, err);
        if (r == 0)
            return split_add_regex(&t->split, s, strlen(s), behavior, invert, name, err);
        if (r > 0)
            r = js_str(&pattern, "String", &s, err);
        if (r == 0)
            return split_add_string(&t->split, s, strlen(s), behavior, invert, name, err);
    }
    if (r < 0)
        return r;
    return ERR(err, FORMAT, "%s: \"%spattern\" must hold \"Regex\" or \"String\"", o->file,
               o->path);
}

static int read_byte_level(struct tokenizer *t, const struct js_obj *o, const char *name,
                           struct error *err)
{
    bool prefix = true, regex = true; /* the reference's defaults */
    int r;
    if ((r = js_bool(o, "add_prefix_space", &prefix, err)) < 0 ||
        (r = js_bool(o, "use_regex", &regex, err)) < 0)
        return r;
    r = prefix ? split_add_prefix_space(&t->split, name, err) : 0;
    if (r == 0 && regex)
        r = split_add_regex(&t->split, split_gpt2_pattern, strlen(split_gpt2_pattern),
                            SPLIT_ISOLATED, false, name, err);
    t->split.byte_level = true;
    return r;
}

static int each_pre_tokenizer(struct tokenizer *t, const struct js_obj *o, const char *type,
                              struct error *err)
{
    char name[256];
    snprintf(name, sizeof(name), "%.180s: %.64s", o->file, o->path);
    size_t n = strlen(name);
    if (n && name[n - 1] == '.')
        name[n - 1] = '\0';
    if (t->split.byte_level)
        return ERR(err, UNSUPPORTED, "%s: a pre-tokenizer step (%s) behind ByteLevel", o->file,
                   type);
    if (!strcmp(type, "Split"))
        return read_split(t, o, name, err);
    if (!strcmp(type, "ByteLevel"))
        return read_byte_level(t, o, name, err);
    if (!strcmp(type, "Digits")) {
        bool individual = false;
        int r = js_bool(o, "individual_digits", &individual, err);
        return r < 0 ? r : split_add_digits(&t->split, individual, name, err);
    }
    return ERR(err, UNSUPPORTED,
               "%s: pre_tokenizer \"%s\"; supported: Sequence, Split, Digits, ByteLevel", o->file,
               type);
}

static int read_pre_tokenizer(struct tokenizer *t, const struct js_obj *root, struct error *err)
{
    static const struct walk w = {"pre_tokenizer", "pretokenizers", each_pre_tokenizer};
    int r = walk_root(t, &w, root, err);
    if (r < 0)
        return r;
    if (!t->split.byte_level)
        return ERR(err, UNSUPPORTED,
                   "%s: \"pre_tokenizer\" has no ByteLevel step; supported: byte-level BPE",
                   root->file);
    return 0;
}

/* ---- post_processor */

/* Id of a special token of a template: {"id": "<s>"} looked up in "special_tokens". */
static int template_id(struct tokenizer *t, const struct js_obj *o, json_t *special, uint32_t *ret,
                       struct error *err)
{
    const char *name = json_string_value(json_object_get(special, "id"));
    json_t *entry = name ? json_object_get(json_object_get(o->o, "special_tokens"), name) : NULL;
    json_t *ids = json_object_get(entry, "ids"), *id = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(id))
        return ERR(err, FORMAT,
                   "%s: \"%ssingle\" names a special token that is not in \"special_tokens\" "
                   "with one id",
                   o->file, o->path);
    json_int_t i = json_integer_value(id);
    if (i < 0 || i >= (json_int_t)t->vocab.n || !(t->vocab.flags[i] & TOKEN_PRESENT))
        return ERR(err, FORMAT,
                   "%s: \"%sspecial_tokens\": id %" JSON_INTEGER_FORMAT " is not in the vocabulary",
                   o->file, o->path, i);
    *ret = (uint32_t)i;
    return tokenizer_make_special(t, *ret) < 0 ? ERR_NOMEM(err) : 0;
}

static int read_template(struct tokenizer *t, const struct js_obj *o, struct error *err)
{
    json_t *single = NULL, *v;
    size_t i;
    bool seen_text = false;
    int r = js_array(o, "single", &single, err);
    if (r > 0)
        return ERR(err, FORMAT, "%s: \"%ssingle\" is missing", o->file, o->path);
    if (r < 0)
        return r;
    json_array_foreach(single, i, v)
    {
        json_t *special = json_object_get(v, "SpecialToken");
        if (!special) {
            seen_text = true;
            continue;
        }
        if (seen_text || t->add_bos)
            return ERR(err, UNSUPPORTED,
                       "%s: \"%ssingle\" adds a token %s; supported: one before the text", o->file,
                       o->path, seen_text ? "behind the text" : "more before the text");
        r = template_id(t, o, special, &t->bos, err);
        if (r < 0)
            return r;
        t->add_bos = true;
    }
    return 0;
}

static int each_post_processor(struct tokenizer *t, const struct js_obj *o, const char *type,
                               struct error *err)
{
    if (!strcmp(type, "ByteLevel")) /* moves offsets, not tokens */
        return 0;
    if (!strcmp(type, "TemplateProcessing"))
        return read_template(t, o, err);
    return ERR(err, UNSUPPORTED,
               "%s: post_processor \"%s\"; supported: Sequence, ByteLevel, TemplateProcessing",
               o->file, type);
}

static int each_decoder(struct tokenizer *t, const struct js_obj *o, const char *type,
                        struct error *err)
{
    (void)t;
    if (!strcmp(type, "ByteLevel"))
        return 0;
    return ERR(err, UNSUPPORTED, "%s: decoder \"%s\"; supported: ByteLevel", o->file, type);
}

int tokenizer_read_pipeline(struct tokenizer *t, const struct js_obj *root, struct error *err)
{
    static const struct walk normalizer = {"normalizer", "normalizers", each_normalizer},
                             post = {"post_processor", "processors", each_post_processor},
                             decoder = {"decoder", "decoders", each_decoder};
    int r;
    if ((r = walk_root(t, &normalizer, root, err)) < 0 ||
        (r = read_pre_tokenizer(t, root, err)) < 0 || (r = walk_root(t, &post, root, err)) < 0 ||
        (r = walk_root(t, &decoder, root, err)) < 0)
        return r;
    return 0;
}
