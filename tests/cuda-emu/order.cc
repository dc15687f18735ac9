/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes before what, among streams.  Work of one stream is in order; of two streams it is where an event
 * of the one was waited for by the other, or where the host had waited for the one before it gave work to the
 * other.  With CUEMU_STREAMS in the environment two streams at one word of memory, one of them writing, with no
 * order between them, are a race: whatever order the work happened to be done in here.
 *
 * Each stream has a clock: of every stream, how much of its work is done before.  A word knows the last store
 * and the last loads of two streams.  Kernels' accesses come from check.cc, in plain builds and in launches that
 * are looked at; copies and fills in all builds; products of cuBLASLt not at all.  What the host does itself with
 * pinned memory is not seen (but work is deferred, so it reads old bytes).  All threads of the host count as one,
 * and words are those of memory: two streams in one word are one too many.
 */
#include "runner.h"

#include <memory>
#include <unordered_map>

namespace cuemu
{
namespace
{
constexpr uintptr_t word = 4, page_bytes = 4096;
constexpr unsigned readers = 2;

struct mark {
    uint32_t stream, at; /* at 0: nobody */
};
struct state {
    mark store, load[readers];
};
struct page {
    state words[page_bytes / word];
};
std::unordered_map<uintptr_t, std::unique_ptr<page>> pages;
uint32_t n_streams;
const when *clock_now; /* of the work that is done at present; NULL: none is */
uint32_t stream_now;

bool before(const mark &m)
{
    return m.at == 0 || m.stream == stream_now ||
           (m.stream < clock_now->size() && (*clock_now)[m.stream] >= m.at);
}

void one_word(uintptr_t at, bool write)
{
    std::unique_ptr<page> &p = pages[at / page_bytes];
    if (!p)
        p.reset(new page());
    state &s = p->words[at % page_bytes / word];
    const mark here = {stream_now, (*clock_now)[stream_now]};
    const char *what = nullptr;
    if (!before(s.store))
        what = write ? "a store after a store" : "a load after a store";
    for (unsigned i = 0; write && i < readers && !what; i++)
        if (!before(s.load[i]))
            what = "a store after a load";
    if (what) {
        clock_now = nullptr;
        fail("race between streams at %p: %s of a stream that nobody waited for", (void *)at, what);
    }
    if (write) {
        s.store = here;
        return;
    }
    unsigned to = 0;
    for (unsigned i = 0; i < readers; i++)
        if (before(s.load[i]))
            to = i; /* it is said with the new one */
    s.load[to] = here;
}
} // namespace

bool order_checked()
{
    static const bool yes = getenv("CUEMU_STREAMS") != nullptr;
    return yes;
}

uint32_t order_new_stream()
{
    return n_streams++;
}

void order_join(when &to, const when &from)
{
    if (to.size() < from.size())
        to.resize(from.size());
    for (size_t i = 0; i < from.size(); i++)
        to[i] = to[i] > from[i] ? to[i] : from[i];
}

void order_work(uint32_t stream, const when &clock)
{
    stream_now = stream;
    clock_now = &clock;
}

void order_begin(uint32_t stream, when &clock, const when &host)
{
    order_join(clock, host);
    if (clock.size() <= stream)
        clock.resize(stream + 1);
    clock[stream]++;
    order_work(stream, clock);
}

void order_end()
{
    clock_now = nullptr;
}

void order_access(const void *p, size_t n, bool write)
{
    if (!clock_now)
        return;
    const uintptr_t at = (uintptr_t)p;
    for (uintptr_t i = at / word * word; i < at + n; i += word)
        one_word(i, write);
}
} // namespace cuemu
