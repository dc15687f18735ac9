/* SPDX-License-Identifier: Apache-2.0 */
/* One line of a shard: read with every check, and written. */
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "engine/json.h"
#include "train/data.h"

static const char *const ends[DATA_END_COUNT] = {"unknown", "eos", "max", "loop"};

const char *data_end_name(enum data_end e)
{
    return (unsigned)e < DATA_END_COUNT ? ends[e] : "unknown";
}

void data_record_done(struct data_record *r)
{
    token_list_done(&r->ids);
    mem_free(r->spans);
    *r = (struct data_record){0};
}

static void data_record_clear(struct data_record *r)
{
    struct token_list ids = r->ids;
    struct data_span *spans = r->spans;
    uint32_t cap = r->spans_cap;
    *r = (struct data_record){.ids = ids, .spans = spans, .spans_cap = cap, .temperature = -1};
    r->ids.len = 0;
}

/* Without what a string of JSON escapes, cut at a character's end, since it goes into messages. */
static void copy_name(char *to, size_t size, const char *s)
{
    size_t n = 0;
    for (; *s && n + 1 < size; s++)
        if (*s != '"' && *s != '\\' && (unsigned char)*s >= ' ')
            to[n++] = *s;
    while (n && !utf8_valid(to, n)) /* a character that was cut */
        n--;
    to[n] = '\0';
}

static int read_ids(const struct js_obj *o, uint32_t vocab_size, struct data_record *ret,
                    struct error *err)
{
    json_t *a = NULL;
    int r = js_array(o, "ids", &a, err);
    if (r < 0)
        return r;
    if (r == 1)
        return ERR(err, FORMAT, "%s: \"ids\" is missing", o->file);
    size_t n = json_array_size(a);
    if (n == 0)
        return ERR(err, FORMAT, "%s: \"ids\" is empty", o->file);
    if (n > DATA_MAX_TOKENS)
        return ERR(err, LIMIT, "%s: \"ids\" has %zu tokens; at most %u are read", o->file, n,
                   DATA_MAX_TOKENS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(a, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > UINT32_MAX - 1)
            return ERR(err, FORMAT, "%s: \"ids\"[%zu] is not a token id", o->file, i);
        if (vocab_size && id >= vocab_size)
            return ERR(err, MISMATCH,
                       "%s: \"ids\"[%zu] is %lld; the model has %u tokens: data of another model?",
                       o->file, i, (long long)id, vocab_size);
        if (token_list_add(&ret->ids, (uint32_t)id) < 0)
            return ERR_NOMEM(err);
    }
    return 0;
}

int data_record_add_span(struct data_record *r, struct data_span s, struct error *err)
{
    if (r->n_spans == r->spans_cap) {
        uint32_t cap = r->spans_cap ? 2 * r->spans_cap : 4;
        struct data_span *grown = mem_realloc_array(r->spans, cap, sizeof(*grown));
        if (!grown)
            return ERR_NOMEM(err);
        r->spans = grown;
        r->spans_cap = cap;
    }
    r->spans[r->n_spans++] = s;
    r->n_supervised += s.end - s.begin;
    return 0;
}

static int read_spans(const struct js_obj *o, struct data_record *ret, struct error *err)
{
    json_t *a = NULL;
    int r = js_array(o, "response_spans", &a, err);
    if (r < 0)
        return r;
    if (r == 1)
        return ERR(err, FORMAT, "%s: \"response_spans\" is missing", o->file);
    if (json_array_size(a) > DATA_MAX_SPANS)
        return ERR(err, LIMIT, "%s: \"response_spans\" has %zu spans; at most %u are read", o->file,
                   json_array_size(a), DATA_MAX_SPANS);
    json_int_t last = 0;
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *p = json_array_get(a, i), *b = json_array_get(p, 0),
                     *e = json_array_get(p, 1);
        if (!json_is_array(p) || json_array_size(p) != 2 || !json_is_integer(b) ||
            !json_is_integer(e))
            return ERR(err, FORMAT, "%s: \"response_spans\"[%zu] is not [begin, end]", o->file, i);
        json_int_t begin = json_integer_value(b), end = json_integer_value(e);
        if (begin < last || end <= begin || (uint64_t)end > ret->ids.len)
            return ERR(
                err, FORMAT,
                "%s: \"response_spans\"[%zu] is [%lld, %lld]: spans ascend, are not empty, do "
                "not overlap and end inside the %zu ids",
                o->file, i, (long long)begin, (long long)end, ret->ids.len);
        last = end;
        r = data_record_add_span(ret, (struct data_span){(uint32_t)begin, (uint32_t)end}, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* A whole number from 0; 1 when there is none. */
static int read_u64(const struct js_obj *o, const char *key, uint64_t *ret, struct error *err)
{
    const json_t *v = json_object_get(o->o, key);
    if (!v || json_is_null(v))
        return 1;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return ERR(err, FORMAT, "%s: \"%s\" is not a whole number from 0", o->file, key);
    *ret = (uint64_t)json_integer_value(v);
    return 0;
}

static int read_notes(const struct js_obj *o, struct data_record *ret, struct error *err)
{
    const char *s = NULL;
    int r = js_str(o, "kind", &s, err);
    if (r < 0)
        return r;
    copy_name(ret->kind, sizeof(ret->kind), s ? s : "");
    s = NULL;
    if ((r = js_str(o, "end", &s, err)) < 0)
        return r;
    for (unsigned e = 0; s && e < DATA_END_COUNT; e++)
        if (!strcmp(s, ends[e]))
            ret->end = (enum data_end)e;
    if ((r = js_f64(o, "temperature", &ret->temperature, err)) < 0)
        return r;
    if (r == 0 && !(ret->temperature >= 0 && ret->temperature <= 100))
        return ERR(err, FORMAT, "%s: \"temperature\" is not from 0 to 100", o->file);
    if (r == 0 && ret->temperature == 0)
        ret->temperature = 0; /* never -0, which is written as "-0" and read back as 0 */
    if ((r = read_u64(o, "seed", &ret->seed, err)) < 0)
        return r;
    ret->has_seed = r == 0;
    if ((r = read_u64(o, "n", &ret->number, err)) < 0)
        return r;
    ret->has_number = r == 0;
    return 0;
}

static int read_header(const struct js_obj *o, uint32_t vocab_size, struct data_header *ret,
                       struct error *err)
{
    struct data_header h = {.present = true};
    uint32_t format = 0;
    const char *s = NULL;
    int r = js_u32(o, "dedit_data", 1, UINT32_MAX, &format, err);
    if (r < 0)
        return r;
    if (format != DATA_FORMAT)
        return ERR(err, UNSUPPORTED, "%s: \"dedit_data\" is %u; this version reads %d", o->file,
                   format, DATA_FORMAT);
    if ((r = js_str(o, "target", &s, err)) < 0)
        return r;
    copy_name(h.target, sizeof(h.target), s ? s : "");
    s = NULL;
    if ((r = js_str(o, "made_by", &s, err)) < 0 ||
        (r = js_u32(o, "vocab_size", 1, UINT32_MAX - 1, &h.vocab_size, err)) < 0 ||
        (r = read_u64(o, "seed", &h.seed, err)) < 0)
        return r;
    copy_name(h.made_by, sizeof(h.made_by), s ? s : "");
    if (vocab_size && h.vocab_size && h.vocab_size != vocab_size)
        return ERR(err, MISMATCH, "%s: written by a model of %u tokens (%s); this one has %u",
                   o->file, h.vocab_size, h.target, vocab_size);
    if (ret)
        *ret = h;
    return 1;
}

int data_parse_line(const char *text, size_t len, const char *file, uint64_t line,
                    uint32_t vocab_size, struct data_record *ret, struct data_header *header,
                    struct error *err)
{
    char name[512];
    json_auto_t *o = NULL;
    size_t blank = 0;
    data_record_clear(ret);
    while (blank < len && memchr(" \t\r\n", text[blank], 4))
        blank++;
    if (blank == len)
        return 2;
    snprintf(name, sizeof(name), "%.480s:%llu", file, (unsigned long long)line);
    if (len > DATA_MAX_LINE)
        return ERR(err, LIMIT, "%s: the line has %zu bytes; at most %zu are read", name, len,
                   DATA_MAX_LINE);
    int r = js_parse_line(text, len, file, line, &o, err);
    if (r < 0)
        return r;
    const struct js_obj root = js_root(o, name);
    if (json_object_get(o, "dedit_data"))
        return read_header(&root, vocab_size, header, err);
    if ((r = read_ids(&root, vocab_size, ret, err)) < 0 || (r = read_spans(&root, ret, err)) < 0 ||
        (r = read_notes(&root, ret, err)) < 0)
        return r;
    return 0;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static int add_uint(struct strbuf *out, uint32_t v)
{
    char digits[12];
    size_t n = sizeof(digits);
    do
        digits[--n] = (char)('0' + v % 10);
    while (v /= 10);
    return strbuf_add(out, digits + n, sizeof(digits) - n);
}

static int add_notes(const struct data_record *r, struct strbuf *out)
{
    char number[32];
    int code = strbuf_addc(out, '{');
    if (r->has_number && code == 0)
        code = strbuf_addf(out, "\"n\": %llu, ", (unsigned long long)r->number);
    if (r->kind[0] && code == 0) /* a name of ours, or what copy_name() left */
        code = strbuf_addf(out, "\"kind\": \"%s\", ", r->kind);
    if (r->has_seed && code == 0)
        code = strbuf_addf(out, "\"seed\": %llu, ", (unsigned long long)r->seed);
    if (r->temperature >= 0 && code == 0)
        code = strbuf_addf(out, "\"temperature\": %s, ", format_double(r->temperature, number));
    if (r->end != DATA_END_UNKNOWN && code == 0)
        code = strbuf_addf(out, "\"end\": \"%s\", ", data_end_name(r->end));
    return code;
}

int data_format_line(const struct data_record *r, const char *messages, struct strbuf *out)
{
    const size_t was = out->len;
    int code = add_notes(r, out);
    if (messages && code == 0 && (code = strbuf_adds(out, "\"messages\": ")) == 0 &&
        (code = strbuf_adds(out, messages)) == 0)
        code = strbuf_adds(out, ", ");
    if (code == 0)
        code = strbuf_adds(out, "\"response_spans\": [");
    for (uint32_t i = 0; i < r->n_spans && code == 0; i++)
        code = strbuf_addf(out, "%s[%u, %u]", i ? ", " : "", r->spans[i].begin, r->spans[i].end);
    if (code == 0)
        code = strbuf_adds(out, "], \"ids\": [");
    for (size_t i = 0; i < r->ids.len && code == 0; i++) {
        if (i && (code = strbuf_addc(out, ',')) < 0)
            break;
        code = add_uint(out, r->ids.ids[i]);
    }
    if (code == 0)
        code = strbuf_adds(out, "]}\n");
    if (code < 0 && out->s) {
        out->len = was;
        out->s[was] = '\0';
    }
    return code;
}
