/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and histograms of ended requests, and the text of all metrics in vLLM's names. */
#include "daemon/metrics.h"

#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "daemon/server.h"

#define MAX_BUCKETS 20

struct histogram {
    const double *bounds; /* seconds, ascending */
    size_t n;
    uint64_t count[MAX_BUCKETS + 1]; /* the last one: over all bounds */
    double sum;
};

static const double ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25,
                                     .5,   .75,  1,   2.5, 5,   7.5, 10,  20, 40};
static const double tpot_bounds[] = {.0005, .001, .0025, .005, .01, .025, .05, .075, .1,
                                     .15,   .2,   .3,    .4,   .5,  .75,  1,   2.5};
static const double e2e_bounds[] = {.01, .05, .1, .3, .5, .8, 1,  1.5, 2,   2.5,
                                    5,   10,  15, 20, 30, 40, 50, 60,  120, 300};

struct metrics {
    struct histogram ttft, tpot, e2e, queue;
    uint64_t success[5]; /* by finish reason */
    uint64_t failed, timeouts, stalled_out, shutdown;
    uint64_t ring_stalls;
    uint64_t drafts, draft_tokens, accepted_tokens;
    uint64_t accepted_at[PROPOSAL_MAX_DEPTH];
};

int metrics_new(struct metrics **ret, struct error *err)
{
    struct metrics *m = mem_zalloc(sizeof *m);
    if (!m)
        return ERR_NOMEM(err);
    m->ttft = (struct histogram){.bounds = ttft_bounds, .n = ARRAY_LEN(ttft_bounds)};
    m->tpot = (struct histogram){.bounds = tpot_bounds, .n = ARRAY_LEN(tpot_bounds)};
    m->e2e = (struct histogram){.bounds = e2e_bounds, .n = ARRAY_LEN(e2e_bounds)};
    m->queue = (struct histogram){.bounds = e2e_bounds, .n = ARRAY_LEN(e2e_bounds)};
    *ret = m;
    return 0;
}

struct metrics *metrics_free(struct metrics *m)
{
    mem_free(m);
    return NULL;
}

static void observe(struct histogram *h, double v)
{
    size_t i = 0;
    while (i < h->n && v > h->bounds[i])
        i++;
    h->count[i]++;
    h->sum += v;
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

void metrics_job_ended(struct metrics *m, const struct job *j)
{
    const struct engine_usage *u = &j->usage;
    if (j->cancel == JOB_CANCEL_TIMEOUT)
        m->timeouts++;
    else if (j->cancel == JOB_CANCEL_STALLED)
        m->stalled_out++;
    else if (j->cancel == JOB_CANCEL_SHUTDOWN)
        m->shutdown++;
    else if (j->error.code)
        m->failed++;
    else
        m->success[j->finish]++;
    if (!u->completion_tokens)
        return;
    m->drafts += u->drafting.rounds;
    m->draft_tokens += u->drafting.drafted;
    m->accepted_tokens += u->drafting.accepted;
    for (uint32_t i = 0; i < PROPOSAL_MAX_DEPTH; i++)
        m->accepted_at[i] += u->drafting.accepted_at[i];
    observe(&m->queue, seconds(u->queued_ns));
    observe(&m->ttft, seconds(u->first_token_ns));
    observe(&m->e2e, seconds(u->total_ns));
    if (u->completion_tokens > 1 && u->total_ns >= u->first_token_ns)
        observe(&m->tpot, seconds(u->total_ns - u->first_token_ns) / (u->completion_tokens - 1));
}

void metrics_ring_stalled(struct metrics *m)
{
    m->ring_stalls++;
}

/* ---- text -------------------------------------------------------------------------------------------------- */

static int head(struct strbuf *o, const char *name, const char *type, const char *help)
{
    return strbuf_addf(o, "# HELP dedit_%s %s\n# TYPE dedit_%s %s\n", name, help, name, type);
}

static int number(struct strbuf *o, const char *name, const char *type, const char *help, double v)
{
    char buf[32];
    int r = head(o, name, type, help);
    return r < 0 ? r : strbuf_addf(o, "dedit_%s %s\n", name, format_double(v, buf));
}

static int histogram(struct strbuf *o, const char *name, const char *help,
                     const struct histogram *h)
{
    uint64_t sum = 0;
    char buf[32];
    int r = head(o, name, "histogram", help);
    for (size_t i = 0; i < h->n && r == 0; i++) {
        sum += h->count[i];
        r = strbuf_addf(o, "dedit_%s_bucket{le=\"%s\"} %llu\n", name,
                        format_double(h->bounds[i], buf), (unsigned long long)sum);
    }
    sum += h->count[h->n];
    if (r == 0)
        r = strbuf_addf(o, "dedit_%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)sum);
    if (r == 0)
        r = strbuf_addf(o, "dedit_%s_sum %s\ndedit_%s_count %llu\n", name,
                        format_double(h->sum, buf), name, (unsigned long long)sum);
    return r;
}

/* A sample with the model's name; names are letters, digits and a few signs, so no escapes. */
static int per_model(struct strbuf *o, const struct server *s, const char *name, const char *type,
                     const char *help, double (*value)(const struct model *m))
{
    char buf[32];
    int r = head(o, name, type, help);
    for (const struct model *m = s->models; m && r == 0; m = m->next)
        r = strbuf_addf(o, "dedit_%s{model_name=\"%s\"} %s\n", name, m->name,
                        format_double(value(m), buf));
    return r;
}

#define SERVED(m, field)                                                                           \
    ((m)->served ? (double)__atomic_load_n(&(m)->served->field, __ATOMIC_RELAXED) : 0.0)

static double running(const struct model *m)
{
    return m->running;
}
static double waiting(const struct model *m)
{
    return (double)(m->queue.len + m->waiting.len) + m->preparing;
}
static double parked(const struct model *m)
{
    return SERVED(m, parked);
}
static double kv_usage(const struct model *m)
{
    double total = SERVED(m, kv_blocks);
    return total > 0 ? 1.0 - SERVED(m, kv_blocks_free) / total : 0.0;
}
static double prompt_tokens(const struct model *m)
{
    return (double)m->past.prompt_tokens + SERVED(m, prompt_tokens);
}
static double generation_tokens(const struct model *m)
{
    return (double)m->past.generation_tokens + SERVED(m, generation_tokens);
}
static double prefix_queries(const struct model *m)
{
    return (double)m->past.prefix_queries + SERVED(m, prefix_queries);
}
static double prefix_hits(const struct model *m)
{
    return (double)m->past.cached_tokens + SERVED(m, cached_tokens);
}
static double preemptions(const struct model *m)
{
    return (double)m->past.preemptions + SERVED(m, preemptions);
}
static double steps(const struct model *m)
{
    return (double)m->past.steps + SERVED(m, steps);
}
static double loaded(const struct model *m)
{
    return m->served != NULL;
}

static int render_models(const struct server *s, struct strbuf *o)
{
    static const struct {
        const char *name, *type, *help;
        double (*value)(const struct model *m);
    } rows[] = {
        {"num_requests_running", "gauge", "Requests that the engine has.", running},
        {"num_requests_waiting", "gauge", "Requests that wait to run.", waiting},
        {"num_requests_parked", "gauge", "Running requests whose reader is full.", parked},
        {"kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 1 is all.", kv_usage},
        {"model_loaded", "gauge", "1 while the model is loaded.", loaded},
        {"prompt_tokens_total", "counter", "Prompt tokens computed.", prompt_tokens},
        {"generation_tokens_total", "counter", "Tokens generated.", generation_tokens},
        {"prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
         prefix_queries},
        {"prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
         prefix_hits},
        {"num_preemptions_total", "counter", "Requests that gave their KV up for a while.",
         preemptions},
        {"engine_steps_total", "counter", "Batches that the engine ran.", steps},
    };
    int r = 0;
    for (size_t i = 0; i < ARRAY_LEN(rows) && r == 0; i++)
        r = per_model(o, s, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
    return r;
}

static int render_ends(const struct metrics *m, struct strbuf *o)
{
    const struct {
        const char *reason;
        uint64_t n;
    } rows[] = {
        {"stop", m->success[FINISH_STOP]},
        {"length", m->success[FINISH_LENGTH]},
        {"abort", m->success[FINISH_CANCELLED]},
        {"error", m->failed},
        {"timeout", m->timeouts},
        {"stalled", m->stalled_out},
        {"shutdown", m->shutdown},
    };
    int r = head(o, "request_success_total", "counter", "Requests that have ended, by reason.");
    for (size_t i = 0; i < ARRAY_LEN(rows) && r == 0; i++)
        r = strbuf_addf(o, "dedit_request_success_total{finished_reason=\"%s\"} %llu\n",
                        rows[i].reason, (unsigned long long)rows[i].n);
    return r;
}

/* By position in the draft, up to the last one that was ever accepted. */
static int render_accepted(const struct metrics *m, struct strbuf *o)
{
    uint32_t n = PROPOSAL_MAX_DEPTH;
    while (n > 1 && m->accepted_at[n - 1] == 0)
        n--;
    int r = head(o, "spec_decode_num_accepted_tokens_per_pos_total", "counter",
                 "Drafted tokens accepted, by position in the draft.");
    for (uint32_t i = 0; i < n && r == 0; i++)
        r = strbuf_addf(
            o, "dedit_spec_decode_num_accepted_tokens_per_pos_total{position=\"%u\"} %llu\n", i,
            (unsigned long long)m->accepted_at[i]);
    return r;
}

/* What all users together are charged for. */
static double held(const struct server *s, enum quota_kind k)
{
    uint64_t sum = 0;
    for (const struct account *a = s->quota.accounts; a; a = a->next)
        sum += a->used[k];
    return (double)sum;
}

int metrics_render(struct metrics *m, const struct server *s, struct strbuf *o)
{
    int r = render_models(s, o);
    if (r == 0)
        r = render_ends(m, o);
    if (r == 0)
        r = render_accepted(m, o);
    if (r == 0)
        r = histogram(o, "time_to_first_token_seconds", "From Submit to the first token.",
                      &m->ttft);
    if (r == 0)
        r = histogram(o, "time_per_output_token_seconds", "Mean time between tokens of a request.",
                      &m->tpot);
    if (r == 0)
        r = histogram(o, "e2e_request_latency_seconds", "From Submit to the last token.", &m->e2e);
    if (r == 0)
        r = histogram(o, "request_queue_time_seconds", "From Submit to the first step.", &m->queue);
    const struct {
        const char *name, *type, *help;
        double v;
    } rows[] = {
        {"spec_decode_num_drafts_total", "counter", "Rounds with a draft.", (double)m->drafts},
        {"spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.",
         (double)m->draft_tokens},
        {"spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens accepted.",
         (double)m->accepted_tokens},
        {"ring_stalls_total", "counter", "Times that a full ring parked its request.",
         (double)m->ring_stalls},
        {"connections", "gauge", "Open connections.", s->n_peers},
        {"peers_refused_total", "counter", "Connections turned away.", (double)s->peers_refused},
        {"quota_refusals_total", "counter", "Charges refused by a limit of a user.",
         (double)s->quota.refused},
        {"held_requests", "gauge", "Requests that users are charged for.", held(s, QUOTA_REQUESTS)},
        {"held_prompt_bytes", "gauge", "Bytes of prompts that users are charged for.",
         held(s, QUOTA_PROMPT_BYTES)},
        {"held_ring_bytes", "gauge", "Bytes of rings that users are charged for.",
         held(s, QUOTA_RING_BYTES)},
        {"held_kv_blocks", "gauge", "KV blocks that users are charged for.",
         held(s, QUOTA_KV_BLOCKS)},
        {"accept_errors_total", "counter", "Connections that could not be accepted.",
         (double)loop_accept_errors(s->loop)},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows) && r == 0; i++)
        r = number(o, rows[i].name, rows[i].type, rows[i].help, rows[i].v);
    return r;
}
