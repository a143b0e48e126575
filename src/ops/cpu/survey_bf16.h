/* survey_bf16.h: queries and keys of the survey slot in bf16, in the layout of AMX tiles and of
 * products of channel pairs (private): 16 queries as rows of 32 consecutive channels; of 16 keys a
 * pair of channels per row. */
#ifndef SAC_OPS_CPU_SURVEY_BF16_H
#define SAC_OPS_CPU_SURVEY_BF16_H

#include "ops/cpu/tiles.h"
#include "ops/cpu/vec_avx512.h"

#include "ops/cpu/survey_share_tmpl.h"

#define QUERY_BYTES 2u

static inline void pack_query(uint8_t *block, uint32_t i, const float *q, uint32_t d)
{
    for (uint32_t c = 0; c < d; c += 32)
        _mm512_store_si512(
            block + c / 32 * (size_t)TILE_BYTES + i * (size_t)64,
            (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(q + c + 16), _mm512_loadu_ps(q + c)));
}

/* Packs a page as tiles: for each 32 channels those of both halves. */
static inline __attribute__((always_inline)) void
pack_page(uint8_t *dst, struct survey_keys k, const float *centre, uint32_t d, __m512 nonfinite[2])
{
    for (uint32_t c = 0; c < d; c += 32) {
        const __m512 lo = _mm512_loadu_ps(centre + c), hi = _mm512_loadu_ps(centre + c + 16);
        for (uint32_t half = 0; half < 2; half++, dst += TILE_BYTES) {
            __m512i x[TILE_ROWS];
            for (uint32_t t = 0; t < TILE_ROWS; t++) {
                const size_t at = (half * TILE_ROWS + t) * (size_t)d + c;
                const __m512 a = survey_load(k.at, at, k.type);
                const __m512 b = survey_load(k.at, at + 16, k.type);
                survey_check(&nonfinite[0], a);
                survey_check(&nonfinite[1], b);
                x[t] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, hi), _mm512_sub_ps(a, lo));
            }
            tiles_transpose(x);
            for (uint32_t t = 0; t < TILE_ROWS; t++) _mm512_store_si512(dst + t * (size_t)64, x[t]);
        }
    }
}

#endif
