/* share_unit.cuh: the arithmetic of share.cu for one page and a warp: products of queries with the
 * page's first plane, their exponentials and the sum of these (private to share.cu). */
#ifndef SAC_OPS_CUDA_SHARE_UNIT_CUH
#define SAC_OPS_CUDA_SHARE_UNIT_CUH

#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define SHARE_ROWS 16u /* query heads of an instruction */

/* ---- Heads ---- */

/* Where the results of a query head go: exponentials, largest logits and sums of pages; sums of
 * pieces, `group` apart. */
struct share_row {
    uint8_t *exps;
    float *top, *page_sum, *sum;
    uint32_t lane_i; /* the lane whose head it is; UINT32_MAX: none */
};

struct share_block {
    const struct op_lane_shares *of; /* [n_lane] in shared memory, with groups of equal size */
    struct share_row *row;           /* in shared memory, of the heads at hand */
    uint32_t n_lane, group;
};

/* The block's queries as A fragments, in shared memory because all warps use them. Byte b of a
 * token's plane has two bits each of channels b, b + D / 4, b + D / 2 and b + 3 D / 4, and lane j
 * of four reads the D / 16 bytes from j D / 16 on: a word holds four channels of each quarter, the
 * k of one instruction. Codes are masked but not shifted: as f16 they are multiples of 2^-24 times
 * a power of four for each quarter, for which the queries are scaled (share_prescale). Queries are
 * kept as f16 (near) and residual (rest); the residual is used only for what all tokens of a page
 * have in common. */
template <uint32_t D> struct share_query {
    static constexpr uint32_t n_word = D / 64;
    /* [quarter, word][channels 0, 1 or 2, 3][head][lane % 4]: 8 x 8 matrices for ldmatrix */
    uint32_t near[4 * n_word][2][SHARE_ROWS][4], rest[4 * n_word][2][SHARE_ROWS][4];
};

/* What queries of a quarter are multiplied by, so that their products with its codes have one
 * scale. Residuals must be representable and the largest query finite. */
#define SHARE_PRESCALE 4.0f
static __device__ __forceinline__ constexpr float share_prescale(uint32_t quarter)
{
    return SHARE_PRESCALE * (float)(1u << (6 - 2 * quarter));
}

template <uint32_t D>
static __device__ __forceinline__ uint32_t share_channel(uint32_t j, uint32_t word,
                                                         uint32_t quarter)
{
    return quarter * (D / 4) + j * (D / 16) + word * 4;
}

/* Loads the queries of heads g0 to g0 + SHARE_ROWS - 1, and fills their rows; all threads of a
 * block. */
template <uint32_t D>
static __device__ void share_heads_load(struct share_query<D> *to, const struct share_block &b,
                                        uint32_t g0)
{
    constexpr uint32_t n_word = D / 64;
    __syncthreads(); /* the last heads' queries have been read */
    if (threadIdx.x < SHARE_ROWS) {
        const struct choose_head h = choose_head_of(g0 + threadIdx.x, b.group, b.n_lane);
        const struct op_share_planes &op = b.of[h.lane_i].at;
        b.row[threadIdx.x] = {choose_exps(op, h.head), choose_tops(op, h.head),
                              choose_sums(op, h.head), b.of[h.lane_i].sum + h.head,
                              h.is ? h.lane_i : UINT32_MAX};
    }
    for (uint32_t i = threadIdx.x; i < n_word * 4 * SHARE_ROWS * 4; i += blockDim.x) {
        const uint32_t j = i % 4, r = i / 4 % SHARE_ROWS, u = i / (4 * SHARE_ROWS) % n_word;
        const uint32_t s = i / (4 * SHARE_ROWS * n_word);
        const struct choose_head h = choose_head_of(g0 + r, b.group, b.n_lane);
        const struct op_share_planes &op = b.of[h.lane_i].at;
        const float *from = op.q + h.head * D + share_channel<D>(j, u, s);
        const float4 v = h.is ? *(const float4 *)from : make_float4(0, 0, 0, 0);
        const float by = op.scale * share_prescale(s);
        const float x[4] = {v.x * by, v.y * by, v.z * by, v.w * by};
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t near = half_pack<HALF_F16>(x[2 * k], x[2 * k + 1]);
            to->near[s * n_word + u][k][r][j] = near;
            to->rest[s * n_word + u][k][r][j] =
                half_residual<HALF_F16>(x[2 * k], x[2 * k + 1], near);
        }
    }
    __syncthreads();
}

/* ---- Pages ---- */

/* N words in the widest loads; aligned to their size or 16 bytes. */
template <uint32_t N>
static __device__ __forceinline__ void share_load(uint32_t (&to)[N], const uint8_t *from)
{
    if constexpr (N == 1) {
        to[0] = *(const uint32_t *)from;
    } else if constexpr (N == 2) {
        const uint2 v = *(const uint2 *)from;
        to[0] = v.x, to[1] = v.y;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N; i += 4) {
            const uint4 v = *(const uint4 *)(from + i * 4);
            to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
        }
    }
}

/* The logit part common to all tokens of a page, q (min + 31.5 step), in exponents of 2: base[2 e +
 * k] for head r0 + lane / 4 + 8 e and page 2 (lane % 4) + k. FEW: 8 heads, whose residuals take the
 * other rows of A. mins: minima of page lane / 4, followed by its steps. */
template <uint32_t D, bool FEW>
static __device__ __forceinline__ void share_base(float base[4], const struct share_query<D> &query,
                                                  uint32_t r0, const uint8_t *mins)
{
    constexpr uint32_t n_word = D / 64, n_e = FEW ? 1 : 2;
    const uint32_t lane = threadIdx.x % 32, tile = lane / 8;
    const uint32_t row = FEW ? min(r0 + lane % 8, SHARE_ROWS - 1) : tile % 2 * 8 + lane % 8;
    const uint32_t left = (uint32_t)sizeof query.near; /* residuals follow */
    const uint32_t q = smem_address(query.near[0][tile / 2][row]) + (FEW ? tile % 2 * left : 0);
#pragma unroll
    for (uint32_t i = 0; i < 2 * n_e; i++) base[i] = 0;
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) {
        const uint8_t *from = mins + share_channel<D>(lane % 4, 0, s) * 2;
        uint32_t lo[2 * n_word], by[2 * n_word];
        float min[n_e][4] = {}, step[n_e][4] = {};
        share_load(lo, from);
        share_load(by, from + 2 * D);
#pragma unroll
        for (uint32_t u = 0; u < n_word; u++)
#pragma unroll
            for (uint32_t h = 0; h < n_e; h++) {
                uint32_t a[4];
                ldmatrix_x4(a, q + (s * n_word + u) * (2 * SHARE_ROWS * 16) + h * left);
                mma_16816<HALF_F16>(min[h], a, lo[2 * u], lo[2 * u + 1]);
                mma_16816<HALF_F16>(step[h], a, by[2 * u], by[2 * u + 1]);
            }
#pragma unroll
        for (uint32_t i = 0; i < 2 * n_e; i++) {
            const uint32_t h = FEW ? 0 : 1, k = FEW ? i + 2 : i;
            base[i] += (min[0][i] + min[h][k] + 31.5f * (step[0][i] + step[h][k])) *
                       (LOG2E / share_prescale(s));
        }
    }
}

/* A lane's codes of four tokens: pairs of channels, with a byte of each in the same place. */
template <uint32_t D> struct share_codes {
    static constexpr uint32_t n_word = D / 64;
    uint32_t pair[4][n_word][2];
};

/* Byte offsets of a plane in shared memory are swizzled, so that tokens read together lie in
 * different banks. */
static __device__ __forceinline__ uint32_t share_swizzle(uint32_t at)
{
    return at ^ (at >> 2 & 64);
}

template <uint32_t D>
static __device__ __forceinline__ void share_unpack(struct share_codes<D> &to, const uint8_t *from,
                                                    uint32_t i)
{
    constexpr uint32_t n_word = D / 64;
    uint32_t code[n_word];
    share_load(code, from);
#pragma unroll
    for (uint32_t u = 0; u < n_word; u++) {
        to.pair[i][u][0] = __byte_perm(code[u], 0, 0x3120);
        to.pair[i][u][1] = to.pair[i][u][0] >> 8;
    }
}

#define SHARE_BITS(s) (0x00030003u << 2 * (s)) /* selects the codes of quarter s */

/* The tokens of a lane as a column of B, chosen so that its results are of eight neighbours, from 8
 * (lane % 4) on. */
static __device__ __forceinline__ uint32_t share_token(uint32_t i)
{
    const uint32_t column = threadIdx.x % 32 / 4;
    return column / 2 * 8 + i * 2 + column % 2;
}

/* Products of a page's codes with 16 rows: c[i][2 e + k] for row lane / 4 + 8 e and token 8 (lane %
 * 4) + 2 i + k. SWIZZLED: the plane is in shared memory. */
template <uint32_t D, bool SWIZZLED>
static __device__ __forceinline__ void share_page(float c[4][4], const struct share_query<D> &query,
                                                  const uint8_t *plane, const uint8_t *steps)
{
    constexpr uint32_t n_word = D / 64;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t q = smem_address(query.near[0][lane / 16][lane % 16]);
    struct share_codes<D> codes;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t at = share_token(i) * (D / 4) + threadIdx.x % 4 * (D / 16);
        share_unpack(codes, plane + (SWIZZLED ? share_swizzle(at) : at), i);
    }
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) c[i / 4][i % 4] = 0;
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) {
        uint32_t step[2 * n_word];
        share_load(step, steps + share_channel<D>(lane % 4, 0, s) * 2);
#pragma unroll
        for (uint32_t u = 0; u < n_word; u++) {
            uint32_t a[4];
            ldmatrix_x4(a, q + (s * n_word + u) * (2 * SHARE_ROWS * 16));
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) a[i] = h2_mul(a[i], step[2 * u + i / 2]);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                mma_16816<HALF_F16>(c[i], a, codes.pair[i][u][0] & SHARE_BITS(s),
                                    codes.pair[i][u][1] & SHARE_BITS(s));
        }
    }
}

/* Weights of codes as B fragments: the query of column lane / 4 times the page's steps. q: the
 * shared address for ldmatrix, column lane % 8 and pair lane / 8 of channels. */
template <uint32_t D>
static __device__ __forceinline__ void share_weights(uint32_t (&by)[4][D / 32], uint32_t q,
                                                     const uint8_t *steps)
{
    constexpr uint32_t n_word = D / 64;
#pragma unroll
    for (uint32_t i = 0; i < 4 * n_word; i += 2) {
        uint32_t x[4];
        ldmatrix_x4(x, q + i * (2 * SHARE_ROWS * 16));
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            by[(i + k / 2) / n_word][(i + k / 2) % n_word * 2 + k % 2] = x[k];
    }
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) {
        uint32_t step[2 * n_word];
        share_load(step, steps + share_channel<D>(threadIdx.x % 4, 0, s) * 2);
#pragma unroll
        for (uint32_t i = 0; i < 2 * n_word; i++) by[s][i] = h2_mul(by[s][i], step[i]);
    }
}

/* The transposed products, with tokens as rows: c[h][2 e + k] for token lane / 4 + 16 h + 8 e and
 * column 2 (lane % 4) + k. */
template <uint32_t D>
static __device__ __forceinline__ void
share_page_transposed(float c[2][4], const uint32_t (&by)[4][D / 32], const uint8_t *plane)
{
    struct share_codes<D> codes;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t token = threadIdx.x % 32 / 4 + 8 * i;
        share_unpack(codes, plane + share_swizzle(token * (D / 4) + threadIdx.x % 4 * (D / 16)), i);
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) c[i / 4][i % 4] = 0;
#pragma unroll
    for (uint32_t s = 0; s < 4; s++)
#pragma unroll
        for (uint32_t u = 0; u < D / 64; u++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                const uint32_t a[4] = {codes.pair[2 * h][u][0] & SHARE_BITS(s),
                                       codes.pair[2 * h + 1][u][0] & SHARE_BITS(s),
                                       codes.pair[2 * h][u][1] & SHARE_BITS(s),
                                       codes.pair[2 * h + 1][u][1] & SHARE_BITS(s)};
                mma_16816<HALF_F16>(c[h], a, by[s][2 * u], by[s][2 * u + 1]);
            }
}

/* From a product to an exponent of 2. */
#define SHARE_UNIT ((float)(1u << 24) / SHARE_PRESCALE * LOG2E)

/* Reductions over the four lanes that hold one head; all of them get the result. */
static __device__ __forceinline__ float share_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

static __device__ __forceinline__ float share_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

#define SHARE_ONES 0x3c003c00u /* 1.0 twice, in f16 */

/* Exponentials of the eight logits that a lane has of each head e, relative to the page's largest:
 * as f16, summed by a product with ones, and stored as bytes to exps[e] unless that is NULL.
 * made[e] gets the largest, without `base`, and the sum. The sum is NaN if a logit is not finite:
 * then the page's step or the query is not finite, and some products are NaN or all are infinite.
 */
static __device__ __forceinline__ void
share_exponentials(struct exp_sum made[2], uint8_t *const exps[2], uint32_t at, const float c[4][4])
{
    uint32_t power[4][2];
    float sum[4] = {};
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        float max = fmaxf(c[0][2 * e], c[0][2 * e + 1]);
#pragma unroll
        for (uint32_t i = 1; i < 4; i++) max = fmaxf(max, fmaxf(c[i][2 * e], c[i][2 * e + 1]));
        made[e].max = share_max(max) * SHARE_UNIT;
        const float up = CHOOSE_UP - made[e].max;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            power[i][e] = half_pack<HALF_F16>(exp2_fast(fmaf(c[i][2 * e], SHARE_UNIT, up)),
                                              exp2_fast(fmaf(c[i][2 * e + 1], SHARE_UNIT, up)));
        if (exps[e])
            *(uint2 *)(exps[e] + at) = make_uint2(choose_pack(power[0][e], power[1][e]),
                                                  choose_pack(power[2][e], power[3][e]));
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i += 2) {
        const uint32_t a[4] = {power[i][0], power[i][1], power[i + 1][0], power[i + 1][1]};
        mma_16816<HALF_F16>(sum, a, SHARE_ONES, SHARE_ONES);
    }
    made[0].sum = sum[0];
    made[1].sum = sum[2];
}

#endif
