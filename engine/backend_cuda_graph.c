/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of a model's steps, one for each shape that comes again.  A shape is run eagerly the first time,
 * captured the second time by the same code, and replayed from then on: what differs between two batches
 * of a shape lies in the device's arrays (struct cuda_batch), which are sent before.  Few are kept; the one
 * that was used longest ago makes room.  Where a graph cannot be had, the step runs eagerly.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/backend_cuda.h"

/* Doubled steps: a graph's attention starts at most twice the blocks that its batch needs, and those
 * behind a row's end exit at once. */
uint32_t cuda_graph_bucket(uint32_t n, uint32_t most)
{
    uint32_t b = CUDA_GRAPH_CONTEXT;
    while (b < n && b < most)
        b = b <= UINT32_MAX / 2 ? b * 2 : UINT32_MAX;
    if (b > most)
        b = most;
    return b > n ? b : n;
}

void cuda_graphs_init(struct cuda_graphs *g)
{
    const char *s = getenv("DEDIT_CUDA_GRAPHS");
    *g = (struct cuda_graphs){.on = !(s && strcmp(s, "off") == 0)};
}

static void drop(const struct dcu_api *a, struct cuda_graph *e)
{
    if (e->graph)
        (void)a->graph_free(e->graph);
    e->graph = NULL;
}

void cuda_graphs_free(struct cuda_model *m)
{
    for (size_t i = 0; i < CUDA_GRAPHS; i++)
        drop(m->api, &m->graphs.e[i]);
}

/* The shape's place; ret_seen: it was here before. */
static struct cuda_graph *find(struct cuda_model *m, const struct cuda_shape *shape, bool *ret_seen)
{
    struct cuda_graphs *g = &m->graphs;
    struct cuda_graph *oldest = &g->e[0];
    g->clock++;
    *ret_seen = true;
    for (size_t i = 0; i < CUDA_GRAPHS; i++) {
        struct cuda_graph *e = &g->e[i];
        if (e->used && memcmp(&e->shape, shape, sizeof(*shape)) == 0) {
            e->used = g->clock;
            return e;
        }
        if (e->used < oldest->used)
            oldest = e;
    }
    drop(m->api, oldest);
    *oldest = (struct cuda_graph){.shape = *shape, .used = g->clock};
    *ret_seen = false;
    return oldest;
}

/* A capture is ended whatever happened in it: an open one would swallow the eager launches. */
static bool capture(struct cuda_model *m, struct cuda_graph *e, cuda_enqueue enqueue, void *arg)
{
    struct error ignored = {0}; /* the eager run tells what is wrong, if it still is */
    dcu_graph graph = NULL;
    if (m->api->capture_begin(m->stream) != 0)
        return false;
    int r = enqueue(arg, &ignored);
    if (m->api->capture_end(m->stream, &graph) != 0)
        return false;
    e->graph = graph;
    if (r < 0)
        drop(m->api, e);
    return r == 0;
}

int cuda_graph_run(struct cuda_model *m, const struct cuda_shape *shape, cuda_enqueue enqueue,
                   void *arg, struct error *err)
{
    struct cuda_graphs *g = &m->graphs;
    bool seen;
    if (!g->on || !shape || shape->rows > CUDA_GRAPH_ROWS)
        return enqueue(arg, err);
    struct cuda_graph *e = find(m, shape, &seen);
    if (!seen || e->failed)
        return enqueue(arg, err);
    if ((e->graph || capture(m, e, enqueue, arg)) && m->api->graph_launch(e->graph, m->stream) == 0)
        return 0;
    drop(m->api, e);
    e->failed = true;
    if (++g->failures == CUDA_GRAPH_FAILURES)
        g->on = false;
    return enqueue(arg, err);
}
