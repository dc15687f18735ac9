/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ngram.h"

#define SHORTEST 2u  /* one equal token says too little */
#define LONGEST  16u /* more says no more */

/* How many tokens before `at` equal the last ones. */
static uint32_t match(const uint32_t *tokens, uint32_t n, uint32_t at)
{
    uint32_t most = at < LONGEST ? at : LONGEST, len = 0;
    while (len < most && tokens[at - 1 - len] == tokens[n - 1 - len])
        len++;
    return len;
}

/* Where the longest match goes on; the latest of several. */
static uint32_t find(const uint32_t *tokens, uint32_t n, uint32_t *ret_len)
{
    uint32_t best = 0, len = 0;
    for (uint32_t at = n - 1; at >= SHORTEST && len < LONGEST; at--) {
        if (tokens[at - 1] != tokens[n - 1])
            continue;
        uint32_t l = match(tokens, n, at);
        if (l > len) {
            len = l;
            best = at;
        }
    }
    *ret_len = len;
    return best;
}

uint32_t ngram_match(const uint32_t *tokens, uint32_t n)
{
    uint32_t len = 0;
    if (n > SHORTEST)
        (void)find(tokens, n, &len);
    return len < SHORTEST ? 0 : len;
}

void ngram_propose(const uint32_t *tokens, uint32_t n, uint32_t most, struct proposal *p)
{
    uint32_t len = 0;
    if (n <= SHORTEST)
        return;
    uint32_t at = find(tokens, n, &len), first = p->n;
    if (len < SHORTEST)
        return;
    /* A short match is a weak hint: do not bet much on it. */
    if (most > 2 * len)
        most = 2 * len;
    for (uint32_t i = 0; i < most; i++) {
        /* Past the end of what there is, it goes on in what is proposed: periods repeat. */
        uint32_t token = at + i < n ? tokens[at + i] : p->tokens[first + at + i - n];
        if (proposal_add(p, token, i == 0 ? -1 : (int)p->n - 1, -1) < 0)
            return;
    }
}
