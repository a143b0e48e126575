/* weights.cuh: packed weights (weight_layout.h) into registers, as the matrix units want them.
 *
 * One warp unpacks a block of 16 outputs and 32 inputs. Lane 4g + t holds outputs 2g and 2g + 1, and
 * of each the inputs 16 s + 4 t + 0..3 for s = 0, 1. An mma of 16 x 8 x 16 takes its 16 inputs in
 * any order that both operands share, so these four are one lane's share of step s, and its rows g
 * and g + 8 are outputs 2g and 2g + 1: neighbours, whose bytes are one load.
 *
 * Weights come out in f16, times the row's power of two `shrink`, and rounded once: a product of
 * code and scale has more bits than f16. */
#ifndef SAC_OPS_CUDA_WEIGHTS_CUH
#define SAC_OPS_CUDA_WEIGHTS_CUH

#include "ops/weight_layout.h"

#include <cuda_fp16.h>

/* Of a lane: [output][step][pair of inputs]. */
struct block_w {
    __half2 w[2][2][2];
};

/* Where the blocks of one group lie. */
struct group_view {
    const uint8_t *data;
    uint32_t n_block;
};

static __device__ inline uint2 load8(const uint8_t *p)
{
    return __ldg(reinterpret_cast<const uint2 *>(p));
}

static __device__ inline __half2 load_half2(const uint8_t *p)
{
    return __ldg(reinterpret_cast<const __half2 *>(p));
}

static __device__ inline uint32_t load2(const uint8_t *p)
{
    return __ldg(reinterpret_cast<const uint16_t *>(p));
}

/* A plane's part of the codes of one step: `bits` of each of four bytes, for two outputs. */
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

/* Four indices 0..15 become levels + 128 of the non-linear types. */
static __device__ inline uint32_t iq4_levels(uint32_t codes)
{
    const uint32_t table[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    const uint32_t low = codes & 0x07070707u;
    const uint32_t select = (low & 0x7u) | (low >> 4 & 0x70u) | (low >> 8 & 0x700u) |
                            (low >> 12 & 0x7000u);
    const uint32_t upper = (codes >> 3 & 0x01010101u) * 0xffu;
    return (__byte_perm(table[0], table[1], select) & ~upper) |
           (__byte_perm(table[2], table[3], select) & upper);
}

/* Four unsigned bytes less `offset`, exact. */
static __device__ inline void to_halves(__half2 out[2], uint32_t codes, float offset)
{
    const __half2 base = __float2half2_rn(1024.0f + offset);
    const uint32_t a = __byte_perm(codes, 0x64646464u, 0x4140);
    const uint32_t b = __byte_perm(codes, 0x64646464u, 0x4342);
    out[0] = __hsub2(reinterpret_cast<const __half2 &>(a), base);
    out[1] = __hsub2(reinterpret_cast<const __half2 &>(b), base);
}

/* w = scale * code - less, of one output and step. */
struct block_scale {
    float scale[2], less[2]; /* of outputs 2g and 2g + 1 */
};

/* Scales of block b of a chunk of nb blocks that begins at `chunk`. */
template <int type>
static __device__ inline block_scale scales(const uint8_t *chunk, uint32_t b, uint32_t g,
                                            uint32_t s)
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    block_scale out = {{1, 1}, {0, 0}};
    if constexpr (l.scale == SCALE_D) {
        const float2 d = __half22float2(load_half2(chunk + 32 * b + 4 * g));
        out = {{d.x, d.y}, {0, 0}};
    } else if constexpr (l.scale == SCALE_DM) {
        const float2 d = __half22float2(load_half2(chunk + 64 * b + 4 * g));
        const float2 m = __half22float2(load_half2(chunk + 64 * b + 32 + 4 * g));
        out = {{d.x, d.y}, {-m.x, -m.y}};
    } else if constexpr (l.scale == SCALE_K32 || l.scale == SCALE_K16) {
        const uint32_t i = l.scale == SCALE_K32 ? b : 2 * b + s;
        const float2 d = __half22float2(load_half2(chunk + 4 * g));
        const uint32_t v = load2(chunk + 32 + 16 * i + 2 * g);
        out = {{d.x * (float)(int8_t)(v & 0xff), d.y * (float)(int8_t)(v >> 8)}, {0, 0}};
    } else if constexpr (l.scale == SCALE_K32_M) {
        const float2 d = __half22float2(load_half2(chunk + 4 * g));
        const float2 m = __half22float2(load_half2(chunk + 32 + 4 * g));
        const uint32_t v = load2(chunk + 64 + 16 * b + 2 * g);
        const uint32_t o = load2(chunk + 192 + 16 * b + 2 * g);
        out = {{d.x * (float)(v & 0xff), d.y * (float)(v >> 8)},
               {m.x * (float)(o & 0xff), m.y * (float)(o >> 8)}};
    } else if constexpr (l.scale == SCALE_K16_M) {
        const float2 d = __half22float2(load_half2(chunk + 4 * g));
        const float2 m = __half22float2(load_half2(chunk + 32 + 4 * g));
        const uint32_t v = load2(chunk + 64 + 16 * (2 * b + s) + 2 * g);
        out = {{d.x * (float)(v & 0xf), d.y * (float)(v >> 8 & 0xf)},
               {m.x * (float)(v >> 4 & 0xf), m.y * (float)(v >> 12 & 0xf)}};
    }
    return out;
}

/* 16 and 32-bit types: `at` is the block. */
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
                out->w[r][s][p] = __floats2half2_rn(w[r][2 * p] * shrink[r],
                                                    w[r][2 * p + 1] * shrink[r]);
    }
}

/* Block number `block` of the group for lane 4g + t. shrink: of outputs 2g and 2g + 1. */
template <int type>
static __device__ inline block_w unpack_block(struct group_view v, uint32_t block, uint32_t g,
                                              uint32_t t, const float shrink[2])
{
    constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    const uint32_t c = block / LAYOUT_BLOCKS, b = block % LAYOUT_BLOCKS;
    const uint32_t left = v.n_block - c * LAYOUT_BLOCKS;
    const uint32_t nb = left < LAYOUT_BLOCKS ? left : LAYOUT_BLOCKS;
    const uint8_t *chunk = v.data + LAYOUT_HEAD + (size_t)c * layout_full_chunk_bytes(l);
    const uint8_t *at = chunk + layout_scale_bytes(l, nb) + b * layout_block_bytes(l);
    block_w out;
    if constexpr (l.low_bits >= 16) {
        unpack_floats<type>(&out, at, g, t, shrink);
        return out;
    } else {
#pragma unroll
        for (uint32_t s = 0; s < 2; s++) {
            uint2 codes = plane<l.low_bits>(at, g, t, s);
            if constexpr (l.high_bits > 0) {
                const uint2 high = plane<l.high_bits>(at + layout_low_bytes(l), g, t, s);
                codes.x |= high.x << l.low_bits;
                codes.y |= high.y << l.low_bits;
            }
            if constexpr (l.iq4) codes = make_uint2(iq4_levels(codes.x), iq4_levels(codes.y));
            const block_scale k = scales<type>(chunk, b, g, s);
            to_halves(out.w[0][s], codes.x, l.iq4 ? LAYOUT_IQ4_OFFSET : l.offset);
            to_halves(out.w[1][s], codes.y, l.iq4 ? LAYOUT_IQ4_OFFSET : l.offset);
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const __half2 scale = __float2half2_rn(k.scale[r] * shrink[r]);
                const __half2 less = __float2half2_rn(-k.less[r] * shrink[r]);
                for (uint32_t p = 0; p < 2; p++)
                    out.w[r][s][p] = layout_has_min(l) ? __hfma2(out.w[r][s][p], scale, less)
                                                       : __hmul2(out.w[r][s][p], scale);
            }
        }
        return out;
    }
}

#endif
