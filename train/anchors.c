/* SPDX-License-Identifier: Apache-2.0 */
#include "train/anchors.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels/kernels.h"

uint64_t train_random(uint64_t seed, enum train_stream stream, uint64_t a, uint64_t b)
{
    const uint32_t ctr[4] = {(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b,
                             (uint32_t)(b >> 32) ^ ((uint32_t)stream << 24)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    dk_philox4x32_10(ctr, key, out);
    return (uint64_t)out[1] << 32 | out[0];
}

int train_order_init(struct train_order *o, uint64_t seed, uint64_t n, struct error *err)
{
    *o = (struct train_order){.seed = seed, .n = n};
    if (n == 0 || n > UINT32_MAX)
        return ERR(err, INVALID, "%llu sequences to train on: there must be from 1 to 2^32 - 1",
                   (unsigned long long)n);
    o->order = mem_array(n, sizeof(*o->order));
    return o->order ? 0 : ERR_NOMEM(err);
}

void train_order_done(struct train_order *o)
{
    mem_free(o->order);
    memset(o, 0, sizeof(*o));
}

uint32_t train_order_at(struct train_order *o, uint64_t i)
{
    uint64_t epoch = i / o->n;
    if (!o->known || epoch != o->epoch) {
        for (uint64_t k = 0; k < o->n; k++)
            o->order[k] = (uint32_t)k;
        for (uint64_t k = o->n - 1; k > 0; k--) {
            uint64_t j = train_random(o->seed, STREAM_ORDER, epoch, k) % (k + 1);
            uint32_t t = o->order[k];
            o->order[k] = o->order[j];
            o->order[j] = t;
        }
        o->epoch = epoch;
        o->known = true;
    }
    return o->order[i % o->n];
}

uint32_t train_anchors(const uint8_t *mask, uint32_t n, uint32_t want, uint64_t seed, uint64_t step,
                       uint32_t k, uint32_t *ret)
{
    uint32_t places = 0, left, taken = 0;
    for (uint32_t a = 0; a + 1 < n; a++)
        places += mask[a] && mask[a + 1];
    left = places;
    /* Each place is taken with the chance that leaves all choices alike: Knuth's selection
     * sampling. */
    for (uint32_t a = 0; a + 1 < n && taken < want; a++) {
        if (!mask[a] || !mask[a + 1])
            continue;
        uint64_t u = train_random(seed, STREAM_ANCHORS, step, (uint64_t)k << 32 | a) >> 32;
        if (u * left >> 32 < want - taken)
            ret[taken++] = a;
        left--;
    }
    return taken;
}
