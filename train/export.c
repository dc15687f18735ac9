/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint as a drafter that the engine loads: a DFlash folder with the authors' fields and
 * "dedit_config", or a GGUF file.  The sizes of the taps, by which training divides them, go into
 * the columns of fc.
 */
#include "train/export.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/out_file.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "train/from_drafter.h"
#include "train/tensor_file.h"

void export_options_init(struct export_options *o)
{
    *o = (struct export_options){.form = EXPORT_HF, .dtype = BACKEND_DTYPE_BF16};
}

/* ---- values ---------------------------------------------------------------------------------- */

static void fold_taps(float *fc, const struct train_state *s)
{
    const uint32_t width = train_tap_width(&s->shape), one = s->shape.target_hidden;
    for (uint32_t r = 0; r < s->shape.hidden; r++)
        for (uint32_t i = 0; i < width; i++)
            fc[(size_t)r * width + i] *= s->tap_scale[i / one];
}

static int32_t *offsets(const struct train_state *s)
{
    int32_t *d2t = mem_array(s->shape.draft_vocab, sizeof(*d2t));
    for (uint32_t i = 0; d2t && i < s->shape.draft_vocab; i++)
        d2t[i] = (int32_t)(s->target_ids[i] - i);
    return d2t;
}

/* ---- Hugging Face folder --------------------------------------------------------------------- */

static json_t *layer_types(const struct train_shape *s)
{
    json_t *a = json_array();
    for (uint32_t i = 0; a && i < s->layers; i++)
        if (json_array_append_new(a, json_string("full_attention")) < 0) {
            json_decref(a);
            a = NULL;
        }
    return a;
}

/* As short as reads back: 1e-05, not 9.9999997e-06. */
static double short_form(float x)
{
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)x);
        double v;
        if (parse_double(text, &v) == 0 && (float)v == x)
            return v;
    }
    return (double)x;
}

static json_t *config_json(const struct train_state *st, const struct model_config *c,
                           const char *dtype)
{
    const struct train_shape *s = &st->shape;
    json_t *o = json_pack(
        "{s[s] s{ss} ss sI s{sI so} sI sI sI sI sI sI sI sf sf sn sI sb sf so sb sn sI sb ss ss}",
        "architectures", "DFlashDraftModel", "auto_map", "AutoModel", "dflash.DFlashDraftModel",
        "model_type", "qwen3", "block_size", (json_int_t)s->window, "dflash_config",
        "mask_token_id", (json_int_t)s->mask_token, "target_layer_ids", train_taps_json(s),
        "num_target_layers", (json_int_t)s->target_layers, "num_hidden_layers",
        (json_int_t)s->layers, "hidden_size", (json_int_t)s->hidden, "intermediate_size",
        (json_int_t)s->ffn, "num_attention_heads", (json_int_t)s->heads, "num_key_value_heads",
        (json_int_t)s->kv_heads, "head_dim", (json_int_t)s->head_dim, "rms_norm_eps",
        short_form(s->eps), "rope_theta", s->rope_theta, "rope_scaling", "max_position_embeddings",
        (json_int_t)c->max_position, "attention_bias", 0, "attention_dropout", 0.0, "layer_types",
        layer_types(s), "use_sliding_window", 0, "sliding_window", "vocab_size",
        (json_int_t)s->vocab, "tie_word_embeddings", 0, "dtype", dtype, "hidden_act", "silu");
    json_t *d = json_pack("{sI sI sI so sI ss sO}", "W", (json_int_t)s->window, "mask",
                          (json_int_t)s->mask_token, "step", (json_int_t)st->step, "taps",
                          train_taps_json(s), "layers", (json_int_t)s->layers, "target", st->target,
                          "recipe", st->recipe);
    int r = o && d ? 0 : -1;
    if (r == 0 && s->draft_vocab != s->vocab)
        r = json_object_set_new(o, "draft_vocab_size", json_integer(s->draft_vocab));
    if (r == 0 && c->has_bos)
        r = json_object_set_new(o, "bos_token_id", json_integer(c->bos_id));
    if (r == 0 && c->n_eos_ids)
        r = json_object_set_new(o, "eos_token_id", json_integer(c->eos_ids[0]));
    if (r == 0)
        r = json_object_set(o, "dedit_config", d);
    json_decref(d);
    if (r == 0)
        return o;
    json_decref(o);
    return NULL;
}

static int write_config(const struct train_state *s, const struct model_config *c,
                        const char *folder, const char *dtype, struct error *err)
{
    _cleanup_strbuf_ struct strbuf path = {0};
    _cleanup_free_ char *text = train_json_text(config_json(s, c, dtype), JSON_INDENT(2));
    if (!text || strbuf_addf(&path, "%s/config.json", folder) < 0)
        return ERR_NOMEM(err);
    return file_write_atomic(path.s, text, strlen(text), err);
}

static int write_folder(const struct train_state *s, const float *p, const struct model_config *c,
                        const struct export_options *o, struct error *err)
{
    const bool wide = o->dtype == BACKEND_DTYPE_F32;
    _cleanup_strbuf_ struct strbuf path = {0};
    _cleanup_free_ struct tensor_out *t = mem_calloc((size_t)s->layout.n + 1, sizeof(*t));
    _cleanup_free_ uint16_t *half = wide ? NULL : mem_array(s->layout.total, sizeof(*half));
    _cleanup_free_ int32_t *d2t = offsets(s);
    size_t n = 0;
    if (!t || (!wide && !half) || !d2t || strbuf_addf(&path, "%s/model.safetensors", o->out) < 0)
        return ERR_NOMEM(err);
    for (size_t i = 0; !wide && i < s->layout.total; i++)
        half[i] = dk_f32_to_bf16(p[i]);
    if (s->shape.draft_vocab != s->shape.vocab)
        t[n++] = (struct tensor_out){"d2t", ST_I32, 1, {s->shape.draft_vocab}, d2t};
    for (uint32_t i = 0; i < s->layout.n; i++) {
        const struct train_tensor *x = &s->layout.t[i];
        t[n] = (struct tensor_out){
            .name = x->name, .dtype = wide ? ST_F32 : ST_BF16, .n_dims = x->norm ? 1 : 2};
        t[n].data = wide ? (const void *)(p + x->at) : (const void *)(half + x->at);
        t[n].dims[0] = x->norm ? x->cols : x->rows;
        t[n].dims[1] = x->cols;
        n++;
    }
    if (mkdir(o->out, 0777) < 0 && errno != EEXIST)
        return ERR(err, IO, "%s: cannot make the folder: %s", o->out, strerror(errno));
    int r = tensor_file_write(path.s, t, n, false, err);
    return r < 0 ? r : write_config(s, c, o->out, wide ? "float32" : "bfloat16", err);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Neither --output nor, in a folder, one of the files that are written there may be what is read. */
static int check_output(const struct export_options *o, struct error *err)
{
    static const char *const parts[] = {"model.safetensors", "config.json"};
    const char *const ins[] = {o->from, o->target};
    const struct out_use out = {"--output", o->out};
    int r = out_files_check(&out, 1, ins, ARRAY_LEN(ins), err);
    for (size_t i = 0; o->form == EXPORT_HF && i < ARRAY_LEN(parts) && r == 0; i++) {
        _cleanup_strbuf_ struct strbuf path = {0};
        if (strbuf_addf(&path, "%s/%s", o->out, parts[i]) < 0)
            return ERR_NOMEM(err);
        const struct out_use part = {"--output", path.s};
        r = out_files_check(&part, 1, ins, ARRAY_LEN(ins), err);
    }
    return r;
}

static int check_options(const struct export_options *o, struct error *err)
{
    struct stat st;
    if (!o->from || !o->target || !o->out)
        return ERR(err, INVALID, "export needs a checkpoint, the target model and where to write");
    if (o->dtype != BACKEND_DTYPE_BF16 && o->dtype != BACKEND_DTYPE_F32 &&
        !(o->dtype == BACKEND_DTYPE_Q8_0 && o->form == EXPORT_GGUF))
        return ERR(err, INVALID, "export writes bf16 or f32, and q8_0 to GGUF");
    if (!o->force && lstat(o->out, &st) == 0)
        return ERR(err, INVALID, "%s is there already; --force replaces it", o->out);
    return check_output(o, err);
}

static int check_target(const struct train_shape *s, const struct model_file *f, struct error *err)
{
    const struct model_config *c = model_file_config(f);
    if (s->hidden != c->hidden || s->vocab != c->vocab_size || s->target_layers != c->n_layers)
        return ERR(err, MISMATCH,
                   "the checkpoint is of a drafter for hidden %" PRIu32 ", %" PRIu32
                   " tokens and %" PRIu32 " layers; %s has %" PRIu32 ", %" PRIu32 " and %" PRIu32,
                   s->hidden, s->vocab, s->target_layers, model_file_name(f), c->hidden,
                   c->vocab_size, c->n_layers);
    return 0;
}

int train_export(const struct export_options *o, struct error *err)
{
    _cleanup_state_ struct train_state s = {0};
    _cleanup_(model_file_freep) struct model_file *target = NULL, *back = NULL;
    bool drafter = false;
    int r = check_options(o, err);
    if (r == 0)
        r = model_file_open(o->target, &target, err);
    if (r == 0)
        r = drafter_is(o->from, &drafter, err);
    if (r == 0)
        r = drafter ? state_from_drafter(o->from, target, false, &s, err)
                    : checkpoint_open(o->from, &s, err);
    if (r == 0 && drafter && !(s.recipe = json_object()))
        r = ERR_NOMEM(err);
    if (r == 0)
        r = check_target(&s.shape, target, err);
    if (r < 0)
        return r;
    float *p = s.average && !o->last ? s.average : s.param;
    _cleanup_free_ int32_t *d2t = offsets(&s);
    if (!d2t)
        return ERR_NOMEM(err);
    fold_taps(p + s.layout.t[TR_FC].at, &s);
    r = o->form == EXPORT_HF ? write_folder(&s, p, model_file_config(target), o, err)
                             : export_gguf(&s, p, d2t, model_file_config(target), o, err);
    /* What was written must load. */
    return r < 0 ? r : drafter_file_open(o->out, model_file_config(target), &back, err);
}
