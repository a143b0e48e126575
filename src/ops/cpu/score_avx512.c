/* score_avx512.c: scores of pages and softmax votes with vectors of 16 lanes. Every page is
 * computed alone, in the same order whatever else is asked. */
#include "base/half.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define HEAD_DIM_MAX 512u
#define LANES        16u
#define BLOCK        4u       /* pages whose sums across lanes are made together */
#define AHEAD        8u       /* pages between a fetch and its use */
#define EXP_NONE     (-35.0f) /* in units of log 2 */

static __m512 load_half(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* Sums of the lanes of four vectors: adds while it transposes, a third of the work of four sums. */
static __m128 sums_of(const __m512 x[BLOCK])
{
    const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const __m512 lo =
        _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    const __m512 hi =
        _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    const __m512 s = _mm512_add_ps(lo, hi);
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

/* Of each page p of a block: sum over channels of q x[p], pages d floats apart. */
static __m128 dot_block(const float *q, const float *x, uint32_t d)
{
    __m512 sum[BLOCK];
    for (uint32_t p = 0; p < BLOCK; p++) sum[p] = _mm512_setzero_ps();
    for (uint32_t c = 0; c < d; c += LANES) {
        const __m512 qc = _mm512_loadu_ps(q + c);
        for (uint32_t p = 0; p < BLOCK; p++)
            sum[p] = _mm512_fmadd_ps(qc, _mm512_load_ps(x + (size_t)p * d + c), sum[p]);
    }
    return sums_of(sum);
}

/* The pages of a block; behind the last one it is repeated, and not stored. */
static uint32_t block_pages(const uint8_t *page[BLOCK], const uint8_t *base, size_t stride,
                            const page_id *id, uint32_t n)
{
    for (uint32_t p = 0; p < BLOCK; p++) page[p] = base + id[p < n ? p : n - 1] * stride;
    return n < BLOCK ? n : BLOCK;
}

static void score_pages_avx512(const struct op_score_pages *op)
{
    const uint32_t d = op->head_dim;
    _Alignas(64) float a[BLOCK * HEAD_DIM_MAX], b[BLOCK * HEAD_DIM_MAX];
    assert(d % LANES == 0 && d <= HEAD_DIM_MAX);
    for (uint32_t i = 0; i < op->n_page; i += BLOCK) {
        const uint8_t *page[BLOCK];
        const uint32_t n = block_pages(page, op->base, op->stride, op->page + i, op->n_page - i);
        const __mmask8 some = (__mmask8)((1u << n) - 1);
        for (uint32_t j = i + AHEAD; j < i + AHEAD + n && j < op->n_page; j++) {
            const char *next = (const char *)op->base + op->page[j] * op->stride;
            for (size_t c = 0; c < 2 * (size_t)d; c += 64) {
                _mm_prefetch(next + op->a_at + c, _MM_HINT_T0);
                _mm_prefetch(next + op->b_at + c, _MM_HINT_T0);
            }
        }
        for (uint32_t p = 0; p < BLOCK; p++)
            for (uint32_t c = 0; c < d; c += LANES) {
                _mm512_store_ps(a + p * d + c, load_half(page[p] + op->a_at + c * 2));
                _mm512_store_ps(b + p * d + c, load_half(page[p] + op->b_at + c * 2));
            }
        for (uint32_t g = 0; g < op->group; g++) {
            const __m128 sum = _mm_add_ps(dot_block(op->qa + (size_t)g * d, a, d),
                                          dot_block(op->qb + (size_t)g * d, b, d));
            _mm_mask_storeu_ps(op->out + g * op->out_stride + i, some, sum);
        }
    }
}

/* ---- Votes ---- */

/* exp(x - max) of a vector of scores; `max` in units of log 2. Where all of them lie EXP_NONE below
 * the largest, nothing is computed: a whole context of such tokens holds less than 1e-5 of the
 * mass.
 */
static __m512 weights_of(__m512 x, __m512 max)
{
    const __m512 y = _mm512_fmsub_ps(x, _mm512_set1_ps((float)M_LOG2E), max);
    if (!_mm512_cmp_ps_mask(y, _mm512_set1_ps(EXP_NONE), _CMP_GE_OQ)) return _mm512_setzero_ps();
    return math_exp2_quartic(y);
}

/* The largest of n scores; adds to `wrong` what is not finite. */
static float score_max(const float *s, uint32_t n, __m512 *wrong)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 max = none, off = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 k = math_lane_mask(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(k, s + i);
        max = _mm512_mask_max_ps(max, k, max, x);
        off = _mm512_add_ps(off, _mm512_sub_ps(x, x));
    }
    *wrong = _mm512_add_ps(*wrong, off);
    return _mm512_reduce_max_ps(max);
}

static bool vote_avx512(const struct op_vote *op)
{
    __m512 wrong = _mm512_setzero_ps();
    for (uint32_t g = 0; g < op->group; g++) {
        const float *s = op->score + g * op->score_stride;
        const float top = score_max(s, op->n, &wrong);
        const __m512 max = _mm512_set1_ps(top * (float)M_LOG2E);
        __m512 sum = _mm512_setzero_ps();
        for (uint32_t i = 0; i < op->n; i += LANES) {
            const __mmask16 k = math_lane_mask(op->n - i);
            sum = _mm512_mask_add_ps(sum, k, sum, weights_of(_mm512_maskz_loadu_ps(k, s + i), max));
        }
        const float total = _mm512_reduce_add_ps(sum);
        op->lse[g] = top + logf(total);
        const __m512 share = _mm512_set1_ps(1.0f / (total * (float)op->group));
        for (uint32_t i = 0; i < op->n; i += LANES) {
            const __mmask16 k = math_lane_mask(op->n - i);
            const __m512 e = weights_of(_mm512_maskz_loadu_ps(k, s + i), max);
            const __m512 was = g > 0 ? _mm512_maskz_loadu_ps(k, op->vote + i) : _mm512_setzero_ps();
            _mm512_mask_storeu_ps(op->vote + i, k, _mm512_fmadd_ps(e, share, was));
        }
    }
    return _mm512_reduce_add_ps(wrong) == 0;
}

void ops_fill_avx512_score(struct ops *o)
{
    o->score_pages = score_pages_avx512;
    o->vote = vote_avx512;
}
