/* SPDX-License-Identifier: Apache-2.0 */
/* How far synth and regen are: one line that is drawn again on a terminal, a line a minute in a log. */
#include <stdio.h>

#include "base/clock.h"
#include "train/compose.h"

#define TTY_NS UINT64_C(500000000)
#define LOG_NS UINT64_C(60000000000)

static void print_duration(double s, FILE *f)
{
    if (s < 90)
        fprintf(f, "%.0f s", s);
    else if (s < 5400)
        fprintf(f, "%.0f min", s / 60);
    else
        fprintf(f, "%.1f h", s / 3600);
}

static void print_line(const struct compose *c, double elapsed, bool end)
{
    struct author_stats st;
    const double rate = (double)(c->done - c->begun_tokens) / (elapsed > 0 ? elapsed : 1);
    author_get_stats(c->writer, &st);
    fprintf(stderr, "%s: %llu", c->command->name, (unsigned long long)c->done);
    if (c->tokens)
        fprintf(stderr, " of %llu", (unsigned long long)c->tokens);
    fprintf(stderr, " response tokens, %llu", (unsigned long long)c->lines);
    if (c->planned)
        fprintf(stderr, " of %llu", (unsigned long long)c->planned);
    fprintf(stderr, " conversations, %.0f tokens/s (%.0f with questions)", rate,
            (double)st.generated / (elapsed > 0 ? elapsed : 1));
    if (end) {
        fputs(" in ", stderr);
        print_duration(elapsed, stderr);
    } else if (c->tokens > c->done && rate > 0) {
        fputs(", ETA ", stderr);
        print_duration((double)(c->tokens - c->done) / rate, stderr);
    } else if (c->planned && c->next > c->begun_lines) {
        /* By conversations, when there are so many. */
        double each = elapsed / (double)(c->next - c->begun_lines);
        fputs(", ETA ", stderr);
        print_duration(each * (double)(c->planned - c->next), stderr);
    }
}

void compose_tell(struct compose *c, bool end)
{
    const uint64_t now = clock_now_ns();
    if (c->quiet || (!end && now - c->told_ns < (c->tty ? TTY_NS : LOG_NS)))
        return;
    c->told_ns = now;
    if (c->tty)
        fputs("\r\033[K", stderr);
    print_line(c, (double)(now - c->started_ns) * 1e-9, end);
    if (end) {
        uint64_t sum = 0;
        for (unsigned d = AUTHOR_KEPT + 1; d < AUTHOR_DROP_COUNT; d++)
            sum += c->dropped[d];
        fprintf(stderr, "; %llu loops cut, %llu dropped", (unsigned long long)c->loops,
                (unsigned long long)sum);
        for (unsigned d = AUTHOR_KEPT + 1; d < AUTHOR_DROP_COUNT; d++)
            if (c->dropped[d])
                fprintf(stderr, ", %llu %s", (unsigned long long)c->dropped[d],
                        author_drop_name((enum author_drop)d));
    }
    if (!c->tty || end)
        fputc('\n', stderr);
    fflush(stderr);
}
