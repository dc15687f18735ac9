/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole runs of fit, widen and export on the toy target: resuming bit for bit, damaged and missing
 * checkpoints, a full disk, bad numbers, data without labels, other options; what is exported loads
 * and has the taps' sizes in it.
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/strbuf.h"
#include "engine/safetensors.h"
#include "tests/unit/modelgen.h"
#include "tests/unit/util.h"
#include "train/checkpoint.h"
#include "train/fit.h"
#include "train/fit_internal.h"

#define TARGET "tests/golden/drafter/target"
#define VOCAB  272u

static char root[4096];
static const char *data_paths[1];

static const char *at(const char *name)
{
    static char ring[8][4200];
    static unsigned next;
    char *s = ring[next++ % 8];
    snprintf(s, sizeof(ring[0]), "%s/%s", root, name);
    return s;
}

/* n conversations: a prompt of 5, then steps of one size modulo 90. */
static void write_data(const char *name, unsigned n, unsigned first)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    for (unsigned i = 0; i < n; i++) {
        const unsigned len = 24 + (i + first) * 7 % 13, by = 1 + (i + first) % 5;
        ck_assert_int_eq(strbuf_adds(&b, "{\"ids\": ["), 0);
        for (unsigned k = 0; k < len; k++)
            ck_assert_int_eq(
                strbuf_addf(&b, "%s%u", k ? "," : "", ((i + first) * 11 + k * by) % 90), 0);
        ck_assert_int_eq(strbuf_addf(&b, "], \"response_spans\": [[5, %u]]}\n", len), 0);
    }
    write_file(root, name, b.s, b.len);
}

static void setup(void)
{
    snprintf(root, sizeof(root), "%s", test_tmpdir());
    write_data("data.jsonl", 24, 0);
    data_paths[0] = mem_strdup(at("data.jsonl"));
}

static void remove_folder(const char *name)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    ck_assert_int_eq(strbuf_addf(&b, "rm -rf '%s'", at(name)), 0);
    ck_assert_int_eq(system(b.s), 0); /* NOLINT: a fixed path of ours */
}

static void teardown(void)
{
    static const char *const names[] = {"a", "b", "c", "d", "w", "hf"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        remove_folder(names[i]);
    mem_free((void *)(uintptr_t)data_paths[0]);
}

static struct fit_options options(const char *out)
{
    struct fit_options o;
    fit_options_init(&o);
    o.target = test_path(TARGET);
    o.data = data_paths;
    o.n_data = 1;
    o.out = at(out);
    o.layers = 1;
    o.window = 4;
    o.steps = 12;
    o.p1_only = 4;
    o.batch = 2;
    o.anchors = 4;
    o.max_len = 64;
    o.threads = 1;
    o.held_out = 0;
    o.quiet = true;
    o.keep = 10;
    o.seed = 3;
    return o;
}

static const char *step_file(const char *folder, unsigned step)
{
    char name[64];
    snprintf(name, sizeof(name), "%s/step-%09u.safetensors", folder, step);
    return at(name);
}

static void run(const struct fit_options *o, int want)
{
    struct error err = {0};
    int r = train_fit(o, &err);
    ck_assert_msg(r == want, "fit gave %d (%s), wanted %d", r, err.msg, want);
}

static void same_file(const char *a, const char *b)
{
    _cleanup_free_ char *x = NULL, *y = NULL;
    size_t n, m;
    struct error err = {0};
    ck_ok(file_read(a, 1u << 26, &x, &n, &err), &err);
    ck_ok(file_read(b, 1u << 26, &y, &m, &err), &err);
    ck_assert_uint_eq(n, m);
    ck_assert_msg(memcmp(x, y, n) == 0, "%s and %s differ", a, b);
}

/* ---- resuming -------------------------------------------------------------------------------------------- */

START_TEST(test_resume)
{
    setup();
    struct fit_options a = options("a"), b = options("b");
    run(&a, 0);
    b.stop_after = 5;
    run(&b, 1);
    b.stop_after = 4; /* in the middle of P1 alone, then of both, at another epoch's start */
    run(&b, 1);
    b.stop_after = 0;
    run(&b, 0);
    same_file(step_file("a", 12), step_file("b", 12));
    run(&b, 0); /* done already */
    same_file(step_file("a", 12), step_file("b", 12));
    teardown();
}
END_TEST

/* Nothing but time changes with threads, a cache, or looking at held-out data. */
START_TEST(test_invariance)
{
    setup();
    struct fit_options a = options("a"), b = options("b"), c = options("c");
    a.distill = b.distill = c.distill = 0.5f;
    a.distill_top = b.distill_top = c.distill_top = 4;
    run(&a, 0);
    b.threads = 3;
    b.cache = at("taps");
    b.report_every = 1;
    run(&b, 0);
    c.cache = at("taps"); /* now all hits */
    c.cache_bytes = 1;
    run(&c, 0);
    same_file(step_file("a", 12), step_file("b", 12));
    same_file(step_file("a", 12), step_file("c", 12));
    teardown();
}
END_TEST

static volatile sig_atomic_t stop_now;

START_TEST(test_stop)
{
    setup();
    struct fit_options a = options("a");
    stop_now = 1;
    a.stop = &stop_now;
    run(&a, 1); /* before the first step: nothing is lost, nothing written */
    stop_now = 0;
    run(&a, 0);
    ck_assert_int_eq(access(step_file("a", 12), F_OK), 0);
    teardown();
}
END_TEST

/* ---- damage ------------------------------------------------------------------------------------------------ */

START_TEST(test_torn)
{
    setup();
    struct fit_options a = options("a"), b = options("b");
    struct train_state s = {0};
    struct error err = {0};
    struct stat st;
    char *path = NULL;
    run(&b, 0);
    a.stop_after = 3;
    run(&a, 1);
    run(&a, 1);
    const char *newest = step_file("a", 6);
    if (_i == 0) { /* cut by one byte */
        ck_assert_int_eq(stat(newest, &st), 0);
        ck_assert_int_eq(truncate(newest, st.st_size - 1), 0);
    } else { /* one bit of a weight */
        int fd = open(newest, O_RDWR);
        char c;
        ck_assert_int_eq(pread(fd, &c, 1, 20000), 1);
        c ^= 4;
        ck_assert_int_eq(pwrite(fd, &c, 1, 20000), 1);
        close(fd);
    }
    ck_assert_int_lt(checkpoint_read(newest, &s, &err), 0);
    ck_assert_msg(strstr(err.msg, "step-000000006") != NULL, "%s", err.msg);
    ck_ok(checkpoint_newest(at("a"), &s, &path, NULL, NULL, &err), &err);
    ck_assert_uint_eq(s.step, 3);
    train_state_done(&s);
    mem_free(path);
    a.stop_after = 0;
    run(&a, 0);
    same_file(step_file("a", 12), step_file("b", 12));
    teardown();
}
END_TEST

START_TEST(test_full_disk)
{
    setup();
    struct fit_options a = options("a");
    struct train_state s = {0};
    struct error err = {0};
    a.stop_after = 3;
    run(&a, 1);
    ck_ok(checkpoint_open(at("a"), &s, &err), &err);
    s.step = 4;
    const struct rlimit small = {5000, RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_fails(checkpoint_write_in(at("a"), &s, 1, &err), IO, &err);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &all), 0);
    train_state_done(&s);
    ck_ok(checkpoint_open(at("a"), &s, &err), &err); /* what was kept is still there */
    ck_assert_uint_eq(s.step, 3);
    train_state_done(&s);
    teardown();
}
END_TEST

/* SIGKILL at any moment: something whole is always there, and the run goes on to the same end. */
START_TEST(test_kill)
{
    setup();
    struct fit_options a = options("a"), b = options("b");
    a.checkpoint_every = b.checkpoint_every = 0; /* after every step */
    a.steps = b.steps = 40;
    a.average = b.average = 0;
    run(&b, 0);
    bool was = false;
    for (unsigned i = 0; i < 12; i++) {
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            struct error err = {0};
            _exit(train_fit(&a, &err) == 0 ? 0 : 1);
        }
        usleep(30000 + i * 17000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        struct train_state s = {0};
        struct error err = {0};
        int r = checkpoint_open(at("a"), &s, &err);
        ck_assert_msg(!was || r == 0, "%s", err.msg);
        was = was || r == 0;
        if (r == 0)
            train_state_done(&s);
    }
    run(&a, 0);
    same_file(step_file("a", 40), step_file("b", 40));
    teardown();
}
END_TEST

/* ---- refusals ---------------------------------------------------------------------------------------------- */

static void refused(const struct fit_options *o, int code, const char *text)
{
    struct error err = {0};
    int r = train_fit(o, &err);
    ck_assert_msg(r == code, "fit gave %d (%s)", r, err.msg);
    ck_assert_msg(strstr(err.msg, text) != NULL, "\"%s\" lacks \"%s\"", err.msg, text);
}

START_TEST(test_refusals)
{
    setup();
    struct fit_options o = options("a");
    o.memory_limit = 1u << 20;
    refused(&o, DEDIT_E_LIMIT, "--memory-limit");
    o = options("a");
    o.window = 1;
    refused(&o, DEDIT_E_INVALID, "window");
    o = options("a");
    o.mask_token = VOCAB;
    refused(&o, DEDIT_E_INVALID, "mask_token");
    o = options("a");
    o.n_taps = 2;
    o.taps[0] = o.taps[1] = 1;
    refused(&o, DEDIT_E_INVALID, "taps");
    o = options("a");
    o.lr = NAN;
    refused(&o, DEDIT_E_INVALID, "lr");
    /* Nothing supervised: file and line. */
    const char none[] = "{\"ids\": [1,2,3,4], \"response_spans\": [[1,4]]}\n"
                        "{\"ids\": [1,2,3,5], \"response_spans\": []}\n";
    write_file(root, "none.jsonl", none, strlen(none));
    o = options("a");
    const char *path = at("none.jsonl");
    o.data = &path;
    refused(&o, DEDIT_E_FORMAT, "none.jsonl:2");
    teardown();
}
END_TEST

/* Other options, other data: not by accident (TRN-06). */
START_TEST(test_mismatch)
{
    setup();
    struct fit_options o = options("a");
    struct train_state a = {0}, b = {0};
    struct error err = {0};
    o.draft_vocab = 48;
    o.stop_after = 3;
    run(&o, 1);
    o.lr *= 2;
    refused(&o, DEDIT_E_MISMATCH, "--lr");
    o.lr /= 2;
    o.layers = 2;
    refused(&o, DEDIT_E_MISMATCH, "--layers 1, now it is 2");
    o.layers = 0; /* not said: as it was */
    o.draft_vocab = 32;
    refused(&o, DEDIT_E_MISMATCH, "--draft-vocab 48, now it is 32");
    o.draft_vocab = 48;
    o.mask_token = VOCAB - 2;
    refused(&o, DEDIT_E_MISMATCH, "--mask-token");
    o.mask_token = FIT_MASK_AUTO;
    o.window = 5;
    refused(&o, DEDIT_E_MISMATCH, "--window 4, now it is 5");
    o.window = 4;
    o.dtype = BACKEND_DTYPE_BF16;
    refused(&o, DEDIT_E_MISMATCH, "--dtype \"file\", now it is \"bf16\"");
    o.dtype = BACKEND_DTYPE_AUTO; /* as filed, too */
    o.init = o.init == FIT_INIT_RANDOM ? FIT_INIT_TARGET : FIT_INIT_RANDOM;
    refused(&o, DEDIT_E_MISMATCH, "--init");
    o.init = o.init == FIT_INIT_RANDOM ? FIT_INIT_TARGET : FIT_INIT_RANDOM;
    write_data("more.jsonl", 30, 3);
    const char *more = at("more.jsonl");
    o.data = &more;
    refused(&o, DEDIT_E_MISMATCH, "other data");
    o.from = at("a");
    o.out = at("b");
    o.heads = 64;
    refused(&o, DEDIT_E_MISMATCH, "--heads");
    o.heads = 0;
    o.stop_after = 2;
    run(&o, 1);
    ck_ok(checkpoint_open(at("a"), &a, &err), &err);
    ck_ok(checkpoint_open(at("b"), &b, &err), &err);
    ck_assert_uint_eq(a.shape.draft_vocab, 48);
    ck_assert_uint_eq(b.shape.draft_vocab, 48);
    ck_assert(memcmp(a.target_ids, b.target_ids, 48 * sizeof(*a.target_ids)) == 0);
    ck_assert_uint_eq(b.step, 2);
    train_state_done(&a);
    train_state_done(&b);
    o = options("a");
    o.draft_vocab = 48;
    o.restart = true;
    refused(&o, DEDIT_E_INVALID, "step-000000003");
    refused(&o, DEDIT_E_INVALID, "--fresh");
    teardown();
}
END_TEST

/* Weights that give no numbers: the step is named, the checkpoint stays. */
START_TEST(test_bad_numbers)
{
    setup();
    struct fit_options o = options("a");
    struct train_state s = {0};
    struct error err = {0};
    o.stop_after = 3;
    run(&o, 1);
    ck_ok(checkpoint_open(at("a"), &s, &err), &err);
    for (uint32_t i = 0; i < s.layout.n; i++) /* every product overflows */
        if (!s.layout.t[i].norm)
            for (uint32_t k = 0; k < s.layout.t[i].cols; k++)
                s.param[s.layout.t[i].at + k] = 3e38f;
    s.step = 4;
    ck_ok(checkpoint_write_in(at("a"), &s, 10, &err), &err);
    train_state_done(&s);
    o.stop_after = 0;
    refused(&o, DEDIT_E_NUMERIC, "step 4");
    ck_ok(checkpoint_open(at("a"), &s, &err), &err);
    ck_assert_uint_eq(s.step, 4);
    train_state_done(&s);
    teardown();
}
END_TEST

/* ---- learning ------------------------------------------------------------------------------------------------ */

static double held_column(const char *folder, unsigned row, unsigned column)
{
    char name[64];
    _cleanup_free_ char *text = NULL;
    size_t n;
    struct error err = {0};
    snprintf(name, sizeof(name), "%s/metrics.csv", folder);
    ck_ok(file_read(at(name), 1u << 20, &text, &n, &err), &err);
    const char *p = text;
    for (; row > 0; row--) {
        p = strchr(p, '\n');
        ck_assert_ptr_nonnull(p);
        p++;
    }
    for (; column > 0; column--) {
        p = strchr(p, ',');
        ck_assert_ptr_nonnull(p);
        p++;
    }
    return strtod(p, NULL);
}

START_TEST(test_learns)
{
    setup();
    struct fit_options o = options("a");
    o.steps = 150;
    o.p1_only = 60;
    o.batch = 4;
    o.lr = 4e-3f;
    o.average = 0.9f;
    o.held_out = 0.1f;
    o.bf16 = _i == 1;
    run(&o, 0);
    ck_assert(held_column("a", 1, 0) == 10);
    double first = held_column("a", 1, 3), last = held_column("a", 15, 3);
    ck_assert_msg(last < 0.6 * first, "loss %.3f, then %.3f", first, last);
    ck_assert(held_column("a", 15, 5) > held_column("a", 1, 5) + 0.3); /* tau */
    ck_assert(held_column("a", 15, 15) > 0);                           /* held out */
    teardown();
}
END_TEST

/* ---- widen, export --------------------------------------------------------------------------------------------- */

START_TEST(test_widen)
{
    setup();
    struct fit_options o = options("a"), w = options("w");
    struct train_state a = {0}, b = {0};
    struct error err = {0};
    run(&o, 0);
    w.window = 0;
    w.from = at("a");
    w.steps = 3;
    w.p1_only = 3;
    ck_ok(train_widen(&w, &err), &err);
    ck_ok(checkpoint_open(at("a"), &a, &err), &err);
    ck_ok(checkpoint_open(at("w"), &b, &err), &err);
    ck_assert_uint_eq(b.shape.window, 8);
    ck_assert_uint_eq(b.step, 3);
    ck_assert_uint_eq(a.shape.layers, b.shape.layers);
    ck_assert(memcmp(a.tap_scale, b.tap_scale, sizeof(a.tap_scale)) == 0);
    train_state_done(&a);
    train_state_done(&b);
    w.window = 3;
    w.out = at("d");
    ck_fails(train_widen(&w, &err), INVALID, &err);
    /* What is given is taken, though it is fit's own default; what is not depends on the checkpoint. */
    struct fit_options given;
    widen_options_init(&given);
    w.window = given.window;
    w.anchors = given.anchors;
    w.lr = given.lr;
    w.steps = 5000;
    w.stop_after = 1;
    ck_assert_int_eq(train_widen(&w, &err), 1);
    ck_ok(checkpoint_open(at("d"), &a, &err), &err);
    ck_assert_int_eq(json_integer_value(json_object_get(a.recipe, "steps")), 5000);
    ck_assert_int_eq(json_integer_value(json_object_get(a.recipe, "anchors")), 16);
    ck_assert_int_eq(json_integer_value(json_object_get(a.recipe, "window")), 8);
    ck_assert_double_eq_tol(json_real_value(json_object_get(a.recipe, "lr")), 3.25e-4, 1e-9);
    train_state_done(&a);
    teardown();
}
END_TEST

START_TEST(test_export)
{
    setup();
    struct fit_options o = options("a");
    struct export_options e;
    struct train_state s = {0};
    struct error err = {0};
    struct safetensors *f = NULL;
    o.draft_vocab = _i ? 64 : 0;
    run(&o, 0);
    export_options_init(&e);
    e.from = at("a");
    e.target = test_path(TARGET);
    e.out = at("hf");
    e.dtype = BACKEND_DTYPE_F32;
    ck_ok(train_export(&e, &err), &err);
    ck_fails(train_export(&e, &err), INVALID, &err); /* is there already */
    ck_ok(checkpoint_open(at("a"), &s, &err), &err);
    ck_ok(safetensors_open(at("hf/model.safetensors"), &f, &err), &err);
    for (uint32_t i = 0; i < s.layout.n; i++) {
        const struct train_tensor *t = &s.layout.t[i];
        const struct st_tensor *x = safetensors_find(f, t->name);
        ck_assert_ptr_nonnull(x);
        for (uint32_t k = 0; k < t->rows * t->cols; k++) {
            float want = s.average[t->at + k];
            if (i == TR_FC)
                want *= s.tap_scale[k % t->cols / s.shape.target_hidden];
            ck_fast(((const float *)x->data)[k] == want);
        }
    }
    ck_assert((safetensors_find(f, "d2t") != NULL) == (_i == 1));
    safetensors_free(f);
    train_state_done(&s);
    e.form = EXPORT_GGUF;
    static const enum backend_dtype types[] = {BACKEND_DTYPE_F32, BACKEND_DTYPE_BF16,
                                               BACKEND_DTYPE_Q8_0};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        e.dtype = types[i];
        e.out = at("x.gguf");
        e.force = i > 0;
        ck_ok(train_export(&e, &err), &err);
    }
    e.form = EXPORT_HF;
    e.out = at("d");
    ck_fails(train_export(&e, &err), INVALID, &err); /* Q8_0 in a folder */
    e.dtype = BACKEND_DTYPE_BF16;
    e.target = test_path("tests/golden/models/d_qwen3");
    ck_fails(train_export(&e, &err), MISMATCH, &err);
    teardown();
}
END_TEST

/* A drafter on disk is the beginning of a run: the same weights, whichever form they were in. */
START_TEST(test_from_drafter)
{
    setup();
    struct fit_options o = options("a"), n = options("b");
    struct export_options e;
    struct train_state a = {0}, b = {0};
    struct error err = {0};
    o.draft_vocab = 64;
    run(&o, 0);
    export_options_init(&e);
    e.from = at("a");
    e.target = test_path(TARGET);
    e.dtype = BACKEND_DTYPE_F32;
    e.form = _i ? EXPORT_GGUF : EXPORT_HF;
    e.out = _i ? at("x.gguf") : at("hf");
    ck_ok(train_export(&e, &err), &err);
    n.from = _i ? at("x.gguf") : at("hf");
    n.lr = 0; /* one step that changes nothing */
    n.steps = n.p1_only = 1;
    run(&n, 0);
    ck_ok(checkpoint_open(at("a"), &a, &err), &err);
    ck_ok(checkpoint_open(at("b"), &b, &err), &err);
    ck_assert_uint_eq(b.shape.draft_vocab, 64);
    ck_assert(memcmp(a.target_ids, b.target_ids, 64 * sizeof(*a.target_ids)) == 0);
    ck_assert_uint_eq(a.layout.total, b.layout.total);
    test_floats_close("weights", b.param, a.average, a.layout.total, 1e-7, 1e-6);
    train_state_done(&a);
    train_state_done(&b);
    teardown();
}
END_TEST

/* ---- parts --------------------------------------------------------------------------------------------------------- */

/* Each epoch has each sample once, in another order; a resumed run asks in the middle (TRN-04). */
START_TEST(test_order)
{
    struct train_order a, b;
    struct error err = {0};
    uint32_t first[64];
    bool moved = false;
    ck_ok(train_order_init(&a, 5, 64, &err), &err);
    ck_ok(train_order_init(&b, 5, 64, &err), &err);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        uint64_t seen = 0;
        for (uint64_t i = 0; i < 64; i++) {
            uint32_t x = train_order_at(&a, epoch * 64 + i);
            ck_assert_uint_lt(x, 64);
            seen |= UINT64_C(1) << x;
            if (epoch == 0)
                first[i] = x;
            moved = moved || (epoch > 0 && x != first[i]);
        }
        ck_assert(seen == UINT64_MAX);
    }
    ck_assert(moved);
    ck_assert_uint_eq(train_order_at(&b, 117), train_order_at(&a, 117));
    train_order_done(&a);
    train_order_done(&b);
    ck_fails(train_order_init(&a, 5, 0, &err), INVALID, &err);
}
END_TEST

/* Anchors: legal, ascending, all of them when few, evenly often when many. */
START_TEST(test_anchors)
{
    const uint8_t mask[16] = {0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 0, 1, 1};
    const uint32_t legal[7] = {2, 3, 6, 7, 8, 14, 99};
    uint32_t ret[16], counts[16] = {0};
    ck_assert_uint_eq(train_anchors(mask, 16, 16, 1, 2, 3, ret), 6);
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_uint_eq(ret[i], legal[i]);
    for (uint64_t step = 0; step < 6000; step++) {
        ck_assert_uint_eq(train_anchors(mask, 16, 2, 1, step, 0, ret), 2);
        ck_assert_uint_lt(ret[0], ret[1]);
        counts[ret[0]]++;
        counts[ret[1]]++;
    }
    for (uint32_t i = 0; i < 6; i++) /* 2000 each, deviation 37 */
        ck_assert_msg(counts[legal[i]] > 1800 && counts[legal[i]] < 2200, "%u: %u", legal[i],
                      counts[legal[i]]);
    ck_assert_uint_eq(train_anchors(mask, 1, 4, 1, 1, 1, ret), 0);
}
END_TEST

/* Labels and weights of rows (TRN-01); nothing supervised gives zeros, not 0 / 0 (TRN-02). */
START_TEST(test_labels)
{
    struct error err = {0};
    struct model_file *target = NULL;
    struct train_model m;
    struct train_par par;
    struct train_work w;
    struct train_stats s;
    const uint32_t ids[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, anchors[2] = {4, 9};
    const uint8_t mask[10] = {0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, none[10] = {0};
    static float taps[10 * 48];
    ck_ok(model_file_open(test_path(TARGET), &target, &err), &err);
    const struct train_shape shape = {.layers = 1,
                                      .hidden = 48,
                                      .ffn = 32,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_dim = 16,
                                      .n_taps = 1,
                                      .tap_layers = {2},
                                      .target_hidden = 48,
                                      .target_layers = 5,
                                      .window = 4,
                                      .mask_token = 271,
                                      .vocab = VOCAB,
                                      .draft_vocab = VOCAB,
                                      .max_position = 64,
                                      .eps = 1e-6f,
                                      .rope_theta = 1e6};
    ck_ok(train_model_init(&m, &shape, target, NULL, &err), &err);
    ck_ok(train_init(&m, target, false, 1, &err), &err);
    ck_ok(train_par_init(&par, DK_TIER_C, 1, false, &err), &err);
    ck_ok(train_work_init(&w, &m, &par, 1, 16, 2, 16, &err), &err);
    for (size_t i = 0; i < ARRAY_LEN(taps); i++)
        taps[i] = (float)(i % 7) - 3;
    struct train_item it = {
        .ids = ids, .mask = mask, .taps = taps, .anchors = anchors, .n = 10, .n_anchors = 2};
    const struct train_batch b = {.items = &it, .n_items = 1};
    ck_ok(train_begin(&w, &b, 4, &err), &err);
    ck_assert_uint_eq(w.n_ctx, 9); /* up to the last anchor, it not included */
    for (uint32_t k = 0; k < 3; k++) {
        ck_assert_uint_eq(w.rows[k].label, 5 + k);
        ck_assert(w.rows[k].supervised &&
                  fabs((double)w.rows[k].weight - exp(-(double)k / 4)) < 1e-6);
        ck_assert(!w.rows[3 + k].supervised && w.rows[3 + k].weight == 0); /* past the end */
    }
    ck_assert_uint_eq(w.tokens[0], 4);
    ck_assert_uint_eq(w.tokens[4], 9);
    const struct train_objective o = {
        .edit = true, .mix = true, .eta = 0.5f, .gamma = 4, .p2_weight = 1};
    train_losses(&w, &o, true, &s);
    ck_assert(s.n_supervised == 3 && s.n_blocks == 1 && s.loss[0] > 0 && !s.bad);

    it.mask = none;
    ck_ok(train_begin(&w, &b, 4, &err), &err);
    train_losses(&w, &o, true, &s);
    ck_assert(s.loss[0] == 0 && s.loss[1] == 0 && s.denominator == 0 && !s.bad);
    for (size_t i = 0; i < m.layout.total; i++)
        ck_fast(w.grad[i] == 0);
    const uint32_t wrong[2] = {9, 4};
    it.anchors = wrong;
    ck_fails(train_begin(&w, &b, 4, &err), INVALID, &err);
    train_work_done(&w);
    train_par_done(&par);
    train_model_done(&m);
    model_file_free(target);
}
END_TEST

/* Memory runs out anywhere while a state is written or read. */
START_TEST(test_no_memory)
{
    setup();
    struct fit_options o = options("a");
    o.stop_after = 1;
    run(&o, 1);
    struct test_oom oom = {0};
    while (test_oom_next(&oom)) {
        struct train_state s = {0};
        struct error err = {0};
        int r = checkpoint_read(step_file("a", 1), &s, &err);
        if (r == 0)
            r = checkpoint_write(at("copy"), &s, &err);
        train_state_done(&s);
        mem_set_fail_hook(NULL, NULL); /* until the next round sets it */
        /* The JSON library does without one of its allocations: then the file must be right. */
        if (r == 0)
            same_file(step_file("a", 1), at("copy"));
        else
            ck_assert_msg(oom.failed && r == DEDIT_E_NOMEM, "%zu: %d %s", oom.nth, r, err.msg);
    }
    same_file(step_file("a", 1), at("copy"));
    teardown();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("train-fit");
    TCase *c = test_case(s, "runs");
    tcase_add_test(c, test_resume);
    tcase_add_test(c, test_invariance);
    tcase_add_test(c, test_stop);
    tcase_add_loop_test(c, test_torn, 0, 2);
    tcase_add_test(c, test_full_disk);
    tcase_add_test(c, test_kill);
    tcase_add_test(c, test_refusals);
    tcase_add_test(c, test_mismatch);
    tcase_add_test(c, test_bad_numbers);
    tcase_add_loop_test(c, test_learns, 0, 2);
    tcase_add_test(c, test_widen);
    tcase_add_loop_test(c, test_export, 0, 2);
    tcase_add_loop_test(c, test_from_drafter, 0, 2);
    c = test_case(s, "parts");
    tcase_add_test(c, test_order);
    tcase_add_test(c, test_anchors);
    tcase_add_test(c, test_labels);
    tcase_add_test(c, test_no_memory);
    return test_main(s);
}
