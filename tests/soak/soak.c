/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/soak/soak.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/dedit.h"

#include <config.h>

#define STREAMS   2
#define RSS_SLACK (2.0 * 1048576)

static struct soak *soak;
static char folder[64];
static pid_t daemon_pid;
static int n_tests, n_bad;

struct measure {
    double rss, fds, maps;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void rest(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void result(bool good, const char *name)
{
    n_bad += !good;
    printf("%s %d - soak:%s\n", good ? "ok" : "not ok", ++n_tests, name);
    fflush(stdout);
}

/* ---- the daemon --------------------------------------------------------------------------------------- */

static bool start_daemon(const char *program, const char *model)
{
    char conf[128], log[128];
    snprintf(folder, sizeof folder, "/tmp/dedit-soak-XXXXXX");
    if (!mkdtemp(folder))
        return false;
    snprintf(soak->socket, sizeof soak->socket, "%s/s", folder);
    snprintf(conf, sizeof conf, "%s/conf", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    int fd = open(conf, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    close(fd);
    daemon_pid = fork();
    if (daemon_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(fd, 1);
        dup2(fd, 2);
        execl(program, program, "--config", conf, "--socket", soak->socket, "--threads", "1",
              "--model", model, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 3000; i++) {
        double ready;
        if (soak_metric(soak, "dedit_connections", &ready) && ready >= 1)
            return true;
        if (waitpid(daemon_pid, NULL, WNOHANG) == daemon_pid)
            break;
        rest(0.02);
    }
    return false;
}

static bool stop_daemon(void)
{
    int status = -1;
    kill(daemon_pid, SIGTERM);
    waitpid(daemon_pid, &status, 0);
    return status == 0;
}

static void show_log(void)
{
    char path[128], line[512];
    snprintf(path, sizeof path, "%s/log", folder);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        printf("# %s", line);
    if (f)
        fclose(f);
}

static void remove_folder(void)
{
    static const char *const names[] = {"s", "s.lock", "conf", "log", "s-metrics"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static struct measure measure(void)
{
    struct measure m = {0};
    char path[64], line[512];
    long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)daemon_pid);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%*d %ld", &pages) == 1)
        m.rss = (double)pages * (double)sysconf(_SC_PAGESIZE);
    if (f)
        fclose(f);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon_pid);
    for (int i = 0; i < 10;
         i++) { /* the connection that has just asked for metrics may still be there */
        double n = 0;
        DIR *d = opendir(path);
        for (const struct dirent *e; d && (e = readdir(d));)
            n += e->d_name[0] != '.';
        if (d)
            closedir(d);
        m.fds = i && m.fds < n ? m.fds : n;
        rest(0.005);
    }
    snprintf(path, sizeof path, "/proc/%d/maps", (int)daemon_pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        m.maps++;
    if (f)
        fclose(f);
    return m;
}

/* Once nobody is there but this metric's own connection, nothing may be held for anybody. */
static bool nothing_held(void)
{
    static const struct {
        const char *name;
        double value;
    } wanted[] = {{"dedit_connections", 1},          {"dedit_num_requests_running", 0},
                  {"dedit_num_requests_waiting", 0}, {"dedit_num_requests_parked", 0},
                  {"dedit_held_requests", 0},        {"dedit_held_prompt_bytes", 0},
                  {"dedit_held_ring_bytes", 0},      {"dedit_held_kv_blocks", 0},
                  {"dedit_kv_cache_usage_perc", 0}};
    double v = -1, until = now() + 30;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted;) {
        if (soak_metric(soak, wanted[i].name, &v) && v == wanted[i].value) {
            i++;
            continue;
        }
        if (now() > until) {
            printf("# %s is %g, wanted %g\n", wanted[i].name, v, wanted[i].value);
            return false;
        }
        rest(0.01);
    }
    return true;
}

static bool flat(const char *what, struct measure a, struct measure b)
{
    printf("# %s: RSS %.2f -> %.2f MiB, descriptors %.0f -> %.0f, maps %.0f -> %.0f\n", what,
           a.rss / 1048576, b.rss / 1048576, a.fds, b.fds, a.maps, b.maps);
#ifdef DEDIT_SANITIZED
    return b.fds <= a.fds; /* quarantines and shadows grow */
#else
    return b.fds <= a.fds && b.maps <= a.maps + 4 && b.rss <= a.rss * 1.05 + RSS_SLACK;
#endif
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static void make_cases(void)
{
    uint64_t random = 12345;
    for (int i = 0; i < SOAK_CASES; i++) {
        struct soak_case *k = &soak->cases[i];
        k->n_prompt = 1 + soak_random(&random) % 60;
        k->max_tokens = 1 + soak_random(&random) % 40;
        k->temperature = i % 3 ? 1.0f : 0.0f;
        k->seed = soak_random(&random);
        for (uint32_t t = 0; t < k->n_prompt; t++) /* common beginnings, for the prefix cache */
            k->prompt[t] = t < 20 ? (uint32_t)(i % 4 * 20) + t : soak_random(&random) % SOAK_VOCAB;
    }
}

static pid_t spawn(void (*fn)(struct soak *, unsigned), unsigned number)
{
    pid_t p = fork();
    if (p == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fn(soak, number);
        _exit(0);
    }
    return p;
}

static void client(struct soak *s, unsigned number)
{
    soak_client(s, number, (uint64_t)number * 1000003 + s->begun);
}

/* Kills and replaces one of the clients now and then.  Returns the kills. */
static uint64_t supervise(pid_t *pids, unsigned n, uint64_t every)
{
    uint64_t kills = 0, random = 99, next = every;
    for (unsigned left = n; left;) {
        uint64_t begun = __atomic_load_n(&soak->begun, __ATOMIC_RELAXED);
        if (begun >= next && begun < soak->target) {
            unsigned i = soak_random(&random) % n;
            next = begun + every;
            if (pids[i] > 0 && kill(pids[i], SIGKILL) == 0) {
                waitpid(pids[i], NULL, 0);
                pids[i] = spawn(client, i);
                kills++;
            }
        }
        for (unsigned i = 0; i < n; i++)
            if (pids[i] > 0 && waitpid(pids[i], NULL, WNOHANG) == pids[i]) {
                pids[i] = 0;
                left--;
            }
        rest(0.002);
    }
    return kills;
}

static void run_requests(uint64_t n, unsigned clients)
{
    pid_t pids[SOAK_SLOTS];
    struct measure first = {0};
    double start = now();
    uint64_t kills = 0;
    /* A tenth warms up; the rest may not take more than that did. */
    for (int part = 0; part < 2; part++) {
        soak->begun = 0;
        soak->target = part ? n - n / 10 : n / 10;
        for (unsigned i = 0; i < clients; i++)
            pids[i] = spawn(client, i);
        kills += supervise(pids, clients, n >= 2000 ? 97 : 29);
        if (!nothing_held())
            soak_wrong(soak, "something is held after all clients are gone");
        if (!part)
            first = measure();
    }
    printf("# %llu requests of %u clients in %.1f s: %llu whole, %llu cancelled, %llu let go, %llu "
           "reconnects, %llu clients killed\n",
           (unsigned long long)n, clients, now() - start, (unsigned long long)soak->whole,
           (unsigned long long)soak->cancelled, (unsigned long long)soak->abandoned,
           (unsigned long long)soak->reconnects, (unsigned long long)kills);
    result(soak->wrong == 0, "every answer is the one it has alone");
    result(flat("requests", first, measure()), "memory, descriptors and maps stay flat");
    result(nothing_held(), "nothing is held for clients that are gone");
    result(soak->whole + soak->cancelled + soak->abandoned + kills >= n * 9 / 10,
           "the requests were made");
}

/* ---- kills ------------------------------------------------------------------------------------------------ */

static bool kill_some(uint64_t from, uint64_t to)
{
    enum { AT_ONCE = 4 };
    for (uint64_t i = from; i < to; i += AT_ONCE) {
        pid_t p[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) {
            p[k] = fork();
            if (p[k] == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                soak_die_at(soak, (unsigned)((i + (uint64_t)k) % soak_n_steps));
            }
        }
        for (int k = 0; k < AT_ONCE; k++) {
            int status;
            if (p[k] < 0 || waitpid(p[k], &status, 0) != p[k] || !WIFSIGNALED(status) ||
                WTERMSIG(status) != SIGKILL) {
                soak_wrong(soak, "step %s: ended another way",
                           soak_step_name((unsigned)((i + (uint64_t)k) % soak_n_steps)));
                return false;
            }
        }
    }
    return true;
}

static void run_kills(uint64_t n)
{
    pid_t streams[STREAMS];
    struct measure first;
    double start = now();
    soak->stop = 0;
    soak->whole = 0;
    kill_some(0, n / 10);
    nothing_held();
    first = measure();
    for (unsigned i = 0; i < STREAMS; i++)
        streams[i] = spawn(soak_stream, i);
    bool good = kill_some(n / 10, n);
    __atomic_store_n(&soak->stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < STREAMS; i++)
        waitpid(streams[i], NULL, 0);
    printf("# %llu kills at %u steps in %.1f s, with %d streams: %llu answers\n",
           (unsigned long long)n, soak_n_steps, now() - start, STREAMS,
           (unsigned long long)soak->whole);
    result(good && soak->wrong == 0 && soak->whole > 0, "kills change nobody else's answers");
    result(nothing_held(), "nothing is held for clients that were killed");
    result(flat("kills", first, measure()), "memory, descriptors and maps stay flat after kills");
}

/* ---- the whole ----------------------------------------------------------------------------------------------- */

static void usage(FILE *to)
{
    fputs(
        "usage: soak [--requests N] [--clients N] [--kills N] [--whole] --daemon FILE --model PATH\n"
        "  --requests N   requests of all clients (300)\n"
        "  --clients N    clients at once, at most 64 (16)\n"
        "  --kills N      clients that are killed, each at one of its steps (100)\n"
        "  --whole        20,000 requests and 10,000 kills\n",
        to);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"requests", 1, NULL, 'r'}, {"clients", 1, NULL, 'c'},
                                            {"kills", 1, NULL, 'k'},    {"whole", 0, NULL, 'w'},
                                            {"daemon", 1, NULL, 'd'},   {"model", 1, NULL, 'm'},
                                            {"help", 0, NULL, 'h'},     {NULL, 0, NULL, 0}};
    uint64_t requests = 300, kills = 100;
    unsigned clients = 16;
    const char *program = NULL, *model = NULL;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'r':
            requests = strtoull(optarg, NULL, 10);
            break;
        case 'c':
            clients = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'k':
            kills = strtoull(optarg, NULL, 10);
            break;
        case 'w':
            requests = 20000;
            kills = 10000;
            break;
        case 'd':
            program = optarg;
            break;
        case 'm':
            model = optarg;
            break;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
    }
    if (!program || !model || clients < 1 || clients > SOAK_SLOTS || optind < argc) {
        usage(stderr);
        return 2;
    }
    soak = mmap(NULL, sizeof *soak, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (soak == MAP_FAILED)
        return 1;
    make_cases();
    if (!start_daemon(program, model) || !soak_references(soak)) {
        printf("# %s\n", soak->why);
        show_log();
        printf("Bail out! the daemon does not start\n");
        return 1;
    }
    if (requests)
        run_requests(requests, clients);
    if (kills)
        run_kills(kills);
    if (soak->wrong)
        printf("# %llu wrong; the first: %s\n", (unsigned long long)soak->wrong, soak->why);
    result(stop_daemon(), "the daemon ends in order");
    if (n_bad)
        show_log();
    remove_folder();
    printf("1..%d\n", n_tests);
    return n_bad != 0;
}
