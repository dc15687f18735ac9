/* SPDX-License-Identifier: Apache-2.0 */
/* Between the two readers of tokenizer.json: tokenizer_json.c and tokenizer_pipeline.c. */
#pragma once

#include "base/parse.h"
#include "engine/json.h"
#include "engine/tokenizer_internal.h"

/* normalizer, pre_tokenizer, post_processor, decoder; the vocabulary is there already. */
int tokenizer_read_pipeline(struct tokenizer *t, const struct js_obj *root, struct error *err);
