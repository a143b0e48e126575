/* runtime.cpp: streams, graphs and memory of devices that are this process, as many as
 * SAC_HOST_DEVICES says (1). Work that is queued is done by whoever waits for it; memory of a device
 * is out of reach at all other times, so the program cannot read a tensor without a copy, nor work go
 * on behind its back. Work of one device reaches that one's memory alone, but for copies to another
 * and words that a kernel sends there (host_send), and what it does not wait for (events) is not done
 * yet. A kernel that waits for words of another device pauses, and other streams go on.
 *
 * SAC_HOST_PEERS=0: no device reaches another's memory by itself. SAC_HOST_LOST=I: device I does
 * nothing of what it is asked. SAC_HOST_SHARED=N: a block has N KiB of shared memory at most (227). */
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unordered_map>
#include <unordered_set>
#include <deque>

#define PAGE           ((size_t)4096)
#define DEVICE_MIB     ((size_t)4096)
#define DEVICES_MAX    16
#define SHARED_UNASKED ((size_t)48 << 10) /* bytes that a launch may ask for without leave */

/* What a stream does next. With `event` it waits until that has been reached `n_reached` times. */
struct host_work {
    std::function<enum grid_state()> run;
    struct host_event *event;
    uint64_t n_reached;
    int peer; /* another device that it reaches; -1: none */
};

typedef std::deque<host_work> work_list;

struct host_stream {
    work_list work;
    bool captures;
    work_list captured;
    int device;
};

struct host_event {
    int device;
    cudaStream_t stream; /* of the last record */
    uint64_t n_recorded, n_reached;
};

struct region {
    uint8_t *p;
    size_t bytes;
    int device;
};

struct host_graph {
    work_list work;
};

static std::unordered_map<void *, region> regions; /* by what was given out */
static std::unordered_map<const void *, host_bind> kernels;
static std::unordered_map<const void *, size_t> allowed; /* shared memory, by kernel */
static size_t bytes_taken[DEVICES_MAX]; /* of each device's memory */
static std::unordered_set<cudaStream_t> streams;
static int current;                     /* the device that calls are about */
static void *registered;                /* what is pinned */
static uint16_t reaches[DEVICES_MAX];   /* a bit for each device whose memory this one may write */
static uint64_t now_ns;                 /* time passes where nothing else happens */

/* For tests: how often a graph has been started, and a kernel has run. */
extern "C" __attribute__((visibility("default"))) uint32_t n_graph_started, n_kernel_run;
uint32_t n_graph_started, n_kernel_run;

/* ---- The device ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
    const char *text = getenv("SAC_HOST_DEVICES");
    *n = text && *text ? atoi(text) : 1;
    return *n > 0 && *n <= DEVICES_MAX ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    (void)device;
    *out = {};
    snprintf(out->name, sizeof out->name, "CPU");
    out->major = 8;
    out->multiProcessorCount = 8;
    return cudaSuccess;
}

static size_t shared_max(void)
{
    const char *text = getenv("SAC_HOST_SHARED");
    return text && *text ? (size_t)atoi(text) << 10 : GRID_SHARED_MAX;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int device)
{
    (void)which, (void)device;
    *out = (int)shared_max();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    int n;
    if (cudaGetDeviceCount(&n) != cudaSuccess || device < 0 || device >= n)
        return cudaErrorInvalidValue;
    current = device;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_all)
{
    *out_all = DEVICE_MIB << 20;
    *out_free = *out_all - bytes_taken[current];
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t code)
{
    switch (code) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "old driver";
    case cudaErrorNoDevice: return "no device";
    case cudaErrorHostMemoryAlreadyRegistered: return "registered";
    case cudaErrorLaunchFailure: return "a device is lost";
    }
    return "unknown error";
}

/* ---- Memory ---- */

/* Ends, up to the alignment, before a page that cannot be read; full of NaNs. */
cudaError_t cudaMalloc(void **out, size_t bytes)
{
    const size_t n = (bytes + 255) / 256 * 256, room = (n + PAGE - 1) / PAGE * PAGE;
    if (bytes_taken[current] + room > DEVICE_MIB << 20) return cudaErrorMemoryAllocation;
    uint8_t *p = (uint8_t *)mmap(NULL, room + PAGE, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return cudaErrorMemoryAllocation;
    madvise(p, room, MADV_HUGEPAGE); /* kernels get at it, and lose it again, by mprotect */
    if (room <= (size_t)16 << 20) memset(p, 0xff, room); /* larger ones are set to zero anyway */
    mprotect(p, room + PAGE, PROT_NONE);
    *out = p + room - n;
    regions[*out] = {p, room, current};
    bytes_taken[current] += room;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    const auto found = regions.find(p);
    if (found == regions.end()) return p ? cudaErrorInvalidValue : cudaSuccess;
    const region r = found->second;
    munmap(r.p, r.bytes + PAGE);
    bytes_taken[r.device] -= r.bytes;
    regions.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    *out = malloc(bytes);
    if (!*out) return cudaErrorMemoryAllocation;
    memset(*out, flags == cudaHostAllocMapped ? 0xff : 0, bytes); /* NaNs, what kernels read */
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    if (!p || !bytes || flags != (cudaHostRegisterPortable | cudaHostRegisterMapped))
        return cudaErrorInvalidValue;
    if (registered == p) return cudaErrorHostMemoryAlreadyRegistered;
    registered = p;
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned flags)
{
    *out = p;
    return flags || p != registered ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    if (!p || p != registered) return cudaErrorInvalidValue;
    registered = NULL;
    return cudaSuccess;
}

/* Whose memory can be reached: a device's, and another's or -1; -1, -1: nobody's. */
static int at = -1, at_peer = -1;
static uint8_t *open_page; /* of another one's, that a word was sent to; NULL: none */

static void close_page(void)
{
    if (open_page) mprotect(open_page, PAGE, PROT_NONE);
    open_page = NULL;
}

static void reach(int device, int peer)
{
    close_page();
    if (device == at && peer == at_peer) return;
    for (const auto &r : regions) {
        const bool can = r.second.device == device || r.second.device == peer;
        mprotect(r.second.p, r.second.bytes, can ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
    at = device;
    at_peer = peer;
}

static int device_of(const uint8_t *p)
{
    for (const auto &r : regions)
        if (p >= r.second.p && p < r.second.p + r.second.bytes) return r.second.device;
    return -1;
}

void host_send(uint64_t *to, uint64_t word)
{
    uint8_t *const page = (uint8_t *)((uintptr_t)to / PAGE * PAGE);
    const int device = page == open_page ? -1 : device_of((const uint8_t *)to);
    if (page != open_page && (device < 0 || !(reaches[at] >> device & 1))) {
        fprintf(stderr, "cuda_host: a word to memory that device %d does not reach\n", at);
        abort();
    }
    if (page != open_page) {
        close_page();
        mprotect(page, PAGE, PROT_READ | PROT_WRITE);
        open_page = page;
    }
    *to = word;
}

uint64_t host_clock_ns(void)
{
    return now_ns;
}

/* ---- Streams ---- */

static cudaError_t queue(cudaStream_t s, std::function<void()> work, int peer = -1)
{
    auto run = [work = std::move(work)] {
        work();
        return GRID_DONE;
    };
    (s->captures ? s->captured : s->work).push_back({std::move(run), NULL, 0, peer});
    return cudaSuccess;
}

static bool is_lost(int device)
{
    const char *text = getenv("SAC_HOST_LOST");
    return text && *text && atoi(text) == device;
}

/* What a stream does next, or what that waits for; false: it can do nothing before others. */
static bool run_next(cudaStream_t s)
{
    if (is_lost(s->device)) return false;
    if (s->work.empty()) {
        fprintf(stderr, "cuda_host: a stream waits for what nobody has queued\n");
        abort();
    }
    host_work &next = s->work.front();
    if (next.event && next.event->n_reached < next.n_reached) return run_next(next.event->stream);
    enum grid_state state = GRID_DONE;
    if (!next.event) {
        reach(s->device, next.peer);
        state = next.run();
    }
    if (state == GRID_DONE) s->work.pop_front();
    return state != GRID_STUCK;
}

/* As far as they can go without this one. */
static bool run_others(cudaStream_t s)
{
    bool moved = false;
    for (cudaStream_t other : streams)
        while (other != s && !other->work.empty() && run_next(other)) moved = true;
    return moved;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = new host_stream();
    (*out)->device = current;
    streams.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    streams.erase(s);
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    const char *order = getenv("SAC_GRID_ORDER");
    /* Others may be as far as they can be, or have done nothing that they need not have. */
    if (order && strcmp(order, "backward") == 0) run_others(s);
    if (is_lost(s->device)) return cudaErrorLaunchFailure;
    while (!s->work.empty())
        if (!run_next(s) && !run_others(s)) now_ns += 1000000000;
    reach(-1, -1);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = new host_event();
    (*out)->device = current;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    if (e->device != s->device || s->captures) return cudaErrorInvalidValue;
    e->stream = s;
    e->n_recorded++;
    return queue(s, [=] { e->n_reached++; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    const uint64_t n = e->n_recorded;
    if (is_lost(e->device)) return cudaErrorLaunchFailure;
    while (e->n_reached < n)
        if (!run_next(e->stream) && !run_others(e->stream)) now_ns += 1000000000;
    reach(-1, -1);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    if (flags || s->captures) return cudaErrorInvalidValue;
    s->work.push_back({NULL, e, e->n_recorded, -1});
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    const char *text = getenv("SAC_HOST_PEERS");
    *can = device != peer && !(text && strcmp(text, "0") == 0);
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    if (peer == current || flags) return cudaErrorInvalidValue;
    reaches[current] |= (uint16_t)(1u << peer);
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t bytes,
                                cudaStream_t s)
{
    if (s->device != from) return cudaErrorInvalidValue;
    return queue(s, [=] { memcpy(dst, src, bytes); }, to);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    if (s->device != current) return cudaErrorInvalidValue;
    return queue(s, [=] { memset(p, value, bytes); });
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind;
    return queue(s, [=] { memcpy(dst, src, bytes); });
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t n_row, cudaMemcpyKind kind, cudaStream_t s)
{
    (void)kind;
    return queue(s, [=] {
        for (size_t i = 0; i < n_row; i++)
            memcpy((uint8_t *)dst + i * dst_pitch, (const uint8_t *)src + i * src_pitch, width);
    });
}

/* ---- Kernels ---- */

void host_know(const void *kernel, host_bind bind)
{
    kernels[kernel] = bind;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel)
{
    (void)kernel;
    out->sharedSizeBytes = 0;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which, int value)
{
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if ((size_t)value > shared_max()) return cudaErrorInvalidValue;
    allowed[kernel] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const struct cudaLaunchConfig_t *config, const void *kernel,
                                void **args)
{
    const auto found = kernels.find(kernel);
    if (found == kernels.end() || config->stream->device != current) return cudaErrorInvalidValue;
    if (config->dynamicSmemBytes > SHARED_UNASKED && config->dynamicSmemBytes > allowed[kernel])
        return cudaErrorInvalidValue;
    std::function<void()> call = found->second(kernel, args);
    const struct cudaLaunchConfig_t c = *config;
    struct grid *launch = NULL; /* under way */
    auto run = [=]() mutable {
        n_kernel_run += !launch;
        if (!launch) launch = grid_launch(c.gridDim, c.blockDim.x, c.dynamicSmemBytes, call);
        const enum grid_state state = grid_go_on(launch);
        if (state == GRID_DONE) launch = NULL;
        return state;
    };
    (c.stream->captures ? c.stream->captured : c.stream->work).push_back({run, NULL, 0, -1});
    return cudaSuccess;
}

/* ---- Graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode)
{
    (void)mode;
    s->captures = true;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    *out = new host_graph{s->captured};
    s->captures = false;
    s->captured.clear();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *out = new host_graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    n_graph_started++;
    if (s->device != current) return cudaErrorInvalidValue;
    for (const auto &work : exec->work) s->work.push_back(work);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
