/* survey_avx512.c: the survey slot in vectors of bf16: a lane is a key, and a product takes two of
 * its channels. survey_tmpl.h processes the scores. */
#include "ops/cpu/fill.h"
#include "ops/cpu/survey_bf16.h"

#define SIDE 4u /* queries, and vectors of keys: their 16 sums hide the latency of a product */

/* Scores of SIDE queries, from query i on, and all keys of both pages. */
static inline __attribute__((always_inline)) void
score_block(float *out, const struct survey_step *s, uint32_t i, uint32_t d)
{
    const uint8_t *key[] = {s->page, s->page + PAGE_TOK * (size_t)d * QUERY_BYTES};
    const uint8_t *q = s->q + i * (size_t)64;
    __m512 sum[SIDE][SIDE];
    for (uint32_t j = 0; j < SIDE; j++)
        for (uint32_t k = 0; k < SIDE; k++)
            sum[j][k] = _mm512_load_ps(s->start + (i + j) * (size_t)16);
    for (uint32_t c = 0; c < d / 32; c++, q += TILE_BYTES)
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            __m512bh x[SIDE];
            for (uint32_t k = 0; k < SIDE; k++)
                x[k] = (__m512bh)_mm512_load_si512(key[k / 2] + (2 * c + k % 2) * TILE_BYTES +
                                                   r * (size_t)64);
            for (uint32_t j = 0; j < SIDE; j++) {
                int32_t pair;
                memcpy(&pair, q + j * (size_t)64 + r * sizeof pair, sizeof pair);
                const __m512bh y = (__m512bh)_mm512_set1_epi32(pair);
                for (uint32_t k = 0; k < SIDE; k++)
                    sum[j][k] = _mm512_dpbf16_ps(sum[j][k], y, x[k]);
            }
        }
    for (uint32_t k = 0; k < SIDE; k++)
        for (uint32_t j = 0; j < SIDE; j++)
            _mm512_store_ps(out + (k * 16 + i + j) * (size_t)16, sum[j][k]);
}

static inline __attribute__((always_inline)) void score_of(float *out, const struct survey_step *s,
                                                           uint32_t d)
{
    for (uint32_t i = 0; i < 16; i += SIDE) {
        score_block(out, s, i, d);
        if (s->last) survey_sum(&s->square[i / SIDE], s->last + i / SIDE * (size_t)256);
    }
}

/* Instantiates the usual head size as a constant. */
static inline void score(float *out, const struct survey_step *s, uint32_t d)
{
    if (d == 64)
        score_of(out, s, 64);
    else
        score_of(out, s, d);
}

#include "ops/cpu/survey_tmpl.h"

static bool survey(struct workers *pool, const struct op_survey *op)
{
    return survey_execute(pool, op,
                          &(struct survey_kernel){survey_begin, survey_sums, survey_takes});
}

void ops_fill_avx512_survey(struct ops *o)
{
    o->survey = survey;
}
