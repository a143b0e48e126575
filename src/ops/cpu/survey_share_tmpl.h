/* survey_share_tmpl.h: loads the keys of the survey slot into vectors, and turns scores into shares
 * (private). A score is the bit pattern of its own exponential (survey_tmpl.h); those below 0 are
 * too small to count.
 *
 * Included once by a file of one instruction set after its vec_*.h. */
#ifndef SAC_OPS_CPU_SURVEY_SHARE_TMPL_H
#define SAC_OPS_CPU_SURVEY_SHARE_TMPL_H

#include "ops/page.h"

/* Keys of a page: 16-bit formats in place, q8 converted to f32. */
struct survey_keys {
    const uint8_t *at;
    sac_kv_type type;
};

/* A vector of keys, from element `i` on. */
static inline vec survey_load(const uint8_t *keys, size_t i, sac_kv_type type)
{
    if (type == SAC_KV_Q8) return v_load((const float *)(const void *)keys + i);
    return type == SAC_KV_F16 ? v_load_f16(keys + 2 * i) : v_load_bf16(keys + 2 * i);
}

/* Adds NaN to lanes of `nonfinite` where x is not finite, otherwise 0. */
static inline void survey_check(vec *nonfinite, vec x)
{
    *nonfinite = v_fma(x, v_zero(), *nonfinite);
}

/* Arguments of score: a block of 16 queries and two consecutive pages. */
struct survey_step {
    const uint8_t *q, *page; /* as packed by the including file */
    const float *start;      /* [16][16] initial values of the scores */
    const float *last; /* [4][16][16] scores of another step, to be summed meanwhile; or NULL */
    vec *square;       /* [4][16 lanes] out: their sums are added */
};

static inline vec survey_share(const float *s)
{
    return v_bits(i_max(i_of_v(v_load(s)), i_set1(0)));
}

/* Adds the rows of s [16][16] to sum [16 lanes]. */
static inline void survey_sum(vec *sum, const float *s)
{
    for (uint32_t l = 0; l < 16 / VEC; l++, s += VEC) {
        vec a = survey_share(s), b = survey_share(s + 16);
        for (uint32_t r = 2; r < 16; r += 2) {
            a = v_add(a, survey_share(s + r * (size_t)16));
            b = v_add(b, survey_share(s + (r + 1) * (size_t)16));
        }
        sum[l] = v_add(sum[l], v_add(a, b));
    }
}

#endif
