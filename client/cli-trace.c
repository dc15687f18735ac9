/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cli-trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/out_file.h"
#include "base/strbuf.h"

/* An edit changed a draft: to the text's own token, away from it, or between two others. */
enum edit { EDIT_NONE, EDIT_HELPFUL, EDIT_HARMFUL, EDIT_NEUTRAL, EDIT_OPEN, EDIT_KINDS };

struct trace {
    struct cli *c;
    struct dedit_client *d;
    bool show, failed;
    const char *path; /* of the file, "-": standard output, or NULL */
    FILE *file;
    struct out_file out_file;
    uint32_t *out; /* the answer so far */
    size_t n_out, cap_out;
    struct strbuf text; /* of the answer, printed at the end */
    json_t *rounds;     /* in order */
    json_t *texts;      /* "id" -> text */
    size_t shown;       /* rounds that have been printed */
    uint64_t edits[EDIT_KINDS], n_drafted, committed;
};

struct trace *trace_new(struct cli *c, struct dedit_client *d, bool show, const char *path)
{
    struct trace *t = mem_zalloc(sizeof *t);
    if (t) {
        t->rounds = json_array();
        t->texts = json_object();
    }
    if (!t || !t->rounds || !t->texts) {
        trace_free(t);
        cli_fail_text(c, CLI_FAILED, "out of memory");
        return NULL;
    }
    t->c = c;
    t->d = d;
    t->show = show;
    t->path = path;
    struct error e = {0};
    if (path && strcmp(path, "-") != 0 && out_file_open(&t->out_file, path, &e) < 0) {
        cli_fail_text(c, CLI_FAILED, "--trace-json: %s", e.msg);
        trace_free(t);
        return NULL;
    }
    t->file = path && strcmp(path, "-") == 0 ? stdout : t->out_file.f;
    return t;
}

void trace_free(struct trace *t)
{
    if (!t)
        return;
    out_file_drop(&t->out_file);
    json_decref(t->rounds);
    json_decref(t->texts);
    strbuf_done(&t->text);
    mem_free(t->out);
    mem_free(t);
}

/* ---- collecting --------------------------------------------------------------------------------- */

/* The text of a token, asked for once; "" when the daemon does not say. */
static const char *text_of(struct trace *t, uint32_t id)
{
    char key[16];
    snprintf(key, sizeof key, "%" PRIu32, id);
    json_t *known = json_object_get(t->texts, key);
    if (!known) {
        struct dedit_error e;
        char *text = NULL;
        size_t len = 0;
        bool got = dedit_client_detokenize(t->d, t->c->o.model, &id, 1, &text, &len, &e) == 0;
        known = got ? json_stringn(text, len) : json_string("");
        dedit_free(text);
        if (json_object_set_new(t->texts, key, known) < 0)
            return "";
    }
    return json_string_value(known);
}

static json_t *ids_json(const uint32_t *ids, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(a, json_integer((json_int_t)ids[i]));
    return a;
}

static bool add_round(struct trace *t, const struct dedit_event *ev)
{
    uint32_t w = ev->window;
    json_t *drafts = json_array(), *nodes = json_array(), *confidence = json_array();
    for (uint32_t p = 0; w && p < ev->passes; p++)
        json_array_append_new(drafts, ids_json(ev->draft + (size_t)p * w + 1, w - 1));
    for (uint32_t i = 0; i < ev->nodes; i++)
        json_array_append_new(
            nodes, json_pack("[I, i]", (json_int_t)ev->node_token[i], (int)ev->node_parent[i]));
    for (uint32_t i = 1; i < w; i++)
        json_array_append_new(confidence, json_real((double)ev->confidence[i]));
    json_t *r =
        json_pack("{s:I, s:I, s:i, s:i, s:i, s:o, s:o, s:o, s:o}", "round",
                  (json_int_t)json_array_size(t->rounds), "at", (json_int_t)t->n_out, "window",
                  (int)w, "passes", (int)ev->passes, "committed", (int)ev->committed, "accepted",
                  ids_json(ev->accepted, w ? ev->passes : 0), "confidence", confidence, "draft",
                  drafts, "nodes", nodes);
    if (ev->nodes) {
        t->n_drafted++;
        t->committed += ev->committed;
    }
    return r && json_array_append_new(t->rounds, r) == 0;
}

static bool add_tokens(struct trace *t, const struct dedit_event *ev)
{
    if (t->n_out + ev->n_tokens > t->cap_out) {
        size_t cap = 2 * (t->n_out + ev->n_tokens) + 64;
        uint32_t *grown = mem_realloc_array(t->out, cap, sizeof *grown);
        if (!grown)
            return false;
        t->out = grown;
        t->cap_out = cap;
    }
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        t->out[t->n_out++] = ev->tokens[i].id;
    return strbuf_add(&t->text, ev->text, ev->text_len) == 0;
}

/* ---- showing ------------------------------------------------------------------------------------ */

static uint32_t draft_at(const json_t *r, size_t pass, size_t row)
{
    return (uint32_t)json_integer_value(
        json_array_get(json_array_get(json_object_get(r, "draft"), pass), row - 1));
}
static uint32_t field(const json_t *r, const char *name)
{
    return (uint32_t)json_integer_value(json_object_get(r, name));
}

/* Row k of a block proposes the token at output position at + k - 1. */
static enum edit edit_of(const struct trace *t, const json_t *r, size_t pass, size_t row)
{
    uint32_t now = draft_at(r, pass, row), before = pass ? draft_at(r, pass - 1, row) : now;
    size_t position = field(r, "at") + row - 1;
    if (now == before)
        return EDIT_NONE;
    if (position >= t->n_out)
        return EDIT_OPEN;
    if (now == t->out[position])
        return EDIT_HELPFUL;
    return before == t->out[position] ? EDIT_HARMFUL : EDIT_NEUTRAL;
}

/* One token and a bar; line breaks and the like as escapes, its id when it has no text.  The mark says without
 * colours what the colour says. */
static void print_token(struct trace *t, uint32_t id, const char *sgr, const char *mark)
{
    const char *s = text_of(t, id);
    fputs(t->c->color ? sgr : mark, stdout);
    if (!*s)
        printf("<%" PRIu32 ">", id);
    for (; *s; s++) {
        unsigned char b = (unsigned char)*s;
        if (b == '\n')
            fputs("\\n", stdout);
        else if (b < 0x20 || b == 0x7f)
            printf("\\x%02x", b);
        else
            fputc(b, stdout);
    }
    printf("%s|%s", cli_sgr(t->c, "\033[0;2m"), cli_sgr(t->c, "\033[0m"));
}

static void print_pass(struct trace *t, const json_t *r, size_t pass)
{
    static const char *const sgr[EDIT_KINDS] = {"", "\033[1;32m", "\033[1;31m", "\033[33m",
                                                "\033[36m"};
    static const char *const mark[EDIT_KINDS] = {"", "+", "-", "~", "?"};
    size_t window = field(r, "window");
    uint32_t accepted =
        (uint32_t)json_integer_value(json_array_get(json_object_get(r, "accepted"), pass));
    printf("  P%zu  %2" PRIu32 "  ", pass + 1, accepted);
    for (size_t row = 1; row < window; row++) {
        enum edit e = edit_of(t, r, pass, row);
        bool right = row <= accepted;
        t->edits[e]++;
        const char *plain = right ? "\033[32m" : "\033[2m";
        print_token(t, draft_at(r, pass, row), e ? sgr[e] : plain, mark[e]);
    }
    fputc('\n', stdout);
}

static void show_round(struct trace *t, const json_t *r)
{
    uint32_t window = field(r, "window"), passes = field(r, "passes"), at = field(r, "at");
    uint32_t committed = field(r, "committed");
    size_t nodes = json_array_size(json_object_get(r, "nodes"));
    printf("%sround %" PRIu32 "%s at %" PRIu32, cli_sgr(t->c, "\033[1m"), field(r, "round"),
           cli_sgr(t->c, "\033[0m"), at);
    if (window)
        printf(", window %" PRIu32 ", %" PRIu32 " pass%s", window, passes, passes == 1 ? "" : "es");
    if (nodes)
        printf(", %zu verified", nodes);
    printf(", %" PRIu32 " committed\n", committed);
    for (size_t p = 0; window && p < passes; p++)
        print_pass(t, r, p);
    fputs("  text    ", stdout);
    for (size_t i = at; i < (size_t)at + committed && i < t->n_out; i++)
        print_token(t, t->out[i], i + 1 == (size_t)at + committed ? "\033[1;36m" : "\033[32m", "");
    fputc('\n', stdout);
    fflush(stdout);
}

/* Prints the rounds whose every row has its token in the text; at the end, all. */
static void show_decided(struct trace *t, bool all)
{
    for (; t->shown < json_array_size(t->rounds); t->shown++) {
        const json_t *r = json_array_get(t->rounds, t->shown);
        uint32_t rows = field(r, "window"), committed = field(r, "committed");
        uint32_t need = rows > committed + 1 ? rows - 1 : committed;
        if (!all && t->n_out < (size_t)field(r, "at") + need)
            return;
        show_round(t, r);
    }
}

bool trace_event(struct trace *t, const struct dedit_event *ev)
{
    if (ev->type == DEDIT_EVENT_ROUND && !add_round(t, ev))
        t->failed = true;
    if (ev->type == DEDIT_EVENT_TOKENS && !add_tokens(t, ev))
        t->failed = true;
    if (t->show && !t->failed)
        show_decided(t, false);
    return !t->failed;
}

/* ---- the file ------------------------------------------------------------------------------------- */

static bool write_line(struct trace *t, json_t *j)
{
    bool good = j && cli_dump_json(j, t->file) == 0 && fputc('\n', t->file) >= 0;
    json_decref(j);
    return good;
}

/* The model that answered: the one that was named, else the daemon's default. */
static json_t *model_name(struct trace *t)
{
    struct dedit_model_list *l = NULL;
    struct dedit_error e;
    json_t *name = NULL;
    if (t->c->o.model)
        return json_string(t->c->o.model);
    if (dedit_client_models(t->d, NULL, &l, &e) == 0)
        for (size_t i = 0; i < dedit_model_list_len(l) && !name; i++)
            if (dedit_model_list_at(l, i)->is_default)
                name = json_string(dedit_model_list_at(l, i)->name);
    dedit_model_list_free(l);
    return name ? name : json_null();
}

static bool write_all(struct trace *t, const struct dedit_event *end)
{
    const struct dedit_options *o = &t->c->o;
    bool good = write_line(t, json_pack("{s:i, s:o, s:s}", "trace", 1, "model", model_name(t),
                                        "method", o->method ? o->method : "auto"));
    size_t i;
    json_t *r;
    json_array_foreach(t->rounds, i, r)
    {
        json_t *drafts = json_object_get(r, "draft"), *nodes = json_object_get(r, "nodes");
        for (size_t p = 0; p < json_array_size(drafts); p++)
            for (size_t k = 0; k < json_array_size(json_array_get(drafts, p)); k++)
                text_of(t, draft_at(r, p, k + 1));
        for (size_t n = 0; n < json_array_size(nodes); n++)
            text_of(t, (uint32_t)json_integer_value(json_array_get(json_array_get(nodes, n), 0)));
        good = good && write_line(t, json_incref(r));
    }
    for (size_t k = 0; k < t->n_out; k++)
        text_of(t, t->out[k]);
    good = good && write_line(t, json_pack("{s:o}", "output", ids_json(t->out, t->n_out)));
    good = good && write_line(t, json_pack("{s:O}", "texts", t->texts));
    good = good && write_line(t, json_pack("{s:s, s:o}", "finish_reason",
                                           end->finish_reason ? end->finish_reason : "", "usage",
                                           cli_usage_json(&end->usage)));
    return fflush(t->file) == 0 && good;
}

int trace_end(struct trace *t, const struct dedit_event *end)
{
    if (t->failed)
        return cli_fail_text(t->c, CLI_FAILED, "trace: out of memory");
    if (t->show) {
        show_decided(t, true);
        printf("edits: %" PRIu64 " helpful, %" PRIu64 " harmful, %" PRIu64 " neutral, %" PRIu64
               " beyond the end",
               t->edits[EDIT_HELPFUL], t->edits[EDIT_HARMFUL], t->edits[EDIT_NEUTRAL],
               t->edits[EDIT_OPEN]);
        if (t->n_drafted)
            printf("; %.2f tokens a drafted round", (double)t->committed / (double)t->n_drafted);
        fputs("\n\n", stdout);
        fwrite(t->text.s ? t->text.s : "", 1, t->text.len, stdout);
    }
    struct error e = {0};
    if (t->file && !write_all(t, end))
        return cli_fail_text(t->c, CLI_FAILED, "%s: %s", t->path, strerror(errno ? errno : EIO));
    if (t->out_file.f && out_file_close(&t->out_file, &e) < 0)
        return cli_fail_text(t->c, CLI_FAILED, "--trace-json: %s", e.msg);
    return CLI_OK;
}
