/* cut.cuh: selection of the k largest values, or of the fewest largest values whose weights reach a
 * sum, by one block (private to this folder).
 *
 * It is a radix select: values are mapped to integers of the same order, and four passes build a
 * histogram of 8 bits each in shared memory and follow the bin in which the cut lies. Counts and
 * weights are integers, so the result does not depend on the order of the atomics; a cut by counts
 * is the CPU's for the same values. */
#ifndef SAC_OPS_CUDA_CUT_CUH
#define SAC_OPS_CUDA_CUT_CUH

#include "ops/cuda/block.cuh"
#include "ops/ops.h"

#define CUT_BINS  256u /* bins; a block has at least as many threads */
#define CUT_BATCH 4    /* items in flight for each thread */

/* As op_best_key: integers in the order of the floats; NaN is 0, the lowest. */
static __device__ inline uint32_t cut_key(float value)
{
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The key of the need-th largest of n items, and how many of the items with that key are among the
 * first `need`. All threads. */
static __device__ inline struct op_cut cut_find(const float *value, uint32_t n, uint32_t need,
                                                uint32_t *bin, uint32_t *room)
{
    uint32_t prefix = 0, all;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < CUT_BINS) bin[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t first = threadIdx.x; first < n; first += CUT_BATCH * blockDim.x) {
            float v[CUT_BATCH];
#pragma unroll
            for (int k = 0; k < CUT_BATCH; k++) {
                const uint32_t i = first + (uint32_t)k * blockDim.x;
                v[k] = i < n ? value[i] : 0;
            }
#pragma unroll
            for (int k = 0; k < CUT_BATCH; k++) {
                const uint32_t key = cut_key(v[k]);
                const bool is = shift == 24 || key >> (shift + 8) == prefix;
                if (is && first + (uint32_t)k * blockDim.x < n)
                    atomicAdd(&bin[key >> shift & 255], 1u);
            }
        }
        __syncthreads();
        /* Thread i has the i-th highest bin. */
        const uint32_t b = CUT_BINS - 1 - threadIdx.x;
        const uint32_t mine = threadIdx.x < CUT_BINS ? bin[b] : 0;
        const uint32_t above = block_exclusive_sum(mine, room, &all);
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

/* Weights are integers. */
typedef unsigned long long cut_sum;

/* The cut of a selection by sum: items above `value` are taken, and of those equal to it as many as
 * hold `need`. */
struct cut_by_sum {
    float value;
    cut_sum need;
};

struct cut_room {    /* in shared memory */
    cut_sum *bin;    /* [CUT_BINS] */
    cut_sum *sum;    /* [32] */
    uint32_t *count; /* [32] */
};

/* A 64-bit atomic add as two of 32 bits: shared memory has no 64-bit add in hardware, and many
 * threads hit the same bin. */
static __device__ inline void cut_add(cut_sum *bin, cut_sum weight)
{
    uint32_t *half = (uint32_t *)bin;
    const uint32_t low = (uint32_t)weight, before = atomicAdd(&half[0], low);
    const uint32_t high = (uint32_t)(weight >> 32) + (before + low < low);
    if (high > 0) atomicAdd(&half[1], high);
}

/* The digits of a positive float: 8, 8, 8 and 7 of its 31 bits. */
static __device__ inline uint32_t cut_digit(uint32_t key, int level)
{
    return level < 3 ? key >> (23 - 8 * level) & 255 : key & 127;
}

static __device__ inline uint32_t cut_above(uint32_t key, int level) /* the digits above */
{
    return key >> (31 - 8 * level);
}

/* The cut where the weights of the largest values reach `need`. Items are the positive values;
 * weight(i) is that of item i. All threads. */
template <typename Weight>
static __device__ struct cut_by_sum cut_find_sum(const float *value, uint32_t n, cut_sum need,
                                                 const Weight &weight, const struct cut_room &r)
{
    uint32_t prefix = 0;
    if (need == 0) return {INFINITY, 0}; /* nothing is taken */
    for (int level = 0; level < 4; level++) {
        __syncthreads();
        if (threadIdx.x < CUT_BINS) r.bin[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t first = threadIdx.x; first < n; first += CUT_BATCH * blockDim.x) {
            float v[CUT_BATCH];
            cut_sum w[CUT_BATCH];
            bool is[CUT_BATCH];
#pragma unroll
            for (int k = 0; k < CUT_BATCH; k++) {
                const uint32_t x = first + (uint32_t)k * blockDim.x;
                v[k] = x < n ? value[x] : 0;
            }
#pragma unroll
            for (int k = 0; k < CUT_BATCH; k++) {
                const uint32_t key = __float_as_uint(v[k]);
                is[k] = v[k] > 0 && (level == 0 || cut_above(key, level) == prefix);
                w[k] = is[k] ? (cut_sum)weight(first + (uint32_t)k * blockDim.x) : 0;
            }
#pragma unroll
            for (int k = 0; k < CUT_BATCH; k++)
                if (is[k]) cut_add(&r.bin[cut_digit(__float_as_uint(v[k]), level)], w[k]);
        }
        __syncthreads();
        const uint32_t b = CUT_BINS - 1 - threadIdx.x;
        const cut_sum mine = threadIdx.x < CUT_BINS ? r.bin[b] : 0;
        cut_sum all;
        const cut_sum above = block_exclusive_sum(mine, r.sum, &all);
        const bool is_it = mine > 0 && above < need && above + mine >= need;
        __syncthreads();
        if (is_it) {
            *r.count = b;
            r.bin[0] = above;
        }
        __syncthreads();
        prefix = level < 3 ? prefix << 8 | *r.count : prefix << 7 | *r.count;
        need -= r.bin[0];
    }
    return {__uint_as_float(prefix), need};
}

/* The index at which items equal to the cut stop being taken: the first ones are. All threads. */
template <typename Weight>
static __device__ uint32_t cut_limit(const float *value, uint32_t n, const struct cut_by_sum &cut,
                                     const Weight &weight, const struct cut_room &r)
{
    cut_sum same = 0, n_before = 0, all;
    for (uint32_t x = threadIdx.x; x < n; x += blockDim.x)
        if (value[x] == cut.value) same += weight(x);
    if (block_sum(same, r.sum) <= cut.need) return n; /* all of them, nearly always */
    uint32_t end = 0;
    for (uint32_t first = 0; first < n && n_before < cut.need; first += blockDim.x) {
        const uint32_t x = first + threadIdx.x;
        const cut_sum mine = x < n && value[x] == cut.value ? weight(x) : 0;
        const cut_sum before = n_before + block_exclusive_sum(mine, r.sum, &all);
        n_before += all;
        if (before < cut.need && before + mine >= cut.need) end = x + 1; /* one thread */
    }
    return block_sum(end, r.count);
}

#endif
