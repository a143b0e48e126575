/* math_avx2.h: functions that the AVX2 files share: the norm's sum, exp and the gates of a GLU.
 *
 * Everything here works lane by lane, or in a stated order, so that a row's result does not depend
 * on its neighbours. Included by files that are compiled for AVX2 only. */
#ifndef SAC_OPS_CPU_MATH_AVX2_H
#define SAC_OPS_CPU_MATH_AVX2_H

#include "ops/gelu.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

/* Mask of the first `n` of 8 lanes. */
static inline __m256i math_lane_mask(uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

static inline __m256 math_load_first(const float *x, uint32_t n)
{
    return n >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, math_lane_mask(n));
}

static inline void math_add_squares(__m256d sum[2], __m256 x)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sum[0] = _mm256_fmadd_pd(low, low, sum[0]);
    sum[1] = _mm256_fmadd_pd(high, high, sum[1]);
}

/* Sum of squares in f64. Sixteen partial sums: number l adds elements l, l + 16, l + 32, ...
 * (padded with zeros). Then number l of 0..3 becomes (l + (l+4)) + ((l+8) + (l+12)), and these are
 * added as (0 + 2) + (1 + 3). */
static inline double math_sum_squares(const float *x, uint32_t n)
{
    __m256d sum[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                      _mm256_setzero_pd()};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        math_add_squares(sum, _mm256_loadu_ps(x + i));
        math_add_squares(sum + 2, _mm256_loadu_ps(x + i + 8));
    }
    if (i < n) math_add_squares(sum, math_load_first(x + i, n - i));
    if (i + 8 < n) math_add_squares(sum + 2, math_load_first(x + i + 8, n - i - 8));
    const __m256d four =
        _mm256_add_pd(_mm256_add_pd(sum[0], sum[1]), _mm256_add_pd(sum[2], sum[3]));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

/* 1 / sqrt(mean(x^2) + eps), rounded to f32 once. */
static inline float math_rms_scale(const float *x, uint32_t n, float eps)
{
    return (float)(1.0 / sqrt(math_sum_squares(x, n) / n + (double)eps));
}

/* exp(x) within 2 units in the last place; 0, denormals, infinity and NaN as libm gives them.
 * x = n ln 2 + r with |r| <= ln 2 / 2; the Taylor polynomial of degree 7 leaves r^8/8! < 6e-9. 2^n
 * is multiplied in two halves, as n reaches from -150 to 128. */
static inline __m256 math_exp(__m256 x)
{
    /* The operands' order lets NaN through: min and max return the second one then. */
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), _mm256_min_ps(_mm256_set1_ps(89.0f), x));
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    /* ln 2 in two parts, the first with few bits so that n times it is exact. */
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.63p-1f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.bd0106p-13f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1);
    const __m256i rest = _mm256_sub_epi32(e, half), bias = _mm256_set1_epi32(127);
    const __m256i low = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i high = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(low));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(high));
}

/* 2^y for y up to 127 with a relative error below 3e-6; what has no normal number, -inf too, gives
 * 0, NaN stays. */
static inline __m256 math_exp2_quartic(__m256 y)
{
    const __m256 n = _mm256_floor_ps(y), r = _mm256_sub_ps(y, n);
    __m256 p = _mm256_set1_ps(0.01353417f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.05201146f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.24144276f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.69300383f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.00000259f));
    const __m256i power =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(power));
    return _mm256_andnot_ps(_mm256_cmp_ps(y, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), p);
}

/* x / (1 + exp(-t)) */
static inline __m256 math_gate(__m256 x, __m256 t)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    return _mm256_div_ps(x, _mm256_add_ps(one, math_exp(_mm256_xor_ps(t, sign))));
}

static inline __m256 math_silu(__m256 x)
{
    return math_gate(x, x);
}

/* The tanh form: 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). */
static inline __m256 math_gelu(__m256 x)
{
    const __m256 cubic = _mm256_mul_ps(_mm256_set1_ps(GELU_CUBIC), _mm256_mul_ps(x, x));
    const __m256 u = _mm256_fmadd_ps(cubic, x, x);
    return math_gate(x, _mm256_mul_ps(_mm256_set1_ps(2 * GELU_SQRT_2_OVER_PI), u));
}

#endif
