/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measurements of dedit-bench step.  Everything that is compared is measured in every round,
 * one after the other, so that a busy neighbour hits all alike; ratios are taken within a round.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "bench/products.h"
#include "bench/step.h"

/* Tokens of a benchmark: any will do. */
static void fill_tokens(uint32_t *t, size_t n, uint32_t vocab)
{
    uint32_t limit = vocab < 256 ? vocab : 256;
    for (size_t i = 0; i < n; i++)
        t[i] = (uint32_t)(i * 2654435761u >> 9) % limit;
}

static int feed(struct step *s, struct seq *seq, const uint32_t *tokens, uint32_t n, float *logits,
                uint32_t n_logits, double *ret_s, struct error *err)
{
    struct engine_feed f = {
        .seq = seq, .tokens = tokens, .n = n, .logits = logits, .n_logits = n_logits};
    uint64_t t = clock_now_ns();
    int r = engine_feed(s->e, &f, 1, NULL, 0, err);
    *ret_s = (double)(clock_now_ns() - t) * 1e-9;
    return r;
}

/* What a table's measurements need: a sequence at some context, tokens, room for logits. */
struct bench_seq {
    struct seq *seq;
    uint32_t *tokens;
    float *logits;
};

static int bench_seq_open(struct step *s, uint32_t context, uint32_t rows, uint32_t n_logits,
                          struct bench_seq *b, struct error *err)
{
    uint32_t vocab = engine_model_config(s->e)->vocab_size;
    double t;
    memset(b, 0, sizeof(*b));
    b->tokens = mem_array((size_t)context + rows, sizeof(*b->tokens));
    b->logits = mem_array((size_t)n_logits * vocab, sizeof(*b->logits));
    if (!b->tokens || !b->logits)
        return ERR_NOMEM(err);
    fill_tokens(b->tokens, (size_t)context + rows, vocab);
    int r = engine_seq_new(s->e, &b->seq, err);
    if (r == 0 && context > 0)
        r = feed(s, b->seq, b->tokens, context, NULL, 0, &t, err);
    return r;
}

static void bench_seq_close(struct step *s, struct bench_seq *b)
{
    if (b->seq)
        engine_seq_free(s->e, b->seq);
    mem_free(b->tokens);
    mem_free(b->logits);
}

static void print_peaks(struct step *s, double *read, double *fma, double *dot, double *amx)
{
    size_t n = s->repetitions;
    struct stats r = stats_of(read, n), f = stats_of(fma, n), d = stats_of(dot, n),
                 a = stats_of(amx, n);
    printf(
        "machine peaks, median of %zu: read %.1f GB/s, FMA %.0f GFLOP/s, integer dot %.0f GMAC/s",
        n, (double)s->weight_bytes / r.median / 1e9, f.median / 1e9, d.median / 1e9);
    if (a.median > 0)
        printf(", AMX BF16 %.0f GFLOP/s", a.median / 1e9);
    putchar('\n');
}

/* ---- cost by rows -------------------------------------------------------------------------------- */

struct rows_data {
    double *time[STEP_MAX_ROWS], *floor[STEP_MAX_ROWS], *read, *fma, *dot, *amx, *work, *all;
};

static int rows_data_new(const struct step *s, struct rows_data *d)
{
    size_t n = s->repetitions, arrays = 2 * s->n_rows + 5;
    memset(d, 0, sizeof(*d));
    d->all = mem_calloc(arrays * n, sizeof(double));
    if (!d->all)
        return DEDIT_E_NOMEM;
    double *p = d->all;
    for (size_t i = 0; i < s->n_rows; i++) {
        d->time[i] = p;
        d->floor[i] = p + n;
        p += 2 * n;
    }
    double **rest[] = {&d->read, &d->fma, &d->dot, &d->amx, &d->work};
    for (size_t i = 0; i < ARRAY_LEN(rest); i++, p += n)
        *rest[i] = p;
    return 0;
}

static int measure_rows(struct step *s, uint32_t context, struct rows_data *d, struct error *err)
{
    struct bench_seq b;
    uint32_t most = 0;
    for (size_t i = 0; i < s->n_rows; i++)
        most = s->rows[i] > most ? s->rows[i] : most;
    int r = bench_seq_open(s, context, most, most, &b, err);
    /* Two rounds to warm up. */
    for (size_t k = 0; k < (size_t)s->repetitions + 2 && r == 0; k++) {
        size_t at = k < 2 ? 0 : k - 2;
        struct step_peaks p;
        step_measure_peaks(s, &p);
        d->read[at] = p.read_s * (double)s->weight_bytes / (double)floors_bytes(s->floors);
        d->fma[at] = p.fma;
        d->dot[at] = p.dot;
        d->amx[at] = p.amx;
        for (size_t i = 0; i < s->n_rows && r == 0; i++) {
            uint32_t n = s->rows[i];
            /* Once untimed: the threads of the read loop go to sleep, the engine's own awake. */
            for (int warm = i > 0; warm < 2 && r == 0; warm++) {
                r = feed(s, b.seq, b.tokens + context, n, b.logits, s->last ? 1 : n,
                         &d->time[i][at], err);
                engine_seq_truncate(s->e, b.seq, context);
            }
            d->floor[i][at] = step_floor(s, &p, n, s->last ? 1 : n, step_kv_bytes(s, context + n));
        }
    }
    bench_seq_close(s, &b);
    return r;
}

static void print_rows(struct step *s, uint32_t context, struct rows_data *d)
{
    size_t n = s->repetitions;
    printf("\ncontext %u; 95 %% intervals in parentheses; ratio: to %u row%s\n"
           " rows         ms                       ratio               floor ms   share     GB/s\n",
           context, s->rows[0], s->rows[0] == 1 ? "" : "s");
    for (size_t i = 0; i < s->n_rows; i++) {
        struct stats ratio = stats_ratio(d->time[i], d->time[0], n, d->work);
        struct stats share = stats_ratio(d->floor[i], d->time[i], n, d->work);
        memcpy(d->work, d->floor[i], n * sizeof(double));
        struct stats floor = stats_of(d->work, n);
        memcpy(d->work, d->time[i], n * sizeof(double));
        struct stats t = stats_of(d->work, n);
        double gbs = (double)s->weight_bytes / t.median / 1e9;
        printf("%5u %10.3f (%8.3f-%8.3f) %7.2f (%5.2f-%5.2f) %10.3f %6.0f %% %8.1f\n", s->rows[i],
               t.median * 1e3, t.lo * 1e3, t.hi * 1e3, ratio.median, ratio.lo, ratio.hi,
               floor.median * 1e3, share.median * 100, gbs);
        if (s->csv.f)
            fprintf(s->csv.f,
                    "\"%s\",\"%s\",%s,%u,%u,%u,%.6f,%.6f,%.6f,%.4f,%.4f,%.4f,%.6f,%.4f,%.3f\n",
                    engine_model_name(s->e), engine_class(s->e),
                    dk_tier_name(s->engine.config.tier), s->engine.config.n_threads, context,
                    s->rows[i], t.median * 1e3, t.lo * 1e3, t.hi * 1e3, ratio.median, ratio.lo,
                    ratio.hi, floor.median * 1e3, share.median, gbs);
    }
}

int step_rows(struct step *s, struct error *err)
{
    struct rows_data d;
    int r = rows_data_new(s, &d);
    if (r < 0)
        return ERR_NOMEM(err);
    if (s->csv.f)
        fputs("model,class,tier,threads,context,rows,ms,ms_lo,ms_hi,ratio,ratio_lo,ratio_hi,"
              "floor_ms,share,gb_per_s\n",
              s->csv.f);
    for (size_t i = 0; i < s->n_contexts && r == 0; i++) {
        r = measure_rows(s, s->contexts[i], &d, err);
        if (r == 0) {
            print_rows(s, s->contexts[i], &d);
            print_peaks(s, d.read, d.fma, d.dot, d.amx);
        }
    }
    mem_free(d.all);
    return r;
}

/* ---- prefill --------------------------------------------------------------------------------------- */

int step_prefill(struct step *s, struct error *err)
{
    const struct model_config *c = engine_model_config(s->e);
    struct bench_seq b;
    size_t n = s->repetitions;
    struct rows_data d;
    s->n_rows = 1;
    if (rows_data_new(s, &d) < 0)
        return ERR_NOMEM(err);
    int r = bench_seq_open(s, 0, s->prefill, 1, &b, err);
    /* Products with every row, the head with one; scores and sums of the causal half. */
    double flop = 2 * (s->float_params + s->int_params - s->head_params) * s->prefill +
                  2 * s->head_params +
                  2.0 * c->n_layers * c->n_heads * c->head_dim * s->prefill * s->prefill;
    for (size_t k = 0; k < n + 1 && r == 0; k++) {
        size_t at = k ? k - 1 : 0;
        struct step_peaks p;
        step_measure_peaks(s, &p);
        d.read[at] = p.read_s * (double)s->weight_bytes / (double)floors_bytes(s->floors);
        d.fma[at] = p.fma;
        d.dot[at] = p.dot;
        d.amx[at] = p.amx;
        r = feed(s, b.seq, b.tokens, s->prefill, b.logits, 1, &d.time[0][at], err);
        engine_seq_truncate(s->e, b.seq, 0);
        d.floor[0][at] = flop / (s->amx_class && p.amx > 0 ? p.amx : p.fma);
    }
    if (r == 0) {
        struct stats share = stats_ratio(d.floor[0], d.time[0], n, d.work);
        memcpy(d.work, d.time[0], n * sizeof(double));
        struct stats t = stats_of(d.work, n);
        printf("prefill of %u tokens: %.2f ms (%.2f-%.2f), %.0f tokens/s, %.1f GFLOP/s, %.0f %% "
               "(%.0f-%.0f) of the %s peak\n",
               s->prefill, t.median * 1e3, t.lo * 1e3, t.hi * 1e3, s->prefill / t.median,
               flop / t.median / 1e9, share.median * 100, share.lo * 100, share.hi * 100,
               s->amx_class ? "AMX BF16" : "FMA");
        print_peaks(s, d.read, d.fma, d.dot, d.amx);
        if (s->csv.f)
            fprintf(s->csv.f,
                    "model,class,tier,threads,tokens,ms,ms_lo,ms_hi,gflops,share\n"
                    "\"%s\",\"%s\",%s,%u,%u,%.4f,%.4f,%.4f,%.2f,%.4f\n",
                    engine_model_name(s->e), engine_class(s->e),
                    dk_tier_name(s->engine.config.tier), s->engine.config.n_threads, s->prefill,
                    t.median * 1e3, t.lo * 1e3, t.hi * 1e3, flop / t.median / 1e9, share.median);
    }
    bench_seq_close(s, &b);
    mem_free(d.all);
    return r;
}

/* ---- everything but the products --------------------------------------------------------------- */

int step_rest(struct step *s, struct error *err)
{
    const struct engine_config *ec = engine_get_config(s->e);
    _cleanup_(products_freep) struct products *p = NULL;
    size_t n = s->repetitions;
    struct rows_data d;
    s->n_rows = 2;
    if (s->engine.config.dtype != BACKEND_DTYPE_FILE)
        return ERR(err, UNSUPPORTED, "--rest measures weights as they are in the file");
    int r = products_new(s->file, ec->tier, ec->exact, s->engine.config.n_threads, 1, &p, err);
    if (r < 0)
        return r;
    if (rows_data_new(s, &d) < 0)
        return ERR_NOMEM(err);
    if (s->csv.f)
        fputs("model,class,tier,threads,context,step_ms,products_ms,rest_ms,rest_lo,rest_hi,"
              "kv_read_ms\n",
              s->csv.f);
    puts(
        "\ncontext  step ms  products ms  rest ms (95 %)         of the step  reading the KV once, ms");
    for (size_t i = 0; i < s->n_contexts && r == 0; i++) {
        struct bench_seq b;
        uint32_t context = s->contexts[i];
        double kv = step_kv_bytes(s, context + 1);
        r = bench_seq_open(s, context, 1, 1, &b, err);
        for (size_t k = 0; k < n + 2 && r == 0; k++) {
            size_t at = k < 2 ? 0 : k - 2;
            /* The read loop's speed on a buffer of the weights' size, scaled to the KV. */
            d.read[at] = floors_read(s->floors) * kv / (double)floors_bytes(s->floors);
            for (int warm = 0; warm < 2 && r == 0; warm++) {
                r = feed(s, b.seq, b.tokens + context, 1, b.logits, 1, &d.time[0][at], err);
                engine_seq_truncate(s->e, b.seq, context);
            }
            for (int warm = 0; warm < 2; warm++)
                d.time[1][at] = products_run(p, 1);
            d.floor[0][at] = d.time[0][at] - d.time[1][at];
        }
        if (r == 0) {
            struct stats share = stats_ratio(d.floor[0], d.time[0], n, d.work);
            struct stats step = stats_of(d.time[0], n), products = stats_of(d.time[1], n);
            struct stats rest = stats_of(d.floor[0], n), read = stats_of(d.read, n);
            printf("%7u %8.3f %12.3f %8.3f (%.3f-%.3f) %14.1f %% %19.3f\n", context,
                   step.median * 1e3, products.median * 1e3, rest.median * 1e3, rest.lo * 1e3,
                   rest.hi * 1e3, share.median * 100, read.median * 1e3);
            if (s->csv.f)
                fprintf(s->csv.f, "\"%s\",\"%s\",%s,%u,%u,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f\n",
                        engine_model_name(s->e), engine_class(s->e), dk_tier_name(ec->tier),
                        s->engine.config.n_threads, context, step.median * 1e3,
                        products.median * 1e3, rest.median * 1e3, rest.lo * 1e3, rest.hi * 1e3,
                        read.median * 1e3);
        }
        bench_seq_close(s, &b);
    }
    mem_free(d.all);
    return r;
}
