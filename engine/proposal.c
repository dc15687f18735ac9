/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/proposal.h"

int proposal_add(struct proposal *p, uint32_t token, int parent, float confidence)
{
    if (p->n == PROPOSAL_MAX_NODES || parent < -1 || parent >= (int)p->n ||
        (parent >= 0 && proposal_depth(p, (uint32_t)parent) == PROPOSAL_MAX_DEPTH))
        return -1;
    uint32_t i = p->n++;
    p->tokens[i] = token;
    p->parent[i] = (int16_t)parent;
    p->edited[i] = false;
    p->confidence[i] = confidence;
    return (int)i;
}

uint32_t proposal_depth(const struct proposal *p, uint32_t i)
{
    uint32_t depth = 1;
    for (int at = p->parent[i]; at >= 0; at = p->parent[at])
        depth++;
    return depth;
}

bool proposal_is_chain(const struct proposal *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->parent[i] != (int)i - 1)
            return false;
    return true;
}

int proposal_check(const struct proposal *p, uint32_t vocab, struct error *err)
{
    uint8_t depth[PROPOSAL_MAX_NODES];
    if (p->n > PROPOSAL_MAX_NODES)
        return ERR(err, INVALID, "proposal: %u nodes, at most %u", p->n, PROPOSAL_MAX_NODES);
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->tokens[i] >= vocab)
            return ERR(err, INVALID, "proposal: node %u is token %u, the vocabulary has %u", i,
                       p->tokens[i], vocab);
        if (p->parent[i] < -1 || p->parent[i] >= (int)i)
            return ERR(err, INVALID, "proposal: node %u has parent %d, must be -1..%d", i,
                       p->parent[i], (int)i - 1);
        depth[i] = p->parent[i] < 0 ? 1 : (uint8_t)(depth[p->parent[i]] + 1);
        if (depth[i] > PROPOSAL_MAX_DEPTH)
            return ERR(err, INVALID, "proposal: node %u is %u deep, at most %u", i, depth[i],
                       PROPOSAL_MAX_DEPTH);
    }
    return 0;
}

int proposal_child(const struct proposal *p, int at, uint32_t token)
{
    for (uint32_t i = at < 0 ? 0 : (uint32_t)at + 1; i < p->n; i++)
        if (p->parent[i] == at && p->tokens[i] == token)
            return (int)i;
    return -1;
}
