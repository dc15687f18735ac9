/* SPDX-License-Identifier: Apache-2.0 */
/* Model files: which form a path is, and the public look-ups. */
#include "engine/model_file.h"

#include <string.h>
#include <sys/stat.h>

#include "engine/model_file_internal.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

int model_file_new(const char *path, struct model_file **ret, struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = mem_zalloc(sizeof(*f));
    if (!f)
        return ERR_NOMEM(err);
    f->path = mem_strdup(path);
    f->arena = arena_new(0);
    if (!f->path || !f->arena)
        return ERR_NOMEM(err);
    *ret = TAKE_PTR(f);
    return 0;
}

int model_file_open(const char *path, struct model_file **ret, struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    struct stat st;
    int r = model_file_new(path, &f, err);
    if (r < 0)
        return r;
    /* What can not be looked up is left to the opener, which says why. */
    bool found = stat(path, &st) == 0, folder = found && S_ISDIR(st.st_mode);
    if (found && !folder && (ends_with(path, ".safetensors") || ends_with(path, ".json")))
        return ERR(err, INVALID, "%s: one file of a Hugging Face model; name the folder instead",
                   path);
    if (folder) {
        r = model_open_hf(f, err);
    } else {
        r = gguf_open(path, &f->gguf, err);
        if (r >= 0)
            r = model_from_gguf(f, err);
    }
    if (r < 0)
        return r;
    *ret = TAKE_PTR(f);
    return 0;
}

int model_parse_gguf(const void *data, size_t size, const char *name, struct model_file **ret,
                     struct error *err)
{
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    int r = model_file_new(name, &f, err);
    if (r >= 0)
        r = gguf_parse(data, size, name, &f->gguf, err);
    if (r >= 0)
        r = model_from_gguf(f, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(f);
    return 0;
}

struct model_file *model_file_free(struct model_file *f)
{
    if (!f)
        return NULL;
    gguf_free(f->gguf);
    for (size_t i = 0; i < f->n_shards; i++)
        safetensors_free(f->shards[i]);
    mem_free(f->shards);
    file_map_done(&f->tokenizer);
    mem_free(f->tokenizer_config);
    mem_free(f->chat_template);
    mem_unmap_pages(f->pages, f->pages_bytes);
    arena_free(f->arena);
    mem_free(f->name);
    mem_free(f->path);
    mem_free(f);
    return NULL;
}

const char *model_file_path(const struct model_file *f)
{
    return f->path;
}

const char *model_file_name(const struct model_file *f)
{
    return f->name;
}

const struct model_config *model_file_config(const struct model_file *f)
{
    return &f->cfg;
}

const struct model_tensor *model_file_tensor(const struct model_file *f, enum model_tensor_role r,
                                             uint32_t layer)
{
    size_t i = r;
    if (r >= MT_ATTN_NORM) {
        if (layer >= f->cfg.n_layers)
            return NULL;
        i += (size_t)layer * MODEL_LAYER_ROLES;
    }
    return f->tensors[i].data ? &f->tensors[i] : NULL;
}

uint64_t model_file_weight_bytes(const struct model_file *f)
{
    return f->weight_bytes;
}

/* Each file ignores memory that is not its own (converted vectors, another shard). */
void model_file_release(struct model_file *f, const struct model_tensor *t)
{
    if (f->gguf)
        gguf_release(f->gguf, t->data, t->bytes);
    for (size_t i = 0; i < f->n_shards; i++)
        safetensors_release(f->shards[i], t->data, t->bytes);
    uintptr_t at = (uintptr_t)t->data, base = (uintptr_t)f->pages;
    struct file_map pages = {f->pages, f->pages_bytes};
    if (base && at >= base && at - base < pages.size)
        file_map_release(&pages, at - base, t->bytes); /* they read as zero from now on */
}

const struct gguf *model_file_gguf(const struct model_file *f)
{
    return f->gguf;
}

const char *model_file_tokenizer_json(const struct model_file *f, size_t *ret_len)
{
    *ret_len = f->tokenizer.size;
    return f->tokenizer.addr;
}

const char *model_file_tokenizer_config_json(const struct model_file *f, size_t *ret_len)
{
    *ret_len = f->tokenizer_config_len;
    return f->tokenizer_config;
}

const char *model_file_chat_template(const struct model_file *f)
{
    return f->chat_template;
}
