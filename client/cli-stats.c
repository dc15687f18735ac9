/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client stats and completion. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "client/cli.h"

/* Value of "name{labels} value" summed over all labels; false when there is none. */
static bool metric(const char *text, const char *name, double *ret)
{
    size_t n = strlen(name);
    bool found = false;
    *ret = 0;
    for (const char *p = text; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        if (strncmp(p, name, n) != 0 || (p[n] != ' ' && p[n] != '{'))
            continue;
        const char *end = strchr(p, '\n');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        char line[256];
        if (len >= sizeof line)
            continue;
        memcpy(line, p, len);
        line[len] = 0;
        const char *space = strrchr(line, ' ');
        double v;
        if (space && parse_double(space + 1, &v) == 0) {
            *ret += v;
            found = true;
        }
    }
    return found;
}

struct sample {
    double running, waiting, kv, prompt, generated, ttft_sum, ttft_count, hits, queries;
    double connections, drafts, accepted;
};

static void take(const char *text, struct sample *s)
{
    const struct {
        const char *name;
        double *to;
    } rows[] = {{"dedit_num_requests_running", &s->running},
                {"dedit_num_requests_waiting", &s->waiting},
                {"dedit_kv_cache_usage_perc", &s->kv},
                {"dedit_prompt_tokens_total", &s->prompt},
                {"dedit_generation_tokens_total", &s->generated},
                {"dedit_time_to_first_token_seconds_sum", &s->ttft_sum},
                {"dedit_time_to_first_token_seconds_count", &s->ttft_count},
                {"dedit_prefix_cache_hits_total", &s->hits},
                {"dedit_prefix_cache_queries_total", &s->queries},
                {"dedit_connections", &s->connections},
                {"dedit_spec_decode_num_drafts_total", &s->drafts},
                {"dedit_spec_decode_num_accepted_tokens_total", &s->accepted}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        metric(text, rows[i].name, rows[i].to);
}

static void print_table(const struct sample *s, const struct sample *before, double seconds)
{
    printf("requests running %.0f, waiting %.0f; connections %.0f\n", s->running, s->waiting,
           s->connections);
    printf("KV pool %.1f %% used; prefix cache %.1f %% hits\n", 100 * s->kv,
           s->queries > 0 ? 100 * s->hits / s->queries : 0.0);
    printf("tokens: %.0f prompt, %.0f generated", s->prompt, s->generated);
    if (before && seconds > 0)
        printf(" (%.1f/s)", (s->generated - before->generated) / seconds);
    printf("\nfirst token after %.0f ms (mean of %.0f request%s)\n",
           s->ttft_count > 0 ? 1000 * s->ttft_sum / s->ttft_count : 0.0, s->ttft_count,
           cli_s((uint64_t)s->ttft_count));
    if (s->drafts > 0)
        printf("drafting: %.0f round%s, acceptance length %.2f\n", s->drafts,
               cli_s((uint64_t)s->drafts), 1 + s->accepted / s->drafts);
}

static json_t *as_json(const char *text)
{
    json_t *o = json_object();
    for (const char *p = text; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        const char *end = strchr(p, '\n');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        char line[256];
        double v;
        if (*p == '#' || len >= sizeof line)
            continue;
        memcpy(line, p, len);
        line[len] = 0;
        char *space = strrchr(line, ' ');
        if (!space || parse_double(space + 1, &v) < 0)
            continue;
        *space = 0;
        json_object_set_new(o, line, json_real(v));
    }
    return o;
}

int cli_stats(struct cli *c)
{
    struct sample now = {0}, before = {0};
    struct dedit_error e;
    bool watch = cli_own(c, "watch") != NULL, have = false;
    int status = CLI_OK;

    if (c->argc)
        return cli_usage_error(c, "%s: unexpected argument", c->argv[0]);
    struct dedit_client *d = cli_connect(c, &status);
    if (!d)
        return status;
    cli_catch_interrupt(watch);
    do {
        char *text = NULL;
        if (dedit_client_stats(d, &text, &e) < 0) {
            status = cli_fail(c, &e);
            break;
        }
        now = (struct sample){0};
        take(text, &now);
        if (cli_own(c, "prometheus")) {
            fputs(text, stdout);
        } else if (c->json) {
            cli_print_json(as_json(text));
        } else {
            if (watch && c->color)
                fputs("\033[H\033[2J", stdout);
            print_table(&now, have ? &before : NULL, 1.0);
        }
        fflush(stdout);
        dedit_free(text);
        before = now;
        have = true;
        if (watch && !cli_interrupted)
            nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    } while (watch && !cli_interrupted);
    cli_catch_interrupt(false);
    dedit_client_free(d);
    return status;
}

/* ---- completion ------------------------------------------------------------------------------------------- */

static void words(const struct cli_option *o, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf(" --%s", o[i].name);
}

int cli_completion(struct cli *c)
{
    if (c->argc != 1 || strcmp(c->argv[0], "bash") != 0)
        return cli_usage_error(c, "bash is the shell that is known");
    fputs("_dedit_client() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} options\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W '",
          stdout);
    for (size_t i = 0; i < cli_n_commands; i++)
        printf("%s%s", i ? " " : "", cli_commands[i].name);
    fputs("' -- \"$word\")\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", stdout);
    for (size_t i = 0; i < cli_n_commands; i++) {
        const struct cli_command *k = &cli_commands[i];
        printf("    %s) options='", k->name);
        words(k->options, k->n_options);
        if (k->sampling)
            words(cli_sampling, cli_n_sampling);
        words(cli_common, cli_n_common);
        fputs("' ;;\n", stdout);
    }
    fputs("    *) return ;;\n    esac\n"
          "    case $word in\n"
          "    -*) mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\") ;;\n"
          "    *) mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n"
          "    esac\n}\ncomplete -F _dedit_client dedit-client\n",
          stdout);
    return CLI_OK;
}
