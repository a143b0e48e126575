/* survey_share.h: what scores of the survey slot become in vectors of 512 bits (private). They come
 * as the bits of their own exponential (survey_f512.h): those below 0 are too small to count. */
#ifndef SAC_OPS_CPU_SURVEY_SHARE_H
#define SAC_OPS_CPU_SURVEY_SHARE_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

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
