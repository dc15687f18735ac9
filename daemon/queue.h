/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded queue from one thread to one other, with an eventfd that tells the reader.  The writer's
 * quotas keep it from ever being full; a full queue is an internal error that the caller reports.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct message {
    uint32_t type;
    uint32_t arg;
    void *object; /* ownership as the type says */
};

struct queue;
int queue_new(size_t capacity, struct queue **ret, struct error *err); /* rounded up to 2^n */
struct queue *queue_free(struct queue *q);
int queue_fd(const struct queue *q); /* readable when something may be there */
/* Writer.  False: full. */
bool queue_push(struct queue *q, struct message m);
/* Reader.  False: empty. */
bool queue_pop(struct queue *q, struct message *ret);
/* Reader: before sleeping on the descriptor.  True: sleep; false: something is there. */
bool queue_sleep(struct queue *q);
void queue_awake(struct queue *q); /* after sleeping: drains the descriptor */
