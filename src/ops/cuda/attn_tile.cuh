/* attn_tile.cuh: attention of a block's rows to one tile of 64 keys in shared memory: the
 * arithmetic of attn_prompt.cu (private to it).
 *
 * S = Q K^T, then an online softmax in registers, then O += P V. A warp has 16-row tiles of the
 * block's rows with their accumulators, maxima and sums; the four lanes of a group share a row, and
 * reduce over it by shuffles in one order. On Hopper, for heads of up to 128 channels, products are
 * wgmma with Q, K and V in shared memory and P in registers; else m16n8k16 with fragments by
 * ldmatrix. P is rounded to 16 bits, sums are in f32. */
#ifndef SAC_OPS_CUDA_ATTN_TILE_CUH
#define SAC_OPS_CUDA_ATTN_TILE_CUH

#include "ops/cuda/attn_prompt.cuh"

/* ---- Softmax ---- */

/* The position of row g + 8 i of the warp's tile m. */
__device__ __forceinline__ uint32_t row_pos(const struct prompt_block &b, int m, int i)
{
    return slot_pos(b, warp_row(m) + i * 8 + threadIdx.x % 32 / 4);
}

/* From dot products to exponents of 2, where there is a soft cap or tokens have weights. */
__device__ __forceinline__ void tile_exponents(float (&s)[N_TILE_8][4], const struct attn_call &c,
                                               const float *logw)
{
    const float by = c.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = c.softcap > 0 ? attn_exponent(c, s[n][e]) : s[n][e] * by;
    if (!logw) return;
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++) {
        const float2 add = *(const float2 *)(logw + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] += (e % 2 ? add.y : add.x) * LOG2E;
    }
}

template <typename Warp>
__device__ void tile_mask(Warp &w, float (&s)[N_TILE_8][4], const struct tile_view &v, int m)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint64_t seen = seen_keys(*v.b, *v.t, row_pos(*v.b, m, i));
        if (seen & v.bad) w.poison |= 1u << (2 * m + i);
#pragma unroll
        for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (!(seen >> (n * 8 + threadIdx.x % 4 * 2 + e) & 1))
                    s[n][2 * i + e] = -CUDART_INF_F;
    }
}

/* Raises the maximum of one row of this thread to cover s * by. Returns the factor for its sums so
 * far. */
template <typename Warp>
__device__ __forceinline__ float raise_max(Warp &w, const float (&s)[N_TILE_8][4], float by, int m,
                                           int i)
{
    float max = -CUDART_INF_F;
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++) max = fmaxf(max, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2)) * by;
    const float old = w.max[m][i];
    if (!(max > old)) return 1.0f;
    w.max[m][i] = max;
    return exp2_fast(old - max);
}

/* What a thread's two rows of a tile are multiplied by when their maxima rise. */
struct row_factors {
    float by[2];
    __device__ __forceinline__ bool any(void) const /* of a warp's rows */
    {
        return __any_sync(~0u, by[0] != 1.0f || by[1] != 1.0f);
    }
};

template <int D, int M>
__device__ __forceinline__ void rescale_values(struct prompt_warp<D, M> &w, struct row_factors f,
                                               int m)
{
#pragma unroll
    for (int c = 0; c < D / 8; c++) {
        w.acc[m][c][0] *= f.by[0], w.acc[m][c][1] *= f.by[0];
        w.acc[m][c][2] *= f.by[1], w.acc[m][c][3] *= f.by[1];
    }
}

/* From exponents to probabilities of tile m's rows, relative to their maxima, which rise. Returns
 * the factors that are still to be applied to the accumulators; those of the sums are. */
template <typename Warp>
__device__ __forceinline__ struct row_factors tile_weights(Warp &w, float (&s)[N_TILE_8][4],
                                                           float by, int m)
{
    const struct row_factors f = {{raise_max(w, s, by, m, 0), raise_max(w, s, by, m, 1)}};
    /* Not fused with the next addition: not all copies of this code would be. */
    w.sum[m][0] = __fmul_rn(w.sum[m][0], f.by[0]);
    w.sum[m][1] = __fmul_rn(w.sum[m][1], f.by[1]);
    const float less0 = w.max[m][0] == -CUDART_INF_F ? 0.0f : w.max[m][0];
    const float less1 = w.max[m][1] == -CUDART_INF_F ? 0.0f : w.max[m][1];
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            s[n][e] = exp2_fast(fmaf(s[n][e], by, -less0));
            s[n][2 + e] = exp2_fast(fmaf(s[n][2 + e], by, -less1));
            w.sum[m][0] += s[n][e];
            w.sum[m][1] += s[n][2 + e];
        }
    return f;
}

/* Softmax of tile m: from dot products to probabilities. */
template <typename Warp>
__device__ __forceinline__ struct row_factors tile_softmax(Warp &w, float (&s)[N_TILE_8][4],
                                                           const struct tile_view &v, int m)
{
    const struct attn_call &c = *v.b->call;
    float by = c.scale * LOG2E;
    if (c.softcap > 0 || v.logw) {
        tile_exponents(s, c, v.logw);
        by = 1;
    }
    if (!v.whole) tile_mask(w, s, v, m);
    return tile_weights(w, s, by, m);
}

/* Probabilities as A fragments. */
template <int H>
__device__ __forceinline__ void tile_pack(uint32_t (&p)[KEYS / 16][4],
                                          const float (&s)[N_TILE_8][4])
{
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++) {
        p[n / 2][n % 2 * 2] = half_pack<H>(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = half_pack<H>(s[n][2], s[n][3]);
    }
}

/* ---- Products ---- */

#ifdef HAS_WGMMA
/* The tile's attention by wgmma: the softmax of one 64-row tile overlaps with the products of
 * another, of this warpgroup or of the other one. */
template <int F, int D, int R, int M>
__device__ __forceinline__ void attend_wgmma(struct prompt_warp<D, M> &w, uint32_t query,
                                             uint32_t keys, const struct tile_view &v)
{
    constexpr int H = page_at<F, D>::half;
    constexpr uint32_t panel = KEYS * 128;
    const uint64_t values = wgmma_descriptor(keys + KEYS * D * 2, panel);
    const uint32_t mine = query + warpgroup_index() * (M * 8192); /* the warpgroup's rows */
    float s[M][N_TILE_8][4];
    uint32_t p[M][KEYS / 16][4];
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            wgmma_ss<H>(s[m],
                        wgmma_descriptor(mine + k / 4 * (R * 128) + m * 8192 + k % 4 * 32, 16),
                        wgmma_descriptor(keys + k / 4 * panel + k % 4 * 32, 16), k > 0);
        wgmma_commit();
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        wgmma_wait<M - 1>();
        wgmma_fence_operand(s[m]);
        const struct row_factors f = tile_softmax(w, s[m], v, m);
        if (f.any()) rescale_values(w, f, m);
        tile_pack<H>(p[m], s[m]);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < (int)KEYS / 16; k++)
            wgmma_rs<H>(w.acc[m], p[m][k], values + k * (16 * 128 / 16));
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < M; m++) wgmma_fence_operand(w.acc[m]);
}
#endif

template <int F, int D, int R, int M>
__device__ __forceinline__ void tile_dots(float (&s)[M][N_TILE_8][4], uint32_t query, uint32_t keys)
{
    constexpr int H = page_at<F, D>::half;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t row = warp_row(m) + lane % 16;
            ldmatrix_x4(a[m], query + tile_at(R, row, k * 2 + lane / 16));
        }
#pragma unroll
        for (int n = 0; n < N_TILE_8; n += 2) {
            uint32_t b[4];
            const uint32_t row = n * 8 + lane / 16 * 8 + lane % 8;
            ldmatrix_x4(b, keys + tile_at(KEYS, row, k * 2 + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<H>(s[m][n], a[m], b[0], b[1]);
                mma_16816<H>(s[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <int H, int D, int M>
__device__ __forceinline__ void tile_values(struct prompt_warp<D, M> &w,
                                            uint32_t (&p)[M][KEYS / 16][4], uint32_t values)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < (int)KEYS / 16; k++) {
        const uint32_t row = k * 16 + lane % 16;
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, values + tile_at(KEYS, row, c + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<H>(w.acc[m][c], p[m][k], b[0], b[1]);
                mma_16816<H>(w.acc[m][c + 1], p[m][k], b[2], b[3]);
            }
        }
    }
}

/* Attention of the block's rows to one tile of 16-bit K and V in shared memory. */
template <int F, int D, int R, int M>
__device__ __forceinline__ void attend_tile(struct prompt_warp<D, M> &w, uint8_t *query,
                                            uint8_t *tile, const struct tile_view &v)
{
    constexpr int H = page_at<F, D>::half;
#ifdef HAS_WGMMA
    if constexpr (D <= 128) {
        attend_wgmma<F, D, R>(w, smem_address(query), smem_address(tile), v);
        return;
    }
#endif
    float s[M][N_TILE_8][4];
    uint32_t p[M][KEYS / 16][4];
    tile_dots<F, D, R>(s, smem_address(query), smem_address(tile));
#pragma unroll
    for (int m = 0; m < M; m++) {
        const struct row_factors f = tile_softmax(w, s[m], v, m);
        if (f.any()) rescale_values(w, f, m);
        tile_pack<H>(p[m], s[m]);
    }
    tile_values<H>(w, p, smem_address(tile) + KEYS * D * 2);
}

#endif
