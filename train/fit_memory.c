/* SPDX-License-Identifier: Apache-2.0 */
/* What a run takes beside its state: whether it fits into the memory that it may use, the buffers of a
 * step, the target's side. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "train/fit_internal.h"

#define MEASURED 16u /* sequences whose features give the taps' sizes */

static uint64_t own_bytes(const struct fit *f)
{
    const struct train_shape *s = &f->state.shape;
    const struct fit_options *o = &f->o;
    struct data_set_info info;
    const uint32_t blocks = o->batch * o->anchors, ctx = o->batch * o->max_len;
    uint64_t tap = o->batch * (uint64_t)fit_feature_bytes(f);
    uint64_t soft =
        o->distill > 0 ? (uint64_t)o->max_len * (8ull * o->batch * o->distill_top + 4ull * s->vocab)
                       : 0;
    data_set_get_info(f->data, &info);
    return train_work_bytes(s, o->batch, ctx, blocks, o->max_len, o->threads) +
           (f->state.average ? 4 : 3) * (uint64_t)f->state.layout.total * sizeof(float) +
           (uint64_t)s->draft_vocab * s->hidden * sizeof(float) +
           train_frozen_bytes(&f->par, s->draft_vocab, s->hidden) +
           (f->par.packed ? TRAIN_PACKED_BYTES : 0) +
           2 * (uint64_t)s->max_position * s->head_dim * sizeof(float) + tap + soft + info.bytes;
}

size_t fit_feature_bytes(const struct fit *f)
{
    return (size_t)f->o.max_len * train_tap_width(&f->state.shape) * sizeof(float);
}

int fit_buffers(struct fit *f, struct error *err)
{
    const struct fit_options *o = &f->o;
    f->want = mem_calloc(o->batch, sizeof(*f->want));
    f->items = mem_calloc(o->batch, sizeof(*f->items));
    f->masks = mem_calloc(o->batch, sizeof(*f->masks));
    f->anchors = mem_calloc(o->batch, sizeof(*f->anchors));
    f->features = mem_calloc(o->batch, sizeof(*f->features));
    f->soft = mem_calloc(o->batch, sizeof(*f->soft));
    f->soft_ids = mem_calloc(o->batch, sizeof(*f->soft_ids));
    if (!f->want || !f->items || !f->masks || !f->anchors || !f->features || !f->soft ||
        !f->soft_ids)
        return ERR_NOMEM(err);
    for (uint32_t i = 0; i < o->batch; i++) {
        f->masks[i] = mem_alloc(o->max_len);
        f->anchors[i] = mem_array(o->anchors, sizeof(uint32_t));
        f->features[i] = mem_map_pages(fit_feature_bytes(f));
        if (!f->masks[i] || !f->anchors[i] || !f->features[i])
            return ERR_NOMEM(err);
        if (!(o->distill > 0))
            continue;
        f->soft[i] = mem_array(o->max_len, o->distill_top * sizeof(float));
        f->soft_ids[i] = mem_array(o->max_len, o->distill_top * sizeof(int32_t));
        if (!f->soft[i] || !f->soft_ids[i])
            return ERR_NOMEM(err);
    }
    return 0;
}

static uint64_t cache_key(const struct fit *f)
{
    const struct fit_options *o = &f->o;
    const struct train_shape *s = &f->state.shape;
    const uint64_t numbers[] = {model_file_weight_bytes(f->target), s->n_taps, o->dtype,
                                o->distill > 0 ? o->distill_top : 0};
    uint64_t h = hash_bytes(f->state.target, strlen(f->state.target), 1);
    h = hash_bytes(s->tap_layers, s->n_taps * sizeof(*s->tap_layers), h);
    if (o->distill > 0)
        h = hash_bytes(f->state.target_ids, s->draft_vocab * sizeof(uint32_t), h);
    return hash_bytes(numbers, sizeof(numbers), h);
}

int fit_taps(struct fit *f, struct error *err)
{
    const struct fit_options *o = &f->o;
    const struct train_shape *s = &f->state.shape;
    const uint64_t own = own_bytes(f);
    if (o->memory_limit && own >= o->memory_limit)
        return ERR(err, LIMIT,
                   "training this takes %" PRIu64 " MiB beside the target, --memory-limit is %.4g "
                   "MiB: fewer --anchors, a smaller --batch or --max-len need less",
                   own >> 20, (double)o->memory_limit / (1 << 20));
    fit_say(f, "memory: %" PRIu64 " MiB beside the target", own >> 20);
    const struct taps_options t = {.target = o->target,
                                   .threads = o->threads,
                                   .tier = o->tier,
                                   .dtype = o->dtype,
                                   .n_taps = s->n_taps,
                                   .tap_layers = s->tap_layers,
                                   .max_len = o->max_len,
                                   .max_seqs = o->batch,
                                   .soft_top = o->distill > 0 ? o->distill_top : 0,
                                   .draft_ids = f->m.draft_ids,
                                   .memory_limit = o->memory_limit ? o->memory_limit - own : 0,
                                   .cache = o->cache,
                                   .cache_bytes = o->cache_bytes,
                                   .key = cache_key(f)};
    return taps_new(&t, &f->taps, err);
}

int fit_measure(struct fit *f, struct error *err)
{
    struct data_sample s[MEASURED];
    uint32_t n = f->n_train < MEASURED ? f->n_train : MEASURED;
    for (uint32_t i = 0; i < n; i++)
        data_set_sample(f->data, f->train[(uint64_t)i * f->n_train / n], &s[i]);
    return taps_measure(f->taps, s, n, f->state.tap_scale, err);
}
