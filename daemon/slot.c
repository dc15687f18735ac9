/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/slot.h"

#include "base/alloc.h"
#include "daemon/peer.h"
#include "daemon/server.h"

/* What a slot costs: the ring, its header and the cursor page. */
static uint64_t slot_bytes(uint32_t capacity)
{
    return (uint64_t)capacity + RING_HEADER_BYTES + RING_CURSOR_BYTES;
}

/* Free for another request: no job, and the client has read what the last one left. */
static bool reusable(struct slot *s, uint32_t bytes)
{
    struct error err = {0};
    bool drained = false;
    if (s->job || s->broken || s->ring.capacity < bytes)
        return false;
    if (s->released)
        return true;
    if (ring_writer_drained(&s->ring, &drained, &err) < 0) {
        s->broken = true;
        return false;
    }
    return drained;
}

int slot_take(struct peer *p, uint32_t bytes, struct slot **ret, bool *ret_new, struct error *err)
{
    struct server *s = p->server;
    uint32_t place = p->n_slots;

    for (uint32_t i = 0; i < p->n_slots; i++) {
        if (!p->slots[i]) {
            place = i < place ? i : place;
            continue;
        }
        /* Its descriptors may still wait in a packet that the peer has not taken. */
        if (p->slots[i]->broken && !p->slots[i]->job && !p->out_first) {
            slot_free(s, p->slots[i], p->account);
            p->slots[i] = NULL;
            place = i < place ? i : place;
            continue;
        }
        if (reusable(p->slots[i], bytes)) {
            *ret = p->slots[i];
            *ret_new = false;
            return 0;
        }
    }
    if (place >= 2 * s->config->max_requests_per_connection)
        return ERR(err, LIMIT, "max_requests_per_connection: %u rings are unread, the limit is %u",
                   place, 2 * s->config->max_requests_per_connection);
    int r = quota_charge(&s->quota, p->account, QUOTA_RING_BYTES, slot_bytes(bytes), err);
    if (r < 0)
        return r;
    struct slot *n = mem_zalloc(sizeof *n);
    if (n && place == p->n_slots) {
        struct slot **grown = mem_realloc_array(p->slots, place + 1, sizeof(struct slot *));
        if (grown) {
            p->slots = grown;
            p->slots[p->n_slots++] = NULL;
        } else {
            mem_free(n);
            n = NULL;
        }
    }
    r = n ? ring_writer_init(&n->ring, bytes, err) : ERR_NOMEM(err);
    if (r < 0) {
        quota_release(p->account, QUOTA_RING_BYTES, slot_bytes(bytes));
        mem_free(n);
        return r;
    }
    n->number = place;
    n->released = true;
    p->slots[place] = n;
    *ret = n;
    *ret_new = true;
    return 0;
}

void slot_free(struct server *s, struct slot *slot, struct account *a)
{
    (void)s;
    quota_release(a, QUOTA_RING_BYTES, slot_bytes(slot->ring.capacity));
    ring_writer_done(&slot->ring);
    mem_free(slot);
}
