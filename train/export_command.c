/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train export: its options.  What it does stands in export.c. */
#include <string.h>

#include "train/cli.h"
#include "train/fit.h"

enum { OPT_OUTPUT = 300, OPT_FORMAT, OPT_TYPE, OPT_LAST, OPT_FORCE };

struct export_command {
    struct engine_options engine;
    struct export_options o;
    bool form_given;
};

static const struct option_def export_opts[] = {
    {OPT_OUTPUT, "output", "PATH",
     "folder, or file that ends with .gguf\n(default: none, it must be given)"},
    {OPT_FORMAT, "format", "F",
     "hf (folder, as DFlash checkpoints are) or gguf\n(default: told by the output's name)"},
    {OPT_TYPE, "type", "T", "bf16, f32, or q8_0 (gguf alone) (default: bf16)"},
    {OPT_LAST, "last", NULL, "the last weights, not the averaged ones"},
    {OPT_FORCE, "force", NULL, "write over what is there"},
    {ENGINE_OPT_MODEL, "model", "PATH",
     "the model that is drafted for: a .gguf file or a\nHugging Face folder (default: the default "
     "model in\nthe cache)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {export_opts, NULL};

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct export_command *e = ctx;
    int r = engine_options_set(&e->engine, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    switch (id) {
    case OPT_OUTPUT:
        e->o.out = arg;
        return 0;
    case OPT_FORMAT:
        if (strcmp(arg, "hf") != 0 && strcmp(arg, "gguf") != 0)
            return ERR(err, INVALID, "\"%s\" is not hf or gguf", arg);
        e->o.form = !strcmp(arg, "gguf") ? EXPORT_GGUF : EXPORT_HF;
        e->form_given = true;
        return 0;
    case OPT_TYPE:
        if (!strcmp(arg, "bf16"))
            e->o.dtype = BACKEND_DTYPE_BF16;
        else if (!strcmp(arg, "f32"))
            e->o.dtype = BACKEND_DTYPE_F32;
        else if (!strcmp(arg, "q8_0"))
            e->o.dtype = BACKEND_DTYPE_Q8_0;
        else
            return ERR(err, INVALID, "\"%s\" is not bf16, f32 or q8_0", arg);
        return 0;
    case OPT_LAST:
        e->o.last = true;
        return 0;
    case OPT_FORCE:
        e->o.force = true;
        return 0;
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

static int run(const struct train_command *c, int argc, char **argv)
{
    struct export_command e = {.form_given = false};
    struct error err = {0};
    char model[4096];
    int first, status;
    engine_options_init(&e.engine);
    export_options_init(&e.o);
    if (train_options(c, argc, argv, &e, &first, &status) < 0)
        return status;
    if (first + 1 != argc || !e.o.out)
        return train_fail(c, TRAIN_USAGE,
                          "--output PATH and one checkpoint, or a run's folder, are "
                          "needed");
    const size_t n = strlen(e.o.out);
    if (!e.form_given && n > 5 && !strcmp(e.o.out + n - 5, ".gguf"))
        e.o.form = EXPORT_GGUF;
    if (e.o.form == EXPORT_HF && e.o.dtype == BACKEND_DTYPE_Q8_0)
        return train_fail(c, TRAIN_USAGE, "--type q8_0 is for GGUF files");
    if (train_model_path(&e.engine, model, sizeof(model), &err) < 0)
        return train_error(c, &err);
    e.o.from = argv[first];
    e.o.target = model;
    return train_export(&e.o, &err) < 0 ? train_error(c, &err) : TRAIN_OK;
}

const struct train_command train_export_command = {
    .name = "export",
    .args = "CHECKPOINT",
    .summary = "Writes a checkpoint, or a drafter anew, as a Hugging Face folder or a GGUF file.",
    .groups = groups,
    .set = set,
    .run = run,
};
