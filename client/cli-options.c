/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of options, and the parser that reads command lines by them. */
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/options.h"
#include "base/parse.h"
#include "client/cli-parse.h"
#include "client/cli.h"

const struct cli_option cli_common[] = {
    {"socket", 'S', "PATH", "$DEDIT_SOCKET, the runtime folder, /run/dedit/dedit.sock",
     "socket of the daemon"},
    {"json", 0, NULL, NULL, "print JSON, one object a line"},
    {"quiet", 'q', NULL, NULL, "no statistics, no progress"},
    {"help", 'h', NULL, NULL, "print this help"},
};
const size_t cli_n_common = ARRAY_LEN(cli_common);

const struct cli_option cli_sampling[] = {
    {"model", 'm', "NAME", "the daemon's default", "model to use"},
    {"max-tokens", 'n', "N", "256", "most tokens to generate"},
    {"temperature", 't', "T", "1", "0 to 100; below 1e-5 the most likely token is taken"},
    {"top-k", 0, "K", "0", "keep the K most likely tokens; 0: all"},
    {"top-p", 0, "P", "1", "keep the most likely tokens that sum to P"},
    {"min-p", 0, "P", "0", "drop tokens less likely than P times the best"},
    {"repetition-penalty", 0, "R", "1", "divides the logits of tokens seen"},
    {"frequency-penalty", 0, "F", "0", "subtracted per occurrence in the output"},
    {"presence-penalty", 0, "F", "0", "subtracted once for tokens in the output"},
    {"seed", 's', "N", "drawn by the daemon", "0 to 2^64-1; makes sampling repeatable"},
    {"min-tokens", 0, "N", "0", "no end of text before N tokens"},
    {"ignore-eos", 0, NULL, NULL, "go on after the end of text"},
    {"stop", 0, "TEXT", NULL, "stop when TEXT appears; may be repeated"},
    {"stop-token-id", 0, "ID", NULL, "stop at this token; may be repeated"},
    {"include-stop", 0, NULL, NULL, "keep the stop string in the output"},
    {"logit-bias", 0, "ID:BIAS", NULL, "added to a token's logit; may be repeated"},
    {"logprobs", 0, "N", NULL, "log-probabilities with N alternatives (generate --json)"},
    {"keep-special", 0, NULL, NULL, "print control tokens as text"},
    {"method", 0, "NAME", "auto", "drafting method; ar: plain decoding"},
    {"window", 0, "W", "automatic", "tokens drafted at once, 2 to 64"},
    {"passes", 0, "K", "automatic", "draft and edit passes, 1 to 8"},
    {"tree-budget", 0, "N", "automatic", "nodes of a draft tree, 1 to 127"},
    {"edit-visibility", 0, "V", "bidirectional", "what edit passes see of the block; or causal"},
    {"verification", 0, "RULE", "exact", "rejection: the law of plain decoding, not its text"},
    {"no-noise", 0, NULL, NULL, "the drafter does not use the target's noise"},
    {"priority", 0, "N", "0", "lower runs first"},
    {"timeout", 0, "TIME", "none", "give up after this time, as 30s or 500ms"},
    {"cache-salt", 0, "TEXT", NULL, "share cached prefixes with requests of the same salt"},
    {"system", 0, "TEXT", "the model's own", "system message"},
    {"chat-format", 0, "NAME", "the model's own", "chatml, qwen3, smollm2 or llama3"},
    {"thinking", 0, "on|off", "the model's own", "thinking of models that can"},
    {"raw", 'r', NULL, NULL, "the prompt is text to be continued, not a chat message"},
};
const size_t cli_n_sampling = ARRAY_LEN(cli_sampling);

/* ---- the nearest name ----------------------------------------------------------------------------------- */

static void consider(const char *word, const char *name, const char **best, unsigned *least)
{
    unsigned d = name_distance(word, name);
    if (d < *least) {
        *least = d;
        *best = name;
    }
}

const char *cli_nearest_command(const char *word)
{
    const char *best = NULL;
    unsigned least = NAME_NEAR + 1;
    for (size_t i = 0; i < cli_n_commands; i++)
        consider(word, cli_commands[i].name, &best, &least);
    return best;
}

static const char *nearest_option(const struct cli_command *k, const char *word)
{
    const char *best = NULL;
    unsigned least = NAME_NEAR + 1;
    for (size_t i = 0; i < k->n_options; i++)
        consider(word, k->options[i].name, &best, &least);
    for (size_t i = 0; i < cli_n_common; i++)
        consider(word, cli_common[i].name, &best, &least);
    for (size_t i = 0; k->sampling && i < cli_n_sampling; i++)
        consider(word, cli_sampling[i].name, &best, &least);
    return best;
}

/* ---- help --------------------------------------------------------------------------------------------------- */

static void print_options(FILE *f, const struct cli_option *o, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char left[64];
        snprintf(left, sizeof left, "%c%c%s --%s%s%s", o[i].letter ? '-' : ' ',
                 o[i].letter ? o[i].letter : ' ', o[i].letter ? "," : " ", o[i].name,
                 o[i].arg ? " " : "", o[i].arg ? o[i].arg : "");
        fprintf(f, "  %-30s %s", left, o[i].help);
        if (o[i].standard)
            fprintf(f, " (default: %s)", o[i].standard);
        fputc('\n', f);
    }
}

void cli_print_help(FILE *f, const struct cli_command *k)
{
    fprintf(f, "usage: dedit-client %s%s%s [options]\n\n%s\n\n", k->name, *k->args ? " " : "",
            k->args, k->summary);
    print_options(f, k->options, k->n_options);
    if (k->sampling)
        print_options(f, cli_sampling, cli_n_sampling);
    print_options(f, cli_common, cli_n_common);
}

void cli_print_overview(FILE *f)
{
    fputs("usage: dedit-client COMMAND [arguments] [options]\n\n", f);
    for (size_t i = 0; i < cli_n_commands; i++)
        fprintf(f, "  %-12s %s\n", cli_commands[i].name, cli_commands[i].summary);
    fputs("\n`dedit-client COMMAND --help` lists a command's options.\n", f);
}

/* ---- parsing ------------------------------------------------------------------------------------------------- */

static int bad(const struct cli *c, const char *name, const char *value, const char *rule)
{
    return cli_usage_error(c, "--%s: \"%s\" is not %s", name, value, rule);
}

static int set_float(const struct cli *c, const char *name, const char *v, float *to)
{
    double d;
    if (parse_double(v, &d) < 0)
        return bad(c, name, v, "a number");
    *to = (float)d;
    return 0;
}

static int set_u32(const struct cli *c, const char *name, const char *v, uint32_t least,
                   uint32_t *to)
{
    if (parse_u32(v, UINT32_MAX, to) < 0 || *to < least)
        return bad(c, name, v, least ? "a whole number from 1" : "a whole number from 0");
    return 0;
}

static int set_i32(const struct cli *c, const char *name, const char *v, int32_t *to)
{
    int64_t i;
    if (parse_i64(v, &i) < 0 || i < INT32_MIN || i > INT32_MAX)
        return bad(c, name, v, "a whole number");
    *to = (int32_t)i;
    return 0;
}

static int add_bias(struct cli *c, const char *v)
{
    char id[16];
    const char *colon = strchr(v, ':');
    double b;
    struct dedit_logit_bias *to = &c->bias[c->o.n_logit_bias];
    if (c->o.n_logit_bias == ARRAY_LEN(c->bias))
        return cli_usage_error(c, "--logit-bias: at most %zu", ARRAY_LEN(c->bias));
    if (!colon || (size_t)(colon - v) >= sizeof id)
        return bad(c, "logit-bias", v, "of the form ID:BIAS");
    memcpy(id, v, (size_t)(colon - v));
    id[colon - v] = 0;
    if (parse_u32(id, UINT32_MAX, &to->token) < 0 || parse_double(colon + 1, &b) < 0)
        return bad(c, "logit-bias", v, "of the form ID:BIAS");
    to->bias = (float)b;
    c->o.logit_bias = c->bias;
    c->o.n_logit_bias++;
    return 0;
}

static int add_stop(struct cli *c, const char *v)
{
    if (c->o.n_stop == ARRAY_LEN(c->stop))
        return cli_usage_error(c, "--stop: at most %zu", ARRAY_LEN(c->stop));
    c->stop[c->o.n_stop++] = v;
    c->o.stop = c->stop;
    return 0;
}

static int add_stop_id(struct cli *c, const char *v)
{
    if (c->o.n_stop_token_ids == ARRAY_LEN(c->stop_ids))
        return cli_usage_error(c, "--stop-token-id: at most %zu", ARRAY_LEN(c->stop_ids));
    int r = set_u32(c, "stop-token-id", v, 0, &c->stop_ids[c->o.n_stop_token_ids]);
    c->o.n_stop_token_ids += r == 0;
    c->o.stop_token_ids = c->stop_ids;
    return r;
}

static int set_timeout(struct cli *c, const char *v)
{
    uint64_t ns;
    if (parse_duration_ns(v, &ns) < 0 || ns < 1000000u)
        return bad(c, "timeout", v, "a time as 30s or 500ms");
    c->o.timeout_ms = ns / 1000000u;
    return 0;
}

static int set_thinking(struct cli *c, const char *v)
{
    bool on;
    if (parse_bool(v, &on) < 0)
        return bad(c, "thinking", v, "on or off");
    c->o.enable_thinking = on;
    return 0;
}

static int set_sampling(struct cli *c, const char *name, const char *v)
{
    struct dedit_options *o = &c->o;
    const struct {
        const char *name;
        float *to;
    } floats[] = {{"temperature", &o->temperature},
                  {"top-p", &o->top_p},
                  {"min-p", &o->min_p},
                  {"repetition-penalty", &o->repetition_penalty},
                  {"frequency-penalty", &o->frequency_penalty},
                  {"presence-penalty", &o->presence_penalty}};
    /* Of the drafting options 0 is the library's word for "automatic"; the daemon knows the upper ends. */
    const struct {
        const char *name;
        uint32_t *to;
        uint32_t least;
    } counts[] = {{"max-tokens", &o->max_tokens, 0},
                  {"min-tokens", &o->min_tokens, 0},
                  {"window", &o->window, 1},
                  {"passes", &o->passes, 1},
                  {"tree-budget", &o->tree_budget, 1}};
    const struct {
        const char *name;
        int32_t *to;
    } ints[] = {{"top-k", &o->top_k}, {"logprobs", &o->logprobs}, {"priority", &o->priority}};
    const struct {
        const char *name;
        const char **to;
    } texts[] = {{"model", &o->model},
                 {"method", &o->method},
                 {"edit-visibility", &o->edit_visibility},
                 {"verification", &o->verification},
                 {"cache-salt", &o->cache_salt},
                 {"system", &c->system},
                 {"chat-format", &o->chat_format}};

    for (size_t i = 0; i < ARRAY_LEN(floats); i++)
        if (strcmp(name, floats[i].name) == 0)
            return set_float(c, name, v, floats[i].to);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        if (strcmp(name, counts[i].name) == 0)
            return set_u32(c, name, v, counts[i].least, counts[i].to);
    for (size_t i = 0; i < ARRAY_LEN(ints); i++)
        if (strcmp(name, ints[i].name) == 0)
            return set_i32(c, name, v, ints[i].to);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (strcmp(name, texts[i].name) == 0) {
            *texts[i].to = v;
            return 0;
        }
    if (strcmp(name, "seed") == 0) {
        o->has_seed = 1;
        return parse_u64(v, &o->seed) < 0 ? bad(c, name, v, CLI_SEED_RULE) : 0;
    }
    if (strcmp(name, "ignore-eos") == 0)
        o->ignore_eos = 1;
    else if (strcmp(name, "include-stop") == 0)
        o->include_stop_str_in_output = 1;
    else if (strcmp(name, "keep-special") == 0)
        o->skip_special_tokens = 0;
    else if (strcmp(name, "no-noise") == 0)
        o->no_noise = 1;
    else if (strcmp(name, "raw") == 0)
        c->chat_format_none = true;
    else if (strcmp(name, "stop") == 0)
        return add_stop(c, v);
    else if (strcmp(name, "stop-token-id") == 0)
        return add_stop_id(c, v);
    else if (strcmp(name, "logit-bias") == 0)
        return add_bias(c, v);
    else if (strcmp(name, "timeout") == 0)
        return set_timeout(c, v);
    else if (strcmp(name, "thinking") == 0)
        return set_thinking(c, v);
    return 0;
}

#define MAX_LONG 96

static size_t add_long(struct option *list, size_t n, const struct cli_option *o, size_t count,
                       int first, char *letters, size_t room)
{
    for (size_t i = 0; i < count && n < MAX_LONG - 1; i++) {
        list[n++] = (struct option){o[i].name, o[i].arg ? required_argument : no_argument, NULL,
                                    first + (int)i};
        size_t used = strlen(letters);
        if (o[i].letter && used + 3 < room) {
            letters[used++] = o[i].letter;
            if (o[i].arg)
                letters[used++] = ':';
            letters[used] = 0;
        }
    }
    return n;
}

static int by_letter(const struct cli_option *o, size_t n, int letter)
{
    for (size_t i = 0; i < n; i++)
        if (o[i].letter && o[i].letter == letter)
            return (int)i;
    return -1;
}

enum { OWN = 1000, SAMPLING = 2000, COMMON = 3000 };

/* A short option's letter as its number. */
static int number_of(const struct cli_command *k, int v)
{
    int i;
    if (v >= OWN)
        return v;
    if ((i = by_letter(k->options, k->n_options, v)) >= 0)
        return OWN + i;
    if (k->sampling && (i = by_letter(cli_sampling, cli_n_sampling, v)) >= 0)
        return SAMPLING + i;
    return COMMON + by_letter(cli_common, cli_n_common, v);
}

static int set_common(struct cli *c, const char *name, const char *v)
{
    if (strcmp(name, "socket") == 0)
        c->socket = v;
    else if (strcmp(name, "json") == 0)
        c->json = true;
    else if (strcmp(name, "quiet") == 0)
        c->quiet = true;
    else
        return -1; /* help */
    return 0;
}

int cli_parse(struct cli *c, int argc, char **argv, bool *ret_help)
{
    const struct cli_command *k = c->command;
    struct option list[MAX_LONG] = {0};
    char letters[64] = ":";
    size_t n = 0;
    int r = 0;

    n = add_long(list, n, k->options, k->n_options, OWN, letters, sizeof letters);
    if (k->sampling)
        n = add_long(list, n, cli_sampling, cli_n_sampling, SAMPLING, letters, sizeof letters);
    add_long(list, n, cli_common, cli_n_common, COMMON, letters, sizeof letters);
    opterr = 0;
    optind = 1;
    while (r == 0) {
        int v = getopt_long(argc, argv, letters, list, NULL);
        if (v == -1)
            break;
        if (v == ':')
            return cli_usage_error(c, "%s needs a value", argv[optind - 1]);
        if (v == '?') {
            char buf[4];
            const char *word = option_refused(argv, letters, buf);
            const char *near = strncmp(word, "--", 2) == 0 ? nearest_option(k, word + 2) : NULL;
            return near ? cli_usage_error(c, "%s: unknown option; did you mean --%s?", word, near)
                        : cli_usage_error(c, "%s: unknown option; see --help", word);
        }
        v = number_of(k, v);
        if (v >= COMMON) {
            if (set_common(c, cli_common[v - COMMON].name, optarg) < 0)
                *ret_help = true;
        } else if (v >= SAMPLING) {
            r = set_sampling(c, cli_sampling[v - SAMPLING].name, optarg);
        } else {
            c->own[v - OWN] = optarg ? optarg : "";
        }
    }
    c->argc = argc - optind;
    c->argv = argv + optind;
    if (r == 0 && c->o.logprobs >= 0 && !*ret_help && (!c->json || k->run != cli_generate))
        return cli_usage_error(c, "--logprobs: generate --json alone prints log-probabilities");
    return r;
}

const char *cli_own(const struct cli *c, const char *name)
{
    for (size_t i = 0; i < c->command->n_options; i++)
        if (strcmp(c->command->options[i].name, name) == 0)
            return c->own[i];
    return NULL;
}

bool cli_own_u32(const struct cli *c, const char *name, uint32_t min, uint32_t max, uint32_t *ret)
{
    const char *v = cli_own(c, name);
    uint32_t n;
    if (!v)
        return true;
    if (parse_u32(v, max, &n) < 0 || n < min) {
        cli_usage_error(c, "--%s: \"%s\" is not a whole number from %u to %u", name, v, min, max);
        return false;
    }
    *ret = n;
    return true;
}
