/* score_tmpl.h: scores of pages and softmax votes in vectors, one source for AVX2 and AVX-512
 * (private).
 *
 * Included once by a file of one instruction set after its vec_*.h. Every page is computed alone
 * and in the same order, whatever else is in the call. */
#ifndef SAC_OPS_CPU_SCORE_TMPL_H
#define SAC_OPS_CPU_SCORE_TMPL_H

#include "ops/ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define BLOCK    4u       /* pages whose horizontal sums are computed together */
#define AHEAD    8u       /* prefetch distance in pages */
#define EXP_NONE (-35.0f) /* in units of log 2 */

/* Dot products of q with the BLOCK vectors of a block, d floats apart. */
static __m128 dot_block(const float *q, const float *x, uint32_t d)
{
    vec sum[BLOCK];
    for (uint32_t p = 0; p < BLOCK; p++) sum[p] = v_zero();
    for (uint32_t c = 0; c < d; c += VEC) {
        const vec qc = v_load(q + c);
        for (uint32_t p = 0; p < BLOCK; p++)
            sum[p] = v_fma(qc, v_load(x + (size_t)p * d + c), sum[p]);
    }
    return v_sums(sum);
}

static inline const uint8_t *page_at(const struct op_score_pages *op, uint32_t i)
{
    return op->base + page_frame_of(op->frame_of, op->page[i]) * op->stride;
}

/* Finds the pages of a block; returns their number. Missing ones repeat the last. */
static uint32_t block_pages(const uint8_t *page[BLOCK], const struct op_score_pages *op,
                            uint32_t first)
{
    const uint32_t n = op->n_page - first;
    for (uint32_t p = 0; p < BLOCK; p++) page[p] = page_at(op, first + (p < n ? p : n - 1));
    return n < BLOCK ? n : BLOCK;
}

static void score_pages_vec(const struct op_score_pages *op)
{
    const uint32_t d = op->head_dim;
    _Alignas(64) float a[BLOCK * HEAD_DIM_MAX], b[BLOCK * HEAD_DIM_MAX];
    assert(d % VEC == 0 && d <= HEAD_DIM_MAX);
    for (uint32_t i = 0; i < op->n_page; i += BLOCK) {
        const uint8_t *page[BLOCK];
        const uint32_t n = block_pages(page, op, i);
        for (uint32_t j = i + AHEAD; j < i + AHEAD + n && j < op->n_page; j++) {
            const char *next = (const char *)page_at(op, j);
            for (size_t c = 0; c < 2 * (size_t)d; c += 64) {
                _mm_prefetch(next + op->a_at + c, _MM_HINT_T0);
                _mm_prefetch(next + op->b_at + c, _MM_HINT_T0);
            }
        }
        for (uint32_t p = 0; p < BLOCK; p++)
            for (uint32_t c = 0; c < d; c += VEC) {
                v_store(a + p * d + c, v_load_f16(page[p] + op->a_at + c * 2));
                v_store(b + p * d + c, v_load_f16(page[p] + op->b_at + c * 2));
            }
        for (uint32_t g = 0; g < op->group; g++) {
            const __m128 sum = _mm_add_ps(dot_block(op->qa + (size_t)g * d, a, d),
                                          dot_block(op->qb + (size_t)g * d, b, d));
            float each[BLOCK];
            _mm_storeu_ps(each, sum);
            memcpy(op->out + g * op->out_stride + i, each, n * sizeof *each);
        }
    }
}

/* ---- Votes ---- */

/* exp(x - max) of a vector of scores; `max` in units of log 2. If all of them are EXP_NONE below
 * the maximum, they count as 0: a whole context of such tokens holds less than 1e-5 of the mass. */
static vec weights_of(vec x, vec max)
{
    const vec y = v_fma(x, v_set1((float)M_LOG2E), v_sub(v_zero(), max));
    if (!m_word(m_lt(v_set1(EXP_NONE), y))) return v_zero();
    return math_exp2_quartic(y);
}

/* The largest of n scores; makes `wrong` NaN if one is not finite. */
static float score_max(const float *s, uint32_t n, vec *wrong)
{
    vec max = v_set1(-INFINITY), off = v_zero();
    uint32_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        const vec x = v_load(s + i);
        max = v_max(max, x);
        off = v_add(off, v_sub(x, x));
    }
    float most = v_most(max);
    for (; i < n; i++) {
        most = fmaxf(most, s[i]);
        off = v_add(off, v_set1(s[i] - s[i]));
    }
    *wrong = v_add(*wrong, off);
    return most;
}

static bool vote_vec(const struct op_vote *op)
{
    vec wrong = v_zero();
    for (uint32_t g = 0; g < op->group; g++) {
        const float *s = op->score + g * op->score_stride;
        const float top = score_max(s, op->n, &wrong);
        const vec max = v_set1(top * (float)M_LOG2E);
        vec sum = v_zero();
        for (uint32_t i = 0; i < op->n; i += VEC) {
            const vec e = weights_of(v_first(s + i, op->n - i), max);
            sum = v_add(sum, v_where(m_first(op->n - i), e));
        }
        const float total = v_sum(sum);
        op->lse[g] = top + logf(total);
        const vec share = v_set1(1.0f / (total * (float)op->group));
        for (uint32_t i = 0; i < op->n; i += VEC) {
            const vec e = weights_of(v_first(s + i, op->n - i), max);
            const vec was = g > 0 ? v_first(op->vote + i, op->n - i) : v_zero();
            v_store_first(op->vote + i, op->n - i, v_fma(e, share, was));
        }
    }
    return v_sum(wrong) == 0;
}

#endif
