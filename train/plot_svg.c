/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train plot: diagrams as an SVG file, one below the other. */
#include <math.h>

#include "base/out_file.h"
#include "train/plot.h"

#define WIDTH  640.0
#define HEIGHT 220.0
#define LEFT   64.0
#define RIGHT  200.0 /* for the legend */
#define GAP    64.0

static const char *const colours[] = {"#1b6ca8", "#d1495b", "#00798c", "#edae49",
                                      "#7b2d8b", "#66a182", "#c06014", "#2e4057"};
static const char *const dashes[] = {"", "6,3", "2,2", "8,3,2,3"};

static void escaped(const char *s, FILE *f)
{
    for (; *s; s++)
        if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '>')
            fputs("&gt;", f);
        else if (*s == '&')
            fputs("&amp;", f);
        else if ((unsigned char)*s >= ' ' && *s != 0x7f)
            fputc(*s, f);
}

static double at_x(const struct plot_range *r, double x)
{
    return LEFT + (x - r->x0) / (r->x1 - r->x0) * WIDTH;
}

static double at_y(const struct plot_range *r, double top, double y)
{
    return top + HEIGHT - (y - r->y0) / (r->y1 - r->y0) * HEIGHT;
}

static void axes(const struct plot *p, const struct plot_panel *panel, const struct plot_range *r,
                 double top, FILE *f)
{
    const double dy = plot_tick(r->y1 - r->y0, 6), dx = plot_tick(r->x1 - r->x0, 8);
    fprintf(f, "<text x=\"%.0f\" y=\"%.1f\" font-size=\"14\">%s</text>\n", LEFT, top - 8,
            panel->title);
    for (double y = ceil(r->y0 / dy) * dy; y <= r->y1; y += dy)
        fprintf(f,
                "<line x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n",
                LEFT, at_y(r, top, y), LEFT + WIDTH, at_y(r, top, y), LEFT - 6, at_y(r, top, y) + 4,
                fabs(y) < dy / 1e6 ? 0 : y);
    for (double x = ceil(r->x0 / dx) * dx; x <= r->x1; x += dx)
        fprintf(f,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.6g</text>\n",
                at_x(r, x), top, at_x(r, x), top + HEIGHT, at_x(r, x), top + HEIGHT + 16, x);
    fprintf(f, "<text x=\"%.0f\" y=\"%.1f\">%s</text>\n", LEFT + WIDTH + 8, top + HEIGHT + 16,
            p->x);
}

/* Returns whether there was a point. */
static bool series(const struct plot *p, unsigned run, const char *column, unsigned k,
                   const struct plot_range *r, double top, FILE *f)
{
    bool any = false;
    for (size_t row = 0; row < p->runs[run].csv.n_rows; row++) {
        double x, y;
        if (!plot_point(p, &p->runs[run], column, row, &x, &y))
            continue;
        if (!any)
            fprintf(f,
                    "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"%s\" "
                    "stroke-dasharray=\"%s\" points=\"",
                    colours[(p->n_runs > 1 ? run : k) % ARRAY_LEN(colours)],
                    p->n_runs > 1 ? dashes[k % ARRAY_LEN(dashes)] : "");
        fprintf(f, "%s%.1f,%.1f", any ? " " : "", at_x(r, x), at_y(r, top, y));
        any = true;
    }
    if (any)
        fputs("\"/>\n", f);
    return any;
}

static void panel(const struct plot *p, const struct plot_panel *d, const struct plot_range *r,
                  double top, FILE *f)
{
    double at = top + 12;
    axes(p, d, r, top, f);
    for (unsigned i = 0; i < p->n_runs; i++)
        for (unsigned k = 0; d->columns[k]; k++) {
            if (!series(p, i, d->columns[k], k, r, top, f))
                continue;
            fprintf(f,
                    "<line x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\" stroke=\"%s\" "
                    "stroke-width=\"2\" stroke-dasharray=\"%s\"/><text x=\"%.0f\" y=\"%.1f\">",
                    LEFT + WIDTH + 8, at - 4, LEFT + WIDTH + 30, at - 4,
                    colours[(p->n_runs > 1 ? i : k) % ARRAY_LEN(colours)],
                    p->n_runs > 1 ? dashes[k % ARRAY_LEN(dashes)] : "", LEFT + WIDTH + 36, at);
            escaped(d->labels[k], f);
            if (p->n_runs > 1) {
                fputs(" of ", f);
                escaped(p->runs[i].name, f);
            }
            fputs("</text>\n", f);
            at += 18;
        }
}

int plot_svg(const struct plot *p, struct error *err)
{
    struct plot_range r[PLOT_PANELS];
    bool there[PLOT_PANELS];
    unsigned n = 0;
    for (unsigned i = 0; i < PLOT_PANELS; i++)
        n += there[i] = plot_extent(p, &plot_panels[i], &r[i]);
    struct out_file o;
    int opened = out_file_open(&o, p->svg, err);
    if (opened < 0)
        return opened;
    FILE *f = o.f;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            LEFT + WIDTH + RIGHT, 32 + n * (HEIGHT + GAP));
    double top = 32;
    for (unsigned i = 0; i < PLOT_PANELS; i++)
        if (there[i]) {
            panel(p, &plot_panels[i], &r[i], top, f);
            top += HEIGHT + GAP;
        }
    fputs("</svg>\n", f);
    return out_file_close(&o, err);
}
