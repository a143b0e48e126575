/* machine.cuh: everything that only a GPU can compile: inline PTX for mma.sync, ldmatrix, cp.async,
 * memory-order and cluster instructions, dynamic shared memory, and the runtime's handle of a
 * kernel. All other files of this folder but wgmma.cuh are plain C++, so g++ compiles the kernels
 * for a CPU, with another file in place of this one (tests/cuda_host/ops/cuda/machine.cuh).
 *
 * Fragments of mma.m16n8k16, for lane = 4 g + j: A holds rows g and g + 8 (a0, a2 and a1, a3), of
 * each the k pair 2j and the k pair 2j + 8; B holds the same k pairs of column g; the accumulator C
 * holds columns 2j and 2j + 1 of row g (c0, c1) and of row g + 8 (c2, c3). Accumulation is in f32.
 */
#ifndef SAC_OPS_CUDA_MACHINE_CUH
#define SAC_OPS_CUDA_MACHINE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum half_type { HALF_F16, HALF_BF16 };

#define LINEAR_PANEL 16384u             /* outputs of prompt rows in one matrix product, at most */
#define PIECE_BYTES  ((size_t)16 << 20) /* of a staging buffer for copies to the GPU */
#define PROMPT_PIECE 32u    /* tiles of a prompt row's list that one block reads, at least */
#define TEAM_POLLS   1024u  /* polls of a missing word between two looks at the clock */
#define ORDER_NEAR   10240u /* pages whose sort keys fit into shared memory, at most */

/* True if this code runs only on Hopper, whose blocks have 227 KiB of shared memory. The variants
 * for GPUs with less are then left out of the binary. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SMEM_IS_LARGE true
#else
#define SMEM_IS_LARGE false
#endif

/* ---- Launches ---- */

template <typename... P> static const void *kernel_entry(void (*kernel)(P...))
{
    return reinterpret_cast<const void *>(kernel);
}

/* The first statement of every kernel. It waits until the previous kernel has completed and its
 * writes are visible (programmatic dependent launch), then lets the blocks of the next kernel
 * start; they wait at their own kernel_begin. Code before this call may read only what was written
 * before the whole series of launches: weights, and the descriptors staged for this series, because
 * the first kernel of a series starts after their copy. */
__device__ __forceinline__ void kernel_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Counts this block; called by one thread. The increment is acq_rel at GPU scope: what the block
 * wrote before its last barrier is visible to blocks that count later, and what blocks wrote that
 * counted earlier is visible after this block's next barrier. */
__device__ __forceinline__ uint32_t tally_increment(uint32_t *tally)
{
    uint32_t n_before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(n_before)
                 : "l"(tally)
                 : "memory");
    return n_before;
}

/* A relaxed 64-bit store and load at GPU scope, for a word that other blocks poll. The word carries
 * its own "ready" bit or tag, so it needs no order with other words; it is never torn. */
__device__ __forceinline__ void word_store_gpu(uint64_t *to, uint64_t word)
{
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ __forceinline__ uint64_t word_load_gpu(const uint64_t *at)
{
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}

/* Lets the blocks of the next kernel start before this kernel has passed kernel_begin, as soon as
 * all blocks of this one are resident. Whatever the next kernel reads before its own kernel_begin
 * may then be written by two kernels still running: this one and the one before. */
__device__ __forceinline__ void kernel_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Loads a line into the L1 cache of this multiprocessor, for a read of this thread that follows
 * soon. */
__device__ __forceinline__ void prefetch_l1(const float *p)
{
    [[maybe_unused]] float none;
    asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(none) : "l"(p) : "memory");
}

/* Prefetches a line into the L2 cache. */
__device__ __forceinline__ void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* The dynamic shared memory of the launch. */
__device__ __forceinline__ uint8_t *kernel_shared(void)
{
    extern __shared__ __align__(1024) uint8_t kernel_shared_bytes[];
    return kernel_shared_bytes;
}

/* ---- Clusters ---- */

/* Compute capability 9.0: n consecutive blocks form a cluster; they are co-resident and read each
 * other's shared memory. On other GPUs every block is a cluster of one. */
#if __CUDA_ARCH__ >= 900
#define CLUSTER_OF(n) __cluster_dims__(n, 1, 1)
#else
#define CLUSTER_OF(n)
#endif

__device__ __forceinline__ uint32_t cluster_size(void)
{
    uint32_t n = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
#endif
    return n;
}

__device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

/* A barrier of all threads of the cluster with release and acquire: writes before it are visible
 * after it. */
__device__ __forceinline__ void cluster_sync(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}

/* Loads a word of distributed shared memory: `shared` names it in this block, `rank` the block of
 * the cluster that is read. */
__device__ __forceinline__ unsigned long long cluster_load(const unsigned long long *shared,
                                                           uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
    unsigned long long word;
    asm volatile("{.reg .u32 at; mapa.shared::cluster.u32 at, %1, %2; "
                 "ld.shared::cluster.u64 %0, [at];}"
                 : "=l"(word)
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "r"(rank)
                 : "memory");
    return word;
#else
    (void)rank;
    return *shared;
#endif
}

/* ---- Between GPUs ---- */

/* A relaxed 64-bit store to another GPU's memory, and the load that polls for one, at system scope.
 * Value and tag share the word, so it needs no order with other words; it is never torn. */
__device__ __forceinline__ void word_store_system(uint64_t *to, uint64_t word)
{
    asm volatile("st.relaxed.sys.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ __forceinline__ uint64_t word_load_system(const uint64_t *at)
{
    uint64_t word;
    asm volatile("ld.relaxed.sys.b64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}

/* Between two polls of a word. Empty on a GPU; the CPU stand-in runs other blocks here. */
__device__ __forceinline__ void spin_pause(void)
{
}

__device__ __forceinline__ uint64_t clock_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* ---- Arithmetic ---- */

template <int H>
__device__ __forceinline__ void mma_16816(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if constexpr (H == HALF_F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Bitwise select: bits of a where the mask is 1, of b where it is 0. One LOP3; a compiler that
 * knows something about the bits would emit two instructions. */
__device__ __forceinline__ uint32_t bits_select(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
    return r;
}

/* sum += x; the carry is shifted into `bits` as the new lowest bit. */
__device__ __forceinline__ void add_carry(uint32_t &bits, uint32_t &sum, uint32_t x)
{
    asm("add.cc.u32 %1, %1, %2; addc.u32 %0, %0, %0;" : "+r"(bits), "+r"(sum) : "r"(x));
}

/* Rounds two floats to 16 bits and packs them, x in the low half. */
template <int H> __device__ __forceinline__ uint32_t half_pack(float x, float y)
{
    uint32_t r;
    if constexpr (H == HALF_F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}

__device__ __forceinline__ uint32_t h2_sub(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ uint32_t h2_neg(uint32_t a)
{
    uint32_t r;
    asm("neg.f16x2 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}

__device__ __forceinline__ uint32_t h2_mul(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Makes x opaque to the compiler, so that it stays in a register instead of being recomputed in
 * every iteration of a loop. */
__device__ __forceinline__ void keep_in_register(uint32_t &x)
{
    asm volatile("" : "+r"(x));
}

/* The same for a pointer: constant offsets from it become part of instructions. */
__device__ __forceinline__ void keep_in_register(const uint8_t *&p)
{
    asm volatile("" : "+l"(p));
}

/* ---- Shared memory ---- */

__device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* cp.async of 16 bytes from global to shared memory, cached in L2 only. */
__device__ __forceinline__ void cp_async16(uint32_t dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

/* cp.async of 4 bytes. */
__device__ __forceinline__ void cp_async4(uint32_t dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(src) : "memory");
}

__device__ __forceinline__ void store_zero16(uint32_t dst)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(dst), "r"(0) : "memory");
}

__device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void cp_async_wait(void) /* until at most N commit groups are pending */
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Loads four 8 x 8 matrices of 16-bit elements from shared memory; lane l supplies the address of
 * row l % 8 of matrix l / 8. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

#endif
