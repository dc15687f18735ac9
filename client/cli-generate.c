/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client generate: one prompt, its answer as it comes. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "client/cli-answer.h"

/* Where the prompt is read from; NULL: it is the arguments. */
static const char *prompt_file(const struct cli *c)
{
    const char *file = cli_own(c, "file");
    return file ? file : c->argc ? NULL : "-";
}

/* The prompt: arguments joined by spaces, or a file, or standard input.  NULL: *ret_status says why. */
static char *prompt_text(struct cli *c, size_t *ret_len, int *ret_status)
{
    const char *file = cli_own(c, "file");
    struct strbuf b = {0};
    *ret_status = CLI_USAGE;
    if (file && c->argc) {
        cli_usage_error(c, "a prompt and --file exclude each other");
        return NULL;
    }
    if (!file && !c->argc) {
        if (isatty(STDIN_FILENO)) {
            cli_usage_error(c, "no prompt: give it as arguments, with --file or on standard input");
            return NULL;
        }
        file = "-";
    }
    *ret_status = CLI_FAILED;
    if (file)
        return cli_read(c, file, ret_len);
    for (int i = 0; i < c->argc; i++)
        if (strbuf_adds(&b, i ? " " : "") < 0 || strbuf_adds(&b, c->argv[i]) < 0) {
            strbuf_done(&b);
            cli_fail_text(c, CLI_FAILED, "out of memory");
            return NULL;
        }
    *ret_len = b.len;
    return b.s;
}

static int parse_ids(struct cli *c, char *text, uint32_t **ret)
{
    size_t n = 0, cap = 0;
    uint32_t *ids = NULL;
    char *save = NULL;
    for (char *w = strtok_r(text, " \t\r\n,[]", &save); w;
         w = strtok_r(NULL, " \t\r\n,[]", &save)) {
        if (n == cap) {
            cap = cap ? 2 * cap : 256;
            uint32_t *grown = mem_realloc_array(ids, cap, sizeof *ids);
            if (!grown) {
                mem_free(ids);
                return cli_fail_text(c, CLI_FAILED, "out of memory");
            }
            ids = grown;
        }
        if (parse_u32(w, UINT32_MAX, &ids[n++]) < 0) {
            mem_free(ids);
            return cli_usage_error(c, "--ids: \"%s\" is no token id", w);
        }
    }
    c->o.ids = ids;
    c->o.n_ids = n;
    *ret = ids;
    return ids ? CLI_OK : cli_usage_error(c, "--ids: the prompt has none");
}

static json_t *token_json(const struct dedit_token *t)
{
    json_t *j = json_pack("{s:I, s:s%}", "id", (json_int_t)t->id, "text", t->text, t->text_len);
    json_t *flags = json_array();
    static const struct {
        unsigned flag;
        const char *name;
    } names[] = {{DEDIT_TOKEN_DRAFTED, "drafted"},
                 {DEDIT_TOKEN_EDITED, "edited"},
                 {DEDIT_TOKEN_BONUS, "bonus"},
                 {DEDIT_TOKEN_REASONING, "reasoning"}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (t->flags & names[i].flag)
            json_array_append_new(flags, json_string(names[i].name));
    if (json_array_size(flags))
        json_object_set(j, "flags", flags);
    json_decref(flags);
    if (t->n_alternatives) {
        json_t *alt = json_array();
        json_object_set_new(j, "logprob", json_real((double)t->logprob));
        for (uint32_t i = 1; i < t->n_alternatives; i++)
            json_array_append_new(alt,
                                  json_pack("{s:I, s:f}", "id", (json_int_t)t->alternatives[i].id,
                                            "logprob", (double)t->alternatives[i].logprob));
        json_object_set_new(j, "alternatives", alt);
    }
    return j;
}

static void print_tokens(const struct cli *c, const struct dedit_event *ev)
{
    if (!c->json) {
        fwrite(ev->text, 1, ev->text_len, stdout);
        fflush(stdout);
        return;
    }
    json_t *list = json_array();
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        json_array_append_new(list, token_json(&ev->tokens[i]));
    cli_print_json(json_pack("{s:s, s:s%, s:o}", "event", "tokens", "text", ev->text, ev->text_len,
                             "tokens", list));
    fflush(stdout);
}

void answer_done(struct answer *a)
{
    strbuf_done(&a->text);
    mem_free(a->ids);
    *a = (struct answer){0};
}

static int answer_add(const struct cli *c, struct answer *a, const struct dedit_event *ev)
{
    size_t need = a->n + ev->n_tokens;
    if (need > a->room) {
        size_t room = need + a->room + 256;
        uint32_t *grown = mem_realloc_array(a->ids, room, sizeof *grown);
        if (!grown)
            return cli_fail_text(c, CLI_FAILED, "out of memory");
        a->ids = grown;
        a->room = room;
    }
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        a->ids[a->n++] = ev->tokens[i].id;
    if (strbuf_add(&a->text, ev->text, ev->text_len) < 0)
        return cli_fail_text(c, CLI_FAILED, "out of memory");
    return CLI_OK;
}

static int finish(const struct cli *c, const struct dedit_event *ev, bool show)
{
    if (ev->type == DEDIT_EVENT_FAILED) {
        if (!c->json && show)
            fputc('\n', stdout);
        struct dedit_error e = {.code = ev->error_code};
        snprintf(e.msg, sizeof e.msg, "%s: %s", ev->finish_reason, ev->error_message);
        cli_fail(c, &e);
        return CLI_FAILED;
    }
    if (c->json && show) {
        json_t *j = json_pack("{s:s, s:s, s:o}", "event", "finished", "finish_reason",
                              ev->finish_reason, "usage", cli_usage_json(&ev->usage));
        if (ev->stop_reason)
            json_object_set_new(j, "stop_reason", json_string(ev->stop_reason));
        cli_print_json(j);
    } else if (show) {
        fputc('\n', stdout);
        fflush(stdout);
        if (!c->quiet && !cli_own(c, "compare"))
            cli_stats_line(stderr, ev);
    }
    return cli_interrupted ? CLI_INTERRUPTED : CLI_OK;
}

int answer_read(const struct cli *c, struct dedit_request *r, bool show, struct trace *t,
                struct answer *keep)
{
    struct dedit_event ev;
    struct dedit_error e;
    bool cancelled = false;
    for (;;) {
        /* Wakes now and then only to look for Ctrl-C. */
        int n = dedit_request_next(r, &ev, 200, &e);
        if (cli_interrupted && !cancelled) {
            cancelled = true;
            if (dedit_request_cancel(r, &e) < 0)
                return cli_fail(c, &e);
        }
        if (n < 0) {
            if (!c->json && show)
                fputc('\n', stdout);
            return cli_fail(c, &e);
        }
        if (n == 0)
            continue;
        bool last = ev.type == DEDIT_EVENT_FINISHED || ev.type == DEDIT_EVENT_FAILED;
        if (t && !trace_event(t, &ev))
            return trace_end(t, &ev);
        if (ev.type == DEDIT_EVENT_TOKENS && show && !(t && cli_own(c, "trace")))
            print_tokens(c, &ev);
        int kept = ev.type == DEDIT_EVENT_TOKENS && keep ? answer_add(c, keep, &ev) : CLI_OK;
        if (kept != CLI_OK)
            return kept;
        if (last) {
            int traced = t ? trace_end(t, &ev) : CLI_OK, status = finish(c, &ev, show);
            if (keep) {
                keep->usage = ev.usage;
                keep->finish_reason = ev.finish_reason;
            }
            return status == CLI_OK ? traced : status;
        }
    }
}

/* Options of generate that contradict each other. */
static int check_options(const struct cli *c, const char *trace_path)
{
    bool trace = cli_own(c, "trace") != NULL, compare = cli_own(c, "compare") != NULL;
    if (trace && c->json)
        return cli_usage_error(c,
                               "--trace and --json exclude each other; --trace-json writes rounds");
    if (trace && trace_path && !strcmp(trace_path, "-"))
        return cli_usage_error(c, "--trace and --trace-json - write to the same place");
    if (compare && (trace || trace_path))
        return cli_usage_error(c, "--compare and --%s exclude each other",
                               trace ? "trace" : "trace-json");
    if (compare && c->o.method && !strcmp(c->o.method, "ar"))
        return cli_usage_error(c, "--compare: --method ar is what it compares with");
    if (compare && c->o.verification && !strcmp(c->o.verification, "rejection"))
        return cli_usage_error(c, "--compare: --verification rejection has the law of plain "
                                  "decoding and not its text");
    return CLI_OK;
}

int cli_generate(struct cli *c)
{
    size_t len = 0;
    struct dedit_chat_message m[2];
    struct dedit_request *r = NULL;
    struct dedit_error e;
    uint32_t *ids = NULL;
    int status = CLI_OK;
    char *text = prompt_text(c, &len, &status);

    if (text)
        status = CLI_OK;
    if (text && cli_own(c, "ids"))
        status = parse_ids(c, text, &ids);
    else if (text)
        cli_prompt(c, text, len, m);
    const char *trace_path = cli_own(c, "trace-json");
    bool traced = trace_path || cli_own(c, "trace");
    if (status == CLI_OK)
        status = check_options(c, trace_path);
    if (status == CLI_OK && !cli_apart(c, "--trace-json", trace_path, prompt_file(c)))
        status = CLI_USAGE;
    struct dedit_client *d = status == CLI_OK ? cli_connect(c, &status) : NULL;
    struct trace *t = NULL;
    if (d && traced) {
        c->o.rounds = 1;
        if (!(t = trace_new(c, d, cli_own(c, "trace") != NULL, trace_path)))
            status = CLI_FAILED;
    }
    if (d && status == CLI_OK && cli_own(c, "compare")) {
        cli_catch_interrupt(true);
        status = answer_compare(c, d);
        cli_catch_interrupt(false);
    } else if (d && status == CLI_OK) {
        if (dedit_client_submit(d, &c->o, &r, &e) < 0) {
            status = cli_fail(c, &e);
        } else {
            cli_catch_interrupt(true);
            status = answer_read(c, r, true, t, NULL);
            cli_catch_interrupt(false);
        }
        dedit_request_free(r);
    }
    trace_free(t);
    dedit_client_free(d);
    mem_free(ids);
    mem_free(text);
    return status;
}
