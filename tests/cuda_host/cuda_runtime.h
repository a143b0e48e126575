/* cuda_runtime.h: CUDA's language and runtime as far as src/ops/cuda uses them, for a CPU. Kernels
 * run as grid.h says. Work on a stream is done when the stream is waited for, and not before: what
 * is read too early is not there yet. Memory of the device can be reached by running work alone. */
#ifndef SAC_TESTS_CUDA_RUNTIME_H
#define SAC_TESTS_CUDA_RUNTIME_H

#include "grid.h"

#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>

/* ---- The language ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__      static
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct uint2 {
    unsigned x, y;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
struct float2 {
    float x, y;
};
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
struct __align__(16) float4
{
    float x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

template <typename T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <typename T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

/* ---- Bits ---- */

static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = select >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (s & 7) & 255);
        r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return r;
}
static inline float __fdividef(float x, float y)
{
    return x / y;
}

static inline uint32_t __brev(uint32_t x)
{
    uint32_t to = 0;
    for (int i = 0; i < 32; i++) to |= (x >> i & 1u) << (31 - i);
    return to;
}

static inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}
static inline int __clz(uint32_t x)
{
    return x ? __builtin_clz(x) : 32;
}
static inline int __ffs(uint32_t x)
{
    return __builtin_ffs((int)x);
}
/* The host's compiler is told not to fuse, so these are what they say. */
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

/* ---- Threads together ---- */

#define __syncthreads() grid_barrier(__LINE__)
#define __threadfence() ((void)0)

static inline void __syncwarp(uint32_t mask = ~0u)
{
    grid_meet(GRID_SYNC, mask, NULL, 0);
}
template <typename T> static inline T grid_shuffle(uint32_t mask, T mine, uint32_t from)
{
    static_assert(sizeof(T) <= GRID_WORDS * 4, "too large for an exchange");
    T r;
    memcpy(&r, grid_meet(GRID_SHUFFLE, mask, &mine, sizeof mine)[from % 32], sizeof r);
    return r;
}
template <typename T> static inline T __shfl_sync(uint32_t mask, T mine, int from)
{
    return grid_shuffle(mask, mine, (uint32_t)from);
}
template <typename T> static inline T __shfl_xor_sync(uint32_t mask, T mine, int by)
{
    return grid_shuffle(mask, mine, grid_lane() ^ (uint32_t)by);
}
template <typename T> static inline T __shfl_up_sync(uint32_t mask, T mine, unsigned by)
{
    return grid_shuffle(mask, mine, grid_lane() < by ? grid_lane() : grid_lane() - by);
}
static inline uint32_t __ballot_sync(uint32_t mask, bool mine)
{
    const uint32_t word = mine;
    uint32_t r = 0;
    const grid_words *all = grid_meet(GRID_VOTE, mask, &word, sizeof word);
    for (uint32_t i = 0; i < 32; i++)
        if (mask >> i & 1) r |= all[i][0] << i;
    return r;
}
static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t mine)
{
    uint32_t most = 0;
    const grid_words *all = grid_meet(GRID_VOTE, mask, &mine, sizeof mine);
    for (uint32_t i = 0; i < 32; i++)
        if (mask >> i & 1 && all[i][0] > most) most = all[i][0];
    return most;
}
static inline bool __any_sync(uint32_t mask, bool mine)
{
    return __ballot_sync(mask, mine) != 0;
}
static inline bool __all_sync(uint32_t mask, bool mine)
{
    return __ballot_sync(mask, mine) == mask;
}
/* Fibers change over at exchanges and barriers alone. */
static inline uint32_t atomicAdd(uint32_t *p, uint32_t x)
{
    const uint32_t was = *p;
    *p += x;
    return was;
}
static inline uint32_t atomicSub(uint32_t *p, uint32_t x)
{
    const uint32_t before = *p;
    *p -= x;
    return before;
}
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long x)
{
    const unsigned long long was = *p;
    *p += x;
    return was;
}
static inline uint32_t atomicMin(uint32_t *p, uint32_t x)
{
    const uint32_t was = *p;
    *p = x < was ? x : was;
    return was;
}
static inline uint32_t atomicMax(uint32_t *p, uint32_t x)
{
    const uint32_t was = *p;
    *p = x > was ? x : was;
    return was;
}
static inline uint32_t atomicOr(uint32_t *p, uint32_t x)
{
    const uint32_t was = *p;
    *p |= x;
    return was;
}

/* ---- The runtime ---- */

#define CUDART_VERSION 13000

enum cudaError_t {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorInsufficientDriver,
    cudaErrorNoDevice,
    cudaErrorHostMemoryAlreadyRegistered,
    cudaErrorLaunchFailure,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
};
enum {
    cudaStreamNonBlocking = 1,
    cudaHostAllocDefault = 0,
    cudaHostAllocMapped = 2,
    cudaHostRegisterPortable = 1,
    cudaHostRegisterMapped = 2,
    cudaEventDisableTiming = 2,
    cudaStreamCaptureModeRelaxed = 2
};
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize,
    cudaFuncAttributePreferredSharedMemoryCarveout
};
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
};
typedef struct host_stream *cudaStream_t;
typedef struct host_event *cudaEvent_t;
typedef struct host_graph *cudaGraph_t, *cudaGraphExec_t;

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device);
cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_all);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t code);

cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned flags);
cudaError_t cudaHostUnregister(void *p);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t n_row, cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t bytes,
                                cudaStream_t s);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
    enum cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    struct cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
cudaError_t cudaLaunchKernelExC(const struct cudaLaunchConfig_t *config, const void *kernel,
                                void **args);
struct cudaFuncAttributes {
    size_t sharedSizeBytes; /* of its own, which lies elsewhere here */
};
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel);
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which, int value);

cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* ---- Between devices ---- */

/* A word into the memory of a device that the one which runs may write to. */
void host_send(uint64_t *to, uint64_t word);
/* Goes on while all streams wait for each other. */
uint64_t host_clock_ns(void);

/* ---- Kernels by their address ---- */

/* Makes a call of a kernel from the addresses of its arguments, whose values it copies. */
typedef std::function<void()> (*host_bind)(const void *kernel, void **args);
void host_know(const void *kernel, host_bind bind);

template <typename... P> struct host_kernel {
    template <size_t... I>
    static std::function<void()> bind_all(void (*kernel)(P...), void **args,
                                          std::index_sequence<I...>)
    {
        std::tuple<P...> copy(*static_cast<std::remove_const_t<P> *>(args[I])...);
        return [kernel, copy] { std::apply(kernel, copy); };
    }
    static std::function<void()> bind(const void *kernel, void **args)
    {
        return bind_all(reinterpret_cast<void (*)(P...)>(const_cast<void *>(kernel)), args,
                        std::index_sequence_for<P...>());
    }
};

#endif
