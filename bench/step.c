/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench step: options, the model, and which tables to make. */
#include "bench/step.h"

#include <string.h>
#include <sys/utsname.h>

#include "base/alloc.h"
#include "base/fd.h"

enum {
    OPT_RANDOM = 300,
    OPT_LAYERS,
    OPT_ROWS,
    OPT_CONTEXT,
    OPT_REPETITIONS,
    OPT_CSV,
    OPT_PREFILL,
    OPT_REST,
    OPT_LAST,
    OPT_LOAD
};

static const struct option_def step_opts[] = {
    {OPT_RANDOM, "random", "SHAPE",
     "smollm2-135m or qwen3-0.6b with random weights, of\nthe type that --dtype names: F32, F16, "
     "BF16, Q8_0,\nQ4_0, ... Q6_K (default: BF16)"},
    {OPT_LAYERS, "layers", "N", "with --random: so many layers (default: the shape's)"},
    {OPT_ROWS, "rows", "N,...", "rows of a step (default: 1,2,4,6,8,12,16,24,32,48,64)"},
    {OPT_CONTEXT, "context", "N,...", "positions before the step (default: 256)"},
    {OPT_REPETITIONS, "repetitions", "N", "rounds, 6 at least (default: 21)"},
    {OPT_CSV, "csv", "FILE", "write the figures there, too"},
    {OPT_PREFILL, "prefill", "N", "measure the prefill of N tokens instead"},
    {OPT_LAST, "last-logits", NULL,
     "logits of the last row only, as a prompt has (default: of all rows)"},
    {OPT_REST, "rest", NULL,
     "measure one row without its weight products instead,\nagainst reading the KV once"},
    {OPT_LOAD, "load", NULL, "measure loading and resident memory instead"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {step_opts, engine_option_defs,
                                                  engine_drafter_defs, NULL};

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct step *s = ctx;
    switch (id) {
    case ENGINE_OPT_DTYPE:
        s->dtype = arg; /* what it means depends on --random */
        return 0;
    case OPT_RANDOM:
        s->random = arg;
        return 0;
    case OPT_LAYERS:
        return option_u32(arg, 1, 1024, &s->layers, err);
    case OPT_ROWS:
        return option_u32_list(arg, 1, s->rows, STEP_MAX_ROWS, &s->n_rows, err);
    case OPT_CONTEXT:
        return option_u32_list(arg, 1, s->contexts, STEP_MAX_CONTEXTS, &s->n_contexts, err);
    case OPT_REPETITIONS:
        return option_u32(arg, 6, 100000, &s->repetitions, err);
    case OPT_CSV:
        s->csv_path = arg;
        return 0;
    case OPT_PREFILL:
        return option_u32(arg, 1, 1u << 16, &s->prefill, err);
    case OPT_REST:
        s->rest = true;
        return 0;
    case OPT_LAST:
        s->last = true;
        return 0;
    case OPT_LOAD:
        s->load = true;
        return 0;
    default:
        return engine_options_set(&s->engine, id, arg, err) < 0 ? DEDIT_E_INVALID : 0;
    }
}

/* Bytes and parameters of what one step reads. */
static void weigh(struct step *s)
{
    static const enum model_tensor_role roles[] = {MT_Q,    MT_K,  MT_V,    MT_O,
                                                   MT_GATE, MT_UP, MT_DOWN, MT_HEAD};
    uint32_t layers = model_file_config(s->file)->n_layers;
    for (uint32_t l = 0; l < layers; l++)
        for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
            const struct model_tensor *t = model_file_tensor(s->file, roles[i], l);
            if (roles[i] == MT_HEAD && l > 0)
                continue;
            double params = (double)t->dims[0] * (double)t->dims[1];
            bool blocks = dk_type_info(t->type)->quantised;
            size_t bytes = t->bytes;
            if (s->engine.config.dtype == BACKEND_DTYPE_BF16)
                bytes = (size_t)params * 2;
            if (s->engine.config.dtype == BACKEND_DTYPE_F32)
                bytes = (size_t)params * 4;
            if (s->engine.config.dtype != BACKEND_DTYPE_FILE)
                blocks = false;
            s->weight_bytes += bytes;
            if (roles[i] == MT_HEAD)
                s->head_params = params;
            if (blocks)
                s->int_params += params;
            else
                s->float_params += params;
        }
}

void step_measure_peaks(struct step *s, struct step_peaks *p)
{
    p->read_s = floors_read(s->floors);
    p->fma = floors_fma(s->floors);
    p->dot = floors_int(s->floors);
    p->amx = floors_amx(s->floors);
}

double step_kv_bytes(const struct step *s, uint32_t positions)
{
    const struct model_config *c = engine_model_config(s->e);
    struct backend_memory mem;
    engine_memory(s->e, &mem);
    return 2.0 * c->n_layers * c->n_kv_heads * c->head_dim * positions *
           (double)dk_kv_elem_bytes(mem.kv_type);
}

double step_floor(const struct step *s, const struct step_peaks *p, double rows, double head_rows,
                  double kv_bytes)
{
    /* 20-bit activations are three int8 planes where the dot product takes int8; where it takes 16
     * bits, four are left for a product at twice the rate. */
    double planes = s->engine.config.tier >= DK_TIER_AVX512 ? 3
                    : s->engine.config.tier == DK_TIER_AVX2 ? 1.5
                                                            : 2;
    double peak = s->amx_class && p->amx > 0 ? p->amx : p->fma;
    double all = s->int_params + s->float_params, body = (all - s->head_params) / all;
    double work = body * rows + (1 - body) * head_rows; /* rows, weighed by parameters */
    double read =
        p->read_s * ((double)s->weight_bytes + kv_bytes) / (double)floors_bytes(s->floors);
    double compute = 2 * s->float_params * work / peak + planes * s->int_params * work / p->dot;
    return read > compute ? read : compute;
}

static void describe_machine(FILE *f, const char *prefix)
{
    struct error err = {0};
    struct utsname u;
    _cleanup_free_ char *cpu = NULL;
    size_t len;
    const char *model = "unknown CPU", *end = model + strlen(model);
    if (file_read("/proc/cpuinfo", 4u << 20, &cpu, &len, &err) == 0) {
        const char *m = strstr(cpu, "model name");
        const char *colon = m ? strchr(m, ':') : NULL;
        if (colon) {
            model = colon + 2;
            end = model + strcspn(model, "\n");
        }
    }
    fprintf(f, "%s%.*s", prefix, (int)(end - model), model);
    if (uname(&u) == 0)
        fprintf(f, ", %s %s", u.sysname, u.release);
    for (int i = 0; i < 8; i++) {
        char path[96];
        _cleanup_free_ char *size = NULL, *level = NULL, *type = NULL;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (file_read(path, 64, &size, &len, &err) < 0)
            break;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        if (file_read(path, 64, &level, &len, &err) < 0)
            break;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
        if (file_read(path, 64, &type, &len, &err) < 0 || type[0] == 'I')
            continue;
        fprintf(f, ", L%.1s %.*s", level, (int)strcspn(size, "\n"), size);
    }
    fputc('\n', f);
}

static int parse_dtype(struct step *s, enum dk_type *ret, struct error *err)
{
    *ret = DK_BF16;
    if (!s->dtype)
        return 0;
    if (!s->random)
        return engine_options_set(&s->engine, ENGINE_OPT_DTYPE, s->dtype, err) < 0 ? DEDIT_E_INVALID
                                                                                   : 0;
    for (int t = 0; t < DK_TYPE_COUNT; t++) {
        const char *a = dk_type_info((enum dk_type)t)->name, *b = s->dtype;
        /* Upper and lower case alike, ASCII only. */
        while (*a && (*a == *b || (*a >= 'A' && *a <= 'Z' && *a + 32 == *b))) {
            a++;
            b++;
        }
        if (!*a && !*b) {
            *ret = (enum dk_type)t;
            return 0;
        }
    }
    return ERR(err, INVALID,
               "\"%s\" is not F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, "
               "Q5_K or Q6_K",
               s->dtype);
}

static int open_csv(struct step *s, struct error *err)
{
    const struct out_use out = {"--csv", s->csv_path};
    const char *const ins[] = {s->path, s->engine.config.drafter};
    int r = out_files_check(&out, 1, ins, ARRAY_LEN(ins), err);
    if (r < 0 || !s->csv_path)
        return r;
    r = out_file_open(&s->csv, s->csv_path, err);
    return r < 0 ? error_prefix(err, r, "--csv") : 0;
}

static int open_all(struct step *s, struct error *err)
{
    struct engine_config *c = &s->engine.config;
    struct model_file *copy = NULL; /* the engine's own: it may give weights back to the kernel */
    int r = open_csv(s, err);
    if (r < 0)
        return r;
    if (s->random) {
        r = random_model_new(s->random, s->type, s->layers, &s->file, err);
        if (r == 0)
            r = random_model_new(s->random, s->type, s->layers, &copy, err);
    } else {
        r = model_file_open(s->path, &s->file, err);
    }
    if (r < 0)
        return r;
    weigh(s);
    uint32_t rows = s->prefill, context = s->prefill;
    for (size_t i = 0; i < s->n_rows && !s->prefill; i++)
        rows = s->rows[i] > rows ? s->rows[i] : rows;
    for (size_t i = 0; i < s->n_contexts && !s->prefill; i++)
        context = s->contexts[i] > context ? s->contexts[i] : context;
    if (rows > c->max_num_batched_tokens)
        c->max_num_batched_tokens = rows;
    if (!c->max_context)
        c->max_context = (context + rows + 31) / 16 * 16;
    c->max_num_seqs = 1;
    r = copy ? engine_new_textless(copy, c, &s->e, err)
             : engine_options_open(&s->engine, s->path, &s->e, err);
    if (r < 0)
        return r;
    s->amx_class = strstr(engine_class(s->e), "amx") != NULL;
    if (s->load)
        return 0;
    return floors_new(c->n_threads, c->tier, s->weight_bytes, &s->floors, err);
}

static void close_all(struct step *s)
{
    floors_free(s->floors);
    engine_free(s->e);
    model_file_free(s->file);
    s->file = NULL;
    out_file_drop(&s->csv);
}

static int run_all(struct step *s, struct error *err)
{
    int r = open_all(s, err);
    if (r < 0)
        return r;
    struct backend_memory mem;
    engine_memory(s->e, &mem);
    describe_machine(stdout, "machine: ");
    printf("model:   %s; a step reads %.1f MB of weights (packed: %.1f MB), %.1f M parameters\n",
           engine_model_name(s->e), (double)s->weight_bytes / 1e6, (double)mem.packed_bytes / 1e6,
           (s->float_params + s->int_params) / 1e6);
    printf("engine:  class %s, tier %s, %u threads\n", engine_class(s->e),
           dk_tier_name(s->engine.config.tier), s->engine.config.n_threads);
    if (s->load)
        return step_load(s, err);
    if (s->prefill)
        return step_prefill(s, err);
    return s->rest ? step_rest(s, err) : step_rows(s, err);
}

static int run(const struct bench_command *c, int argc, char **argv)
{
    static const uint32_t rows[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64};
    struct step s;
    struct error err = {0};
    int first, status;
    memset(&s, 0, sizeof(s));
    engine_options_init(&s.engine);
    memcpy(s.rows, rows, sizeof(rows));
    s.n_rows = ARRAY_LEN(rows);
    s.contexts[0] = 256;
    s.n_contexts = 1;
    s.repetitions = 21;
    if (bench_options(c, argc, argv, &s, &first, &status) < 0)
        return status;
    if (first < argc)
        return bench_fail(c, BENCH_USAGE, "\"%s\" is not an option", argv[first]);
    if (s.load + s.rest + (s.prefill > 0) > 1)
        return bench_fail(c, BENCH_USAGE, "--load, --rest and --prefill exclude each other");
    if (s.random && s.engine.model)
        return bench_fail(c, BENCH_USAGE, "--random and --model exclude each other");
    if (s.random && s.load)
        return bench_fail(c, BENCH_USAGE, "--load needs a file: --random has none");
    if (parse_dtype(&s, &s.type, &err) < 0)
        return bench_fail(c, BENCH_USAGE, "--dtype: %s", err.msg);
    if (engine_options_tier(&s.engine, &err) < 0)
        return bench_fail(c, BENCH_FAILED, "%s", err.msg);
    char path[4096];
    int r = 0;
    s.path = s.engine.model;
    if (!s.random && !s.path) {
        r = engine_default_model(path, sizeof(path), &err);
        s.path = path;
    }
    if (r == 0)
        r = run_all(&s, &err);
    if (r == 0 && s.csv.f)
        r = out_file_close(&s.csv, &err);
    close_all(&s);
    return r < 0 ? bench_fail(c, BENCH_FAILED, "%s", err.msg) : BENCH_OK;
}

const struct bench_command bench_step = {
    .name = "step",
    .args = "",
    .summary = "Measures the cost of a step by its rows, against what the machine can do.",
    .groups = groups,
    .set = set,
    .run = run,
};
