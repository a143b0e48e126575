/* small_avx2.c: the small operations with AVX2 and FMA.
 *
 * Order of the norm's sum: math_sum_squares. The rotation rounds its second product and the sum
 * once (FMA), also in the scalar ends. */
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx2.h"
#include "ops/cpu/small.h"

static void rmsnorm_row(float *y, const float *x, const float *w, uint32_t width, float eps)
{
    const float scale = math_rms_scale(x, width, eps);
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

#include "ops/cpu/small_tmpl.h"

void ops_fill_avx2_small(struct ops *o)
{
    fill(o);
}
