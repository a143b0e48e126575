/* draw_tmpl.h: `draw` in vectors, one source for AVX2 and AVX-512 (private).
 *
 * Included once by a file of one instruction set after its vec_*.h. Sums are f32 per lane: if
 * rounding moves a cut by one step, the neighbouring cut is as good. */
#ifndef SAC_OPS_CPU_DRAW_TMPL_H
#define SAC_OPS_CPU_DRAW_TMPL_H

#include "base/half.h"
#include "ops/steady.h"

#include <stdbool.h>
#include <string.h>

#define PARTS (OP_DRAW_LANES / VEC) /* vectors of draw lanes */

/* Values that may be on either side of the cut, and the sum of those below it. */
struct open {
    const float *value;
    uint32_t n;
    double sum_below;
};

/* Whether the cut may rise to `cut` or above. Keeps in `kept` the values whose side is still
 * open. */
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

/* A cut that is never too high: values below it sum to at most 1, so any cut up to `variance` is
 * allowed. */
static float least_cut(const struct op_draw *op)
{
    const float sure = (float)op->variance / 2;
    return sure > OP_DRAW_LEAST && sure < 1 ? sure : OP_DRAW_LEAST;
}

static void open_vec(const struct op_draw *op, struct op_draw_piece *p)
{
    const uint32_t size = p->end - p->begin;
    const float *value = op->value + p->begin;
    float *kept = op->logw + p->begin;
    const vec at = v_set1(least_cut(op));
    vec sum = v_zero();
    uint32_t n = 0;
    for (uint32_t i = 0; i < size; i += VEC) {
        const vec x = v_first(value + i, size - i);
        const vec_m below = m_lt(x, at);
        sum = v_add(sum, v_where(below, x));
        n += i_pack(kept + n, m_less(m_first(size - i), below), i_bits(x), size - i >= VEC);
    }
    p->n_open = n;
    p->below = (double)v_sum(sum);
}

static float cut_vec(const struct op_draw *op, const struct op_draw_piece *p, uint32_t n_piece)
{
    struct open open = {.value = op->logw};
    uint32_t lo = float_bits(least_cut(op)), hi = float_bits(2.0f);
    for (uint32_t i = 0; i < n_piece; open.n += p[i++].n_open) {
        memmove(op->logw + open.n, op->logw + p[i].begin, p[i].n_open * sizeof *op->logw);
        open.sum_below += p[i].below;
    }
    while (hi - lo > OP_DRAW_STEP) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (try_cut(&open, op, bits_float(mid), op->logw))
            lo = mid;
        else
            hi = mid;
    }
    return bits_float(lo);
}

/* Natural logarithm of positive normal numbers, by the series of atanh; relative error below 1e-6.
 * x = 2^e m, m from 0.75 to 1.5. */
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

/* Probability in units of 2^-32, at most 2^32 - 1; 0 for items not below the cut. */
VEC_PART vec_i chance_of(vec x, vec_m below, vec by)
{
    return i_where(below, i_of_chance(v_mul(x, by)));
}

static void add_vec(const struct op_draw *op, struct op_draw_piece *p, float found)
{
    const uint32_t size = p->end - p->begin;
    const float *value = op->value + p->begin;
    const vec cut = v_set1(found), by = v_set1(0x1p32f / found);
    memset(p->chance, 0, sizeof p->chance);
    vec_i sum[PARTS];
    for (uint32_t k = 0; k < PARTS; k++) sum[k] = i_set1(0);
    for (uint32_t i = 0; i < size;)
        for (uint32_t k = 0; k < PARTS && i < size; k++, i += VEC) {
            const vec x = v_first(value + i, size - i);
            sum[k] = i_add(sum[k], chance_of(x, m_lt(x, cut), by));
        }
    memcpy(p->chance, sum, sizeof p->chance);
}

static const uint32_t count[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Takes items and stores their values in `logw`; returns their number. */
static uint32_t take_items(const struct op_draw *op, const struct op_draw_piece *p, float found,
                           uint32_t lane[OP_DRAW_LANES], uint32_t to)
{
    const uint32_t size = p->end - p->begin;
    const float *value = op->value + p->begin;
    const vec cut = v_set1(found), by = v_set1(0x1p32f / found);
    vec_i at = i_add(i_load(count), i_set1((int32_t)(op->first + p->begin))), sum[PARTS];
    uint32_t n = to;
    memcpy(sum, lane, sizeof sum);
    for (uint32_t i = 0; i < size;)
        for (uint32_t k = 0; k < PARTS && i < size; k++, i += VEC) {
            const vec x = v_first(value + i, size - i);
            const vec_m below = m_lt(x, cut);
            const vec_i chance = chance_of(x, below, by);
            sum[k] = i_add(sum[k], chance);
            const vec_m sure = m_less(m_first(size - i), below);
            const vec_m taken = m_or(i_wraps(sum[k], chance), sure);
            const bool room =
                size - i >=
                VEC; /* at least VEC places are left, because no more items were taken than read */
            i_pack(op->item + n, taken, at, room);
            n += i_pack(op->logw + n, taken, i_bits(x), room);
            at = i_add(at, i_set1(VEC));
        }
    memcpy(lane, sum, sizeof sum);
    return n - to;
}

/* Takes items of one page, [begin, end), and their log weights for a steady draw; returns their
 * number. */
static uint32_t take_page(const struct op_draw *op, uint32_t begin, uint32_t end, float cut,
                          uint32_t at)
{
    const float *value = op->value + begin;
    const uint32_t n = end - begin, at0 = at;
    vec x[PAGE_TOK / VEC], all = v_zero();
    for (uint32_t i = 0; i < n; i += VEC) all = v_max(all, x[i / VEC] = v_first(value + i, n - i));
    const float most = v_most(all), top = most < cut ? most : cut;
    const struct steady_number number = steady_number(op, (op->first + begin) / PAGE_TOK);
    if (!steady_draws(number, most, cut)) return 0;
    const vec by = v_set1(STEADY_MORE * 0x1p32f / top), whole = v_set1(0x1p32f), last = v_set1(top);
    for (uint32_t i = 0; i < n; i += VEC) {
        const vec_i token = i_add(i_set1((int32_t)number.token), i_load(steady_turns + i));
        const vec bits = v_mul(x[i / VEC], by);
        const vec reach = v_min(v_mul(v_set1(STEADY_MORE), x[i / VEC]), last);
        const vec_m sure = m_less(m_first(n - i), m_lt(bits, whole));
        const vec_m taken = m_or(i_wraps(token, i_of_chance(v_min(bits, whole))), sure);
        const vec_i items = i_add(i_set1((int32_t)(op->first + begin + i)), i_load(count));
        i_pack(op->item + at, taken, items, n - i >= VEC);
        at +=
            i_pack(op->logw + at, taken, i_bits(log_vec(v_div(v_set1(cut), reach))), n - i >= VEC);
    }
    return at - at0;
}

static void take_vec(const struct op_draw *op, struct op_draw_piece *p, float found,
                     uint32_t sum[OP_DRAW_LANES], uint32_t at)
{
    if (op->steady) {
        steady_take(op, p, found, at, take_page);
        return;
    }
    const uint32_t n = take_items(op, p, found, sum, at);
    float *logw = op->logw + at;
    const vec cut = v_set1(found);
    for (uint32_t i = 0; i < n; i += VEC) {
        const vec x = v_first(logw + i, n - i);
        v_store_first(logw + i, n - i, v_where(m_lt(x, cut), log_vec(v_div(cut, x))));
    }
    p->n_taken = n;
}

#endif
