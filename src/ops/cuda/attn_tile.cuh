/* attn_tile.cuh: what a block of prompt rows does with a tile of keys in shared memory: products,
 * weights of a softmax, sums of values. Of attn_prompt.cu alone. By the matrix instructions of
 * compute capability 8.0, or by Hopper's where they are and heads are of 128 channels at most. */
#ifndef SAC_OPS_CUDA_ATTN_TILE_CUH
#define SAC_OPS_CUDA_ATTN_TILE_CUH

#include "ops/cuda/attn_prompt.cuh"

/* ---- Weights ---- */

/* Position of a row of this thread: row g + 8 i of tile m of its warp. */
template <int F, int D>
__device__ __forceinline__ uint32_t row_pos(const struct prompt_block &b, int m, int i)
{
    return slot_pos(b, warp_row<F, D>(m) + i * 8 + threadIdx.x % 32 / 4);
}

/* Softcaps and logs of weights: products of tile m's rows become exponents. */
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

/* Rows of tile m that see a value that was not finite. */
template <int F, int D>
__device__ void tile_poison(struct prompt_warp<F, D> &w, const struct tile_view &v, int m)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (seen_keys(*v.b, *v.t, row_pos<F, D>(*v.b, m, i)) & v.bad)
            w.poison |= 1u << (2 * m + i);
}

template <int F, int D>
__device__ void tile_hide(float (&s)[N_TILE_8][4], const struct tile_view &v, int m)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint64_t seen = seen_keys(*v.b, *v.t, row_pos<F, D>(*v.b, m, i));
#pragma unroll
        for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (!(seen >> (n * 8 + threadIdx.x % 4 * 2 + e) & 1))
                    s[n][2 * i + e] = -CUDART_INF_F;
    }
}

/* One row of this thread: exponents are s * by. Returns what its sums are to be multiplied by. */
template <int F, int D>
__device__ __forceinline__ float raise_max(struct prompt_warp<F, D> &w,
                                           const float (&s)[N_TILE_8][4], float by, int m, int i)
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

/* Products of tile m's rows become weights, which are added up. Returns what sums of values so far
 * are to be multiplied by, of both rows of this thread. */
template <int F, int D>
__device__ __forceinline__ float2 tile_weights(struct prompt_warp<F, D> &w,
                                               float (&s)[N_TILE_8][4], float by, int m)
{
    const float f0 = raise_max<F, D>(w, s, by, m, 0), f1 = raise_max<F, D>(w, s, by, m, 1);
    /* Told, as a compiler would join it with the first addition, of which a row's weight may be 0
     * where another cut of the prompt has it in the other half of the tile. */
    w.sum[m][0] = __fmul_rn(w.sum[m][0], f0), w.sum[m][1] = __fmul_rn(w.sum[m][1], f1);
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
    return make_float2(f0, f1);
}

/* From products to weights. */
template <int F, int D>
__device__ __forceinline__ float2 tile_softmax(struct prompt_warp<F, D> &w,
                                               float (&s)[N_TILE_8][4], const struct tile_view &v,
                                               int m)
{
    const struct attn_call &c = *v.b->call;
    float by = c.scale * LOG2E;
    if (c.softcap > 0 || v.logw) {
        tile_exponents(s, c, v.logw);
        by = 1;
    }
    if (!v.whole) tile_hide<F, D>(s, v, m);
    return tile_weights<F, D>(w, s, by, m);
}

/* Whether a row of the warp has a new maximum, */
__device__ __forceinline__ bool tile_raises(float2 by)
{
    return __any_sync(~0u, by.x != 1.0f || by.y != 1.0f);
}

/* and sums of values so far on its scale. */
template <int F, int D>
__device__ __forceinline__ void tile_rescale(struct prompt_warp<F, D> &w, float2 by, int m)
{
#pragma unroll
    for (int c = 0; c < D / 8; c++) {
        w.acc[m][c][0] *= by.x, w.acc[m][c][1] *= by.x;
        w.acc[m][c][2] *= by.y, w.acc[m][c][3] *= by.y;
    }
}

/* Weights as A. */
template <int F, int D>
__device__ __forceinline__ void tile_pack(uint32_t (&p)[KEYS / 16][4], const float (&s)[N_TILE_8][4])
{
    constexpr int H = page_at<F, D>::half;
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++) {
        p[n / 2][n % 2 * 2] = half_pack<H>(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = half_pack<H>(s[n][2], s[n][3]);
    }
}

/* ---- One tile after the other ---- */

#ifdef WGMMA_HERE
/* By Hopper's instructions: one tile's weights are made while another's rows are multiplied, which
 * may be another warpgroup's. */
template <int F, int D>
__device__ __forceinline__ void attend_wgmma(struct prompt_warp<F, D> &w, uint32_t query,
                                             uint32_t keys, const struct tile_view &v)
{
    constexpr int H = page_at<F, D>::half;
    constexpr uint32_t panel = KEYS * 128, rows = prompt_size<F, D>::rows;
    constexpr int M = prompt_size<F, D>::m;
    const uint64_t values = wgmma_tile(keys + KEYS * D * 2, panel);
    const uint32_t mine = query + wgmma_group() * (M * 8192); /* rows of the warpgroup */
    float s[M][N_TILE_8][4];
    uint32_t p[M][KEYS / 16][4];
    wgmma_begin();
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            wgmma_dots<H>(s[m], wgmma_tile(mine + k / 4 * (rows * 128) + m * 8192 + k % 4 * 32, 16),
                          wgmma_tile(keys + k / 4 * panel + k % 4 * 32, 16), k > 0);
        wgmma_commit();
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        wgmma_wait<M - 1>();
        wgmma_done(s[m]);
        const float2 by = tile_softmax<F, D>(w, s[m], v, m);
        if (tile_raises(by)) tile_rescale<F, D>(w, by, m);
        tile_pack<F, D>(p[m], s[m]);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < (int)KEYS / 16; k++)
            wgmma_values<H>(w.acc[m], p[m][k], values + k * (16 * 128 / 16));
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < M; m++) wgmma_done(w.acc[m]);
}
#endif

template <int M> __device__ __forceinline__ void no_dots(float (&s)[M][N_TILE_8][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] = 0;
}

/* s += the warp's tile m of rows, as A of step k, times the keys. */
template <int H, int M>
__device__ __forceinline__ void add_dots(float (&s)[M][N_TILE_8][4], const uint32_t (&a)[M][4],
                                         uint32_t keys, int k)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N_TILE_8; n += 2) {
        uint32_t b[4];
        const uint32_t row = n * 8 + lane / 16 * 8 + lane % 8;
        load_tiles(b, keys + tile_at(KEYS, row, k * 2 + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < M; m++) {
            mma_16816<H>(s[m][n], a[m], b[0], b[1]);
            mma_16816<H>(s[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

template <int F, int D>
__device__ __forceinline__ void tile_dots(float (&s)[prompt_size<F, D>::m][N_TILE_8][4],
                                          uint32_t query, uint32_t keys)
{
    constexpr int M = prompt_size<F, D>::m;
    const uint32_t lane = threadIdx.x % 32;
    no_dots(s);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t row = warp_row<F, D>(m) + lane % 16;
            load_tiles(a[m], query + tile_at(prompt_size<F, D>::rows, row, k * 2 + lane / 16));
        }
        add_dots<page_at<F, D>::half, M>(s, a, keys, k);
    }
}

template <int F, int D>
__device__ __forceinline__ void tile_values(struct prompt_warp<F, D> &w,
                                            uint32_t (&p)[prompt_size<F, D>::m][KEYS / 16][4],
                                            uint32_t values)
{
    constexpr int M = prompt_size<F, D>::m, H = page_at<F, D>::half;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < (int)KEYS / 16; k++) {
        const uint32_t row = k * 16 + lane % 16;
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
            uint32_t b[4];
            load_tiles_turned(b, values + tile_at(KEYS, row, c + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<H>(w.acc[m][c], p[m][k], b[0], b[1]);
                mma_16816<H>(w.acc[m][c + 1], p[m][k], b[2], b[3]);
            }
        }
    }
}

/* A tile in shared memory, in 16 bits: K, then V. */
template <int F, int D>
__device__ __forceinline__ void attend_tile(struct prompt_warp<F, D> &w, uint8_t *query,
                                            uint8_t *tile, const struct tile_view &v)
{
#ifdef WGMMA_HERE
    if constexpr (D <= 128) {
        attend_wgmma<F, D>(w, smem_address(query), smem_address(tile), v);
        return;
    }
#endif
    constexpr int M = prompt_size<F, D>::m;
    float s[M][N_TILE_8][4];
    uint32_t p[M][KEYS / 16][4];
    tile_dots<F, D>(s, smem_address(query), smem_address(tile));
#pragma unroll
    for (int m = 0; m < M; m++) {
        const float2 by = tile_softmax<F, D>(w, s[m], v, m);
        if (tile_raises(by)) tile_rescale<F, D>(w, by, m);
        tile_pack<F, D>(p[m], s[m]);
    }
    tile_values<F, D>(w, p, smem_address(tile) + KEYS * D * 2);
}

/* ---- A tile ahead ---- */

/* Starts a tile's products with the queries `a`. */
template <int F, int D>
__device__ __forceinline__ void start_dots(float (&s)[1][N_TILE_8][4],
                                           const uint32_t (&a)[D / 16][4], uint32_t keys)
{
    constexpr int H = page_at<F, D>::half;
#ifdef WGMMA_HERE
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma_dots_kept<H>(s[0], a[k], wgmma_tile(keys + k / 4 * (KEYS * 128) + k % 4 * 32, 16), k > 0);
#else
    no_dots(s);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const uint32_t one[1][4] = {{a[k][0], a[k][1], a[k][2], a[k][3]}};
        add_dots<H, 1>(s, one, keys, k);
    }
#endif
}

/* The same of the sums of another's values by its weights. */
template <int F, int D>
__device__ __forceinline__ void start_values(struct prompt_warp<F, D> &w,
                                             uint32_t (&p)[1][KEYS / 16][4], uint32_t values)
{
#ifdef WGMMA_HERE
    const uint64_t at = wgmma_tile(values, KEYS * 128);
#pragma unroll
    for (int k = 0; k < (int)KEYS / 16; k++)
        wgmma_values<page_at<F, D>::half>(w.acc[0], p[0][k], at + k * (16 * 128 / 16));
#else
    tile_values<F, D>(w, p, values);
#endif
}

/* What is started from here on sees what this thread has made of registers before; what has been
 * started so far is a group; all but the last n groups are done. Elsewhere instructions of a thread
 * are done in their order. */
__device__ __forceinline__ void start_begin(void)
{
#ifdef WGMMA_HERE
    wgmma_begin();
#endif
}

__device__ __forceinline__ void start_end(void)
{
#ifdef WGMMA_HERE
    wgmma_commit();
#endif
}

/* What is made of c is made before what is waited for next. */
template <int N> __device__ __forceinline__ void make_now(float (&c)[N][4])
{
#ifdef WGMMA_HERE
    wgmma_done(c);
#else
    (void)c;
#endif
}

template <int n, int N> __device__ __forceinline__ void wait_for(float (&c)[N][4])
{
#ifdef WGMMA_HERE
    wgmma_wait<n>();
    wgmma_done(c);
#else
    (void)c;
#endif
}

#endif
