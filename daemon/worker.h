/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that does one kind of slow work for the loop: objects go in, are worked on in order, and
 * come back.  Model loading and prompt preparation are two of them. */
#pragma once

#include "daemon/queue.h"

struct worker;
/* fn runs on the worker's thread and owns the object meanwhile. capacity: objects under way. */
int worker_new(const char *name, size_t capacity, void (*fn)(void *object), struct worker **ret,
               struct error *err);
struct worker *worker_free(struct worker *w); /* finishes what is under way, then joins */
/* Lets it finish everything it was given and stops it; the results can then be read without waiting.
 * worker_free must follow. */
struct queue *worker_drain(struct worker *w);
bool worker_give(struct worker *w, void *object); /* false: more than capacity */
int worker_fd(const struct worker *w);            /* of the queue of finished objects */
struct queue *worker_results(struct worker *w);
