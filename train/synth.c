/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedit-train synth: the target writes training data by itself, questions too.  Conversation n is drawn
 * from (seed, n): what its first question begins with, how its answers are sampled, how long they may be,
 * and whether there is a second turn.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/prompt_file.h"
#include "train/compose.h"
#include "train/lists.h"

enum {
    OPT_TOPICS = 300,
    OPT_OPENINGS,
    OPT_PROMPTS,
    OPT_SHARE,
    OPT_SYSTEM,
    OPT_SECOND_TURN,
    OPT_USER_TOKENS,
    OPT_USER_TEMPERATURE,
    OPT_USER_MIN_P,
    OPT_ANSWER_TOKENS,
    OPT_TEMPERATURES,
};

/* Where a first question comes from. */
enum kind { EMPTY, MATH, CODE, CHAT, TOPIC, OPENING, PROMPT, N_KINDS };
static const char *const kinds[N_KINDS] = {"empty", "math",    "code",  "chat",
                                           "topic", "opening", "prompt"};

#define MAX_TEMPERATURES 8u

struct synth {
    struct compose c;
    struct text_list topics, openings;
    struct prompt_file prompts;
    const char *system;
    float share[N_KINDS];
    bool share_given[N_KINDS];
    float second_turn;
    uint32_t answer_min, answer_max;
    struct {
        float temperature, share;
    } temperatures[MAX_TEMPERATURES];
    unsigned n_temperatures;
};

static const struct option_def synth_opts[] = {
    {OPT_SHARE, "share", "KIND=X",
     "of conversations whose first question is of a kind:\nempty, math, code, chat, topic, opening, "
     "prompt; may\nbe repeated (default: 33, 25, 20, 12, 10; opening\nand prompt 30 when their file is "
     "given)"},
    {OPT_TOPICS, "topics", "FILE", "topics, one a line (default: a built-in list)"},
    {OPT_OPENINGS, "openings", "FILE",
     "beginnings of questions, one a line, that the model\ngoes on from (default: none)"},
    {OPT_PROMPTS, "prompts", "FILE",
     "JSON lines of prompts, as for regen; their first\nquestions are asked (default: none)"},
    {OPT_SYSTEM, "system", "TEXT", "system message (default: the format's own, if any)"},
    {OPT_USER_TOKENS, "user-tokens", "N", "of a question, at most (default: 120)"},
    {OPT_USER_TEMPERATURE, "user-temperature", "X", "of questions (default: 1)"},
    {OPT_USER_MIN_P, "user-min-p", "X", "of questions (default: 0.02)"},
    {OPT_ANSWER_TOKENS, "answer-tokens", "N,M",
     "an answer is cut at a length drawn from N to M\n(default: 256,400)"},
    {OPT_TEMPERATURES, "temperatures", "T:X,...",
     "temperatures of answers and their shares; from 1 on\nwith min-p 0.05 (default: "
     "0:75,0.7:15,1:10)"},
    {OPT_SECOND_TURN, "second-turn", "X", "share of conversations with one (default: 0.15)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {compose_option_defs, synth_opts,
                                                  engine_option_defs, engine_drafter_defs, NULL};

/* ---- options ------------------------------------------------------------------------------------- */

static int set_share(struct synth *s, const char *arg, struct error *err)
{
    const size_t n = strcspn(arg, "=");
    for (unsigned k = 0; k < N_KINDS && arg[n]; k++)
        if (strlen(kinds[k]) == n && !strncmp(arg, kinds[k], n)) {
            s->share_given[k] = true;
            return option_float_in(arg + n + 1, 0, 1e6, &s->share[k], err);
        }
    return ERR(err, INVALID,
               "\"%s\" is not empty, math, code, chat, topic, opening or prompt, = and a number",
               arg);
}

static int set_temperatures(struct synth *s, const char *arg, struct error *err)
{
    float sum = 0;
    s->n_temperatures = 0;
    for (const char *at = arg;; at++) {
        char word[64];
        const size_t n = strcspn(at, ","), colon = strcspn(at, ":,");
        if (n >= sizeof(word) || colon == n || s->n_temperatures == MAX_TEMPERATURES)
            return ERR(err, INVALID, "\"%s\" is not a list of at most %u TEMPERATURE:SHARE", arg,
                       MAX_TEMPERATURES);
        memcpy(word, at, n);
        word[n] = word[colon] = '\0';
        const unsigned i = s->n_temperatures++;
        int r = option_float_in(word, 0, 100, &s->temperatures[i].temperature, err);
        if (r == 0)
            r = option_float_in(word + colon + 1, 0, 1e6, &s->temperatures[i].share, err);
        if (r < 0)
            return r;
        sum += s->temperatures[i].share;
        at += n;
        if (!*at)
            break;
    }
    return sum > 0 ? 0 : ERR(err, INVALID, "all shares are 0");
}

static int set_answer_tokens(struct synth *s, const char *arg, struct error *err)
{
    uint32_t v[2];
    size_t n;
    int r = option_u32_list(arg, 8, v, 2, &n, err);
    if (r < 0)
        return r;
    s->answer_min = v[0];
    s->answer_max = v[n - 1];
    return s->answer_min <= s->answer_max ? 0 : ERR(err, INVALID, "%u is above %u", v[0], v[1]);
}

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct synth *s = ctx;
    int r = compose_set(&s->c, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    switch (id) {
    case OPT_TOPICS:
        text_list_done(&s->topics);
        return text_list_read(arg, &s->topics, err);
    case OPT_OPENINGS:
        text_list_done(&s->openings);
        return text_list_read(arg, &s->openings, err);
    case OPT_PROMPTS:
        return prompt_file_read(arg, &s->prompts, err);
    case OPT_SHARE:
        return set_share(s, arg, err);
    case OPT_SYSTEM:
        s->system = arg;
        return 0;
    case OPT_SECOND_TURN:
        return option_float_in(arg, 0, 1, &s->second_turn, err);
    case OPT_USER_TOKENS:
        return option_u32(arg, 1, 1u << 16, &s->c.author.max_user, err);
    case OPT_USER_TEMPERATURE:
        return option_float_in(arg, 0, 100, &s->c.author.user_temperature, err);
    case OPT_USER_MIN_P:
        return option_float_in(arg, 0, 1, &s->c.author.user_min_p, err);
    case OPT_ANSWER_TOKENS:
        return set_answer_tokens(s, arg, err);
    case OPT_TEMPERATURES:
        return set_temperatures(s, arg, err);
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

/* Shares that were not given, and whether there is anything to draw from. */
static int finish_shares(struct synth *s, struct error *err)
{
    static const float standard[N_KINDS] = {33, 25, 20, 12, 10, 30, 30};
    float sum = 0;
    for (unsigned k = 0; k < N_KINDS; k++) {
        const bool there = k < OPENING || (k == OPENING ? s->openings.n : s->prompts.n) > 0;
        if (!s->share_given[k])
            s->share[k] = there ? standard[k] : 0;
        else if (s->share[k] > 0 && !there)
            return ERR(err, INVALID, "--share %s: --%ss FILE is needed", kinds[k], kinds[k]);
        sum += s->share[k];
    }
    return sum > 0 ? 0 : ERR(err, INVALID, "--share: all are 0");
}

/* ---- plans --------------------------------------------------------------------------------------- */

/* Numbers of one conversation, each with a place of its own. */
struct draw {
    uint64_t key;
    uint64_t n;
};

static uint64_t draw_bits(struct draw *d)
{
    return hash_mix64(d->key + ++d->n * UINT64_C(0x9e3779b97f4a7c15));
}

static double draw_unit(struct draw *d)
{
    return (double)(draw_bits(d) >> 11) * 0x1p-53;
}

static size_t draw_below(struct draw *d, size_t n)
{
    return (size_t)(draw_unit(d) * (double)n);
}

static unsigned draw_weighted(struct draw *d, const float *weights, size_t stride, unsigned n)
{
    double sum = 0, u;
    unsigned last = 0;
    for (unsigned i = 0; i < n; i++)
        sum += (double)weights[i * stride];
    u = draw_unit(d) * sum;
    for (unsigned i = 0; i < n; i++) {
        if (!(weights[i * stride] > 0))
            continue;
        last = i;
        if ((u -= (double)weights[i * stride]) < 0)
            break;
    }
    return last;
}

static void put_text(struct author_plan *p, const char *format, const char *topic)
{
    const char *at = strstr(format, "%s");
    if (at && topic)
        snprintf(p->text, sizeof(p->text), "%.*s%s%s", (int)(at - format), format, topic, at + 2);
    else
        snprintf(p->text, sizeof(p->text), "%s", format);
}

static const char *one_of(struct draw *d, const struct text_list *l)
{
    return l->s[draw_below(d, l->n)];
}

static void draw_question(const struct synth *s, struct draw *d, unsigned kind,
                          struct author_plan *p)
{
    static const struct text_list *const lists[N_KINDS] = {
        [MATH] = &list_math, [CODE] = &list_code, [CHAT] = &list_chat};
    const struct text_list *topics = s->topics.n ? &s->topics : &list_topics;
    switch ((enum kind)kind) {
    case EMPTY:
    case N_KINDS:
        break;
    case MATH:
    case CODE:
    case CHAT:
        put_text(p, one_of(d, lists[kind]), NULL);
        break;
    case OPENING:
        put_text(p, one_of(d, &s->openings), NULL);
        break;
    case TOPIC: {
        const char *skeleton = one_of(d, &list_skeletons);
        put_text(p, skeleton, one_of(d, topics));
        p->whole = true;
        break;
    }
    case PROMPT: {
        const struct prompt *q = &s->prompts.prompts[draw_below(d, s->prompts.n)];
        p->turns = (const char *const *)q->turns;
        p->n_given = 1;
        if (q->system)
            p->system = q->system;
        break;
    }
    }
}

static int plan(void *arg, uint64_t n, struct author_plan *ret, struct error *err)
{
    const struct synth *s = arg;
    struct draw d = {.key = hash_mix64(hash_mix64(s->c.seed) + n)};
    (void)err;
    *ret = (struct author_plan){.system = s->system, .seed = draw_bits(&d) >> 1};
    const unsigned kind = draw_weighted(&d, s->share, 1, N_KINDS);
    const unsigned t = draw_weighted(&d, &s->temperatures[0].share,
                                     sizeof(s->temperatures[0]) / sizeof(float), s->n_temperatures);
    ret->temperature = s->temperatures[t].temperature;
    ret->min_p = ret->temperature >= 1 ? 0.05f : 0;
    ret->max_answer = s->answer_min + (uint32_t)draw_below(&d, s->answer_max - s->answer_min + 1);
    ret->n_turns = draw_unit(&d) < (double)s->second_turn ? 2 : 1;
    snprintf(ret->kind, sizeof(ret->kind), "%s", kinds[kind]);
    draw_question(s, &d, kind, ret);
    return 0;
}

/* ---- recipe -------------------------------------------------------------------------------------- */

static json_t *number(float x)
{
    return json_real((double)(int64_t)((double)x * 1e4 + 0.5) / 1e4);
}

static uint64_t prompts_hash(const struct prompt_file *f)
{
    uint64_t h = f->n;
    for (size_t i = 0; i < f->n; i++)
        h = hash_bytes(f->prompts[i].turns[0], strlen(f->prompts[i].turns[0]) + 1, h);
    return h;
}

/* Everything that conversations depend on. */
static json_t *make_recipe(const struct synth *s)
{
    json_t *o = json_object(), *shares = json_object(), *temperatures = json_array();
    uint64_t lists = text_list_hash(s->topics.n ? &s->topics : &list_topics);
    const struct text_list *const all[] = {&list_math, &list_code, &list_chat, &list_skeletons,
                                           &s->openings};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        lists = hash_mix64(lists ^ text_list_hash(all[i]));
    lists = hash_mix64(lists ^ prompts_hash(&s->prompts));
    for (unsigned k = 0; k < N_KINDS; k++)
        json_object_set_new(shares, kinds[k], number(s->share[k]));
    for (unsigned i = 0; i < s->n_temperatures; i++)
        json_array_append_new(temperatures,
                              json_pack("[o, o]", number(s->temperatures[i].temperature),
                                        number(s->temperatures[i].share)));
    /* jansson takes NULL for a failure and keeps it: the last call tells. */
    json_object_set_new(o, "share", shares);
    json_object_set_new(o, "temperatures", temperatures);
    json_object_set_new(o, "second_turn", number(s->second_turn));
    json_object_set_new(o, "user",
                        json_pack("[i, o, o]", (int)s->c.author.max_user,
                                  number(s->c.author.user_temperature),
                                  number(s->c.author.user_min_p)));
    json_object_set_new(o, "answer", json_pack("[i, i]", (int)s->answer_min, (int)s->answer_max));
    json_object_set_new(o, "system", s->system ? json_string(s->system) : json_null());
    json_object_set_new(o, "lists", json_integer((json_int_t)(lists >> 1)));
    return o;
}

static int run(const struct train_command *c, int argc, char **argv)
{
    struct synth s = {.second_turn = 0.15f,
                      .answer_min = 256,
                      .answer_max = 400,
                      .temperatures = {{0, 75}, {0.7f, 15}, {1, 10}},
                      .n_temperatures = 3};
    struct error err = {0};
    json_auto_t *recipe = NULL;
    int first, status;
    compose_init(&s.c, c);
    s.c.tokens = 1000000;
    s.c.by_text = true;
    s.c.plan = plan;
    s.c.plan_arg = &s;
    if (train_options(c, argc, argv, &s, &first, &status) < 0)
        goto out;
    status = TRAIN_USAGE;
    if (first < argc)
        train_fail(c, TRAIN_USAGE, "an argument (%s) where only options are taken", argv[first]);
    else if (!s.c.dir)
        train_fail(c, TRAIN_USAGE, "--output FOLDER is needed");
    else if (finish_shares(&s, &err) < 0)
        train_fail(c, TRAIN_USAGE, "%s", err.msg);
    else if (compose_open(&s.c, &err) < 0)
        status = train_error(c, &err);
    else if (!(recipe = make_recipe(&s)))
        status = train_fail(c, TRAIN_FAILED, "out of memory");
    else
        status = compose_run(&s.c, recipe);
out:
    compose_done(&s.c);
    text_list_done(&s.topics);
    text_list_done(&s.openings);
    prompt_file_done(&s.prompts);
    return status;
}

const struct train_command train_synth = {
    .name = "synth",
    .args = "",
    .summary = "The model writes training data: questions and answers, many at once.",
    .groups = groups,
    .set = set,
    .run = run,
};
