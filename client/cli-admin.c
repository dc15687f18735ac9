/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client: models, load, unload, reload, drain, ping, tokenize, detokenize. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "client/cli.h"

/* The one argument that a command wants, or NULL after printing. */
static const char *one_argument(struct cli *c, const char *what)
{
    if (c->argc == 1)
        return c->argv[0];
    cli_usage_error(c, c->argc ? "one %s is enough" : "which %s?", what);
    return NULL;
}

static int no_arguments(struct cli *c)
{
    return c->argc ? cli_usage_error(c, "%s: unexpected argument", c->argv[0]) : CLI_OK;
}

/* ---- models ---------------------------------------------------------------------------------------------- */

static json_t *model_json(const struct dedit_model *m)
{
    return json_pack(
        "{s:s, s:s, s:b, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:s}",
        "name", m->name, "state", m->state, "default", (int)m->is_default, "progress",
        (json_int_t)m->progress_percent, "family", m->family, "chat_format", m->chat_format,
        "vocab_size", (json_int_t)m->vocab_size, "max_context", (json_int_t)m->max_context,
        "weight_bytes", (json_int_t)m->weight_bytes, "kv_bytes", (json_int_t)m->kv_bytes,
        "memory_bytes", (json_int_t)m->memory_bytes, "class", m->numeric_class, "drafter",
        m->drafter, "methods", m->methods, "running", (json_int_t)m->running, "waiting",
        (json_int_t)m->waiting, "path", m->path);
}

static void print_model(const struct dedit_model *m)
{
    printf("%-28s %-9s", m->name, m->state);
    if (strcmp(m->state, "loading") == 0)
        printf(" %u %%", m->progress_percent);
    if (m->vocab_size)
        printf(" %s, context %u, %.0f MiB, %s", m->family, m->max_context,
               (double)m->memory_bytes / 1048576.0, m->numeric_class);
    if (*m->drafter)
        printf(", drafter %s", m->drafter);
    if (*m->error)
        printf(" %s", m->error);
    printf("%s\n", m->is_default ? "  (default)" : "");
}

int cli_models(struct cli *c)
{
    struct dedit_model_list *l = NULL;
    struct dedit_error e;
    int status = CLI_OK;
    const char *name = c->argc ? c->argv[0] : NULL;
    if (c->argc > 1)
        return cli_usage_error(c, "one name is enough");
    struct dedit_client *d = cli_connect(c, &status);
    if (!d)
        return status;
    if (dedit_client_models(d, name, &l, &e) < 0) {
        status = cli_fail(c, &e);
    } else {
        for (size_t i = 0; i < dedit_model_list_len(l); i++) {
            if (c->json)
                cli_print_json(model_json(dedit_model_list_at(l, i)));
            else
                print_model(dedit_model_list_at(l, i));
        }
    }
    dedit_model_list_free(l);
    dedit_client_free(d);
    return status;
}

/* ---- orders ------------------------------------------------------------------------------------------------- */

static int done(struct cli *c, struct dedit_client *d, int r, const struct dedit_error *e)
{
    int status = r < 0 ? cli_fail(c, e) : CLI_OK;
    if (r >= 0 && c->json)
        cli_print_json(json_pack("{s:b}", "ok", 1));
    dedit_client_free(d);
    return status;
}

int cli_load(struct cli *c)
{
    struct dedit_error e;
    int status = CLI_USAGE;
    const char *name = one_argument(c, "model");
    struct dedit_client *d = name ? cli_connect(c, &status) : NULL;
    if (!d)
        return status;
    int r = dedit_client_load_drafted(d, name, cli_own(c, "path"), cli_own(c, "drafter"), &e);
    return done(c, d, r, &e);
}

int cli_unload(struct cli *c)
{
    struct dedit_error e;
    int status = CLI_USAGE;
    const char *name = one_argument(c, "model");
    struct dedit_client *d = name ? cli_connect(c, &status) : NULL;
    return d ? done(c, d, dedit_client_unload(d, name, &e), &e) : status;
}

int cli_reload(struct cli *c)
{
    struct dedit_error e;
    int status = no_arguments(c);
    struct dedit_client *d = status == CLI_OK ? cli_connect(c, &status) : NULL;
    return d ? done(c, d, dedit_client_reload(d, &e), &e) : status;
}

int cli_drain(struct cli *c)
{
    struct dedit_error e;
    int status = no_arguments(c);
    struct dedit_client *d = status == CLI_OK ? cli_connect(c, &status) : NULL;
    return d ? done(c, d, dedit_client_drain(d, cli_own(c, "stop") != NULL, &e), &e) : status;
}

/* ---- ping ------------------------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int cli_ping(struct cli *c)
{
    uint32_t n = 1;
    uint64_t uptime = 0;
    char status_word[32] = "";
    struct dedit_error e;
    int status = no_arguments(c);
    if (status != CLI_OK || !cli_own_u32(c, "count", 1, 1000000, &n))
        return CLI_USAGE;
    struct dedit_client *d = cli_connect(c, &status);
    if (!d)
        return status;
    uint64_t *t = mem_array(n, sizeof *t);
    int r = t ? 0 : -1;
    for (uint32_t i = 0; i < n && r >= 0; i++) {
        uint64_t start = clock_now_ns();
        r = dedit_client_health(d, status_word, &uptime, &e);
        t[i] = clock_now_ns() - start;
    }
    if (!t)
        status = cli_fail_text(c, CLI_FAILED, "out of memory");
    else if (r < 0)
        status = cli_fail(c, &e);
    if (status == CLI_OK) {
        qsort(t, n, sizeof *t, compare);
        double p50 = (double)t[n / 2] / 1e3, worst = (double)t[n - 1] / 1e3;
        if (c->json)
            cli_print_json(json_pack("{s:s, s:f, s:I, s:f, s:f}", "status", status_word, "uptime_s",
                                     (double)uptime / 1e9, "count", (json_int_t)n, "p50_us", p50,
                                     "max_us", worst));
        else
            printf("%s, up %.1f s, round trip %.1f us (max %.1f us of %u)\n", status_word,
                   (double)uptime / 1e9, p50, worst, n);
        /* Alive but not ready is no success for a script that waits. */
        status = r == 1 ? CLI_OK : CLI_FAILED;
    }
    mem_free(t);
    dedit_client_free(d);
    return status;
}

/* ---- token ids -------------------------------------------------------------------------------------------------- */

int cli_tokenize(struct cli *c)
{
    struct strbuf b = {0};
    struct dedit_error e;
    char *text = NULL;
    size_t len = 0, n = 0;
    uint32_t *ids = NULL;
    int status = CLI_OK;

    if (c->argc) {
        for (int i = 0; i < c->argc && status == CLI_OK; i++)
            if (strbuf_adds(&b, i ? " " : "") < 0 || strbuf_adds(&b, c->argv[i]) < 0)
                status = cli_fail_text(c, CLI_FAILED, "out of memory");
        text = b.s;
        len = b.len;
    } else {
        text = cli_read(c, "-", &len);
        status = text ? CLI_OK : CLI_FAILED;
    }
    struct dedit_client *d = status == CLI_OK ? cli_connect(c, &status) : NULL;
    if (d && dedit_client_tokenize(d, cli_own(c, "model"), text, len, cli_own(c, "special") != NULL,
                                   &ids, &n, &e) < 0)
        status = cli_fail(c, &e);
    else if (d && c->json) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(list, json_integer(ids[i]));
        cli_print_json(json_pack("{s:o}", "ids", list));
    } else if (d) {
        for (size_t i = 0; i < n; i++)
            printf("%s%u", i ? " " : "", ids[i]);
        putchar('\n');
    }
    dedit_free(ids);
    dedit_client_free(d);
    mem_free(text);
    return status;
}

int cli_detokenize(struct cli *c)
{
    struct dedit_error e;
    char *text = NULL;
    size_t len = 0;
    int status = CLI_OK;
    if (!c->argc)
        return cli_usage_error(c, "which token ids?");
    uint32_t *ids = mem_array((size_t)c->argc, sizeof *ids);
    if (!ids)
        return cli_fail_text(c, CLI_FAILED, "out of memory");
    for (int i = 0; i < c->argc && status == CLI_OK; i++)
        if (parse_u32(c->argv[i], UINT32_MAX, &ids[i]) < 0)
            status = cli_usage_error(c, "\"%s\" is no token id", c->argv[i]);
    struct dedit_client *d = status == CLI_OK ? cli_connect(c, &status) : NULL;
    if (d &&
        dedit_client_detokenize(d, cli_own(c, "model"), ids, (size_t)c->argc, &text, &len, &e) < 0)
        status = cli_fail(c, &e);
    else if (d && c->json)
        cli_print_json(json_pack("{s:s%}", "text", text, len));
    else if (d) {
        fwrite(text, 1, len, stdout);
        putchar('\n');
    }
    dedit_free(text);
    dedit_client_free(d);
    mem_free(ids);
    return status;
}
