/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ProposalMix: what an edit pass is trained on.  A supervised row whose proposal P1 was confident
 * of (largest probability >= eta) shows the truth, every other row the proposal.  And the measures
 * of a step: losses, rates, tokens that a round would have committed.
 */
#include "train/loss.h"

void train_proposal_mix(struct train_work *w, float eta, bool mix)
{
    const uint32_t W = w->m->shape.window;
    for (size_t i = 0; i < (size_t)w->n_blocks * (W - 1); i++) {
        struct train_row *row = &w->rows[i];
        row->gate = row->confidence >= eta;
        row->x = mix && row->gate && row->supervised ? row->label : row->v[0];
        w->tokens[i / (W - 1) * W + i % (W - 1) + 1] = row->x;
    }
}

/* Right proposals from the first row on, as far as there are labels. */
static uint32_t leading(const struct train_row *row, uint32_t n, unsigned pass)
{
    uint32_t k = 0;
    while (k < n && row[k].supervised && row[k].v[pass] == row[k].label)
        k++;
    return k;
}

void train_count(const struct train_work *w, unsigned passes, struct train_stats *ret)
{
    const uint32_t n = w->m->shape.window - 1;
    double sum[2] = {0};
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        const struct train_row *row = w->rows + (size_t)b * n;
        for (uint32_t k = 0; k < n; k++) {
            ret->bad |= row[k].bad;
            if (!row[k].supervised)
                continue;
            ret->n_supervised++;
            ret->n_at[k + 1]++;
            ret->n_right += row[k].v[0] == row[k].label;
            if (passes > 1 && row[k].gate) {
                ret->n_gate++;
                ret->n_overwrite += row[k].v[0] != row[k].label;
            }
            for (unsigned p = 0; p < passes; p++) {
                ret->right_at[p][k + 1] += row[k].v[p] == row[k].label;
                sum[p] += (double)row[k].weight * (double)row[k].ce[p];
            }
        }
        if (!row[0].supervised)
            continue;
        ret->n_blocks++;
        for (unsigned p = 0; p < passes; p++)
            ret->committed[p] += leading(row, n, p) + 1;
        if (passes > 1) {
            uint32_t a = leading(row, n, 0), c = leading(row, n, 1);
            ret->helped += c > a;
            ret->harmed += c < a;
        }
    }
    for (unsigned p = 0; p < passes; p++)
        ret->loss[p] = ret->denominator > 0 ? sum[p] / ret->denominator : 0;
}
