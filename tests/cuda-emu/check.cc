/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at every load and store of a kernel.  In plain builds the .cu files are compiled with the
 * thread sanitizer's instrumentation, and this file is what it calls instead of that sanitizer's
 * library; sanitized builds have the sanitizers' own checks instead.  Found:
 *
 *  - accesses outside of device memory, of the block's shared variables and of the thread's stack;
 *  - loads of shared memory that nobody wrote in this block;
 *  - two threads of a block at one byte of shared memory, one of them writing, without a barrier
 *    between: __syncthreads for all, __syncwarp within a warp (a shuffle orders no memory);
 *  - misaligned vectors (the alignment checks of the undefined-behaviour sanitizer);
 *
 * and counted, for the report, in the first block of each launch: 32-byte sectors of global memory and
 * wavefronts of shared memory that a warp's accesses take.
 */
#include "runner.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

namespace cuemu
{
namespace
{
struct range {
    uintptr_t begin, end;
};
struct allocation {
    uintptr_t begin, end;
    std::vector<range> regions; /* empty: all of it */
};
std::vector<allocation> device; /* by address */

/* Who touched a byte of shared memory last.  Valid while block is the present one. */
struct byte_state {
    uint32_t w_block, w_epoch, w_warp;
    uint32_t r_block, r_epoch, r_warp;
    uint16_t writer, reader;
    bool w_atomic, several_readers; /* of more than one warp */
};
byte_state *bytes; /* of shared memory */
std::vector<range> shared_vars;
uint32_t block_number;
range arguments, image;
bool counting;
bool checking; /* this launch */

/* ---- counting ----------------------------------------------------------------------------------------- */

struct touch {
    uintptr_t at;
    unsigned size;
};
struct request {
    bool shared;
    std::vector<touch> lanes;
};
struct lane_state {
    std::unordered_map<uintptr_t, uint32_t> visits; /* of a site */
    uintptr_t end;                                  /* of its last access */
    request *last;
    size_t index;
};
std::map<std::pair<uintptr_t, uint64_t>, request> requests; /* (site, visit << 8 | warp) */
std::vector<lane_state> lanes;
constexpr size_t most_requests = 1u << 16;

void count(uintptr_t at, unsigned size, uintptr_t site, bool shared)
{
    if (lanes.size() <= self->linear)
        lanes.resize(max_threads);
    lane_state &l = lanes[self->linear];
    /* Compilers take vectors apart: neighbours within 16 bytes are one access. */
    if (l.last && at == l.end && at % 16 && l.last->shared == shared) {
        l.last->lanes[l.index].size += size;
        l.end = at + size;
        return;
    }
    if (requests.size() > most_requests)
        return;
    request &r = requests[{site, (uint64_t)l.visits[site]++ << 8 | self->linear / 32}];
    r.shared = shared;
    r.lanes.push_back({at, size});
    l.last = &r;
    l.index = r.lanes.size() - 1;
    l.end = at + size;
}

/* Wavefronts: rounds of at most 128 bytes in which no bank has two words. */
unsigned wavefronts(const request &r)
{
    unsigned bytes_each = 4, total = 0;
    for (const touch &t : r.lanes)
        bytes_each = std::max(bytes_each, t.size);
    size_t per_round = bytes_each > 8 ? 8 : bytes_each > 4 ? 16 : 32;
    for (size_t i = 0; i < r.lanes.size(); i += per_round) {
        std::vector<uintptr_t> bank[32];
        unsigned worst = 1;
        for (size_t j = i; j < std::min(i + per_round, r.lanes.size()); j++)
            for (uintptr_t w = r.lanes[j].at / 4; w <= (r.lanes[j].at + r.lanes[j].size - 1) / 4;
                 w++) {
                std::vector<uintptr_t> &b = bank[w % 32];
                if (std::find(b.begin(), b.end(), w) == b.end())
                    b.push_back(w);
                worst = std::max(worst, (unsigned)b.size());
            }
        total += worst;
    }
    return total;
}

void add_up()
{
    kernel_stats &s = stats_of(kernel_name);
    for (const auto &[key, r] : requests) {
        if (r.shared) {
            unsigned size = 4;
            for (const touch &t : r.lanes)
                size = std::max(size, t.size);
            s.shared_requests += size > 8   ? (r.lanes.size() + 7) / 8
                                 : size > 4 ? (r.lanes.size() + 15) / 16
                                            : 1;
            s.shared_wavefronts += wavefronts(r);
            continue;
        }
        std::vector<uintptr_t> sectors;
        uint64_t useful = 0;
        for (const touch &t : r.lanes)
            for (uintptr_t x = t.at / 32; x <= (t.at + t.size - 1) / 32; x++)
                if (std::find(sectors.begin(), sectors.end(), x) == sectors.end())
                    sectors.push_back(x);
        std::vector<touch> sorted = r.lanes; /* bytes that are read twice count once */
        std::sort(sorted.begin(), sorted.end(), [](touch a, touch b) { return a.at < b.at; });
        uintptr_t end = 0;
        for (const touch &t : sorted) {
            uintptr_t from = std::max(end, t.at);
            if (t.at + t.size > from)
                useful += t.at + t.size - from;
            end = std::max(end, t.at + t.size);
        }
        s.global_requests++;
        s.global_sectors += sectors.size();
        s.global_ideal += (useful + 31) / 32;
    }
    requests.clear();
    lanes.clear();
}

/* ---- rules ------------------------------------------------------------------------------------------- */

const allocation *find(uintptr_t at)
{
    static size_t last;
    if (last < device.size() && at >= device[last].begin && at < device[last].end)
        return &device[last];
    auto i = std::upper_bound(device.begin(), device.end(), at,
                              [](uintptr_t a, const allocation &d) { return a < d.begin; });
    if (i == device.begin() || at >= (--i)->end)
        return nullptr;
    last = (size_t)(i - device.begin());
    return &*i;
}

bool in_device(uintptr_t at, size_t size)
{
    const allocation *a = find(at);
    if (!a || at + size > a->end)
        return false;
    if (a->regions.empty())
        return true;
    auto i = std::upper_bound(a->regions.begin(), a->regions.end(), at,
                              [](uintptr_t p, const range &r) { return p < r.begin; });
    return i != a->regions.begin() && at + size <= (--i)->end;
}

/* Whether an earlier access of `other` may happen at the same time as one of the present thread. */
bool unordered(uint16_t other, uint32_t epoch, uint32_t warp_at)
{
    if (other == self->linear || epoch != block_epoch)
        return false;
    unsigned warp = self->linear / 32;
    return other / 32u != warp || warp_at == warp_epoch[warp];
}

void shared_access(size_t at, unsigned size, bool write, bool atomic, uintptr_t site)
{
    bool inside = false;
    for (const range &r : shared_vars)
        inside = inside || (at >= r.begin && at + size <= r.end);
    if (!inside)
        fail("%s of %u bytes at %zu of the shared memory, outside of its variables (code %p)",
             write ? "store" : "load", size, at, (void *)site);
    unsigned warp = self->linear / 32;
    for (size_t i = at; i < at + size; i++) {
        byte_state &b = bytes[i];
        if (!write && b.w_block != block_number)
            fail("load of shared memory that was not initialised, byte %zu (code %p)", i,
                 (void *)site);
        if (b.w_block == block_number && !(atomic && b.w_atomic) &&
            unordered(b.writer, b.w_epoch, b.w_warp))
            fail("race in shared memory, byte %zu: %s after a store by thread %u without a barrier "
                 "(code %p)",
                 i, write ? "store" : "load", b.writer, (void *)site);
        if (write) {
            if (b.r_block == block_number && b.r_epoch == block_epoch &&
                (b.several_readers || unordered(b.reader, b.r_epoch, b.r_warp)))
                fail("race in shared memory, byte %zu: store after a load by thread %u without a "
                     "barrier (code %p)",
                     i, b.reader, (void *)site);
            b.w_block = block_number;
            b.w_epoch = block_epoch;
            b.w_warp = warp_epoch[warp];
            b.writer = (uint16_t)self->linear;
            b.w_atomic = atomic;
        } else {
            bool first = b.r_block != block_number || b.r_epoch != block_epoch;
            b.several_readers = !first && (b.several_readers || b.reader / 32u != warp);
            /* Of a warp's readers, one that is not the next writer, if there is any. */
            b.r_block = block_number;
            b.r_epoch = block_epoch;
            b.r_warp = warp_epoch[warp];
            b.reader = (uint16_t)self->linear;
        }
    }
}

__attribute__((no_sanitize("thread"))) void access(const volatile void *p, unsigned size,
                                                   bool write, bool atomic, uintptr_t site)
{
    uintptr_t at = (uintptr_t)p;
    if (at - (uintptr_t)stack_base < stack_bytes)
        return;
    if (at - (uintptr_t)shared_base < max_shared + 8192) {
        shared_access(at - (uintptr_t)shared_base, size, write, atomic, site);
        if (counting)
            count(at, size, site, true);
        return;
    }
    if (in_device(at, size)) {
        if (order_checked())
            order_access((const void *)at, size, write);
        if (counting)
            count(at, size, site, false);
        return;
    }
    if (at >= image.begin && at + size <= image.end)
        return; /* constants, and what CUDA calls static shared memory */
    if (!write && at >= arguments.begin && at + size <= arguments.end)
        return;
    fail("%s of %u bytes at %p, outside of device memory (code %p)", write ? "store" : "load", size,
         (void *)at, (void *)site);
}
} // namespace

/* NaNs.  Byte by byte under the thread sanitizer, whose library takes a memset for a kernel's store. */
static void fill_shared(size_t at, size_t n)
{
#ifdef CUEMU_TSAN
    for (volatile char *p = shared_base + at; n; n--)
        *p++ = (char)0xff;
#else
    memset(shared_base + at, 0xff, n);
#endif
}

extern "C" {
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
}

void check_begin_launch(const launch &l)
{
    if (!bytes) {
        bytes = static_cast<byte_state *>(calloc(max_shared + 8192, sizeof(byte_state)));
        if (!bytes)
            fail("no memory for the shadow of shared memory");
        image = {(uintptr_t)__ehdr_start, (uintptr_t)_end};
    }
    arguments = {(uintptr_t)l.kernel->self, (uintptr_t)l.kernel->self + l.kernel->bytes};
    counting = getenv("CUEMU_REPORT") != nullptr;
    /* Long suites look at one launch in so many of each kernel: the first, and then now and then. */
    const char *every = getenv("CUEMU_CHECK");
    checking = counting || !every || (stats_of(l.name).launches - 1) % (uint64_t)atol(every) == 0;
}

void check_end_launch()
{
    counting = false;
}

void check_begin_block()
{
    block_number++;
    shared_vars.clear();
    if (shared_used)
        shared_vars.push_back({0, shared_used});
    /* The bits that a load of uninitialised memory finds in sanitized builds: NaNs. */
    size_t most = max_shared + 8192, some = shared_used + 4096;
    fill_shared(0, some < most ? some : most);
}

void check_end_block()
{
    if (counting)
        add_up();
    counting = false;
}

void check_shared_variable(size_t at, size_t size)
{
    shared_vars.push_back({at, at + size});
    fill_shared(at, size);
}

void check_mark_written(const void *p, size_t n)
{
    size_t at = (size_t)(static_cast<const char *>(p) - shared_base);
    if (checking && self && at < max_shared)
        shared_access(at, (unsigned)n, true, false, 0);
}

void atomic_access(const void *p, size_t size)
{
    if (checking && self)
        access(p, (unsigned)size, true, true, (uintptr_t)__builtin_return_address(0));
}

void check_add_memory(const void *p, size_t n)
{
    allocation a = {(uintptr_t)p, (uintptr_t)p + n, {}};
    auto i = std::upper_bound(device.begin(), device.end(), a.begin,
                              [](uintptr_t x, const allocation &d) { return x < d.begin; });
    device.insert(i, a);
}

void check_remove_memory(const void *p)
{
    for (auto i = device.begin(); i != device.end(); ++i)
        if (i->begin == (uintptr_t)p) {
            device.erase(i);
            return;
        }
}

void check_add_region(const void *p, size_t n)
{
    allocation *a = const_cast<allocation *>(find((uintptr_t)p));
    if (!a || (uintptr_t)p + n > a->end)
        fail("a region of %zu bytes at %p that was not allocated", n, p);
    range r = {(uintptr_t)p, (uintptr_t)p + n};
    auto i = std::upper_bound(a->regions.begin(), a->regions.end(), r.begin,
                              [](uintptr_t x, const range &o) { return x < o.begin; });
    a->regions.insert(i, r);
}

bool check_is_device(const void *p, size_t n)
{
    return in_device((uintptr_t)p, n);
}
} // namespace cuemu

/* ---- what the compiler calls --------------------------------------------------------------------------- */

#ifdef CUEMU_HOOKS
#define SITE ((uintptr_t)__builtin_return_address(0))
#define HOOK(name, size, write)                                                                    \
    void name(void *p);                                                                            \
    void name(void *p)                                                                             \
    {                                                                                              \
        if (cuemu::checking && cuemu::self)                                                        \
            cuemu::access(p, size, write, false, SITE);                                            \
    }
#define HOOKS(n)                                                                                   \
    HOOK(__tsan_read##n, n, false)                                                                 \
    HOOK(__tsan_write##n, n, true)                                                                 \
    HOOK(__tsan_unaligned_read##n, n, false)                                                       \
    HOOK(__tsan_unaligned_write##n, n, true)                                                       \
    HOOK(__tsan_volatile_read##n, n, false)                                                        \
    HOOK(__tsan_volatile_write##n, n, true)
extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_init(void);
void __tsan_init(void)
{
}
void __tsan_func_entry(void *);
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_read_range(void *p, unsigned long n);
void __tsan_read_range(void *p, unsigned long n)
{
    if (cuemu::checking && cuemu::self)
        cuemu::access(p, (unsigned)n, false, false, SITE);
}
void __tsan_write_range(void *p, unsigned long n);
void __tsan_write_range(void *p, unsigned long n)
{
    if (cuemu::checking && cuemu::self)
        cuemu::access(p, (unsigned)n, true, false, SITE);
}

/* -fsanitize=alignment: the compiler's data begins with the place in the source. */
struct ubsan_place {
    const char *file;
    uint32_t line, column;
};
void __ubsan_handle_type_mismatch_v1(const ubsan_place *at, uintptr_t p);
void __ubsan_handle_type_mismatch_v1(const ubsan_place *at, uintptr_t p)
{
    cuemu::fail("misaligned access at %s:%u, address %p", at->file, at->line, (void *)p);
}
void __ubsan_handle_type_mismatch_v1_abort(const ubsan_place *at, uintptr_t p);
void __ubsan_handle_type_mismatch_v1_abort(const ubsan_place *at, uintptr_t p)
{
    cuemu::fail("misaligned access at %s:%u, address %p", at->file, at->line, (void *)p);
}
}
#endif
