/* SPDX-License-Identifier: Apache-2.0 */
/* Round trips to the daemon beside those over a bare SEQPACKET pair to a process that sends back a packet of
 * the answer's size; and what idle connections cost. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/parse.h"
#include "bench/daemon/measure.h"
#include "client/dedit.h"

#define ASKED  4  /* bytes of a Health message */
#define ANSWER 40 /* and of its answer */

static int complain(const struct dedit_error *e)
{
    fprintf(stderr, "measure: %s\n", e->msg);
    return 1;
}

/* A process on the n-th CPU that echoes; the socket to it, or -1. In the child: -2, when it is to end. */
static int echo(unsigned cpu, pid_t *ret_pid)
{
    int pair[2];
    char b[256] = "";
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    *ret_pid = fork();
    if (*ret_pid != 0) {
        close(pair[1]);
        return pair[0];
    }
    close(pair[0]);
    measure_pin(cpu);
    while (recv(pair[1], b, sizeof b, 0) > 0)
        if (send(pair[1], b, ANSWER, MSG_NOSIGNAL) < 0)
            break;
    return -2;
}

static double echo_median(int sock, double *one, uint32_t n)
{
    char b[256] = "";
    for (uint32_t i = 0; i < n; i++) {
        uint64_t start = clock_now_ns();
        if (send(sock, b, ASKED, MSG_NOSIGNAL) < 0 || recv(sock, b, sizeof b, 0) < 0)
            return 0;
        one[i] = (double)(clock_now_ns() - start);
    }
    return measure_median(one, n);
}

static int ping_median(struct dedit_client *c, double *one, uint32_t n, double *ret)
{
    struct dedit_error e;
    char word[32];
    for (uint32_t i = 0; i < n; i++) {
        uint64_t start = clock_now_ns();
        if (dedit_client_health(c, word, NULL, &e) < 0)
            return complain(&e);
        one[i] = (double)(clock_now_ns() - start);
    }
    *ret = measure_median(one, n);
    return 0;
}

/* Where the daemon's thread runs is the kernel's choice, so the echo that is faster counts: that on our CPU
 * or that on another one. */
int measure_ping(const struct measure *m)
{
    struct dedit_client *c = NULL;
    struct dedit_error e;
    pid_t pid[2] = {-1, -1};
    int sock[2], status = 0;
    double *one = mem_array(m->count, sizeof *one),
           *all = mem_array(5 * m->repetitions, sizeof *all);
    if (!one || !all)
        return 1;
    double *daemon = all, *best = all + m->repetitions, *here = best + m->repetitions,
           *there = here + m->repetitions, *work = there + m->repetitions;
    for (unsigned i = 0; i < 2; i++)
        if ((sock[i] = echo(i, &pid[i])) < 0)
            return sock[i] == -2 ? 0 : 1;
    measure_pin(0);
    if (dedit_client_connect(m->socket, &c, &e) < 0)
        status = complain(&e);
    for (uint32_t r = 0; r < m->repetitions && !status; r++) {
        status = ping_median(c, one, m->count, &daemon[r]);
        here[r] = echo_median(sock[0], one, m->count);
        there[r] = echo_median(sock[1], one, m->count);
        best[r] = here[r] < there[r] ? here[r] : there[r];
    }
    /* The second child holds the first one's socket, too: all are closed before any is waited for. */
    for (unsigned i = 0; i < 2; i++)
        close(sock[i]);
    for (unsigned i = 2; i-- > 0;)
        waitpid(pid[i], NULL, 0);
    if (!status) {
        struct stats ratio = stats_ratio(daemon, best, m->repetitions, work);
        measure_print("ping, p50", stats_of(daemon, m->repetitions), 1e-3, "us");
        measure_print("bare SEQPACKET echo, same CPU, p50", stats_of(here, m->repetitions), 1e-3,
                      "us");
        measure_print("bare SEQPACKET echo, other CPU, p50", stats_of(there, m->repetitions), 1e-3,
                      "us");
        measure_print("ping / the faster echo", ratio, 1, "  ");
    }
    dedit_client_free(c);
    mem_free(one);
    mem_free(all);
    return status;
}

/* ---- idle connections --------------------------------------------------------------------------------- */

struct usage {
    double cpu_s, private_kib, switches;
};

/* Value of "key: value" in a file of /proc/PID. */
static double field(int pid, const char *file, const char *key)
{
    char path[64], line[256];
    double v, sum = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) {
            char *p = line + strlen(key) + strspn(line + strlen(key), ": \t");
            p[strcspn(p, " \t\n")] = 0;
            if (parse_double(p, &v) == 0)
                sum += v;
        }
    if (f)
        fclose(f);
    return sum;
}

static struct usage usage_of(int pid)
{
    struct usage u = {0};
    char path[64], line[1024] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f)) {
        char *p = strrchr(line, ')'), *save = NULL;
        int i = 3;
        double v;
        for (char *w = p ? strtok_r(p + 1, " ", &save) : NULL; w;
             w = strtok_r(NULL, " ", &save), i++)
            if ((i == 14 || i == 15) && parse_double(w, &v) == 0)
                u.cpu_s += v / (double)sysconf(_SC_CLK_TCK);
    }
    if (f)
        fclose(f);
    u.private_kib =
        field(pid, "smaps_rollup", "Private_Clean") + field(pid, "smaps_rollup", "Private_Dirty");
    u.switches = field(pid, "status", "voluntary_ctxt_switches");
    return u;
}

int measure_idle(const struct measure *m)
{
    uint32_t n = m->clients ? m->clients : 1000, have = 0;
    struct dedit_error e;
    struct ucred peer;
    socklen_t len = sizeof peer;
    int status = 0;
    struct rlimit files = {.rlim_cur = 4 * n + 64, .rlim_max = 4 * n + 64};
    struct dedit_client **c = mem_calloc(n, sizeof *c);
    if (!c)
        return 1;
    setrlimit(RLIMIT_NOFILE, &files);
    if (dedit_client_connect(m->socket, &c[have], &e) < 0) {
        mem_free(c);
        return complain(&e);
    }
    have++;
    if (getsockopt(dedit_client_socket(c[0]), SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        status = 1;
    struct usage before = usage_of(peer.pid);
    for (; have < n && !status; have++)
        if (dedit_client_connect(m->socket, &c[have], &e) < 0) {
            status = complain(&e);
            break;
        }
    if (!status) {
        sleep(1);
        struct usage from = usage_of(peer.pid);
        sleep(m->seconds);
        struct usage to = usage_of(peer.pid);
        printf("%u connected clients that do nothing, %u s:\n", n, m->seconds);
        printf("  CPU time of the daemon      %.2f s\n", to.cpu_s - from.cpu_s);
        printf("  its main thread woke up     %.0f times\n", to.switches - from.switches);
        printf("  its memory grew by          %.1f KiB a client\n",
               (from.private_kib - before.private_kib) / (n - 1));
    }
    while (have)
        dedit_client_free(c[--have]);
    mem_free(c);
    return status;
}
