/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text through fixed tokenizers that have every kind of step: the first byte chooses one and
 * the flags.  What can be expressed comes back; plain text gives no added token; a text's ids do
 * not depend on where it stands between control tokens.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/tokenizer_internal.h"

#define WORDS                                                                                      \
    "\"th\": 300, \"the\": 301, \"\\u0120t\": 302, \"\\u0120the\": 303, \"aa\": 304, "             \
    "\"aaaa\": 305, \"\\u010a\\u010a\": 306, \"\\u0120\\u0120\": 307, \"12\": 308, \"in\": 309, "  \
    "\"ing\": 310, \"\\u00c3\\u00a9\": 311, \"aaa\": 312, \"he\": 313"
#define MERGES                                                                                           \
    "[\"t h\", \"h e\", \"th e\", \"\\u0120 t\", \"\\u0120t he\", \"\\u0120 the\", \"a a\", \"aa aa\", " \
    "\"\\u010a \\u010a\", \"\\u0120 \\u0120\", \"1 2\", \"i n\", \"in g\", \"\\u00c3 \\u00a9\", "        \
    "\"aa a\"]"
#define ADDED                                                                                      \
    "[{\"id\": 400, \"content\": \"<|end|>\", \"special\": true}, "                                \
    "{\"id\": 401, \"content\": \"<w>\", \"single_word\": true}, "                                 \
    "{\"id\": 402, \"content\": \"<l>\", \"lstrip\": true, \"rstrip\": true}, "                    \
    "{\"id\": 403, \"content\": \"\\u00e9\\u00e9\", \"normalized\": true}, "                       \
    "{\"id\": 404, \"content\": \"<|end|>>\"}]"
#define BYTES(prefix, regex)                                                                       \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": " prefix ", \"use_regex\": " regex "}"

static const char *const tails[] = {
    /* 0: Qwen's split, NFC */
    "\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
    "\"pretokenizers\": [{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": "
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}}, " BYTES(
        "false", "false") "]}",
    /* 1: digits, GPT-2's split */
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
    "\"individual_digits\": true}, " BYTES("false", "true") "]}",
    /* 2: all is one word: the merge order of long pieces */
    "\"pre_tokenizer\": " BYTES("false", "false"),
    /* 3: odd behaviours, nothing lost */
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
    "\"behavior\": \"MergedWithNext\", \"pattern\": {\"String\": \"e\"}}, {\"type\": \"Split\", "
    "\"behavior\": \"MergedWithPrevious\", \"pattern\": {\"Regex\": \"(?=a)|\\\\s\"}, \"invert\": "
    "true}, {\"type\": \"Digits\"}, {\"type\": \"Split\", \"behavior\": \"Contiguous\", "
    "\"pattern\": {\"Regex\": \"\\\\w\"}}, " BYTES("false", "true") "]}",
};
#define N_TOKENIZERS (sizeof(tails) / sizeof(tails[0]))

static struct tokenizer *make(const char *tail, bool ignore_merges)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct tokenizer *t = NULL;
    struct error err = {0};
    strbuf_addf(&b,
                "{\"added_tokens\": " ADDED ", %s, \"model\": {\"ignore_merges\": %s, "
                "\"merges\": " MERGES ", \"vocab\": {" WORDS,
                tail, ignore_merges ? "true" : "false");
    unsigned other = 0;
    for (unsigned i = 0; i < 256; i++) {
        char c[5] = "";
        bool printable =
            (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i <= 0xac) || (i >= 0xae && i <= 0xff);
        c[utf8_encode(printable ? i : 0x100 + other++, c)] = '\0';
        strbuf_addf(&b, ", \"%s%s\": %u", c[0] == '"' || c[0] == '\\' ? "\\" : "", c, i);
    }
    strbuf_adds(&b, "}}}");
    if (!b.s || tokenizer_from_json(b.s, b.len, NULL, 0, "fuzz", &t, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    return t;
}

static void decode(const struct tokenizer *t, const struct token_list *l, struct strbuf *out)
{
    struct detokenizer d = {0};
    for (size_t i = 0; i < l->len; i++)
        FUZZ_CHECK(detokenizer_push(&d, t, l->ids[i], 0, out) == 0);
    FUZZ_CHECK(detokenizer_flush(&d, out) == 0);
}

static void check(const struct tokenizer *t, const char *text, size_t len, unsigned flags)
{
    _cleanup_token_list_ struct token_list plain = {0}, l = {0}, joined = {0};
    _cleanup_strbuf_ struct strbuf back = {0}, again = {0};
    struct error err = {0};
    int r = tokenizer_encode(t, text, len, 0, &plain, NULL, &err);
    FUZZ_CHECK((r == 0) == utf8_valid(text, len));
    if (r < 0)
        return;
    for (size_t i = 0; i < plain.len; i++)
        FUZZ_CHECK(!tokenizer_is_added(t, plain.ids[i]));
    decode(t, &plain, &back);
    if (!t->nfc)
        FUZZ_CHECK(back.len == len && (len == 0 || !memcmp(back.s, text, len)));
    FUZZ_CHECK(tokenizer_encode(t, text, len, flags, &l, NULL, &err) == 0);
    decode(t, &l, &again);
    FUZZ_CHECK(utf8_valid(again.s ? again.s : "", again.len));

    /* A choice per byte: all, none, and one of its own per byte of the text's own values. */
    uint8_t *allow = mem_alloc(len + 1);
    if (!allow)
        return;
    memset(allow, ALLOW_NONE, len + 1);
    FUZZ_CHECK(tokenizer_encode_allow(t, text, len, allow, 0, &joined, NULL, &err) == 0);
    FUZZ_CHECK(joined.len == plain.len &&
               (plain.len == 0 || !memcmp(joined.ids, plain.ids, plain.len * sizeof(uint32_t))));
    for (size_t i = 0; i < len; i++)
        allow[i] = i % 7 < 5 ? ALLOW_NOT_SPECIAL : ALLOW_NONE;
    joined.len = 0;
    FUZZ_CHECK(tokenizer_encode_allow(t, text, len, allow, 0, &joined, NULL, &err) == 0);
    for (size_t i = 0; i < joined.len; i++)
        FUZZ_CHECK(!tokenizer_is_special(t, joined.ids[i]));
    mem_free(allow);
}

/* Made before main(), so that the replay does not take them for a leak; freed for the sanitizer. */
static struct tokenizer *tokenizers[2 * N_TOKENIZERS];

__attribute__((constructor)) static void make_all(void)
{
    for (size_t i = 0; i < 2 * N_TOKENIZERS; i++)
        tokenizers[i] = make(tails[i % N_TOKENIZERS], i >= N_TOKENIZERS);
}

__attribute__((destructor)) static void free_all(void)
{
    for (size_t i = 0; i < 2 * N_TOKENIZERS; i++)
        tokenizer_free(tokenizers[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0)
        check(tokenizers[data[0] % (2 * N_TOKENIZERS)], (const char *)data + 1, size - 1,
              TOKENIZE_SPECIAL);
    return 0;
}
