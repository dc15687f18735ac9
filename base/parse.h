/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and UTF-8 from text, the same in every locale.  Each returns 0 or DEDIT_E_INVALID
 * (DEDIT_E_LIMIT when out of range) and accepts the whole string or nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int parse_u64(const char *s, uint64_t *ret);
int parse_i64(const char *s, int64_t *ret);
int parse_u32(const char *s, uint32_t max, uint32_t *ret);
int parse_double(const char *s, double *ret);            /* finite decimal numbers only */
int parse_bool(const char *s, bool *ret);                /* yes/no true/false on/off 1/0 */
int parse_size(const char *s, uint64_t *ret);            /* bytes; suffix K M G T = powers of 1024 */
int parse_duration_ns(const char *s, uint64_t *ret);     /* 5s 200ms 2min 1h; bare number = seconds */
/* "%.17g" with '.' whatever the locale; buf of 32 bytes. Shortest form that reads back equal. */
const char *format_double(double v, char buf[32]);

/* Decodes one code point from s[0..n): returns its length 1-4, or 0 when the bytes at s are not a
 * whole valid sequence (overlong, surrogate, > 10FFFF, cut). */
size_t utf8_decode(const char *s, size_t n, uint32_t *ret);
size_t utf8_encode(uint32_t cp, char out[4]); /* 0 for a surrogate or > 10FFFF */
bool utf8_valid(const char *s, size_t n);
