/* SPDX-License-Identifier: Apache-2.0 */
#include "train/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

struct entry {
    uint64_t count;
    uint32_t id;
};

static int more_often(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

int vocabulary_choose(const struct data_set *d, uint32_t vocab, uint32_t want, uint32_t **ret_ids,
                      uint32_t *ret_n, double *ret_coverage, struct error *err)
{
    if (want == 0 || want >= vocab) {
        *ret_ids = NULL;
        *ret_n = vocab;
        *ret_coverage = 1;
        return 0;
    }
    _cleanup_free_ uint64_t *counts = mem_calloc(vocab, sizeof(*counts));
    _cleanup_free_ struct entry *e = mem_array(vocab, sizeof(*e));
    _cleanup_free_ uint32_t *ids = mem_array(want, sizeof(*ids));
    uint64_t all = 0, covered = 0;
    if (!counts || !e || !ids)
        return ERR_NOMEM(err);
    data_set_count(d, counts, vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        e[i] = (struct entry){counts[i], i};
        all += counts[i];
    }
    qsort(e, vocab, sizeof(*e), more_often);
    for (uint32_t i = 0; i < want; i++) {
        ids[i] = e[i].id;
        covered += e[i].count;
    }
    qsort(ids, want, sizeof(*ids), by_id);
    *ret_ids = TAKE_PTR(ids);
    *ret_n = want;
    *ret_coverage = all ? (double)covered / (double)all : 0;
    return 0;
}

int vocabulary_mask(const struct data_set *d, const struct model_config *c, uint32_t *ret,
                    struct error *err)
{
    _cleanup_free_ uint8_t *seen = mem_zalloc(c->vocab_size);
    if (!seen)
        return ERR_NOMEM(err);
    for (uint64_t i = 0; i < data_set_size(d); i++) {
        struct data_sample s;
        data_set_sample(d, i, &s);
        for (uint32_t k = 0; k < s.n; k++)
            seen[s.ids[k]] = 1;
    }
    for (uint32_t i = 0; i < c->n_eos_ids; i++)
        seen[c->eos_ids[i]] = 1;
    if (c->has_bos)
        seen[c->bos_id] = 1;
    for (uint32_t i = 3; i < c->vocab_size; i++)
        if (!seen[i]) {
            *ret = i;
            return 0;
        }
    return ERR(err, NOT_FOUND, "the data has every token: a mask token must be given");
}
