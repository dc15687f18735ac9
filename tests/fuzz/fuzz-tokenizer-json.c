/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as tokenizer.json (then, behind a NUL each: tokenizer_config.json, a text), or as a GGUF
 * file's metadata when they begin with "GGUF".  What loads must encode and decode within its rules.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"

static const char sample[] =
    "it's <x> 12\xc3\xa9 e\xcc\x81\xcc\xa3 ab\tabab\n\n  z\xe2\x80\x83q <|im_end|>";

static void check_decode(const struct tokenizer *t, const struct token_list *l)
{
    struct detokenizer d = {0};
    _cleanup_strbuf_ struct strbuf out = {0};
    for (size_t i = 0; i < l->len; i++) {
        FUZZ_CHECK(l->ids[i] < tokenizer_n_tokens(t));
        if (detokenizer_push(&d, t, l->ids[i], i % 2, &out) < 0)
            return;
        FUZZ_CHECK(utf8_valid(out.s ? out.s : "", out.len));
    }
    if (detokenizer_flush(&d, &out) == 0)
        FUZZ_CHECK(utf8_valid(out.s ? out.s : "", out.len));
}

static void use(const struct tokenizer *t, const char *text, size_t len)
{
    uint32_t bos, eos;
    size_t n;
    for (unsigned flags = 0; flags < 4; flags++) {
        _cleanup_token_list_ struct token_list l = {0};
        size_t dropped = 0;
        struct error err = {0};
        if (tokenizer_encode(t, text, len, flags, &l, &dropped, &err) < 0) {
            FUZZ_CHECK(l.len == 0 && err.code);
            continue;
        }
        check_decode(t, &l);
        /* Plain text never gives a control token, BOS at the front apart. */
        bool added_bos = (flags & TOKENIZE_BOS) && tokenizer_bos(t, &bos);
        for (size_t i = added_bos ? 1 : 0; i < l.len && !(flags & TOKENIZE_SPECIAL); i++)
            FUZZ_CHECK(!tokenizer_is_special(t, l.ids[i]));
    }
    if (tokenizer_eos(t, &eos))
        FUZZ_CHECK(tokenizer_token_bytes(t, eos, &n) != NULL && tokenizer_is_special(t, eos));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = NULL;
    struct gguf *g = NULL;
    struct error err = {0};
    const char *s = (const char *)data, *config = NULL, *text = sample;
    size_t config_len = 0, text_len = sizeof(sample) - 1;
    int r;
    if (size >= 4 && !memcmp(s, "GGUF", 4)) {
        r = gguf_parse(data, size, "fuzz", &g, &err);
        if (r == 0)
            r = tokenizer_from_gguf(g, &t, &err);
    } else {
        const char *nul = size ? memchr(s, '\0', size) : NULL;
        size_t len = nul ? (size_t)(nul - s) : size;
        if (nul) {
            config = nul + 1;
            config_len = size - len - 1;
            nul = config_len ? memchr(config, '\0', config_len) : NULL;
        }
        if (nul) {
            text = nul + 1;
            text_len = config_len - (size_t)(nul - config) - 1;
            config_len = (size_t)(nul - config);
        }
        r = tokenizer_from_json(s, len, config_len ? config : NULL, config_len, "fuzz", &t, &err);
    }
    FUZZ_CHECK(r == 0 ? t != NULL : t == NULL && err.code == r && err.msg[0]);
    if (t)
        use(t, text, text_len);
    tokenizer_free(t);
    gguf_free(g);
    return 0;
}
