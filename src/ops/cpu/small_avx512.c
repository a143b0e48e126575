/* small_avx512.c: the small operations with AVX-512; remainders are computed with masks, never by
 * scalars.
 *
 * Order of the norm's sum: 32 doubles, of which number l adds the elements l, l + 32, l + 64, ...
 * (padded with zeros). Then number l of 0..7 is (l + (l+8)) + ((l+16) + (l+24)), and these eight
 * are halved three times, each time adding the upper half to the lower one. The rotation rounds its
 * second product and the sum once (FMA). */
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"
#include "ops/cpu/small.h"

#include <immintrin.h>
#include <math.h>

static void add_squares(__m512d sum[2], __m512 x)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    sum[0] = _mm512_fmadd_pd(low, low, sum[0]);
    sum[1] = _mm512_fmadd_pd(high, high, sum[1]);
}

static double sum_squares(const float *x, uint32_t n)
{
    __m512d sum[4] = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_pd(),
                      _mm512_setzero_pd()};
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        add_squares(sum, _mm512_loadu_ps(x + i));
        add_squares(sum + 2, _mm512_loadu_ps(x + i + 16));
    }
    if (i < n) add_squares(sum, _mm512_maskz_loadu_ps(math_lane_mask(n - i), x + i));
    if (i + 16 < n)
        add_squares(sum + 2, _mm512_maskz_loadu_ps(math_lane_mask(n - i - 16), x + i + 16));
    const __m512d eight =
        _mm512_add_pd(_mm512_add_pd(sum[0], sum[1]), _mm512_add_pd(sum[2], sum[3]));
    const __m256d four =
        _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

static void rmsnorm_row(float *y, const float *x, const float *w, uint32_t width, float eps)
{
    const float scale = (float)(1.0 / sqrt(sum_squares(x, width) / width + (double)eps));
    const __m512 s = _mm512_set1_ps(scale);
    for (uint32_t i = 0; i < width; i += 16) {
        const __mmask16 m = math_lane_mask(width - i);
        const __m512 t = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), s);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(t, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

static void rope_neox(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i += 16) {
        const __mmask16 m = math_lane_mask(half - i);
        const __m512 a = _mm512_maskz_loadu_ps(m, x + i);
        const __m512 b = _mm512_maskz_loadu_ps(m, x + half + i);
        const __m512 c = _mm512_maskz_loadu_ps(m, cos + i), s = _mm512_maskz_loadu_ps(m, sin + i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(x + half + i, m, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

static void rope_interleaved(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i += 8) {
        const __mmask16 m = math_lane_mask((size_t)2 * (half - i)),
                        mc = math_lane_mask(half - i) & 0xff;
        const __m512 pairs = _mm512_maskz_loadu_ps(m, x + 2 * i);
        const __m512 swapped = _mm512_permute_ps(pairs, 0xb1);
        const __m512 c = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(mc, cos + i));
        const __m512 s = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(mc, sin + i));
        /* Even lanes subtract: a cos - b sin; odd lanes add: b cos + a sin. */
        const __m512 turned = _mm512_fmaddsub_ps(pairs, c, _mm512_mul_ps(swapped, s));
        _mm512_mask_storeu_ps(x + 2 * i, m, turned);
    }
}

static void add_span(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 m = math_lane_mask(n - i);
        const __m512 sum =
            _mm512_add_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i));
        _mm512_mask_storeu_ps(y + i, m, sum);
    }
}

#include "ops/cpu/small_tmpl.h"

void ops_fill_avx512_small(struct ops *o)
{
    fill(o);
}
