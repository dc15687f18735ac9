/* SPDX-License-Identifier: Apache-2.0 */
/* Output of dedit-bench generate: text or JSON lines, written as soon as it is known. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/parse.h"
#include "bench/generate.h"

static void put(struct generate *g, const char *s, size_t n)
{
    while (n > 0 && !g->write_error) {
        ssize_t w = write(STDOUT_FILENO, s, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0) {
            g->write_error = errno;
            return;
        }
        g->ends_line = s[w - 1] == '\n';
        s += w;
        n -= (size_t)w;
    }
}

/* A JSON string of valid UTF-8. */
static int add_json_string(struct strbuf *b, const char *s, size_t n)
{
    if (strbuf_addc(b, '"') < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        int r;
        if (c == '"' || c == '\\')
            r = strbuf_addf(b, "\\%c", c);
        else if (c == '\n')
            r = strbuf_adds(b, "\\n");
        else if (c < 0x20 || c == 0x7f)
            r = strbuf_addf(b, "\\u%04x", c);
        else
            r = strbuf_addc(b, (char)c);
        if (r < 0)
            return -1;
    }
    return strbuf_addc(b, '"');
}

static int add_token(struct strbuf *b, const struct engine_token *t)
{
    char num[32];
    if (strbuf_addf(b, "{\"token\": %u, \"text\": ", t->id) < 0 ||
        add_json_string(b, t->text ? t->text : "", t->text_len) < 0)
        return -1;
    if (t->n_logprobs > 0) {
        if (strbuf_addf(b, ", \"logprob\": %s, \"top_logprobs\": [",
                        format_double((double)t->logprobs[0].logprob, num)) < 0)
            return -1;
        for (uint32_t i = 1; i < t->n_logprobs; i++)
            if (strbuf_addf(b, "%s[%u, %s]", i > 1 ? ", " : "", t->logprobs[i].token,
                            format_double((double)t->logprobs[i].logprob, num)) < 0)
                return -1;
        if (strbuf_addc(b, ']') < 0)
            return -1;
    }
    return strbuf_adds(b, "}\n");
}

static int on_tokens(void *arg, struct request *r, const struct engine_token *t, size_t n)
{
    struct generate *g = arg;
    _cleanup_strbuf_ struct strbuf b = {0};
    (void)r;
    for (size_t i = 0; i < n; i++) {
        int bad = g->json             ? add_token(&b, &t[i])
                  : t[i].text_len > 0 ? strbuf_add(&b, t[i].text, t[i].text_len)
                                      : 0;
        if (bad < 0)
            g->write_error = ENOMEM;
    }
    put(g, b.s, b.len);
    return 0;
}

static void finish_json(struct generate *g, const struct engine_finish *f)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    const struct engine_usage *u = &f->usage;
    int r = strbuf_adds(&b, "{\"text\": ");
    r |= add_json_string(&b, f->text ? f->text : "", f->text_len);
    r |= strbuf_addf(&b, ", \"finish_reason\": \"%s\"", finish_reason_name(f->reason));
    if (f->stop_is_id)
        r |= strbuf_addf(&b, ", \"stop_reason\": %u", f->stop_id);
    if (f->stop_text) {
        r |= strbuf_adds(&b, ", \"stop_reason\": ");
        r |= add_json_string(&b, f->stop_text, strlen(f->stop_text));
    }
    r |= strbuf_addf(&b,
                     ", \"usage\": {\"prompt_tokens\": %u, \"cached_tokens\": %u, "
                     "\"completion_tokens\": %u}, \"seed\": %llu",
                     u->prompt_tokens, u->cached_tokens, u->completion_tokens,
                     (unsigned long long)u->seed);
    const struct engine_drafting *d = &u->drafting;
    r |= strbuf_addf(&b,
                     ", \"drafting\": {\"method\": \"%s\", \"rounds\": %llu, \"drafted\": %llu, "
                     "\"accepted\": %llu, \"committed\": %llu, \"passes\": %llu}}\n",
                     draft_method_name(d->method), (unsigned long long)d->rounds,
                     (unsigned long long)d->drafted, (unsigned long long)d->accepted,
                     (unsigned long long)d->committed, (unsigned long long)d->passes);
    if (r < 0)
        g->write_error = ENOMEM;
    put(g, b.s, b.len);
}

static void on_finished(void *arg, struct request *r, const struct engine_finish *f)
{
    struct generate *g = arg;
    (void)r;
    g->finished = true;
    g->reason = f->reason;
    g->usage = f->usage;
    if (f->error)
        g->error = *f->error;
    if (g->json) {
        finish_json(g, f);
        return;
    }
    if (f->text_len > 0)
        put(g, f->text, f->text_len);
    if (!g->ends_line)
        put(g, "\n", 1);
}

struct engine_sink generate_sink(struct generate *g)
{
    return (struct engine_sink){.tokens = on_tokens, .finished = on_finished, .arg = g};
}

/* "12.3" from value * 10, rounded; independent of the locale. */
static const char *tenths(double v, char buf[32])
{
    uint64_t t = (uint64_t)(v * 10 + 0.5);
    snprintf(buf, 32, "%llu.%llu", (unsigned long long)(t / 10), (unsigned long long)(t % 10));
    return buf;
}

static const char *hundredths(double v, char buf[32])
{
    uint64_t t = (uint64_t)(v * 100 + 0.5);
    snprintf(buf, 32, "%llu.%02llu", (unsigned long long)(t / 100), (unsigned long long)(t % 100));
    return buf;
}

void generate_statistics(struct generate *g, const struct engine *e)
{
    const struct engine_usage *u = &g->usage;
    const struct engine_config *c = engine_get_config(e);
    char load[32], first[32], rate[32];
    uint64_t decode_ns = u->total_ns > u->first_token_ns ? u->total_ns - u->first_token_ns : 0;
    double per_s = u->completion_tokens > 1 && decode_ns > 0
                       ? (double)(u->completion_tokens - 1) * 1e9 / (double)decode_ns
                       : 0;
    fprintf(stderr,
            "[%s: loaded in %s ms; prompt %u tokens, first token after %s ms; %u tokens, %s "
            "tokens/s; finish %s; seed %llu; class %s, tier %s, %u threads]\n",
            engine_model_name(e), tenths((double)g->load_ns / 1e6, load), u->prompt_tokens,
            tenths((double)u->first_token_ns / 1e6, first), u->completion_tokens,
            tenths(per_s, rate), finish_reason_name(g->reason), (unsigned long long)u->seed,
            engine_class(e), dk_tier_name(c->tier), c->n_threads);
    const struct engine_drafting *d = &u->drafting;
    if (d->rounds == 0)
        return;
    char tau[32], draft[32], verify[32];
    fprintf(stderr,
            "[%s: %llu rounds, acceptance length %s; %llu drafted, %llu accepted; %llu passes; "
            "drafting %s ms, verifying %s ms]\n",
            draft_method_name(d->method), (unsigned long long)d->rounds,
            hundredths((double)d->committed / (double)d->rounds, tau),
            (unsigned long long)d->drafted, (unsigned long long)d->accepted,
            (unsigned long long)d->passes, tenths((double)d->draft_ns / 1e6, draft),
            tenths((double)d->verify_ns / 1e6, verify));
}
