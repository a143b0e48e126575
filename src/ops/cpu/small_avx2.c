/* small_avx2.c: the small operations with AVX2 and FMA.
 *
 * Order of the norm's sum: sixteen doubles, number l taking the elements l, l + 16, l + 32, ...
 * (the end filled up with zeros); then number l of 0..3 adds those of l + 4, l + 8, l + 12 in the
 * order (l + (l+4)) + ((l+8) + (l+12)), and the four are added as (0 + 2) + (1 + 3). The rotation
 * rounds its second product and the sum once (FMA), also in the scalar ends. */
#include "ops/cpu/fill.h"
#include "ops/cpu/small.h"

#include <immintrin.h>
#include <math.h>

/* The first `n` of 8 lanes on. */
static __m256i lane_mask(uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

static __m256 load_first(const float *x, uint32_t n)
{
    return n >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, lane_mask(n));
}

static void add_squares(__m256d sum[2], __m256 x)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sum[0] = _mm256_fmadd_pd(low, low, sum[0]);
    sum[1] = _mm256_fmadd_pd(high, high, sum[1]);
}

static double sum_squares(const float *x, uint32_t n)
{
    __m256d sum[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                      _mm256_setzero_pd()};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        add_squares(sum, _mm256_loadu_ps(x + i));
        add_squares(sum + 2, _mm256_loadu_ps(x + i + 8));
    }
    if (i < n) add_squares(sum, load_first(x + i, n - i));
    if (i + 8 < n) add_squares(sum + 2, load_first(x + i + 8, n - i - 8));
    const __m256d four =
        _mm256_add_pd(_mm256_add_pd(sum[0], sum[1]), _mm256_add_pd(sum[2], sum[3]));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

static void rmsnorm_row(float *y, const float *x, const float *w, uint32_t width, float eps)
{
    const float scale = (float)(1.0 / sqrt(sum_squares(x, width) / width + (double)eps));
    const __m256 s = _mm256_set1_ps(scale);
    uint32_t i = 0;
    for (; i + 8 <= width; i += 8) {
        const __m256 t = _mm256_mul_ps(_mm256_loadu_ps(x + i), s);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(t, _mm256_loadu_ps(w + i)));
    }
    for (; i < width; i++) y[i] = x[i] * scale * w[i];
}

static void rope_neox(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    const uint32_t half = n_rot / 2;
    uint32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = fmaf(a, cos[i], -(b * sin[i]));
        x[half + i] = fmaf(b, cos[i], a * sin[i]);
    }
}

static void rope_interleaved(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const uint32_t half = n_rot / 2;
    uint32_t i = 0;
    for (; i + 4 <= half; i += 4) {
        const __m256 pairs = _mm256_loadu_ps(x + 2 * i);
        const __m256 swapped = _mm256_permute_ps(pairs, 0xb1);
        const __m256 c =
            _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos + i)), twice);
        const __m256 s =
            _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin + i)), twice);
        /* Even lanes subtract: a cos - b sin; odd lanes add: b cos + a sin. */
        _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(pairs, c, _mm256_mul_ps(swapped, s)));
    }
    for (; i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = fmaf(a, cos[i], -(b * sin[i]));
        x[2 * i + 1] = fmaf(b, cos[i], a * sin[i]);
    }
}

static void add_span(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++) y[i] += x[i];
}

static void rmsnorm(struct workers *pool, const struct op_rmsnorm *op)
{
    small_rmsnorm(pool, op, rmsnorm_row);
}

static void rope(struct workers *pool, const struct op_rope *op)
{
    small_rope(pool, op, op->interleaved ? rope_interleaved : rope_neox);
}

static void add(struct workers *pool, const struct op_add *op)
{
    small_add(pool, op, add_span);
}

void ops_fill_avx2_small(struct ops *o)
{
    o->rmsnorm = rmsnorm;
    o->rope = rope;
    o->add = add;
}
