/* runtime.cpp: streams, graphs and memory of a device that is this process. Work that is queued is
 * done by whoever waits for it; memory of the device is out of reach at all other times, so the
 * program cannot read a tensor without a copy, nor work go on behind its back. */
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unordered_map>
#include <vector>

#define PAGE       ((size_t)4096)
#define DEVICE_MIB ((size_t)4096)

typedef std::vector<std::function<void()>> work_list;

struct host_stream {
    work_list work;
    bool captures;
    work_list captured;
};

struct host_graph {
    work_list work;
};

static std::unordered_map<void *, std::pair<uint8_t *, size_t>> regions; /* by what was given out */
static std::unordered_map<const void *, host_bind> kernels;
static size_t bytes_taken;

/* For tests: how often a graph has been started, and a kernel has run. */
extern "C" __attribute__((visibility("default"))) uint32_t n_graph_started, n_kernel_run;
uint32_t n_graph_started, n_kernel_run;

/* ---- The device ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
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

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int device)
{
    (void)which, (void)device;
    *out = (int)GRID_SHARED_MAX;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_all)
{
    *out_all = DEVICE_MIB << 20;
    *out_free = *out_all - bytes_taken;
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
    }
    return "unknown error";
}

/* ---- Memory ---- */

/* Ends, up to the alignment, before a page that cannot be read; full of NaNs. */
cudaError_t cudaMalloc(void **out, size_t bytes)
{
    const size_t n = (bytes + 255) / 256 * 256, room = (n + PAGE - 1) / PAGE * PAGE;
    if (bytes_taken + room > DEVICE_MIB << 20) return cudaErrorMemoryAllocation;
    uint8_t *p = (uint8_t *)mmap(NULL, room + PAGE, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return cudaErrorMemoryAllocation;
    if (room <= (size_t)16 << 20) memset(p, 0xff, room); /* larger ones are set to zero anyway */
    mprotect(p, room + PAGE, PROT_NONE);
    *out = p + room - n;
    regions[*out] = {p, room};
    bytes_taken += room;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    const auto found = regions.find(p);
    if (found == regions.end()) return p ? cudaErrorInvalidValue : cudaSuccess;
    munmap(found->second.first, found->second.second + PAGE);
    bytes_taken -= found->second.second;
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
    (void)flags;
    return p && bytes ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostUnregister(void *p)
{
    return p ? cudaSuccess : cudaErrorInvalidValue;
}

static void reach(int protection)
{
    for (const auto &r : regions) mprotect(r.second.first, r.second.second, protection);
}

/* ---- Streams ---- */

static cudaError_t queue(cudaStream_t s, std::function<void()> work)
{
    (s->captures ? s->captured : s->work).push_back(std::move(work));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = new host_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s->work.empty()) return cudaSuccess;
    reach(PROT_READ | PROT_WRITE);
    for (const auto &work : s->work) work();
    reach(PROT_NONE);
    s->work.clear();
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
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

cudaError_t cudaLaunchKernelExC(const struct cudaLaunchConfig_t *config, const void *kernel,
                                void **args)
{
    const auto found = kernels.find(kernel);
    if (found == kernels.end()) return cudaErrorInvalidValue;
    std::function<void()> call = found->second(kernel, args);
    const struct cudaLaunchConfig_t c = *config;
    return queue(c.stream,
                 [=] {
                     n_kernel_run++;
                     grid_run(c.gridDim, c.blockDim.x, c.dynamicSmemBytes, call);
                 });
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
    for (const auto &work : exec->work) queue(s, work);
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
