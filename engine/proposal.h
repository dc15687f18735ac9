/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A proposal: tokens that may follow the anchor (the last token of a sequence, which has no K/V yet),
 * as a tree.  All drafting methods end in one, and verification knows nothing else.  A chain is the
 * tree whose every node has one child; an empty proposal is plain decoding.
 *
 * Nodes stand in order of worth: when there is room for fewer, they are cut off the end, so a parent
 * always comes before its children.  The node at depth d (1 for children of the anchor) proposes the
 * token at position s + d, s being the anchor's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define PROPOSAL_MAX_NODES 127u
#define PROPOSAL_MAX_DEPTH 63u /* one commit holds at most 64 tokens: these and the bonus */

struct proposal {
    uint32_t n;
    uint32_t tokens[PROPOSAL_MAX_NODES];
    int16_t parent[PROPOSAL_MAX_NODES]; /* below the node's own index; -1: the anchor */
    bool edited[PROPOSAL_MAX_NODES]; /* an edit pass changed what the first pass had drafted here */
    /* The drafter's probability of the node, given its parents; 0..1, or < 0 when it has none. */
    float confidence[PROPOSAL_MAX_NODES];
    /* Rule B (verification = rejection) with drawn drafts: the distribution that node i was drawn
     * from, over target ids, at q + i * vocab; chains only, valid until the round is committed.
     * NULL: the drafts were not drawn but chosen (a distribution with one possible token). */
    const float *q;
};

static inline void proposal_clear(struct proposal *p)
{
    p->n = 0;
    p->q = 0;
}
/* Appends a node and returns its index, or -1 when it has no place (too many, too deep). */
int proposal_add(struct proposal *p, uint32_t token, int parent, float confidence);
/* Depth of node i, 1 for children of the anchor. */
uint32_t proposal_depth(const struct proposal *p, uint32_t i);
bool proposal_is_chain(const struct proposal *p);
/* Parents before children, depths and tokens in range: DEDIT_E_INVALID naming the node. */
int proposal_check(const struct proposal *p, uint32_t vocab, struct error *err);

/*
 * The walk along the target's choices: child of node `at` (-1: the anchor) with this token, the
 * first one; -1 without any.
 */
int proposal_child(const struct proposal *p, int at, uint32_t token);
