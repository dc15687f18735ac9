/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proposals from any bytes.  As a script: what is read holds to the rules.  As instructions: trees, whose
 * rows see the sequence and their own ancestors, at the right positions, and whose walk ends.  As
 * tokens: what n-gram look-up proposes stood there before.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/method.h"
#include "engine/ngram.h"
#include "engine/seq.h"
#include "tests/fuzz/file.h"

static void script(const uint8_t *data, size_t size)
{
    char path[64];
    struct draft_script s = {0};
    struct error err = {0};
    int fd = fuzz_file(data, size, path);
    if (fd < 0)
        return;
    if (draft_script_read(path, &s, &err) == 0) {
        for (size_t i = 0; i < s.n; i++) {
            FUZZ_CHECK(proposal_check(&s.rounds[i].proposal, UINT32_MAX, &err) == 0 ||
                       err.msg[0] != '\0');
            FUZZ_CHECK(i == 0 || s.rounds[i].at > s.rounds[i - 1].at);
            FUZZ_CHECK(s.rounds[i].passes <= DRAFT_MAX_PASSES);
            for (uint32_t k = 0; k < s.rounds[i].proposal.n; k++)
                FUZZ_CHECK(proposal_depth(&s.rounds[i].proposal, k) <= PROPOSAL_MAX_DEPTH);
        }
        draft_script_done(&s);
    } else {
        FUZZ_CHECK(err.msg[0] != '\0');
    }
    (void)fd_close(fd);
}

static uint32_t slot_at(const struct dk_attn_row *r, uint32_t p)
{
    return p < r->tail_start ? r->blocks[p / 16] * 16 + p % 16 : r->tail[p - r->tail_start];
}

/* Rows of the tree behind n_kv positions. */
static void check_rows(const struct proposal *p, uint32_t n_kv)
{
    uint32_t blocks[32], tokens[PROPOSAL_MAX_NODES + 1];
    int32_t parent[PROPOSAL_MAX_NODES + 1];
    struct fwd_row rows[PROPOSAL_MAX_NODES + 1];
    struct seq s = {.n_kv = n_kv, .blocks = blocks, .n_blocks = 32};
    for (uint32_t i = 0; i < 32; i++)
        blocks[i] = i * 7 % 32;
    tokens[0] = 1;
    parent[0] = -1;
    for (uint32_t i = 0; i < p->n; i++) {
        tokens[i + 1] = p->tokens[i];
        parent[i + 1] = p->parent[i] + 1;
    }
    uint32_t n = p->n + 1;
    uint32_t *tails = mem_array(seq_tree_tails(&s, parent, n) + 1, sizeof(*tails));
    if (!tails)
        return;
    seq_tree_rows(&s, tokens, parent, n, tails, rows);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = rows[i].pos;
        FUZZ_CHECK(pos == n_kv + (i ? proposal_depth(p, i - 1) : 0));
        FUZZ_CHECK(rows[i].path.n_vis == pos + 1 && rows[i].slot == seq_slot(&s, n_kv + i));
        for (int at = (int)i; at >= 0; at = parent[at])
            FUZZ_CHECK(slot_at(&rows[i].path, pos--) == seq_slot(&s, n_kv + (uint32_t)at));
        for (uint32_t k = 0; k < n_kv; k++)
            FUZZ_CHECK(slot_at(&rows[i].path, k) == seq_slot(&s, k));
    }
    mem_free(tails);
}

static void tree(const uint8_t *data, size_t size)
{
    struct proposal p;
    struct error err = {0};
    proposal_clear(&p);
    for (size_t i = 2; i + 1 < size; i += 2)
        (void)proposal_add(&p, data[i], (int)data[i + 1] - 1, 0.5f);
    FUZZ_CHECK(proposal_check(&p, 256, &err) == 0);
    check_rows(&p, data[0]);
    uint32_t steps = 0;
    for (int at = -1; (at = proposal_child(&p, at, data[steps % size])) >= 0; steps++) {
        FUZZ_CHECK(p.tokens[at] == data[steps % size]);
        FUZZ_CHECK(proposal_depth(&p, (uint32_t)at) == steps + 1);
    }
    FUZZ_CHECK(steps <= PROPOSAL_MAX_DEPTH);
}

static void ngram(const uint8_t *data, size_t size)
{
    struct proposal p;
    uint32_t tokens[512], n = 0, most = data[0] % 64u, seen = 0;
    for (; n < size && n < 512; n++)
        tokens[n] = data[n] % 8u;
    proposal_clear(&p);
    ngram_propose(tokens, n, most, &p);
    uint32_t match = ngram_match(tokens, n);
    FUZZ_CHECK(p.n <= most && p.n <= 2 * match && proposal_is_chain(&p));
    FUZZ_CHECK(match == 0 || match >= 2);
    for (uint32_t i = 0; i + 2 < n && match; i++)
        seen |= tokens[i] == tokens[n - 2] && tokens[i + 1] == tokens[n - 1] &&
                (p.n == 0 || tokens[i + 2] == p.tokens[0]);
    FUZZ_CHECK(seen || !match);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    tree(data, size);
    ngram(data, size);
    if (data[0] == '{' || fuzz_wants_file(size))
        script(data, size);
    return 0;
}
