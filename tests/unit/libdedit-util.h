/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of libdedit share. */
#pragma once

#include <string.h>

#include "client/dedit.h"
#include "tests/unit/fake-daemon.h"
#include "tests/unit/util.h"

/* Fails unless r is the code; the message holds the words. */
static inline void fails_with(int r, int code, const struct dedit_error *e, const char *words)
{
    ck_assert_msg(r == code, "%s (%s), wanted %s", dedit_error_name(r), r < 0 ? e->msg : "",
                  dedit_error_name(code));
    ck_assert_int_eq(e->code, code);
    ck_assert_msg(strstr(e->msg, words) != NULL, "\"%s\" does not say \"%s\"", e->msg, words);
}
#define ck_dedit(r, e) ck_assert_msg((r) >= 0, "%s: %s", dedit_error_name((e)->code), (e)->msg)

static inline struct dedit_client *connected(const struct fake *f)
{
    struct dedit_error e;
    struct dedit_client *c = NULL;
    ck_dedit(dedit_client_connect(f->path, &c, &e), &e);
    return c;
}

static inline int submit(struct dedit_client *c, struct dedit_request **ret, struct dedit_error *e)
{
    struct dedit_options o;
    dedit_options_init(&o, sizeof o);
    o.text = "hello";
    return dedit_client_submit(c, &o, ret, e);
}
