/* SPDX-License-Identifier: Apache-2.0 */
/* What a line of a batch asks for: its own values, over those of the command line where they fit its method. */
#include <string.h>

#include "base/alloc.h"
#include "client/cli-batch.h"
#include "client/cli-sha256.h"

#define MAX_MESSAGES 1024u

static bool is_given(const json_t *v)
{
    return v && !json_is_null(v);
}

static bool take_stop(const json_t *list, struct batch_request *q)
{
    size_t n = json_is_string(list) ? 1 : json_array_size(list);
    if ((!json_is_string(list) && !json_is_array(list)) || n > BATCH_MAX_STOP)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_string(list) ? list : json_array_get(list, i);
        q->stop[i] = json_string_value(s);
        if (!q->stop[i] || strlen(q->stop[i]) != json_string_length(s))
            return false;
    }
    q->o.stop = q->stop;
    q->o.n_stop = n;
    return true;
}

/* Whether the methods, separated by blanks, have this one. */
static bool is_among(const char *method, const char *methods)
{
    const size_t n = strlen(method);
    for (const char *s = strstr(methods, method); n && s; s = strstr(s + n, method))
        if ((s == methods || s[-1] == ' ') && (s[n] == ' ' || !s[n]))
            return true;
    return false;
}

/*
 * A line that names its method keeps of the command line's drafting options what that method reads, as
 * the engine's rules are; one that is not known is the daemon's to refuse.
 */
static void fit_drafting(struct dedit_options *o)
{
    const char *m = o->method;
    if (!is_among(m, "auto ar ngram dflash dedit ddtree"))
        return;
    if (is_among(m, "ar"))
        o->window = 0;
    if (!is_among(m, "auto dedit ddtree"))
        o->passes = 0;
    if (!is_among(m, "auto ddtree"))
        o->tree_budget = 0;
    if (!is_among(m, "auto dedit ddtree"))
        o->edit_visibility = NULL;
    if (!is_among(m, "ngram dflash dedit"))
        o->verification = NULL;
}

static bool take_number(const json_t *in, const char *name, uint32_t least, uint32_t *to)
{
    const json_t *j = json_object_get(in, name);
    const double v = json_number_value(j);
    if (!is_given(j))
        return true;
    if (!json_is_number(j) || !(v >= least && v <= 4294967295.0) || v != (double)(uint32_t)v)
        return false;
    *to = (uint32_t)v;
    return true;
}

static bool take_float(const json_t *in, const char *name, float *to)
{
    const json_t *j = json_object_get(in, name);
    if (is_given(j) && !json_is_number(j))
        return false;
    if (is_given(j))
        *to = (float)json_number_value(j);
    return true;
}

/* Before what the line says of drafting: that is not fitted to anything. */
static bool take_method(const json_t *in, struct dedit_options *o)
{
    const json_t *method = json_object_get(in, "method");
    if (!is_given(method))
        return true;
    o->method = json_string_value(method);
    if (!o->method || strlen(o->method) != json_string_length(method))
        return false;
    const bool causal = o->edit_visibility && strcmp(o->edit_visibility, "causal") == 0;
    fit_drafting(o);
    const json_t *passes = json_object_get(in, "passes");
    /* A tree of one pass has no edits to see anything. */
    if (causal && is_among(o->method, "ddtree") &&
        (is_given(passes) ? json_number_value(passes) : o->passes) < 2)
        o->edit_visibility = NULL;
    return true;
}

static bool take_seed(const json_t *in, uint64_t big, struct dedit_options *o)
{
    const json_t *seed = json_object_get(in, "seed");
    if (!is_given(seed))
        return true;
    if (!json_is_integer(seed) || json_integer_value(seed) < 0)
        return false;
    o->has_seed = 1;
    o->seed = big ? big : (uint64_t)json_integer_value(seed);
    return true;
}

static bool take_values(const json_t *in, uint64_t seed, struct batch_request *q, const char **why)
{
    struct dedit_options *o = &q->o;
    const json_t *stop = json_object_get(in, "stop");
    *why = "max_tokens must be a whole number from 0 to 4294967295";
    if (!take_number(in, "max_tokens", 0, &o->max_tokens))
        return false;
    *why = "temperature must be a number";
    if (!take_float(in, "temperature", &o->temperature))
        return false;
    *why = "top_p must be a number";
    if (!take_float(in, "top_p", &o->top_p))
        return false;
    *why = "seed must be " CLI_SEED_RULE;
    if (!take_seed(in, seed, o))
        return false;
    *why = "method must be a string";
    if (!take_method(in, o))
        return false;
    *why = "window, passes and tree_budget must be whole numbers from 1";
    if (!take_number(in, "window", 1, &o->window) || !take_number(in, "passes", 1, &o->passes) ||
        !take_number(in, "tree_budget", 1, &o->tree_budget))
        return false;
    *why = "stop must be a string or a list of at most 64 strings, without NULs";
    return !is_given(stop) || take_stop(stop, q);
}

/* Messages as they are in the line; false when they are no list of role and content. */
static bool take_messages(const json_t *list, struct batch_request *q, const char **why)
{
    size_t n = json_array_size(list);
    *why = "messages must be a list of 1 to 1024 objects with role and content";
    if (!json_is_array(list) || !n || n > MAX_MESSAGES)
        return false;
    q->many = mem_calloc(n, sizeof *q->many);
    for (size_t i = 0; q->many && i < n; i++) {
        const json_t *o = json_array_get(list, i);
        q->many[i].role = json_string_value(json_object_get(o, "role"));
        q->many[i].content = json_string_value(json_object_get(o, "content"));
        if (!q->many[i].role || !q->many[i].content)
            return false;
    }
    if (!q->many)
        *why = "out of memory";
    q->o.messages = q->many;
    q->o.n_messages = n;
    return q->many != NULL;
}

bool batch_request_read(const struct cli *c, const json_t *in, uint64_t seed,
                        struct batch_request *ret, const char **why)
{
    const json_t *prompt = json_object_get(in, "prompt");
    const json_t *messages = json_object_get(in, "messages");
    *ret = (struct batch_request){.o = c->o};
    if (!take_values(in, seed, ret, why))
        return false;
    *why = "a line has \"prompt\" or \"messages\", not both";
    if (is_given(prompt) && is_given(messages))
        return false;
    if (is_given(messages))
        return take_messages(messages, ret, why);
    *why = "a line needs \"prompt\" (a string) or \"messages\"";
    if (!json_is_string(prompt))
        return false;
    struct cli with = *c;
    cli_prompt(&with, json_string_value(prompt), json_string_length(prompt), ret->one);
    ret->o.text = with.o.text;
    ret->o.text_len = with.o.text_len;
    ret->o.messages = with.o.messages;
    ret->o.n_messages = with.o.n_messages;
    return true;
}

void batch_request_done(struct batch_request *q)
{
    mem_free(q->many);
    q->many = NULL;
}

void batch_digest(const char *line, size_t n, char ret[BATCH_DIGEST])
{
    static const char blanks[] = " \t\r\n";
    struct sha256 hash;
    char hex[65];
    while (n && memchr(blanks, line[n - 1], 4))
        n--;
    for (; n && memchr(blanks, *line, 4); line++)
        n--;
    sha256_init(&hash);
    sha256_add(&hash, line, n);
    sha256_hex(&hash, hex);
    memcpy(ret, hex, BATCH_DIGEST - 1);
    ret[BATCH_DIGEST - 1] = 0;
}
