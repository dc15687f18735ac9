/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each user makes the daemon hold.  Every charge is released by the destructor of the thing
 * that was charged.  Loop thread.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

enum quota_kind {
    QUOTA_CONNECTIONS,
    QUOTA_REQUESTS,
    QUOTA_PROMPT_BYTES,
    QUOTA_RING_BYTES,
    QUOTA_KV_BLOCKS,
    QUOTA_KIND_COUNT
};
const char *quota_kind_name(enum quota_kind k); /* the limit's key in dedit.conf */

struct account {
    uid_t uid;
    uint64_t used[QUOTA_KIND_COUNT];
    uint64_t served;       /* fair queueing: virtual time, in tokens */
    uint32_t refs;
    struct account *next;
};
struct quota {
    uint64_t limit[QUOTA_KIND_COUNT]; /* per uid; 0: none */
    struct account *accounts;
    uint64_t refused; /* charges that were refused so far */
};

/* The account of a uid, made when new; counted reference. NULL when out of memory. */
struct account *quota_account(struct quota *q, uid_t uid);
void quota_unref(struct quota *q, struct account *a);
/* Over the limit: DEDIT_E_LIMIT naming the limit, its value, what is held and what was asked. */
int quota_charge(struct quota *q, struct account *a, enum quota_kind k, uint64_t n,
                 struct error *err);
void quota_release(struct account *a, enum quota_kind k, uint64_t n);
