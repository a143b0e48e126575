/* cut.cuh: the best of many values, by a block of threads: values are compared as integers, and
 * counted or their weights summed in whole numbers, so a cut does not depend on an order, and one of
 * counts is the CPU's for the same values (private to this folder). */
#ifndef SAC_OPS_CUDA_CUT_CUH
#define SAC_OPS_CUDA_CUT_CUH

#include "ops/cuda/block.cuh"
#include "ops/ops.h"

#define CUT_BINS 256u /* as many threads as a block has at least */

/* op_best_key. */
static __device__ inline uint32_t cut_key(float value)
{
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The highest key that `need` of the n items reach, digit by digit from the highest, and how many
 * of the items that have it are among these. */
static __device__ inline struct op_cut cut_find(const float *value, uint32_t n, uint32_t need,
                                         uint32_t *bin, uint32_t *room)
{
    uint32_t prefix = 0, all;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < CUT_BINS) bin[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            const uint32_t key = cut_key(value[i]);
            if (shift == 24 || key >> (shift + 8) == prefix) atomicAdd(&bin[key >> shift & 255], 1u);
        }
        __syncthreads();
        /* Threads go through the bins from the highest one down. */
        const uint32_t b = CUT_BINS - 1 - threadIdx.x;
        const uint32_t mine = threadIdx.x < CUT_BINS ? bin[b] : 0;
        const uint32_t above = block_before(mine, room, &all);
        const bool is_it = mine > 0 && above < need && above + mine >= need;
        __syncthreads();
        if (is_it) {
            bin[0] = b;
            bin[1] = above;
        }
        __syncthreads();
        prefix = prefix << 8 | bin[0];
        need -= bin[1];
    }
    struct op_cut cut;
    cut.key = prefix;
    cut.n_tie = need;
    return cut;
}

/* ---- By sums ---- */

/* Weights in whole numbers. */
typedef unsigned long long cut_sum;

/* The value that the fewest best items reach which hold `need`, and how much of it those have to
 * that have this value. */
struct cut_by_sum {
    float value;
    cut_sum need;
};

struct cut_room { /* shared memory */
    cut_sum *bin; /* [CUT_BINS] */
    cut_sum *sum; /* [32] */
    uint32_t *digit;
};

/* Items are those with a positive value, whose bits are in their order; weight (i) is item i's. All
 * threads. */
template <typename Weight>
static __device__ struct cut_by_sum cut_find_sum(const float *value, uint32_t n, cut_sum need,
                                                 const Weight &weight, const struct cut_room &r)
{
    uint32_t prefix = 0;
    if (need == 0) return {INFINITY, 0}; /* none */
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < CUT_BINS) r.bin[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t x = threadIdx.x; x < n; x += blockDim.x) {
            const uint32_t key = __float_as_uint(value[x]);
            if (value[x] > 0 && (shift == 24 || key >> (shift + 8) == prefix))
                atomicAdd(&r.bin[key >> shift & 255], (cut_sum)weight(x));
        }
        __syncthreads();
        const uint32_t b = CUT_BINS - 1 - threadIdx.x;
        const cut_sum mine = threadIdx.x < CUT_BINS ? r.bin[b] : 0;
        cut_sum all;
        const cut_sum above = block_before(mine, r.sum, &all);
        const bool is_it = mine > 0 && above < need && above + mine >= need;
        __syncthreads();
        if (is_it) {
            *r.digit = b;
            r.bin[0] = above;
        }
        __syncthreads();
        prefix = prefix << 8 | *r.digit;
        need -= r.bin[0];
    }
    return {__uint_as_float(prefix), need};
}

#endif
