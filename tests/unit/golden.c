/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/golden.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

void golden_open(struct golden *g, const char *path)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s: cannot open", path);
    ck_assert(fseek(f, 0, SEEK_END) == 0);
    long size = ftell(f);
    ck_assert_msg(size > 8, "%s: too short", path);
    rewind(f);
    g->size = (size_t)size;
    g->data = mem_alloc(g->size);
    ck_assert(g->data != NULL);
    ck_assert(fread(g->data, 1, g->size, f) == g->size);
    fclose(f);
    uint64_t n;
    memcpy(&n, g->data, 8);
    ck_assert_msg(n < g->size - 8, "%s: header too long", path);
    g->base = 8 + (size_t)n;
    json_error_t e;
    g->header = json_loadb(g->data + 8, (size_t)n, 0, &e);
    ck_assert_msg(g->header != NULL, "%s: %s", path, e.text);
}

void golden_close(struct golden *g)
{
    json_decref(g->header);
    mem_free(g->data);
    memset(g, 0, sizeof *g);
}

const void *golden_get(const struct golden *g, const char *name, const char *dtype,
                       size_t *ret_bytes)
{
    json_t *t = json_object_get(g->header, name);
    ck_assert_msg(t != NULL, "%s: no such tensor", name);
    ck_assert_str_eq(json_string_value(json_object_get(t, "dtype")), dtype);
    json_t *o = json_object_get(t, "data_offsets");
    size_t a = (size_t)json_integer_value(json_array_get(o, 0));
    size_t b = (size_t)json_integer_value(json_array_get(o, 1));
    ck_assert_msg(a <= b && b <= g->size - g->base, "%s: outside of the file", name);
    *ret_bytes = b - a;
    return g->data + g->base + a;
}
