/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config-values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/parse.h"
#include "daemon/config.h"
#include "daemon/options.h"

#define MAX_TIME_NS ((uint64_t)INT64_MAX / 4) /* 73 years: added to any clock without overflow */

const struct option_desc daemon_options[] = {
#define X(section, key, TYPE, member, standard, unit, help)                                        \
    {section, key, VALUE_##TYPE, offsetof(struct config, member), standard, unit, help},
    DAEMON_OPTIONS(X)
#undef X
};
const size_t n_daemon_options = ARRAY_LEN(daemon_options);

const struct option_desc model_options[] = {
#define X(key, TYPE, member, standard, unit, help)                                                 \
    {NULL, key, VALUE_##TYPE, offsetof(struct model_config_entry, member), standard, unit, help},
    MODEL_OPTIONS(X)
#undef X
};
const size_t n_model_options = ARRAY_LEN(model_options);

/* ---- words ---------------------------------------------------------------------------------------------- */

struct word {
    const char *text;
    int value;
};
static const struct word loops[] = {
    {"auto", LOOP_AUTO}, {"io_uring", LOOP_URING}, {"epoll", LOOP_EPOLL}, {NULL, 0}};
static const struct word levels[] = {{"err", LOG_LEVEL_ERR},       {"warning", LOG_LEVEL_WARNING},
                                     {"notice", LOG_LEVEL_NOTICE}, {"info", LOG_LEVEL_INFO},
                                     {"debug", LOG_LEVEL_DEBUG},   {NULL, 0}};
static const struct word kv_types[] = {
    {"f32", DK_KV_F32}, {"bf16", DK_KV_BF16}, {"f16", DK_KV_F16}, {NULL, 0}};
static const struct word dtypes[] = {{"auto", BACKEND_DTYPE_AUTO}, {"file", BACKEND_DTYPE_FILE},
                                     {"bf16", BACKEND_DTYPE_BF16}, {"f32", BACKEND_DTYPE_F32},
                                     {"q8_0", BACKEND_DTYPE_Q8_0}, {NULL, 0}};
static const struct word exactness[] = {{"strict", false}, {"fast", true}, {NULL, 0}};

static int find_word(const struct word *w, const char *text, int *ret)
{
    for (; w->text; w++)
        if (strcmp(w->text, text) == 0) {
            *ret = w->value;
            return 0;
        }
    return DEDIT_E_INVALID;
}

static const char *word_of(const struct word *w, int value)
{
    for (; w->text; w++)
        if (w->value == value)
            return w->text;
    return "";
}

/* ---- lists of numbers -------------------------------------------------------------------------------------- */

/* uid_t and gid_t are both unsigned 32-bit; the list and its length stand next to each other. */
struct id_list {
    uint32_t *ids;
    size_t n;
};
_Static_assert(sizeof(uid_t) == 4 && sizeof(gid_t) == 4, "lists of ids");
_Static_assert(offsetof(struct config, n_privileged_uids) ==
                       offsetof(struct config, privileged_uids) + sizeof(void *) &&
                   offsetof(struct config, n_privileged_gids) ==
                       offsetof(struct config, privileged_gids) + sizeof(void *),
               "struct id_list");

static int set_ids(struct id_list *l, const char *text)
{
    struct id_list n = {0};
    _cleanup_free_ char *copy = mem_strdup(text);
    char *save = NULL;
    if (!copy)
        return DEDIT_E_NOMEM;
    for (char *t = strtok_r(copy, " ,", &save); t; t = strtok_r(NULL, " ,", &save)) {
        uint32_t id;
        uint32_t *grown = mem_realloc_array(n.ids, n.n + 1, sizeof *grown);
        int r = grown ? parse_u32(t, UINT32_MAX - 1, &id) : DEDIT_E_NOMEM;
        n.ids = grown ? grown : n.ids;
        if (r < 0) {
            mem_free(n.ids);
            return r;
        }
        n.ids[n.n++] = id;
    }
    mem_free(l->ids);
    *l = n;
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static int set_mode(mode_t *to, const char *text)
{
    unsigned v = 0;
    if (!*text || strlen(text) > 4)
        return DEDIT_E_INVALID;
    for (const char *c = text; *c; c++) {
        if (*c < '0' || *c > '7')
            return DEDIT_E_INVALID;
        v = v * 8 + (unsigned)(*c - '0');
    }
    if (v > 0777)
        return DEDIT_E_INVALID;
    *to = v;
    return 0;
}

/* What a line of a file can say: flags may not say more, or the printed configuration would be another. */
static bool is_line(const char *text)
{
    size_t n = strlen(text);
    if (n && (text[0] == ' ' || text[0] == ';' || text[n - 1] == ' '))
        return false;
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f || (*c == ' ' && c[1] == ';'))
            return false;
    return true;
}

static int set_string(char **to, const char *text)
{
    if (!is_line(text))
        return DEDIT_E_INVALID;
    char *s = *text ? mem_strdup(text) : NULL;
    if (*text && !s)
        return DEDIT_E_NOMEM;
    mem_free(*to);
    *to = s;
    return 0;
}

static int set_word(const struct word *w, void *to, size_t size, const char *text)
{
    int v;
    int r = find_word(w, text, &v);
    if (r == 0)
        memcpy(to, &v, size); /* enums and ints alike */
    return r;
}

static int parse_value(const struct option_desc *o, void *to, const char *text)
{
    uint64_t u = 0;
    int64_t i = 0;
    int r = 0, word;
    switch (o->type) {
    case VALUE_STRING:
        return set_string(to, text);
    case VALUE_MODE:
        return set_mode(to, text);
    case VALUE_TIME:
        r = parse_duration_ns(text, &u);
        if (r == 0 && u > MAX_TIME_NS)
            r = DEDIT_E_LIMIT;
        if (r == 0)
            *(uint64_t *)to = u;
        return r;
    case VALUE_U32:
        return parse_u32(text, UINT32_MAX, to);
    case VALUE_SIZE:
        return parse_size(text, to);
    case VALUE_U32SIZE:
        r = parse_size(text, &u);
        if (r == 0 && u > UINT32_MAX)
            r = DEDIT_E_LIMIT;
        if (r == 0)
            *(uint32_t *)to = (uint32_t)u;
        return r;
    case VALUE_I32:
        r = parse_i64(text, &i);
        if (r == 0 && (i < INT32_MIN || i > INT32_MAX))
            r = DEDIT_E_LIMIT;
        if (r == 0)
            *(int32_t *)to = (int32_t)i;
        return r;
    case VALUE_BOOL:
        return parse_bool(text, to);
    case VALUE_LOOP:
        return set_word(loops, to, sizeof(enum loop_kind), text);
    case VALUE_LEVEL:
        return set_word(levels, to, sizeof(int), text);
    case VALUE_KVTYPE:
        return set_word(kv_types, to, sizeof(enum dk_kv_type), text);
    case VALUE_DTYPE:
        return set_word(dtypes, to, sizeof(enum backend_dtype), text);
    case VALUE_EXACTNESS:
        r = find_word(exactness, text, &word);
        if (r == 0)
            *(bool *)to = word;
        return r;
    case VALUE_UIDS:
    case VALUE_GIDS:
        return set_ids(to, text);
    }
    return DEDIT_E_INTERNAL;
}

int value_set(const struct option_desc *o, void *base, const char *text, struct error *err)
{
    int r = parse_value(o, (char *)base + o->offset, text);
    if (r == DEDIT_E_NOMEM)
        return ERR_NOMEM(err);
    if (r < 0)
        return ERR(err, INVALID, "%s: \"%s\" is no value of the form %s", o->key, text, o->unit);
    return 0;
}

/* In the largest unit that says it exactly. */
static int print_time(uint64_t ns, struct strbuf *out)
{
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"s", 1000000000}, {"ms", 1000000}, {"us", 1000}, {"ns", 1}};
    size_t i = 0;
    while (ns % units[i].ns)
        i++;
    return strbuf_addf(out, "%llu%s", (unsigned long long)(ns / units[i].ns), units[i].unit);
}

int value_print(const struct option_desc *o, const void *base, struct strbuf *out)
{
    const void *p = (const char *)base + o->offset;
    int word = 0;
    switch (o->type) {
    case VALUE_STRING:
        return strbuf_adds(out, *(char *const *)p ? *(char *const *)p : "");
    case VALUE_MODE:
        return strbuf_addf(out, "%04o", (unsigned)*(const mode_t *)p);
    case VALUE_TIME:
        return print_time(*(const uint64_t *)p, out);
    case VALUE_U32:
    case VALUE_U32SIZE:
        return strbuf_addf(out, "%u", *(const uint32_t *)p);
    case VALUE_SIZE:
        return strbuf_addf(out, "%llu", (unsigned long long)*(const uint64_t *)p);
    case VALUE_I32:
        return strbuf_addf(out, "%d", *(const int32_t *)p);
    case VALUE_BOOL:
        return strbuf_adds(out, *(const bool *)p ? "yes" : "no");
    case VALUE_LOOP:
        memcpy(&word, p, sizeof(enum loop_kind));
        return strbuf_adds(out, word_of(loops, word));
    case VALUE_LEVEL:
        memcpy(&word, p, sizeof(int));
        return strbuf_adds(out, word_of(levels, word));
    case VALUE_KVTYPE:
        memcpy(&word, p, sizeof(enum dk_kv_type));
        return strbuf_adds(out, word_of(kv_types, word));
    case VALUE_DTYPE:
        memcpy(&word, p, sizeof(enum backend_dtype));
        return strbuf_adds(out, word_of(dtypes, word));
    case VALUE_EXACTNESS:
        return strbuf_adds(out, word_of(exactness, *(const bool *)p));
    case VALUE_UIDS:
    case VALUE_GIDS: {
        const struct id_list *l = p;
        int r = 0;
        for (size_t i = 0; i < l->n && r == 0; i++)
            r = strbuf_addf(out, "%s%u", i ? " " : "", l->ids[i]);
        return r;
    }
    }
    return DEDIT_E_INTERNAL;
}

void value_free(const struct option_desc *o, void *base)
{
    void *p = (char *)base + o->offset;
    if (o->type == VALUE_STRING || o->type == VALUE_UIDS || o->type == VALUE_GIDS) {
        mem_free(*(void **)p);
        *(void **)p = NULL;
    }
}
