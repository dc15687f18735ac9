/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train plot: diagrams of characters.  Every series has a letter; the last one drawn is seen. */
#include <string.h>

#include "base/alloc.h"
#include "train/plot.h"

static const char marks[] = "12hHabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

static void draw(const struct plot *p, const struct plot_panel *panel, const struct plot_range *r,
                 char *cells)
{
    unsigned mark = 0;
    for (unsigned i = 0; i < p->n_runs; i++)
        for (unsigned k = 0; panel->columns[k]; k++, mark++)
            for (size_t row = 0; row < p->runs[i].csv.n_rows; row++) {
                double x, y;
                if (!plot_point(p, &p->runs[i], panel->columns[k], row, &x, &y))
                    continue;
                uint32_t cx = (uint32_t)((x - r->x0) / (r->x1 - r->x0) * (p->width - 1) + 0.5);
                uint32_t cy = (uint32_t)((y - r->y0) / (r->y1 - r->y0) * (p->height - 1) + 0.5);
                cells[(size_t)(p->height - 1 - cy) * p->width + cx] =
                    marks[mark % (sizeof(marks) - 1)];
            }
}

static void legend(const struct plot *p, const struct plot_panel *panel, FILE *f)
{
    unsigned mark = 0;
    for (unsigned i = 0; i < p->n_runs; i++)
        for (unsigned k = 0; panel->columns[k]; k++, mark++) {
            double x, y = 0;
            bool any = false;
            for (size_t row = 0; row < p->runs[i].csv.n_rows; row++) {
                double v;
                if (plot_point(p, &p->runs[i], panel->columns[k], row, &x, &v)) {
                    any = true;
                    y = v;
                }
            }
            if (!any)
                continue;
            fprintf(f, "  %c %s", marks[mark % (sizeof(marks) - 1)], panel->labels[k]);
            if (p->n_runs > 1)
                fprintf(f, " of %s", p->runs[i].name);
            fprintf(f, " (last %.4g)", y);
        }
    fputc('\n', f);
}

void plot_text(const struct plot *p, FILE *f)
{
    _cleanup_free_ char *cells = mem_alloc((size_t)p->width * p->height);
    for (unsigned n = 0; n < PLOT_PANELS && cells; n++) {
        const struct plot_panel *panel = &plot_panels[n];
        struct plot_range r;
        if (!plot_extent(p, panel, &r))
            continue;
        memset(cells, ' ', (size_t)p->width * p->height);
        draw(p, panel, &r, cells);
        fprintf(f, "%s%s\n", n ? "\n" : "", panel->title);
        for (uint32_t y = 0; y < p->height; y++) {
            const double value = r.y1 - (r.y1 - r.y0) * y / (p->height - 1);
            size_t len = p->width;
            const char *line = cells + (size_t)y * p->width;
            while (len && line[len - 1] == ' ')
                len--;
            if (y % 4 == 0)
                fprintf(f, "%9.4g |%.*s\n", value, (int)len, line);
            else
                fprintf(f, "%9s |%.*s\n", "", (int)len, line);
        }
        fprintf(f, "%9s +", "");
        for (uint32_t x = 0; x < p->width; x++)
            fputc('-', f);
        fprintf(f, "\n%10s %-*.6g%.6g %s\n", "", (int)p->width - 8, r.x0, r.x1, p->x);
        legend(p, panel, f);
    }
}
