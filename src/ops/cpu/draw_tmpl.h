/* draw_tmpl.h: `draw` in vectors, the same text for AVX2 and AVX-512 (private).
 *
 * Included once by a file of one instruction set after its vec_*.h. Sums are f32 by lane: a cut
 * that rounding moves by a step is as good as its neighbour. */
#ifndef SAC_OPS_CPU_DRAW_TMPL_H
#define SAC_OPS_CPU_DRAW_TMPL_H

#include "base/half.h"
#include "ops/ops.h"

#include <stdbool.h>

#define PARTS (OP_DRAW_LANES / VEC) /* vectors of the lanes that items are dealt to */

/* Values that may lie on either side of the cut, and what is known of the others. */
struct open {
    const float *value;
    uint32_t n;
    double sum_below;
};

/* Sums up what lies below `cut`; keeps what the answer leaves open in `kept`. */
static bool try_cut(struct open *o, const struct op_draw *op, float cut, float *kept)
{
    const vec at = v_set1(cut);
    vec sum = v_zero();
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n; i += VEC) {
        const vec x = v_first(o->value + i, o->n - i);
        sum = v_add(sum, v_where(m_lt(x, at), x));
    }
    const double sum_below = (double)v_sum(sum);
    const bool rises = op_draw_may_rise(op, cut, o->sum_below + sum_below);
    o->sum_below += rises ? sum_below : 0;
    for (uint32_t i = 0; i < o->n; i += VEC) {
        const vec x = v_first(o->value + i, o->n - i);
        const vec_m lanes = m_first(o->n - i), below = m_lt(x, at);
        const vec_m stay = rises ? m_less(lanes, below) : m_and(lanes, below);
        n += i_pack(kept + n, stay, i_bits(x), o->n - i >= VEC);
    }
    o->value = kept;
    o->n = n;
    return rises;
}

/* The same for a cut that is known to be low enough, in one sweep. */
static void rise_to(struct open *o, float cut, float *kept)
{
    const vec at = v_set1(cut);
    vec sum = v_zero();
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n; i += VEC) {
        const vec x = v_first(o->value + i, o->n - i);
        const vec_m below = m_lt(x, at);
        sum = v_add(sum, v_where(below, x));
        n += i_pack(kept + n, m_less(m_first(o->n - i), below), i_bits(x), o->n - i >= VEC);
    }
    *o = (struct open){.value = kept, .n = n, .sum_below = (double)v_sum(sum)};
}

/* `kept` [n] is scratch. */
static float find_cut(const struct op_draw *op, float *kept)
{
    struct open open = {.value = op->value, .n = op->n};
    uint32_t lo = float_bits(OP_DRAW_LEAST), hi = float_bits(2.0f);
    /* What lies below can be no more than 1: a cut as low as the variance is never too high. */
    const float sure = (float)op->variance / 2;
    if (sure > OP_DRAW_LEAST && sure < 1) {
        rise_to(&open, sure, kept);
        lo = float_bits(sure);
    }
    while (hi - lo > OP_DRAW_STEP) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (try_cut(&open, op, bits_float(mid), kept))
            lo = mid;
        else
            hi = mid;
    }
    return bits_float(lo);
}

/* Natural logs of positive normal numbers, by the series of atanh; relative error below 1e-6. A
 * number is 2^e m, m from 0.75 to 1.5. */
VEC_PART vec log_vec(vec x)
{
    const vec_i bits = i_bits(x), e = i_sra(i_sub(bits, i_set1(0x3f400000)), 23);
    const vec one = v_set1(1.0f), m = v_bits(i_sub(bits, i_sll(e, 23)));
    const vec z = v_div(v_sub(m, one), v_add(m, one)), z2 = v_mul(z, z);
    vec p = v_set1(2.0f / 7);
    p = v_fma(p, z2, v_set1(2.0f / 5));
    p = v_fma(p, z2, v_set1(2.0f / 3));
    p = v_fma(p, z2, v_set1(2.0f));
    return v_fma(v_of_i(e), v_set1(0.693147181f), v_mul(p, z));
}

/* The items taken and, in `logw`, their values. */
static uint32_t take_items(const struct op_draw *op, float found)
{
    static const uint32_t count[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vec cut = v_set1(found), by = v_set1(0x1p32f / found);
    vec_i at = i_add(i_load(count), i_set1((int32_t)op->first)), sum[PARTS];
    uint32_t begin[OP_DRAW_LANES], n = 0;
    for (uint32_t i = 0; i < OP_DRAW_LANES; i++) begin[i] = op_draw_begin(i);
    for (uint32_t k = 0; k < PARTS; k++) sum[k] = i_load(begin + k * VEC);
    for (uint32_t i = 0; i < op->n;)
        for (uint32_t k = 0; k < PARTS && i < op->n; k++, i += VEC) {
            const vec x = v_first(op->value + i, op->n - i);
            const vec_m below = m_lt(x, cut);
            /* What rounds to a chance of 1 becomes the largest integer. */
            const vec_i chance = i_where(below, i_of_chance(v_mul(x, by)));
            sum[k] = i_add(sum[k], chance);
            const vec_m sure = m_less(m_first(op->n - i), below);
            const vec_m taken = m_or(i_wraps(sum[k], chance), sure);
            const bool room = op->n - i >= VEC; /* for no more are taken than have passed */
            i_pack(op->item + n, taken, at, room);
            n += i_pack(op->logw + n, taken, i_bits(x), room);
            at = i_add(at, i_set1(VEC));
        }
    return n;
}

static uint32_t draw_vec(const struct op_draw *op)
{
    const float found = find_cut(op, op->logw);
    const uint32_t n = take_items(op, found);
    const vec cut = v_set1(found);
    for (uint32_t i = 0; i < n; i += VEC) {
        const vec x = v_first(op->logw + i, n - i);
        v_store_first(op->logw + i, n - i, v_where(m_lt(x, cut), log_vec(v_div(cut, x))));
    }
    return n;
}

#endif
