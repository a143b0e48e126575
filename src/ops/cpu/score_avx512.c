/* score_avx512.c: scores of pages with vectors of 16 lanes, and votes, of which vote_vec.h has the
 * text. Every page is computed alone, in the same order whatever else is asked. */
#include "base/half.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#include "ops/cpu/vote_vec.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define HEAD_DIM_MAX 512u
#define LANES        16u
#define BLOCK        4u /* pages whose sums across lanes are made together */
#define AHEAD        8u /* pages between a fetch and its use */

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

void ops_fill_avx512_score(struct ops *o)
{
    o->score_pages = score_pages_avx512;
    o->vote = vote_vec;
}
