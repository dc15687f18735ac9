/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers from text.  Only ASCII digits count, no leading blanks, the decimal sign is '.': what a
 * process's locale says does not matter. */
#include "base/parse.h"

#include <float.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads digits at *s and moves it behind them.  INVALID without a digit. */
static int digits(const char **s, uint64_t *ret)
{
    const char *p = *s;
    uint64_t v = 0;
    bool over = false;
    if (!is_digit(*p))
        return DEDIT_E_INVALID;
    for (; is_digit(*p); p++)
        over |= __builtin_mul_overflow(v, 10u, &v) ||
                __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v);
    *s = p;
    *ret = v;
    return over ? DEDIT_E_LIMIT : 0;
}

int parse_u64(const char *s, uint64_t *ret)
{
    uint64_t v = 0;
    int r = digits(&s, &v);
    if (r == DEDIT_E_INVALID || *s)
        return DEDIT_E_INVALID;
    if (r == 0)
        *ret = v;
    return r;
}

int parse_i64(const char *s, int64_t *ret)
{
    bool minus = *s == '-';
    uint64_t v = 0;
    int r = parse_u64(s + minus, &v);
    if (r < 0)
        return r;
    if (v > (uint64_t)INT64_MAX + minus)
        return DEDIT_E_LIMIT;
    *ret = minus ? (int64_t)(0 - v) : (int64_t)v;
    return 0;
}

int parse_u32(const char *s, uint32_t max, uint32_t *ret)
{
    uint64_t v = 0;
    int r = parse_u64(s, &v);
    if (r < 0)
        return r;
    if (v > max)
        return DEDIT_E_LIMIT;
    *ret = (uint32_t)v;
    return 0;
}

/* [+-] digits [. digits] [e [+-] digits], with at least one digit before the exponent. */
static bool is_decimal(const char *s)
{
    size_t n = 0;
    if (*s == '+' || *s == '-')
        s++;
    for (; is_digit(*s); s++)
        n++;
    if (*s == '.')
        for (s++; is_digit(*s); s++)
            n++;
    if (n == 0)
        return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '+' || *s == '-')
            s++;
        if (!is_digit(*s))
            return false;
        while (is_digit(*s))
            s++;
    }
    return *s == '\0';
}

/* The C locale, whatever setlocale() chose; (locale_t)0 only when memory is short.  In glibc this
 * locale is a static object: nothing is allocated and nothing need be freed. */
static locale_t c_locale(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

int parse_double(const char *s, double *ret)
{
    if (!is_decimal(s))
        return DEDIT_E_INVALID;
    locale_t c = c_locale();
    if (!c)
        return DEDIT_E_NOMEM;
    double v = strtod_l(s, NULL, c);
    freelocale(c);
    if (v > DBL_MAX || v < -DBL_MAX)
        return DEDIT_E_LIMIT;
    *ret = v;
    return 0;
}

int parse_bool(const char *s, bool *ret)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!strcmp(s, words[i])) {
            *ret = i % 2;
            return 0;
        }
    return DEDIT_E_INVALID;
}

int parse_size(const char *s, uint64_t *ret)
{
    static const char suffixes[] = "KMGT";
    uint64_t v = 0;
    int r = digits(&s, &v);
    if (r == DEDIT_E_INVALID)
        return r;
    unsigned shift = 0;
    if (*s) {
        const char *at = strchr(suffixes, *s);
        if (!at || s[1])
            return DEDIT_E_INVALID;
        shift = 10 * (unsigned)(at - suffixes + 1);
    }
    if (r < 0 || v > UINT64_MAX >> shift)
        return DEDIT_E_LIMIT;
    *ret = v << shift;
    return 0;
}

/* Unit at *s (moved behind it) in nanoseconds, 0 when there is none of that name. */
static uint64_t unit_ns(const char **s)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {
        {"ns", 1},
        {"us", 1000},
        {"ms", 1000000},
        {"s", 1000000000},
        {"min", 60000000000},
        {"h", 3600000000000},
        {"d", 86400000000000},
    };
    size_t n = 0;
    while ((*s)[n] >= 'a' && (*s)[n] <= 'z')
        n++;
    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        if (strlen(units[i].name) == n && !strncmp(units[i].name, *s, n)) {
            *s += n;
            return units[i].ns;
        }
    return 0;
}

/* A sum of terms such as "1h 30min" or "1.5s"; one bare number is in seconds. */
int parse_duration_ns(const char *s, uint64_t *ret)
{
    uint64_t total = 0;
    bool over = false;
    for (bool first = true; first || *s; first = false) {
        while (!first && *s == ' ')
            s++;
        uint64_t whole = 0, fraction = 0, scale = 1, unit;
        int r = digits(&s, &whole);
        if (r == DEDIT_E_INVALID)
            return r;
        over |= r < 0;
        if (*s == '.') {
            if (!is_digit(*++s))
                return DEDIT_E_INVALID;
            for (; is_digit(*s); s++)
                if (scale < 1000000000) { /* digits after the ninth are dropped */
                    fraction = fraction * 10 + (uint64_t)(*s - '0');
                    scale *= 10;
                }
        }
        if (*s == '\0' && first)
            unit = 1000000000;
        else
            unit = unit_ns(&s);
        if (!unit)
            return DEDIT_E_INVALID;
        /* unit / scale is whole or the other way round, except for ns: then it rounds down. */
        uint64_t part = unit >= scale ? fraction * (unit / scale) : fraction / (scale / unit);
        over |= __builtin_mul_overflow(whole, unit, &whole) ||
                __builtin_add_overflow(total, whole, &total) ||
                __builtin_add_overflow(total, part, &total);
    }
    if (over)
        return DEDIT_E_LIMIT;
    *ret = total;
    return 0;
}

const char *format_double(double v, char buf[32])
{
    locale_t c = c_locale();
    locale_t old = c ? uselocale(c) : (locale_t)0;
    /* Normal numbers: if 15 digits or fewer are enough, %.15g ends in zeros and drops them. */
    int precision = v > -DBL_MIN && v < DBL_MIN ? 1 : 15;
    for (; precision <= 17; precision++) {
        snprintf(buf, 32, "%.*g", precision, v);
        double back = c ? strtod_l(buf, NULL, c) : 0;
        if (!(back < v) && !(back > v) && c)
            break;
    }
    if (c) {
        uselocale(old);
        freelocale(c);
    }
    return buf;
}
