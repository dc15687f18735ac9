/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-train inspect: checkpoints and drafters. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/drafter_file.h"
#include "train/checkpoint.h"
#include "train/inspect.h"

static double rms(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return n ? sqrt(sum / (double)n) : 0;
}

static void show_taps(const uint32_t *layers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        printf(i ? ", %u" : "%u", layers[i]);
}

int inspect_checkpoint(const char *path, struct error *err)
{
    _cleanup_state_ struct train_state s = {0};
    int r = checkpoint_open(path, &s, err);
    if (r < 0)
        return r;
    const struct train_shape *h = &s.shape;
    printf("  checkpoint at step %" PRIu64 " (%" PRIu64 " updates), for %s%s\n", s.step, s.updates,
           s.target, s.average ? ", with averaged weights" : "");
    printf("  %u layers, hidden %u, ffn %u, heads %u / %u of %u, block of %u rows, mask token %u\n",
           h->layers, h->hidden, h->ffn, h->heads, h->kv_heads, h->head_dim, h->window,
           h->mask_token);
    fputs("  taps after layers ", stdout);
    show_taps(h->tap_layers, h->n_taps);
    printf("; drafts from %u of %u tokens\n  %zu parameters\n", h->draft_vocab, h->vocab,
           s.layout.values);
    _cleanup_free_ char *recipe = json_dumps(s.recipe, JSON_COMPACT);
    printf("  recipe %s\n", recipe ? recipe : "?");
    printf("  %-44s %12s %10s %10s\n", "tensor", "shape", "rms", "averaged");
    for (uint32_t i = 0; i < s.layout.n; i++) {
        const struct train_tensor *t = &s.layout.t[i];
        const size_t n = (size_t)t->rows * t->cols;
        char shape[32];
        if (t->norm)
            snprintf(shape, sizeof(shape), "%u", t->cols);
        else
            snprintf(shape, sizeof(shape), "%ux%u", t->rows, t->cols);
        printf("  %-44s %12s %10.5f", t->name, shape, rms(s.param + t->at, n));
        if (s.average)
            printf(" %10.5f", rms(s.average + t->at, n));
        putchar('\n');
    }
    return 0;
}

int inspect_drafter(const struct inspect *s, const char *path, struct error *err)
{
    char model[4096];
    _cleanup_(model_file_freep) struct model_file *target = NULL;
    _cleanup_(model_file_freep) struct model_file *f = NULL;
    int r = train_model_path(&s->engine, model, sizeof(model), err);
    if (r == 0)
        r = model_file_open(model, &target, err);
    if (r == 0)
        r = drafter_file_open(path, model_file_config(target), &f, err);
    if (r < 0)
        return r;
    const struct model_config *c = model_file_config(f);
    const struct drafter_config *d = c->drafter;
    const struct model_tensor *q = model_file_tensor(f, MT_Q, 0);
    printf("  drafter for %s\n", model_file_name(target));
    printf("  %u layers, hidden %u, ffn %u, heads %u / %u of %u, block of %u rows, mask token %u\n",
           c->n_layers, c->hidden, c->ffn, c->n_heads, c->n_kv_heads, c->head_dim, d->block_size,
           d->mask_token);
    fputs("  taps after layers ", stdout);
    show_taps(d->tap_layers, d->n_taps);
    printf("; drafts from %u of %u tokens\n", d->draft_vocab,
           model_file_config(target)->vocab_size);
    printf("  weights %s, %.2f MB in the file\n", q ? dk_type_info(q->type)->name : "?",
           (double)model_file_weight_bytes(f) * 1e-6);
    return 0;
}
