/* weigh_tmpl.h: softmax weights of a panel, their sums along lines, and the mass that lines hold,
 * in vectors: one source for AVX2 and AVX-512 (private).
 *
 * Included once by a file of one instruction set after its vec_*.h and after it has defined SUMS:
 * the number of vectors of sums that stay in registers.
 *
 * Per-row work (the running sum, the scale of the shares) is done for VEC rows together. Columns
 * are summed in registers, BLOCK keys of all rows before the next keys. Slashes are summed in
 * memory, because they lie elsewhere for every row. */
#ifndef SAC_OPS_CPU_WEIGH_TMPL_H
#define SAC_OPS_CPU_WEIGH_TMPL_H

#include "ops/ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define BLOCK (SUMS * VEC) /* keys of a block */
#define PEAK  15.0f        /* maximum exponent of a weight: 2^x above it may exceed f16 */

static const float log2_e = (float)M_LOG2E;

static vec times_log2_e(vec x)
{
    return v_mul(x, v_set1(log2_e));
}

/* ---- Weights ---- */

/* The largest of a row's n scores. Four maxima hide the latency. */
static float row_top(const float *score, uint32_t n)
{
    const vec none = v_set1(-INFINITY);
    vec top[4] = {none, none, none, none};
    uint32_t j = 0;
    for (; j + 4 * VEC <= n; j += 4 * VEC)
        for (uint32_t i = 0; i < 4; i++) top[i] = v_max(v_load(score + j + i * VEC), top[i]);
    for (; j < n; j += VEC)
        top[0] = v_max(v_choose(m_first(n - j), v_first(score + j, n - j), none), top[0]);
    return v_most(v_max(v_max(top[0], top[1]), v_max(top[2], top[3])));
}

/* Computes a row's weights, relative to `top`; out_sum: their sums by lane. False: a weight is too
 * large for f16. A NaN shows in the sum alone. */
static bool weigh_row(uint16_t *weight, const float *score, uint32_t n, uint32_t width, float top,
                      vec *out_sum)
{
    const vec less = v_set1(-top * log2_e), none = v_set1(-INFINITY);
    vec sum[2] = {v_zero(), v_zero()}, most[2] = {none, none};
    uint32_t j = 0;
    for (; j + 2 * VEC <= n; j += 2 * VEC)
        for (uint32_t i = 0; i < 2; i++) {
            const vec y = v_fma(v_load(score + j + i * VEC), v_set1(log2_e), less);
            const vec e = math_exp2_quartic(y);
            most[i] = v_max(y, most[i]);
            sum[i] = v_add(sum[i], e);
            v_store_f16(weight + j + i * VEC, e);
        }
    for (; j < n; j += VEC) {
        const vec x = v_choose(m_first(n - j), v_first(score + j, n - j), none);
        const vec y = v_fma(x, v_set1(log2_e), less), e = math_exp2_quartic(y);
        most[0] = v_max(y, most[0]);
        sum[0] = v_add(sum[0], e);
        v_store_f16(weight + j, e);
    }
    if (j < width) memset(weight + j, 0, (width - j) * sizeof *weight);
    *out_sum = v_add(sum[0], sum[1]);
    return !m_word(m_lt(v_set1(PEAK), v_max(most[0], most[1])));
}

/* The same relative to the largest score of previous panels, unless a weight is then too large;
 * returns the score used. */
static float weigh_near(const struct op_weigh *op, uint32_t r, vec *out_sum)
{
    const float *score = op->score + r * op->score_stride;
    uint16_t *weight = op->weight + (size_t)r * op->width;
    const uint32_t n = op->n[r];
    float top = n ? op->max[r] : -INFINITY;
    if (top > -INFINITY && weigh_row(weight, score, n, op->width, top, out_sum)) return top;
    top = row_top(score, n);
    (void)weigh_row(weight, score, n, op->width, top, out_sum);
    return top;
}

/* Merges the panel's sums of VEC rows from i on, by lane, into those of all panels; false: one is
 * not finite. */
static bool add_sums(const struct op_weigh *op, uint32_t i, vec part[VEC])
{
    const uint32_t n = op->n_row - i;
    const vec top = v_first(op->top + i, n), was = v_first(op->max + i, n), max = v_max(was, top);
    const vec_m counts = m_and(m_first(n), m_ne(top, v_set1(-INFINITY)));
    vec sum = v_first(op->sum + i, n), add;
    v_transpose(part);
    for (uint32_t k = VEC / 2; k > 0; k /= 2)
        for (uint32_t j = 0; j < k; j++) part[j] = v_add(part[j], part[j + k]);
    add = part[0];
    const vec rise = math_exp2_quartic(times_log2_e(v_sub(was, max)));
    const vec fall = math_exp2_quartic(times_log2_e(v_sub(top, max)));
    sum = v_choose(m_and(counts, m_ne(max, was)), v_mul(sum, rise), sum);
    add = v_choose(m_ne(max, top), v_mul(add, fall), add);
    sum = v_choose(counts, v_add(sum, add), sum);
    v_store_first(op->sum + i, n, sum);
    v_store_first(op->max + i, n, v_choose(counts, max, was));
    return !v_any_nan(v_where(m_first(n), v_sub(sum, sum)));
}

static bool weigh_vec(const struct op_weigh *op)
{
    bool finite = true;
    assert(op->width % 16 == 0);
    for (uint32_t i = 0; i < op->n_row; i += VEC) {
        vec part[VEC];
        for (uint32_t k = 0; k < VEC; k++) {
            part[k] = v_zero();
            if (i + k < op->n_row) op->top[i + k] = weigh_near(op, i + k, &part[k]);
        }
        finite &= add_sums(op, i, part);
    }
    return finite;
}

/* ---- Sums along lines ---- */

/* Adds a vector of shares to the sums. With `keep` they are rounded first and replace the
 * weights. */
VEC_PART vec add_shares(uint16_t *weight, vec scale, float *down, bool keep, vec column)
{
    const vec x = v_load_f16((const uint8_t *)weight);
    if (!keep) {
        v_store(down, v_fma(x, scale, v_load(down)));
        return v_fma(x, scale, column);
    }
    const vec y = v_store_bf16(weight, v_mul(x, scale));
    v_store(down, v_add(y, v_load(down)));
    return v_add(y, column);
}

/* Adds the shares of rows row[0] .. row[1] - 1 and n_vec vectors of keys from j on; scale [row[1] -
 * row[0]]. */
VEC_PART void sum_block(const struct op_lines *op, const float *scale, const uint32_t row[2],
                        uint32_t j, uint32_t n_vec, bool keep)
{
    vec column[SUMS];
#pragma GCC unroll 16
    for (uint32_t v = 0; v < n_vec; v++) column[v] = v_load(op->column + j + v * VEC);
    for (uint32_t i = row[0]; i < row[1]; i++) {
        uint16_t *weight = op->weight + (size_t)i * op->width + j;
        const vec by = v_set1(scale[i - row[0]]);
        if (op->top[i] == -INFINITY) continue; /* weights are 0 in either form */
        float *down = op->down + op->first[i] + j;
#pragma GCC unroll 16
        for (uint32_t v = 0; v < n_vec; v++)
            column[v] = add_shares(weight + v * VEC, by, down + v * VEC, keep, column[v]);
    }
#pragma GCC unroll 16
    for (uint32_t v = 0; v < n_vec; v++) v_store(op->column + j + v * VEC, column[v]);
}

VEC_PART void sum_panel(const struct op_lines *op, bool keep)
{
    assert(op->width % 16 == 0);
    for (uint32_t i = 0; i < op->n_row; i += VEC) {
        const uint32_t row[] = {i, op->n_row - i < VEC ? op->n_row : i + VEC};
        const vec gap =
            v_sub(v_first(op->top + i, op->n_row - i), v_first(op->lse + i, op->n_row - i));
        float scale[VEC];
        v_store(scale, math_exp2_quartic(times_log2_e(gap)));
        uint32_t j = 0;
        for (; j + BLOCK <= op->width; j += BLOCK) sum_block(op, scale, row, j, SUMS, keep);
        for (; j < op->width; j += VEC) sum_block(op, scale, row, j, 1, keep);
    }
}

static void lines_vec(const struct op_lines *op)
{
    if (op->keep)
        sum_panel(op, true);
    else
        sum_panel(op, false);
}

/* ---- Attention per cell of a line ---- */

static void rate_vec(const struct op_rate *op)
{
    static const uint32_t lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vec_i pos0 = i_set1((int32_t)op->pos0), n = i_set1((int32_t)op->n);
    vec top = v_zero();
    for (uint32_t i = 0; i < op->n; i += VEC) {
        const uint32_t left = op->n - i, early = op->pos0 > i ? op->pos0 - i : 0;
        const vec_i at = i_add(i_load(lanes), i_set1((int32_t)i));
        const vec_i crossing = i_sub(i_first(op->before + i, left),
                                     i_first(op->before + (op->n - op->pos0) + i, early));
        const vec_i own = i_sub(i_sub(n, i_max(at, pos0)), crossing);
        const vec key = v_div(v_first(op->left + i, left), v_of_i(i_max(own, i_set1(1))));
        v_store_first(op->key + i, left, key);
        top = v_max(key, top);
        if ((i + VEC) % OP_RATE_LINES == 0 || left <= VEC) {
            op->top[i / OP_RATE_LINES] = v_most(top);
            top = v_zero();
        }
    }
}

#endif
