/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train plot: options, files, extents. */
#include "train/plot.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/out_file.h"

enum { OPT_SVG = 300, OPT_X, OPT_WIDTH, OPT_HEIGHT };

static const struct option_def plot_opts[] = {
    {OPT_SVG, "svg", "FILE", "draw there instead of in the terminal (default: none)"},
    {OPT_X, "x", "COLUMN", "step or seconds (default: step)"},
    {OPT_WIDTH, "width", "N", "of a diagram in the terminal (default: 72)"},
    {OPT_HEIGHT, "height", "N", "of a diagram in the terminal (default: 14)"},
    {0, NULL, NULL, NULL},
};
static const struct option_def *const groups[] = {plot_opts, NULL};

const struct plot_panel plot_panels[PLOT_PANELS] = {
    {"loss",
     {"loss_p1", "loss_p2", "held_loss_p1", "held_loss_p2", NULL},
     {"P1", "P2", "P1 held out", "P2 held out"}},
    {"tokens a round, at random places",
     {"tau_p1", "tau_p2", "held_tau_p1", "held_tau_p2", NULL},
     {"P1", "P2", "P1 held out", "P2 held out"}},
    {"rates: shown the truth (S), changed by it (O), right (A)",
     {"rate_s", "rate_o", "rate_a", NULL},
     {"S", "O", "A"}},
    {"tokens a second", {"tokens_per_s", NULL}, {"tokens/s"}},
};

static int set(void *ctx, int id, const char *arg, struct error *err)
{
    struct plot *p = ctx;
    switch (id) {
    case OPT_SVG:
        p->svg = arg;
        return 0;
    case OPT_X:
        if (strcmp(arg, "step") != 0 && strcmp(arg, "seconds") != 0)
            return ERR(err, INVALID, "\"%s\" is not step or seconds", arg);
        p->x = arg;
        return 0;
    case OPT_WIDTH:
        return option_u32(arg, 20, 400, &p->width, err);
    case OPT_HEIGHT:
        return option_u32(arg, 4, 100, &p->height, err);
    default:
        return ERR(err, INTERNAL, "option %d has no meaning", id);
    }
}

bool plot_point(const struct plot *p, const struct plot_run *run, const char *column, size_t row,
                double *x, double *y)
{
    const int cx = csv_column(&run->csv, p->x), cy = csv_column(&run->csv, column);
    if (cx < 0 || cy < 0)
        return false;
    *x = csv_value(&run->csv, row, cx);
    *y = csv_value(&run->csv, row, cy);
    return isfinite(*x) && isfinite(*y);
}

bool plot_extent(const struct plot *p, const struct plot_panel *panel, struct plot_range *ret)
{
    struct plot_range r = {HUGE_VAL, -HUGE_VAL, HUGE_VAL, -HUGE_VAL};
    for (unsigned i = 0; i < p->n_runs; i++)
        for (unsigned k = 0; panel->columns[k]; k++)
            for (size_t row = 0; row < p->runs[i].csv.n_rows; row++) {
                double x, y;
                if (!plot_point(p, &p->runs[i], panel->columns[k], row, &x, &y))
                    continue;
                r.x0 = x < r.x0 ? x : r.x0;
                r.x1 = x > r.x1 ? x : r.x1;
                r.y0 = y < r.y0 ? y : r.y0;
                r.y1 = y > r.y1 ? y : r.y1;
            }
    if (!(r.x0 <= r.x1))
        return false;
    /* A flat or single point needs some room, too. */
    if (!(r.x0 < r.x1)) {
        r.x0 -= 0.5;
        r.x1 += 0.5;
    }
    const double margin = r.y0 < r.y1 ? (r.y1 - r.y0) * 0.04 : fabs(r.y1) * 0.1 + 0.1;
    r.y0 -= margin;
    r.y1 += margin;
    *ret = r;
    return true;
}

double plot_tick(double range, unsigned n)
{
    double step = pow(10, floor(log10(range / n)));
    while (range / step > n)
        for (int i = 0; i < 3 && range / step > n; i++)
            step *= i == 1 ? 2.5 : 2;
    return step;
}

static int open_run(struct plot *p, const char *path, struct error *err)
{
    char file[4096];
    struct stat st;
    if (p->n_runs == PLOT_MAX_RUNS)
        return ERR(err, LIMIT, "more than %u runs", PLOT_MAX_RUNS);
    struct plot_run *run = &p->runs[p->n_runs];
    const bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int n = snprintf(file, sizeof(file), folder ? "%s/metrics.csv" : "%s", path);
    if (n < 0 || (size_t)n >= sizeof(file))
        return ERR(err, LIMIT, "%s: the path is too long", path);
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    size_t from = len;
    while (from && path[from - 1] != '/')
        from--;
    snprintf(run->name, sizeof(run->name), "%.*s", (int)(len - from < 63 ? len - from : 63),
             path + from);
    int r = csv_read(file, &run->csv, err);
    if (r < 0)
        return r;
    p->n_runs++;
    const struct out_use out = {"--svg", p->svg};
    const char *const in = file;
    if ((r = out_files_check(&out, 1, &in, 1, err)) < 0)
        return r;
    if (csv_column(&run->csv, p->x) < 0)
        return ERR(err, FORMAT, "%s: no column \"%s\"", file, p->x);
    return run->csv.n_rows ? 0 : ERR(err, FORMAT, "%s: no rows yet", file);
}

static int run(const struct train_command *c, int argc, char **argv)
{
    struct plot p = {.x = "step", .width = 72, .height = 14};
    struct error err = {0};
    int first, status, r = 0;
    if (train_options(c, argc, argv, &p, &first, &status) < 0)
        return status;
    if (first == argc)
        return train_fail(c, TRAIN_USAGE, "folders of runs, or metrics.csv files, are needed");
    for (int i = first; i < argc && r == 0; i++)
        r = open_run(&p, argv[i], &err);
    if (r == 0 && p.svg)
        r = plot_svg(&p, &err);
    else if (r == 0)
        plot_text(&p, stdout);
    for (unsigned i = 0; i < p.n_runs; i++)
        csv_done(&p.runs[i].csv);
    return r < 0 ? train_error(c, &err) : TRAIN_OK;
}

const struct train_command train_plot = {
    .name = "plot",
    .args = "RUN...",
    .summary = "Draws losses, tokens a round, rates and speed of runs.",
    .groups = groups,
    .set = set,
    .run = run,
};
