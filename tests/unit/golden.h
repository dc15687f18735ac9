/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A safetensors file of reference values, read whole; for tests only (trusted input, but every
 * range is checked so that a wrong file fails the test).
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

struct golden {
    char *data;        /* whole file */
    size_t size, base; /* base: where tensor data starts */
    json_t *header;
};
void golden_open(struct golden *g, const char *path);
void golden_close(struct golden *g);
/* Tensor's bytes; *ret_bytes their number.  Fails the test when it is absent. */
const void *golden_get(const struct golden *g, const char *name, const char *dtype,
                       size_t *ret_bytes);
