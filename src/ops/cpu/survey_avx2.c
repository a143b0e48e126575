/* survey_avx2.c: the survey slot in vectors of f32: a lane is a key, and a panel of eight keys has
 * one row per channel. survey_tmpl.h processes the scores. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#include "ops/cpu/survey_share_tmpl.h"

#include <string.h>

#define QUERY_BYTES 4u
#define QUERIES     4u /* times two panels: eight sums hide the latency of two FMAs per cycle */

static inline void pack_query(uint8_t *block, uint32_t i, const float *q, uint32_t d)
{
    memcpy(block + i * (size_t)d * sizeof *q, q, d * sizeof *q);
}

static inline __attribute__((always_inline)) void
pack_page(uint8_t *dst, struct survey_keys k, const float *centre, uint32_t d, vec nonfinite[2])
{
    float *out = (float *)(void *)dst;
    for (uint32_t t = 0; t < PAGE_TOK; t += VEC)
        for (uint32_t c = 0; c < d; c += VEC) {
            const vec middle = v_load(centre + c);
            vec x[VEC];
            for (uint32_t i = 0; i < VEC; i++) {
                const vec a = survey_load(k.at, (t + i) * (size_t)d + c, k.type);
                survey_check(&nonfinite[i % 2], a);
                x[i] = v_sub(a, middle);
            }
            v_transpose(x);
            for (uint32_t i = 0; i < VEC; i++, out += VEC) v_store(out, x[i]);
        }
}

/* Scores of QUERIES queries and 16 keys. */
static inline void score_block(float *out, const float *q, const float *key, const float *start,
                               uint32_t d)
{
    const float *next = key + VEC * (size_t)d;
    vec a[QUERIES], b[QUERIES];
    for (uint32_t j = 0; j < QUERIES; j++) a[j] = b[j] = v_load(start + j * (size_t)16);
    for (uint32_t c = 0; c < d; c++) {
        const vec lo = v_load(key + c * (size_t)VEC), hi = v_load(next + c * (size_t)VEC);
        for (uint32_t j = 0; j < QUERIES; j++) {
            const vec x = v_set1(q[j * (size_t)d + c]);
            a[j] = v_fma(x, lo, a[j]);
            b[j] = v_fma(x, hi, b[j]);
        }
    }
    for (uint32_t j = 0; j < QUERIES; j++) {
        v_store(out + j * (size_t)16, a[j]);
        v_store(out + j * (size_t)16 + VEC, b[j]);
    }
}

static inline void score(float *out, const struct survey_step *s, uint32_t d)
{
    const float *key = (const float *)(const void *)s->page, *q = (const void *)s->q;
    for (uint32_t k = 0; k < 4; k++, key += 16 * (size_t)d, out += 256) {
        for (uint32_t i = 0; i < 16; i += QUERIES)
            score_block(out + i * 16, q + i * (size_t)d, key, s->start + i * 16, d);
        if (s->last) survey_sum(s->square + k * (16 / VEC), s->last + k * (size_t)256);
    }
}

#include "ops/cpu/survey_tmpl.h"

static bool survey(struct workers *pool, const struct op_survey *op)
{
    return survey_execute(pool, op,
                          &(struct survey_kernel){survey_begin, survey_sums, survey_takes});
}

void ops_fill_avx2_survey(struct ops *o)
{
    o->survey = survey;
}
