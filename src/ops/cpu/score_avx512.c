/* score_avx512.c: the score slots with AVX-512 and VNNI.
 *
 * Planes: a lane of a vector is a token. The 2-bit codes of 16 tokens are transposed to dwords of
 * four channels of one token, so a dpbusd with a broadcast of four weights adds four channels of 16
 * tokens and no sum across lanes is needed. The weights q * step * 64 of a page are rounded to int8
 * with one scale a head: their error is far below that of the codes, which have two bits. Every
 * page and token is computed alone, in the same order whatever else is asked. */
#include "base/half.h"
#include "ops/cpu/fill.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define HEAD_DIM_MAX 512u
#define GROUP_MAX    64u
#define LANES        16u
#define HEADS        8u /* whose sums stay in registers together */

static __m512 load_half(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static void score_pages_avx512(const struct op_score_pages *op)
{
    const uint32_t d = op->head_dim;
    assert(d % LANES == 0);
    for (uint32_t i = 0; i < op->n_page; i++) {
        const uint8_t *page = op->base + op->page[i] * op->stride;
        if (i + 8 < op->n_page) {
            const uint8_t *next = op->base + op->page[i + 8] * op->stride;
            for (uint32_t c = 0; c < 2 * d; c += 64) {
                _mm_prefetch((const char *)next + op->a_at + c, _MM_HINT_T0);
                _mm_prefetch((const char *)next + op->b_at + c, _MM_HINT_T0);
            }
        }
        for (uint32_t g = 0; g < op->group; g++) {
            const float *qa = op->qa + (size_t)g * d, *qb = op->qb + (size_t)g * d;
            __m512 sum_a = _mm512_setzero_ps(), sum_b = _mm512_setzero_ps();
            for (uint32_t c = 0; c < d; c += LANES) {
                sum_a = _mm512_fmadd_ps(load_half(page + op->a_at + c * 2), _mm512_loadu_ps(qa + c),
                                        sum_a);
                sum_b = _mm512_fmadd_ps(load_half(page + op->b_at + c * 2), _mm512_loadu_ps(qb + c),
                                        sum_b);
            }
            op->out[g * op->out_stride + i] = _mm512_reduce_add_ps(_mm512_add_ps(sum_a, sum_b));
        }
    }
}

/* One page's weights: int8 [group, head_dim] in the order of the channels, and per head what turns
 * a sum of weight * code into a logit. */
struct page_weights {
    _Alignas(64) int8_t w[GROUP_MAX * HEAD_DIM_MAX];
    float scale[GROUP_MAX], base[GROUP_MAX];
};

static void weigh_page(struct page_weights *out, const struct op_score_planes *op,
                       const uint8_t *page)
{
    const uint32_t d = op->head_dim;
    for (uint32_t g = 0; g < op->group; g++) {
        const float *q = op->q + (size_t)g * d;
        __m512 base = _mm512_setzero_ps(), most = _mm512_setzero_ps();
        for (uint32_t c = 0; c < d; c += LANES) {
            const __m512 qc = _mm512_loadu_ps(q + c);
            const __m512 step = load_half(page + op->step_at + c * 2);
            const __m512 mid =
                _mm512_fmadd_ps(step, _mm512_set1_ps(31.5f), load_half(page + op->min_at + c * 2));
            base = _mm512_fmadd_ps(qc, mid, base);
            most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_mul_ps(qc, step)));
        }
        const float max = _mm512_reduce_max_ps(most);
        const __m512 to_code = _mm512_set1_ps(max > 0 ? 127.0f / max : 0);
        for (uint32_t c = 0; c < d; c += LANES) {
            const __m512 w = _mm512_mul_ps(
                _mm512_mul_ps(_mm512_loadu_ps(q + c), load_half(page + op->step_at + c * 2)),
                to_code);
            _mm_storeu_si128((__m128i *)(void *)(out->w + (size_t)g * d + c),
                             _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(w)));
        }
        out->scale[g] = op->scale * 64 * max / 127.0f;
        out->base[g] = op->scale * _mm512_reduce_add_ps(base);
        /* A NaN or infinity among q, min and step must reach the scores: base has it, or is made
         * so. */
        if (!(max < INFINITY)) out->base[g] = NAN;
    }
}

/* Dword m (of quarter / 4) of 16 tokens whose rows are `row` bytes long. */
static __m512i gather_dwords(const uint8_t *codes, size_t row, uint32_t m)
{
    const __m512i at =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32((int)row));
    return _mm512_i32gather_epi32(at, codes + (size_t)m * 4, 1);
}

/* The transpose for rows of 16 bytes (head_dim 64): lane t of out[m] is dword m of token t. */
static void transpose_rows16(__m512i out[4], const uint8_t *codes)
{
    const __m512i even =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odd =
        _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    __m512i r[4];
    for (int i = 0; i < 4; i++) r[i] = _mm512_loadu_si512(codes + 64 * (size_t)i);
    /* Dwords 0 and 1, then 2 and 3, of tokens 0..7 and of 8..15. */
    const __m512i lo01 = _mm512_permutex2var_epi32(r[0], even, r[1]);
    const __m512i hi01 = _mm512_permutex2var_epi32(r[2], even, r[3]);
    const __m512i lo23 = _mm512_permutex2var_epi32(r[0], odd, r[1]);
    const __m512i hi23 = _mm512_permutex2var_epi32(r[2], odd, r[3]);
    out[0] = _mm512_shuffle_i64x2(lo01, hi01, 0x44);
    out[1] = _mm512_shuffle_i64x2(lo01, hi01, 0xee);
    out[2] = _mm512_shuffle_i64x2(lo23, hi23, 0x44);
    out[3] = _mm512_shuffle_i64x2(lo23, hi23, 0xee);
}

static __m512i broadcast_weights(const int8_t *w)
{
    int32_t four;
    memcpy(&four, w, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Logits of 16 tokens for the n heads from g0; n is a constant where this is inlined, so that the
 * sums stay in registers. */
__attribute__((always_inline)) static inline void score_heads(const struct op_score_planes *op,
                                                              const struct page_weights *w,
                                                              const __m512i *dword, uint32_t g0,
                                                              const uint32_t n, float *out)
{
    const uint32_t d = op->head_dim, quarter = d / 4;
    const __m512i two_bits = _mm512_set1_epi8(3);
    __m512i sum[HEADS];
    for (uint32_t g = 0; g < n; g++) sum[g] = _mm512_setzero_si512();
    for (uint32_t m = 0; m < quarter / 4; m++) {
        __m512i codes = dword[m];
        for (uint32_t s = 0; s < 4; s++) {
            const __m512i code = _mm512_and_si512(codes, two_bits);
            const int8_t *at = w->w + (size_t)g0 * d + s * quarter + 4 * m;
            for (uint32_t g = 0; g < n; g++)
                sum[g] = _mm512_dpbusd_epi32(sum[g], code, broadcast_weights(at + (size_t)g * d));
            codes = _mm512_srli_epi32(codes, 2);
        }
    }
    for (uint32_t g = 0; g < n; g++)
        _mm512_storeu_ps(out + (g0 + g) * op->out_stride,
                         _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[g]),
                                         _mm512_set1_ps(w->scale[g0 + g]),
                                         _mm512_set1_ps(w->base[g0 + g])));
}

static void score_tokens16(const struct op_score_planes *op, const struct page_weights *w,
                           const __m512i *dword, float *out)
{
    for (uint32_t g0 = 0; g0 < op->group; g0 += HEADS) {
        const uint32_t left = op->group - g0;
        switch (left < HEADS ? left : HEADS) {
        case 1: score_heads(op, w, dword, g0, 1, out); break;
        case 2: score_heads(op, w, dword, g0, 2, out); break;
        case 3: score_heads(op, w, dword, g0, 3, out); break;
        case 4: score_heads(op, w, dword, g0, 4, out); break;
        case 5: score_heads(op, w, dword, g0, 5, out); break;
        case 6: score_heads(op, w, dword, g0, 6, out); break;
        case 7: score_heads(op, w, dword, g0, 7, out); break;
        default: score_heads(op, w, dword, g0, HEADS, out); break;
        }
    }
}

static void score_planes_avx512(const struct op_score_planes *op)
{
    const uint32_t d = op->head_dim, row = d / 4;
    const size_t hi2_bytes = (size_t)PAGE_TOK * row;
    struct page_weights weights;
    assert(d <= HEAD_DIM_MAX && op->group <= GROUP_MAX && d % 32 == 0);
    for (uint32_t i = 0; i < op->n_page; i++) {
        const uint8_t *page = op->base + op->page[i] * op->stride;
        if (i + 4 < op->n_page) {
            const char *next = (const char *)op->base + op->page[i + 4] * op->stride;
            for (size_t c = 0; c < 2 * (size_t)d; c += 64) {
                _mm_prefetch(next + op->min_at + c, _MM_HINT_T0);
                _mm_prefetch(next + op->step_at + c, _MM_HINT_T0);
            }
            for (size_t c = 0; c < hi2_bytes; c += 64)
                _mm_prefetch(next + op->hi2_at + c, _MM_HINT_T0);
        }
        weigh_page(&weights, op, page);
        for (uint32_t t = 0; t < PAGE_TOK; t += LANES) {
            const uint8_t *codes = page + op->hi2_at + (size_t)t * row;
            __m512i dword[HEAD_DIM_MAX / 16];
            if (row == 16)
                transpose_rows16(dword, codes);
            else
                for (uint32_t m = 0; m < row / 4; m++) dword[m] = gather_dwords(codes, row, m);
            score_tokens16(op, &weights, dword, op->out + (size_t)i * PAGE_TOK + t);
        }
    }
}

/* exp(x) for x <= 0: 2^n * p(f), relative error below 3e-7; 0 below -87. */
static __m512 exp_ps(__m512 x)
{
    const __m512 y =
        _mm512_mul_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(1.44269504089f));
    const __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(y, n);
    __m512 p = _mm512_set1_ps(1.540353039e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.333355815e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618129108e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550410866e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402265069e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931471806e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

static bool vote_avx512(const struct op_vote *op)
{
    __m512 wrong = _mm512_setzero_ps();
    for (uint32_t i = 0; i < op->n; i++) op->vote[i] = 0;
    for (uint32_t g = 0; g < op->group; g++) {
        const float *s = op->score + g * op->score_stride;
        __m512 max = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
        for (uint32_t i = 0; i < op->n; i += LANES) {
            const __mmask16 k = op->n - i < LANES ? (__mmask16)((1u << (op->n - i)) - 1) : 0xffff;
            const __m512 x = _mm512_maskz_loadu_ps(k, s + i);
            max = _mm512_mask_max_ps(max, k, max, x);
            wrong = _mm512_add_ps(wrong, _mm512_sub_ps(x, x));
        }
        const float top = _mm512_reduce_max_ps(max);
        const __m512 off = _mm512_set1_ps(top);
        for (uint32_t i = 0; i < op->n; i += LANES) {
            const __mmask16 k = op->n - i < LANES ? (__mmask16)((1u << (op->n - i)) - 1) : 0xffff;
            const __m512 x = _mm512_maskz_loadu_ps(k, s + i);
            sum = _mm512_mask_add_ps(sum, k, sum, exp_ps(_mm512_sub_ps(x, off)));
        }
        const float total = _mm512_reduce_add_ps(sum);
        op->lse[g] = top + logf(total);
        const __m512 share = _mm512_set1_ps(1.0f / (total * (float)op->group));
        for (uint32_t i = 0; i < op->n; i += LANES) {
            const __mmask16 k = op->n - i < LANES ? (__mmask16)((1u << (op->n - i)) - 1) : 0xffff;
            const __m512 x = _mm512_maskz_loadu_ps(k, s + i);
            const __m512 e = exp_ps(_mm512_sub_ps(x, off));
            const __m512 was = _mm512_maskz_loadu_ps(k, op->vote + i);
            _mm512_mask_storeu_ps(op->vote + i, k, _mm512_fmadd_ps(e, share, was));
        }
    }
    return _mm512_reduce_add_ps(wrong) == 0;
}

void ops_fill_avx512_score(struct ops *o)
{
    o->score_pages = score_pages_avx512;
    o->score_planes = score_planes_avx512;
    o->vote = vote_avx512;
}
