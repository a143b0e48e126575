/* weights.cuh: packed weights (ops/weight_layout.h) to registers as A fragments, from global or
 * shared memory.
 *
 * One warp unpacks a block of 16 outputs and 32 inputs. Lane 4g + t holds outputs 2g and 2g + 1,
 * and of each the inputs 16 s + 4 t + 0..3 for the steps s = 0, 1. The k of m16n8k16 may be in any
 * order that both operands share, so these four are a lane's k of step s; and rows g and g + 8 of
 * the fragment are outputs 2g and 2g + 1, neighbours whose bytes are one load.
 *
 * Weights come out in two ways. For decode rows, codes stay integers, exact in f16, and scales are
 * applied in f32 to the sums of a block: few instructions, and nothing is rounded. For prompt rows,
 * and for types without codes, weights come in f16, times the output's power of two `shrink`,
 * rounded once, as code times scale has more bits than f16. */
#ifndef SAC_OPS_CUDA_WEIGHTS_CUH
#define SAC_OPS_CUDA_WEIGHTS_CUH

#include "ops/weight_layout.h"

#include <cuda_fp16.h>

/* A lane's weights: [output][step][pair of inputs]. */
struct block_w {
    __half2 w[2][2][2];
};

static __device__ inline uint2 load8(const uint8_t *p)
{
    return *reinterpret_cast<const uint2 *>(p);
}

static __device__ inline uint32_t load4(const uint8_t *p)
{
    return *reinterpret_cast<const uint32_t *>(p);
}

static __device__ inline __half2 load_half2(const uint8_t *p)
{
    return *reinterpret_cast<const __half2 *>(p);
}

static __device__ inline uint32_t load2(const uint8_t *p)
{
    return *reinterpret_cast<const uint16_t *>(p);
}

/* A plane's part of the codes of one step: `bits` bits in each of four bytes, for two outputs. */
template <int bits>
static __device__ inline uint2 plane(const uint8_t *lines, uint32_t g, uint32_t t, uint32_t s)
{
    uint2 v;
    if constexpr (bits == 8) return load8(lines + (t + 4 * s) * LAYOUT_LINE + 8 * g);
    if constexpr (bits == 4) {
        v = load8(lines + t * LAYOUT_LINE + 8 * g);
        return make_uint2(v.x >> 4 * s & 0x0f0f0f0fu, v.y >> 4 * s & 0x0f0f0f0fu);
    }
    if constexpr (bits == 2) {
        v = load8(lines + s * LAYOUT_LINE + 8 * g);
        return make_uint2(v.x >> 2 * t & 0x03030303u, v.y >> 2 * t & 0x03030303u);
    }
    v = load8(lines + 8 * g);
    return make_uint2(v.x >> (t + 4 * s) & 0x01010101u, v.y >> (t + 4 * s) & 0x01010101u);
}

/* Looks up four indices 0..15 of the non-linear types; the result is the level + 128. */
static __device__ inline uint32_t iq4_levels(uint32_t codes)
{
    const uint32_t table[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    const uint32_t low = codes & 0x07070707u;
    const uint32_t select =
        (low & 0x7u) | (low >> 4 & 0x70u) | (low >> 8 & 0x700u) | (low >> 12 & 0x7000u);
    const uint32_t upper = (codes >> 3 & 0x01010101u) * 0xffu;
    return (__byte_perm(table[0], table[1], select) & ~upper) |
           (__byte_perm(table[2], table[3], select) & upper);
}

/* Four unsigned bytes minus `offset`, exact in f16. */
static __device__ inline void to_halves(__half2 out[2], uint32_t codes, float offset)
{
    const __half2 base = __float2half2_rn(1024.0f + offset);
    const uint32_t a = __byte_perm(codes, 0x64646464u, 0x4140);
    const uint32_t b = __byte_perm(codes, 0x64646464u, 0x4342);
    out[0] = __hsub2(reinterpret_cast<const __half2 &>(a), base);
    out[1] = __hsub2(reinterpret_cast<const __half2 &>(b), base);
}

/* Two bytes, of outputs 2g and 2g + 1, minus `offset`, exact in f16. */
static __device__ inline __half2 byte_pair(uint32_t bytes, float offset)
{
    const uint32_t a = __byte_perm(bytes, 0x64646464u, 0x4140);
    return __hsub2(reinterpret_cast<const __half2 &>(a), __float2half2_rn(1024.0f + offset));
}

/* The shrinks of outputs 2g and 2g + 1: powers of two, large because weights are small, so not
 * f16. */
struct pair_shrink {
    float f[2];
};

static __device__ inline struct pair_shrink load_shrink(const uint8_t *group, uint32_t g)
{
    const float2 v = __ldg(reinterpret_cast<const float2 *>(group) + g);
    return {{v.x, v.y}};
}

/* Two f16 scales times shrink, clamped: a scale whose codes are all zero may be too large, and 0
 * times the clamped one is still 0. */
static __device__ inline __half2 shrunk(__half2 scale, const struct pair_shrink &shrink)
{
    const float2 v = __half22float2(scale);
    const float most = 65504.0f;
    return __floats2half2_rn(fminf(fmaxf(v.x * shrink.f[0], -most), most),
                             fminf(fmaxf(v.y * shrink.f[1], -most), most));
}

/* What the blocks of a chunk of a K type share: the scales of scales and of minima, shrunk. */
struct chunk_scale {
    __half2 d, m;
};

template <int type>
static __device__ inline struct chunk_scale load_chunk(const uint8_t *chunk, uint32_t g,
                                                       const struct pair_shrink &shrink)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    struct chunk_scale k = {};
    if constexpr (l.scale != SCALE_NONE && l.scale != SCALE_D && l.scale != SCALE_DM) {
        k.d = shrunk(load_half2(chunk + 4 * g), shrink);
        if constexpr (layout_has_min(l)) k.m = shrunk(load_half2(chunk + 32 + 4 * g), shrink);
    }
    return k;
}

/* w = scale * code + more, for outputs 2g and 2g + 1 in step s of block b. */
struct block_scale {
    __half2 scale, more;
};

template <int type>
static __device__ inline struct block_scale
load_scale(const uint8_t *chunk, const struct chunk_scale &k, uint32_t b, uint32_t g, uint32_t s,
           const struct pair_shrink &shrink)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    struct block_scale out = {k.d, k.m};
    if constexpr (l.scale == SCALE_D) {
        out.scale = shrunk(load_half2(chunk + 32 * b + 4 * g), shrink);
    } else if constexpr (l.scale == SCALE_DM) {
        out.scale = shrunk(load_half2(chunk + 64 * b + 4 * g), shrink);
        out.more = shrunk(load_half2(chunk + 64 * b + 32 + 4 * g), shrink);
    } else if constexpr (l.scale == SCALE_K32 || l.scale == SCALE_K16) {
        const uint32_t i = l.scale == SCALE_K32 ? b : 2 * b + s;
        const uint32_t v = load2(chunk + 32 + 16 * i + 2 * g) ^ 0x8080u; /* to signed */
        out.scale = __hmul2(byte_pair(v, 128), k.d);
    } else if constexpr (l.scale == SCALE_K32_M) {
        out.scale = __hmul2(byte_pair(load2(chunk + 64 + 16 * b + 2 * g), 0), k.d);
        out.more = __hneg2(__hmul2(byte_pair(load2(chunk + 192 + 16 * b + 2 * g), 0), k.m));
    } else if constexpr (l.scale == SCALE_K16_M) {
        const uint32_t v = load2(chunk + 64 + 16 * (2 * b + s) + 2 * g);
        out.scale = __hmul2(byte_pair(v & 0x0f0fu, 0), k.d);
        out.more = __hneg2(__hmul2(byte_pair(v >> 4 & 0x0f0fu, 0), k.m));
    }
    return out;
}

/* 16- and 32-bit types; `at` is the block. */
template <int type>
static __device__ inline void unpack_floats(block_w *out, const uint8_t *at, uint32_t g, uint32_t t,
                                            const float shrink[2])
{
    for (uint32_t s = 0; s < 2; s++) {
        float w[2][4]; /* [output][input] */
        if constexpr (type == QUANT_F32) {
            for (uint32_t i = 0; i < 4; i++) {
                const uint2 v = load8(at + (16 * s + 4 * t + i) * LAYOUT_LINE + 8 * g);
                w[0][i] = __uint_as_float(v.x);
                w[1][i] = __uint_as_float(v.y);
            }
        } else {
            for (uint32_t h = 0; h < 2; h++) {
                const uint2 v = load8(at + (2 * (t + 4 * s) + h) * LAYOUT_LINE + 8 * g);
                const uint32_t of[2] = {v.x, v.y};
                for (uint32_t r = 0; r < 2; r++) {
                    if constexpr (type == QUANT_BF16) {
                        w[r][h] = __uint_as_float(of[r] << 16);
                        w[r][h + 2] = __uint_as_float(of[r] & 0xffff0000u);
                    } else {
                        w[r][h] = __half2float(__ushort_as_half((unsigned short)of[r]));
                        w[r][h + 2] = __half2float(__ushort_as_half((unsigned short)(of[r] >> 16)));
                    }
                }
            }
        }
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t p = 0; p < 2; p++)
                out->w[r][s][p] =
                    __floats2half2_rn(w[r][2 * p] * shrink[r], w[r][2 * p + 1] * shrink[r]);
    }
}

/* The address of a block. */
struct block_place {
    const uint8_t *chunk, *at;
    uint32_t b; /* its index in the chunk */
};

template <int type>
static __device__ inline struct block_place find_block(const uint8_t *group, uint32_t n_block,
                                                       uint32_t block)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    const uint32_t c = block / LAYOUT_BLOCKS, b = block % LAYOUT_BLOCKS;
    const uint32_t left = n_block - c * LAYOUT_BLOCKS;
    const uint32_t nb = left < LAYOUT_BLOCKS ? left : LAYOUT_BLOCKS;
    const uint8_t *chunk = group + LAYOUT_HEAD + (size_t)c * layout_full_chunk_bytes(l);
    return {chunk, chunk + layout_scale_bytes(l, nb) + b * layout_block_bytes(l), b};
}

/* The unsigned codes of block i after `place`: four bytes for each [output][step]. */
struct block_codes {
    uint32_t of[2][2];
};

template <int type>
static __device__ inline struct block_codes load_codes(const struct block_place &place, uint32_t i,
                                                       uint32_t g, uint32_t t)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    const uint8_t *at = place.at + i * layout_block_bytes(l);
    struct block_codes out;
#pragma unroll
    for (uint32_t s = 0; s < 2; s++) {
        uint2 codes = plane<l.low_bits>(at, g, t, s);
        if constexpr (l.high_bits > 0) {
            const uint2 high = plane<l.high_bits>(at + layout_low_bytes(l), g, t, s);
            codes.x |= high.x << l.low_bits;
            codes.y |= high.y << l.low_bits;
        }
        out.of[0][s] = l.iq4 ? iq4_levels(codes.x) : codes.x;
        out.of[1][s] = l.iq4 ? iq4_levels(codes.y) : codes.y;
    }
    return out;
}

/* Subtracted from unsigned codes. */
template <int type> static constexpr float code_offset(void)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    return l.iq4 ? LAYOUT_IQ4_OFFSET : l.offset;
}

/* The weights of block i after `place`, in the same chunk, for lane 4g + t. */
template <int type>
static __device__ inline block_w unpack_block(const struct block_place &place, uint32_t i,
                                              const struct chunk_scale &k, uint32_t g, uint32_t t,
                                              const struct pair_shrink &shrink)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    block_w out;
    if constexpr (layout_is_float(l)) {
        unpack_floats<type>(&out, place.at + i * layout_block_bytes(l), g, t, shrink.f);
        return out;
    } else {
        const struct block_codes codes = load_codes<type>(place, i, g, t);
#pragma unroll
        for (uint32_t s = 0; s < 2; s++) {
            const struct block_scale v =
                load_scale<type>(place.chunk, k, place.b + i, g, s, shrink);
            to_halves(out.w[0][s], codes.of[0][s], code_offset<type>());
            to_halves(out.w[1][s], codes.of[1][s], code_offset<type>());
            const __half2 scale[2] = {__low2half2(v.scale), __high2half2(v.scale)};
            const __half2 more[2] = {__low2half2(v.more), __high2half2(v.more)};
#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
                for (uint32_t p = 0; p < 2; p++)
                    out.w[r][s][p] = layout_has_min(l) ? __hfma2(out.w[r][s][p], scale[r], more[r])
                                                       : __hmul2(out.w[r][s][p], scale[r]);
        }
        return out;
    }
}

/* ---- Integer codes and their factors ---- */

/* Integer codes n become subnormal f16, n * 2^-24, which tensor cores multiply exactly: their bits
 * are put in place and nothing is computed. */
#define CODE_UNIT 16777216.0f /* 2^24 */

/* Types whose codes are only masked: those of step 1 are then times 16, and the inputs of step 1
 * are stored over 16 (linear.cuh). Other types give bytes, and the sums of step 1 are multiplied by
 * 16. */
template <int type> static constexpr bool codes_in_place(void)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    return l.low_bits == 4 && l.high_bits <= 1 && !l.iq4;
}

/* Pairs of subnormal f16, [step][output]: of inputs 0 and 2, then of 1 and 3. */
struct block_pairs {
    uint32_t of[2][2][2];
};

template <int type>
static __device__ inline struct block_pairs load_pairs(const struct block_place &place, uint32_t i,
                                                       uint32_t g, uint32_t t)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    struct block_pairs out;
    if constexpr (codes_in_place<type>()) {
        const uint8_t *at = place.at + i * layout_block_bytes(l);
        const uint2 low = load8(at + t * LAYOUT_LINE + 8 * g);
        const uint2 high = l.high_bits ? load8(at + layout_low_bytes(l) + 8 * g) : make_uint2(0, 0);
        const uint32_t v[2] = {low.x, low.y}, h[2] = {high.x, high.y};
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            out.of[0][r][0] = v[r] & 0x000f000fu;
            out.of[0][r][1] = v[r] >> 8 & 0x000f000fu;
            out.of[1][r][0] = v[r] & 0x00f000f0u;
            out.of[1][r][1] = v[r] >> 8 & 0x00f000f0u;
            if (l.high_bits == 0) continue;
            const uint32_t even = h[r] << (4 - t), odd = h[r] >> (4 + t); /* to bits 4, 8 */
            out.of[0][r][0] |= even & 0x00100010u;
            out.of[0][r][1] |= odd & 0x00100010u;
            out.of[1][r][0] |= even & 0x01000100u;
            out.of[1][r][1] |= odd & 0x01000100u;
        }
    } else {
        const struct block_codes codes = load_codes<type>(place, i, g, t);
#pragma unroll
        for (uint32_t s = 0; s < 2; s++)
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                out.of[s][r][0] = __byte_perm(codes.of[r][s], 0, 0x4240);
                out.of[s][r][1] = __byte_perm(codes.of[r][s], 0, 0x4341);
            }
    }
    return out;
}

static __device__ inline float2 pair_floats(__half2 v, float by)
{
    const float2 f = __half22float2(v);
    return make_float2(f.x * by, f.y * by);
}

/* The factor of the sums of a block's codes, or with layout_halves of step s alone, for outputs 2g
 * and 2g + 1. */
template <int type>
static __device__ inline float2 load_factor(const uint8_t *chunk, uint32_t b, uint32_t g,
                                            uint32_t s)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    if constexpr (l.scale == SCALE_D) {
        return pair_floats(load_half2(chunk + 32 * b + 4 * g), 1);
    } else if constexpr (l.scale == SCALE_DM) {
        return pair_floats(load_half2(chunk + 64 * b + 4 * g), 1);
    } else if constexpr (l.scale == SCALE_K32 || l.scale == SCALE_K16) {
        const uint32_t i = l.scale == SCALE_K32 ? b : 2 * b + s;
        const uint32_t v = load2(chunk + 32 + 16 * i + 2 * g) ^ 0x8080u; /* to signed */
        return pair_floats(byte_pair(v, 128), 1);
    } else {
        const bool halves = l.scale == SCALE_K16_M;
        const uint32_t v = load2(chunk + 64 + 16 * (halves ? 2 * b + s : b) + 2 * g);
        const uint32_t tiny = __byte_perm(halves ? v & 0x0f0fu : v, 0, 0x4140); /* subnormal */
        return pair_floats(reinterpret_cast<const __half2 &>(tiny), 1);
    }
}

/* The part that all weights of a block share, in f16: both steps of output 2g, then of 2g + 1. It
 * is multiplied by sums of inputs: minima, or, for the offset of codes, the scales again. */
struct block_common {
    uint32_t of[2];
};

template <int type>
static __device__ inline struct block_common load_common(const uint8_t *chunk, uint32_t b,
                                                         uint32_t g)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    if constexpr (l.scale == SCALE_D || l.scale == SCALE_DM) {
        const uint32_t v = load4(chunk + (l.scale == SCALE_D ? 32 * b : 64 * b + 32) + 4 * g);
        return {{__byte_perm(v, 0, 0x1010), __byte_perm(v, 0, 0x3232)}};
    } else if constexpr (l.scale == SCALE_K32) {
        const __half2 h = byte_pair(load2(chunk + 32 + 16 * b + 2 * g) ^ 0x8080u, 128);
        const uint32_t v = reinterpret_cast<const uint32_t &>(h);
        return {{__byte_perm(v, 0, 0x1010), __byte_perm(v, 0, 0x3232)}};
    } else if constexpr (l.scale == SCALE_K16) {
        const __half2 h0 = byte_pair(load2(chunk + 32 + 32 * b + 2 * g) ^ 0x8080u, 128);
        const __half2 h1 = byte_pair(load2(chunk + 48 + 32 * b + 2 * g) ^ 0x8080u, 128);
        const uint32_t v0 = reinterpret_cast<const uint32_t &>(h0);
        const uint32_t v1 = reinterpret_cast<const uint32_t &>(h1);
        return {{__byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632)}};
    } else if constexpr (l.scale == SCALE_K32_M) {
        const uint32_t m = load2(chunk + 192 + 16 * b + 2 * g);
        return {{__byte_perm(m, 0, 0x4040), __byte_perm(m, 0, 0x4141)}};
    } else {
        const uint32_t m0 = load2(chunk + 64 + 32 * b + 2 * g) >> 4 & 0x0f0fu;
        const uint32_t m1 = load2(chunk + 80 + 32 * b + 2 * g) >> 4 & 0x0f0fu;
        return {{__byte_perm(m0, m1, 0x6420), __byte_perm(m0, m1, 0x6521)}};
    }
}

/* The factors common to all blocks of a chunk: of the sums of codes, and of the shared part. */
struct chunk_factor {
    float2 code, common;
};

template <int type>
static __device__ inline struct chunk_factor load_chunk_factor(const uint8_t *chunk, uint32_t g)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    constexpr float offset = -code_offset<type>(), unit = CODE_UNIT;
    if constexpr (l.scale == SCALE_D) {
        return {{unit, unit}, {offset, offset}};
    } else if constexpr (l.scale == SCALE_DM) {
        return {{unit, unit}, {1, 1}};
    } else if constexpr (layout_has_min(l)) {
        return {pair_floats(load_half2(chunk + 4 * g), unit * unit),
                pair_floats(load_half2(chunk + 32 + 4 * g), -unit)};
    } else {
        const __half2 d = load_half2(chunk + 4 * g);
        return {pair_floats(d, unit), pair_floats(d, offset)};
    }
}

/* ---- Dispatch ---- */

/* Expands CALL(type) for each weight type. */
#define WEIGHTS_FOR_TYPE(type, CALL)                                                               \
    switch (type) {                                                                                \
    case QUANT_F32: CALL(QUANT_F32); break;                                                        \
    case QUANT_F16: CALL(QUANT_F16); break;                                                        \
    case QUANT_BF16: CALL(QUANT_BF16); break;                                                      \
    case QUANT_Q4_0: CALL(QUANT_Q4_0); break;                                                      \
    case QUANT_Q4_1: CALL(QUANT_Q4_1); break;                                                      \
    case QUANT_Q5_0: CALL(QUANT_Q5_0); break;                                                      \
    case QUANT_Q5_1: CALL(QUANT_Q5_1); break;                                                      \
    case QUANT_Q8_0: CALL(QUANT_Q8_0); break;                                                      \
    case QUANT_Q2_K: CALL(QUANT_Q2_K); break;                                                      \
    case QUANT_Q3_K: CALL(QUANT_Q3_K); break;                                                      \
    case QUANT_Q4_K: CALL(QUANT_Q4_K); break;                                                      \
    case QUANT_Q5_K: CALL(QUANT_Q5_K); break;                                                      \
    case QUANT_Q6_K: CALL(QUANT_Q6_K); break;                                                      \
    case QUANT_IQ4_NL: CALL(QUANT_IQ4_NL); break;                                                  \
    case QUANT_IQ4_XS: CALL(QUANT_IQ4_XS); break;                                                  \
    }

#endif
