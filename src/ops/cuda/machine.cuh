/* machine.cuh: what only a GPU has, in words: matrix instructions and asynchronous copies of compute
 * capability 8.0, shared memory whose size the launch says, and the runtime's name of a kernel. All
 * else in this folder but wgmma.cuh is plain C++, so the kernels run on a CPU, too, where another
 * file stands in the place of this one (tests/cuda_host).
 *
 * Fragments of mma m16n8k16, lane = 4 g + j: A has rows g and g + 8 (a0, a2; a1, a3), of each the
 * k pair 2j and the pair 2j + 8; B has the same k pairs of column g; C has columns 2j, 2j + 1 of
 * rows g (c0, c1) and g + 8 (c2, c3). Sums are of f32. */
#ifndef SAC_OPS_CUDA_MACHINE_CUH
#define SAC_OPS_CUDA_MACHINE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum half_type { HALF_F16, HALF_BF16 };

#define LINEAR_PANEL 16384u /* outputs of prompt rows that are multiplied together, at most */
#define PIECE_BYTES  ((size_t)16 << 20) /* of a large copy to the GPU */
#define PROMPT_PIECE 32u /* tiles of a prompt row's list that a block reads by itself, at least */
#define TEAM_POLLS   1024u  /* at what has not come from another GPU, between two at the clock */
#define ORDER_NEAR   10240u /* pages whose keys are put in order in shared memory, at most */

/* Whether all blocks that this code is for have Hopper's shared memory: then it has nothing of what
 * others do in less. */
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

/* The first words of every kernel: what was launched before is done and its writes are seen, and
 * blocks of what is launched next may come up to here, so that they are there when their turn is.
 * Words before it may read what the host had put there before the row of launches: weights, and what
 * was staged for this row, as its first kernel begins when that has come. */
__device__ __forceinline__ void kernel_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Counts the block, by one of its threads: what all of them had written before a barrier is there for
 * those that count later, and what those have written that counted before is there behind the next. */
__device__ __forceinline__ uint32_t tally_increment(uint32_t *tally)
{
    uint32_t n_before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(n_before)
                 : "l"(tally)
                 : "memory");
    return n_before;
}

/* A word for other blocks, and a look at one that says of itself whether it has been told: all of its
 * bits together, and in no order with other words. */
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

/* Ahead of it: blocks of what is launched next may come before this kernel has begun, when all of its
 * own are there. What they read before they begin, two launches may be writing then. */
__device__ __forceinline__ void kernel_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Brings what this thread reads soon to its multiprocessor. */
__device__ __forceinline__ void prefetch_l1(const float *p)
{
    [[maybe_unused]] float none;
    asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(none) : "l"(p) : "memory");
}

/* Brings a line of memory nearer. */
__device__ __forceinline__ void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* The bytes of shared memory that the launch asks for. */
__device__ __forceinline__ uint8_t *kernel_shared(void)
{
    extern __shared__ __align__(1024) uint8_t kernel_shared_bytes[];
    return kernel_shared_bytes;
}

/* ---- Blocks of a cluster ---- */

/* Of compute capability 9.0: n blocks that follow each other are there together, and look at each
 * other's shared memory. Elsewhere each is a cluster by itself. */
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

/* A barrier of all threads of the cluster: what they have written before is seen behind it. */
__device__ __forceinline__ void cluster_sync(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}

/* A word of this block's shared memory, as block `rank` of the cluster has it. */
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

/* A word to another GPU's memory, and a look at one that another GPU may have sent: all of its bits
 * together, and in no order with other words. */
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

/* Between two looks at the same word: where a CPU runs the kernels, others get on. */
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

/* a where the mask's bits are set, b where they are not: one instruction, of which a compiler that
 * knows what the bits are makes two. */
__device__ __forceinline__ uint32_t bits_select(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
    return r;
}

/* Adds x to the sum; what that carries becomes the lowest one of the bits, of which others rise. */
__device__ __forceinline__ void add_carry(uint32_t &bits, uint32_t &sum, uint32_t x)
{
    asm("add.cc.u32 %1, %1, %2; addc.u32 %0, %0, %0;" : "+r"(bits), "+r"(sum) : "r"(x));
}

/* Two floats as halves, x in the lower bits. */
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

/* Stays in a register: compilers would compute it again in every turn of a loop. */
__device__ __forceinline__ void keep_in_register(uint32_t &x)
{
    asm volatile("" : "+r"(x));
}

/* ---- Shared memory ---- */

__device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory. */
__device__ __forceinline__ void cp_async16(uint32_t dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

/* The same of 4 bytes. */
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

template <int N> __device__ __forceinline__ void cp_async_wait(void) /* all but the last N groups */
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four 8 x 8 tiles of halves; lane l gives the row l % 8 of tile l / 8. */
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
