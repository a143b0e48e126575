/* attn_merge.cuh: merging of softmax results for decode rows: of a block's warps through shared
 * memory, and of a job's splits through scratch (private to attn_decode.cu).
 *
 * A result is an accumulator, a maximum and a sum of exponentials. The merge of results i is
 * sum 2^(max_i - max) acc_i / sum 2^(max_i - max) sum_i. Warps are added in their order, and splits
 * in theirs, or the even and the odd ones first where a block has twice as many threads as float4s.
 */
#ifndef SAC_OPS_CUDA_ATTN_MERGE_CUH
#define SAC_OPS_CUDA_ATTN_MERGE_CUH

#include "ops/cuda/attn_unit.cuh"

#define MERGE_MAX   896u /* splits of a list, whose weights are in shared memory together */
#define MERGE_BATCH 8u   /* splits that a thread loads together in the merge */

/* ---- Merging of warps ---- */

/* Stores the warp's accumulators, maxima and sums in its part of `merge`. */
template <int D> __device__ void store_warp_sums(struct decode_warp<D> &w, float *merge)
{
    using at = decode_merge<D>;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
    float *acc = merge + threadIdx.x / 32 * at::piece;
    w.sum += __shfl_xor_sync(~0u, w.sum, 1);
    w.sum += __shfl_xor_sync(~0u, w.sum, 2);
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            acc[g * at::head + (2 * j + e) * at::eighth + i] = w.acc[i][e] + w.acc[i][2 + e];
    if (j == 0) acc[at::max + g] = w.max, acc[at::sum + g] = w.sum;
}

/* Where the splits of a job store their results: accumulators [n_split][HEADS][D], of the job's
 * heads only, then (maximum, sum) [HEADS][n_split]. */
struct decode_parts {
    float *sum;
    float2 *end;
};

template <int D>
__device__ __forceinline__ struct decode_parts parts_of(const struct decode_job &job,
                                                        float *scratch)
{
    float *at = scratch + (size_t)job.part0 * decode_merge<D>::part;
    return {at, (float2 *)(at + (size_t)job.n_split * (HEADS * D))};
}

/* Merges all warps, in their order, for channel i % D of head i / D; *end gets the head's maximum
 * and sum. */
template <int D, int W>
__device__ __forceinline__ float merge_warps(const float *merge, uint32_t i, float2 *end)
{
    using at = decode_merge<D>;
    const uint32_t g = i / D, from = at::at(i);
    float by[W], max = -CUDART_INF_F, sum = 0, all = 0;
#pragma unroll
    for (int w = 0; w < W; w++) {
        by[w] = merge[w * at::piece + at::max + g];
        max = fmaxf(max, by[w]);
    }
#pragma unroll
    for (int w = 0; w < W; w++) {
        const float *m = merge + w * at::piece;
        by[w] = by[w] == -CUDART_INF_F ? 0.0f : exp2_fast(by[w] - max);
        sum += by[w] * m[at::sum + g];
        all += by[w] * m[from];
    }
    *end = make_float2(max, sum);
    return all;
}

/* ---- Output of a split ---- */

template <int D>
__device__ __forceinline__ void store_lse(const struct attn_call &call,
                                          const struct decode_job &job, uint32_t g, float2 end)
{
    if (call.lse)
        call.lse[(size_t)job.row * call.n_head + job.head0 + g] = (end.x + log2f(end.y)) * LN2;
}

template <int D>
__device__ __forceinline__ float *out_of(const struct attn_call &call, const struct decode_job &job)
{
    return call.out + job.row * call.out_stride + (size_t)job.head0 * D;
}

/* Merges the warps' sums in `merge` and stores them: as a split's result, or as the output if there
 * is one split. */
template <int D, int W>
__device__ void store_split(const struct attn_call &call, const struct decode_job &job,
                            uint32_t split, const float *merge, float *scratch)
{
    const struct decode_parts part = parts_of<D>(job, scratch);
    for (uint32_t i = threadIdx.x; i < job.n_head * D; i += W * 32) {
        float2 end;
        const float x = merge_warps<D, W>(merge, i, &end);
        if (job.n_split > 1) {
            part.sum[(size_t)split * (HEADS * D) + i] = x;
            if (i % D == 0) part.end[i / D * job.n_split + split] = end;
        } else {
            out_of<D>(call, job)[i] = x * (1.0f / end.y);
            if (i % D == 0) store_lse<D>(call, job, i / D, end);
        }
    }
}

/* ---- Merging of splits ---- */

/* Shared memory of the block that merges the splits. */
template <int D> struct decode_all {
    float2 end[HEADS];                /* (maximum, sum) over all splits */
    float4 slice[HEADS * D / 4];      /* partial sums of the other half of the threads */
    float2 weight[HEADS * MERGE_MAX]; /* [n_head][n_split] weights, with the splits' sums */
};

/* The weight of each split of a head: 2^(its maximum - the highest maximum); a warp has a head. */
template <int D, int W>
__device__ void weigh_splits(struct decode_all<D> *all, const float2 *end, uint32_t n_head,
                             uint32_t n_split)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t g = threadIdx.x / 32; g < n_head; g += W) {
        float2 *weight = all->weight + g * n_split;
        float max = -CUDART_INF_F, sum = 0;
#pragma unroll 2 /* enough for lists of one row */
        for (uint32_t s = lane; s < n_split; s += 32) {
            weight[s] = __ldcg(end + g * n_split + s);
            max = fmaxf(max, weight[s].x);
        }
        for (int by = 16; by > 0; by /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, by));
        for (uint32_t s = lane; s < n_split; s += 32) {
            const float top = weight[s].x;
            weight[s].x = top == -CUDART_INF_F ? 0.0f : exp2_fast(top - max);
            sum += weight[s].x * weight[s].y;
        }
        for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
        if (lane == 0) all->end[g] = make_float2(max, sum);
    }
}

/* Loads four channels of splits s, s + by, ..., MERGE_BATCH of them in flight together. */
static __device__ __forceinline__ void load_parts(float4 x[MERGE_BATCH], const float *from,
                                                  size_t stride, uint32_t s, uint32_t by,
                                                  uint32_t n_split)
{
#pragma unroll
    for (uint32_t i = 0; i < MERGE_BATCH; i++)
        if (s + i * by < n_split) x[i] = __ldcg((const float4 *)(from + (s + i * by) * stride));
}

/* Merges the splits in their order; a thread has four channels of a head, and every second split
 * where threads suffice. */
template <int D, int W>
__device__ void merge_splits(const struct attn_call &call, const struct decode_job &job,
                             struct decode_all<D> *all, float *scratch)
{
    constexpr uint32_t n_thread = W * 32, n_piece = HEADS * D / 4;
    constexpr uint32_t n_slice = n_thread > n_piece ? n_thread / n_piece : 1;
    constexpr uint32_t n_each = n_thread / n_slice; /* float4s at a time */
    const struct decode_parts part = parts_of<D>(job, scratch);
    const uint32_t slice = threadIdx.x / n_each, n_split = job.n_split;
    for (uint32_t first = 0; first < job.n_head * D / 4; first += n_each) {
        const uint32_t at = (first + threadIdx.x % n_each) * 4, g = at / D;
        const bool is_mine = g < job.n_head;
        const uint32_t n = is_mine ? n_split : 0;
        float4 sum = make_float4(0, 0, 0, 0), x[MERGE_BATCH];
        uint32_t s = slice;
#pragma unroll 1 /* runs once in a launch: fetching more code would take longer */
        do {
            load_parts(x, part.sum + at, HEADS * D, s, n_slice, n);
            if (first == 0 && s == slice) {
                weigh_splits<D, W>(all, part.end, job.n_head, n_split);
                __syncthreads();
            }
#pragma unroll
            for (uint32_t i = 0; i < MERGE_BATCH; i++) {
                if (s + i * n_slice >= n) continue;
                const float by = all->weight[g * n_split + s + i * n_slice].x;
                sum.x += by * x[i].x, sum.y += by * x[i].y;
                sum.z += by * x[i].z, sum.w += by * x[i].w;
            }
            s += MERGE_BATCH * n_slice;
        } while (s < n);
        if constexpr (n_slice > 1) {
            static_assert(n_slice == 2, "one other thread");
            if (slice == 1 && is_mine) all->slice[at / 4] = sum;
            __syncthreads();
            const float4 other = all->slice[at / 4];
            sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
        }
        if (slice > 0 || !is_mine) continue;
        const float by = 1.0f / all->end[g].y;
        float *const out = out_of<D>(call, job) + at;
        out[0] = sum.x * by, out[1] = sum.y * by, out[2] = sum.z * by, out[3] = sum.w * by;
        if (at % D == 0) store_lse<D>(call, job, g, all->end[g]);
    }
}

#endif
