/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First byte 0..127: the rest is a chat template to recognise.  128..255: a chat in some format:
 * byte 1 has the options, then messages, each a byte for role and parts and texts that end in NUL.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parse.h"
#include "engine/chat.h"

static void detect(const uint8_t *data, size_t size)
{
    char *s = mem_strndup((const char *)data, size);
    enum chat_format f = CHAT_FORMAT_COUNT, g;
    struct error err = {0};
    if (!s)
        return;
    int r = chat_format_detect(s, &f, &err);
    FUZZ_CHECK(r == 0 || r == DEDIT_E_UNSUPPORTED);
    if (r == 0)
        FUZZ_CHECK(f < CHAT_FORMAT_COUNT && chat_format_parse(chat_format_name(f), &g) && g == f);
    else
        FUZZ_CHECK(f == CHAT_FORMAT_COUNT && strstr(err.msg, "--chat-format"));
    mem_free(s);
}

struct reader {
    const uint8_t *p, *end;
};

static uint8_t next_byte(struct reader *r)
{
    return r->p < r->end ? *r->p++ : 0;
}

/* A copy up to the next NUL. */
static char *next_text(struct reader *r)
{
    size_t left = (size_t)(r->end - r->p), n = strnlen((const char *)r->p, left);
    char *s = mem_strndup((const char *)r->p, n);
    if (!s)
        abort();
    r->p += n < left ? n + 1 : n;
    return s;
}

#define SPECIAL(id, text) "{\"id\": " #id ", \"content\": \"" text "\", \"special\": true}"

/* Bytes, and the control tokens of all formats. */
static struct tokenizer *make(void)
{
    _cleanup_strbuf_ struct strbuf b = {0};
    struct tokenizer *t = NULL;
    struct error err = {0};
    strbuf_adds(
        &b,
        "{\"added_tokens\": [" SPECIAL(256, "<|im_start|>") ", " SPECIAL(257, "<|im_end|>") ", " SPECIAL(258, "<|start_header_id|>") ", " SPECIAL(
            259,
            "<|end_header_id|>") ", " SPECIAL(260,
                                              "<|eot_id|>") ", " SPECIAL(261,
                                                                         "<|begin_of_text|>") ", {\"id\": 262, \"content\": \"<think>\"}], "
                                                                                              "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                                                                              "\"use_regex\": true}, \"model\": {\"merges\": [], \"vocab\": {");
    unsigned other = 0;
    for (unsigned i = 0; i < 256; i++) {
        char c[5] = "";
        bool printable =
            (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i <= 0xac) || (i >= 0xae && i <= 0xff);
        c[utf8_encode(printable ? i : 0x100 + other++, c)] = '\0';
        strbuf_addf(&b, "%s\"%s%s\": %u", i ? ", " : "", c[0] == '"' || c[0] == '\\' ? "\\" : "", c,
                    i);
    }
    strbuf_adds(&b, "}}}");
    if (!b.s || tokenizer_from_json(b.s, b.len, NULL, 0, "fuzz", &t, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    return t;
}

/* Made before main(), so that the replay does not take it for a leak; freed for the sanitizer. */
static struct tokenizer *tokenizer;

__attribute__((constructor)) static void make_tokenizer(void)
{
    tokenizer = make();
}

__attribute__((destructor)) static void free_tokenizer(void)
{
    tokenizer_free(tokenizer);
}

#define MESSAGES_MAX 6

static void check_render(enum chat_format f, const struct chat_message *m, size_t n,
                         const struct chat_options *o)
{
    const struct tokenizer *t = tokenizer;
    _cleanup_strbuf_ struct strbuf text = {0}, back = {0};
    _cleanup_token_list_ struct token_list ids = {0};
    struct detokenizer d = {0};
    struct error err = {0};
    int r = chat_render_text(f, m, n, o, &text, &err);
    FUZZ_CHECK(chat_render_ids(f, t, m, n, o, &ids, &err) == r);
    if (r == 0) {
        /* The ids spell the text, whichever of them are control tokens. */
        for (size_t i = 0; i < ids.len; i++)
            FUZZ_CHECK(detokenizer_push(&d, t, ids.ids[i], 0, &back) == 0);
        FUZZ_CHECK(text.len == back.len && !memcmp(text.s, back.s, text.len));
        FUZZ_CHECK(utf8_valid(text.s, text.len));
        /* As many turns as the format writes: no message can open one. */
        size_t opened = 0;
        for (size_t i = 0; i < ids.len; i++)
            opened += ids.ids[i] == 256 || ids.ids[i] == 258;
        FUZZ_CHECK(opened <= n + 3);
    } else {
        FUZZ_CHECK(err.code == r && err.msg[0] && text.len == 0 && ids.len == 0);
    }
}

static void render(struct reader r)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    struct chat_message m[MESSAGES_MAX] = {0};
    char *texts[MESSAGES_MAX * 3 + 2];
    size_t n = 0, n_texts = 0;
    enum chat_format f = (enum chat_format)(next_byte(&r) % (CHAT_FORMAT_COUNT + 1));
    uint8_t bits = next_byte(&r);
    struct chat_options o = {.add_generation_prompt = bits & 1,
                             .enable_thinking = (bits >> 1 & 3) - 1};
    if (bits & 8)
        o.tools_json = texts[n_texts++] = next_text(&r);
    if (bits & 16)
        o.date = texts[n_texts++] = next_text(&r);
    while (r.p < r.end && n < MESSAGES_MAX) {
        uint8_t b = next_byte(&r);
        m[n].role = roles[b & 3];
        m[n].content = texts[n_texts++] = next_text(&r);
        m[n].content_len = strlen(m[n].content);
        if (b & 4)
            m[n].reasoning = texts[n_texts++] = next_text(&r);
        if (b & 8)
            m[n].tool_calls_json = texts[n_texts++] = next_text(&r);
        n++;
    }
    check_render(f, m, n, &o);
    while (n_texts > 0)
        mem_free(texts[--n_texts]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] < 128)
        detect(data + 1, size - 1);
    else
        render((struct reader){data + 1, data + size});
    return 0;
}
