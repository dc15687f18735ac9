/* SPDX-License-Identifier: Apache-2.0 */
/* dedit-bench step --load: phases of loading, several times over, and what stays in memory. */
#include <string.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/parse.h"
#include "bench/step.h"

#define MAX_LOADS 21u

/* A line "Name:   123 kB" of /proc/self/status, in bytes; 0 when it is not there. */
static double status_bytes(const char *status, const char *name)
{
    const char *s = strstr(status, name);
    uint64_t v = 0;
    if (!s)
        return 0;
    for (s += strlen(name); *s && *s != '\n'; s++)
        if (*s >= '0' && *s <= '9')
            v = v * 10 + (uint64_t)(*s - '0');
    return (double)v * 1024;
}

static int print_memory(const struct step *s, struct error *err)
{
    struct backend_memory m;
    _cleanup_free_ char *status = NULL;
    size_t len;
    int r = file_read("/proc/self/status", 1u << 16, &status, &len, err);
    if (r < 0)
        return r;
    engine_memory(s->e, &m);
    const double mib = 1024 * 1024;
    double rss = status_bytes(status, "VmRSS:"), anon = status_bytes(status, "RssAnon:");
    double allowed =
        (double)m.weight_bytes + (double)m.packed_bytes + (double)m.kv_bytes + 64 * mib;
    printf("\nmemory, MiB: weights %.1f, packed copy %.1f, KV pool %.1f, scratch %.1f\n",
           (double)m.weight_bytes / mib, (double)m.packed_bytes / mib, (double)m.kv_bytes / mib,
           (double)m.scratch_bytes / mib);
    printf("resident: %.1f (anonymous %.1f, peak %.1f); weights + packed copy + KV pool + 64 are "
           "%.1f\n",
           rss / mib, anon / mib, status_bytes(status, "VmHWM:") / mib, allowed / mib);
    return 0;
}

int step_load(struct step *s, struct error *err)
{
    static const char *const names[] = {
        "open and check",           "vocabulary", "pack weights", "KV pool",
        "first prefill, 16 tokens", "together"};
    double ms[ARRAY_LEN(names)][MAX_LOADS];
    size_t n = s->repetitions < MAX_LOADS ? s->repetitions : MAX_LOADS;
    int r = print_memory(s, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        struct engine_load_timing t;
        s->e = engine_free(s->e);
        if ((r = engine_options_open(&s->engine, s->path, &s->e, err)) < 0)
            return r;
        engine_timing(s->e, &t);
        const double all[] = {t.open, t.vocabulary, t.pack, t.kv, t.first_prefill};
        ms[ARRAY_LEN(all)][i] = 0;
        for (size_t k = 0; k < ARRAY_LEN(all); k++) {
            ms[k][i] = all[k] * 1e3;
            ms[ARRAY_LEN(all)][i] += all[k] * 1e3;
        }
    }
    printf("\nphase                            ms  (95 %%)           %zu loads, page cache warm\n",
           n);
    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        struct stats t = stats_of(ms[k], n);
        printf("%-26s %8.1f (%.1f-%.1f)\n", names[k], t.median, t.lo, t.hi);
        if (s->csv.f)
            fprintf(s->csv.f, "\"%s\",\"%s\",%.3f,%.3f,%.3f\n", engine_model_name(s->e), names[k],
                    t.median, t.lo, t.hi);
    }
    return 0;
}
