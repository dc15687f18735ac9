/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of smollm2/, which need SmolLM2-135M-Instruct.Q4_1.gguf: kind smollm2 is greedy generation
 * token by token with the twenty best logits of every step, nll the likelihood of whole texts.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/check.h"

struct smollm2 {
    struct check *k;
    const char *kind;
    struct engine *e;
    uint32_t vocab;
    double tolerance, nll_tolerance;
    float *logits; /* one row */
};

/* ---- generation ---- */

struct steps {
    const struct st_tensor *ids, *logits; /* [cases][steps][20] */
    size_t at;                            /* this case */
    struct check_ids greedy;
    const json_t *margin;
    size_t compared;     /* steps whose token had to agree and did */
    double excess, diff; /* of logits */
    char what[160];      /* first thing that is wrong */
};

/* Compares the row of one step with the twenty logits that are known of it. */
static void compare_top(const struct smollm2 *m, struct steps *s, size_t step)
{
    size_t n = (size_t)s->ids->dims[2], base = (s->at * (size_t)s->ids->dims[1] + step) * n;
    const int32_t *ids = (const int32_t *)s->ids->data + base;
    const float *want = (const float *)s->logits->data + base;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= m->vocab)
            continue;
        double x =
            check_excess(&m->logits[ids[i]], &want[i], 1, m->tolerance, m->tolerance, &s->diff);
        s->excess = x > s->excess ? x : s->excess;
    }
    if (s->excess > 1 && !s->what[0])
        snprintf(s->what, sizeof(s->what), "; logits leave the tolerance at step %zu", step);
}

static int generate(const struct smollm2 *m, struct seq *seq, const struct check_ids *prompt,
                    struct steps *s, struct error *err)
{
    struct engine_feed f = {
        .seq = seq, .tokens = prompt->v, .n = prompt->n, .logits = m->logits, .n_logits = 1};
    int r = engine_feed(m->e, &f, 1, NULL, 0, err);
    for (size_t i = 0; i < s->greedy.n && r == 0; i++) {
        compare_top(m, s, i);
        float top;
        bool bad;
        uint32_t id = engine_ops(m->e)->argmax(m->logits, m->vocab, &top, &bad);
        if (bad || id != s->greedy.v[i]) {
            double margin = json_number_value(json_array_get(s->margin, i));
            if (!s->what[0] && margin >= 2 * m->tolerance * (1 + fabs((double)top)))
                snprintf(s->what, sizeof(s->what), "; step %zu gives %u, wanted %u", i, id,
                         s->greedy.v[i]);
            break;
        }
        s->compared = i + 1;
        if (i + 1 == s->greedy.n)
            break;
        f.tokens = &id;
        f.n = 1;
        r = engine_feed(m->e, &f, 1, NULL, 0, err);
    }
    return r;
}

/* The messages give the prompt's ids, and the answer's ids its text. */
static int compare_text(const struct smollm2 *m, const json_t *o, const struct check_ids *prompt,
                        struct steps *s, struct error *err)
{
    struct chat_message msg[16];
    const json_t *list = json_object_get(o, "messages"), *x;
    size_t i, n = 0;
    json_array_foreach(list, i, x)
    {
        const json_t *content = json_object_get(x, "content");
        const char *role;
        int r = check_get_str(x, "role", &role, err);
        if (r < 0 || n == ARRAY_LEN(msg))
            return r < 0 ? r : ERR(err, LIMIT, "more than %zu messages", ARRAY_LEN(msg));
        msg[n++] = (struct chat_message){.role = role,
                                         .content = json_string_value(content),
                                         .content_len = json_string_length(content)};
    }
    const struct chat_options opt = {.add_generation_prompt = true, .enable_thinking = -1};
    _cleanup_token_list_ struct token_list ids = {0};
    int r = chat_render_ids(CHAT_SMOLLM2, engine_tokenizer(m->e), msg, n, &opt, &ids, err);
    if (r < 0)
        return r;
    if (!check_ids_equal(ids.ids, ids.len, prompt) && !s->what[0])
        snprintf(s->what, sizeof(s->what), "; the messages give other prompt ids");
    _cleanup_strbuf_ struct strbuf out = {0};
    struct detokenizer d = {0};
    const json_t *eos = json_object_get(o, "first_eos"),
                 *want = json_object_get(o, "text_until_eos");
    size_t end = json_is_integer(eos) ? (size_t)json_integer_value(eos) : s->greedy.n;
    for (i = 0; i < end && i < s->greedy.n; i++)
        if (detokenizer_push(&d, engine_tokenizer(m->e), s->greedy.v[i], 0, &out) < 0)
            return ERR_NOMEM(err);
    if (detokenizer_flush(&d, &out) < 0)
        return ERR_NOMEM(err);
    if (json_is_string(want) && !s->what[0] &&
        (out.len != json_string_length(want) ||
         memcmp(out.s ? out.s : "", json_string_value(want), out.len)))
        snprintf(s->what, sizeof(s->what), "; the ids give another text");
    return 0;
}

static int generate_case(const struct smollm2 *m, const json_t *o, const char *name,
                         const struct safetensors *top, size_t at, struct error *err)
{
    struct steps s;
    struct check_ids prompt = {NULL, 0};
    struct seq *seq = NULL;
    memset(&s, 0, sizeof(s));
    s.at = at;
    s.margin = json_object_get(o, "margin");
    int r = check_tensor(top, "ids", ST_I32, 3, &s.ids, err);
    if (r == 0)
        r = check_tensor(top, "logits", ST_F32, 3, &s.logits, err);
    if (r == 0)
        r = check_get_ids(o, "prompt_ids", &prompt, err);
    if (r == 0)
        r = check_get_ids(o, "greedy", &s.greedy, err);
    if (r == 0 && (at >= s.ids->dims[0] || s.greedy.n > s.ids->dims[1] ||
                   memcmp(s.ids->dims, s.logits->dims, 3 * sizeof(s.ids->dims[0]))))
        r = ERR(err, MISMATCH, "top20.safetensors has no rows for this case");
    if (r == 0)
        r = engine_seq_new(m->e, &seq, err);
    if (r == 0)
        r = generate(m, seq, &prompt, &s, err);
    if (r == 0)
        r = compare_text(m, o, &prompt, &s, err);
    if (r == 0)
        check_result(m->k, s.excess <= 1 && !s.what[0], m->kind, name,
                     "logits differ by at most %.1e (%.2g of the tolerance); greedy %zu of %zu%s",
                     s.diff, s.excess, s.compared, s.greedy.n, s.what);
    if (seq)
        engine_seq_free(m->e, seq);
    mem_free(prompt.v);
    mem_free(s.greedy.v);
    return r;
}

/* ---- likelihood ---- */

static double row_nll(const float *x, uint32_t n, uint32_t token)
{
    double max = (double)x[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        max = (double)x[i] > max ? (double)x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return log(sum) + max - (double)x[token];
}

static int nll_case(const struct smollm2 *m, const json_t *o, const char *name, struct error *err)
{
    struct check_ids ids = {NULL, 0};
    struct seq *seq = NULL;
    double want_total = 0, total = 0, worst = 0;
    const json_t *per = json_object_get(o, "nll_per_token");
    int r = check_get_ids(o, "ids", &ids, err);
    if (r == 0)
        r = check_get_num(o, "total_nll", &want_total, err);
    float *logits = r == 0 ? mem_array(ids.n * m->vocab + 1, sizeof(*logits)) : NULL;
    if (r == 0 && !logits)
        r = ERR_NOMEM(err);
    if (r == 0)
        r = engine_seq_new(m->e, &seq, err);
    if (r == 0) {
        struct engine_feed f = {
            .seq = seq, .tokens = ids.v, .n = ids.n, .logits = logits, .n_logits = ids.n};
        r = engine_feed(m->e, &f, 1, NULL, 0, err);
    }
    for (size_t i = 1; i < ids.n && r == 0; i++) {
        double nll = row_nll(logits + (i - 1) * m->vocab, m->vocab, ids.v[i]);
        double d = fabs(nll - json_number_value(json_array_get(per, i - 1)));
        total += nll;
        worst = d > worst || isnan(d) ? d : worst;
    }
    double rel = fabs(total - want_total) / want_total;
    if (r == 0)
        check_result(
            m->k, rel <= m->nll_tolerance, m->kind, name,
            "total %.4f, wanted %.4f: %.4f %% apart (%.2f %% allowed), a token at most %.1e", total,
            want_total, rel * 100, m->nll_tolerance * 100, worst);
    if (seq)
        engine_seq_free(m->e, seq);
    mem_free(logits);
    mem_free(ids.v);
    return r;
}

/* ---- all ---- */

static void set_tolerance(struct smollm2 *m)
{
    enum dk_kv_type kv = engine_get_config(m->e)->kv_type;
    bool amx = strstr(engine_class(m->e), "amx") != NULL;
    m->tolerance = check_tolerance(m->e);
    m->nll_tolerance = amx || kv == DK_KV_BF16 ? 3e-3 : 5e-4;
}

static void run_file(struct smollm2 *m, const char *file, const struct safetensors *top)
{
    struct check_lines l = {0};
    struct error err = {0};
    json_t *o;
    char rest[64];
    snprintf(rest, sizeof(rest), "%s.jsonl", file);
    int r = check_lines_open(&l, check_path(m->k, "smollm2", rest), &err);
    for (size_t at = 0; r >= 0 && (r = check_lines_next(&l, &o, &err)) > 0; at++) {
        const char *case_name = json_string_value(json_object_get(o, "name"));
        char name[200];
        snprintf(name, sizeof(name), "%s", case_name ? case_name : "?");
        int bad = top ? generate_case(m, o, name, top, at, &err) : nll_case(m, o, name, &err);
        if (bad < 0)
            check_result(m->k, false, m->kind, name, "%s", err.msg);
        json_decref(o);
    }
    if (r < 0)
        check_result(m->k, false, m->kind, file, "%s", err.msg);
    check_lines_done(&l);
}

void check_smollm2(struct check *k, const char *kind)
{
    struct smollm2 m = {.k = k, .kind = kind};
    bool likelihood = !strcmp(kind, "nll");
    struct error err = {0};
    if (!k->model[0]) {
        check_skip(k, kind, "all", k->model_error.msg);
        return;
    }
    _cleanup_(safetensors_freep) struct safetensors *top = NULL;
    _cleanup_free_ float *logits = NULL;
    int r = engine_options_open(&k->engine, k->model, &m.e, &err);
    if (r == 0 && !likelihood)
        r = safetensors_open(check_path(k, "smollm2", "top20.safetensors"), &top, &err);
    if (r == 0) {
        m.vocab = engine_model_config(m.e)->vocab_size;
        m.logits = logits = mem_array(m.vocab, sizeof(*logits));
        if (!logits)
            r = ERR_NOMEM(&err);
    }
    if (r < 0) {
        check_result(k, false, kind, "all", "%s", err.msg);
    } else {
        set_tolerance(&m);
        run_file(&m, likelihood ? "nll" : "generate", top);
    }
    engine_free(m.e);
}
