/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench eval: speed-ups as bars, in the terminal and as an SVG file. */

#include "bench/eval.h"

#define BAR   18.0 /* width of a bar, pixels */
#define GAP   24.0 /* between groups */
#define PLOT  220.0
#define LEFT  50.0
#define TOP   40.0
#define CHARS 48 /* longest bar in the terminal */

static const char *const colours[] = {"#888888", "#1b6ca8", "#d1495b", "#edae49", "#00798c",
                                      "#7b2d8b", "#66a182", "#c06014", "#2e4057", "#a0a000"};

/* Of setting j: mean over the suites. */
static double mean_speedup(const struct eval *e, unsigned j)
{
    double sum = 0;
    for (unsigned i = 0; i < e->n_suites; i++)
        sum += eval_speedup(&e->suites[i], e, j);
    return e->n_suites ? sum / e->n_suites : 0;
}

static double mean_tau(const struct eval *e, unsigned j)
{
    double sum = 0;
    for (unsigned i = 0; i < e->n_suites; i++)
        sum += eval_mean(e->suites[i].results[j].tau, e->suites[i].results[j].n);
    return e->n_suites ? sum / e->n_suites : 0;
}

void eval_bars(const struct eval *e, FILE *f)
{
    double most = 1;
    for (unsigned j = 0; j < e->n_settings; j++)
        most = mean_speedup(e, j) > most ? mean_speedup(e, j) : most;
    fputs("\nspeed-up, mean of the suites\n", f);
    for (unsigned j = 0; j < e->n_settings; j++) {
        double v = mean_speedup(e, j);
        int n = (int)(v / most * CHARS + 0.5);
        fprintf(f, "%-24.24s %5.2f ", e->settings[j].name, v);
        for (int k = 0; k < n; k++)
            fputc('#', f);
        fputc('\n', f);
    }
}

/* Text of names that come from the command line and from files' names. */
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

static void group(const struct eval *e, unsigned suite, double x, double scale, FILE *f)
{
    const bool mean = suite == e->n_suites;
    for (unsigned j = 0; j < e->n_settings; j++) {
        double v = mean ? mean_speedup(e, j) : eval_speedup(&e->suites[suite], e, j);
        double tau =
            mean ? mean_tau(e, j)
                 : eval_mean(e->suites[suite].results[j].tau, e->suites[suite].results[j].n);
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>",
                x + j * BAR, TOP + PLOT - v * scale, BAR - 2, v * scale,
                colours[j % ARRAY_LEN(colours)]);
        escaped(e->settings[j].name, f);
        fprintf(f, ": %.2f x, tau %.2f</title></rect>\n", v, tau);
    }
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">", x, TOP + PLOT + 16);
    escaped(mean ? "mean" : e->suites[suite].name, f);
    fputs("</text>\n", f);
}

static void legend(const struct eval *e, FILE *f)
{
    for (unsigned j = 0; j < e->n_settings; j++) {
        double y = TOP + PLOT + 40 + 18.0 * j;
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>", LEFT,
                y - 10, colours[j % ARRAY_LEN(colours)]);
        fprintf(f, "<text x=\"%.1f\" y=\"%.1f\">", LEFT + 18, y);
        escaped(e->settings[j].name, f);
        fprintf(f, " (%.2f x, tau %.2f)</text>\n", mean_speedup(e, j), mean_tau(e, j));
    }
}

void eval_svg(const struct eval *e, FILE *f)
{
    const unsigned groups = e->n_suites > 1 ? e->n_suites + 1 : e->n_suites;
    const double pitch = e->n_settings * BAR + GAP, width = LEFT + groups * pitch + 20;
    const double height = TOP + PLOT + 60 + 18.0 * e->n_settings;
    double most = 1;
    for (unsigned i = 0; i < e->n_suites; i++)
        for (unsigned j = 0; j < e->n_settings; j++)
            if (eval_speedup(&e->suites[i], e, j) > most)
                most = eval_speedup(&e->suites[i], e, j);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%.0f\" y=\"20\" font-size=\"14\">Speed-up over plain decoding</text>\n",
            width, height, LEFT);
    const double scale = PLOT / most, step = most > 3 ? 1 : 0.5;
    for (unsigned k = 0; k * step <= most; k++) {
        double v = k * step, y = TOP + PLOT - v * scale;
        fprintf(f,
                "<line x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.1f</text>\n",
                LEFT, y, width - 10, y, LEFT - 6, y + 4, v);
    }
    for (unsigned i = 0; i < groups; i++)
        group(e, i, LEFT + i * pitch + GAP / 2, scale, f);
    legend(e, f);
    fputs("</svg>\n", f);
}
