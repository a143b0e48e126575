/* survey_share.h: how keys of the survey slot come into vectors of 512 bits, and what their scores
 * become (private). These are the bits of their own exponential (survey_f512.h): those below 0 are
 * too small to count. */
#ifndef SAC_OPS_CPU_SURVEY_SHARE_H
#define SAC_OPS_CPU_SURVEY_SHARE_H

#include "ops/page.h"

#include <immintrin.h>

/* Keys of a page: 16-bit ones as they lie in the pool, q8 ones already in f32. */
struct survey_keys {
    const uint8_t *at;
    sac_kv_type type;
};

/* Sixteen of them from number `i` on. */
static inline __m512 survey_load(const uint8_t *keys, size_t i, sac_kv_type type)
{
    if (type == SAC_KV_Q8) return _mm512_loadu_ps(keys + 4 * i);
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(keys + 2 * i));
    if (type == SAC_KV_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Adds NaN to a lane of `rest` where x is not finite, else 0. */
static inline void survey_check(__m512 *rest, __m512 x)
{
    *rest = _mm512_fmadd_ps(x, _mm512_setzero_ps(), *rest);
}

/* A block of 16 queries and two pages that lie behind each other. */
struct survey_step {
    const uint8_t *q, *page; /* as the file of the set has packed them */
    const float *start;      /* [16][16] what scores begin with */
    const float *last; /* [4][16][16] scores of another step, to be summed meanwhile; or NULL */
    __m512 *square;    /* [4] their sums are added to */
};

static inline __m512 survey_share(const float *s)
{
    const __m512i bits = _mm512_cvtps_epi32(_mm512_load_ps(s));
    return _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_setzero_si512()));
}

/* Adds the rows of s [16][16]. */
static inline void survey_sum(__m512 *sum, const float *s)
{
    __m512 a = survey_share(s), b = survey_share(s + 16);
    for (uint32_t r = 2; r < 16; r += 2) {
        a = _mm512_add_ps(a, survey_share(s + r * (size_t)16));
        b = _mm512_add_ps(b, survey_share(s + (r + 1) * (size_t)16));
    }
    *sum = _mm512_add_ps(*sum, _mm512_add_ps(a, b));
}

#endif
