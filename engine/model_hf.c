/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Hugging Face folder as a model: finds its files, opens one model.safetensors or the shards that
 * an index names, and checks the index against what the shards really hold.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/hf_config.h"
#include "engine/model_file_internal.h"

#define MAX_CONFIG_BYTES    ((size_t)1 << 20)
#define MAX_TOKENIZER_BYTES ((size_t)128 << 20)
#define MAX_INDEX_BYTES     ((size_t)32 << 20)
#define MAX_SHARDS          4096u

/* A file of the folder: its path and, once read, its text. */
struct part {
    char *path, *text;
    size_t len;
};

static void part_done(struct part *p)
{
    mem_free(p->path);
    mem_free(p->text);
}

static char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), m = strlen(name);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    char *p = mem_alloc(n + m + 2);
    if (p) {
        memcpy(p, dir, n);
        p[n] = '/';
        memcpy(p + n + 1, name, m + 1);
    }
    return p;
}

/* Something is there under this name, if only a dangling link (which is then an error to report,
 * not an absent file). */
static bool is_there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Reads a file of the folder; an absent one leaves text NULL. */
static int read_part(const struct model_file *f, const char *name, size_t max, struct part *p,
                     struct error *err)
{
    p->path = path_join(f->path, name);
    if (!p->path)
        return ERR_NOMEM(err);
    if (!is_there(p->path))
        return 0;
    return file_read(p->path, max, &p->text, &p->len, err);
}

static struct hf_text as_text(const struct part *p)
{
    return (struct hf_text){.text = p->text, .len = p->len, .name = p->path};
}

static int read_tokenizer(struct model_file *f, struct part *p, struct error *err)
{
    p->path = path_join(f->path, "tokenizer.json");
    if (!p->path)
        return ERR_NOMEM(err);
    if (!is_there(p->path))
        return 0;
    int r = file_map_open(p->path, &f->tokenizer, err);
    if (r < 0)
        return r;
    if (f->tokenizer.size > MAX_TOKENIZER_BYTES)
        return ERR(err, LIMIT, "%s: %zu bytes, at most %zu are allowed", p->path, f->tokenizer.size,
                   MAX_TOKENIZER_BYTES);
    return 0;
}

int hf_read_config(const struct model_file *f, char **ret_path, char **ret_text, size_t *ret_len,
                   struct error *err)
{
    _cleanup_(part_done) struct part config = {0};
    int r = read_part(f, "config.json", MAX_CONFIG_BYTES, &config, err);
    if (r >= 0 && !config.text)
        return ERR(err, NOT_FOUND,
                   "%s: has no config.json (a model is a .gguf file, or a folder with config.json "
                   "and safetensors)",
                   f->path);
    if (r < 0)
        return r;
    *ret_path = TAKE_PTR(config.path);
    *ret_text = TAKE_PTR(config.text);
    *ret_len = config.len;
    return 0;
}

static int read_configs(struct model_file *f, struct error *err)
{
    _cleanup_(part_done) struct part config = {0}, generation = {0}, tok_config = {0}, tok = {0},
                                     jinja = {0};
    int r = hf_read_config(f, &config.path, &config.text, &config.len, err);
    if (r >= 0)
        r = read_part(f, "generation_config.json", MAX_CONFIG_BYTES, &generation, err);
    if (r >= 0)
        r = read_part(f, "tokenizer_config.json", 16 * MAX_CONFIG_BYTES, &tok_config, err);
    if (r >= 0)
        r = read_part(f, "chat_template.jinja", MAX_CONFIG_BYTES, &jinja, err);
    if (r >= 0)
        r = read_tokenizer(f, &tok, err);
    if (r < 0)
        return r;
    struct hf_texts t = {.config = as_text(&config),
                         .generation = as_text(&generation),
                         .tokenizer_config = as_text(&tok_config),
                         .tokenizer = {f->tokenizer.addr, f->tokenizer.size, tok.path}};
    r = hf_config_parse(&t, &f->cfg, err);
    if (r < 0)
        return r;
    if (jinja.text)
        f->chat_template = TAKE_PTR(jinja.text);
    else if (tok_config.text)
        r = hf_chat_template(&t.tokenizer_config, &f->chat_template, err);
    f->tokenizer_config = TAKE_PTR(tok_config.text);
    f->tokenizer_config_len = tok_config.len;
    return r;
}

static int open_shard(struct model_file *f, const char *path, struct error *err)
{
    int r = safetensors_open(path, &f->shards[f->n_shards], err);
    if (r >= 0)
        f->n_shards++;
    return r;
}

/* A shard is a file of the folder itself. */
static bool is_plain_name(const char *s)
{
    size_t n = strlen(s);
    return n > strlen(".safetensors") && n < 256 && !strchr(s, '/') && s[0] != '.' &&
           !strcmp(s + n - strlen(".safetensors"), ".safetensors");
}

/* The distinct shard names of weight_map, sorted, in refs[0..*ret_n). */
static int shard_names(const struct js_obj *map, struct name_ref *refs, size_t *ret_n,
                       struct error *err)
{
    const char *key;
    json_t *v;
    size_t n = 0, unique = 0;
    json_object_foreach(map->o, key, v)
    {
        if (!json_is_string(v) || !is_plain_name(json_string_value(v)))
            return ERR(err, FORMAT,
                       "%s: \"weight_map\": \"%.96s\" must name a .safetensors file of the folder",
                       map->file, key);
        refs[n++] = (struct name_ref){json_string_value(v), json_string_length(v), 0};
    }
    names_sort(refs, n);
    for (size_t i = 0; i < n; i++)
        if (unique == 0 || strcmp(refs[unique - 1].s, refs[i].s) != 0)
            refs[unique++] = refs[i];
    if (unique > MAX_SHARDS)
        return ERR(err, LIMIT, "%s: %zu shards, at most %u are read", map->file, unique,
                   MAX_SHARDS);
    for (size_t i = 0; i < unique; i++)
        refs[i].index = (uint32_t)i;
    *ret_n = unique;
    return 0;
}

/* Each entry of the map must be in its shard, and each tensor of a shard in the map. */
static int check_map(const struct model_file *f, const struct js_obj *map,
                     const struct name_ref *refs, struct error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach(map->o, key, v)
    {
        const char *file = json_string_value(v);
        const struct name_ref *ref = names_find(refs, f->n_shards, file, strlen(file));
        if (!ref || !safetensors_find(f->shards[ref->index], key))
            return ERR(err, MISMATCH, "%s: tensor \"%.96s\" is not in \"%s\", where the index says",
                       map->file, key, file);
    }
    for (size_t i = 0; i < f->n_shards; i++) {
        for (size_t k = 0; k < safetensors_count(f->shards[i]); k++) {
            const char *name = safetensors_at(f->shards[i], k)->name;
            const char *file = json_string_value(json_object_get(map->o, name));
            if (!file)
                return ERR(err, MISMATCH, "%s: tensor \"%.96s\" of \"%s\" is not in the index",
                           map->file, name, refs[i].s);
            if (strcmp(file, refs[i].s) != 0)
                return ERR(err, MISMATCH,
                           "%s: tensor \"%.96s\" is in \"%s\", the index says \"%s\"", map->file,
                           name, refs[i].s, file);
        }
    }
    return 0;
}

static int open_index(struct model_file *f, const struct part *index, struct error *err)
{
    json_auto_t *root = NULL;
    struct js_obj map;
    int r = js_parse_object(index->text, index->len, index->path, &root, err);
    if (r < 0)
        return r;
    struct js_obj o = js_root(root, index->path);
    r = js_object(&o, "weight_map", &map, err);
    if (r == 1 || (r == 0 && json_object_size(map.o) == 0))
        return ERR(err, FORMAT, "%s: \"weight_map\" is missing or empty", index->path);
    if (r < 0)
        return r;
    size_t n = 0;
    _cleanup_free_ struct name_ref *refs = mem_array(json_object_size(map.o), sizeof(*refs));
    if (!refs)
        return ERR_NOMEM(err);
    r = shard_names(&map, refs, &n, err);
    if (r < 0)
        return r;
    f->shards = mem_calloc(n, sizeof(struct safetensors *));
    if (!f->shards)
        return ERR_NOMEM(err);
    for (size_t i = 0; i < n; i++) {
        _cleanup_free_ char *path = path_join(f->path, refs[i].s);
        if (!path)
            return ERR_NOMEM(err);
        r = open_shard(f, path, err);
        if (r < 0)
            return r;
    }
    return check_map(f, &map, refs, err);
}

/* model.safetensors wins over an index, as in the reference programs. */
int hf_open_weights(struct model_file *f, char **ret_named, struct error *err)
{
    _cleanup_(part_done) struct part index = {0};
    _cleanup_free_ char *single = path_join(f->path, "model.safetensors");
    if (!single)
        return ERR_NOMEM(err);
    if (is_there(single)) {
        f->shards = mem_calloc(1, sizeof(struct safetensors *));
        if (!f->shards)
            return ERR_NOMEM(err);
        *ret_named = TAKE_PTR(single);
        return open_shard(f, *ret_named, err);
    }
    int r = read_part(f, "model.safetensors.index.json", MAX_INDEX_BYTES, &index, err);
    if (r < 0)
        return r;
    if (!index.text)
        return ERR(err, NOT_FOUND,
                   "%s: has neither model.safetensors nor model.safetensors.index.json (weights in "
                   "other formats are not read)",
                   f->path);
    r = open_index(f, &index, err);
    *ret_named = TAKE_PTR(index.path);
    return r;
}

static enum dk_type dk_of(enum st_dtype t)
{
    return t == ST_F32 ? DK_F32 : t == ST_F16 ? DK_F16 : t == ST_BF16 ? DK_BF16 : DK_TYPE_COUNT;
}

int hf_list_tensors(struct model_file *f, const char *named, struct error *err)
{
    struct src_table s = {.hf = true, .missing = named};
    for (size_t i = 0; i < f->n_shards; i++)
        s.n += safetensors_count(f->shards[i]);
    _cleanup_free_ struct src_tensor *t = mem_array(s.n, sizeof(*t));
    _cleanup_free_ struct name_ref *names = mem_array(s.n, sizeof(*names));
    if (!t || !names)
        return ERR_NOMEM(err);
    size_t n = 0;
    for (size_t i = 0; i < f->n_shards; i++) {
        for (size_t k = 0; k < safetensors_count(f->shards[i]); k++, n++) {
            const struct st_tensor *st = safetensors_at(f->shards[i], k);
            t[n] = (struct src_tensor){.name = st->name,
                                       .name_len = strlen(st->name),
                                       .file = safetensors_path(f->shards[i]),
                                       .type_name = st_dtype_name(st->dtype),
                                       .type = dk_of(st->dtype),
                                       .n_dims = st->n_dims,
                                       .data = st->data,
                                       .bytes = st->bytes};
            memcpy(t[n].dims, st->dims, sizeof(st->dims));
            names[n] = (struct name_ref){t[n].name, t[n].name_len, (uint32_t)n};
        }
    }
    names_sort(names, n);
    s.t = t;
    s.names = names;
    return model_bind(f, &s, err);
}

/* The folder's own name, also for "." and "models/x/". */
int hf_take_name(struct model_file *f, struct error *err)
{
    char full[PATH_MAX];
    const char *path = realpath(f->path, full) ? full : f->path;
    const char *slash = strrchr(path, '/');
    f->name = mem_strdup(slash && slash[1] ? slash + 1 : path);
    return f->name ? 0 : ERR_NOMEM(err);
}

int model_open_hf(struct model_file *f, struct error *err)
{
    _cleanup_free_ char *named = NULL;
    int r = read_configs(f, err);
    if (r >= 0)
        r = hf_take_name(f, err);
    if (r >= 0)
        r = hf_open_weights(f, &named, err);
    return r < 0 ? r : hf_list_tensors(f, named, err);
}
