/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime as the backend sees it, without a device: memory, streams, events, graphs.  A stream
 * is a queue; its work is done when a wait needs it, and no earlier, in order, other streams' work only
 * as far as events ask for it.  So a missing wait shows as old bytes, and a pinned buffer that is
 * written again too early as wrong ones.
 *
 * Failures for tests: emu_fail_at(n) lets the n-th call from then on fail once; with sticky, every
 * call after it fails too, as after an illegal access.  A process that no test is in is told by a file,
 * which CUEMU_FAIL names: as soon as it is there, every call fails with the number in it.  What fails
 * stays the thread's last error until somebody asks for it, and then it is a launch that fails.
 * One lock around everything: callers are the thread that owns a model and those that load others.
 */
#include "include/cuda_runtime.h"

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "emu.h"
#include "runner.h"

using namespace cuemu;

namespace
{
struct op {
    enum kind { LAUNCH, COPY, SET, RECORD, WAIT, GRAPH, HOST } kind;
    std::string name;
    dim3 grid, block;
    size_t smem;
    std::shared_ptr<closure> kernel;
    void *dst;
    const void *src;
    size_t n;
    int value;
    cudaEvent_t event;
    uint64_t stamp;    /* of the event: which record */
    cudaStream_t from; /* a wait's: where that was */
    std::shared_ptr<std::vector<op>> graph;
    std::function<void()> host; /* of a library */
    when after;                 /* what the host had waited for */
    std::shared_ptr<when> at;   /* of a record: what was done before it; of a wait for one */
};
} // namespace

struct CUstream_st {
    std::deque<op> queue;
    bool capturing = false, broken = false;
    std::vector<op> captured;
    uint32_t id = order_new_stream();
    when clock;
};
struct CUevent_st {
    uint64_t recorded = 0, done = 0; /* records asked for, records passed */
    cudaStream_t stream = nullptr;   /* of the last record */
    std::shared_ptr<when> at;        /* the same */
};
struct CUgraph_st {
    std::vector<op> ops;
};
struct CUgraphExec_st {
    std::shared_ptr<std::vector<op>> ops;
};

namespace
{
std::recursive_mutex lock;
using guard = std::lock_guard<std::recursive_mutex>;
std::set<cudaStream_t> streams;
std::set<cudaEvent_t> events;
std::set<void *> pinned;
struct block {
    void *p;
    size_t n;
};
std::vector<block> memory;
size_t memory_used;
long fail_in = -1; /* calls until one fails; -1: none */
bool fail_sticky, sticky;
cudaError_t fail_with = cudaErrorUnknown;
/* Among the threads' first variables, although this library is opened later: for those that come with a block
 * of their own LeakSanitizer reads what lies before the block, and some addresses make it believe and follow
 * what it finds there. */
thread_local cudaError_t last_error __attribute__((tls_model("initial-exec")));
uint64_t n_calls;
size_t n_graphs;
uint64_t n_replays, n_bytes_in, n_bytes_out, n_waits, n_event_waits, n_idle_waits, n_overlaps,
    n_orders;
std::set<cudaGraphExec_t> execs;
when waited; /* by the host */
constexpr size_t device_bytes = (size_t)2 << 30;

/* CUEMU_FAIL: has the file come? */
void look_for_order()
{
    static const char *const path = getenv("CUEMU_FAIL");
    FILE *f = path && !sticky ? fopen(path, "r") : nullptr;
    int code;
    if (!f)
        return;
    if (fscanf(f, "%d", &code) == 1) {
        fail_with = (cudaError_t)code;
        sticky = true;
    }
    fclose(f);
}

/* Every call begins here. */
cudaError_t enter()
{
    n_calls++;
    look_for_order();
    if (sticky)
        return last_error = fail_with;
    if (fail_in >= 0 && fail_in-- == 0) {
        sticky = fail_sticky;
        return last_error = fail_with;
    }
    return cudaSuccess;
}
#define ENTER()                                                                                    \
    guard held(lock);                                                                              \
    if (cudaError_t e_ = enter())                                                                  \
    return e_

cudaError_t refuse(cudaError_t e)
{
    return last_error = e;
}

bool is_device(const void *p, size_t n)
{
    for (const block &b : memory)
        if (p >= b.p && static_cast<const char *>(p) + n <= static_cast<char *>(b.p) + b.n)
            return true;
    return false;
}

void run_until(cudaStream_t s, cudaEvent_t e, uint64_t stamp);

void perform(cudaStream_t s, const op &o)
{
    switch (o.kind) {
    case op::LAUNCH:
        run({o.name.c_str(), o.grid, o.block, o.smem, o.kernel.get()});
        break;
    case op::COPY:
        if (order_checked()) {
            order_access(o.src, o.n, false);
            order_access(o.dst, o.n, true);
        }
        memmove(o.dst, o.src, o.n);
        break;
    case op::SET:
        if (order_checked())
            order_access(o.dst, o.n, true);
        memset(o.dst, o.value, o.n);
        break;
    case op::RECORD:
        if (o.stamp > o.event->done)
            o.event->done = o.stamp;
        if (o.at)
            *o.at = s->clock;
        break;
    case op::WAIT:
        if (o.event->done < o.stamp)
            run_until(o.from, o.event, o.stamp); /* the event may be another's by now */
        if (o.at)
            order_join(s->clock, *o.at);
        if (order_checked())
            order_work(s->id, s->clock);
        break;
    case op::GRAPH:
        for (const op &x : *o.graph)
            perform(s, x);
        break;
    case op::HOST:
        o.host();
        break;
    }
}

/* Does the work of s, until event e has passed (NULL: all of it). */
void run_until(cudaStream_t s, cudaEvent_t e, uint64_t stamp)
{
    while (s && !s->queue.empty() && !(e && e->done >= stamp)) {
        op o = std::move(s->queue.front());
        s->queue.pop_front();
        if (order_checked())
            order_begin(s->id, s->clock, o.after);
        perform(s, o);
        order_end();
    }
}

/* The host has waited: what it gives to any stream from now on comes behind that. */
void wait_for(cudaStream_t s)
{
    run_until(s, nullptr, 0);
    order_join(waited, s->clock);
}

/* Has s a launch that it need not wait for anybody with? */
bool has_free_work(cudaStream_t s)
{
    for (const op &o : s->queue) {
        if (o.kind == op::WAIT && o.event->done < o.stamp)
            return false;
        if (o.kind == op::LAUNCH || o.kind == op::GRAPH)
            return true;
    }
    return false;
}

/* The host has waited for some work of s: what else is there? */
void look_around(cudaStream_t s)
{
    bool any = false, free = false;
    for (cudaStream_t t : streams) {
        any = any || !t->queue.empty();
        free = free || (t != s && has_free_work(t));
    }
    n_idle_waits += !any;
    n_overlaps += free;
}

cudaError_t put(cudaStream_t s, op o)
{
    if (!streams.count(s))
        return refuse(cudaErrorInvalidResourceHandle);
    o.after = waited;
    if (s->capturing)
        s->captured.push_back(std::move(o));
    else
        s->queue.push_back(std::move(o));
    return cudaSuccess;
}

bool any_capture()
{
    for (cudaStream_t s : streams)
        if (s->capturing)
            return true;
    return false;
}
} // namespace

static cudaError_t put_launch(const char *name, dim3 grid, dim3 block, size_t smem,
                              CUstream_st *stream, closure c)
{
    std::shared_ptr<closure> kernel(new closure(c), [](closure *x) {
        x->destroy(x->self);
        delete x;
    });
    ENTER();
    if (launch_error(grid, block, smem))
        return refuse(cudaErrorInvalidConfiguration);
    op o = {};
    o.kind = op::LAUNCH;
    o.name = name;
    o.grid = grid;
    o.block = block;
    o.smem = smem;
    o.kernel = kernel;
    return put(stream, o);
}

/* A launch returns nothing: cudaGetLastError() does, and may tell of an older call. */
int cuemu::enqueue_launch(const char *name, dim3 grid, dim3 block, size_t smem, CUstream_st *stream,
                          closure c)
{
    (void)put_launch(name, grid, block, smem, stream, c);
    return cudaGetLastError();
}

/* ---- for other libraries on the device (blas.cc) --------------------------------------------------------- */

cuemu::held_runtime::held_runtime()
{
    lock.lock();
}

cuemu::held_runtime::~held_runtime()
{
    lock.unlock();
}

bool cuemu::fails()
{
    cudaError_t before = last_error; /* the runtime's, not the other library's */
    bool r = enter() != cudaSuccess;
    last_error = before;
    return r;
}

int cuemu::enqueue_host(CUstream_st *stream, std::function<void()> f)
{
    guard held(lock);
    op o = {};
    o.kind = op::HOST;
    o.host = std::move(f);
    return put(stream, std::move(o));
}

extern "C" {
/* ---- devices ------------------------------------------------------------------------------------------ */

cudaError_t cudaGetDeviceCount(int *count)
{
    ENTER();
    const char *n = getenv("CUEMU_DEVICES");
    *count = n ? atoi(n) : 1;
    return *count > 0 ? cudaSuccess : refuse(cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    ENTER();
    if (device != 0)
        return refuse(cudaErrorInvalidDevice);
    *p = {};
    snprintf(p->name, sizeof(p->name), "emu");
    p->totalGlobalMem = device_bytes;
    p->sharedMemPerBlockOptin = max_shared;
    const char *major = getenv("CUEMU_MAJOR");
    p->major = major ? atoi(major) : 8;
    p->minor = 0;
    p->multiProcessorCount = 4;
    p->l2CacheSize = 4 << 20;
    p->memoryBusWidth = 256;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    ENTER();
    return device == 0 ? cudaSuccess : refuse(cudaErrorInvalidDevice);
}

cudaError_t cudaDriverGetVersion(int *v)
{
    ENTER();
    *v = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
    ENTER();
    *v = 13000;
    return cudaSuccess;
}

static size_t device_limit()
{
    const char *s = getenv("CUEMU_MEMORY");
    return s ? (size_t)strtoull(s, nullptr, 10) : device_bytes;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER();
    *total = device_limit();
    *free_bytes = *total > memory_used ? *total - memory_used : 0;
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **p, size_t n)
{
    ENTER();
    if (any_capture())
        return refuse(cudaErrorStreamCaptureUnsupported);
    size_t size = n ? (n + 255) / 256 * 256 : 256;
    if (memory_used + size > device_limit())
        return refuse(cudaErrorMemoryAllocation);
    void *m = aligned_alloc(256, size);
    if (!m)
        return refuse(cudaErrorMemoryAllocation);
    memset(m, 0xff, size); /* NaNs */
    memory.push_back({m, size});
    memory_used += size;
    check_add_memory(m, n);
    *p = m;
    return cudaSuccess;
}

/* What is freed or destroyed is gone also where the call fails: nobody may use it again. */
cudaError_t cudaFree(void *p)
{
    guard held(lock);
    cudaError_t e = enter();
    if (!p)
        return e;
    for (cudaStream_t s : streams) /* a device waits for its work */
        wait_for(s);
    for (size_t i = 0; i < memory.size(); i++)
        if (memory[i].p == p) {
            memory_used -= memory[i].n;
            memory.erase(memory.begin() + (ptrdiff_t)i);
            check_remove_memory(p);
            free(p);
            return e;
        }
    return e ? e : refuse(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned)
{
    ENTER();
    void *m = aligned_alloc(256, n ? (n + 255) / 256 * 256 : 256);
    if (!m)
        return refuse(cudaErrorMemoryAllocation);
    memset(m, 0xff, n);
    pinned.insert(m);
    *p = m;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    guard held(lock);
    cudaError_t e = enter();
    if (!p)
        return e;
    for (cudaStream_t s : streams)
        wait_for(s);
    if (!pinned.erase(p))
        return e ? e : refuse(cudaErrorInvalidValue);
    free(p);
    return e;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    ENTER();
    bool to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (is_device(dst, n) != to || is_device(src, n) != from)
        return refuse(cudaErrorInvalidValue);
    n_bytes_in += to && !from ? n : 0;
    n_bytes_out += from && !to ? n : 0;
    op o = {};
    o.kind = op::COPY;
    o.dst = dst;
    o.src = src;
    o.n = n;
    return put(s, o);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)
{
    ENTER();
    if (!is_device(p, n))
        return refuse(cudaErrorInvalidValue);
    op o = {};
    o.kind = op::SET;
    o.dst = p;
    o.value = value;
    o.n = n;
    return put(s, o);
}

/* ---- streams and events ------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    ENTER();
    *s = new CUstream_st;
    streams.insert(*s);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    guard held(lock);
    cudaError_t err = enter();
    if (!streams.count(s))
        return err ? err : refuse(cudaErrorInvalidResourceHandle);
    wait_for(s);
    streams.erase(s);
    for (cudaEvent_t e : events)
        if (e->stream == s)
            e->stream = nullptr;
    delete s;
    return err;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER();
    n_waits++;
    if (!streams.count(s))
        return refuse(cudaErrorInvalidResourceHandle);
    if (s->capturing) {
        s->broken = true;
        return refuse(cudaErrorStreamCaptureUnsupported);
    }
    const bool busy = !s->queue.empty();
    wait_for(s);
    if (busy)
        look_around(s);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER();
    if (any_capture())
        return refuse(cudaErrorStreamCaptureUnsupported);
    for (cudaStream_t s : streams)
        wait_for(s);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    ENTER();
    if (!events.count(e))
        return refuse(cudaErrorInvalidResourceHandle);
    n_orders++;
    op o = {};
    o.kind = op::WAIT;
    o.event = e;
    o.stamp = e->recorded;
    o.from = e->stream;
    o.at = e->at;
    return put(s, o);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    ENTER();
    *e = new CUevent_st;
    events.insert(*e);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    guard held(lock);
    cudaError_t err = enter();
    if (!events.count(e))
        return err ? err : refuse(cudaErrorInvalidResourceHandle);
    for (cudaStream_t s : streams)
        wait_for(s);
    events.erase(e);
    delete e;
    return err;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    ENTER();
    if (!events.count(e) || !streams.count(s))
        return refuse(cudaErrorInvalidResourceHandle);
    op o = {};
    o.kind = op::RECORD;
    o.event = e;
    o.stamp = ++e->recorded;
    o.at = e->at = std::make_shared<when>();
    e->stream = s;
    return put(s, o);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    ENTER();
    if (!events.count(e))
        return refuse(cudaErrorInvalidResourceHandle);
    const bool busy = e->done < e->recorded;
    run_until(e->stream, e, e->recorded);
    n_event_waits += busy;
    if (busy)
        look_around(e->stream);
    if (e->at)
        order_join(waited, *e->at);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    ENTER();
    if (!events.count(from) || !events.count(to))
        return refuse(cudaErrorInvalidResourceHandle);
    *ms = 0;
    return from->done && to->done ? cudaSuccess : refuse(cudaErrorNotReady);
}

/* ---- graphs -------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    ENTER();
    if (!streams.count(s))
        return refuse(cudaErrorInvalidResourceHandle);
    if (s->capturing)
        return refuse(cudaErrorStreamCaptureUnsupported);
    s->capturing = true;
    s->broken = false;
    s->captured.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    guard held(lock); /* a capture ends also where the call fails, as on a device */
    cudaError_t e = enter();
    *g = nullptr;
    if (!streams.count(s) || !s->capturing)
        return e ? e : refuse(cudaErrorInvalidValue);
    s->capturing = false;
    std::vector<op> ops = std::move(s->captured);
    s->captured.clear();
    if (e)
        return e;
    if (s->broken)
        return refuse(cudaErrorStreamCaptureInvalidated);
    *g = new CUgraph_st{std::move(ops)};
    n_graphs++;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    ENTER();
    *x = new CUgraphExec_st{std::make_shared<std::vector<op>>(g->ops)};
    execs.insert(*x);
    n_graphs++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    guard held(lock);
    cudaError_t e = enter();
    delete g;
    n_graphs--;
    return e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    guard held(lock);
    cudaError_t e = enter();
    if (!execs.erase(x))
        return e ? e : refuse(cudaErrorInvalidValue);
    delete x; /* work that is queued keeps its launches */
    n_graphs--;
    return e;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    ENTER();
    if (!execs.count(x))
        return refuse(cudaErrorInvalidValue);
    op o = {};
    o.kind = op::GRAPH;
    o.graph = x->ops;
    n_replays++;
    return put(s, o);
}

/* ---- errors -------------------------------------------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
    guard held(lock);
    cudaError_t e = sticky ? fail_with : last_error;
    last_error = cudaSuccess;
    return e;
}

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    default:
        return "cudaError (emulated)";
    }
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation ? "out of memory" : "emulated failure";
}

/* ---- for tests (emu.h) --------------------------------------------------------------------------------- */

void emu_fail_at(long n, int error, int keep)
{
    guard held(lock);
    fail_in = n;
    fail_with = (cudaError_t)error;
    fail_sticky = keep != 0;
    sticky = false;
}

void emu_count(struct emu_counts *ret)
{
    guard held(lock);
    *ret = {n_calls,       memory.size(), pinned.size(), streams.size(),
            events.size(), n_graphs,      memory_used,   n_replays,
            n_bytes_in,    n_bytes_out,   n_waits,       blas_objects(),
            n_event_waits, n_idle_waits,  n_overlaps,    n_orders};
}

void emu_region(const void *p, size_t n)
{
    guard held(lock);
    check_add_region(p, n);
}

void emu_report(const char *path)
{
    guard held(lock);
    if (FILE *f = fopen(path, "a")) {
        report(f);
        fclose(f);
    }
}
}

/* CUEMU_REPORT names the file that each process adds its numbers to when it ends. */
__attribute__((destructor)) static void report_at_end()
{
    const char *path = getenv("CUEMU_REPORT");
    if (path && *path == '/')
        emu_report(path);
}
