/* rows.cuh: logits of some prompt rows against the keys of pages by m16n8k16, and their softmax
 * sums (private to this folder; for sample, trace and antidiag).
 *
 * Queries and keys are rounded to 16 bits and accumulated in f32. The channels of both are permuted
 * alike: an instruction's k may be in any order that the operands share, and with this one a
 * thread's part of a key is contiguous in pages of all forms, so keys go from global memory to
 * registers in wide loads without passing through shared memory. Queries are A fragments in shared
 * memory. */
#ifndef SAC_OPS_CUDA_ROWS_CUH
#define SAC_OPS_CUDA_ROWS_CUH

#include "ops/cuda/attn.cuh"
#include "ops/cuda/block.cuh"
#include "ops/plans.h"

template <int F, int D> struct rows_size {
    static constexpr int n = D > 128 ? 2 : 4; /* tiles of 8 keys in a warp's registers */
    static constexpr int parts = 4 / n;       /* as many make a page */
    static constexpr int half = page_at<F, D>::half;
};

/* ---- Fragments of queries and keys ---- */

/* The byte offset of 16-byte piece `piece` of packed query `row`: tiles of eight rows by eight
 * pieces, swizzled by the row (the layout of wgmma.cuh, too), so that ldmatrix has no bank
 * conflicts. */
template <int D> __device__ __forceinline__ uint32_t query_at(uint32_t row, uint32_t piece)
{
    return row / 8 * (D * 16) + piece / 8 * 1024 + row % 8 * 128 + ((piece % 8) ^ (row % 8)) * 16;
}

/* 16 bytes of a packed query. Half 2 j + e of half-row `high` in step k is channel s D/4 + 16 (k /
 * 4) + 4 j + 2 high + e, with s = k % 4: what thread j of four reads of a key is four neighbouring
 * channels. */
template <int F, int D> __device__ uint4 pack_piece(const float *q, uint32_t piece)
{
    constexpr int H = rows_size<F, D>::half;
    const uint32_t k = piece / 2, c = k % 4 * (D / 4) + k / 4 * 16 + piece % 2 * 2;
    return make_uint4(half_pack<H>(q[c], q[c + 1]), half_pack<H>(q[c + 4], q[c + 5]),
                      half_pack<H>(q[c + 8], q[c + 9]), half_pack<H>(q[c + 12], q[c + 13]));
}

/* The pages of a run. */
struct rows_pages {
    struct page_frames frames;
    const uint32_t *frame; /* [n_kv_head, table_stride] for pages before end / PAGE_TOK */
    size_t table_stride, page_bytes;
    const uint8_t *own; /* [n_kv_head, tail_bytes]: the unfinished page */
    uint32_t end;
};

static inline struct rows_pages rows_pages_of(const struct op_prompt_rows *r)
{
    return {r->frames, r->frame, r->table_stride, r->geom->bytes, r->own, r->end};
}

/* A head's query in row `row` of the run. */
template <int D>
static __device__ __forceinline__ const float *rows_query(const struct op_prompt_rows &r,
                                                          uint32_t row, uint32_t head)
{
    return r.q + row * r.q_stride + head * D;
}

/* B fragments of N keys t, t + BY, ... of a page of 16-bit rows: the part of thread j = lane %
 * 4. */
template <int BY, int D, int N>
__device__ __forceinline__ void load_half_keys(uint32_t (&k)[N][D / 16][2], const uint8_t *rows,
                                               uint32_t t)
{
    const uint32_t j = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const uint32_t c = i % 4 * (D / 4) + i / 4 * 16 + j * 4;
            const uint2 x = *(const uint2 *)(rows + ((t + n * BY) * D + c) * 2);
            k[n][i][0] = x.x;
            k[n][i][1] = x.y;
        }
}

/* The same from a q8 page, dequantized to f16. */
template <int BY, int D, int N>
__device__ __forceinline__ void load_coded_keys(uint32_t (&k)[N][D / 16][2], const uint8_t *page,
                                                uint32_t t)
{
    using at = page_at<FORM_Q8, D>;
    const uint32_t j = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        const uint32_t part = i * 4 + j;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t at_t = t + n * BY;
            const uint8_t *low = page + at::k_low + at_t * (D * 3 / 4);
            const uint32_t hi = *(const uint32_t *)(page + at::k_hi2 + at_t * (D / 4) + part * 4);
            const uint32_t mid = *(const uint32_t *)(low + part * 4);
            const uint32_t lo[2] = {*(const uint32_t *)(low + D / 4 + part * 4),
                                    *(const uint32_t *)(low + D / 2 + part * 4)};
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const uint32_t codes = q8_codes(hi, mid, lo[s % 2], s);
                const uint32_t c = s * (D / 4) + part * 4;
                const uint2 min = *(const uint2 *)(page + at::k_min + c * 2);
                const uint2 by = *(const uint2 *)(page + at::k_step + c * 2);
                k[n][i * 4 + s][0] = h2_fma(by.x, q8_pair(codes, 0), min.x);
                k[n][i * 4 + s][1] = h2_fma(by.y, q8_pair(codes, 2), min.y);
            }
        }
    }
}

/* A sealed page; its keys come first. */
static __device__ __forceinline__ const uint8_t *sealed_keys(const struct rows_pages &of,
                                                             uint32_t kv_head, uint32_t page)
{
    const uint32_t frame = of.frame[kv_head * of.table_stride + page];
    return place_page(of.frames, frame, of.page_bytes);
}

template <int BY, int F, int D, int N>
__device__ __forceinline__ void load_sealed_keys(uint32_t (&k)[N][D / 16][2], const uint8_t *page,
                                                 uint32_t t)
{
    if constexpr (F == FORM_Q8)
        load_coded_keys<BY, D>(k, page, t);
    else
        load_half_keys<BY, D>(k, page, t);
}

/* The same from any page; the unfinished one has 16-bit rows. */
template <int BY, int F, int D, int N>
__device__ __forceinline__ void load_keys_by(uint32_t (&k)[N][D / 16][2],
                                             const struct rows_pages &of, uint32_t kv_head,
                                             uint32_t page, uint32_t t)
{
    if (page >= of.end / PAGE_TOK)
        load_half_keys<BY, D>(k, of.own + kv_head * page_at<F, D>::tail_bytes, t);
    else
        load_sealed_keys<BY, F, D>(k, sealed_keys(of, kv_head, page), t);
}

/* B fragments of keys t0 + 8 n + g, as `dots` takes them. */
template <int F, int D, int N>
__device__ __forceinline__ void load_keys(uint32_t (&k)[N][D / 16][2], const struct rows_pages &of,
                                          uint32_t kv_head, uint32_t page, uint32_t t0)
{
    load_keys_by<8, F, D>(k, of, kv_head, page, t0 + threadIdx.x % 32 / 4);
}

template <int F, int D, int N>
__device__ __forceinline__ bool keys_finite(const uint32_t (&k)[N][D / 16][2])
{
    constexpr uint32_t exponent = rows_size<F, D>::half == HALF_F16 ? 0x7c00u : 0x7f80u;
    bool finite = true;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const uint32_t w = k[n][i / 2][i % 2];
            finite = finite && (w & exponent) != exponent && (w >> 16 & exponent) != exponent;
        }
    return finite;
}

/* Products of queries 16 m + g (s[n][0], s[n][1]) and 16 m + g + 8 (s[n][2], s[n][3]) with keys 8 n
 * + 2 j and the next. */
template <int F, int D, int N>
__device__ __forceinline__ void dots(float (&s)[N][4], uint32_t query, uint32_t m,
                                     const uint32_t (&k)[N][D / 16][2])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = 0;
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t a[4];
        ldmatrix_x4(a, query + query_at<D>(m * 16 + lane % 16, i * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < N; n++)
            mma_16816<rows_size<F, D>::half>(s[n], a, k[n][i][0], k[n][i][1]);
    }
}

/* Reductions over the four threads that have one query. */
static __device__ __forceinline__ float four_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

static __device__ __forceinline__ float four_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* ---- Softmax sums to base 2: sum 2^x = sum * 2^max ---- */

static __device__ inline struct exp_sum power_sum_add(struct exp_sum a, struct exp_sum b)
{
    const float max = fmaxf(a.max, b.max);
    const float by_a = a.max == -INFINITY ? 0.0f : exp2_fast(a.max - max);
    const float by_b = b.max == -INFINITY ? 0.0f : exp2_fast(b.max - max);
    struct exp_sum all = {max, a.sum * by_a + b.sum * by_b};
    return all;
}

/* The softmax sum, to base 2, of one query: this thread has exponents x, of which those with a bit
 * in `seen` count. All four threads get it. */
template <int N> __device__ struct exp_sum power_sum(const float (&x)[2 * N], uint32_t seen)
{
    struct exp_sum r = exp_sum_none();
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
        if (seen >> i & 1) r.max = fmaxf(r.max, x[i]);
    r.max = four_max(r.max);
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
        if (seen >> i & 1) r.sum += isfinite(x[i]) ? exp2_fast(x[i] - r.max) : NAN;
    r.sum = four_sum(r.sum);
    return r;
}

#endif
