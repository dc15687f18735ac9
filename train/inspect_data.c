/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train inspect: data. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model_file.h"
#include "train/data.h"
#include "train/inspect.h"

/* ---- a set --------------------------------------------------------------------------------------- */

struct tally {
    uint64_t n, tokens, supervised, ends[DATA_END_COUNT];
};

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x > y ? -1 : x < y;
}

static void lengths(const struct data_set *d, uint32_t *sizes)
{
    const uint64_t n = data_set_size(d);
    static const double at[] = {0, 0.05, 0.25, 0.5, 0.75, 0.95, 1};
    fputs("  tokens of a conversation: min, 5 %, 25 %, median, 75 %, 95 %, max:", stdout);
    qsort(sizes, n, sizeof(*sizes), by_size);
    for (size_t i = 0; i < ARRAY_LEN(at); i++)
        printf(" %u", sizes[(uint64_t)(at[i] * (double)(n - 1))]);
    putchar('\n');
}

static void kinds(const struct data_set *d, const struct tally *t, uint32_t n_kinds)
{
    printf("  %-12s %9s %7s %12s %8s %8s %8s\n", "kind", "n", "share", "supervised", "eos", "max",
           "loop");
    for (uint32_t k = 0; k < n_kinds; k++)
        printf("  %-12.12s %9llu %6.1f%% %12llu %7.1f%% %7.1f%% %7.1f%%\n",
               data_set_kind(d, k)[0] ? data_set_kind(d, k) : "-", (unsigned long long)t[k].n,
               100 * (double)t[k].n / (double)data_set_size(d), (unsigned long long)t[k].supervised,
               100 * (double)t[k].ends[DATA_END_EOS] / (double)t[k].n,
               100 * (double)t[k].ends[DATA_END_MAX] / (double)t[k].n,
               100 * (double)t[k].ends[DATA_END_LOOP] / (double)t[k].n);
}

/* What a reduced draft vocabulary would lose. */
static int coverage(const struct data_set *d, uint32_t vocab, uint64_t supervised,
                    struct error *err)
{
    static const uint32_t sizes[] = {1024, 2048, 4096, 8192, 12288, 16384, 32768};
    _cleanup_free_ uint64_t *counts = mem_calloc(vocab, sizeof(*counts));
    uint64_t used = 0, sum = 0;
    uint32_t at = 0;
    if (!counts)
        return ERR_NOMEM(err);
    data_set_count(d, counts, vocab);
    qsort(counts, vocab, sizeof(*counts), descending);
    while (used < vocab && counts[used])
        used++;
    printf("  different tokens in answers: %llu; the most frequent ones cover:\n   ",
           (unsigned long long)used);
    for (size_t i = 0; i < ARRAY_LEN(sizes) && sizes[i] < vocab; i++) {
        while (at < sizes[i])
            sum += counts[at++];
        printf(" %u: %.2f %%", sizes[i], 100 * (double)sum / (double)supervised);
    }
    printf(" all %u: 100 %%\n", vocab);
    return 0;
}

static int show_set(const struct data_set *d, struct error *err)
{
    struct tally t[DATA_MAX_KINDS];
    struct data_set_info info;
    uint32_t vocab = 0;
    memset(t, 0, sizeof(t));
    data_set_get_info(d, &info);
    _cleanup_free_ uint32_t *sizes = mem_array(info.n, sizeof(*sizes));
    if (!sizes)
        return ERR_NOMEM(err);
    for (uint64_t i = 0; i < info.n; i++) {
        struct data_sample s;
        data_set_sample(d, i, &s);
        sizes[i] = s.n;
        t[s.kind].n++;
        t[s.kind].tokens += s.n;
        t[s.kind].supervised += s.n_supervised;
        t[s.kind].ends[s.end]++;
        for (uint32_t k = 0; k < s.n; k++)
            vocab = s.ids[k] >= vocab ? s.ids[k] + 1 : vocab;
    }
    printf("  written by %s\n", info.target[0] ? info.target : "(not said)");
    printf("  %llu conversations, %llu tokens, %llu of them supervised (%.1f %%)\n",
           (unsigned long long)info.n, (unsigned long long)info.n_tokens,
           (unsigned long long)info.n_supervised,
           100 * (double)info.n_supervised / (double)info.n_tokens);
    if (info.n_duplicates)
        printf("  %llu duplicates left out\n", (unsigned long long)info.n_duplicates);
    if (info.n_unsupervised)
        printf(
            "  %llu without any answer (\"response_spans\" is empty), which fit refuses; the first "
            "one: %s:%llu\n",
            (unsigned long long)info.n_unsupervised, info.skipped_file,
            (unsigned long long)info.skipped_line);
    if (info.n_blank)
        printf("  %llu blank line%s passed over; the first one: %s:%llu\n",
               (unsigned long long)info.n_blank, info.n_blank == 1 ? "" : "s", info.blank_file,
               (unsigned long long)info.blank_line);
    lengths(d, sizes);
    kinds(d, t, info.n_kinds);
    return coverage(d, vocab, info.n_supervised, err);
}

int inspect_data(const struct inspect *s, const char *path, struct error *err)
{
    struct data_options o = {.skip_unsupervised = true};
    _cleanup_(data_set_freep) struct data_set *d = NULL;
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    int r = s->engine.model ? model_file_open(s->engine.model, &f, err) : 0;
    if (r < 0)
        return r;
    o.vocab_size = f ? model_file_config(f)->vocab_size : 0;
    r = data_set_open(&path, 1, &o, &d, err);
    return r < 0 ? r : show_set(d, err);
}

/* ---- one line ------------------------------------------------------------------------------------ */

struct wanted {
    const struct tokenizer *tokenizer;
    uint64_t line;
    bool found;
};

static int show_text(const struct wanted *w, const struct data_record *r)
{
    _cleanup_strbuf_ struct strbuf text = {0};
    struct detokenizer dt = {.n_pending = 0};
    uint32_t span = 0;
    int k = 0;
    for (uint32_t i = 0; i < r->ids.len && k >= 0; i++) {
        if (span < r->n_spans && i == r->spans[span].begin)
            k = strbuf_adds(&text, ">>");
        if (k >= 0)
            k = detokenizer_push(&dt, w->tokenizer, r->ids.ids[i], 0, &text);
        if (k >= 0 && span < r->n_spans && i + 1 == r->spans[span].end) {
            span++;
            if ((k = detokenizer_flush(&dt, &text)) >= 0)
                k = strbuf_adds(&text, "<<");
        }
    }
    if (k >= 0)
        k = detokenizer_flush(&dt, &text);
    if (k < 0)
        return DEDIT_E_NOMEM;
    fwrite(text.s, 1, text.len, stdout);
    putchar('\n');
    return 0;
}

static int take(void *arg, const struct data_record *r, uint64_t line, struct error *err)
{
    struct wanted *w = arg;
    if (line != w->line)
        return 0;
    w->found = true;
    printf("  %s, %zu tokens, %u supervised, end %s", r->kind[0] ? r->kind : "no kind", r->ids.len,
           r->n_supervised, data_end_name(r->end));
    if (r->temperature >= 0)
        printf(", temperature %g", r->temperature);
    if (r->has_seed)
        printf(", seed %llu", (unsigned long long)r->seed);
    putchar('\n');
    return show_text(w, r) < 0 ? ERR_NOMEM(err) : 0;
}

int inspect_line(const struct inspect *s, const char *path, struct error *err)
{
    char model[4096];
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    _cleanup_(tokenizer_freep) struct tokenizer *t = NULL;
    int r = train_model_path(&s->engine, model, sizeof(model), err);
    if (r == 0)
        r = model_file_open(model, &f, err);
    if (r == 0)
        r = tokenizer_load(f, &t, err);
    if (r < 0)
        return r;
    struct wanted w = {.tokenizer = t, .line = s->line};
    r = data_read_file(path, model_file_config(f)->vocab_size, NULL, take, &w, err);
    if (r == 0 && !w.found)
        return ERR(err, NOT_FOUND, "%s: line %u has no conversation", path, s->line);
    return r;
}
