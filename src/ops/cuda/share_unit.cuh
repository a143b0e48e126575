/* share_unit.cuh: what a warp makes of a page's first planes and the queries of heads (private to
 * share.cu): products, and from these powers and their sum. */
#ifndef SAC_OPS_CUDA_SHARE_UNIT_CUH
#define SAC_OPS_CUDA_SHARE_UNIT_CUH

#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define SHARE_ROWS 16u /* heads of one instruction */

/* ---- Heads ---- */

/* Where the numbers of a row's head go: exponentials, the largest logits and sums of pages; sums of
 * pieces, `group` apart. */
struct share_row {
    uint8_t *exps;
    float *top, *page_sum, *sum;
    uint32_t lane_i; /* whose head it is; UINT32_MAX: there is none */
};

struct share_block {
    const struct op_lane_shares *of; /* [n_lane] in shared memory, of groups of the same size */
    struct share_row *row;           /* there: of the heads at hand */
    uint32_t n_lane, group;
};

/* Channel c of the codes is two bits of byte c % (D / 4), and the bytes of lane j of four are D /
 * 16 from j D / 16 on: so a word of them has four channels of each quarter, the k of one
 * instruction. Codes are not shifted: as bits of a half they are multiples of 2^-24, by a power of
 * four for each quarter, which queries make up for. Queries are halves, and what that leaves, which
 * is the same for all warps and wanted once for many tokens. */
template <uint32_t D> struct share_query {
    static constexpr uint32_t n_word = D / 64;
    /* By quarter and word, pair of channels 0, 1 or 2, 3, head and lane % 4: tiles of an
     * instruction. In shared memory. */
    uint32_t near[4 * n_word][2][SHARE_ROWS][4], rest[4 * n_word][2][SHARE_ROWS][4];
};

/* What the queries of a quarter are multiplied by, so that their products with its codes are alike.
 * What rounding to halves leaves of those must be a number, and the largest query finite. */
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

/* Of heads g0 .. g0 + SHARE_ROWS - 1, by all threads of a block: queries, and rows. */
template <uint32_t D>
static __device__ void share_heads_load(struct share_query<D> *to, const struct share_block &b,
                                        uint32_t g0)
{
    constexpr uint32_t n_word = D / 64;
    __syncthreads(); /* nobody reads those of the heads before any more */
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

/* N words that lie together at a multiple of their bytes, or of 16. */
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

/* What goes with all tokens of a page, its steps being met in the middle of what the codes leave
 * open, in powers of two: base[2 e + k] of head r0 + lane / 4 + 8 e and page 2 (lane % 4) + k.
 * FEW: of 8 heads, what their rounding leaves in the place of others. `mins`: where those of page
 * lane / 4 are, and behind them its steps. */
template <uint32_t D, bool FEW>
static __device__ __forceinline__ void share_base(float base[4], const struct share_query<D> &query,
                                                  uint32_t r0, const uint8_t *mins)
{
    constexpr uint32_t n_word = D / 64, n_e = FEW ? 1 : 2;
    const uint32_t lane = threadIdx.x % 32, tile = lane / 8;
    const uint32_t row = FEW ? min(r0 + lane % 8, SHARE_ROWS - 1) : tile % 2 * 8 + lane % 8;
    const uint32_t left = (uint32_t)sizeof query.near; /* what rounding leaves lies behind */
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

/* A lane's codes of four tokens of a page: pairs of channels, the byte of each at the same place.
 */
template <uint32_t D> struct share_codes {
    static constexpr uint32_t n_word = D / 64;
    uint32_t pair[4][n_word][2];
};

/* Where a byte of a plane lies in shared memory: tokens that are read together lie apart. */
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

#define SHARE_BITS(s) (0x00030003u << 2 * (s)) /* of a quarter's codes */

/* A lane has four tokens of a page as a column of instructions: two of each second pair. What comes
 * of these is of eight neighbours, from 8 (lane % 4) on. */
static __device__ __forceinline__ uint32_t share_token(uint32_t i)
{
    const uint32_t column = threadIdx.x % 32 / 4;
    return column / 2 * 8 + i * 2 + column % 2;
}

/* Products of a page's codes and weights of 16 rows: c[i][2 e + k] of row lane / 4 + 8 e and
 * token 8 (lane % 4) + 2 i + k. */
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

/* Weights of codes: queries of the row of column lane / 4 times a page's steps. `q`: where that of
 * column lane % 8 is, of pair lane / 8 of channels. */
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

/* The same products, tokens being the rows and rows columns: c[h][2 e + k] of token lane / 4 +
 * 16 h + 8 e and row 2 (lane % 4) + k, to which this lane's weights `by` belong as column lane / 4.
 */
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

/* Products are in units of it, in powers of two. */
#define SHARE_UNIT ((float)(1u << 24) / SHARE_PRESCALE * LOG2E)

/* Over the four lanes that have a head's numbers; all of them get it. */
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

#define SHARE_ONES 0x3c003c00u /* two halves */

/* Powers of the eight logits of each head e that a lane has, less the largest one of the page, as
 * halves and then as bytes to exps[e] unless that is NULL: makes that, of products alone, and the
 * page's sum, which is a product with ones. The sum is NaN if one is not finite: then the page's
 * step or the query is not, and some products are NaN or all infinite. */
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
