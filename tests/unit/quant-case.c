/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/quant-case.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/unit/guard.h"

/* Random bits, with scales that are finite (and, mostly, of a sensible size). */
static void random_blocks(struct qrng *g, enum dk_type t, uint8_t *p, size_t bytes)
{
    const struct dk_type_info *info = dk_type_info(t);
    bool two = t == DK_Q4_1 || t == DK_Q5_1 || t == DK_Q4_K || t == DK_Q5_K;
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)qrng(g);
    for (uint8_t *b = p; b < p + bytes; b += info->block_bytes) {
        uint8_t *s = b + (t == DK_Q6_K ? 208 : 0);
        for (unsigned i = 0; i < (two ? 2u : 1u); i++) {
            if (qrng(g) % 16)
                s[2 * i + 1] = (uint8_t)((s[2 * i + 1] & 0x87) | 0x20); /* 2^-7 .. 2^-6 */
            else if ((s[2 * i + 1] & 0x7c) == 0x7c)
                s[2 * i + 1] ^= 0x40;
        }
    }
}

static void random_row(struct qrng *g, float *x, uint32_t k)
{
    for (uint32_t b = 0; b < k; b += 32) {
        uint32_t kind = qrng(g) % 40;
        for (uint32_t i = b; i < b + 32; i++) {
            float v = (float)(int32_t)qrng(g) * 0x1p-31f;
            x[i] = kind == 0 ? 0.0f : kind == 1 ? v * 0x1p-130f : kind == 2 ? v * 0x1p-97f : v;
            if (kind == 3)
                x[i] = v * 0x1p20f;
        }
        if (kind == 4)
            x[b + qrng(g) % 32] = 3e4f; /* an outlier */
        if (kind == 5)
            x[b + qrng(g) % 32] = -0.0f;
    }
    uint32_t at = qrng(g) % k, kind = qrng(g) % 12;
    if (kind == 0)
        x[at] = NAN;
    else if (kind == 1)
        x[at] = -INFINITY;
    else if (kind == 2)
        x[at] = 3e38f;
}

/* Sizes without what follows the last row's last number. */
static size_t x_bytes(const struct qcase *c)
{
    return ((c->own_rows - 1) * c->ldx + c->w.k) * sizeof(float);
}

static size_t y_bytes(const struct qcase *c)
{
    return ((c->rows - 1) * c->ldy + c->w.n) * sizeof(float);
}

void qcase_new(struct qcase *c, struct qrng *g, enum dk_type t, uint32_t n, uint32_t k,
               uint32_t rows, unsigned flags)
{
    const struct dk_type_info *info = dk_type_info(t);
    *c = (struct qcase){
        .w = {.type = t, .n = n, .k = k, .n_panels = (n + 15) / 16},
        .rows = rows,
        .own_rows = rows,
        .ldx = k + qrng(g) % 3,
        .ldy = n + 1 + qrng(g) % 20,
        .flags = flags,
    };
    c->row_bytes = k / info->block_elems * info->block_bytes;
    c->src = guard_new(n * c->row_bytes, 1);
    random_blocks(g, t, c->src, n * c->row_bytes);
    ck_assert(dk_weight_bytes(t, DK_LAYOUT_PANEL, n, k, &c->w.bytes));
    c->packed = guard_new(c->w.bytes, 64);
    c->w.data = c->packed;
    dk_weight_pack(c->packed, t, DK_LAYOUT_PANEL, n, k, c->src, c->row_bytes, 0, c->w.n_panels);
    c->x_mem = guard_new(x_bytes(c), sizeof(float));
    for (uint32_t r = 0; r < rows; r++)
        random_row(g, c->x_mem + r * c->ldx, k);
    c->x = c->x_mem;
    c->y0 = mem_alloc(rows * c->ldy * sizeof(float));
    for (size_t i = 0; i < rows * c->ldy; i++)
        c->y0[i] = (float)(int32_t)qrng(g) * 0x1p-31f;
}

void qcase_free(struct qcase *c)
{
    guard_free(c->src, c->w.n * c->row_bytes, 1);
    guard_free(c->packed, c->w.bytes, 64);
    guard_free(c->x_mem, x_bytes(c), sizeof(float));
    mem_free(c->y0);
}

float *qcase_run(const struct qcase *c, const struct dk_ops *ops)
{
    struct dk_act a;
    const size_t act_bytes = dk_act_bytes(c->rows, c->w.k);
    void *mem = guard_new(act_bytes, 64);
    void *scratch = guard_new(DK_SCRATCH_BYTES, 64);
    float *y = guard_new(y_bytes(c), sizeof(float));
    memcpy(y, c->y0, y_bytes(c));
    dk_act_init(&a, c->rows, c->w.k, mem);
    a.rows = c->rows;
    a.k = c->w.k;
    dk_thread_init();
    ops->act_prepare(&a, DK_FORM_INT, c->x, c->ldx, c->cut_rows, c->rows);
    ops->act_prepare(&a, DK_FORM_INT, c->x, c->ldx, 0, c->cut_rows);
    struct dk_mm mm = {.w = &c->w, .y = y, .ldy = c->ldy, .flags = c->flags};
    ops->matmul(&mm, &a, c->cut_panels, c->w.n_panels, scratch);
    ops->matmul(&mm, &a, 0, c->cut_panels, scratch);
    float *ret = mem_alloc(c->rows * c->ldy * sizeof(float));
    memcpy(ret, c->y0, c->rows * c->ldy * sizeof(float));
    memcpy(ret, y, y_bytes(c));
    guard_free(y, y_bytes(c), sizeof(float));
    guard_free(scratch, DK_SCRATCH_BYTES, 64);
    guard_free(mem, act_bytes, 64);
    return ret;
}

void qcase_equal(const struct qcase *c, const char *what, const float *got, const float *want)
{
    for (uint32_t r = 0; r < c->rows; r++) {
        for (size_t o = 0; o < c->ldy; o++) {
            const float *g = got + r * c->ldy + o;
            const float *w = (o < c->w.n ? want : c->y0) + r * c->ldy + o;
            bool same = memcmp(g, w, sizeof *g) == 0 || (isnan(*g) && isnan(*w));
            ck_assert_msg(same, "%s, %s: n %u k %u rows %u: row %u output %zu%s: %a, want %a",
                          dk_type_info(c->w.type)->name, what, c->w.n, c->w.k, c->rows, r, o,
                          o < c->w.n ? "" : " (outside)", (double)*g, (double)*w);
        }
    }
}
