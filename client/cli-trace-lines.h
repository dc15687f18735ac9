/* SPDX-License-Identifier: Apache-2.0 */
/* A trace's lines, as --trace-json writes them, for the page that shows them. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "base/strbuf.h"

/* Appends the lines as one array that may stand in a script element: every < is escaped.  FORMAT names file,
 * line and rule. */
int trace_embed(const char *file, const char *s, size_t len, struct strbuf *out, struct error *err);
