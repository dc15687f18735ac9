/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mapguard.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PLACES 128

/* size is 0 while a place is being filled or emptied, and says nothing then. */
static struct {
    uintptr_t addr;
    size_t size;
} places[PLACES];
static uint64_t faults;
static size_t page_bytes;

void map_guard_add(void *addr, size_t size)
{
    for (int i = 0; i < PLACES; i++) {
        uintptr_t none = 0;
        if (!__atomic_compare_exchange_n(&places[i].addr, &none, (uintptr_t)addr, false,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        __atomic_store_n(&places[i].size, size, __ATOMIC_RELEASE);
        return;
    }
}

void map_guard_remove(void *addr)
{
    for (int i = 0; i < PLACES; i++) {
        if (__atomic_load_n(&places[i].addr, __ATOMIC_RELAXED) != (uintptr_t)addr)
            continue;
        __atomic_store_n(&places[i].size, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&places[i].addr, 0, __ATOMIC_RELEASE);
        return;
    }
}

uint64_t map_guard_faults(void)
{
    return __atomic_load_n(&faults, __ATOMIC_ACQUIRE);
}

static bool is_guarded(uintptr_t p)
{
    for (int i = 0; i < PLACES; i++) {
        size_t size = __atomic_load_n(&places[i].size, __ATOMIC_ACQUIRE);
        uintptr_t addr = __atomic_load_n(&places[i].addr, __ATOMIC_RELAXED);
        if (size && p >= addr && p - addr < size)
            return true;
    }
    return false;
}

/* In the thread that has read: nothing but system calls and atomics. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
    int saved = errno;
    uintptr_t page = (uintptr_t)info->si_addr & ~(uintptr_t)(page_bytes - 1);
    (void)context;
    if (info->si_code > 0 && is_guarded((uintptr_t)info->si_addr) &&
        mmap((void *)page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
            MAP_FAILED) {
        __atomic_fetch_add(&faults, 1, __ATOMIC_RELEASE);
        errno = saved;
        return;
    }
    (void)signal(signal_number, SIG_DFL); /* the read is tried again, and ends the process */
    if (info->si_code <= 0)
        (void)raise(signal_number);
    errno = saved;
}

int map_guard_install(struct error *err)
{
    struct sigaction a = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&a.sa_mask);
    if (sigaction(SIGBUS, &a, NULL) < 0)
        return ERR(err, IO, "SIGBUS: %s", strerror(errno));
    return 0;
}
