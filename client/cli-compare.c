/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-client generate --compare: is a drafted answer that of plain decoding, and how much faster? */
#include <string.h>

#include "client/cli-answer.h"

/* Plain decoding, which takes none of what says how to draft. */
static void make_plain(struct dedit_options *o)
{
    o->method = "ar";
    o->window = o->passes = o->tree_budget = 0;
    o->edit_visibility = NULL;
    o->no_noise = 0;
}

/* The prompt is in the prefix cache after this, with the drafter's K and V where there is one, so that both
 * answers begin alike: blocks that a plain request leaves are completed by the first that drafts. */
static int warm_up(struct cli *c, struct dedit_client *d)
{
    struct dedit_options o = c->o;
    struct dedit_request *r = NULL;
    struct dedit_error e;
    o.max_tokens = 1;
    o.min_tokens = 0;
    if (dedit_client_submit(d, &o, &r, &e) < 0)
        return cli_fail(c, &e);
    if (!c->o.has_seed) { /* both must draw the same numbers */
        c->o.seed = dedit_request_seed(r);
        c->o.has_seed = 1;
    }
    int status = answer_read(c, r, false, NULL, NULL);
    dedit_request_free(r);
    return status;
}

static int run(struct cli *c, struct dedit_client *d, bool plain, struct answer *ret)
{
    struct dedit_options o = c->o;
    struct dedit_request *r = NULL;
    struct dedit_error e;
    int status;
    if (plain)
        make_plain(&o);
    if (dedit_client_submit(d, &o, &r, &e) < 0)
        status = cli_fail(c, &e);
    else
        status = answer_read(c, r, !plain, NULL, ret);
    dedit_request_free(r);
    return status;
}

static int compare(const struct cli *c, const struct answer *a, const struct answer *b)
{
    size_t same = 0;
    while (same < a->n && same < b->n && a->ids[same] == b->ids[same])
        same++;
    if (same < a->n || same < b->n)
        return cli_fail_text(
            c, CLI_FAILED,
            "the answers differ from token %zu on: drafted %zu token%s, plain %zu; "
            "this is a bug of the daemon",
            same, a->n, cli_s(a->n), b->n);
    if (a->text.len != b->text.len || (a->text.len && memcmp(a->text.s, b->text.s, a->text.len)))
        return cli_fail_text(c, CLI_FAILED,
                             "the tokens are equal and the texts differ: "
                             "this is a bug of the daemon");
    if (strcmp(a->finish_reason, b->finish_reason) != 0)
        return cli_fail_text(c, CLI_FAILED, "the answers end differently: drafted %s, plain %s",
                             a->finish_reason, b->finish_reason);
    return CLI_OK;
}

static void print_side(const char *name, const struct dedit_usage *u)
{
    fprintf(stderr, "%s %.1f tokens/s", name, cli_speed(u));
    cli_print_drafting(stderr, u);
    fputc('\n', stderr);
}

static void print_result(const struct cli *c, const struct answer *drafted,
                         const struct answer *plain)
{
    double slow = cli_speed(&plain->usage);
    double ratio = slow > 0 ? cli_speed(&drafted->usage) / slow : 0;
    if (c->json) {
        cli_print_json(json_pack("{s:s, s:o, s:o, s:f, s:b}", "event", "compared", "drafted",
                                 cli_usage_json(&drafted->usage), "plain",
                                 cli_usage_json(&plain->usage), "speedup", ratio, "same", 1));
        return;
    }
    if (c->quiet)
        return;
    print_side("drafted:", &drafted->usage);
    print_side("plain:  ", &plain->usage);
    if (ratio > 0)
        fprintf(stderr, "%.2f times as fast, the same %zu token%s\n", ratio, plain->n,
                cli_s(plain->n));
    else
        fprintf(stderr, "too short to compare speeds, the same %zu token%s\n", plain->n,
                cli_s(plain->n));
}

int answer_compare(struct cli *c, struct dedit_client *d)
{
    struct answer drafted = {0}, plain = {0};
    int status = warm_up(c, d);
    if (status == CLI_OK)
        status = run(c, d, false, &drafted);
    if (status == CLI_OK)
        status = run(c, d, true, &plain);
    if (status == CLI_OK)
        status = compare(c, &drafted, &plain);
    if (status == CLI_OK)
        print_result(c, &drafted, &plain);
    answer_done(&drafted);
    answer_done(&plain);
    return status;
}
