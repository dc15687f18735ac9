/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and UTF-8 from any bytes: nothing crashes, and what is accepted reads back the same. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/parse.h"

static void numbers(const char *s)
{
    uint64_t u;
    int64_t i;
    uint32_t w;
    double d, back;
    bool b;
    char buf[32];
    (void)parse_u64(s, &u);
    (void)parse_i64(s, &i);
    if (parse_u32(s, 1000, &w) == 0)
        FUZZ_CHECK(w <= 1000);
    if (parse_double(s, &d) == 0) {
        FUZZ_CHECK(parse_double(format_double(d, buf), &back) == 0);
        FUZZ_CHECK(!memcmp(&d, &back, sizeof(d)));
    }
    (void)parse_bool(s, &b);
    (void)parse_size(s, &u);
    (void)parse_duration_ns(s, &u);
}

static void text(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint32_t cp;
        char out[4];
        size_t len = utf8_decode(s + at, n - at, &cp);
        if (len == 0)
            break;
        FUZZ_CHECK(utf8_encode(cp, out) == len && !memcmp(out, s + at, len));
        at += len;
    }
    FUZZ_CHECK(utf8_valid(s, n) == (at == n));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *s = mem_alloc(size + 1);
    if (!s)
        return 0;
    if (size)
        memcpy(s, data, size);
    s[size] = '\0';
    numbers(s);
    text(s, size);
    struct error e = {0};
    ERR(&e, FORMAT, "%s", s);
    error_prefix(&e, 0, "%s", s);
    FUZZ_CHECK(utf8_valid(e.msg, strlen(e.msg)));
    mem_free(s);
    return 0;
}
