/* SPDX-License-Identifier: Apache-2.0 */
#include "train/adamw.h"

#include <math.h>

#define PIECE 16384u /* parameters; also the unit of the norm's sum, so never change with threads */

struct norm_job {
    struct train_par *p;
    const float *grad;
    double *sums;
    size_t first;
};
#define MAX_SUMS 4096u

static void norm_piece(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct norm_job *j = arg;
    (void)tid;
    j->sums[a / PIECE] = j->p->train->sum_squares(j->grad + j->first + a, (uint32_t)(b - a));
}

double adamw_grad_norm(struct train_par *p, const struct train_layout *l, const float *grad)
{
    double sums[MAX_SUMS], sum = 0;
    const size_t most = (size_t)MAX_SUMS * PIECE;
    for (size_t at = 0; at < l->total; at += most) {
        size_t n = l->total - at < most ? l->total - at : most;
        struct norm_job j = {.p = p, .grad = grad, .sums = sums, .first = at};
        par_rows(p, n, PIECE, norm_piece, &j);
        for (size_t i = 0; i < (n + PIECE - 1) / PIECE; i++)
            sum += sums[i];
    }
    return sqrt(sum);
}

struct step_job {
    struct train_par *p;
    struct dk_adamw o;
    float *param, *m, *v;
    const float *grad;
};

static void step_piece(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct step_job *j = arg;
    (void)tid;
    j->p->train->adamw(j->param + a, j->m + a, j->v + a, j->grad + a, (uint32_t)(b - a), &j->o);
}

void adamw_step(struct train_par *p, const struct train_layout *l, const struct train_adamw *o,
                uint64_t t, double norm, float *param, float *m, float *v, const float *grad)
{
    double clip = o->clip > 0 ? (double)o->clip / (norm + 1e-6) : 1;
    double c1 = 1 - pow((double)o->beta1, (double)t), c2 = 1 - pow((double)o->beta2, (double)t);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct train_tensor *x = &l->t[i];
        const float lr = x->norm ? o->norm_lr : o->lr;
        struct step_job j = {
            .p = p,
            .param = param + x->at,
            .m = m + x->at,
            .v = v + x->at,
            .grad = grad + x->at,
            .o = {.clip = (float)(clip < 1 ? clip : 1),
                  .keep = (float)(1 - (double)lr * (double)o->weight_decay),
                  .beta1 = o->beta1,
                  .beta2 = o->beta2,
                  .step = (float)((double)lr / c1),
                  .inv_sqrt_c2 = (float)(1 / sqrt(c2)),
                  .eps = o->eps},
        };
        par_rows(p, (size_t)x->rows * x->cols, PIECE, step_piece, &j);
    }
}

struct average_job {
    float keep;
    float *average;
    const float *param;
};

static void average_piece(void *arg, size_t a, size_t b, unsigned tid)
{
    const struct average_job *j = arg;
    (void)tid;
    for (size_t i = a; i < b; i++)
        j->average[i] += j->keep * (j->param[i] - j->average[i]);
}

void adamw_average(struct train_par *p, const struct train_layout *l, float decay, float *average,
                   const float *param)
{
    struct average_job j = {.keep = 1 - decay, .average = average, .param = param};
    par_rows(p, l->total, PIECE, average_piece, &j);
}
