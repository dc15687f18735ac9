/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training state from any bytes.  The checksum is put right first, where there is one, so that what
 * stands behind it is reached; as found it is tried too.  What is accepted is whole.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "train/checkpoint.h"
#include "train/tensor_file.h"

static void check(const uint8_t *data, size_t size)
{
    struct error err = {0};
    struct train_state s = {0};
    int r = checkpoint_parse(data, size, "fuzz", &s, &err);
    FUZZ_CHECK(r == 0 || (r == err.code && err.msg[0]));
    if (r < 0) {
        FUZZ_CHECK(!s.param && !s.recipe);
        return;
    }
    FUZZ_CHECK(train_shape_check(&s.shape, NULL) == 0);
    FUZZ_CHECK(s.layout.total >= s.layout.values && s.layout.values > 0 && s.recipe);
    FUZZ_CHECK(s.updates <= s.step);
    for (size_t i = 0; i < s.layout.total; i++) {
        FUZZ_CHECK(__builtin_isfinite(s.param[i]) && __builtin_isfinite(s.m[i]));
        FUZZ_CHECK(__builtin_isfinite(s.v[i]) && (!s.average || __builtin_isfinite(s.average[i])));
    }
    for (uint32_t i = 0; i < s.shape.draft_vocab; i++)
        FUZZ_CHECK(s.target_ids[i] < s.shape.vocab);
    train_state_done(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors *s = NULL;
    uint64_t have, want;
    check(data, size);
    if (safetensors_parse(data, size, "fuzz", &s, NULL) < 0)
        return 0;
    const struct st_tensor *sum = safetensors_find(s, TENSOR_CHECKSUM);
    if (tensor_file_sum(s, &have, &want, NULL) == 0) {
        size_t at = (size_t)((const uint8_t *)sum->data - data);
        uint8_t *copy = mem_alloc(size);
        if (copy) {
            memcpy(copy, data, size);
            memcpy(copy + at, &have, sizeof(have));
            check(copy, size);
        }
        mem_free(copy);
    }
    safetensors_free(s);
    return 0;
}
