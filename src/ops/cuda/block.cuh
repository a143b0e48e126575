/* block.cuh: reductions and scans over a block in a fixed order, and the "last block done" pattern.
 *
 * All threads of the block call each function. `room` is shared memory [32] of the caller, one
 * entry for each warp; it may be passed again at once, as each call has a barrier before it writes.
 * Sums over a warp are butterfly shuffles, sums over warps are added in the order of the warps, so
 * results do not depend on timing. */
#ifndef SAC_OPS_CUDA_BLOCK_CUH
#define SAC_OPS_CUDA_BLOCK_CUH

#include "ops/cuda/machine.cuh"

#include <math.h>
#include <stdint.h>
#include <type_traits>

/* The sum of x over the block; all threads get it. */
template <typename T> static __device__ T block_sum(T x, T *room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockDim.x / 32;
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    __syncthreads(); /* the last call's readers are done */
    if (lane == 0) room[warp] = x;
    __syncthreads();
    T all = room[0];
    for (uint32_t w = 1; w < n; w++) all += room[w];
    return all;
}

/* Exclusive scan of integers: the sum of x over all threads before this one; the total goes to
 * *out_all. */
template <typename T>
static __device__ inline T block_exclusive_sum(std::type_identity_t<T> x, T *room, T *out_all)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockDim.x / 32;
    T up_to = x;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const T other = __shfl_up_sync(~0u, up_to, by);
        if (lane >= by) up_to += other;
    }
    __syncthreads();
    if (lane == 31) room[warp] = up_to;
    __syncthreads();
    T warps = lane < n ? room[lane] : 0;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const T other = __shfl_up_sync(~0u, warps, by);
        if (lane >= by) warps += other;
    }
    *out_all = __shfl_sync(~0u, warps, 31);
    const T before = __shfl_sync(~0u, warps, warp > 0 ? (int)warp - 1 : 0);
    return (warp > 0 ? before : 0) + up_to - x;
}

/* True in the last of n blocks to arrive, which may then read what the others wrote before
 * (tally_increment). The counter is zero before the launch and is reset by the last block. */
static __device__ inline bool block_is_last(uint32_t *tally, uint32_t n)
{
    __shared__ uint32_t n_before;
    __syncthreads();
    if (threadIdx.x == 0) {
        n_before = tally_increment(tally);
        if (n_before + 1 == n) *tally = 0;
    }
    __syncthreads();
    return n_before + 1 == n;
}

/* ---- Softmax sums ---- */

/* An online softmax sum: sum of exp(x) = sum * exp(max). The sum is NaN if any x was not finite. */
struct exp_sum {
    float max, sum;
};

static __device__ inline struct exp_sum exp_sum_none(void)
{
    struct exp_sum none = {-INFINITY, 0};
    return none;
}

static __device__ inline struct exp_sum exp_sum_add(struct exp_sum a, struct exp_sum b)
{
    const float max = fmaxf(a.max, b.max);
    const float by_a = a.max == -INFINITY ? 1.0f : expf(a.max - max);
    const float by_b = b.max == -INFINITY ? 1.0f : expf(b.max - max);
    struct exp_sum all = {max, a.sum * by_a + b.sum * by_b};
    return all;
}

static __device__ inline struct exp_sum exp_sum_of(float x)
{
    struct exp_sum one = {isfinite(x) ? x : 0.0f, isfinite(x) ? 1.0f : NAN};
    return one;
}

/* Reduces over the lanes of a warp; all of them get the result. */
static __device__ inline struct exp_sum warp_exp_sum(struct exp_sum x)
{
    float max = x.max;
    for (int i = 16; i > 0; i /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, i));
    float sum = x.max == -INFINITY ? x.sum : x.sum * expf(x.max - max);
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    struct exp_sum all = {max, sum};
    return all;
}

/* Reduces over the block; all threads get the result. */
static __device__ inline struct exp_sum block_exp_sum(struct exp_sum x, struct exp_sum *room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockDim.x / 32;
    x = warp_exp_sum(x);
    __syncthreads();
    if (lane == 0) room[warp] = x;
    __syncthreads();
    return warp_exp_sum(lane < n ? room[lane] : exp_sum_none());
}

#endif
