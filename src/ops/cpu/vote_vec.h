/* vote_vec.h: softmax votes in vectors, the same text for AVX2 and AVX-512 (private). Included once
 * by a file of one set behind its vec_*.h. */
#ifndef SAC_OPS_CPU_VOTE_VEC_H
#define SAC_OPS_CPU_VOTE_VEC_H

#include "ops/ops.h"

#include <math.h>

#define EXP_NONE (-35.0f) /* in units of log 2 */

/* exp(x - max) of a vector of scores; `max` in units of log 2. Where all of them lie EXP_NONE below
 * the largest, nothing is computed: a whole context of such tokens holds less than 1e-5 of the
 * mass. */
static vec weights_of(vec x, vec max)
{
    const vec y = v_fma(x, v_set1((float)M_LOG2E), v_sub(v_zero(), max));
    if (!m_word(m_lt(v_set1(EXP_NONE), y))) return v_zero();
    return math_exp2_quartic(y);
}

/* The largest of n scores; adds to `wrong` what is not finite. */
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
