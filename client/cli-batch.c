/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-client batch: JSON lines in, JSON lines out in the order of the input, several at once.  What a
 * line may say is in dedit-client(1).  With --output an interrupted run goes on after the last whole
 * result; a line whose answer was lost with the daemon is not written, so it is asked again.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/line.h"
#include "base/strbuf.h"
#include "client/cli-batch.h"
#include "client/cli.h"

#define MAX_PARALLEL 256u

struct item {
    struct dedit_request *r;
    json_t *in; /* the input line; its strings are the prompt */
    struct strbuf text;
    json_t *out;   /* the result, once there is one */
    size_t number; /* line of the input, from 1 */
    char digest[BATCH_DIGEST];
};

struct batch {
    struct cli *c;
    struct dedit_client *d;
    FILE *in;
    const char *in_name;    /* for messages */
    struct error in_failed; /* why it could not be read to its end */
    struct batch_output output;
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

static void submit(struct batch *b, struct item *it, uint64_t seed)
{
    struct batch_request q;
    struct dedit_error e;
    const char *why;
    if (!batch_request_read(b->c, it->in, seed, &q, &why))
        set_result_error(it, "invalid-argument", why);
    else if (dedit_client_submit(b->d, &q.o, &it->r, &e) < 0 && !lose(b, &e))
        set_result_error(it, dedit_error_name(e.code), e.msg);
    batch_request_done(&q);
}

/* Reads and submits one line; false at the end of what can be read. */
static bool feed(struct batch *b)
{
    char *line = NULL;
    size_t cap = 0;
    uint64_t seed = 0;
    json_error_t je;
    const long n = line_read_next(b->in, b->in_name, &line, &cap, &b->in_failed);
    if (n <= 0) {
        free(line);
        b->end = true;
        return false;
    }
    struct item *it = &b->window[b->next % b->parallel];
    *it = (struct item){.number = ++b->next};
    batch_digest(line, (size_t)n, it->digest);
    it->in = cli_load_line(line, (size_t)n, &seed, &je);
    free(line);
    if (!json_is_object(it->in))
        set_result_error(it, "bad-format", it->in ? "the line is no JSON object" : je.text);
    else
        submit(b, it, seed);
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

static void item_done(struct item *it)
{
    dedit_request_free(it->r);
    strbuf_done(&it->text);
    json_decref(it->in);
    json_decref(it->out);
    *it = (struct item){0};
}

static int write_result(struct batch *b, struct item *it)
{
    json_t *line = json_object();
    const json_t *id = json_object_get(it->in, "id");
    FILE *f = b->output.f;
    json_object_set_new(line, "line", json_integer((json_int_t)it->number));
    json_object_set_new(line, "request", json_string(it->digest));
    if (id)
        json_object_set(line, "id", (json_t *)(uintptr_t)id);
    b->failed += json_object_get(it->out, "error") != NULL;
    json_object_update(line, it->out);
    int r = cli_dump_json(line, f);
    json_decref(line);
    if (r == 0 && (fputc('\n', f) == EOF || fflush(f) != 0))
        r = -1;
    b->done++;
    item_done(it);
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

/* Lines that are not empty; 0 when the input is no file that can be read twice, or cannot be read. */
static size_t count_lines(FILE *f)
{
    struct stat st;
    struct error e = {0};
    char *line = NULL;
    size_t cap = 0, lines = 0;
    long n;
    if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    off_t at = ftello(f);
    while ((n = line_read_next(f, "", &line, &cap, &e)) > 0)
        lines++;
    free(line);
    clearerr(f);
    return n == 0 && at >= 0 && fseeko(f, at, SEEK_SET) == 0 ? lines : 0;
}

/* A folder can be opened as well, and is told here: its first line would be read after all was made for it. */
static int open_input(struct batch *b, const char *in)
{
    struct stat st;
    b->in = strcmp(in, "-") == 0 ? stdin : fopen(in, "re");
    b->in_name = b->in == stdin ? "standard input" : in;
    if (!b->in)
        return cli_fail_text(b->c, CLI_FAILED, "%s: %s", in, strerror(errno));
    return fstat(fileno(b->in), &st) == 0 && S_ISDIR(st.st_mode)
               ? cli_fail_text(b->c, CLI_FAILED, "%s: is a directory, not a file", b->in_name)
               : CLI_OK;
}

static int open_files(struct batch *b)
{
    struct cli *c = b->c;
    const char *in = c->argc ? c->argv[0] : "-", *out = cli_own(c, "output");
    /* Answers that are appended to what is read would be read. */
    if (!cli_apart(c, out ? "--output" : "standard output", out ? out : "/dev/stdout", in))
        return CLI_USAGE;
    int status = open_input(b, in);
    if (status == CLI_OK && b->tty && !c->quiet)
        b->total = count_lines(b->in);
    if (status == CLI_OK)
        status = batch_output_open(c, out, &b->output);
    if (status == CLI_OK)
        status = batch_output_resume(c, &b->output, b->in, b->in_name);
    b->first = b->next = b->skip = b->output.done;
    return status;
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
        if (status == CLI_OK && b.in_failed.code)
            status = cli_fail_text(c, CLI_FAILED, "%s", b.in_failed.msg);
        if (status == CLI_OK && b.failed + b.output.failed)
            status = CLI_FAILED;
    }
    for (; b.first < b.next; b.first++)
        item_done(&b.window[b.first % b.parallel]);
    dedit_client_free(b.d);
    mem_free(b.window);
    if (b.in && b.in != stdin)
        fclose(b.in);
    return batch_output_close(c, &b.output, status);
}
