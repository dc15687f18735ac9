/* SPDX-License-Identifier: Apache-2.0 */
/* What edits gain, by confidence: the bin of a round, and intervals that are as wide as they must be. */
#include <math.h>

#include "tests/unit/util.h"
#include "train/gain.h"

START_TEST(rounds_go_to_the_bin_of_their_mean)
{
    static struct gain_bins g;
    const float sure[4] = {1, 1, 1, 1}, half[2] = {0.25f, 0.75f}, low[3] = {0, 0.1f, 0.1f};
    gain_add(&g, sure, 4, 3);
    gain_add(&g, half, 2, -2);
    gain_add(&g, half, 2, 0);
    gain_add(&g, low, 3, (int)DRAFT_MAX_WINDOW);
    ck_assert_uint_eq(gain_of_bin(&g, 9).rounds, 1);
    ck_assert(gain_of_bin(&g, 9).mean == 3);
    ck_assert_uint_eq(gain_of_bin(&g, 5).rounds, 2);
    ck_assert(gain_of_bin(&g, 5).mean == -1);
    ck_assert(gain_of_bin(&g, 0).mean == DRAFT_MAX_WINDOW);
    ck_assert_uint_eq(gain_of_bin(&g, 4).rounds, 0);
}
END_TEST

START_TEST(intervals_of_a_bootstrap)
{
    static struct gain_bins g;
    const float c[1] = {0.55f};
    for (int i = 0; i < 400; i++)
        gain_add(&g, c, 1, i % 2 ? 1 : -1);
    /* 400 throws of a coin: standard error 1 / 20, so +- 0.098. */
    struct gain_mean m = gain_of_bin(&g, 5);
    ck_assert(m.mean == 0);
    ck_assert(fabs(m.low + 0.098) < 0.02 && fabs(m.high - 0.098) < 0.02);
    struct gain_mean again = gain_of_bin(&g, 5);
    ck_assert(m.low == again.low && m.high == again.high);
    /* Rounds that all gain the same leave no doubt. */
    const float d[1] = {0.15f};
    for (int i = 0; i < 50; i++)
        gain_add(&g, d, 1, 2);
    m = gain_of_bin(&g, 1);
    ck_assert(m.low == 2 && m.mean == 2 && m.high == 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-gain");
    TCase *c = test_case(s, "gain");
    tcase_add_test(c, rounds_go_to_the_bin_of_their_mean);
    tcase_add_test(c, intervals_of_a_bootstrap);
    return test_main(s);
}
