/* wgmma.cuh: Hopper's matrix instructions of a warpgroup (four warps), for compute capability 9.0a.
 *
 * Tiles in shared memory are panels of 64 halves: rows of 128 bytes behind each other, begun at a
 * multiple of 1024, whose 16-byte pieces are permuted by the row's last three bits. Accumulators
 * and A in registers lie as in mma.cuh, warp w having rows 16 w .. 16 w + 15 of 64. Instructions
 * run on until they are waited for; what they write must then go through wgmma_fence_operand. */
#ifndef SAC_OPS_CUDA_WGMMA_CUH
#define SAC_OPS_CUDA_WGMMA_CUH

#include "ops/cuda/mma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1

/* A tile at a shared address, in units of 16 bytes: groups of eight rows lie 1024 bytes apart, or
 * as many as said, and panels so many bytes (read only where a row is turned: B of values). */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t at, uint32_t panel,
                                                     uint32_t eight = 1024)
{
    return (uint64_t)1 << 62 | (uint64_t)(eight >> 4) << 32 | (uint64_t)(panel >> 4) << 16 |
           ((at & 0x3ffffu) >> 4);
}

/* The same so many bytes further on: a multiple of 16, and nothing is carried beyond the address. */
__device__ __forceinline__ uint64_t wgmma_descriptor_at(uint64_t tile, uint32_t bytes)
{
    return (tile & 0xffffffff00000000ull) | ((uint32_t)tile + (bytes >> 4));
}

/* The number of this thread's warpgroup; told so that it is seen to be the same in all of a warp. */
__device__ __forceinline__ uint32_t warpgroup_index(void)
{
    return __shfl_sync(~0u, threadIdx.x / 128, 0);
}

__device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Nothing is read of them before here. */
template <int N> __device__ __forceinline__ void wgmma_fence_operand(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[n][e])::"memory");
}

/* Stores of this thread are seen by matrix instructions behind the next barrier. */
__device__ __forceinline__ void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- Barriers of shared memory ---- */

/* Eight bytes at a shared address. A phase ends when so many have arrived; what they had written is
 * seen by those that have waited for it. */
__device__ __forceinline__ void mbarrier_init(uint32_t at, uint32_t n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* Until the phase of this parity has ended: the first one has parity 0, and what would be the one
 * before it counts as ended. */
__device__ __forceinline__ void mbarrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{.reg .pred p;\n\t"
                 "WAIT_%=:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
                 "@!p bra WAIT_%=;}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* A barrier of the 128 threads of warpgroup `group`. */
__device__ __forceinline__ void warpgroup_sync(uint32_t group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

/* Registers of each thread of a warpgroup from here on. */
template <int N> __device__ __forceinline__ void setmaxnreg_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void setmaxnreg_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* No number if it was none before or if a half of x is not finite; else 0 stays 0. */
template <int H> __device__ __forceinline__ uint32_t poison_unless_finite(uint32_t all, uint32_t x)
{
    if constexpr (H == HALF_F16)
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(all) : "r"(x), "r"(0));
    else
        asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(all) : "r"(x), "r"(0));
    return all;
}

#define WGMMA_C4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define WGMMA_C32(c, n)                                                                            \
    WGMMA_C4(c, n), WGMMA_C4(c, n + 1), WGMMA_C4(c, n + 2), WGMMA_C4(c, n + 3),                    \
        WGMMA_C4(c, n + 4), WGMMA_C4(c, n + 5), WGMMA_C4(c, n + 6), WGMMA_C4(c, n + 7)
#define WGMMA_R32                                                                                  \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31}"
#define WGMMA_R64                                                                                  \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
    "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

/* c [64, 64] (+)= A [64, 16] B [64, 16]^T, both in shared memory. */
#define WGMMA_SS(TYPE)                                                                             \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;"                                           \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " WGMMA_R32         \
                 ", %32, %33, p, 1, 1, 0, 0;}"                                                     \
                 : WGMMA_C32(c, 0)                                                                 \
                 : "l"(a), "l"(b), "r"(add))
template <int H>
__device__ __forceinline__ void wgmma_ss(float (&c)[8][4], uint64_t a, uint64_t b, int add)
{
    if constexpr (H == HALF_F16)
        WGMMA_SS("f16");
    else
        WGMMA_SS("bf16");
}

/* c [64, 128] (+)= A [64, 16] B [128, 16]^T, both in shared memory. */
#define WGMMA_SS_128(TYPE)                                                                         \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0;"                                           \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " " WGMMA_R64        \
                 ", %64, %65, p, 1, 1, 0, 0;}"                                                     \
                 : WGMMA_C32(c, 0), WGMMA_C32(c, 8)                                                \
                 : "l"(a), "l"(b), "r"(add))
template <int H>
__device__ __forceinline__ void wgmma_ss(float (&c)[16][4], uint64_t a, uint64_t b, int add)
{
    if constexpr (H == HALF_F16)
        WGMMA_SS_128("f16");
    else
        WGMMA_SS_128("bf16");
}

/* c [64, 8 N] += A [64, 16] of registers times B [16, 8 N] in shared memory. */
#define WGMMA_RS_64(TYPE)                                                                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " WGMMA_R32         \
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                           \
                 : WGMMA_C32(c, 0)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WGMMA_RS_128(TYPE)                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " " WGMMA_R64        \
                 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                           \
                 : WGMMA_C32(c, 0), WGMMA_C32(c, 8)                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <int H, int N>
__device__ __forceinline__ void wgmma_rs(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
    if constexpr (N == 8 && H == HALF_F16)
        WGMMA_RS_64("f16");
    else if constexpr (N == 8)
        WGMMA_RS_64("bf16");
    else if constexpr (H == HALF_F16)
        WGMMA_RS_128("f16");
    else
        WGMMA_RS_128("bf16");
}

#endif
#endif
