/* narrow_unit.cuh: the arithmetic of narrow.cu for one unit of packed weights, up to four blocks of
 * 16 outputs by 32 inputs, and the strips of a few rows (linear.cuh), both in shared memory.
 *
 * All lanes of a warp call these functions together. Lane 4g + t has outputs 2g and 2g + 1 in A
 * (weights.cuh), row g of a tile of rows in B, and in the accumulators outputs 2g and 2g + 1 of
 * rows 2t and 2t + 1. Products of codes are exact integers; the scales of blocks, chunks and strips
 * are applied to their sums in f32, in an order that depends on the unit alone, so a single row
 * gets the bits that it has among others. */
#ifndef SAC_OPS_CUDA_NARROW_UNIT_CUH
#define SAC_OPS_CUDA_NARROW_UNIT_CUH

#include "ops/cuda/linear.cuh"
#include "ops/cuda/machine.cuh"
#include "ops/cuda/weights.cuh"

#define UNIT_MAX 4u /* weight blocks of a unit, as many as a strip has */

static_assert(UNIT_MAX * LAYOUT_BLOCK == STRIP, "a unit of codes has one strip");

#define STEP_1 16.0f /* factor of the sums of step 1, whose inputs are over 16 */

/* One step for two outputs: weights [output][pair of inputs]. */
static __device__ inline void mma(float c[4], const uint32_t w[2][2], uint32_t x0, uint32_t x1)
{
    const uint32_t a[4] = {w[0][0], w[1][0], w[0][1], w[1][1]};
    mma_16816<HALF_F16>(c, a, x0, x1);
}

/* Sums [n_tile][4] are accumulators of mma: c[0], c[1] for output 2g and rows 2t, 2t + 1; c[2],
 * c[3] for output 2g + 1. */

/* c += by * add with explicit FMAs, because compilers choose differently in different callers. */
static __device__ inline void add_times(float c[4], float2 by, const float add[4])
{
    c[0] = __fmaf_rn(by.x, add[0], c[0]);
    c[1] = __fmaf_rn(by.x, add[1], c[1]);
    c[2] = __fmaf_rn(by.y, add[2], c[2]);
    c[3] = __fmaf_rn(by.y, add[3], c[3]);
}

/* Where lane 4g + t finds its rows, row g of each tile, in a unit's strips. */
template <uint32_t n_tile> struct narrow_x {
    uint32_t g, t, b; /* b: index of the unit's first block in its strip */
    const uint8_t *row[n_tile];
};

/* Inputs of the unit's block i: two pairs of step 0, two of step 1. */
template <uint32_t n_tile>
static __device__ inline uint4 load_x(const struct narrow_x<n_tile> &x, uint32_t tile, uint32_t i)
{
    return *reinterpret_cast<const uint4 *>(x.row[tile] + 64 * (x.b + i) + 16 * x.t);
}

/* Adds block i of a type without codes; step 1 has its own sums. */
template <int type, uint32_t n_tile>
static __device__ inline void
add_floats(float sum[n_tile][4], float sum1[n_tile][4], const struct block_place &place,
           const struct pair_shrink &shrink, const struct narrow_x<n_tile> &rows, uint32_t i)
{
    const block_w w = unpack_block<type>(place, i, {}, rows.g, rows.t, shrink);
    uint32_t pair[2][2][2]; /* [step][output]: inputs 0 and 2, 1 and 3 */
#pragma unroll
    for (uint32_t s = 0; s < 2; s++)
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t v[2];
            memcpy(v, w.w[r][s], sizeof v);
            pair[s][r][0] = __byte_perm(v[0], v[1], 0x5410);
            pair[s][r][1] = __byte_perm(v[0], v[1], 0x7632);
        }
#pragma unroll
    for (uint32_t j = 0; j < n_tile; j++) {
        const uint4 x = load_x(rows, j, i);
        mma(sum[j], pair[0], x.x, x.y);
        mma(sum1[j], pair[1], x.z, x.w);
    }
}

/* Adds block i of a type with codes: its sums times the block's factors. */
template <int type, uint32_t n_tile>
static __device__ inline void add_codes(float sum[n_tile][4], const struct block_place &place,
                                        const struct narrow_x<n_tile> &rows, uint32_t i)
{
    constexpr bool halves = layout_halves(weight_layout_of(static_cast<enum quant_type>(type)));
    constexpr bool apart = halves || !codes_in_place<type>(); /* the steps need different factors */
    const struct block_pairs codes = load_pairs<type>(place, i, rows.g, rows.t);
    const float2 factor = load_factor<type>(place.chunk, place.b + i, rows.g, 0);
    float2 factor1 = factor;
    if (halves) factor1 = load_factor<type>(place.chunk, place.b + i, rows.g, 1);
    if (apart) factor1 = make_float2(factor1.x * STEP_1, factor1.y * STEP_1);
#pragma unroll
    for (uint32_t j = 0; j < n_tile; j++) {
        const uint4 x = load_x(rows, j, i);
        float part[4] = {};
        mma(part, codes.of[0], x.x, x.y);
        if (apart) {
            add_times(sum[j], factor, part);
            part[0] = part[1] = part[2] = part[3] = 0;
        }
        mma(part, codes.of[1], x.z, x.w);
        add_times(sum[j], factor1, part);
    }
}

/* Blocks of a unit are summed in pairs, then the pairs. */
static constexpr uint32_t pair = 2;

/* The same for n blocks of a single row: column g of B is the row's block g % 4, so that the sums
 * of block i are in column i, which two of four lanes have; each multiplies those of its pair of
 * blocks. */
template <int type, uint32_t n_known>
static __device__ inline void add_alone(float sum[4], const struct block_place &place,
                                        const struct narrow_x<1> &rows, uint32_t n)
{
    constexpr bool halves = layout_halves(weight_layout_of(static_cast<enum quant_type>(type)));
    constexpr bool apart = halves || !codes_in_place<type>();
    const uint4 x = load_x(rows, 0, rows.g % UNIT_MAX);
    float step[pair][2][2] = {}; /* [block of the pair][step][output] */
#pragma unroll(n_known > 0 ? n_known : 1)
    for (uint32_t i = 0; i < (n_known > 0 ? n_known : n); i++) {
        const struct block_pairs codes = load_pairs<type>(place, i, rows.g, rows.t);
        const bool is_mine = rows.t % 2 == i / pair, second = i % pair;
        float part[4] = {};
        mma(part, codes.of[0], x.x, x.y);
        if (apart) {
            if (is_mine && !second) step[0][0][0] = part[0], step[0][0][1] = part[2];
            if (is_mine && second) step[1][0][0] = part[1], step[1][0][1] = part[3];
            part[0] = part[1] = part[2] = part[3] = 0;
        }
        mma(part, codes.of[1], x.z, x.w);
        if (is_mine && !second) step[0][1][0] = part[0], step[0][1][1] = part[2];
        if (is_mine && second) step[1][1][0] = part[1], step[1][1][1] = part[3];
    }
#pragma unroll
    for (uint32_t k = 0; k < pair; k++) {
        const uint32_t i = rows.t % 2 * pair + k, b = place.b + i;
        if (n_known == 0 && i >= n) break;
#pragma unroll
        for (uint32_t s = apart ? 0 : 1; s < 2; s++) {
            float2 f = load_factor<type>(place.chunk, b, rows.g, halves ? s : 0);
            if (apart && s == 1) f = make_float2(f.x * STEP_1, f.y * STEP_1);
            sum[0] = __fmaf_rn(f.x, step[k][s][0], sum[0]);
            sum[2] = __fmaf_rn(f.y, step[k][s][1], sum[2]);
        }
    }
    sum[0] += __shfl_xor_sync(~0u, sum[0], 1);
    sum[2] += __shfl_xor_sync(~0u, sum[2], 1);
}

/* Adds what the weights of n blocks share (minima, offsets) times the sums of inputs. */
template <int type, uint32_t n_tile>
static __device__ inline void add_common(float sum[n_tile][4], const struct block_place &place,
                                         const struct narrow_x<n_tile> &rows, float2 by, uint32_t n)
{
    struct block_common k = {};
    if (rows.t < n) k = load_common<type>(place.chunk, place.b + rows.t, rows.g);
    const uint32_t both[2][2] = {
        {k.of[0], k.of[0]}, {k.of[1], k.of[1]}}; /* with the high and the low parts of the sums */
#pragma unroll
    for (uint32_t j = 0; j < n_tile; j++) {
        const uint2 x = load8(rows.row[j] + STRIP_SUMS + 8 * rows.t);
        float part[4] = {};
        mma(part, both, x.x, x.y);
        add_times(sum[j], by, part);
    }
}

/* The factors of sums over a unit, for rows 2t and 2t + 1: the scales of its strips. */
template <uint32_t n_tile, bool alone>
static __device__ inline float2 load_strip_scale(const struct narrow_x<n_tile> &rows, uint32_t tile)
{
    const float mine = *reinterpret_cast<const float *>(rows.row[tile] + STRIP_SCALE);
    if (alone) return make_float2(mine, mine);
    return make_float2(__shfl_sync(~0u, mine, 8 * rows.t), __shfl_sync(~0u, mine, 8 * rows.t + 4));
}

/* sum += by * add, with a factor for each column. */
static __device__ inline void add_scaled(float sum[4], float2 by, const float add[4])
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) sum[i] = __fmaf_rn(i % 2 ? by.y : by.x, add[i], sum[i]);
}

/* Adds n blocks of a unit. For whole units n is known at compile time, and the compiler interleaves
 * their unpacking. */
template <int type, uint32_t n_tile, bool alone, uint32_t known>
static __device__ inline void add_blocks(float sum[n_tile][4], const struct block_place &place,
                                         const struct pair_shrink &shrink,
                                         const struct narrow_x<n_tile> &rows, uint32_t n)
{
    float part[n_tile][4] = {}, unit[n_tile][4] = {};
    if (known > 0) n = known;
    if constexpr (layout_is_float(weight_layout_of(static_cast<enum quant_type>(type)))) {
#pragma unroll(known > 0 ? known : 1)
        for (uint32_t i = 0; i < n; i++)
            add_floats<type, n_tile>(unit, part, place, shrink, rows, i);
#pragma unroll
        for (uint32_t j = 0; j < n_tile; j++) add_times(unit[j], {STEP_1, STEP_1}, part[j]);
    } else {
        if constexpr (alone) {
            add_alone<type, known>(part[0], place, rows, n);
        } else {
            float more[n_tile][4] = {};
#pragma unroll(known > 0 ? pair : 1)
            for (uint32_t i = 0; i < min(n, pair); i++)
                add_codes<type, n_tile>(part, place, rows, i);
#pragma unroll(known > 0 ? pair : 1)
            for (uint32_t i = pair; i < n; i++) add_codes<type, n_tile>(more, place, rows, i);
#pragma unroll
            for (uint32_t j = 0; j < n_tile; j++)
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) part[j][k] += more[j][k];
        }
        const struct chunk_factor k = load_chunk_factor<type>(place.chunk, rows.g);
#pragma unroll
        for (uint32_t j = 0; j < n_tile; j++) add_times(unit[j], k.code, part[j]);
        add_common<type, n_tile>(unit, place, rows, k.common, n);
    }
#pragma unroll
    for (uint32_t j = 0; j < n_tile; j++)
        add_scaled(sum[j], load_strip_scale<n_tile, alone>(rows, j), unit[j]);
}

#endif
