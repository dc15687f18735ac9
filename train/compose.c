/* SPDX-License-Identifier: Apache-2.0 */
/* synth and regen: from options to shards. */
#include "train/compose.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "train/fit.h"

#define MAX_SEQUENCES 1024u

const struct option_def compose_option_defs[] = {
    {COMPOSE_OPT_OUTPUT, "output", "FOLDER",
     "shards go there; what is there already is gone on\nfrom (default: none, it must be given)"},
    {COMPOSE_OPT_TOKENS, "tokens", "N",
     "stop at N response tokens, those that are there\nincluded; 0: no end (default: 1000000; regen: 0)"},
    {COMPOSE_OPT_SEQUENCES, "sequences", "N", "conversations at once (default: 32)"},
    {COMPOSE_OPT_SEED, "seed", "N", "the same seed writes the same data (default: 1)"},
    {COMPOSE_OPT_MAX_LEN, "max-len", "N",
     "tokens of a conversation (default: 1024, or the\nmodel's positions when it has fewer)"},
    {COMPOSE_OPT_SHARD_SIZE, "shard-size", "BYTES", "of a file, at least (default: 64M)"},
    {COMPOSE_OPT_SYNC, "sync", "SECONDS", "between two fsyncs, at most (default: 30)"},
    {COMPOSE_OPT_CHAT_FORMAT, "chat-format", "F",
     "chatml, qwen3, smollm2 or llama3\n(default: told by the model's template)"},
    {COMPOSE_OPT_RAW, "raw", NULL,
     "no chat format: the model goes on with a text, and\nthat is its answer"},
    {COMPOSE_OPT_NO_THINKING, "no-thinking", NULL, "qwen3: close the thinking block at once"},
    {COMPOSE_OPT_QUIET, "quiet", NULL, "no progress on standard error"},
    {0, NULL, NULL, NULL},
};

void compose_init(struct compose *c, const struct train_command *command)
{
    *c = (struct compose){
        .command = command,
        .author = {.thinking = -1,
                   .sequences = 32,
                   .max_len = 1024,
                   .max_user = 120,
                   .user_temperature = 1,
                   .user_min_p = 0.02f},
        .seed = 1,
        .shard_bytes = (uint64_t)64 << 20,
        .sync_s = 30,
    };
    engine_options_init(&c->engine_options);
}

void compose_done(struct compose *c)
{
    author_free(c->writer);
    shards_free(c->shards);
    engine_free(c->engine);
    u64map_done(&c->known);
}

int compose_set(struct compose *c, int id, const char *arg, struct error *err)
{
    int r = engine_options_set(&c->engine_options, id, arg, err);
    if (r)
        return r;
    switch (id) {
    case COMPOSE_OPT_OUTPUT:
        c->dir = arg;
        return 1;
    case COMPOSE_OPT_SEQUENCES:
        r = option_u32(arg, 1, MAX_SEQUENCES, &c->author.sequences, err);
        break;
    case COMPOSE_OPT_SEED:
        r = option_u64(arg, &c->seed, err);
        if (r == 0 && c->seed > INT64_MAX)
            r = ERR(err, INVALID, "at most %lld", (long long)INT64_MAX);
        break;
    case COMPOSE_OPT_TOKENS:
        r = option_u64(arg, &c->tokens, err);
        break;
    case COMPOSE_OPT_MAX_LEN:
        r = option_u32(arg, 32, DATA_MAX_TOKENS, &c->author.max_len, err);
        c->max_len_given = true;
        break;
    case COMPOSE_OPT_SHARD_SIZE:
        r = option_size(arg, &c->shard_bytes, err);
        if (r == 0 && (c->shard_bytes < 1024 || c->shard_bytes > (uint64_t)1 << 40))
            r = ERR(err, INVALID, "from 1K to 1T");
        break;
    case COMPOSE_OPT_SYNC:
        r = option_u32(arg, 0, 86400, &c->sync_s, err);
        break;
    case COMPOSE_OPT_CHAT_FORMAT:
        r = engine_option_chat_format(arg, &c->author.format, &c->format_given, err);
        return r < 0 ? r : 1;
    case COMPOSE_OPT_RAW:
        c->author.raw = true;
        return 1;
    case COMPOSE_OPT_NO_THINKING:
        c->author.thinking = 0;
        return 1;
    case COMPOSE_OPT_QUIET:
        c->quiet = true;
        return 1;
    default:
        return 0;
    }
    return r < 0 ? r : 1;
}

int compose_open(struct compose *c, struct error *err)
{
    char path[4096];
    struct engine_config *e = &c->engine_options.config;
    const uint32_t n = c->author.sequences, len = c->author.max_len;
    int r = engine_options_tier(&c->engine_options, err);
    if (r == 0)
        r = train_model_path(&c->engine_options, path, sizeof(path), err);
    if (r < 0)
        return r;
    e->max_num_seqs = n;
    e->max_num_batched_tokens = n + 256;
    /* Room for everyone's usual length; who grows beyond waits until another has ended. */
    const uint32_t usual = len < 512 ? len : 512;
    uint64_t blocks = ((uint64_t)n * usual + len) / DK_KV_BLOCK + n + 2;
    e->n_kv_blocks = (uint32_t)blocks;
    r = engine_options_open(&c->engine_options, path, &c->engine, err);
    if (r == 0 && !c->format_given && !c->author.raw)
        r = engine_chat_format(c->engine, &c->author.format, err);
    if (r < 0)
        return r;
    c->author.draft = engine_drafter_config(c->engine) != NULL;
    const uint32_t most = engine_get_config(c->engine)->max_context;
    if (c->max_len_given && len > most)
        return ERR(err, INVALID, "--max-len %u: the model has %u positions", len, most);
    if (len > most)
        c->author.max_len = most;
    return 0;
}

/* ---- what is there ------------------------------------------------------------------------------- */

/* Of a conversation that was kept, as the author made it. */
static int begin_hash_of(const char *line, size_t len, uint64_t *ret, struct error *err)
{
    json_auto_t *o = NULL;
    const char *system = NULL;
    int r = js_parse_object(line, len, "a conversation", &o, err);
    if (r < 0)
        return r;
    const json_t *list = json_object_get(o, "messages"), *m = json_array_get(list, 0);
    const char *role = json_string_value(json_object_get(m, "role"));
    if (role && !strcmp(role, "system")) {
        system = json_string_value(json_object_get(m, "content"));
        m = json_array_get(list, 1);
    }
    const json_t *text = json_object_get(m, "content");
    if (!json_is_string(text))
        return ERR(err, FORMAT, "a conversation without messages");
    *ret = author_begin_hash(system, json_string_value(text), json_string_length(text));
    return 0;
}

static int remember(struct compose *c, uint64_t hash, struct error *err)
{
    return u64map_put(&c->known, hash, 1) < 0 ? ERR_NOMEM(err) : 0;
}

static uint64_t text_hash(const struct data_record *r)
{
    return hash_bytes(r->ids.ids, r->ids.len * sizeof(*r->ids.ids), 2);
}

static int found(void *arg, const struct data_record *r, const char *line, size_t len,
                 struct error *err)
{
    struct compose *c = arg;
    uint64_t hash = 0;
    if (!r->has_number || r->number < c->next)
        return ERR(err, FORMAT, "%s: conversation %llu stands behind %llu", c->dir,
                   (unsigned long long)r->number, (unsigned long long)c->next);
    int k = c->by_text ? begin_hash_of(line, len, &hash, err) : 0;
    if (k < 0)
        return k;
    c->next = r->number + 1;
    c->lines++;
    c->done += r->n_supervised;
    return remember(c, c->by_text ? hash : text_hash(r), err);
}

static json_t *make_header(struct compose *c, json_t *recipe)
{
    const struct model_config *m = engine_model_config(c->engine);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:I, s:O}", "made_by", c->command->name,
                     "target", engine_model_name(c->engine), "vocab_size",
                     (json_int_t)m->vocab_size, "class", engine_class(c->engine), "dtype",
                     train_dtype_name(c->engine_options.config.dtype), "chat_format",
                     c->author.raw ? "raw" : chat_format_name(c->author.format), "seed",
                     (json_int_t)c->seed, "recipe", recipe);
}

static int open_shards(struct compose *c, json_t *recipe, struct error *err)
{
    struct shards_found f = {0};
    json_auto_t *header = NULL;
    if (json_object_set_new(recipe, "max_len", json_integer((json_int_t)c->author.max_len)) < 0 ||
        json_object_set_new(recipe, "thinking", json_integer(c->author.thinking)) < 0 ||
        !(header = make_header(c, recipe)) || u64map_init(&c->known, 4096) < 0)
        return ERR_NOMEM(err);
    const struct shards_options o = {
        .dir = c->dir,
        .prefix = c->command->name,
        .header = header,
        .vocab_size = engine_model_config(c->engine)->vocab_size,
        .shard_bytes = c->shard_bytes,
        .sync_ns = (uint64_t)c->sync_s * 1000000000,
    };
    int r = shards_open(&o, found, c, &c->shards, &f, err);
    if (r == 0 && f.shards && !c->quiet)
        fprintf(stderr, "%s: %s: going on behind %llu conversations, %llu response tokens%s\n",
                c->command->name, c->dir, (unsigned long long)f.lines, (unsigned long long)c->done,
                f.cut_bytes ? " (an incomplete line was cut off)" : "");
    return r;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static int plan(void *arg, uint64_t n, struct author_plan *ret, struct error *err)
{
    struct compose *c = arg;
    return c->plan(c->plan_arg, n, ret, err);
}

static bool known(void *arg, uint64_t begin_hash)
{
    const struct compose *c = arg;
    uint64_t v;
    return c->by_text && u64map_get(&c->known, begin_hash, &v);
}

static int take(void *arg, const struct author_result *a, struct error *err)
{
    struct compose *c = arg;
    uint64_t v;
    enum author_drop drop = a->drop;
    const uint64_t hash = a->record && !c->by_text ? text_hash(a->record) : a->begin_hash;
    if (drop == AUTHOR_KEPT && u64map_get(&c->known, hash, &v))
        drop = AUTHOR_REPEATED;
    c->next = a->number + 1;
    c->dropped[drop]++;
    if (drop != AUTHOR_KEPT)
        return 0;
    _cleanup_strbuf_ struct strbuf line = {0};
    if (data_format_line(a->record, a->messages, &line) < 0)
        return ERR_NOMEM(err);
    int r = shards_add(c->shards, line.s, line.len, err);
    if (r < 0 || (r = remember(c, hash, err)) < 0)
        return r;
    c->lines++;
    c->done += a->record->n_supervised;
    c->loops += a->record->end == DATA_END_LOOP;
    return c->tokens && c->done >= c->tokens;
}

static int tick(void *arg, struct error *err)
{
    struct compose *c = arg;
    compose_tell(c, false);
    int r = shards_sync(c->shards, false, err);
    return r < 0 ? r : train_stop;
}

static int write_all(struct compose *c, struct error *err)
{
    const struct author_sink sink = {plan, known, take, tick, c};
    int r = author_new(c->engine, &c->author, &sink, c->next, &c->writer, err);
    if (r < 0)
        return r;
    c->begun_lines = c->next;
    c->begun_tokens = c->done;
    c->tty = isatty(STDERR_FILENO) > 0;
    c->started_ns = c->told_ns = clock_now_ns();
    if (!c->tokens || c->done < c->tokens)
        r = author_run(c->writer, err);
    /* What is whole is kept, whatever happened. */
    struct error sync_err = {0};
    int k = shards_sync(c->shards, true, r < 0 ? &sync_err : err);
    compose_tell(c, true);
    return r < 0 ? r : k;
}

int compose_run(struct compose *c, json_t *recipe)
{
    struct error err = {0};
    int r = open_shards(c, recipe, &err);
    if (r == 0) {
        train_catch_signals();
        r = write_all(c, &err);
    }
    if (r < 0)
        return train_error(c->command, &err);
    return train_stop ? TRAIN_INTERRUPTED : TRAIN_OK;
}
