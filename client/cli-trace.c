/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Needs nothing but ROUND events and the tokens of the same commit, which come right after.  Texts of tokens
 * that were drafted and never committed are asked for, once each, over a connection of its own.
 */
#include "client/cli-trace.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

struct cli_trace {
    const struct cli *c;
    struct dedit_client *names;
    struct u64map index; /* id -> index into text */
    char **text;
    size_t n_text;
    /* The round that waits for its tokens; arrays are copies. */
    bool waits;
    uint64_t number;
    struct dedit_event round;
    uint32_t *words;
};

struct cli_trace *cli_trace_new(struct cli *c, int *ret_status)
{
    struct cli_trace *t = mem_zalloc(sizeof *t);
    if (!t || u64map_init(&t->index, 256) < 0) {
        mem_free(t);
        *ret_status = cli_fail_text(c, CLI_FAILED, "out of memory");
        return NULL;
    }
    t->c = c;
    t->names = cli_connect(c, ret_status);
    return t->names ? t : cli_trace_free(t);
}

struct cli_trace *cli_trace_free(struct cli_trace *t)
{
    if (!t)
        return NULL;
    for (size_t i = 0; i < t->n_text; i++)
        dedit_free(t->text[i]);
    mem_free(t->text);
    u64map_done(&t->index);
    mem_free(t->words);
    dedit_client_free(t->names);
    mem_free(t);
    return NULL;
}

/* The token's text, or "" when it cannot be had. */
static const char *name(struct cli_trace *t, uint32_t id)
{
    uint64_t at;
    char *text = NULL;
    size_t len;
    if (u64map_get(&t->index, id, &at))
        return t->text[at];
    if (dedit_client_detokenize(t->names, t->c->o.model, &id, 1, &text, &len, NULL) < 0)
        return "";
    char **grown = mem_realloc_array(t->text, t->n_text + 1, sizeof(char *));
    if (grown)
        t->text = grown;
    if (!grown || u64map_put(&t->index, id, t->n_text) < 0) {
        dedit_free(text);
        return "";
    }
    return t->text[t->n_text++] = text;
}

int cli_trace_round(struct cli_trace *t, const struct dedit_event *ev)
{
    const size_t w = ev->window, k = ev->passes, n = ev->nodes;
    size_t words = k + w + k * w + 2 * n;
    mem_free(t->words);
    t->words = mem_calloc(words + 1, sizeof *t->words);
    if (!t->words)
        return cli_fail_text(t->c, CLI_FAILED, "out of memory");
    t->round = *ev;
    uint32_t *to = t->words;
#define KEEP(field, count)                                                                         \
    do {                                                                                           \
        if ((count) > 0)                                                                           \
            memcpy(to, ev->field, (count) * sizeof *to);                                           \
        t->round.field = (const void *)to;                                                         \
        to += (count);                                                                             \
    } while (0)
    KEEP(accepted, k);
    KEEP(confidence, w);
    KEEP(draft, k * w);
    KEEP(node_token, n);
    KEEP(node_parent, n);
#undef KEEP
    t->waits = true;
    return CLI_OK;
}

/* ---- text ------------------------------------------------------------------------------------------- */

/* A token between bars; newlines and the like as escapes. */
static void put_token(const struct cli_trace *t, const char *s, size_t len, const char *style,
                      char mark)
{
    fputs(cli_sgr(t->c, style), stdout);
    if (mark)
        putchar(mark);
    for (size_t i = 0; i < len; i++) {
        unsigned char b = (unsigned char)s[i];
        if (b == '\n')
            fputs("\\n", stdout);
        else if (b < 0x20 || b == 0x7f)
            printf("\\x%02x", b);
        else
            putchar(b);
    }
    fputs(cli_sgr(t->c, "\033[0m"), stdout);
    putchar('|');
}

static void put_id(struct cli_trace *t, uint32_t id, const char *style, char mark)
{
    const char *s = name(t, id);
    put_token(t, s, strlen(s), style, mark);
}

/* Row k of pass j of the block against the text, and against the pass before. */
static void put_draft(struct cli_trace *t, const struct dedit_event *tokens, uint32_t j, uint32_t k)
{
    const struct dedit_event *r = &t->round;
    const uint32_t id = r->draft[j * r->window + k];
    const bool known = k - 1 < tokens->n_tokens; /* the text is known that far */
    const bool right = known && id == tokens->tokens[k - 1].id;
    const bool edited = j > 0 && id != r->draft[(j - 1) * r->window + k];
    const bool was_right =
        j > 0 && known && r->draft[(j - 1) * r->window + k] == tokens->tokens[k - 1].id;
    const char *style = right ? "\033[32m" : known ? "\033[31m" : "\033[2m";
    if (edited)
        style = right ? "\033[1;32m" : was_right ? "\033[1;31m" : "\033[33m";
    put_id(t, id, style, !edited ? 0 : right ? '+' : was_right ? '-' : '~');
}

static void put_passes(struct cli_trace *t, const struct dedit_event *tokens)
{
    const struct dedit_event *r = &t->round;
    for (uint32_t j = 0; j < r->passes; j++) {
        printf("  pass %-2u |", j + 1);
        for (uint32_t k = 1; k < r->window; k++)
            put_draft(t, tokens, j, k);
        printf("  %u right\n", r->accepted[j]);
    }
}

/* Was node i on the path that was taken? */
static bool taken(const struct dedit_event *r, const struct dedit_event *tokens, uint32_t i)
{
    uint32_t depth = 0;
    for (int at = (int)i; at >= 0; at = r->node_parent[at])
        depth++;
    for (int at = (int)i; at >= 0; at = r->node_parent[at], depth--)
        if (depth > tokens->n_tokens || r->node_token[at] != tokens->tokens[depth - 1].id)
            return false;
    return true;
}

/* Children of `parent`, each followed by its own: a chain on one line, a branch on a new one. */
static void put_tree(struct cli_trace *t, const struct dedit_event *tokens, int parent,
                     unsigned depth)
{
    const struct dedit_event *r = &t->round;
    bool first = true;
    for (uint32_t i = 0; i < r->nodes; i++) {
        if (r->node_parent[i] != parent)
            continue;
        if (!first)
            printf("\n  %*s|", 7 + 2 * (int)depth, "");
        first = false;
        put_id(t, r->node_token[i], taken(r, tokens, i) ? "\033[32m" : "\033[31m", 0);
        put_tree(t, tokens, (int)i, depth + 1);
    }
}

static void put_text(struct cli_trace *t, const struct dedit_event *tokens)
{
    printf("  text    |");
    for (uint32_t i = 0; i < tokens->n_tokens; i++) {
        const struct dedit_token *k = &tokens->tokens[i];
        bool bonus = k->flags & DEDIT_TOKEN_BONUS;
        put_token(t, k->text, k->text_len, bonus ? "\033[1;36m" : "", bonus ? '*' : 0);
    }
    putchar('\n');
}

static void print_text(struct cli_trace *t, const struct dedit_event *tokens)
{
    const struct dedit_event *r = &t->round;
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < tokens->n_tokens; i++)
        accepted += (tokens->tokens[i].flags & DEDIT_TOKEN_DRAFTED) != 0;
    printf("round %llu:", (unsigned long long)t->number);
    if (r->passes)
        printf(" window %u, %u pass%s,", r->window, r->passes, r->passes == 1 ? "" : "es");
    printf(" %u nodes, %u accepted, %u committed\n", r->nodes, accepted, r->committed);
    put_passes(t, tokens);
    if (r->nodes) {
        printf("  nodes   |");
        put_tree(t, tokens, -1, 0);
        putchar('\n');
    }
    put_text(t, tokens);
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

static json_t *numbers(const uint32_t *x, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(a, json_integer((json_int_t)x[i]));
    return a;
}

static json_t *texts(struct cli_trace *t, const uint32_t *ids, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(a, json_string(name(t, ids[i])));
    return a;
}

static void print_json(struct cli_trace *t, const struct dedit_event *tokens)
{
    const struct dedit_event *r = &t->round;
    json_t *j = json_pack("{s:s, s:I, s:i, s:i, s:i, s:o}", "event", "round", "round",
                          (json_int_t)t->number, "window", (int)r->window, "passes", (int)r->passes,
                          "committed", (int)r->committed, "accepted_after_pass",
                          numbers(r->accepted, r->passes));
    json_t *passes = json_array(), *confidence = json_array(), *nodes = json_array(),
           *text = json_array();
    for (uint32_t k = 0; k < r->passes; k++) {
        const uint32_t *row = r->draft + (size_t)k * r->window + 1;
        json_array_append_new(passes, json_pack("{s:o, s:o}", "ids", numbers(row, r->window - 1),
                                                "texts", texts(t, row, r->window - 1)));
    }
    for (uint32_t k = 1; k < r->window; k++)
        json_array_append_new(confidence, json_real((double)r->confidence[k]));
    for (uint32_t i = 0; i < r->nodes; i++)
        json_array_append_new(nodes,
                              json_pack("{s:I, s:s, s:i, s:b}", "id", (json_int_t)r->node_token[i],
                                        "text", name(t, r->node_token[i]), "parent",
                                        r->node_parent[i], "accepted", taken(r, tokens, i)));
    for (uint32_t i = 0; i < tokens->n_tokens; i++)
        json_array_append_new(text, json_integer((json_int_t)tokens->tokens[i].id));
    json_object_set_new(j, "drafts", passes);
    json_object_set_new(j, "confidence", confidence);
    json_object_set_new(j, "nodes", nodes);
    json_object_set_new(j, "ids", text);
    cli_print_json(j);
}

int cli_trace_tokens(struct cli_trace *t, const struct dedit_event *ev)
{
    if (!t->waits)
        return CLI_OK; /* a rest of text, with the end */
    if (t->c->json)
        print_json(t, ev);
    else
        print_text(t, ev);
    fflush(stdout);
    t->waits = false;
    t->number++;
    return CLI_OK;
}
