/* SPDX-License-Identifier: Apache-2.0 */
/* fit --from a drafter: its weights become a state, and the state exported is that drafter again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/unit/util.h"
#include "train/export.h"
#include "train/fit.h"
#include "train/from_drafter.h"

static char target_path[512], drafter_path[512];

static void paths(void)
{
    const char *top = getenv("top_srcdir");
    snprintf(target_path, sizeof target_path, "%s/tests/golden/drafter/target", top ? top : ".");
    snprintf(drafter_path, sizeof drafter_path, "%s/tests/golden/drafter/fitted", top ? top : ".");
}

static const enum model_tensor_role of_layer[] = {MT_ATTN_NORM, MT_Q,      MT_K,      MT_V,
                                                  MT_O,         MT_Q_NORM, MT_K_NORM, MT_FFN_NORM,
                                                  MT_GATE,      MT_UP,     MT_DOWN};

static void same_tensor(const struct model_file *a, const struct model_file *b,
                        enum model_tensor_role role, uint32_t layer)
{
    const struct model_tensor *x = model_file_tensor(a, role, layer);
    const struct model_tensor *y = model_file_tensor(b, role, layer);
    struct error err = {0};
    ck_assert_ptr_nonnull(x);
    ck_assert_ptr_nonnull(y);
    size_t n = x->dims[0] * (x->n_dims == 2 ? x->dims[1] : 1);
    float *p = mem_array(n, sizeof *p), *q = mem_array(n, sizeof *q);
    ck_ok(train_dequant(x, p, n, &err), &err);
    ck_ok(train_dequant(y, q, n, &err), &err);
    for (size_t i = 0; i < n; i++) /* fc was divided by a size and multiplied with it */
        ck_assert_msg(fabsf(p[i] - q[i]) <= (role == MT_FC ? 2e-7f : 0) * fabsf(p[i]),
                      "%s[%zu]: %.9g became %.9g", x->name, i, (double)p[i], (double)q[i]);
    mem_free(p);
    mem_free(q);
}

START_TEST(a_drafter_comes_back_as_it_was)
{
    struct error err = {0};
    struct model_file *target = NULL, *before = NULL, *after = NULL;
    struct train_state s = {0};
    struct export_options e;
    char checkpoint[600], out[600];
    bool is = false;

    paths();
    snprintf(checkpoint, sizeof checkpoint, "%s/c.safetensors", test_tmpdir());
    snprintf(out, sizeof out, "%s/out", test_tmpdir());
    ck_ok(drafter_is(drafter_path, &is, &err), &err);
    ck_assert(is);
    ck_ok(drafter_is(test_tmpdir(), &is, &err), &err);
    ck_assert(!is);
    ck_ok(model_file_open(target_path, &target, &err), &err);
    ck_ok(state_from_drafter(drafter_path, target, true, &s, &err), &err);
    for (uint32_t i = 0; i < s.shape.n_taps; i++)
        s.tap_scale[i] = 0.3f + (float)i;
    state_unfold_taps(&s);
    s.recipe = json_object();
    ck_ok(checkpoint_write(checkpoint, &s, &err), &err);
    train_state_done(&s);

    export_options_init(&e);
    e.from = checkpoint;
    e.target = target_path;
    e.out = out;
    e.dtype = BACKEND_DTYPE_F32;
    ck_ok(train_export(&e, &err), &err);
    ck_ok(drafter_file_open(drafter_path, model_file_config(target), &before, &err), &err);
    ck_ok(drafter_file_open(out, model_file_config(target), &after, &err), &err);
    const struct drafter_config *x = model_file_config(before)->drafter;
    const struct drafter_config *y = model_file_config(after)->drafter;
    ck_assert_uint_eq(x->mask_token, y->mask_token);
    ck_assert_uint_eq(x->n_taps, y->n_taps);
    ck_assert_mem_eq(x->tap_layers, y->tap_layers, x->n_taps * sizeof x->tap_layers[0]);
    ck_assert_uint_eq(x->draft_vocab, y->draft_vocab);
    same_tensor(before, after, MT_FC, 0);
    same_tensor(before, after, MT_HIDDEN_NORM, 0);
    same_tensor(before, after, MT_FINAL_NORM, 0);
    for (uint32_t l = 0; l < model_file_config(before)->n_layers; l++)
        for (size_t i = 0; i < ARRAY_LEN(of_layer); i++)
            same_tensor(before, after, of_layer[i], l);
    model_file_free(before);
    model_file_free(after);
    model_file_free(target);
}
END_TEST

START_TEST(what_cannot_be_trained_on_is_named)
{
    struct error err = {0};
    struct model_file *target = NULL;
    struct train_state s = {0};
    paths();
    ck_ok(model_file_open(target_path, &target, &err), &err);
    ck_assert_int_lt(state_from_drafter(target_path, target, true, &s, &err), 0);
    ck_assert_msg(strstr(err.msg, "target") != NULL, "%s", err.msg);
    train_state_done(&s);
    model_file_free(target);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-from");
    TCase *c = test_case(s, "drafter");
    tcase_add_test(c, a_drafter_comes_back_as_it_was);
    tcase_add_test(c, what_cannot_be_trained_on_is_named);
    return test_main(s);
}
