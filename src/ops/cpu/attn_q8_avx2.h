/* attn_q8_avx2.h: q8 keys as f32, for files compiled with AVX2 or more (private). */
#ifndef SAC_OPS_CPU_ATTN_Q8_AVX2_H
#define SAC_OPS_CPU_ATTN_Q8_AVX2_H

#include "ops/cpu/attn.h"

#include <immintrin.h>

/* Keys of tokens of a page as f32 [tok.n, head_dim], 8 channels of each quarter at a time: correct
 * for all head sizes. */
static inline void attn_q8_by_eights(float *dst, const struct page_geom *g, const uint8_t *page,
                                     struct attn_tokens tok)
{
    const uint32_t d = g->head_dim, quarter = d / 4;
    const __m256i three = _mm256_set1_epi32(3), fifteen = _mm256_set1_epi32(15);
    for (uint32_t j = 0; j < quarter; j += 8) {
        __m256 min[4], step[4];
        for (uint32_t i = 0; i < 4; i++) {
            const size_t at = 2 * ((size_t)i * quarter + j);
            min[i] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(page + g->k_min + at)));
            step[i] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(page + g->k_step + at)));
        }
        for (size_t t = tok.first; t < tok.first + tok.n; t++) {
            const uint8_t *hi2 = page + g->k_hi2 + t * quarter + j;
            const uint8_t *low = page + g->k_low + t * 3 * quarter + j;
            const __m256i hi = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)hi2));
            const __m256i mid = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)low));
            const __m256i lo[2] = {
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(low + quarter))),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(low + 2 * quarter)))};
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const __m256i h = _mm256_and_si256(_mm256_srli_epi32(hi, 2 * i), three);
                const __m256i m = _mm256_and_si256(_mm256_srli_epi32(mid, 2 * i), three);
                const __m256i l =
                    _mm256_and_si256(_mm256_srli_epi32(lo[i % 2], i / 2 * 4), fifteen);
                const __m256i code = _mm256_or_si256(
                    l, _mm256_or_si256(_mm256_slli_epi32(m, 4), _mm256_slli_epi32(h, 6)));
                _mm256_storeu_ps(dst + (t - tok.first) * d + (size_t)i * quarter + j,
                                 _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), step[i], min[i]));
            }
        }
    }
}

#endif
