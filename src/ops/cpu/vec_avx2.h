/* vec_avx2.h: vectors of eight lanes for the sources that AVX2 and AVX-512 share; vec_avx512.h has
 * the same names for sixteen. Included only by files compiled for AVX2.
 *
 *     vec, vec_i, vec_m: floats, 32-bit integers, lane masks; VEC: the number of lanes
 *     v_ on floats, i_ on integers, m_ on masks; d_ on two halves of a vector as doubles
 *     v_first (p, n): the first n floats at p, zeros in the other lanes; v_store_first likewise
 *     v_where (m, x): x in the lanes of m, else zero; v_choose (m, x, y): else y
 *     v_of_i, i_of_v convert; i_bits, v_bits reinterpret
 *     i_of_chance (x): truncates 0 <= x <= 2^32 to unsigned; 2^32 gives almost 2^32 - 1
 *     i_wraps (sum, x): whether the addition of x that gave `sum` has passed 2^32
 *     i_pack (out, m, x, room): stores the lanes of m contiguously */
#ifndef SAC_OPS_CPU_VEC_AVX2_H
#define SAC_OPS_CPU_VEC_AVX2_H

#include "base/half.h"
#include "ops/cpu/math_avx2.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef __m256 vec;
typedef __m256i vec_i;
typedef __m256 vec_m;
typedef __m256d vec_d;
#define VEC      8u
#define v_zero   _mm256_setzero_ps
#define v_set1   _mm256_set1_ps
#define v_load   _mm256_loadu_ps
#define v_store  _mm256_storeu_ps
#define v_add    _mm256_add_ps
#define v_sub    _mm256_sub_ps
#define v_mul    _mm256_mul_ps
#define v_div    _mm256_div_ps
#define v_max    _mm256_max_ps
#define v_min    _mm256_min_ps
#define v_fma    _mm256_fmadd_ps
#define v_bits   _mm256_castsi256_ps
#define v_of_i   _mm256_cvtepi32_ps
#define i_set1   _mm256_set1_epi32
#define i_add    _mm256_add_epi32
#define i_sub    _mm256_sub_epi32
#define i_sra    _mm256_srai_epi32
#define i_sll    _mm256_slli_epi32
#define i_max    _mm256_max_epi32
#define i_and    _mm256_and_si256
#define i_or     _mm256_or_si256
#define i_xor    _mm256_xor_si256
#define d_zero   _mm256_setzero_pd
#define i_bits   _mm256_castps_si256
#define i_of_v   _mm256_cvtps_epi32
#define v_first  math_load_first
#define VEC_PART static inline __attribute__((always_inline))

VEC_PART vec_i i_load(const void *p)
{
    return _mm256_loadu_si256(p);
}

VEC_PART vec_m i_lt(vec_i a, vec_i b)
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a));
}

VEC_PART vec_i i_first(const uint32_t *p, uint32_t n)
{
    return _mm256_maskload_epi32((const int *)(const void *)p, math_lane_mask(n));
}

/* a >= b, unsigned. */
VEC_PART vec_m i_reaches(vec_i a, vec_i b)
{
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a));
}

VEC_PART vec_m m_ordered(vec x)
{
    return _mm256_cmp_ps(x, x, _CMP_ORD_Q);
}

/* Adds the lanes of x to those of sum [2]. */
VEC_PART void d_add(vec_d *sum, vec x)
{
    sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
}

VEC_PART double d_sum(const vec_d *sum)
{
    const __m256d four = _mm256_add_pd(sum[0], sum[1]);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

/* Stores integers from 0 to 255 as bytes; the result of others is undefined. */
VEC_PART void i_store_bytes(uint8_t *p, vec_i x)
{
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(half, half));
}

VEC_PART vec v_load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

VEC_PART vec v_load_bf16(const uint8_t *p)
{
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

VEC_PART vec v_load_i8(const int8_t *p)
{
    return v_of_i(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* Rounds to bf16, keeping NaN, and returns the rounded values. */
VEC_PART vec v_store_bf16(uint16_t *p, vec x)
{
    const vec_i bits = _mm256_castps_si256(x);
    const vec_i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const vec_i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const vec ordered = _mm256_cmp_ps(x, x, _CMP_ORD_Q), nan = v_set1(bits_float(0x7fc00000u));
    const vec_i y = _mm256_castps_si256(_mm256_blendv_ps(nan, v_bits(up), ordered));
    const vec_i half = _mm256_srli_epi32(y, 16);
    const __m128i low = _mm256_castsi256_si128(half), high = _mm256_extracti128_si256(half, 1);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi32(low, high));
    return v_bits(_mm256_slli_epi32(half, 16));
}

VEC_PART bool v_any_nan(vec x)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0;
}

/* Transposes: lane j of row i becomes lane i of row j. */
VEC_PART void v_transpose(vec x[VEC])
{
    vec y[VEC];
    for (uint32_t i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (uint32_t i = 0; i < 8; i += 4)
        for (uint32_t k = 0; k < 2; k++) {
            x[i + 2 * k] = _mm256_shuffle_ps(y[i + k], y[i + k + 2], 0x44);
            x[i + 2 * k + 1] = _mm256_shuffle_ps(y[i + k], y[i + k + 2], 0xee);
        }
    for (uint32_t i = 0; i < 4; i++) {
        y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    memcpy(x, y, sizeof y);
}

VEC_PART vec_m m_first(uint32_t n)
{
    return _mm256_castsi256_ps(math_lane_mask(n));
}

VEC_PART vec_m m_lt(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

/* NaN is not equal to anything. */
VEC_PART vec_m m_ne(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ);
}

/* a and not b. */
VEC_PART vec_m m_less(vec_m a, vec_m b)
{
    return _mm256_andnot_ps(b, a);
}

VEC_PART vec_m m_or(vec_m a, vec_m b)
{
    return _mm256_or_ps(a, b);
}

VEC_PART vec_m m_and(vec_m a, vec_m b)
{
    return _mm256_and_ps(a, b);
}

VEC_PART uint32_t m_word(vec_m m)
{
    return (uint32_t)_mm256_movemask_ps(m);
}

VEC_PART vec v_where(vec_m m, vec x)
{
    return _mm256_and_ps(m, x);
}

VEC_PART vec v_choose(vec_m m, vec x, vec y)
{
    return _mm256_blendv_ps(y, x, m);
}

VEC_PART void v_store_f16(uint16_t *p, vec x)
{
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

VEC_PART vec_i i_where(vec_m m, vec_i x)
{
    return _mm256_and_si256(_mm256_castps_si256(m), x);
}

VEC_PART void v_store_first(float *p, uint32_t n, vec x)
{
    _mm256_maskstore_ps(p, math_lane_mask(n), x);
}

VEC_PART float v_sum(vec x)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Horizontal sums of four vectors: adding while transposing is a third of the work of four sums. */
VEC_PART __m128 v_sums(const vec x[4])
{
    const __m256 a = _mm256_add_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    const __m256 b = _mm256_add_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    const __m256 s = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

VEC_PART float v_most(vec x)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

VEC_PART vec_i i_of_chance(vec x)
{
    const __m256 half = _mm256_set1_ps(0x1p31f);
    const __m256 is_high = _mm256_cmp_ps(x, half, _CMP_GE_OQ);
    const __m256 rest = _mm256_min_ps(_mm256_sub_ps(x, _mm256_and_ps(is_high, half)),
                                      _mm256_set1_ps(0x1.fffffep30f));
    return _mm256_xor_si256(_mm256_cvttps_epi32(rest),
                            _mm256_slli_epi32(_mm256_castps_si256(is_high), 31));
}

VEC_PART vec_m i_wraps(vec_i sum, vec_i x)
{
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    return _mm256_castsi256_ps(
        _mm256_cmpgt_epi32(_mm256_xor_si256(x, sign), _mm256_xor_si256(sum, sign)));
}

/* The indices of the set bits of a byte, in nibbles from the lowest on. */
#define VEC_BEFORE(b, i) (4 * __builtin_popcount((b) & ((1u << (i)) - 1)))
#define VEC_BIT(b, i)    (((b) >> (i)&1u) * (i) << VEC_BEFORE(b, i))
#define VEC_SET(b)                                                                                 \
    (VEC_BIT(b, 1u) | VEC_BIT(b, 2u) | VEC_BIT(b, 3u) | VEC_BIT(b, 4u) | VEC_BIT(b, 5u) |          \
     VEC_BIT(b, 6u) | VEC_BIT(b, 7u))
#define VEC_SET4(b)  VEC_SET(b), VEC_SET((b) + 1u), VEC_SET((b) + 2u), VEC_SET((b) + 3u)
#define VEC_SET16(b) VEC_SET4(b), VEC_SET4((b) + 4u), VEC_SET4((b) + 8u), VEC_SET4((b) + 12u)
#define VEC_SET64(b) VEC_SET16(b), VEC_SET16((b) + 16u), VEC_SET16((b) + 32u), VEC_SET16((b) + 48u)
static const uint32_t vec_set[256] = {VEC_SET64(0u), VEC_SET64(64u), VEC_SET64(128u),
                                      VEC_SET64(192u)};

/* Stores the lanes of `m` contiguously and returns their number. `room`: the buffer has room for a
 * whole vector. */
VEC_PART uint32_t i_pack(void *out, vec_m m, vec_i x, bool room)
{
    const uint32_t word = m_word(m), n = (uint32_t)__builtin_popcount(word);
    const __m256i order = _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)vec_set[word]),
                                            _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i packed = _mm256_permutevar8x32_epi32(x, order);
    if (room)
        _mm256_storeu_si256(out, packed);
    else
        _mm256_maskstore_epi32(out, math_lane_mask(n), packed);
    return n;
}

#endif
