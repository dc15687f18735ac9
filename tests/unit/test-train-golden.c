/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of training against an independent program: logits, losses, gates, inputs of the edit
 * pass, rates, gradients of every tensor, parameters after one and five steps of AdamW.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/unit/train-util.h"
#include "tests/unit/util.h"
#include "train/adamw.h"
#include "train/schedule.h"

#define ROWS 84 /* 12 blocks of 7 */

static enum dk_tier tiers[] = {DK_TIER_C, DK_TIER_AVX2, DK_TIER_AVX512};

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    ck_assert_msg(json_is_number(v), "%s", key);
    return json_number_value(v);
}

static void close_to(const char *what, double got, double want, double rel)
{
    ck_assert_msg(fabs(got - want) <= rel * fabs(want), "%s is %.9g, wanted %.9g", what, got, want);
}

static void check_grads(const struct train_oracle *t, const char *prefix, double rel)
{
    for (uint32_t i = 0; i < t->m.layout.n; i++) {
        const struct train_tensor *x = &t->m.layout.t[i];
        const size_t n = (size_t)x->rows * x->cols;
        const float *want = train_oracle_get(t, prefix, x->name, n), *got = t->w.grad + x->at;
        double diff = 0, norm = 0;
        for (size_t k = 0; k < n; k++) {
            diff += ((double)got[k] - (double)want[k]) * ((double)got[k] - (double)want[k]);
            norm += (double)want[k] * (double)want[k];
        }
        ck_assert_msg(sqrt(diff) <= rel * sqrt(norm), "%s%s: off by %.3g of the norm", prefix,
                      x->name, sqrt(diff / norm));
    }
}

static void check_logits(struct train_oracle *t, unsigned pass)
{
    const uint32_t vocab = t->m.shape.vocab;
    float *z = mem_array(ROWS, vocab * sizeof(float));
    train_head(&t->w, pass, 0, 0, z);
    for (uint32_t q = 0; q < 2; q++) {
        char name[8];
        snprintf(name, sizeof(name), "z%u.%u", pass + 1, q);
        const float *want = train_oracle_get(t, "", name, (size_t)6 * 8 * vocab);
        for (uint32_t b = 0; b < 6; b++)
            test_floats_close(name, z + ((size_t)q * 6 + b) * 7 * vocab,
                              want + ((size_t)b * 8 + 1) * vocab, (size_t)7 * vocab, 1e-4, 1e-4);
    }
    mem_free(z);
}

static json_int_t at(const json_t *sequence, const char *key, size_t b, size_t k)
{
    return json_integer_value(json_array_get(json_array_get(json_object_get(sequence, key), b), k));
}

/* NAME.q of row i of all: [6][7] a sequence. */
static double reference(const struct train_oracle *t, const char *name, size_t q, size_t i)
{
    char full[16];
    snprintf(full, sizeof(full), "%s.%zu", name, q);
    return (double)train_oracle_get(t, "", full, 42)[i % 42];
}

static void check_rows(const struct train_oracle *t)
{
    for (size_t i = 0; i < ROWS; i++) {
        const struct train_row *row = &t->w.rows[i];
        size_t q = i / 42, b = i % 42 / 7, k = i % 7;
        const json_t *s = json_array_get(json_object_get(t->json, "sequences"), q);
        ck_assert_int_eq(row->supervised, at(s, "supervised", b, k));
        ck_assert_int_eq(row->v[0], at(s, "p1_argmax", b, k));
        ck_assert_int_eq(row->gate, at(s, "gate", b, k));
        ck_assert_int_eq(row->x, at(s, "p2_input", b, k + 1));
        ck_assert_int_eq(t->w.tokens[i / 7 * 8 + k + 1], at(s, "p2_input", b, k + 1));
        if (!row->supervised)
            continue;
        ck_assert_int_eq(row->label, at(s, "truth", b, k + 1));
        close_to("c", (double)row->confidence, reference(t, "c", q, i), 1e-4);
        close_to("ce1", (double)row->ce[0] + 1, reference(t, "ce1", q, i) + 1, 1e-4);
        close_to("ce2", (double)row->ce[1] + 1, reference(t, "ce2", q, i) + 1, 1e-4);
        close_to("w", (double)row->weight, reference(t, "w", q, i), 1e-6);
    }
}

START_TEST(test_step)
{
    struct train_oracle t;
    struct train_stats s;
    if (!dk_train_ops(tiers[_i]))
        TEST_SKIP_HARDWARE("no %s", dk_tier_name(tiers[_i]));
    train_oracle_open(&t, tiers[_i], 1 + (unsigned)_i % 2, false);
    train_losses(&t.w, &t.o, true, &s);
    ck_assert(!s.bad);
    close_to("L1", s.loss[0], number(t.json, "L1"), 1e-5);
    close_to("L2", s.loss[1], number(t.json, "L2"), 1e-5);
    close_to("denominator", s.denominator, number(t.json, "denominator"), 1e-6);
    const double n = (double)s.n_supervised;
    ck_assert_uint_eq(s.n_supervised, (uint64_t)number(t.json, "n_supervised"));
    close_to("S", (double)s.n_gate / n, number(t.json, "rate_S"), 1e-6);
    close_to("O", (double)s.n_overwrite / n, number(t.json, "rate_O"), 1e-6);
    close_to("A", (double)s.n_right / n, number(t.json, "rate_A"), 1e-6);
    check_rows(&t);
    check_grads(&t, "grad_total.", 1e-4);
    close_to("norm", adamw_grad_norm(&t.par, &t.m.layout, t.w.grad),
             number(t.json, "grad_norm_total"), 1e-5);

    ck_assert_int_eq(train_begin(&t.w, &t.batch, t.o.gamma, NULL), 0);
    t.o.edit = false;
    train_losses(&t.w, &t.o, true, &s);
    check_grads(&t, "grad_P1.", 1e-4);
    close_to("norm", adamw_grad_norm(&t.par, &t.m.layout, t.w.grad), number(t.json, "grad_norm_P1"),
             1e-5);

    ck_assert_int_eq(train_begin(&t.w, &t.batch, t.o.gamma, NULL), 0);
    train_context(&t.w);
    train_mask_blocks(&t.w);
    train_blocks(&t.w, false);
    check_logits(&t, 0);
    train_head(&t.w, 0, 0, 0, NULL);
    train_proposal_mix(&t.w, 0.5f, true);
    train_blocks(&t.w, false);
    check_logits(&t, 1);
    train_oracle_close(&t);
}
END_TEST

/* Products of BF16 factors: the same bits for every number of threads; gradients near the reference's,
 * that is by some rounding errors of 2^-9, far less than one row, block or head too many would change. */
START_TEST(test_bf16)
{
    const enum dk_tier tier = _i ? DK_TIER_AMX : DK_TIER_AVX512;
    const struct dk_train_ops *ops = dk_train_ops(tier);
    struct train_oracle t[2];
    struct train_stats s;
    if (!ops || !ops->bf16)
        TEST_SKIP_HARDWARE("no %s BF16", _i ? "AMX" : "AVX-512");
    for (unsigned i = 0; i < 2; i++) {
        train_oracle_open(&t[i], tier, 1 + 2 * i, true);
        t[i].o.edit = false;
        train_losses(&t[i].w, &t[i].o, true, &s);
        ck_assert(!s.bad);
        close_to("L1", s.loss[0], number(t[i].json, "L1"), 2e-3);
        check_grads(&t[i], "grad_P1.", 0.03);
    }
    test_floats_equal("threads", t[1].w.grad, t[0].w.grad, t[0].m.layout.total);
    train_oracle_close(&t[0]);
    train_oracle_close(&t[1]);
}
END_TEST

static const char *const runs[] = {"A", "B", "P1only"};

static void check_params(const struct train_oracle *t, const char *prefix, float lr,
                         const float *grads)
{
    for (uint32_t i = 0; i < t->m.layout.n; i++) {
        const struct train_tensor *x = &t->m.layout.t[i];
        const size_t n = (size_t)x->rows * x->cols;
        const float *want = train_oracle_get(t, prefix, x->name, n), *got = t->m.p + x->at;
        for (size_t k = 0; k < n; k++) {
            double tol = 0.01 * (double)lr;
            if (fabs((double)grads[x->at + k]) < 1e-7)
                tol = (double)lr;
            ck_assert_msg(fabs((double)got[k] - (double)want[k]) <= tol + 1e-7,
                          "%s%s[%zu]: %.8g, wanted %.8g", prefix, x->name, k, (double)got[k],
                          (double)want[k]);
        }
    }
}

START_TEST(test_adamw)
{
    struct train_oracle t;
    train_oracle_open(&t, dk_tier_best() > DK_TIER_AVX512 ? DK_TIER_AVX512 : dk_tier_best(), 2,
                      false);
    const json_t *run = json_object_get(json_object_get(t.json, "adamw"), runs[_i]);
    const json_t *betas = json_object_get(run, "betas"), *steps = json_object_get(run, "steps");
    const size_t n = t.m.layout.total;
    struct train_adamw o = {.lr = (float)number(run, "lr"),
                            .beta1 = (float)json_number_value(json_array_get(betas, 0)),
                            .beta2 = (float)json_number_value(json_array_get(betas, 1)),
                            .eps = (float)number(run, "eps"),
                            .weight_decay = (float)number(run, "weight_decay"),
                            .clip = (float)number(run, "clip")};
    float *m = mem_calloc(n, sizeof(float)), *v = mem_calloc(n, sizeof(float));
    float *tiny = mem_calloc(n, sizeof(float)); /* smallest gradient that each entry ever had */
    char prefix[32];
    o.norm_lr = o.lr;
    t.o.edit = _i != 2;
    ck_assert_uint_eq(json_array_size(steps), 5);
    for (uint64_t k = 1; k <= 5; k++) {
        const json_t *want = json_array_get(steps, k - 1);
        struct train_stats s;
        ck_assert_int_eq(train_begin(&t.w, &t.batch, t.o.gamma, NULL), 0);
        train_losses(&t.w, &t.o, true, &s);
        close_to("L1", s.loss[0], number(want, "L1"), 2e-5);
        if (t.o.edit) {
            close_to("L2", s.loss[1], number(want, "L2"), 2e-5);
            const json_t *inputs = json_object_get(want, "p2_inputs");
            for (size_t i = 0; i < 96; i++)
                ck_assert_int_eq(
                    t.w.tokens[i],
                    json_integer_value(json_array_get(
                        json_array_get(json_array_get(inputs, i / 48), i % 48 / 8), i % 8)));
        }
        double norm = adamw_grad_norm(&t.par, &t.m.layout, t.w.grad);
        close_to("norm", norm, number(want, "grad_norm_before_clip"), 1e-4);
        for (size_t i = 0; i < n; i++)
            if (k == 1 || fabsf(t.w.grad[i]) < fabsf(tiny[i]))
                tiny[i] = t.w.grad[i];
        adamw_step(&t.par, &t.m.layout, &o, k, norm, t.m.p, m, v, t.w.grad);
        if (k == 1 && _i == 0)
            check_params(&t, "adamw_A.step1.", o.lr, tiny);
    }
    snprintf(prefix, sizeof(prefix), "adamw_%s.step5.", runs[_i]);
    check_params(&t, prefix, o.lr, tiny);
    mem_free(m);
    mem_free(v);
    mem_free(tiny);
    train_oracle_close(&t);
}
END_TEST

START_TEST(test_schedule)
{
    json_error_t je;
    json_t *o = json_load_file(test_path("tests/golden/train/train.json"), 0, &je);
    const json_t *want = json_object_get(o, "lr_schedule_100_steps_warmup_4");
    ck_assert_uint_eq(json_array_size(want), 100);
    for (size_t s = 0; s < 100; s++)
        ck_assert(fabs(6e-4 * schedule_factor(s, 100, 4) -
                       json_number_value(json_array_get(want, s))) < 1e-12);
    ck_assert(fabs(1e-3 * schedule_factor(50, 100, 10) - 5.868e-4) < 1e-7);
    ck_assert(schedule_factor(100, 100, 4) == 0);
    json_decref(o);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-golden");
    TCase *c = test_case(s, "oracle");
    tcase_add_loop_test(c, test_step, 0, ARRAY_LEN(tiers));
    tcase_add_loop_test(c, test_bf16, 0, 2);
    tcase_add_loop_test(c, test_adamw, 0, ARRAY_LEN(runs));
    tcase_add_test(c, test_schedule);
    return test_main(s);
}
