/* linear_decode.h: unpacks packed weights to registers, for the AVX-512 and AMX kernels. Included
 * only by files compiled for AVX-512.
 *
 * Contract: `l` or `type` is a constant at every call, and calls are inlined, so that branches and
 * loops on them fold. */
#ifndef SAC_OPS_CPU_LINEAR_DECODE_H
#define SAC_OPS_CPU_LINEAR_DECODE_H

#include "ops/weight_layout.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i decode_shift(__m512i v, int left)
{
    return left >= 0 ? _mm512_slli_epi16(v, left) : _mm512_srli_epi16(v, -left);
}

/* The upper nibbles of all bytes, with other bits above them. A multishift (port 5) instead of a
 * shift, because in product kernels shifts compete for port 0. */
INLINE __m512i decode_upper(__m512i line)
{
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x3c342c241c140c04), line);
}

/* Quad line j = 0..7 of a block's low plane. */
INLINE __m512i decode_low(const uint8_t *p, const struct weight_layout l, const int j)
{
    if (l.low_bits == 8) return _mm512_loadu_si512(p + 64 * j);
    if (l.low_bits == 4) {
        const __m512i line = _mm512_loadu_si512(p + 64 * (j % 4));
        return _mm512_and_si512(j < 4 ? line : decode_upper(line), _mm512_set1_epi8(15));
    }
    const __m512i line = _mm512_loadu_si512(p + 64 * (j / 4));
    return _mm512_and_si512(decode_shift(line, -2 * (j % 4)), _mm512_set1_epi8(3));
}

/* Quad line j of a block's unsigned codes. */
INLINE __m512i decode_quad(const uint8_t *p, const struct weight_layout l, const int j)
{
    const __m512i level = _mm512_broadcast_i32x4(_mm_xor_si128(
        _mm_loadu_si128((const __m128i *)layout_iq4_level), _mm_set1_epi8((char)0x80)));
    const uint8_t *high = p + layout_low_bytes(l);
    __m512i q = decode_low(p, l, j);
    if (l.high_bits == 1) {
        const __m512i bit = decode_shift(_mm512_loadu_si512(high), l.low_bits - j);
        q = _mm512_ternarylogic_epi32(q, bit, _mm512_set1_epi8(1 << l.low_bits), 0xf8);
    } else if (l.high_bits == 2) {
        const __m512i line = _mm512_loadu_si512(high + 64 * (j / 4));
        const __m512i pair = decode_shift(line, l.low_bits - 2 * (j % 4));
        q = _mm512_ternarylogic_epi32(q, pair, _mm512_set1_epi8(3 << l.low_bits), 0xf8);
    }
    return l.iq4 ? _mm512_shuffle_epi8(level, q) : q;
}

/* Quad line j of a block's signed codes: minus the offset of the type. */
INLINE __m512i decode_signed(const uint8_t *p, const struct weight_layout l, const int j)
{
    if (l.high_bits == 1 &&
        l.offset) { /* the high bit is worth the offset: subtract it where the bit is 0 */
        const __m512i high = _mm512_loadu_si512(p + layout_low_bytes(l));
        const __mmask64 off = _mm512_testn_epi8_mask(high, _mm512_set1_epi8((char)(1 << j)));
        const __m512i q = decode_low(p, l, j);
        return _mm512_mask_sub_epi8(q, off, q, _mm512_set1_epi8((char)l.offset));
    }
    const __m512i q = decode_quad(p, l, j);
    const uint8_t offset = l.iq4 ? LAYOUT_IQ4_OFFSET : l.offset;
    return offset ? _mm512_sub_epi8(q, _mm512_set1_epi8((char)offset)) : q;
}

INLINE void decode_block(__m512i q[8], const uint8_t *p, const struct weight_layout l)
{
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) q[j] = decode_quad(p, l, j);
}

INLINE __m512 decode_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m128i decode_bytes(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE __m512 decode_u8(__m128i v)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v));
}

INLINE __m512 decode_i8(__m128i v)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}

/* Scales and minima of a block's first and last 16 inputs: w = scale * v + plus. Types with one
 * scale per 32 use [0]. */
struct decoded_scales {
    __m512 scale[2], plus[2];
};

INLINE struct decoded_scales decode_scales(const uint8_t *head, const struct weight_layout l,
                                           uint32_t b)
{
    struct decoded_scales s = {0};
    if (l.scale == SCALE_D) s.scale[0] = decode_f16(head + 32 * b);
    if (l.scale == SCALE_DM) {
        s.scale[0] = decode_f16(head + 64 * b);
        s.plus[0] = decode_f16(head + 64 * b + 32);
    }
    if (l.scale == SCALE_K32)
        s.scale[0] = _mm512_mul_ps(decode_f16(head), decode_i8(decode_bytes(head + 32 + 16 * b)));
    if (l.scale == SCALE_K32_M) {
        const __m512 minus_dmin = _mm512_sub_ps(_mm512_setzero_ps(), decode_f16(head + 32));
        s.scale[0] = _mm512_mul_ps(decode_f16(head), decode_u8(decode_bytes(head + 64 + 16 * b)));
        s.plus[0] = _mm512_mul_ps(minus_dmin, decode_u8(decode_bytes(head + 192 + 16 * b)));
    }
    for (uint32_t h = 0; h < 2; h++) {
        if (l.scale == SCALE_K16)
            s.scale[h] = _mm512_mul_ps(decode_f16(head),
                                       decode_i8(decode_bytes(head + 32 + 16 * (2 * b + h))));
        if (l.scale == SCALE_K16_M) {
            const __m512 minus_dmin = _mm512_sub_ps(_mm512_setzero_ps(), decode_f16(head + 32));
            const __m128i so = decode_bytes(head + 64 + 16 * (2 * b + h)), four = _mm_set1_epi8(15);
            const __m128i o = _mm_and_si128(_mm_srli_epi16(so, 4), four);
            s.scale[h] = _mm512_mul_ps(decode_f16(head), decode_u8(_mm_and_si128(so, four)));
            s.plus[h] = _mm512_mul_ps(minus_dmin, decode_u8(o));
        }
    }
    return s;
}

/* Inputs 4j + h and 4j + h + 2 of all 16 outputs, from a line of 16-bit pairs. */
INLINE void decode_pair(__m512 w[2], const uint8_t *line, const enum quant_type type)
{
    const __m512i v = _mm512_loadu_si512(line);
    if (type == QUANT_BF16) {
        w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        w[1] = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
    } else {
        w[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
        w[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
    }
}

#endif
