/* survey_avx512.c: the survey slot in vectors of f32: a lane is a key, eight queries at a time.
 * What scores become is in survey_f512.h. */
#include "ops/cpu/fill.h"
#include "ops/cpu/survey_share.h"
#include "ops/cpu/tiles.h"

#include <immintrin.h>
#include <string.h>

#define QUERY_BYTES 4u
#define QUERIES     8u /* times two halves of a page: 16 sums */

static inline void pack_query(uint8_t *block, uint32_t i, const float *q, uint32_t d)
{
    memcpy(block + i * (size_t)d * sizeof *q, q, d * sizeof *q);
}

/* [channel][key] of 16 keys, then of the others. */
static inline __attribute__((always_inline)) void
pack_page(uint8_t *dst, struct survey_keys k, const float *centre, uint32_t d, __m512 rest[2])
{
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t c = 0; c < d; c += 16, dst += TILE_BYTES) {
            __m512i x[TILE_ROWS];
            for (uint32_t t = 0; t < TILE_ROWS; t++) {
                const __m512 a = survey_load(k.at, (half * TILE_ROWS + t) * (size_t)d + c, k.type);
                survey_check(&rest[t % 2], a);
                x[t] = (__m512i)_mm512_sub_ps(a, _mm512_loadu_ps(centre + c));
            }
            tiles_transpose(x);
            for (uint32_t t = 0; t < TILE_ROWS; t++) _mm512_store_si512(dst + t * (size_t)64, x[t]);
        }
}

static inline void score_page(float *out, const uint8_t *q, const float *key, const float *start,
                              uint32_t d)
{
    for (uint32_t i = 0; i < 16; i += QUERIES) {
        const float *row = (const float *)(const void *)q + i * (size_t)d;
        __m512 a[QUERIES], b[QUERIES];
        for (uint32_t j = 0; j < QUERIES; j++)
            a[j] = b[j] = _mm512_load_ps(start + (i + j) * (size_t)16);
        for (uint32_t c = 0; c < d; c++) {
            const __m512 lo = _mm512_load_ps(key + c * (size_t)16);
            const __m512 hi = _mm512_load_ps(key + (d + c) * (size_t)16);
#pragma GCC unroll 8
            for (uint32_t j = 0; j < QUERIES; j++) {
                const __m512 x = _mm512_set1_ps(row[j * (size_t)d + c]);
                a[j] = _mm512_fmadd_ps(x, lo, a[j]);
                b[j] = _mm512_fmadd_ps(x, hi, b[j]);
            }
        }
        for (uint32_t j = 0; j < QUERIES; j++) {
            _mm512_store_ps(out + (i + j) * (size_t)16, a[j]);
            _mm512_store_ps(out + 256 + (i + j) * (size_t)16, b[j]);
        }
    }
}

static inline void score(float *out, const struct survey_step *s, uint32_t d)
{
    const float *key = (const float *)(const void *)s->page;
    score_page(out, s->q, key, s->start, d);
    score_page(out + 512, s->q, key + 32 * (size_t)d, s->start, d);
    for (uint32_t i = 0; i < 4 && s->last; i++)
        survey_sum(&s->square[i], s->last + i * (size_t)256);
}

#include "ops/cpu/survey_f512.h"

void ops_fill_avx512_survey(struct ops *o)
{
    o->survey = survey;
}
