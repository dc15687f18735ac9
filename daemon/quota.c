/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/quota.h"

#include <stddef.h>

#include "base/alloc.h"

const char *quota_kind_name(enum quota_kind k)
{
    static const char *const names[QUOTA_KIND_COUNT] = {
        [QUOTA_CONNECTIONS] = "max_connections_per_uid",
        [QUOTA_REQUESTS] = "max_requests_per_uid",
        [QUOTA_PROMPT_BYTES] = "max_prompt_bytes_per_uid",
        [QUOTA_RING_BYTES] = "max_ring_bytes_per_uid",
        [QUOTA_KV_BLOCKS] = "max_kv_blocks_per_uid",
    };
    return names[k];
}

struct account *quota_account(struct quota *q, uid_t uid)
{
    struct account *a = q->accounts;
    while (a && a->uid != uid)
        a = a->next;
    if (!a) {
        a = mem_zalloc(sizeof *a);
        if (!a)
            return NULL;
        a->uid = uid;
        a->next = q->accounts;
        q->accounts = a;
    }
    a->refs++;
    return a;
}

void quota_unref(struct quota *q, struct account *a)
{
    if (!a || --a->refs > 0)
        return;
    for (struct account **p = &q->accounts; *p; p = &(*p)->next) {
        if (*p == a) {
            *p = a->next;
            break;
        }
    }
    mem_free(a);
}

int quota_charge(struct quota *q, struct account *a, enum quota_kind k, uint64_t n,
                 struct error *err)
{
    uint64_t limit = q->limit[k];
    if (limit && (n > limit || a->used[k] > limit - n)) {
        q->refused++;
        return ERR(err, LIMIT, "%s: user %u holds %llu and asks for %llu more, the limit is %llu",
                   quota_kind_name(k), (unsigned)a->uid, (unsigned long long)a->used[k],
                   (unsigned long long)n, (unsigned long long)limit);
    }
    a->used[k] += n;
    return 0;
}

void quota_release(struct account *a, enum quota_kind k, uint64_t n)
{
    a->used[k] -= n <= a->used[k] ? n : a->used[k];
}
