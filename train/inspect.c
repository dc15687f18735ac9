/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train inspect: what is in data, in a checkpoint, in a drafter. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/inspect.h"

enum { OPT_LINE = 300 };

static const struct option_def inspect_opts[] = {
    {OPT_LINE, "line", "N",
     "show the conversation in line N of a file of data,\nwhat is trained on between >> and << "
     "(default: none)"},
    {ENGINE_OPT_MODEL, "model", "PATH",
     "the model that data or drafter belong to: needed for\n--line and for drafters (default: the "
     "default model in\nthe cache); ids of data must be its, when it is given"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {inspect_opts, NULL};

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct inspect *s = ctx;
    int r = engine_options_set(&s->engine, id, arg, err);
    if (r)
        return r < 0 ? r : 0;
    if (id == OPT_LINE)
        return option_u32(arg, 1, UINT32_MAX, &s->line, err);
    return ERR(err, INTERNAL, "option %d has no meaning", id);
}

static bool has(const char *folder, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof(path) && access(path, F_OK) == 0;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

static int inspect_path(struct inspect *s, const char *path, struct error *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return ERR(err, NOT_FOUND, "%s: there is no such file", path);
    if (S_ISDIR(st.st_mode)) {
        if (has(path, "config.json"))
            return inspect_drafter(s, path, err);
        return has(path, "metrics.csv") ? inspect_checkpoint(path, err)
                                        : inspect_data(s, path, err);
    }
    if (ends_with(path, ".gguf"))
        return inspect_drafter(s, path, err);
    if (ends_with(path, ".safetensors"))
        return inspect_checkpoint(path, err);
    return s->line ? inspect_line(s, path, err) : inspect_data(s, path, err);
}

static int run(const struct train_command *c, int argc, char **argv)
{
    struct inspect s = {.line = 0};
    struct error err = {0};
    int first, status, r = 0;
    engine_options_init(&s.engine);
    if (train_options(c, argc, argv, &s, &first, &status) < 0)
        return status;
    if (first == argc)
        return train_fail(c, TRAIN_USAGE, "data, runs, checkpoints or drafters are needed");
    for (int i = first; i < argc && r == 0; i++) {
        printf("%s%s\n", i > first ? "\n" : "", argv[i]);
        r = inspect_path(&s, argv[i], &err);
    }
    return r < 0 ? train_error(c, &err) : TRAIN_OK;
}

const struct train_command train_inspect = {
    .name = "inspect",
    .args = "PATH...",
    .summary = "Tells what is in data, in a run or checkpoint, in a drafter.",
    .groups = groups,
    .set = set,
    .run = run,
};
