/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client: commands, and what they share. */
#include "client/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/out_file.h"
#include "base/parse.h"
#include "client/cli-parse.h"

#define MAX_INPUT (1u << 30)

static const struct cli_option generate_options[] = {
    {"file", 'f', "PATH", NULL, "read the prompt from a file; - is standard input"},
    {"ids", 0, NULL, NULL, "the prompt is token ids, separated by spaces"},
    {"trace", 0, NULL, NULL, "show every round: drafts, edits, what was accepted"},
    {"trace-json", 0, "PATH", NULL, "write the rounds as JSON lines; - is standard output"},
    {"compare", 0, NULL, NULL, "answer again with plain decoding: equal, and how much faster?"},
};
static const struct cli_option trace_options[] = {
    {"output", 'o', "PATH", "standard output", "where the page goes"},
};
static const struct cli_option batch_options[] = {
    {"output", 'o', "PATH", "standard output",
     "where results go; finished lines are not done again"},
    {"parallel", 'p', "N", "8", "requests at once, 1 to 256"},
};
static const struct cli_option chat_options[] = {
    {"history", 0, "PATH", "~/.local/state/dedit/chat_history", "history of the lines typed"},
};
static const struct cli_option tokenize_options[] = {
    {"model", 'm', "NAME", "the daemon's default", "whose vocabulary"},
    {"special", 0, NULL, NULL, "control tokens in the text are recognised"},
};
static const struct cli_option model_options[] = {
    {"model", 'm', "NAME", "the daemon's default", "whose vocabulary"},
};
static const struct cli_option add_options[] = {
    {"name", 0, "NAME", "the file's name", "name in the store"},
    {"store", 0, "FOLDER", "where the daemon looks", "model store"},
};
static const struct cli_option rm_options[] = {
    {"store", 0, "FOLDER", "where the daemon looks", "model store"},
};
static const struct cli_option load_options[] = {
    {"path", 0, "PATH", NULL, "file or folder of a model that is not configured"},
    {"drafter", 0, "PATH", "one that lies beside it", "its drafter; none: no drafter"},
};
static const struct cli_option drain_options[] = {
    {"stop", 0, NULL, NULL, "the daemon ends when the last request has"},
};
static const struct cli_option stats_options[] = {
    {"watch", 'w', NULL, NULL, "a table that is drawn again every second"},
    {"prometheus", 0, NULL, NULL, "the text that Prometheus reads"},
};
static const struct cli_option ping_options[] = {
    {"count", 'c', "N", "1", "round trips, 1 to 1000000"},
};

#define OPTIONS(o) (o), ARRAY_LEN(o)
const struct cli_command cli_commands[] = {
    {"generate", "[PROMPT...]", "Answer one prompt, as it is generated.", OPTIONS(generate_options),
     true, cli_generate},
    {"chat", "", "Talk; /help lists what can be typed.", OPTIONS(chat_options), true, cli_chat},
    {"batch", "[FILE]", "Answer many prompts: JSON lines in, JSON lines out, in order.",
     OPTIONS(batch_options), true, cli_batch},
    {"tokenize", "[TEXT...]", "Token ids of a text.", OPTIONS(tokenize_options), false,
     cli_tokenize},
    {"detokenize", "ID...", "Text of token ids.", OPTIONS(model_options), false, cli_detokenize},
    {"models", "[NAME]", "The models that the daemon knows.", NULL, 0, false, cli_models},
    {"add", "PATH", "Copy a model into the store.", OPTIONS(add_options), false, cli_add},
    {"rm", "NAME", "Remove a model from the store.", OPTIONS(rm_options), false, cli_rm},
    {"load", "NAME", "Load a model.", OPTIONS(load_options), false, cli_load},
    {"unload", "NAME", "Unload a model once its requests have ended.", NULL, 0, false, cli_unload},
    {"reload", "", "Read the daemon's configuration again.", NULL, 0, false, cli_reload},
    {"drain", "", "Take no new requests.", OPTIONS(drain_options), false, cli_drain},
    {"stats", "", "What the daemon has done and is doing.", OPTIONS(stats_options), false,
     cli_stats},
    {"ping", "", "Is the daemon there, and how fast does it answer?", OPTIONS(ping_options), false,
     cli_ping},
    {"trace-html", "FILE", "Make a page of a trace that --trace-json has written.",
     OPTIONS(trace_options), false, cli_trace_html},
    {"completion", "bash", "Print a completion script.", NULL, 0, false, cli_completion},
};
const size_t cli_n_commands = ARRAY_LEN(cli_commands);

/* ---- errors -------------------------------------------------------------------------------------------- */

int cli_status_of(int code)
{
    switch (code) {
    case DEDIT_ERR_CLOSED:
    case DEDIT_ERR_IO:
    case DEDIT_ERR_PROTOCOL:
        return CLI_NO_DAEMON;
    case DEDIT_ERR_INVALID:
    case DEDIT_ERR_NOT_FOUND:
    case DEDIT_ERR_UNSUPPORTED:
    case DEDIT_ERR_LIMIT:
    case DEDIT_ERR_BUSY:
    case DEDIT_ERR_DENIED:
    case DEDIT_ERR_CONTEXT_FULL:
        return CLI_REFUSED;
    default:
        return CLI_FAILED;
    }
}

int cli_fail(const struct cli *c, const struct dedit_error *e)
{
    if (c->json)
        cli_print_json(json_pack("{s:{s:s, s:s}}", "error", "code", dedit_error_name(e->code),
                                 "message", e->msg));
    else
        fprintf(stderr, "dedit-client: %s\n", e->msg);
    return cli_status_of(e->code);
}

int cli_fail_text(const struct cli *c, int status, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->json)
        cli_print_json(json_pack("{s:{s:s, s:s}}", "error", "code", "failed", "message", text));
    else
        fprintf(stderr, "dedit-client: %s\n", text);
    return status;
}

int cli_usage_error(const struct cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "dedit-client %s: ", c->command->name);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return CLI_USAGE;
}

/* ---- shared pieces ----------------------------------------------------------------------------------------- */

struct dedit_client *cli_connect(const struct cli *c, int *ret_status)
{
    struct dedit_client *d = NULL;
    struct dedit_error e;
    if (dedit_client_connect(c->socket, &d, &e) < 0) {
        *ret_status = cli_fail(c, &e);
        return NULL;
    }
    return d;
}

static char *read_stdin(const struct cli *c, size_t *ret_len)
{
    size_t len = 0, cap = 65536;
    char *b = mem_alloc(cap + 1);
    while (b) {
        size_t n = fread(b + len, 1, cap - len, stdin);
        len += n;
        if (n == 0)
            break;
        if (len == cap) {
            char *grown = cap < MAX_INPUT ? mem_realloc(b, 2 * cap + 1) : NULL;
            if (!grown) {
                mem_free(b);
                b = NULL;
                break;
            }
            b = grown;
            cap *= 2;
        }
    }
    if (!b || ferror(stdin)) {
        mem_free(b);
        cli_fail_text(c, CLI_FAILED, "standard input: %s", strerror(errno));
        return NULL;
    }
    b[len] = 0;
    *ret_len = len;
    return b;
}

char *cli_read(const struct cli *c, const char *path, size_t *ret_len)
{
    struct error e = {0};
    char *text = NULL;
    if (strcmp(path, "-") == 0)
        return read_stdin(c, ret_len);
    if (file_read(path, MAX_INPUT, &text, ret_len, &e) < 0) {
        cli_fail_text(c, CLI_FAILED, "%s", e.msg);
        return NULL;
    }
    return text;
}

bool cli_apart(const struct cli *c, const char *option, const char *out, const char *in)
{
    const struct out_use use = {option, out};
    const char *const ins[] = {in && !strcmp(in, "-") ? "/dev/stdin" : in};
    struct error e = {0};
    if (out && strcmp(out, "-") != 0 && out_files_check(&use, 1, ins, 1, &e) < 0) {
        cli_usage_error(c, "%s", e.msg);
        return false;
    }
    return true;
}

double cli_speed(const struct dedit_usage *u)
{
    if (u->completion_tokens < 2 || u->total_ns <= u->first_token_ns)
        return 0;
    return (u->completion_tokens - 1) * 1e9 / (double)(u->total_ns - u->first_token_ns);
}

const char *cli_s(uint64_t n)
{
    return n == 1 ? "" : "s";
}

void cli_print_drafting(FILE *f, const struct dedit_usage *u)
{
    /* The prompt's step gives the first token; every other token that no draft's round gave had one of its own. */
    const uint64_t drafted = u->committed_tokens + 1;
    const uint64_t rounds =
        u->rounds + (u->completion_tokens > drafted ? u->completion_tokens - drafted : 0);
    if (u->method)
        fprintf(f, ", %s", u->method);
    if (u->rounds)
        fprintf(f, ", drafts in %llu of %llu round%s, acceptance length %.2f",
                (unsigned long long)u->rounds, (unsigned long long)rounds, cli_s(rounds),
                (double)u->committed_tokens / (double)u->rounds);
}

void cli_stats_line(FILE *f, const struct dedit_event *end)
{
    const struct dedit_usage *u = &end->usage;
    fprintf(f, "%u prompt token%s", u->prompt_tokens, cli_s(u->prompt_tokens));
    if (u->cached_tokens)
        fprintf(f, " (%u cached)", u->cached_tokens);
    fprintf(f, ", first token after %.0f ms, %u token%s", (double)u->first_token_ns / 1e6,
            u->completion_tokens, cli_s(u->completion_tokens));
    if (cli_speed(u) > 0)
        fprintf(f, ", %.1f tokens/s", cli_speed(u));
    cli_print_drafting(f, u);
    fprintf(f, ", %s\n", end->finish_reason ? end->finish_reason : "failed");
}

void cli_prompt(struct cli *c, const char *text, size_t len, struct dedit_chat_message m[2])
{
    size_t n = 0;
    c->o.text = NULL;
    c->o.messages = NULL;
    c->o.n_messages = 0;
    if (c->chat_format_none) {
        c->o.text = text;
        c->o.text_len = len;
        return;
    }
    if (c->system)
        m[n++] = (struct dedit_chat_message){.role = "system", .content = c->system};
    m[n++] = (struct dedit_chat_message){.role = "user", .content = text};
    c->o.messages = m;
    c->o.n_messages = n;
}

const char *cli_sgr(const struct cli *c, const char *code)
{
    return c->color ? code : "";
}

volatile int cli_interrupted;

static void on_interrupt(int sig)
{
    cli_interrupted = sig;
}

void cli_catch_interrupt(bool on)
{
    struct sigaction a = {.sa_handler = on ? on_interrupt : SIG_DFL};
    cli_interrupted = 0;
    sigaction(SIGINT, &a, NULL);
}

void cli_catch_end(bool on)
{
    const struct sigaction a = {.sa_handler = on ? on_interrupt : SIG_DFL};
    static const int signals[] = {SIGTERM, SIGHUP};
    cli_catch_interrupt(on);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        struct sigaction was;
        if (sigaction(signals[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN)
            sigaction(signals[i], &a, NULL);
    }
}

/* ---- main ------------------------------------------------------------------------------------------------------ */

static const struct cli_command *find(const char *name)
{
    for (size_t i = 0; i < cli_n_commands; i++)
        if (strcmp(cli_commands[i].name, name) == 0)
            return &cli_commands[i];
    return NULL;
}

static int run(int argc, char **argv)
{
    struct cli c = {0};
    bool help = false;
    const char *no_color = getenv("NO_COLOR");

    if (argc < 2) {
        cli_print_overview(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        cli_print_overview(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("dedit-client %s\n", dedit_version());
        return CLI_OK;
    }
    c.command = find(argv[1]);
    if (!c.command) {
        const char *near = cli_nearest_command(argv[1]);
        fprintf(stderr, "dedit-client: %s: unknown command", argv[1]);
        if (argv[1][0] == '-')
            fputs("; options come after the command, see dedit-client --help\n", stderr);
        else if (near)
            fprintf(stderr, "; did you mean %s?\n", near);
        else
            fputs("; see dedit-client --help\n", stderr);
        return CLI_USAGE;
    }
    c.color = isatty(STDOUT_FILENO) && !(no_color && *no_color);
    dedit_options_init(&c.o, sizeof c.o);
    int r = cli_parse(&c, argc - 1, argv + 1, &help);
    if (help) {
        cli_print_help(stdout, c.command);
        return CLI_OK;
    }
    return r ? r : c.command->run(&c);
}

int main(int argc, char **argv)
{
    /* A reader that went away (`| head`) ends the program without a word. */
    signal(SIGPIPE, SIG_DFL);
    int r = run(argc, argv);
    /* Now, or by a flush before, whose cause is gone. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && r == CLI_OK) {
        fputs("dedit-client: standard output: cannot write all of it\n", stderr);
        r = CLI_FAILED;
    }
    return r;
}
