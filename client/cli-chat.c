/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client chat: a conversation on the terminal.  Ctrl-C stops the answer, Ctrl-D the program. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <config.h>

#if HAVE_LIBEDIT
#include <editline/readline.h>
#endif

#include "base/alloc.h"
#include "base/line.h"
#include "base/strbuf.h"
#include "client/cli.h"

#define HISTORY_LINES 1000

struct talk {
    struct cli *c;
    struct dedit_client *d;
    struct dedit_chat_message *m; /* strings are owned */
    size_t n, cap;
    bool has_system;
};

static int say(struct talk *t, const char *role, const char *text)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 16;
        struct dedit_chat_message *m = mem_realloc_array(t->m, cap, sizeof *m);
        if (!m)
            return -1;
        t->m = m;
        t->cap = cap;
    }
    char *copy = mem_strdup(text);
    if (!copy)
        return -1;
    t->m[t->n++] = (struct dedit_chat_message){.role = role, .content = copy};
    return 0;
}

static void forget(struct talk *t, size_t keep)
{
    while (t->n > keep)
        mem_free((void *)(uintptr_t)t->m[--t->n].content);
}

static int reset(struct talk *t, const char *system)
{
    forget(t, 0);
    t->has_system = system != NULL;
    return system ? say(t, "system", system) : 0;
}

/* ---- one answer ---------------------------------------------------------------------------------------- */

static int answer(struct talk *t, struct strbuf *text)
{
    struct cli *c = t->c;
    struct dedit_request *r = NULL;
    struct dedit_event ev;
    struct dedit_error e;
    bool cancelled = false;
    int status = -1;

    c->o.messages = t->m;
    c->o.n_messages = t->n;
    if (dedit_client_submit(t->d, &c->o, &r, &e) < 0)
        return cli_fail(c, &e);
    cli_catch_interrupt(true);
    while (status < 0) {
        int n = dedit_request_next(r, &ev, 200, &e);
        if (cli_interrupted && !cancelled) {
            cancelled = true;
            n = dedit_request_cancel(r, &e) < 0 ? -1 : n;
        }
        if (n < 0) {
            if (!c->json)
                fputc('\n', stdout);
            status = cli_fail(c, &e);
        } else if (n > 0 && ev.type == DEDIT_EVENT_TOKENS) {
            if (!c->json)
                fwrite(ev.text, 1, ev.text_len, stdout);
            fflush(stdout);
            if (strbuf_add(text, ev.text, ev.text_len) < 0)
                status = cli_fail_text(c, CLI_FAILED, "out of memory");
        } else if (n > 0 && ev.type == DEDIT_EVENT_FAILED && c->json) {
            struct dedit_error failed = {.code = ev.error_code};
            snprintf(failed.msg, sizeof failed.msg, "%s: %s", ev.finish_reason, ev.error_message);
            status = cli_fail(c, &failed);
        } else if (n > 0 && ev.type == DEDIT_EVENT_FAILED) {
            printf("\n%s%s: %s%s\n", cli_sgr(c, "\033[31m"), ev.finish_reason, ev.error_message,
                   cli_sgr(c, "\033[0m"));
            status = CLI_FAILED;
        } else if (n > 0 && ev.type == DEDIT_EVENT_FINISHED && c->json) {
            cli_print_json(json_pack("{s:s, s:s%, s:s, s:o}", "role", "assistant", "content",
                                     text->s ? text->s : "", text->len, "finish_reason",
                                     ev.finish_reason, "usage", cli_usage_json(&ev.usage)));
            fflush(stdout);
            status = CLI_OK;
        } else if (n > 0 && ev.type == DEDIT_EVENT_FINISHED) {
            fputc('\n', stdout);
            if (!c->quiet) {
                fputs(cli_sgr(c, "\033[2m"), stdout);
                cli_stats_line(stdout, &ev);
                fputs(cli_sgr(c, "\033[0m"), stdout);
            }
            status = CLI_OK;
        }
    }
    cli_catch_interrupt(false);
    dedit_request_free(r);
    return status;
}

/* ---- commands ------------------------------------------------------------------------------------------------ */

static void help(void)
{
    fputs("  /system TEXT   start again with this system message\n"
          "  /reset         forget the conversation\n"
          "  /undo          forget the last question and its answer\n"
          "  /show          print the conversation\n"
          "  /quit          leave (also Ctrl-D)\n"
          "Ctrl-C stops an answer.\n",
          stdout);
}

static void show(const struct talk *t)
{
    for (size_t i = 0; i < t->n; i++) {
        if (t->c->json)
            cli_print_json(
                json_pack("{s:s, s:s}", "role", t->m[i].role, "content", t->m[i].content));
        else
            printf("%s: %s\n", t->m[i].role, t->m[i].content);
    }
}

/* 1: leave. */
static int command(struct talk *t, const char *line)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0)
        return 1;
    if (strcmp(line, "/help") == 0)
        help();
    else if (strcmp(line, "/show") == 0)
        show(t);
    else if (strcmp(line, "/reset") == 0) {
        if (reset(t, t->c->system) < 0)
            cli_fail_text(t->c, CLI_FAILED, "out of memory");
    } else if (strcmp(line, "/undo") == 0) {
        forget(t, t->n >= 2 + (t->has_system ? 1 : 0) ? t->n - 2 : (t->has_system ? 1 : 0));
    } else if (strncmp(line, "/system ", 8) == 0) {
        if (reset(t, line + 8) < 0)
            cli_fail_text(t->c, CLI_FAILED, "out of memory");
    } else {
        if (t->c->json)
            cli_fail_text(t->c, CLI_USAGE, "%s: unknown, /help lists what there is", line);
        else
            printf("%s: unknown, /help lists what there is\n", line);
    }
    return 0;
}

/* ---- lines ------------------------------------------------------------------------------------------------------ */

struct lines {
    bool edit; /* a terminal, with line editing */
    char *buf; /* the C library's */
    size_t cap;
    char *history;
};

static void history_path(struct lines *l, const struct cli *c)
{
    const char *own = cli_own(c, "history"), *state = getenv("XDG_STATE_HOME"),
               *home = getenv("HOME");
    struct strbuf b = {0};
    int r = 0;
    if (own)
        r = strbuf_adds(&b, own);
    else if (state && *state)
        r = strbuf_addf(&b, "%s/dedit", state);
    else if (home && *home)
        r = strbuf_addf(&b, "%s/.local/state/dedit", home);
    else
        return;
    if (!own && r == 0) {
        /* Only the last folders of the standard places are made. */
        char *slash = strrchr(b.s, '/');
        *slash = 0;
        mkdir(b.s, 0700);
        *slash = '/';
        mkdir(b.s, 0700);
        r = strbuf_adds(&b, "/chat_history");
    }
    if (r < 0)
        strbuf_done(&b);
    l->history = b.s;
}

static void lines_init(struct lines *l, const struct cli *c)
{
    *l = (struct lines){0};
#if HAVE_LIBEDIT
    l->edit = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !c->json;
    if (l->edit) {
        using_history();
        stifle_history(HISTORY_LINES);
        history_path(l, c);
        if (l->history)
            read_history(l->history); /* none yet: an empty history */
    }
#else
    (void)c;
    (void)history_path;
#endif
}

/* The next line without its end, or NULL, with a code in *err when it could not be read; valid until the next call.
 * On a terminal Ctrl-C gives an empty line: what was typed is dropped, the program goes on. */
static const char *next_line(struct lines *l, bool prompt, struct error *err)
{
#if HAVE_LIBEDIT
    if (l->edit) {
        free(l->buf); /* readline's own allocation */
        cli_catch_interrupt(true);
        l->buf = readline("> ");
        bool interrupted = cli_interrupted;
        cli_catch_interrupt(false);
        if (l->buf && *l->buf)
            add_history(l->buf);
        if (!l->buf && interrupted) {
            fputc('\n', stdout);
            return "";
        }
        return l->buf;
    }
#endif
    if (prompt) {
        fputs("> ", stdout);
        fflush(stdout);
    }
    long n = line_read(stdin, "standard input", &l->buf, &l->cap, err);
    if (n <= 0)
        return NULL;
    while (n > 0 && (l->buf[n - 1] == '\n' || l->buf[n - 1] == '\r'))
        l->buf[--n] = 0;
    return l->buf;
}

static void lines_done(struct lines *l)
{
#if HAVE_LIBEDIT
    if (l->edit && l->history)
        write_history(l->history);
#endif
    free(l->buf);
    mem_free(l->history);
}

int cli_chat(struct cli *c)
{
    struct talk t = {.c = c};
    struct lines l;
    struct error e = {0};
    int status = CLI_OK;
    bool terminal = isatty(STDIN_FILENO) && !c->json;

    if (c->argc)
        return cli_usage_error(c, "%s: unexpected argument", c->argv[0]);
    if (c->chat_format_none)
        return cli_usage_error(c, "--raw: a conversation needs a chat format");
    t.d = cli_connect(c, &status);
    if (!t.d)
        return status;
    if (reset(&t, c->system) < 0) {
        dedit_client_free(t.d);
        return cli_fail_text(c, CLI_FAILED, "out of memory");
    }
    lines_init(&l, c);
    for (const char *line; status != CLI_NO_DAEMON && (line = next_line(&l, terminal, &e));) {
        struct strbuf text = {0};
        if (!*line)
            continue;
        if (*line == '/') {
            if (command(&t, line))
                break;
            continue;
        }
        if (say(&t, "user", line) < 0) {
            status = cli_fail_text(c, CLI_FAILED, "out of memory");
            break;
        }
        status = answer(&t, &text);
        if (status != CLI_OK || say(&t, "assistant", text.s ? text.s : "") < 0)
            forget(&t, t.n - 1); /* the question too: it has no answer */
        strbuf_done(&text);
        if (terminal && status != CLI_NO_DAEMON)
            status = CLI_OK; /* the next question may go better */
    }
    lines_done(&l);
    if (e.code)
        status = cli_fail_text(c, CLI_FAILED, "%s", e.msg);
    if (terminal)
        fputc('\n', stdout);
    forget(&t, 0);
    mem_free(t.m);
    dedit_client_free(t.d);
    return status;
}
