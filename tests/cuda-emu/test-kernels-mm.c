/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of the CUDA kernels: panels and block types have the CPU's bits at every row count; BF16 and
 * F16 on the tensor cores have the same bits at every row count and keep the derived bound.
 */
#include <math.h>
#include <stdio.h>

#include "tests/cuda-emu/kernels-util.h"

struct prepared {
    struct dcu_act act;
    float *x;
    uint32_t rows, k;
};

static void prepare(struct prepared *p, unsigned form, const float *x, uint32_t rows, uint32_t k)
{
    p->act = act_new(form, rows, k);
    p->x = dev_of(x, (size_t)rows * k * 4);
    struct dcu_prep prep = {.src = DCU_SRC_PLAIN,
                            .x = p->x,
                            .ldx = k,
                            .rows = rows,
                            .k = k,
                            .forms = form,
                            .act = p->act};
    dev_ok(dev->prepare(dev_s, &prep));
}

/* y[rows][n] of the device; y0: what was there (ADD), or NULL. */
static void product(const struct test_weight *w, const float *x, uint32_t rows, const float *y0,
                    float *y)
{
    struct prepared p;
    const size_t n = (size_t)rows * w->gpu.n;
    prepare(&p, dcu_weight_form(w->gpu.type, w->gpu.layout), x, rows, w->gpu.k);
    float *d = y0 ? dev_of(y0, n * 4) : dev_new(n * 4);
    struct dcu_mm mm = {w->gpu, d, w->gpu.n, y0 ? DK_MM_ADD : 0};
    dev_ok(dev->matmul(dev_s, &mm, 1, &p.act, rows));
    dev_get(y, d, n * 4);
}

/* Sizes around every tile: rows of 1, 2, 4, 8, 16, 32 and one more or less; outputs that are no whole panels. */
static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 23, 33, 64};
#define N_ROWS (sizeof(row_counts) / sizeof(*row_counts))

static void check_exact(enum dk_type t, uint32_t n, uint32_t k)
{
    struct rng r = {(uint64_t)t << 32 | n << 16 | k};
    struct test_weight w;
    float *x = floats_new(&r, (size_t)64 * k, 1);
    float *want = malloc((size_t)64 * n * 4), *got = malloc((size_t)64 * n * 4);
    x[3] = 0;
    for (uint32_t i = 0; i < 32; i++)
        x[k + i] = 0; /* a block of zeros */
    weight_new(&w, &r, t, DCU_LAYOUT_PANEL, n, k);
    cpu_matmul(&w.cpu, x, k, 64, want, 0);
    for (size_t i = 0; i < N_ROWS; i++) {
        char what[64];
        snprintf(what, sizeof(what), "%s %ux%u, %u rows", dk_type_info(t)->name, n, k,
                 row_counts[i]);
        product(&w, x, row_counts[i], NULL, got);
        same_floats(what, got, want, (size_t)row_counts[i] * n);
    }
    weight_done(&w);
    free(x);
    free(want);
    free(got);
}

START_TEST(panels_have_the_cpu_bits)
{
    static const enum dk_type types[] = {DK_F32, DK_F16, DK_BF16};
    check_exact(types[_i], 37, 80);
    check_exact(types[_i], 16, 272);
}
END_TEST

static const enum dk_type blocks[] = {DK_Q8_0, DK_Q4_0, DK_Q4_1, DK_Q5_0,
                                      DK_Q5_1, DK_Q4_K, DK_Q5_K, DK_Q6_K};

START_TEST(blocks_have_the_cpu_bits)
{
    bool big = dk_type_info(blocks[_i])->block_elems == 256;
    check_exact(blocks[_i], 21, big ? 256 : 96);
    check_exact(blocks[_i], 16, big ? 1280 : 1120); /* more blocks than a stage has */
}
END_TEST

START_TEST(bad_inputs_show)
{
    struct rng r = {77};
    const uint32_t k = 64, n = 16;
    for (uint32_t rows = 2; rows <= 6; rows += 4) {
        struct test_weight w;
        float *x = floats_new(&r, rows * k, 1), want[96], got[96];
        x[k + 5] = NAN;
        x[7] = 0x1p-100f;
        weight_new(&w, &r, DK_Q5_1, DCU_LAYOUT_PANEL, n, k);
        cpu_matmul(&w.cpu, x, k, rows, want, 0);
        product(&w, x, rows, NULL, got);
        ck_assert(got[n] != got[n] && got[0] == got[0]);
        same_floats("NaN", got, want, rows * n);
        weight_done(&w);
        free(x);
    }
}
END_TEST

/* Several weights of different types in one call, added to what is there. */
START_TEST(groups_and_addition)
{
    struct rng r = {5};
    static const struct {
        enum dk_type t;
        enum dcu_layout l;
        uint32_t n;
    } m[3] = {{DK_Q4_K, DCU_LAYOUT_PANEL, 40},
              {DK_Q4_K, DCU_LAYOUT_PANEL, 7},
              {DK_Q6_K, DCU_LAYOUT_PANEL, 18}};
    const uint32_t k = 512;
    for (uint32_t rows = 3; rows <= 12; rows += 9) {
        struct test_weight w[3];
        struct dcu_mm mm[3];
        float *y0[3], *x = floats_new(&r, rows * k, 1);
        struct prepared p;
        prepare(&p, DCU_FORM_INT, x, rows, k);
        for (int i = 0; i < 3; i++) {
            weight_new(&w[i], &r, m[i].t, m[i].l, m[i].n, k);
            y0[i] = floats_new(&r, rows * m[i].n, 1);
            mm[i] = (struct dcu_mm){w[i].gpu, dev_of(y0[i], rows * m[i].n * 4), m[i].n, DK_MM_ADD};
        }
        dev_ok(dev->matmul(dev_s, mm, 3, &p.act, rows));
        for (int i = 0; i < 3; i++) {
            float *got = malloc(rows * m[i].n * 4);
            dev_get(got, mm[i].y, rows * m[i].n * 4);
            cpu_matmul(&w[i].cpu, x, k, rows, y0[i], DK_MM_ADD);
            same_floats("group", got, y0[i], rows * m[i].n);
            free(got);
            free(y0[i]);
            weight_done(&w[i]);
        }
        free(x);
    }
}
END_TEST

/* The bound of kernels/README.md, in parts: of sum |w x|, and of max |x| * sum |w|. */
static double bound(enum dk_type t, uint32_t k)
{
    double acc = (16 * 17 * 2 + (k + 1023) / 1024 + 9) * 0x1p-24;
    return (t == DK_F16 ? 0x1p-22 : 0x1p-16) + acc;
}

static void check_mma(enum dk_type t, uint32_t n, uint32_t k)
{
    struct rng r = {(uint64_t)t << 32 | n << 16 | k};
    struct test_weight w;
    float *x = floats_new(&r, (size_t)64 * k, 3), *all = malloc((size_t)64 * n * 4);
    float *got = malloc((size_t)64 * n * 4), *row = malloc(k * 4);
    for (uint32_t i = 0; i < k; i++)
        x[2 * k + i] *= 0x1p-30f; /* a row of small, */
    for (uint32_t i = 0; i < k; i++)
        x[3 * k + i] *= 0x1p30f; /* and one of large numbers */
    weight_new(&w, &r, t, DCU_LAYOUT_MMA, n, k);
    product(&w, x, 64, NULL, all);
    for (uint32_t o = 0; o < n; o++) {
        dk_weight_row(&w.cpu, o, row);
        for (uint32_t i = 0; i < 64; i++) {
            double exact = 0, size = 0, top = 0, weights = 0;
            for (uint32_t j = 0; j < k; j++) {
                exact += (double)row[j] * (double)x[i * k + j];
                size += fabs((double)row[j] * (double)x[i * k + j]);
                weights += fabs((double)row[j]);
                top = fmax(top, fabs((double)x[i * k + j]));
            }
            double off = fabs((double)all[i * n + o] - exact);
            double rest = t == DK_F16 ? 0x1p-39 * top * weights : 0;
            ck_assert_msg(off <= bound(t, k) * size + rest, "row %u, output %u: off by %g of %g", i,
                          o, off / size, bound(t, k));
        }
    }
    for (size_t i = 0; i < N_ROWS; i++) {
        char what[64];
        snprintf(what, sizeof(what), "mma %s, %u rows", dk_type_info(t)->name, row_counts[i]);
        product(&w, x, row_counts[i], NULL, got);
        same_floats(what, got, all, (size_t)row_counts[i] * n);
    }
    /* A row in another place of the batch. */
    product(&w, x + 5 * k, 7, NULL, got);
    same_floats("moved", got, all + 5 * n, (size_t)7 * n);
    memcpy(got, all, (size_t)9 * n * 4);
    float *sum = malloc((size_t)9 * n * 4);
    product(&w, x, 9, all, sum);
    for (uint32_t i = 0; i < 9 * n; i++)
        got[i] = got[i] + all[i];
    same_floats("added", sum, got, (size_t)9 * n);
    weight_done(&w);
    free(sum);
    free(row);
    free(x);
    free(all);
    free(got);
}

/* So many rows that a block takes all groups of inputs: the bits of 64 rows, again and again. */
START_TEST(tensor_cores_prefill)
{
    struct rng r = {8};
    const uint32_t n = 19, k = 1040, rows = 5200;
    struct test_weight w;
    float *x = floats_new(&r, (size_t)rows * k, 1), *y = malloc((size_t)rows * n * 4);
    float *want = malloc((size_t)64 * n * 4);
    for (uint32_t i = 64; i < rows; i++)
        memcpy(x + (size_t)i * k, x + (size_t)(i % 64) * k, k * 4);
    weight_new(&w, &r, DK_BF16, DCU_LAYOUT_MMA, n, k);
    product(&w, x, 64, NULL, want);
    product(&w, x, rows, NULL, y);
    for (uint32_t i = 0; i < rows; i++)
        same_floats("prefill", y + (size_t)i * n, want + (size_t)(i % 64) * n, n);
    weight_done(&w);
    free(x);
    free(y);
    free(want);
}
END_TEST

START_TEST(tensor_cores)
{
    enum dk_type t = _i % 2 ? DK_F16 : DK_BF16;
    if (_i < 2)
        check_mma(t, 21, 72);
    else
        check_mma(t, 16, 1328); /* six segments, the last one short */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cuda-kernels-mm");
    TCase *c = test_case(s, "products");
    tcase_add_checked_fixture(c, dev_open, dev_close);
    tcase_add_loop_test(c, panels_have_the_cpu_bits, 0, 3);
    tcase_add_loop_test(c, blocks_have_the_cpu_bits, 0, 8);
    tcase_add_test(c, bad_inputs_show);
    tcase_add_test(c, groups_and_addition);
    tcase_add_loop_test(c, tensor_cores, 0, 4);
    tcase_add_test(c, tensor_cores_prefill);
    return test_main(s);
}
