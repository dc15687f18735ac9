/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-client batch: JSON lines in, JSON lines out in the order of the input, several at once.
 * One input line: {"prompt": "..."} or {"messages": [...]}, and any of "id", "max_tokens",
 * "temperature", "top_p", "seed", "method", "stop" (a string or a list).  With --output an interrupted run goes on after the last whole line; a line whose
 * answer was lost with the daemon is not written, so it is asked again.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/strbuf.h"
#include "client/cli.h"

#define MAX_PARALLEL 256u
#define MAX_MESSAGES 1024u

struct item {
    struct dedit_request *r;
    json_t *in; /* the input line; its strings are the prompt */
    struct strbuf text;
    json_t *out;   /* the result, once there is one */
    size_t number; /* line of the input, from 1 */
};

struct batch {
    struct cli *c;
    struct dedit_client *d;
    FILE *in, *out;
    struct item *window; /* ring of items in order: [first, next) */
    size_t parallel, first, next;
    size_t skip;         /* lines that are done already */
    size_t total;        /* lines of the input, 0 when it is no file */
    size_t done, failed; /* of this run */
    bool lost;           /* the daemon went away: why */
    struct dedit_error why;
    uint64_t tokens, started_ns;
    bool end; /* no more input */
    bool tty;
};

/* ---- one line in -------------------------------------------------------------------------------------------- */

#define MAX_STOP 64

static bool take_stop(const json_t *list, struct dedit_options *o, const char **stop)
{
    size_t n = json_is_string(list) ? 1 : json_array_size(list);
    if ((!json_is_string(list) && !json_is_array(list)) || n > MAX_STOP)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_string(list) ? list : json_array_get(list, i);
        stop[i] = json_string_value(s);
        if (!stop[i] || strlen(stop[i]) != json_string_length(s))
            return false;
    }
    o->stop = stop;
    o->n_stop = n;
    return true;
}

/* What a line says beside numbers; the strings stay the line's. */
static bool take_words(const json_t *in, struct dedit_options *o, const char **stop,
                       const char **why)
{
    const json_t *top_p = json_object_get(in, "top_p"), *method = json_object_get(in, "method");
    const json_t *list = json_object_get(in, "stop");
    if (top_p && !json_is_null(top_p)) {
        *why = "top_p must be a number";
        if (!json_is_number(top_p))
            return false;
        o->top_p = (float)json_number_value(top_p);
    }
    if (method && !json_is_null(method)) {
        *why = "method must be a string";
        o->method = json_string_value(method);
        if (!o->method || strlen(o->method) != json_string_length(method))
            return false;
    }
    *why = "stop must be a string or a list of at most 64 strings, without NULs";
    return !list || json_is_null(list) || take_stop(list, o, stop);
}

/* A line's own values over those of the command line; false and *why when one is not what it must be. */
static bool take_values(const json_t *in, struct dedit_options *o, const char **stop,
                        const char **why)
{
    const json_t *tokens = json_object_get(in, "max_tokens");
    const json_t *temperature = json_object_get(in, "temperature");
    const json_t *seed = json_object_get(in, "seed");

    if (tokens && !json_is_null(tokens)) {
        double v = json_number_value(tokens);
        *why = "max_tokens must be a whole number from 0 to 4294967295";
        if (!json_is_number(tokens) || !(v >= 0 && v <= 4294967295.0) || v != (double)(uint32_t)v)
            return false;
        o->max_tokens = (uint32_t)v;
    }
    if (temperature && !json_is_null(temperature)) {
        *why = "temperature must be a number";
        if (!json_is_number(temperature))
            return false;
        o->temperature = (float)json_number_value(temperature);
    }
    if (seed && !json_is_null(seed)) {
        *why = "seed must be a whole number from 0";
        if (!json_is_integer(seed) || json_integer_value(seed) < 0)
            return false;
        o->has_seed = 1;
        o->seed = (uint64_t)json_integer_value(seed);
    }
    return take_words(in, o, stop, why);
}

/* Messages as they are in the line; NULL with *why set when they are no list of role and content. */
static struct dedit_chat_message *messages_of(const json_t *list, size_t *ret_n, const char **why)
{
    size_t n = json_array_size(list);
    *why = "messages must be a list of 1 to 1024 objects with role and content";
    if (!json_is_array(list) || !n || n > MAX_MESSAGES)
        return NULL;
    struct dedit_chat_message *m = mem_calloc(n, sizeof *m);
    for (size_t i = 0; m && i < n; i++) {
        const json_t *o = json_array_get(list, i);
        m[i].role = json_string_value(json_object_get(o, "role"));
        m[i].content = json_string_value(json_object_get(o, "content"));
        if (!m[i].role || !m[i].content) {
            mem_free(m);
            return NULL;
        }
    }
    *ret_n = n;
    return m;
}

/* Is the answer's absence the line's own fault?  Otherwise the run ends, and the line stays to be done. */
static bool lose(struct batch *b, const struct dedit_error *e)
{
    if (cli_status_of(e->code) != CLI_NO_DAEMON)
        return false;
    if (!b->lost)
        b->why = *e;
    b->lost = true;
    return true;
}

static void set_result_error(struct item *it, const char *code, const char *message)
{
    it->out = json_pack("{s:{s:s, s:s}}", "error", "code", code, "message", message);
}

static void submit(struct batch *b, struct item *it)
{
    struct dedit_options o = b->c->o;
    struct dedit_chat_message one[2], *many = NULL;
    struct dedit_error e;
    const json_t *prompt = json_object_get(it->in, "prompt");
    const json_t *messages = json_object_get(it->in, "messages");
    const char *why, *stop[MAX_STOP];

    if (!take_values(it->in, &o, stop, &why)) {
        set_result_error(it, "invalid-argument", why);
        return;
    }
    why = "a line needs \"prompt\" (a string) or \"messages\"";
    if (json_is_string(prompt)) {
        struct cli with = *b->c;
        cli_prompt(&with, json_string_value(prompt), json_string_length(prompt), one);
        o.text = with.o.text;
        o.text_len = with.o.text_len;
        o.messages = with.o.messages;
        o.n_messages = with.o.n_messages;
    } else if (messages) {
        many = messages_of(messages, &o.n_messages, &why);
        o.messages = many;
    }
    if (!o.text && !o.messages)
        set_result_error(it, "invalid-argument", why);
    else if (dedit_client_submit(b->d, &o, &it->r, &e) < 0 && !lose(b, &e))
        set_result_error(it, dedit_error_name(e.code), e.msg);
    mem_free(many);
}

/* Reads and submits one line; false at the end of the input. */
static bool feed(struct batch *b)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    do
        n = getline(&line, &cap, b->in);
    while (n >= 0 && strspn(line, " \t\r\n") == (size_t)n); /* empty lines are passed over */
    if (n < 0) {
        free(line);
        b->end = true;
        return false;
    }
    struct item *it = &b->window[b->next % b->parallel];
    *it = (struct item){.number = ++b->next};
    if (it->number <= b->skip) {
        it->out = json_null();
        free(line);
        return true;
    }
    json_error_t je;
    it->in = json_loadb(line, (size_t)n, 0, &je);
    free(line);
    if (!json_is_object(it->in))
        set_result_error(it, "bad-format", it->in ? "the line is no JSON object" : je.text);
    else
        submit(b, it);
    return true;
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

static void take_end(struct batch *b, struct item *it, const struct dedit_event *ev)
{
    if (ev->type == DEDIT_EVENT_FAILED) {
        struct dedit_error e = {.code = ev->error_code};
        snprintf(e.msg, sizeof e.msg, "%s: %s", ev->finish_reason, ev->error_message);
        if (lose(b, &e))
            return;
        set_result_error(it, dedit_error_name(ev->error_code), ev->error_message);
        return;
    }
    it->out = json_pack("{s:s%, s:s, s:o}", "text", it->text.s ? it->text.s : "", it->text.len,
                        "finish_reason", ev->finish_reason, "usage", cli_usage_json(&ev->usage));
    b->tokens += ev->usage.completion_tokens;
}

/* Reads what an item has; true when it is complete. */
static bool advance(struct batch *b, struct item *it)
{
    struct dedit_event ev;
    struct dedit_error e;
    while (!it->out && !b->lost) {
        int n = dedit_request_next(it->r, &ev, 0, &e);
        if (n == 0)
            return false;
        if (n < 0) {
            if (!lose(b, &e))
                set_result_error(it, dedit_error_name(e.code), e.msg);
        } else if (ev.type == DEDIT_EVENT_TOKENS) {
            if (strbuf_add(&it->text, ev.text, ev.text_len) < 0)
                set_result_error(it, "out-of-memory", "the answer does not fit in memory");
        } else if (ev.type == DEDIT_EVENT_FINISHED || ev.type == DEDIT_EVENT_FAILED)
            take_end(b, it, &ev);
    }
    return it->out != NULL;
}

static int write_result(struct batch *b, struct item *it)
{
    int r = 0;
    if (!json_is_null(it->out)) {
        json_t *line = json_object();
        const json_t *id = json_object_get(it->in, "id");
        json_object_set_new(line, "line", json_integer((json_int_t)it->number));
        if (id)
            json_object_set(line, "id", (json_t *)(uintptr_t)id);
        b->failed += json_object_get(it->out, "error") != NULL;
        json_object_update(line, it->out);
        r = json_dumpf(line, b->out, JSON_COMPACT | JSON_REAL_PRECISION(9));
        json_decref(line);
        if (r == 0 && (fputc('\n', b->out) == EOF || fflush(b->out) != 0))
            r = -1;
        b->done++;
    }
    dedit_request_free(it->r);
    strbuf_done(&it->text);
    json_decref(it->in);
    json_decref(it->out);
    *it = (struct item){0};
    return r;
}

/* "[======>        ]  40 of 100 lines, 1 failed, 7 running, 123.4 tokens/s, 0:42 left" */
static void progress(const struct batch *b, bool last)
{
    enum { WIDTH = 20 };
    double s = (double)(clock_now_ns() - b->started_ns) / 1e9;
    size_t first = b->first < b->skip ? b->skip : b->first;
    if (!b->tty || b->c->quiet)
        return;
    fputs("\r\033[K", stderr);
    if (b->total) {
        size_t full = b->first < b->total ? b->first * WIDTH / b->total : WIDTH;
        fputc('[', stderr);
        for (size_t i = 0; i < WIDTH; i++)
            fputc(i < full ? '=' : i == full ? '>' : ' ', stderr);
        fprintf(stderr, "] %zu of %zu line%s", b->first, b->total, cli_s(b->total));
    } else {
        fprintf(stderr, "%zu line%s", b->first, cli_s(b->first));
    }
    fprintf(stderr, ", %zu failed, %zu running, %.1f tokens/s", b->failed, b->next - first,
            s > 0 ? (double)b->tokens / s : 0.0);
    if (b->total > b->first && b->done && !last) {
        double left = s / (double)b->done * (double)(b->total - b->first);
        unsigned seconds = left < 3.6e6 ? (unsigned)left : 3600000u;
        if (seconds >= 3600)
            fprintf(stderr, ", %u:%02u:%02u left", seconds / 3600, seconds / 60 % 60, seconds % 60);
        else
            fprintf(stderr, ", %u:%02u left", seconds / 60, seconds % 60);
    }
    if (last)
        fputc('\n', stderr);
}

/* Lines that are not empty; 0 when the input is no file that can be read twice. */
static size_t count_lines(FILE *f)
{
    struct stat st;
    char *line = NULL;
    size_t cap = 0, lines = 0;
    ssize_t n;
    if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    off_t at = ftello(f);
    while ((n = getline(&line, &cap, f)) >= 0)
        lines += strspn(line, " \t\r\n") != (size_t)n;
    free(line);
    clearerr(f);
    return at >= 0 && fseeko(f, at, SEEK_SET) == 0 ? lines : 0;
}

/* ---- going on where an earlier run stopped ------------------------------------------------------------------------ */

/* Whether a line is result `number` by how write_result() begins it; a torn one, as far as it goes. */
static bool is_result(const char *line, size_t len, size_t number)
{
    char begin[40];
    size_t n = (size_t)snprintf(begin, sizeof(begin), "{\"line\":%zu", number);
    const bool whole = len > 0 && line[len - 1] == '\n';
    if (len <= n)
        return !whole && memcmp(line, begin, len) == 0;
    return memcmp(line, begin, n) == 0 && (line[n] == ',' || line[n] == '}') &&
           (!whole || line[len - 2] == '}');
}

/* Lines of the output that are whole; a torn last one is cut off.  Any other file is left alone. */
static int count_done(struct batch *b, const char *path)
{
    FILE *f = fopen(path, "r+");
    char *line = NULL;
    size_t cap = 0, bad = 0;
    long good = 0;
    ssize_t n;
    struct stat st;
    if (!f)
        return errno == ENOENT
                   ? CLI_OK
                   : cli_fail_text(b->c, CLI_FAILED, "--output: %s: %s", path, strerror(errno));
    bool regular = fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode);
    while (regular && !bad && (n = getline(&line, &cap, f)) > 0) {
        bool whole = line[n - 1] == '\n';
        if (!is_result(line, (size_t)n, b->skip + 1))
            bad = b->skip + 1;
        good += whole ? n : 0;
        b->skip += whole;
    }
    free(line);
    int status = CLI_OK;
    if (bad)
        status = cli_fail_text(b->c, CLI_FAILED,
                               "--output: %s:%zu is not result %zu of a batch; the file is left as "
                               "it is",
                               path, bad, bad);
    else if (regular && ftruncate(fileno(f), good) < 0)
        status = cli_fail_text(b->c, CLI_FAILED, "--output: %s: %s", path, strerror(errno));
    fclose(f);
    return status;
}

static int open_files(struct batch *b)
{
    struct cli *c = b->c;
    const char *in = c->argc ? c->argv[0] : "-", *out = cli_own(c, "output");
    /* Answers that are appended to what is read would be read. */
    if (!cli_apart(c, out ? "--output" : "standard output", out ? out : "/dev/stdout", in))
        return CLI_USAGE;
    b->in = strcmp(in, "-") == 0 ? stdin : fopen(in, "r");
    if (!b->in)
        return cli_fail_text(c, CLI_FAILED, "%s: %s", in, strerror(errno));
    if (b->tty && !c->quiet)
        b->total = count_lines(b->in);
    b->out = stdout;
    if (!out)
        return CLI_OK;
    int status = count_done(b, out);
    if (status != CLI_OK)
        return status;
    b->out = fopen(out, "a");
    if (!b->out)
        return cli_fail_text(c, CLI_FAILED, "--output: %s: %s", out, strerror(errno));
    if (b->skip && !c->quiet)
        fprintf(stderr, "%zu line%s done already\n", b->skip, b->skip == 1 ? " is" : "s are");
    return CLI_OK;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------------- */

static int wait_for_events(struct batch *b)
{
    struct dedit_error e;
    int r = dedit_client_prepare(b->d, &e);
    if (r == 1) {
        struct pollfd p = {.fd = dedit_client_fd(b->d), .events = POLLIN};
        if (poll(&p, 1, 1000) < 0 && errno != EINTR)
            return cli_fail_text(b->c, CLI_FAILED, "poll: %s", strerror(errno));
    }
    if (r >= 0)
        r = dedit_client_dispatch(b->d, &e);
    return r < 0 ? cli_fail(b->c, &e) : CLI_OK;
}

static int work(struct batch *b)
{
    uint64_t drawn = 0;
    while (!cli_interrupted) {
        while (!b->end && !b->lost && b->next - b->first < b->parallel)
            if (!feed(b))
                break;
        if (b->first == b->next)
            return CLI_OK;
        for (size_t i = b->first; i < b->next; i++)
            advance(b, &b->window[i % b->parallel]);
        bool moved = false;
        while (b->first < b->next && b->window[b->first % b->parallel].out) {
            if (write_result(b, &b->window[b->first % b->parallel]) < 0)
                return cli_fail_text(b->c, CLI_FAILED, "output: %s", strerror(errno));
            b->first++;
            moved = true;
        }
        if (clock_now_ns() - drawn > 200000000u) {
            drawn = clock_now_ns();
            progress(b, false);
        }
        if (moved)
            continue;
        if (b->lost)
            return cli_fail(b->c, &b->why);
        int status = wait_for_events(b);
        if (status != CLI_OK)
            return status;
    }
    return CLI_INTERRUPTED;
}

int cli_batch(struct cli *c)
{
    struct batch b = {.c = c, .started_ns = clock_now_ns(), .tty = isatty(STDERR_FILENO)};
    uint32_t parallel = 8;
    int status;

    if (c->argc > 1)
        return cli_usage_error(c, "one file is enough");
    if (!cli_own_u32(c, "parallel", 1, MAX_PARALLEL, &parallel))
        return CLI_USAGE;
    b.parallel = parallel;
    b.window = mem_calloc(parallel, sizeof *b.window);
    if (!b.window)
        return cli_fail_text(c, CLI_FAILED, "out of memory");
    status = open_files(&b);
    if (status == CLI_OK)
        b.d = cli_connect(c, &status);
    if (b.d) {
        cli_catch_interrupt(true);
        status = work(&b);
        cli_catch_interrupt(false);
        progress(&b, true);
        if (status == CLI_OK && b.failed)
            status = CLI_FAILED;
    }
    for (; b.first < b.next; b.first++) {
        struct item *it = &b.window[b.first % b.parallel];
        dedit_request_free(it->r);
        strbuf_done(&it->text);
        json_decref(it->in);
        json_decref(it->out);
    }
    dedit_client_free(b.d);
    mem_free(b.window);
    if (b.in && b.in != stdin)
        fclose(b.in);
    if (b.out && b.out != stdout && fclose(b.out) != 0 && status == CLI_OK)
        status = cli_fail_text(c, CLI_FAILED, "output: %s", strerror(errno));
    return status;
}
