/* SPDX-License-Identifier: Apache-2.0 */
#include "train/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/parse.h"
#include "base/strbuf.h"

static const char header[] =
    "step,seconds,lr,loss_p1,loss_p2,tau_p1,tau_p2,rate_s,rate_o,rate_a,grad_norm,"
    "blocks_per_s,tokens_per_s,gflops,peak_share,held_loss_p1,held_loss_p2,held_tau_p1,held_tau_p2,"
    "held_rate_a\n";

/* ---- the machine's peak ---------------------------------------------------------------------- */

struct peak_job {
    struct train_par *p;
    double flops[TRAIN_MAX_THREADS];
};

static void peak_region(void *arg, const struct dk_par *par)
{
    struct peak_job *j = arg;
    dk_barrier(par);
    j->flops[par->tid] = j->p->train->fma_peak(400000, j->p->gemm_flags & DK_GEMM_BF16);
    dk_barrier(par);
}

double metrics_peak(struct train_par *p)
{
    double best = 0;
    for (int i = 0; i < 3; i++) {
        struct peak_job j = {.p = p};
        uint64_t t0 = clock_now_ns();
        dk_pool_run(p->pool, peak_region, &j);
        double seconds = (double)(clock_now_ns() - t0) * 1e-9, sum = 0;
        for (unsigned t = 0; t < p->n; t++)
            sum += j.flops[t];
        best = sum / seconds > best ? sum / seconds : best;
    }
    return best;
}

/* ---- metrics.csv ----------------------------------------------------------------------------- */

/* Rows of steps up to `step`, the header first; a cut last row goes too. */
static int keep_rows(struct strbuf *to, const char *text, size_t len, uint64_t step)
{
    int r = strbuf_adds(to, header);
    while (r == 0 && len) {
        const char *end = memchr(text, '\n', len);
        char digits[24];
        uint64_t at;
        if (!end)
            break;
        size_t n = (size_t)(end - text) + 1, k = strcspn(text, ",\n");
        if (k < sizeof(digits)) {
            memcpy(digits, text, k);
            digits[k] = '\0';
            if (parse_u64(digits, &at) == 0 && at <= step)
                r = strbuf_add(to, text, n);
        }
        text += n;
        len -= n;
    }
    return r;
}

int metrics_open(struct metrics *m, const char *out, uint64_t step, bool quiet, struct error *err)
{
    _cleanup_strbuf_ struct strbuf path = {0}, rows = {0};
    _cleanup_free_ char *old = NULL;
    size_t len = 0;
    *m = (struct metrics){.quiet = quiet, .terminal = isatty(STDERR_FILENO)};
    if (strbuf_addf(&path, "%s/metrics.csv", out) < 0)
        return ERR_NOMEM(err);
    if (access(path.s, F_OK) == 0) {
        if (access(path.s, W_OK) < 0) /* before it is written anew beside its place */
            return ERR(err, IO, "%s: cannot write: %s", path.s, strerror(errno));
        int r = file_read(path.s, (size_t)1 << 30, &old, &len, err);
        if (r < 0)
            return r;
    }
    if (keep_rows(&rows, old ? old : "", len, step) < 0)
        return ERR_NOMEM(err);
    int r = file_write_atomic(path.s, rows.s, rows.len, err);
    if (r < 0)
        return r;
    m->csv = fopen(path.s, "ae");
    if (!m->csv)
        return ERR(err, IO, "%s: cannot open: %s", path.s, strerror(errno));
    m->started = (double)clock_now_ns() * 1e-9;
    return 0;
}

void metrics_close(struct metrics *m)
{
    if (m->csv)
        fclose(m->csv);
    m->csv = NULL;
}

void metrics_add(struct metrics *m, const struct train_stats *s, double lr, double norm,
                 double seconds, double flops, uint64_t tokens)
{
    m->steps++;
    m->run_steps++;
    m->seconds += seconds;
    m->run_seconds += seconds;
    m->flops += flops;
    m->tokens += tokens;
    m->blocks += s->n_blocks;
    m->lr = lr;
    m->norm = norm;
    m->sum.n_supervised += s->n_supervised;
    m->sum.n_gate += s->n_gate;
    m->sum.n_overwrite += s->n_overwrite;
    m->sum.n_right += s->n_right;
    m->sum.n_blocks += s->n_blocks;
    m->sum.denominator += s->denominator;
    for (int p = 0; p < 2; p++) {
        m->sum.loss[p] += s->loss[p] * s->denominator;
        m->sum.committed[p] += s->committed[p];
        m->weight[p] += s->committed[p] ? s->denominator : 0;
    }
}

static double share(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void put(struct strbuf *b, double v, bool known, int *r)
{
    char text[32];
    /* Six digits, in the form that every locale gives. */
    snprintf(text, sizeof(text), "%.6g", v);
    for (char *c = text; *c; c++)
        if (*c == ',')
            *c = '.';
    if (*r == 0)
        *r = known ? strbuf_addf(b, ",%s", text) : strbuf_addc(b, ',');
}

static void show(const struct metrics *m, uint64_t step, uint64_t steps,
                 const struct train_stats *held)
{
    const struct train_stats *s = &m->sum;
    const bool edit = m->weight[1] > 0;
    double left = m->run_steps ? m->run_seconds / (double)m->run_steps * (double)(steps - step) : 0;
    char p2[64] = "", rates[64] = "", ho[80] = "", ho2[64] = "";
    if (edit) {
        snprintf(p2, sizeof(p2), " P2 %.3f τ %.2f", share(s->loss[1], m->weight[1]),
                 share((double)s->committed[1], (double)s->n_blocks));
        snprintf(rates, sizeof(rates), " S %.1f O %.1f",
                 100 * share((double)s->n_gate, (double)s->n_supervised),
                 100 * share((double)s->n_overwrite, (double)s->n_supervised));
    }
    if (held)
        snprintf(ho, sizeof(ho), " | held out P1 %.3f τ %.2f", held->loss[0],
                 share((double)held->committed[0], (double)held->n_blocks));
    if (held && held->committed[1])
        snprintf(ho2, sizeof(ho2), " P2 %.3f τ %.2f", held->loss[1],
                 share((double)held->committed[1], (double)held->n_blocks));
    fprintf(stderr,
            "%sstep %" PRIu64 "/%" PRIu64 " P1 %.3f τ %.2f%s%s A %.1f %% | %.0f tokens/s, "
            "%.0f %% of peak, %.0f h %02.0f min left%s%s%s",
            m->terminal ? "\r" : "", step, steps, share(s->loss[0], m->weight[0]),
            share((double)s->committed[0], (double)s->n_blocks), p2, rates,
            100 * share((double)s->n_right, (double)s->n_supervised),
            share((double)m->tokens, m->seconds), 100 * share(share(m->flops, m->seconds), m->peak),
            (double)(uint64_t)(left / 3600), (double)((uint64_t)(left / 60) % 60), ho, ho2,
            m->terminal && !held ? "\033[K" : "\n");
    fflush(stderr);
}

int metrics_row(struct metrics *m, uint64_t step, uint64_t steps, const struct train_stats *held,
                double peak, struct error *err)
{
    const struct train_stats *s = &m->sum;
    const bool edit = m->weight[1] > 0;
    const double n = (double)s->n_supervised, blocks = (double)s->n_blocks;
    _cleanup_strbuf_ struct strbuf b = {0};
    int r = strbuf_addf(&b, "%" PRIu64, step);
    m->peak = (m->peak + peak) / 2;
    put(&b, (double)clock_now_ns() * 1e-9 - m->started, true, &r);
    put(&b, m->lr, true, &r);
    put(&b, share(s->loss[0], m->weight[0]), true, &r);
    put(&b, share(s->loss[1], m->weight[1]), edit, &r);
    put(&b, share((double)s->committed[0], blocks), true, &r);
    put(&b, share((double)s->committed[1], blocks), edit, &r);
    put(&b, share((double)s->n_gate, n), edit, &r);
    put(&b, share((double)s->n_overwrite, n), edit, &r);
    put(&b, share((double)s->n_right, n), true, &r);
    put(&b, m->norm, true, &r);
    put(&b, share((double)m->blocks, m->seconds), true, &r);
    put(&b, share((double)m->tokens, m->seconds), true, &r);
    put(&b, share(m->flops, m->seconds) * 1e-9, true, &r);
    put(&b, share(share(m->flops, m->seconds), m->peak), m->peak > 0, &r);
    const struct train_stats none = {0}, *h = held ? held : &none;
    const bool h2 = held && held->committed[1];
    put(&b, h->loss[0], held, &r);
    put(&b, h->loss[1], h2, &r);
    put(&b, share((double)h->committed[0], (double)h->n_blocks), held, &r);
    put(&b, share((double)h->committed[1], (double)h->n_blocks), h2, &r);
    put(&b, share((double)h->n_right, (double)h->n_supervised), held, &r);
    if (r < 0 || strbuf_addc(&b, '\n') < 0)
        return ERR_NOMEM(err);
    if (fwrite(b.s, 1, b.len, m->csv) != b.len || fflush(m->csv))
        return ERR(err, IO, "metrics.csv: cannot write: %s", strerror(errno));
    if (!m->quiet)
        show(m, step, steps, held);
    m->peak = peak;
    m->steps = m->tokens = m->blocks = 0;
    m->seconds = m->flops = 0;
    m->weight[0] = m->weight[1] = 0;
    memset(&m->sum, 0, sizeof(m->sum));
    return 0;
}
