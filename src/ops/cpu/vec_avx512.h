/* vec_avx512.h: the names of vec_avx2.h, with sixteen lanes. Included only by files compiled for
 * AVX-512. */
#ifndef SAC_OPS_CPU_VEC_AVX512_H
#define SAC_OPS_CPU_VEC_AVX512_H

#include "ops/cpu/math_avx512.h"
#include "ops/cpu/tiles.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef __m512 vec;
typedef __m512i vec_i;
typedef __mmask16 vec_m;
typedef __m512d vec_d;
#define VEC         16u
#define v_zero      _mm512_setzero_ps
#define v_set1      _mm512_set1_ps
#define v_load      _mm512_loadu_ps
#define v_store     _mm512_storeu_ps
#define v_add       _mm512_add_ps
#define v_sub       _mm512_sub_ps
#define v_mul       _mm512_mul_ps
#define v_div       _mm512_div_ps
#define v_max       _mm512_max_ps
#define v_min       _mm512_min_ps
#define v_fma       _mm512_fmadd_ps
#define v_bits      _mm512_castsi512_ps
#define v_of_i      _mm512_cvtepi32_ps
#define v_sum       _mm512_reduce_add_ps
#define v_most      _mm512_reduce_max_ps
#define v_where     _mm512_maskz_mov_ps
#define i_set1      _mm512_set1_epi32
#define i_load      _mm512_loadu_si512
#define i_add       _mm512_add_epi32
#define i_sub       _mm512_sub_epi32
#define i_sra       _mm512_srai_epi32
#define i_sll       _mm512_slli_epi32
#define i_max       _mm512_max_epi32
#define i_and       _mm512_and_si512
#define i_or        _mm512_or_si512
#define i_xor       _mm512_xor_si512
#define i_reaches   _mm512_cmpge_epu32_mask
#define d_zero      _mm512_setzero_pd
#define i_lt        _mm512_cmplt_epi32_mask
#define i_bits      _mm512_castps_si512
#define i_of_v      _mm512_cvtps_epi32
#define i_of_chance _mm512_cvttps_epu32
#define i_where     _mm512_maskz_mov_epi32
#define i_wraps     _mm512_cmplt_epu32_mask
#define m_first     math_lane_mask
#define VEC_PART    static inline __attribute__((always_inline))

VEC_PART vec_i i_first(const uint32_t *p, uint32_t n)
{
    return _mm512_maskz_loadu_epi32(math_lane_mask(n), p);
}

VEC_PART vec_m m_ordered(vec x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
}

VEC_PART void d_add(vec_d *sum, vec x)
{
    sum[0] = _mm512_add_pd(sum[0], _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    sum[1] = _mm512_add_pd(sum[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}

VEC_PART double d_sum(const vec_d *sum)
{
    return _mm512_reduce_add_pd(_mm512_add_pd(sum[0], sum[1]));
}

VEC_PART void i_store_bytes(uint8_t *p, vec_i x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(x));
}

VEC_PART vec v_load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

VEC_PART vec v_load_bf16(const uint8_t *p)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

VEC_PART vec v_load_i8(const int8_t *p)
{
    return v_of_i(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

VEC_PART vec v_store_bf16(uint16_t *p, vec x)
{
    const __m256i half = (__m256i)_mm512_cvtneps_pbh(x);
    _mm256_storeu_si256((__m256i *)(void *)p, half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

VEC_PART bool v_any_nan(vec x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0;
}

VEC_PART void v_transpose(vec x[VEC])
{
    __m512i y[VEC];
    memcpy(y, x, sizeof y);
    tiles_transpose(y);
    memcpy(x, y, sizeof y);
}

VEC_PART __m128 v_sums(const vec x[4])
{
    const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const __m512 lo =
        _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    const __m512 hi =
        _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    const __m512 s = _mm512_add_ps(lo, hi);
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

VEC_PART vec v_first(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(math_lane_mask(n), p);
}

VEC_PART void v_store_first(float *p, uint32_t n, vec x)
{
    _mm512_mask_storeu_ps(p, math_lane_mask(n), x);
}

VEC_PART vec_m m_lt(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

VEC_PART vec v_choose(vec_m m, vec x, vec y)
{
    return _mm512_mask_mov_ps(y, m, x);
}

VEC_PART void v_store_f16(uint16_t *p, vec x)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

VEC_PART vec_m m_ne(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ);
}

VEC_PART vec_m m_less(vec_m a, vec_m b)
{
    return (vec_m)(a & ~b);
}

VEC_PART vec_m m_or(vec_m a, vec_m b)
{
    return (vec_m)(a | b);
}

VEC_PART vec_m m_and(vec_m a, vec_m b)
{
    return (vec_m)(a & b);
}

/* Hides the mask from the optimiser: gcc 12 merges a conversion with the comparison before it and
 * sets only the lower half of the word, so a word in memory keeps 16 stale bits
 * (avx512f_cmp*_zero_extend* of its sse.md, _cvtmask16_u32 included). */
VEC_PART uint32_t m_word(vec_m m)
{
    __asm__("" : "+k"(m));
    return m;
}

/* Compresses in a register: compressing stores are microcode on Zen 4 and take some hundred
 * cycles. */
VEC_PART uint32_t i_pack(void *out, vec_m m, vec_i x, bool room)
{
    const uint32_t n = (uint32_t)__builtin_popcount(m_word(m));
    const __m512i packed = _mm512_maskz_compress_epi32(m, x);
    if (room)
        _mm512_storeu_si512(out, packed);
    else
        _mm512_mask_storeu_epi32(out, math_lane_mask(n), packed);
    return n;
}

#endif
