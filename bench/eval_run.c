/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-bench eval and controller: the model and its suites are opened; every prompt is answered by one
 * setting after the other, so that what disturbs the machine disturbs all.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/eval.h"
#include "bench/random_model.h"

volatile sig_atomic_t eval_interrupted;
static void on_interrupt(int sig)
{
    (void)sig;
    eval_interrupted = 1;
}

/* ---- suites ------------------------------------------------------------------------------------- */

struct talk {
    enum chat_format format;
    struct chat_message messages[2 * EVAL_MAX_TURNS + 1];
    char *owned[EVAL_MAX_TURNS];
    size_t n;
};

int eval_render(const struct eval *e, struct engine *en, enum chat_format format,
                const struct chat_message *messages, size_t n, struct token_list *ret,
                struct error *err)
{
    const struct chat_options o = {.add_generation_prompt = true, .enable_thinking = e->thinking};
    return chat_render_ids(format, engine_tokenizer(en), messages, n, &o, ret, err);
}

/* One turn with every setting; the first one's answer goes on the conversation. */
static int turn(struct eval *e, struct engine *en, struct eval_suite *s, size_t prompt,
                uint64_t seed, const struct token_list *ids, bool counted, char **ret_text,
                struct error *err)
{
    struct eval_answer a[EVAL_MAX_SETTINGS];
    memset(a, 0, sizeof(a));
    int r = 0;
    for (unsigned j = 0; j < e->n_settings && r == 0 && !eval_interrupted; j++) {
        if (s->off[j])
            continue;
        r = eval_ask(en, e, &e->settings[j], ids, seed, &a[j], &eval_interrupted, err);
        if (r == 0 && counted && !eval_interrupted)
            r = eval_count(&s->results[j], &a[j], err);
        if (r == 0 && !eval_interrupted)
            eval_compare(e, s, prompt, j, &a[j], &a[e->settings[j].baseline]);
    }
    if (r == 0 && counted && e->random && !eval_interrupted)
        r = eval_time_parts(e, en, a, err);
    if (r == 0) {
        *ret_text = mem_strndup(a[0].text.s ? a[0].text.s : "", a[0].text.len);
        if (!*ret_text)
            r = ERR_NOMEM(err);
    }
    for (unsigned j = 0; j < e->n_settings; j++)
        eval_answer_done(&a[j]);
    return r;
}

/* 1: the prompt is too long. */
static int conversation(struct eval *e, struct engine *en, struct eval_suite *s, size_t prompt,
                        enum chat_format format, bool counted, struct error *err)
{
    const struct prompt *p = &s->prompts.prompts[prompt];
    struct talk t = {.format = format};
    int r = 0;
    if (p->system)
        t.messages[t.n++] = (struct chat_message){
            .role = "system", .content = p->system, .content_len = strlen(p->system)};
    for (unsigned k = 0; k < p->n_turns && k < e->turns && r == 0 && !eval_interrupted; k++) {
        _cleanup_token_list_ struct token_list ids = {0};
        t.messages[t.n++] = (struct chat_message){
            .role = "user", .content = p->turns[k], .content_len = strlen(p->turns[k])};
        r = eval_render(e, en, t.format, t.messages, t.n, &ids, err);
        if (r == 0 && ids.len > e->max_prompt)
            r = 1;
        if (r == 0)
            r = turn(e, en, s, prompt, e->seed + prompt, &ids, counted, &t.owned[k], err);
        if (r == 0)
            t.messages[t.n++] = (struct chat_message){
                .role = "assistant", .content = t.owned[k], .content_len = strlen(t.owned[k])};
    }
    for (unsigned k = 0; k < EVAL_MAX_TURNS; k++)
        mem_free(t.owned[k]);
    return r == 1 && t.n > 1 ? 0 : r; /* later turns may be too long: then the talk ends */
}

int eval_run_suite(struct eval *e, struct engine *en, struct eval_suite *s, enum chat_format format,
                   uint32_t samples, struct error *err)
{
    size_t done = 0;
    for (; s->next < s->prompts.n && (!samples || done < samples) && !eval_interrupted; s->next++) {
        const size_t i = s->next;
        for (; e->warmup && !eval_interrupted; e->warmup--)
            if (conversation(e, en, s, i, format, false, err) < 0)
                return err->code;
        int r = conversation(e, en, s, i, format, true, err);
        if (r < 0)
            return error_prefix(err, r, "%s, prompt %zu", s->name, i);
        done += r == 0;
        if (!e->quiet)
            fprintf(stderr, "\r%s: %zu ", s->name, done);
    }
    if (!e->quiet)
        fputc('\r', stderr);
    return 0;
}

/* ---- costs without a model ---------------------------------------------------------------------- */

static int open_random(struct eval *e, struct engine **ret, struct error *err)
{
    struct model_file *target = NULL, *drafter = NULL;
    int r = random_model_new(e->random, e->type, e->layers, &target, err);
    if (r == 0)
        r = random_drafter_new(model_file_config(target), e->type, e->drafter_layers,
                               e->draft_vocab, &drafter, err);
    if (r < 0) {
        model_file_free(target);
        return r;
    }
    struct engine_config c = e->engine.config;
    c.take_drafter = drafter;
    c.synthetic = true;
    if (c.max_context == 0)
        c.max_context = e->prompt_tokens + e->max_tokens + 64;
    snprintf(e->suites[0].name, sizeof(e->suites[0].name), "random");
    e->n_suites = 1;
    return engine_new_textless(target, &c, ret, err);
}

int eval_run_random(struct eval *e, struct engine *en, struct error *err)
{
    const uint32_t vocab = engine_model_config(en)->vocab_size;
    int r = 0;
    for (uint32_t i = 0; i < e->samples + e->warmup && r == 0 && !eval_interrupted; i++) {
        _cleanup_token_list_ struct token_list ids = {0};
        _cleanup_free_ char *text = NULL;
        for (uint32_t k = 0; k < e->prompt_tokens && r == 0; k++)
            r = token_list_add(&ids, (uint32_t)(((uint64_t)i * 7919 + k * 104729ull) % vocab));
        if (r < 0)
            return ERR_NOMEM(err);
        r = turn(e, en, &e->suites[0], i, e->seed + i, &ids, i >= e->warmup, &text, err);
        if (!e->quiet)
            fprintf(stderr, "\r%u ", i);
    }
    return r;
}

/* ---- opening ------------------------------------------------------------------------------------ */

static int check_settings(const struct eval *e, const struct engine *en, struct error *err)
{
    int r = 0;
    for (unsigned i = 0; i < e->n_settings && r == 0; i++)
        if ((r = engine_check_drafting(en, &e->settings[i].drafting, err)) < 0)
            r = error_prefix(err, r, "%s", e->settings[i].name);
    return r;
}

/* What calls cost has to be known before `auto` is measured. */
static int calibrate(const struct eval *e, struct engine *en, struct error *err)
{
    int r = 0;
    for (unsigned i = 0; i < e->n_settings && r == 0; i++)
        if (e->settings[i].drafting.method == DRAFT_AUTO)
            while (!eval_interrupted && (r = engine_calibrate(en, err)) > 0)
                ;
    return r < 0 ? r : 0;
}

/* Before anything else: what cannot be written, or is what is read, is told before anything is measured. */
static int open_files(struct eval *e, const char *model, int n, char **files, struct error *err)
{
    const struct out_use outs[] = {
        {"--csv", e->csv_path}, {"--svg", e->svg_path}, {"--answers", e->answers_path}};
    struct out_file *const to[] = {&e->csv, &e->svg, &e->answers};
    const char *const own[] = {model, e->engine.config.drafter};
    int r = out_files_check(outs, ARRAY_LEN(outs), (const char *const *)files, (size_t)n, err);
    if (r == 0)
        r = out_files_check(outs, ARRAY_LEN(outs), own, ARRAY_LEN(own), err);
    for (size_t i = 0; i < ARRAY_LEN(outs) && r == 0; i++)
        if (outs[i].path && (r = out_file_open(to[i], outs[i].path, err)) < 0)
            r = error_prefix(err, r, "%s", outs[i].option);
    return r;
}

void eval_done(struct eval *e)
{
    for (unsigned i = 0; i < e->n_suites; i++)
        eval_suite_done(&e->suites[i]);
    out_file_drop(&e->csv);
    out_file_drop(&e->svg);
    out_file_drop(&e->answers);
}

int eval_open(struct eval *e, int n, char **files, struct engine **ret, enum chat_format *format,
              struct error *err)
{
    const struct sigaction sa = {.sa_handler = on_interrupt};
    char path[4096];
    (void)sigaction(SIGINT, &sa, NULL);
    if (e->random && n)
        return ERR(err, INVALID, "--random has no suites");
    if (e->random && e->clients)
        return ERR(err, INVALID, "--clients needs suites, --random has none");
    if (e->clients && e->turns > 1)
        return ERR(err, INVALID, "--clients asks the first turns only");
    if (e->clients > e->engine.config.max_num_seqs)
        e->engine.config.max_num_seqs = e->clients;
    if (e->random) {
        int r = eval_make_settings(e, err);
        if (r == 0)
            r = open_files(e, NULL, n, files, err);
        if (r == 0)
            r = engine_options_tier(&e->engine, err);
        e->engine.config.enable_prefix_caching = false;
        if (r == 0)
            r = open_random(e, ret, err);
        if (r == 0)
            r = check_settings(e, *ret, err);
        return r < 0 ? r : calibrate(e, *ret, err);
    }
    if (n == 0)
        return ERR(err, INVALID, "no suite is named: a file of prompts, one JSON object a line");
    if (n > (int)EVAL_MAX_SUITES)
        return ERR(err, LIMIT, "%d suites: at most %u", n, EVAL_MAX_SUITES);
    const char *model = e->engine.model;
    if (!model && engine_default_model(path, sizeof(path), NULL) == 0)
        model = path;
    /* Settings depend on whether there is one. */
    int r = model ? engine_options_beside(&e->engine, model, err) : 0;
    if (r == 0 && e->prepare)
        e->prepare(e);
    if (r == 0)
        r = eval_make_settings(e, err);
    if (r == 0)
        r = open_files(e, model, n, files, err);
    for (int i = 0; i < n && r == 0; i++) {
        e->n_suites++; /* freed even when it is half read */
        r = eval_read_suite(files[i], &e->suites[i], err);
    }
    if (r == 0 && !model)
        r = engine_default_model(path, sizeof(path), err);
    if (r == 0)
        r = engine_options_tier(&e->engine, err);
    /* A prefix that ar left in the cache has no drafter's context: it would be made anew in the middle
     * of the measurement. */
    e->engine.config.enable_prefix_caching = false;
    if (r == 0)
        r = engine_options_open(&e->engine, model, ret, err);
    *format = e->format;
    if (r == 0 && !e->format_given)
        r = engine_chat_format(*ret, format, err);
    if (r == 0)
        r = check_settings(e, *ret, err);
    return r < 0 ? r : calibrate(e, *ret, err);
}
