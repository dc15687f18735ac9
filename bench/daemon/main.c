/* SPDX-License-Identifier: Apache-2.0 */
/* measure: handover, ping, idle and load. Everything but handover wants a daemon that runs. */
#include "bench/daemon/measure.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"

static const char usage[] =
    "usage: measure handover|ping|idle|load [options]\n\n"
    "  handover  a token from the engine's store to a reader that spins and to one that sleeps, beside a\n"
    "            bare futex wake-up between the same two processes\n"
    "  ping      a round trip to the daemon, beside an echo over a bare SEQPACKET pair\n"
    "  idle      what connected clients that do nothing cost the daemon\n"
    "  load      tokens/s of clients that each ask one prompt after the other, and their shares\n\n"
    "  --socket PATH      socket of the daemon (default: as dedit-client)\n"
    "  --model NAME       load: model (default: the daemon's)\n"
    "  --repetitions N    pairs (default: 40)\n"
    "  --count N          handovers or round trips a repetition (default: 200)\n"
    "  --clients N        idle, load (default: 8; idle 1000)\n"
    "  --tokens N         load: tokens of an answer (default: 128)\n"
    "  --rounds N         load: prompts of each client (default: 2)\n"
    "  --seconds N        idle: how long to look (default: 10)\n";

void measure_print(const char *name, struct stats s, double scale, const char *unit)
{
    printf("%-44s %9.3f %s [%.3f, %.3f]\n", name, s.median * scale, unit, s.lo * scale,
           s.hi * scale);
}

double measure_median(double *x, uint32_t n)
{
    return stats_of(x, n).median;
}

void measure_pin(unsigned n)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) < 0)
        return;
    n %= (unsigned)CPU_COUNT(&all);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &all) || n--)
            continue;
        CPU_ZERO(&one);
        CPU_SET(c, &one);
        if (sched_setaffinity(0, sizeof one, &one) < 0)
            fprintf(stderr, "measure: CPU %d cannot be had alone\n", c);
        return;
    }
}

int main(int argc, char **argv)
{
    struct measure m = {.repetitions = 40, .count = 200, .tokens = 128, .rounds = 2, .seconds = 10};
    const struct {
        const char *name;
        int (*run)(const struct measure *m);
    } commands[] = {{"handover", measure_handover},
                    {"ping", measure_ping},
                    {"idle", measure_idle},
                    {"load", measure_load}};
    static const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                            {"model", required_argument, NULL, 'm'},
                                            {"repetitions", required_argument, NULL, 0},
                                            {"count", required_argument, NULL, 1},
                                            {"clients", required_argument, NULL, 2},
                                            {"tokens", required_argument, NULL, 3},
                                            {"rounds", required_argument, NULL, 4},
                                            {"seconds", required_argument, NULL, 5},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    uint32_t *const numbers[] = {&m.repetitions, &m.count,  &m.clients,
                                 &m.tokens,      &m.rounds, &m.seconds};
    int o;

    while ((o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (o == 's')
            m.socket = optarg;
        else if (o == 'm')
            m.model = optarg;
        else if (o >= 0 && o < (int)ARRAY_LEN(numbers) &&
                 (parse_u32(optarg, 1000000, numbers[o]) < 0 || *numbers[o] == 0))
            o = '?';
        if (o == 'h' || o == '?') {
            fputs(usage, o == 'h' ? stdout : stderr);
            return o == 'h' ? 0 : 2;
        }
    }
    for (size_t i = 0; optind == argc - 1 && i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[optind], commands[i].name) == 0)
            return commands[i].run(&m);
    fputs(usage, stderr);
    return 2;
}
