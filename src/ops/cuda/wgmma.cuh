/* wgmma.cuh: matrix instructions, barriers and register allocation of Hopper's warpgroups (four
 * warps), for compute capability 9.0a.
 *
 * Operands in shared memory use the 128-byte swizzle: a panel is n rows of 64 16-bit elements, 128
 * bytes a row, aligned to 1024 bytes, and the 16-byte pieces of a row are permuted by XOR with the
 * row's last three bits. Accumulators, and A in registers, are laid out per warp as for
 * mma.m16n8k16 (machine.cuh); warp w of the warpgroup holds rows 16 w to 16 w + 15 of 64. wgmma is
 * asynchronous: after wgmma_wait, accumulators must pass through wgmma_fence_operand before they
 * are read. */
#ifndef SAC_OPS_CUDA_WGMMA_CUH
#define SAC_OPS_CUDA_WGMMA_CUH

#include "ops/cuda/mma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1

/* The matrix descriptor of a tile at a shared address: 128-byte swizzle, stride `eight` bytes
 * between groups of eight rows, leading dimension `panel` bytes between panels. `panel` is read
 * only for a transposed operand (V as B). */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t at, uint32_t panel,
                                                     uint32_t eight = 1024)
{
    return (uint64_t)1 << 62 | (uint64_t)(eight >> 4) << 32 | (uint64_t)(panel >> 4) << 16 |
           ((at & 0x3ffffu) >> 4);
}

/* The descriptor `bytes` further on, a multiple of 16. The sum never carries out of the address
 * field. */
__device__ __forceinline__ uint64_t wgmma_descriptor_at(uint64_t tile, uint32_t bytes)
{
    return (tile & 0xffffffff00000000ull) | ((uint32_t)tile + (bytes >> 4));
}

/* The number of this thread's warpgroup. The shuffle tells the compiler that it is the same in all
 * lanes of a warp. */
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

/* Keeps the compiler from reading the accumulators before this point, as it does not know that
 * wgmma writes them later. */
template <int N> __device__ __forceinline__ void wgmma_fence_operand(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[n][e])::"memory");
}

/* Makes this thread's stores to shared memory visible to the async proxy (wgmma) after the next
 * barrier. */
__device__ __forceinline__ void fence_proxy_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- mbarriers ---- */

/* An mbarrier of 8 bytes at a shared address. A phase completes after n arrivals; what the arriving
 * threads wrote before is visible to threads that have waited for the phase. */
__device__ __forceinline__ void mbarrier_init(uint32_t at, uint32_t n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* Waits until the phase of this parity has completed. The first phase has parity 0; a wait for
 * parity 1 on a new mbarrier returns at once, which is what a producer of empty stages wants. */
__device__ __forceinline__ void mbarrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{.reg .pred p;\n\t"
                 "WAIT_%=:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
                 "@!p bra WAIT_%=;}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* A named barrier of the 128 threads of warpgroup `group`. Barrier 0 is __syncthreads. */
__device__ __forceinline__ void warpgroup_sync(uint32_t group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

/* Sets the registers of each thread of the calling warpgroup. A producer gives registers away so
 * that consumers can have more. */
template <int N> __device__ __forceinline__ void setmaxnreg_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void setmaxnreg_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* Returns NaNs if `all` was NaN or a half of x is not finite (x * 0 + all), else zeros: two
 * elements are checked in one instruction. */
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

/* C [64, 64] (+)= A [64, 16] B [64, 16]^T, with both operands in shared memory (SS). add = 0
 * overwrites C. */
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

/* C [64, 128] (+)= A [64, 16] B [128, 16]^T, with both operands in shared memory. */
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

/* C [64, 64] (+)= A [64, 16] B [64, 16]^T, with A in registers and B in shared memory. */
#define WGMMA_RS_ROWS(TYPE)                                                                        \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0;"                                           \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " WGMMA_R32         \
                 ", {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"                                          \
                 : WGMMA_C32(c, 0)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
template <int H>
__device__ __forceinline__ void wgmma_rs_rows(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b,
                                              int add)
{
    if constexpr (H == HALF_F16)
        WGMMA_RS_ROWS("f16");
    else
        WGMMA_RS_ROWS("bf16");
}

/* C [64, 8 N] += A [64, 16] B [16, 8 N], with A in registers and B in shared memory, transposed by
 * the instruction (RS). */
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
