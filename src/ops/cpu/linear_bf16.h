/* linear_bf16.h: conversion of packed weights and f32 inputs to tiles of bf16, and the endings of
 * layers whose outputs are rounded to 16 bits: what linear_amx.c and linear_wide_avx512.c share.
 * Included only by files compiled for AVX-512.
 *
 * A tile of weights is 32 inputs of 16 outputs, [16 pairs][16 outputs][2], and a line of inputs
 * holds 32 in the order of those pairs: (4j, 4j + 2), (4j + 1, 4j + 3). Contract: as in
 * linear_decode.h `l`, `j` and `i` are constants at every call, and calls are inlined. */
#ifndef SAC_OPS_CPU_LINEAR_BF16_H
#define SAC_OPS_CPU_LINEAR_BF16_H

#include "ops/cpu/linear_avx512.h"
#include "ops/cpu/linear_decode.h"

/* Rounds to bf16 and interleaves: lane i of even and odd becomes words 2i and 2i + 1. */
INLINE __m512i bf16_pairs(__m512 even, __m512 odd)
{
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    const __m512i order = _mm512_or_si512(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
        _mm512_slli_epi32(
            _mm512_set_epi32(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16), 16));
    return _mm512_permutexvar_epi16(order, both);
}

/* 32 inputs in the order of pairs: even gets 0, 1, 4, 5, ..., odd 2, 3, 6, 7, ... */
struct bf16_split {
    __m512 even, odd;
};

INLINE struct bf16_split bf16_split(__m512 x0, __m512 x1)
{
    const __m512i even = _mm512_set_epi32(29, 28, 25, 24, 21, 20, 17, 16, 13, 12, 9, 8, 5, 4, 1, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(2));
    return (struct bf16_split){_mm512_permutex2var_ps(x0, even, x1),
                               _mm512_permutex2var_ps(x0, odd, x1)};
}

/* ---- Weights ---- */

INLINE bool bf16_is_nibble(const struct weight_layout l)
{
    return l.low_bits == 4 && l.high_bits == 0;
}

/* The offset of unsigned codes; for iq4 the table of levels includes it. */
INLINE float bf16_offset(const struct weight_layout l)
{
    return l.iq4 ? 0 : l.offset;
}

/* Input i of quad line j of all 16 outputs. VPERMPS reads only the low 4 bits of an index, so a
 * nibble needs no mask. */
INLINE __m512 bf16_code(__m512i line, __m512i q, const struct weight_layout l, const int j,
                        const int i)
{
    if (bf16_is_nibble(l)) {
        const __m512i count =
            _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i level =
            l.iq4 ? _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)layout_iq4_level))
                  : count;
        const __m512i at = _mm512_srli_epi32(line, (unsigned)(8 * i + 4 * (j / 4)));
        return _mm512_permutexvar_ps(at, _mm512_cvtepi32_ps(level));
    }
    const __m512i code =
        i < 3 ? _mm512_and_si512(_mm512_srli_epi32(q, (unsigned)(8 * i)), _mm512_set1_epi32(0xff))
              : _mm512_srli_epi32(q, 24);
    return _mm512_cvtepi32_ps(code);
}

/* Writes quad line j of the block at p as 2 lines of a tile: code * scale + plus, rounded once. */
INLINE void bf16_quad(uint8_t *dst, const uint8_t *p, const struct weight_layout l, const int j,
                      __m512 scale, __m512 plus)
{
    const __m512i line = _mm512_loadu_si512(p + 64 * (j % 4)), q = decode_quad(p, l, j);
    __m512 w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) w[i] = _mm512_fmadd_ps(bf16_code(line, q, l, j, i), scale, plus);
    _mm512_store_si512(dst, bf16_pairs(w[0], w[2]));
    _mm512_store_si512(dst + 64, bf16_pairs(w[1], w[3]));
}

/* The two inputs of line i of a tile, from a block of unquantised weights at p. */
INLINE void bf16_dense_pair(__m512 w[2], const uint8_t *p, const enum quant_type type, const int i)
{
    if (type == QUANT_F32) {
        w[0] = _mm512_loadu_ps(p + 64 * (i / 2 * 4 + i % 2));
        w[1] = _mm512_loadu_ps(p + 64 * (i / 2 * 4 + i % 2 + 2));
    } else {
        decode_pair(w, p + 64 * i, type);
    }
}

/* ---- Ends ---- */

/* gate * up * sigmoid(s), where s = gate, or for gelu as in linear_glu. The error of 2^x is 7.5e-5
 * and of 1 / x 6.1e-5: a quarter of what rounding to f16 adds, and less than that for bf16. */
INLINE __m512 bf16_glu(const bool is_gelu, __m512 gate, __m512 up)
{
    const float unit = -1.44269504f, gelu = unit * 2 * GELU_SQRT_2_OVER_PI;
    __m512 factor = _mm512_set1_ps(unit);
    if (is_gelu)
        factor = _mm512_fmadd_ps(_mm512_mul_ps(gate, gate), _mm512_set1_ps(gelu * GELU_CUBIC),
                                 _mm512_set1_ps(gelu));
    const __m512 x = _mm512_max_ps(_mm512_set1_ps(-126), _mm512_mul_ps(gate, factor));
    const __m512 e = _mm512_add_ps(math_exp2_cubic(x), _mm512_set1_ps(1));
    return _mm512_mul_ps(_mm512_mul_ps(gate, _mm512_rcp14_ps(e)), up);
}

/* Stores sixteen outputs as half a line of the next layer's inputs. */
INLINE void bf16_store_half_line(uint8_t *half_line, __m512 v)
{
    const __m512i order = _mm512_set_epi32(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
    const __m256i half = (__m256i)_mm512_cvtneps_pbh(_mm512_permutexvar_ps(order, v));
    _mm256_store_si256((__m256i *)half_line, half);
}

#endif
