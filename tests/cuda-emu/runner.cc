/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executes one launch: a fibre per CUDA thread, blocks one after another.  A fibre runs until it waits
 * at a barrier or a warp operation; the order in which fibres and blocks are taken is a setting
 * (CUEMU_ORDER), since a right kernel gives the same bits in any.
 */
#include "runner.h"

#include <cstdarg>
#include <map>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(CUEMU_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_acquire(void *);
extern "C" void __tsan_release(void *);
#define RELEASE(p) __tsan_release(p)
#define ACQUIRE(p) __tsan_acquire(p)
#else
#define RELEASE(p) ((void)0)
#define ACQUIRE(p) ((void)0)
#endif

extern "C" void cuemu_switch(void **save, void *to);
extern "C" void cuemu_trampoline();
asm(R"(
.text
.globl cuemu_switch
.hidden cuemu_switch
.type cuemu_switch,@function
cuemu_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
.size cuemu_switch,.-cuemu_switch
.globl cuemu_trampoline
.hidden cuemu_trampoline
cuemu_trampoline:
 call cuemu_entry
 hlt
)");

namespace cuemu
{
thread *self;
uint3 block_index;
dim3 block_dim, grid_dim;
const char *kernel_name;
char *shared_base;
size_t shared_used;
char *stack_base;
size_t stack_bytes;
uint32_t block_epoch;
uint32_t warp_epoch[max_threads / 32];

namespace
{
enum state { READY, AT_BARRIER, AT_WARP, DONE };
struct place {
    const char *file;
    int line;
};
struct fibre : thread {
    void *sp;
    enum state state;
    unsigned mask;     /* of the warp operation that it waits at */
    uint64_t versions; /* which of its values each lane brought to the last one, 2 bits each */
    place at;
    void *fake_stack, *tsan;
};
/* Four, not two: with partial masks a lane may be two operations ahead of who reads it. */
struct exchange_slot {
    alignas(16) unsigned char bytes[4][32];
};
/* A warp operation that some lanes of its mask have reached. */
struct meeting {
    unsigned mask, arrived;
    place at;
};
struct variable {
    const char *file, *name;
    int line;
    size_t at;
};

fibre fibres[max_threads];
exchange_slot slots[max_threads];
std::vector<meeting> meetings[max_threads / 32];
unsigned exited[max_threads / 32]; /* lanes */
unsigned n_threads, n_alive, n_at_barrier, predicate_count;
place barrier_at;
void *scheduler_sp;
#if defined(__SANITIZE_ADDRESS__)
void *scheduler_fake;
const void *scheduler_bottom;
size_t scheduler_size;
#endif
#if defined(CUEMU_TSAN)
void *scheduler_tsan;
char sync_key;
#endif
const closure *body;
std::vector<variable> variables;
size_t dynamic_bytes;
kernel_stats *now;

fibre *me()
{
    return static_cast<fibre *>(self);
}

void to_scheduler()
{
    fibre *f = me();
#if defined(CUEMU_TSAN)
    __tsan_switch_to_fiber(scheduler_tsan, 1);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(f->state == DONE ? nullptr : &f->fake_stack, scheduler_bottom,
                                   scheduler_size);
#endif
    cuemu_switch(&f->sp, scheduler_sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake_stack, nullptr, nullptr);
#endif
}

void release_barrier()
{
    for (unsigned i = 0; i < n_threads; i++)
        if (fibres[i].state == AT_BARRIER)
            fibres[i].state = READY;
    n_at_barrier = 0;
    block_epoch++;
    now->barriers++;
}

void release_meeting(unsigned warp, size_t which)
{
    meeting m = meetings[warp][which];
    uint64_t versions = 0;
    for (unsigned l = 0; l < 32; l++)
        if (m.mask >> l & 1)
            versions |= (uint64_t)fibres[warp * 32 + l].parity << 2 * l;
    for (unsigned l = 0; l < 32; l++)
        if (m.mask >> l & 1) {
            fibres[warp * 32 + l].state = READY;
            fibres[warp * 32 + l].versions = versions;
        }
    /* No shifting: the thread sanitizer would see its library's memmove as an access of this fibre. */
    meetings[warp][which] = meetings[warp].back();
    meetings[warp].pop_back();
}

bool same(place a, place b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}
} // namespace

void fail(const char *format, ...)
{
    va_list ap;
    fprintf(stderr, "cuemu: ");
    if (kernel_name)
        fprintf(stderr, "%s: ", kernel_name);
    if (self)
        fprintf(stderr, "block (%u,%u,%u) thread (%u,%u,%u): ", block_index.x, block_index.y,
                block_index.z, self->tid.x, self->tid.y, self->tid.z);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

/* ---- barriers and warp operations ------------------------------------------------------------------ */

void block_barrier(const char *file, int line)
{
    fibre *f = me();
    place here = {file, line};
    if (n_at_barrier == 0)
        barrier_at = here;
    else if (!same(barrier_at, here))
        fail("divergent barrier: it waits at %s:%d, others wait at %s:%d", file, line,
             barrier_at.file, barrier_at.line);
    /* A key for each barrier: who is late must not meet what others did behind the next one. */
    static char keys[4];
    char *key = &keys[block_epoch & 3];
    RELEASE(key);
    if (++n_at_barrier == n_alive) {
        release_barrier();
        ACQUIRE(key);
        return;
    }
    f->state = AT_BARRIER;
    f->at = here;
    to_scheduler();
    ACQUIRE(key);
    (void)key;
}

int block_barrier_count(int predicate, const char *file, int line)
{
    block_barrier(file, line);
    if (predicate)
        predicate_count++;
    block_barrier(file, line);
    int n = (int)predicate_count;
    block_barrier(file, line);
    predicate_count = 0;
    block_barrier(file, line);
    return n;
}

void warp_barrier(unsigned mask, const char *what, const char *file, int line)
{
    fibre *f = me();
    unsigned warp = f->linear / 32, lane = f->linear & 31;
    place here = {file, line};
    unsigned lanes = n_threads - warp * 32;
    if (lanes < 32)
        mask &= (1u << lanes) - 1; /* the last warp may be short */
    if (!(mask >> lane & 1))
        fail("%s at %s:%d: lane %u is not in its own mask %08x", what, file, line, lane, mask);
    if (mask & exited[warp])
        fail("%s at %s:%d: mask %08x names lanes %08x that have exited", what, file, line, mask,
             mask & exited[warp]);
    std::vector<meeting> &list = meetings[warp];
    size_t i = 0;
    while (i < list.size() && !(list[i].mask & mask))
        i++;
    if (i == list.size()) {
        list.push_back({mask, 0, here});
    } else if (list[i].mask != mask || !same(list[i].at, here)) {
        fail("divergent %s: lane %u is at %s:%d with mask %08x, other lanes wait at %s:%d with "
             "mask %08x",
             what, lane, file, line, mask, list[i].at.file, list[i].at.line, list[i].mask);
    }
    list[i].arrived |= 1u << lane;
    RELEASE(&slots[warp * 32]);
    if (list[i].arrived == mask) {
        release_meeting(warp, i);
        ACQUIRE(&slots[warp * 32]);
    } else {
        f->state = AT_WARP;
        f->mask = mask;
        f->at = here;
        to_scheduler();
        ACQUIRE(&slots[warp * 32]);
    }
    if (what[0] == '_') /* __syncwarp; a shuffle orders no memory */
        warp_epoch[warp]++;
}

void exchange(unsigned mask, const void *value, size_t size, const char *file, int line)
{
    fibre *f = me();
    if (size > sizeof(slots[0].bytes[0]))
        fail("%s:%d: a shuffle of %zu bytes", file, line, size);
    f->parity = (f->parity + 1) & 3;
    memcpy(slots[f->linear].bytes[f->parity], value, size);
    warp_barrier(mask, "shuffle", file, line);
}

const void *exchanged(unsigned lane)
{
    unsigned from = (self->linear & ~31u) + lane;
    /* Lanes that the block does not have: a device gives something, we give what it must not use. */
    if (from >= n_threads)
        return slots[self->linear].bytes[self->parity];
    return slots[from].bytes[me()->versions >> 2 * lane & 3];
}

unsigned ballot(unsigned mask, bool p, const char *file, int line)
{
    unsigned char mine = p, r = 0;
    unsigned bits = 0;
    exchange(mask, &mine, 1, file, line);
    for (unsigned l = 0; l < 32; l++) {
        if (!(mask >> l & 1) || (self->linear & ~31u) + l >= n_threads)
            continue;
        memcpy(&r, exchanged(l), 1);
        bits |= (unsigned)r << l;
    }
    return bits;
}

unsigned active_lanes()
{
    unsigned warp = self->linear / 32, lanes = n_threads - warp * 32;
    return ~exited[warp] & (lanes < 32 ? (1u << lanes) - 1 : ~0u);
}

void fence()
{
}

/* Plain copies: what is read before the wait is a race that a device would show and this does not;
 * check.cc therefore counts the bytes as unwritten until the wait. */
/* Copies arrive when they are waited for and not before, which a device is free to do: a wait that is
 * missing or too weak leaves what was there. */
namespace
{
struct copy {
    void *to;
    const void *from;
    unsigned group;
};
std::vector<copy> copies[max_threads];
unsigned committed[max_threads];
} // namespace

static void forget_copies()
{
    for (unsigned i = 0; i < max_threads; i++) {
        copies[i].clear();
        committed[i] = 0;
    }
}

void cp_async16(void *shared, const void *global)
{
    if (((uintptr_t)shared | (uintptr_t)global) & 15)
        fail("cp.async of 16 bytes from %p to %p: not aligned", global, shared);
    if (!check_is_device(global, 16))
        fail("cp.async of 16 bytes from %p, outside of device memory", global);
    copies[self->linear].push_back({shared, global, committed[self->linear]});
}
void cp_async_commit()
{
    committed[self->linear]++;
}
void cp_async_wait(int n)
{
    std::vector<copy> &list = copies[self->linear];
    size_t done = 0; /* groups are in order */
    while (done < list.size() && list[done].group + (unsigned)n < committed[self->linear]) {
        memcpy(list[done].to, list[done].from, 16);
        check_mark_written(list[done].to, 16);
        done++;
    }
    list.erase(list.begin(), list.begin() + (std::ptrdiff_t)done);
}

/* ---- shared memory ----------------------------------------------------------------------------------- */

void *dynamic_shared()
{
    return shared_base;
}

void *shared_variable(const char *file, int line, const char *name, size_t size, size_t align)
{
    for (const variable &v : variables)
        if (v.line == line && v.name == name && v.file == file)
            return shared_base + v.at;
    if (align < 16)
        align = 16;
    size_t at = (shared_used + 64 + align - 1) / align * align; /* a gap between neighbours */
    if (at + size > max_shared + 4096)
        fail("%s:%d: shared memory of %zu bytes is too much", file, line, at + size);
    shared_used = at + size;
    variables.push_back({file, name, line, at});
    check_shared_variable(at, size);
    now->static_shared += size;
    if (now->static_shared > max_static_shared)
        fail("%s:%d: static shared memory exceeds %zu bytes", file, line, max_static_shared);
    return shared_base + at;
}

/* ---- launches -------------------------------------------------------------------------------------- */

const char *launch_error(dim3 g, dim3 b, size_t smem)
{
    uint64_t n = (uint64_t)b.x * b.y * b.z;
    if (n == 0 || n > max_threads || b.z > 64)
        return "threads of a block";
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        return "grid";
    if (smem > max_shared)
        return "dynamic shared memory";
    return nullptr;
}

namespace
{
void make_memory()
{
    if (stack_base)
        return;
    stack_bytes = max_threads * stack_size;
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *s = mmap(nullptr, stack_bytes, prot, flags, -1, 0);
    void *m = mmap(nullptr, max_shared + 8192, prot, flags, -1, 0);
    if (s == MAP_FAILED || m == MAP_FAILED)
        fail("no memory for stacks");
    stack_base = static_cast<char *>(s);
    shared_base = static_cast<char *>(m);
}

void prepare(fibre *f, unsigned i)
{
    f->linear = i;
    f->tid = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
    f->parity = 0;
    f->state = READY;
    f->fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    /* The fibre of an earlier block ended without leaving its last frames. */
    __asan_unpoison_memory_region(stack_base + i * stack_size, stack_size);
#endif
    void **sp = reinterpret_cast<void **>(stack_base + (i + 1) * stack_size - 64);
    *--sp = nullptr;
    *--sp = nullptr;
    *--sp = reinterpret_cast<void *>(cuemu_trampoline);
    for (int k = 0; k < 6; k++)
        *--sp = nullptr;
    f->sp = sp;
#if defined(CUEMU_TSAN)
    if (!f->tsan)
        f->tsan = __tsan_create_fiber(0);
#endif
}

void resume(fibre *f)
{
    self = f;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake, stack_base + f->linear * stack_size,
                                   stack_size);
#endif
#if defined(CUEMU_TSAN)
    __tsan_switch_to_fiber(f->tsan, 1);
#endif
    cuemu_switch(&scheduler_sp, f->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
    self = nullptr;
}

void deadlock()
{
    for (unsigned i = 0; i < n_threads; i++) {
        const fibre &f = fibres[i];
        if (f.state == DONE || f.state == READY)
            continue;
        self = &fibres[i];
        fail(
            "deadlock (divergent barrier or shuffle?): it waits at %s:%d; %u of %u threads wait at "
            "a block barrier",
            f.at.file, f.at.line, n_at_barrier, n_alive);
    }
}

enum order { FORWARD, BACKWARD, STRIDED };
order order_now()
{
    const char *s = getenv("CUEMU_ORDER");
    return !s ? FORWARD : *s == 'b' ? BACKWARD : *s == 's' ? STRIDED : FORWARD;
}
/* A permutation of 0 .. n-1. */
uint64_t pick(order o, uint64_t i, uint64_t n)
{
    if (o == BACKWARD)
        return n - 1 - i;
    if (o == FORWARD || n < 3)
        return i;
    uint64_t step = n / 2 | 1;
    for (uint64_t a = step, b = n, t;; step += 2, a = step, b = n) {
        while (b)
            t = a % b, a = b, b = t;
        if (a == 1)
            return i * step % n;
    }
}

void run_block(order o)
{
    n_alive = n_threads;
    n_at_barrier = 0;
    block_epoch = 1;
    predicate_count = 0;
    variables.reserve(64);
    variables.clear();
    shared_used = dynamic_bytes;
    now->static_shared = 0;
    for (unsigned w = 0; w < (n_threads + 31) / 32; w++) {
        meetings[w].reserve(32);
        meetings[w].clear();
        exited[w] = 0;
        warp_epoch[w] = 1;
    }
    for (unsigned i = 0; i < n_threads; i++)
        prepare(&fibres[i], i);
    forget_copies();
    check_begin_block();
    RELEASE(&sync_key);
    unsigned order_of[max_threads];
    for (unsigned i = 0; i < n_threads; i++)
        order_of[i] = (unsigned)pick(o, i, n_threads);
    while (n_alive) {
        bool progress = false;
        for (unsigned i = 0; i < n_threads; i++) {
            fibre *f = &fibres[order_of[i]];
            if (f->state != READY)
                continue;
            progress = true;
            resume(f);
        }
        if (!progress)
            deadlock();
    }
    ACQUIRE(&sync_key);
    check_end_block();
}
} // namespace

void run(const launch &l)
{
    make_memory();
    kernel_name = l.name;
    now = &stats_of(l.name);
    grid_dim = l.grid;
    block_dim = l.block;
    n_threads = l.block.x * l.block.y * l.block.z;
    dynamic_bytes = l.smem;
    body = l.kernel;
    now->launches++;
    if (l.smem > now->dynamic_shared)
        now->dynamic_shared = l.smem;
#if defined(CUEMU_TSAN)
    scheduler_tsan = __tsan_get_current_fiber();
#endif
    check_begin_launch(l);
    order o = order_now();
    uint64_t n = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t b = pick(o, i, n);
        block_index = {(unsigned)(b % l.grid.x), (unsigned)(b / l.grid.x % l.grid.y),
                       (unsigned)(b / l.grid.x / l.grid.y)};
        run_block(o);
        now->blocks++;
        now->threads += n_threads;
    }
    check_end_launch();
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack_base, stack_bytes);
#endif
    kernel_name = nullptr;
}

/* ---- numbers ----------------------------------------------------------------------------------------- */

static std::map<std::string, kernel_stats> &all_stats()
{
    static std::map<std::string, kernel_stats> *m = new std::map<std::string, kernel_stats>;
    return *m;
}

kernel_stats &stats_of(const std::string &kernel)
{
    return all_stats()[kernel];
}

void report(FILE *f)
{
    fprintf(f, "kernel,launches,blocks,threads,barriers,static_shared,dynamic_shared,"
               "global_requests,sectors,ideal_sectors,shared_requests,wavefronts\n");
    for (const auto &[name, s] : all_stats())
        fprintf(f, "\"%s\",%lu,%lu,%lu,%lu,%lu,%lu,%lu,%lu,%lu,%lu,%lu\n", name.c_str(), s.launches,
                s.blocks, s.threads, s.barriers, s.static_shared, s.dynamic_shared,
                s.global_requests, s.global_sectors, s.global_ideal, s.shared_requests,
                s.shared_wavefronts);
}
} // namespace cuemu

extern "C" __attribute__((visibility("hidden"), used)) void cuemu_entry()
{
    using namespace cuemu;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
    ACQUIRE(&sync_key);
    body->call(body->self);
    RELEASE(&sync_key);
    fibre *f = me();
    unsigned warp = f->linear / 32, lane = f->linear & 31;
    for (const meeting &m : meetings[warp])
        if (m.mask >> lane & 1)
            fail("lane %u exits while others of mask %08x wait at %s:%d", lane, m.mask, m.at.file,
                 m.at.line);
    f->state = DONE;
    exited[warp] |= 1u << lane;
    n_alive--;
    if (n_alive && n_at_barrier == n_alive)
        release_barrier();
    to_scheduler();
    abort();
}
