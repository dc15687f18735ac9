/* SPDX-License-Identifier: Apache-2.0 */
/* Options as descriptors, and the text form of their values. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "base/strbuf.h"

enum value_type { VALUE_STRING, VALUE_MODE, VALUE_TIME, VALUE_LOOP, VALUE_U32, VALUE_SIZE,
                  VALUE_BOOL, VALUE_LEVEL, VALUE_U32SIZE, VALUE_UIDS, VALUE_GIDS, VALUE_I32,
                  VALUE_KVTYPE, VALUE_DTYPE, VALUE_EXACTNESS };

struct option_desc {
    const char *section; /* NULL: of a [model NAME] section */
    const char *key;
    enum value_type type;
    size_t offset;       /* in struct config or struct model_config_entry */
    const char *standard, *unit, *help;
};
extern const struct option_desc daemon_options[];
extern const size_t n_daemon_options;
extern const struct option_desc model_options[];
extern const size_t n_model_options;

/* Parses text into the member of the object that base points to.  The error is "key: value: rule"
 * without a place; what is replaced is freed. */
int value_set(const struct option_desc *o, void *base, const char *text, struct error *err);
int value_print(const struct option_desc *o, const void *base, struct strbuf *out);
void value_free(const struct option_desc *o, void *base); /* strings and lists */
