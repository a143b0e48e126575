/* weigh_avx512.c: softmax weights of a panel and their sums along lines, 16 keys at a time.
 *
 * What is done once a row (its running sum, the scale of its shares) is done for 16 rows together.
 * A row's columns are summed in registers, BLOCK keys of all rows before the next ones; its slashes
 * in memory, for they lie elsewhere for every row. */
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LANES  16u
#define BLOCK  256u     /* keys */
#define E_NONE (-25.0f) /* 2^x below it is no f16 */

static const float log2_e = (float)M_LOG2E;

static __m512 times_log2_e(__m512 x)
{
    return _mm512_mul_ps(x, _mm512_set1_ps(log2_e));
}

/* ---- Weights ---- */

/* The largest of a row's n scores; `least` is lowered to the smallest. A NaN shows in the sum of
 * the weights. Four maxima at once: one would wait for itself. */
static float row_top(const float *score, uint32_t n, __m512 *least)
{
    __m512 top[4], low = *least;
    uint32_t j = 0;
    for (uint32_t i = 0; i < 4; i++) top[i] = _mm512_set1_ps(-INFINITY);
    for (; j + 4 * LANES <= n; j += 4 * LANES)
        for (uint32_t i = 0; i < 4; i++) {
            const __m512 x = _mm512_loadu_ps(score + j + i * LANES);
            top[i] = _mm512_max_ps(top[i], x);
            low = _mm512_min_ps(low, x);
        }
    for (; j < n; j += LANES) {
        const __mmask16 k = math_lane_mask(n - j);
        const __m512 x = _mm512_maskz_loadu_ps(k, score + j);
        top[0] = _mm512_mask_max_ps(top[0], k, top[0], x);
        low = _mm512_mask_min_ps(low, k, low, x);
    }
    *least = low;
    return _mm512_reduce_max_ps(
        _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3])));
}

/* Weights of a vector of scores, those in `k`; returns sum + weights. */
static inline __m512 weigh_some(uint16_t *weight, __m512 score, __m512 max, __mmask16 k, __m512 sum)
{
    const __m512 y = _mm512_fmsub_ps(score, _mm512_set1_ps(log2_e), max);
    __m256i half = _mm256_setzero_si256();
    if (_mm512_mask_cmp_ps_mask(k, y, _mm512_set1_ps(E_NONE), _CMP_NLT_UQ)) {
        const __m512 e = _mm512_maskz_mov_ps(k, math_exp2_quartic(y));
        sum = _mm512_add_ps(sum, e);
        half = _mm512_cvtps_ph(e, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    _mm256_storeu_si256((__m256i *)(void *)weight, half);
    return sum;
}

/* Writes a row's weights; returns their sum. */
static float weigh_row(uint16_t *weight, const float *score, uint32_t n, uint32_t width, float top)
{
    const __m512 max = _mm512_set1_ps(top * log2_e);
    __m512 sum = _mm512_setzero_ps();
    uint32_t j = 0;
    for (; j + LANES <= n; j += LANES)
        sum = weigh_some(weight + j, _mm512_loadu_ps(score + j), max, 0xffff, sum);
    if (j < n) {
        const __mmask16 k = math_lane_mask(n - j);
        sum = weigh_some(weight + j, _mm512_maskz_loadu_ps(k, score + j), max, k, sum);
        j += LANES;
    }
    if (j < width) memset(weight + j, 0, (width - j) * sizeof *weight);
    return _mm512_reduce_add_ps(sum);
}

/* Takes the sums of rows i and on into those of all panels; false: one of them is not finite. */
static bool add_sums(const struct op_weigh *op, uint32_t i, const float part[LANES])
{
    const __mmask16 k = math_lane_mask(op->n_row - i);
    const __m512 top = _mm512_maskz_loadu_ps(k, op->top + i);
    const __m512 was = _mm512_maskz_loadu_ps(k, op->max + i);
    const __m512 max = _mm512_max_ps(was, top);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    const __mmask16 counts = _mm512_mask_cmp_ps_mask(k, top, none, _CMP_NEQ_UQ);
    const __mmask16 rises = _mm512_mask_cmp_ps_mask(counts, max, was, _CMP_NEQ_UQ);
    const __mmask16 lies = _mm512_mask_cmp_ps_mask(counts, max, top, _CMP_NEQ_UQ);
    __m512 sum = _mm512_maskz_loadu_ps(k, op->sum + i), add = _mm512_loadu_ps(part);
    sum = _mm512_mask_mul_ps(sum, rises, sum,
                             math_exp2_quartic(times_log2_e(_mm512_sub_ps(was, max))));
    add = _mm512_mask_mul_ps(add, lies, add,
                             math_exp2_quartic(times_log2_e(_mm512_sub_ps(top, max))));
    sum = _mm512_mask_add_ps(sum, counts, sum, add);
    _mm512_mask_storeu_ps(op->sum + i, counts, sum);
    _mm512_mask_storeu_ps(op->max + i, counts, max);
    const __m512 off = _mm512_sub_ps(sum, sum);
    return _mm512_mask_cmp_ps_mask(k, off, off, _CMP_UNORD_Q) == 0;
}

static bool weigh_avx512(const struct op_weigh *op)
{
    __m512 least = _mm512_set1_ps(INFINITY);
    bool finite = true;
    assert(op->width % LANES == 0);
    for (uint32_t i = 0; i < op->n_row; i += LANES) {
        float part[LANES] = {0};
        for (uint32_t r = i; r < i + LANES && r < op->n_row; r++) {
            const float *score = op->score + r * op->score_stride;
            op->top[r] = row_top(score, op->n[r], &least);
            part[r - i] = weigh_row(op->weight + (size_t)r * op->width, score, op->n[r], op->width,
                                    op->top[r]);
        }
        finite &= add_sums(op, i, part);
    }
    return finite && _mm512_reduce_min_ps(least) > -INFINITY;
}

/* ---- Sums along lines ---- */

/* A vector of shares to the sums, and to `share` unless it is NULL: the same sums in both cases,
 * which the compiler's own choice of where to fuse would not give. */
static inline __m512 add_shares(const uint16_t *weight, __m512 scale, float *down, float *share,
                                __m512 column)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)weight);
    const __m512 x = _mm512_cvtph_ps(half);
    if (share) _mm512_storeu_ps(share, _mm512_mul_ps(x, scale));
    _mm512_storeu_ps(down, _mm512_fmadd_ps(x, scale, _mm512_loadu_ps(down)));
    return _mm512_fmadd_ps(x, scale, column);
}

/* Shares of rows row0 .. row1 - 1 and keys j .. j + 16 n_vec - 1; scale [row1 - row0]. */
static inline void sum_block(const struct op_lines *op, const float *scale, const uint32_t row[2],
                             uint32_t j, uint32_t n_vec)
{
    __m512 column[BLOCK / LANES];
#pragma GCC unroll 16
    for (uint32_t v = 0; v < n_vec; v++) column[v] = _mm512_loadu_ps(op->column + j + v * LANES);
    for (uint32_t i = row[0]; i < row[1]; i++) {
        const uint16_t *weight = op->weight + (size_t)i * op->width + j;
        float *share = op->share ? op->share + i * op->share_stride + j : NULL;
        const __m512 by = _mm512_set1_ps(scale[i - row[0]]);
        if (op->top[i] == -INFINITY) {
            if (share) memset(share, 0, n_vec * LANES * sizeof *share);
            continue;
        }
        float *down = op->down + op->first[i] + j;
#pragma GCC unroll 16
        for (uint32_t v = 0; v < n_vec; v++)
            column[v] = add_shares(weight + v * LANES, by, down + v * LANES,
                                   share ? share + v * LANES : NULL, column[v]);
    }
#pragma GCC unroll 16
    for (uint32_t v = 0; v < n_vec; v++) _mm512_storeu_ps(op->column + j + v * LANES, column[v]);
}

static void lines_avx512(const struct op_lines *op)
{
    assert(op->width % LANES == 0);
    for (uint32_t i = 0; i < op->n_row; i += LANES) {
        const uint32_t row[] = {i, op->n_row - i < LANES ? op->n_row : i + LANES};
        const __mmask16 k = math_lane_mask(op->n_row - i);
        const __m512 gap = _mm512_sub_ps(_mm512_maskz_loadu_ps(k, op->top + i),
                                         _mm512_maskz_loadu_ps(k, op->lse + i));
        float scale[LANES];
        _mm512_storeu_ps(scale, math_exp2_quartic(times_log2_e(gap)));
        uint32_t j = 0;
        for (; j + BLOCK <= op->width; j += BLOCK) sum_block(op, scale, row, j, BLOCK / LANES);
        for (; j < op->width; j += LANES) sum_block(op, scale, row, j, 1);
    }
}

void ops_fill_avx512_weigh(struct ops *o)
{
    o->weigh = weigh_avx512;
    o->lines = lines_avx512;
}
