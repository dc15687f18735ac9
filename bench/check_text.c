/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of tokenizer/ and chat/.  Strings are many, so a line stands for all of one category; the
 * first that differs is told.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "bench/check.h"

#define MAX_GROUPS 64

/* Results of one category. */
struct group {
    char name[64];
    size_t n, bad;
    char first[576]; /* what the first failure was */
};
struct groups {
    struct group g[MAX_GROUPS];
    size_t n;
};

static struct group *group_of(struct groups *gs, const char *name)
{
    for (size_t i = 0; i < gs->n; i++)
        if (!strcmp(gs->g[i].name, name))
            return &gs->g[i];
    struct group *g = &gs->g[gs->n < MAX_GROUPS ? gs->n++ : MAX_GROUPS - 1];
    snprintf(g->name, sizeof(g->name), "%s", name);
    return g;
}

static void group_add(struct group *g, bool ok, int line, const char *what)
{
    g->n++;
    if (ok)
        return;
    if (!g->bad++)
        snprintf(g->first, sizeof(g->first), "line %d: %s", line, what);
}

static void groups_report(struct check *k, const char *kind, const char *file,
                          const struct groups *gs)
{
    for (size_t i = 0; i < gs->n; i++) {
        const struct group *g = &gs->g[i];
        char name[400];
        snprintf(name, sizeof(name), "%s/%s", file, g->name);
        if (g->bad)
            check_result(k, false, kind, name, "%zu of %zu differ; %s", g->bad, g->n, g->first);
        else
            check_result(k, true, kind, name, "%zu strings", g->n);
    }
}

/* ---- tokenizers ---- */

struct loaded {
    struct tokenizer *t;
    struct model_file *file;
    char why[600]; /* it is not there */
};

static void loaded_done(struct loaded *l)
{
    tokenizer_free(l->t);
    model_file_free(l->file);
    memset(l, 0, sizeof(*l));
}

static bool qwen3_path(const struct check *k, char *buf, size_t size)
{
    if (k->qwen3) {
        snprintf(buf, size, "%s", k->qwen3);
        return true;
    }
    snprintf(buf, size, "%s/qwen3-tokenizer/tokenizer.json", k->dir);
    if (check_exists(buf))
        return true;
    snprintf(buf, size, "%s/../qwen3-tokenizer/tokenizer.json", k->dir);
    return check_exists(buf);
}

/* 0 loaded, 1 not there (why is set), negative: broken. */
static int load_qwen3(const struct check *k, struct loaded *l, struct error *err)
{
    char path[4096], config[4096];
    if (!qwen3_path(k, path, sizeof(path))) {
        snprintf(
            l->why, sizeof(l->why),
            "no qwen3-tokenizer/tokenizer.json in or beside %.300s; --qwen3-tokenizer names it",
            k->dir);
        return 1;
    }
    _cleanup_free_ char *text = NULL, *config_text = NULL;
    size_t len, config_len = 0;
    int r = file_read(path, 64u << 20, &text, &len, err);
    if (r < 0)
        return r;
    /* tokenizer_config.json beside it, when there. */
    char *slash = strrchr(path, '/');
    int dir = slash ? (int)(slash - path) : 0;
    snprintf(config, sizeof(config), "%.*s%stokenizer_config.json", dir, path, slash ? "/" : "");
    if (check_exists(config) &&
        (r = file_read(config, 1u << 20, &config_text, &config_len, err)) < 0)
        return r;
    return tokenizer_from_json(text, len, config_text, config_len, path, &l->t, err);
}

static int load_smollm2(const struct check *k, struct loaded *l, struct error *err)
{
    if (!k->model[0]) {
        snprintf(l->why, sizeof(l->why), "%s", k->model_error.msg);
        return 1;
    }
    int r = model_file_open(k->model, &l->file, err);
    return r < 0 ? r : tokenizer_load(l->file, &l->t, err);
}

static int load(const struct check *k, const char *name, struct loaded *l, struct error *err)
{
    memset(l, 0, sizeof(*l));
    if (!strcmp(name, "qwen3"))
        return load_qwen3(k, l, err);
    if (!strcmp(name, "smollm2"))
        return load_smollm2(k, l, err);
    return ERR(err, UNSUPPORTED, "no tokenizer is known by the name \"%s\"", name);
}

/* Loads, or tells why not; true when there is one. */
static bool load_or_tell(struct check *k, const char *kind, const char *file, const char *name,
                         struct loaded *l)
{
    struct error err = {0};
    int r = load(k, name, l, &err);
    if (r < 0)
        check_result(k, false, kind, file, "%s", err.msg);
    else if (r > 0)
        check_skip(k, kind, file, l->why);
    return r == 0;
}

/* Does encoding text give the ids under key?  What differs goes to `what`. */
static int encode_case(const struct tokenizer *t, const json_t *o, const char *text, size_t len,
                       const char *key, unsigned flags, char *what, size_t size, struct error *err)
{
    struct check_ids want;
    int r = check_get_ids(o, key, &want, err);
    if (r < 0)
        return r;
    _cleanup_token_list_ struct token_list got = {0};
    r = tokenizer_encode(t, text, len, flags, &got, NULL, err);
    if (r == 0 && !check_ids_equal(got.ids, got.len, &want)) {
        size_t i = 0;
        while (i < got.len && i < want.n && got.ids[i] == want.v[i])
            i++;
        snprintf(what, size, "%s: id %zu is %d, wanted %d (%zu ids, wanted %zu)", key, i,
                 i < got.len ? (int)got.ids[i] : -1, i < want.n ? (int)want.v[i] : -1, got.len,
                 want.n);
        r = 1;
    }
    mem_free(want.v);
    return r;
}

static int decode_ids(const struct tokenizer *t, const struct check_ids *ids, struct strbuf *out,
                      struct error *err)
{
    struct detokenizer d = {0};
    for (size_t i = 0; i < ids->n; i++)
        if (detokenizer_push(&d, t, ids->v[i], 0, out) < 0)
            return ERR_NOMEM(err);
    return detokenizer_flush(&d, out) < 0 ? ERR_NOMEM(err) : 0;
}

static int encode_line(const struct tokenizer *t, const json_t *o, char *what, size_t size,
                       struct error *err)
{
    const json_t *text = json_object_get(o, "text"), *decoded = json_object_get(o, "decoded");
    if (!json_is_string(text))
        return ERR(err, FORMAT, "\"text\" is not a string");
    const char *s = json_string_value(text);
    size_t len = json_string_length(text);
    int r = encode_case(t, o, s, len, "ids", TOKENIZE_SPECIAL, what, size, err);
    if (r == 0)
        r = encode_case(t, o, s, len, "ids_nospecial", 0, what, size, err);
    if (r)
        return r;
    struct check_ids ids;
    if ((r = check_get_ids(o, "ids", &ids, err)) < 0)
        return r;
    _cleanup_strbuf_ struct strbuf out = {0};
    r = decode_ids(t, &ids, &out, err);
    mem_free(ids.v);
    if (r < 0)
        return r;
    const json_t *want = decoded ? decoded : text;
    if (out.len != json_string_length(want) ||
        (out.len && memcmp(out.s, json_string_value(want), out.len))) {
        snprintf(what, size, "decoding the ids gives another text");
        return 1;
    }
    return 0;
}

static int stream_line(const struct tokenizer *t, const json_t *o, char *what, size_t size,
                       struct error *err)
{
    struct check_ids ids;
    struct detokenizer d = {0};
    _cleanup_strbuf_ struct strbuf out = {0};
    const json_t *emitted = json_object_get(o, "emitted");
    int r = check_get_ids(o, "ids", &ids, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i <= ids.n && r == 0; i++) {
        const json_t *want = i < ids.n ? json_array_get(emitted, i) : json_object_get(o, "flush");
        strbuf_clear(&out);
        if ((i < ids.n ? detokenizer_push(&d, t, ids.v[i], 0, &out) : detokenizer_flush(&d, &out)) <
            0) {
            r = ERR_NOMEM(err);
        } else if (!json_is_string(want)) {
            r = ERR(err, FORMAT, "\"emitted\" is too short, or \"flush\" is missing");
        } else if (out.len != json_string_length(want) ||
                   (out.len && memcmp(out.s, json_string_value(want), out.len))) {
            snprintf(what, size, "token %zu of %zu releases another text", i, ids.n);
            r = 1;
        }
    }
    mem_free(ids.v);
    return r;
}

static int bytes_line(const struct tokenizer *t, const json_t *o, char *what, size_t size,
                      struct error *err)
{
    const char *hex;
    double id = 0;
    int r = check_get_str(o, "hex", &hex, err);
    if (r == 0)
        r = check_get_num(o, "id", &id, err);
    if (r < 0)
        return r;
    size_t len;
    const char *bytes = tokenizer_token_bytes(t, (uint32_t)id, &len);
    bool same = len * 2 == strlen(hex);
    for (size_t i = 0; i < len && same; i++) {
        char two[3];
        snprintf(two, sizeof(two), "%02x", (unsigned char)bytes[i]);
        same = !memcmp(two, hex + 2 * i, 2);
    }
    same = same && tokenizer_is_added(t, (uint32_t)id) == json_is_true(json_object_get(o, "added"));
    same = same &&
           tokenizer_is_special(t, (uint32_t)id) == json_is_true(json_object_get(o, "special"));
    if (!same)
        snprintf(what, size, "token %.0f has other bytes or flags", id);
    return same ? 0 : 1;
}

/* suffix: ".encode" and so on; category: the key that names a line's group. */
static void check_file(struct check *k, const char *kind, const char *suffix, const char *category,
                       int (*run)(const struct tokenizer *, const json_t *, char *, size_t,
                                  struct error *))
{
    struct check_names list = {NULL, 0};
    struct error err = {0};
    char full[64];
    snprintf(full, sizeof(full), "%s.jsonl", suffix);
    if (check_list(k, kind, full, &list, &err) < 0) {
        check_result(k, false, kind, suffix, "%s", err.msg);
        return;
    }
    for (size_t i = 0; i < list.n; i++) {
        char file[300], rest[310];
        snprintf(file, sizeof(file), "%s%s", list.names[i], suffix);
        snprintf(rest, sizeof(rest), "%s.jsonl", file);
        struct loaded l;
        struct check_lines lines = {0};
        json_t *o;
        static struct groups gs;
        memset(&gs, 0, sizeof(gs));
        if (load_or_tell(k, kind, file, list.names[i], &l)) {
            int r = check_lines_open(&lines, check_path(k, kind, rest), &err);
            while (r >= 0 && (r = check_lines_next(&lines, &o, &err)) > 0) {
                char what[200] = "";
                const char *cat = json_string_value(json_object_get(o, category));
                struct error line_err = {0};
                int bad = run(l.t, o, what, sizeof(what), &line_err);
                group_add(group_of(&gs, cat ? cat : "all"), bad == 0, lines.number,
                          bad < 0 ? line_err.msg : what);
                json_decref(o);
            }
            groups_report(k, kind, file, &gs);
            if (r < 0)
                check_result(k, false, kind, file, "%s", err.msg);
            check_lines_done(&lines);
        }
        loaded_done(&l);
    }
    check_names_done(&list);
}

void check_tokenizer(struct check *k, const char *kind)
{
    check_file(k, kind, ".encode", "cat", encode_line);
    check_file(k, kind, ".stream", "kind", stream_line);
    check_file(k, kind, ".token_bytes", "group", bytes_line);
}

/* ---- chat ---- */

#define MAX_MESSAGES 32

static int read_messages(const json_t *o, struct chat_message *m, char **calls, size_t *ret_n,
                         struct error *err)
{
    const json_t *list = json_object_get(o, "messages"), *x;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) > MAX_MESSAGES)
        return ERR(err, FORMAT, "\"messages\" is not a list of at most %d", MAX_MESSAGES);
    json_array_foreach(list, i, x)
    {
        const json_t *content = json_object_get(x, "content");
        const json_t *tool_calls = json_object_get(x, "tool_calls");
        m[i] = (struct chat_message){
            .content = json_is_string(content) ? json_string_value(content) : "",
            .content_len = json_string_length(content),
            .reasoning = json_string_value(json_object_get(x, "reasoning_content")),
        };
        int r = check_get_str(x, "role", &m[i].role, err);
        if (r < 0)
            return r;
        if (json_is_array(tool_calls)) {
            calls[i] = json_dumps(tool_calls, JSON_ENSURE_ASCII);
            if (!calls[i])
                return ERR_NOMEM(err);
            m[i].tool_calls_json = calls[i];
        }
    }
    *ret_n = json_array_size(list);
    return 0;
}

static int render_case(const struct tokenizer *t, const json_t *o, enum chat_format format,
                       const struct chat_message *m, size_t n, const struct chat_options *opt,
                       char *what, size_t size, struct error *err)
{
    const json_t *text = json_object_get(o, "text");
    _cleanup_strbuf_ struct strbuf out = {0};
    int r = chat_render_text(format, m, n, opt, &out, err);
    if (r < 0)
        return r;
    if (!json_is_string(text) || out.len != json_string_length(text) ||
        memcmp(out.s ? out.s : "", json_string_value(text), out.len)) {
        snprintf(what, size, "the text differs");
        return 1;
    }
    r = encode_case(t, o, out.s ? out.s : "", out.len, "ids", TOKENIZE_SPECIAL, what, size, err);
    if (r)
        return r;
    struct check_ids want;
    const char *key = json_object_get(o, "ids_safe") ? "ids_safe" : "ids";
    if ((r = check_get_ids(o, key, &want, err)) < 0)
        return r;
    _cleanup_token_list_ struct token_list got = {0};
    r = chat_render_ids(format, t, m, n, opt, &got, err);
    if (r == 0 && !check_ids_equal(got.ids, got.len, &want)) {
        snprintf(what, size, "the safe ids differ (%zu, wanted %zu)", got.len, want.n);
        r = 1;
    }
    mem_free(want.v);
    return r;
}

static int chat_line(const struct tokenizer *t, const json_t *o, char *what, size_t size,
                     struct error *err)
{
    struct chat_message m[MAX_MESSAGES];
    char *calls[MAX_MESSAGES] = {NULL}, *tools = NULL;
    size_t n = 0;
    const char *name;
    enum chat_format format = CHAT_CHATML;
    const json_t *kw = json_object_get(o, "kwargs"), *list = json_object_get(o, "tools");
    const json_t *thinking = json_object_get(kw, "enable_thinking");
    int r = check_get_str(o, "template", &name, err);
    if (r == 0 && !chat_format_parse(name, &format))
        r = ERR(err, UNSUPPORTED, "no chat format is called \"%s\"", name);
    if (r == 0)
        r = read_messages(o, m, calls, &n, err);
    if (r == 0 && json_is_array(list) && !(tools = json_dumps(list, JSON_ENSURE_ASCII)))
        r = ERR_NOMEM(err);
    const struct chat_options opt = {
        .add_generation_prompt = json_is_true(json_object_get(kw, "add_generation_prompt")),
        .enable_thinking = json_is_boolean(thinking) ? json_is_true(thinking) : -1,
        .tools_json = tools,
    };
    if (r == 0)
        r = render_case(t, o, format, m, n, &opt, what, size, err);
    for (size_t i = 0; i < MAX_MESSAGES; i++)
        mem_free(calls[i]);
    mem_free(tools);
    return r;
}

void check_chat(struct check *k, const char *kind)
{
    struct error err = {0};
    struct check_lines lines = {0};
    struct loaded l = {0};
    char have[64] = "", missing[64] = "";
    json_t *o;
    int r = check_lines_open(&lines, check_path(k, kind, "renders.jsonl"), &err);
    while (r >= 0 && (r = check_lines_next(&lines, &o, &err)) > 0) {
        const char *template = json_string_value(json_object_get(o, "template"));
        const char *case_name = json_string_value(json_object_get(o, "name"));
        char name[200], what[200] = "";
        struct error line_err = {0};
        template = template ? template : "";
        snprintf(name, sizeof(name), "%s/%s:%d", template, case_name ? case_name : "",
                 lines.number);
        /* Cases of one template stand together. */
        if (strcmp(have, template) && strcmp(missing, template)) {
            loaded_done(&l);
            bool there = load_or_tell(k, kind, template, template, &l);
            snprintf(have, sizeof(have), "%s", there ? template : "");
            snprintf(missing, sizeof(missing), "%s", there ? "" : template);
        }
        if (!strcmp(have, template)) {
            int bad = chat_line(l.t, o, what, sizeof(what), &line_err);
            check_result(k, bad == 0, kind, name, "%s", bad < 0 ? line_err.msg : what);
        }
        json_decref(o);
    }
    if (r < 0)
        check_result(k, false, kind, "renders", "%s", err.msg);
    check_lines_done(&lines);
    loaded_done(&l);
}
