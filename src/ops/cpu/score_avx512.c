/* score_avx512.c: the score slots with AVX-512 and VNNI.
 *
 * Planes: a lane of a vector is a token. The 2-bit codes of 16 tokens are transposed to dwords of
 * four channels of one token, so a dpbusd with a broadcast of four weights adds four channels of 16
 * tokens and no sum across lanes is needed. The weights q * step * 64 of a page are rounded to int8
 * with one scale a head: their error is far below that of the codes, which have two bits. Every
 * page and token is computed alone, in the same order whatever else is asked. */
#include "base/half.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define HEAD_DIM_MAX 512u
#define GROUP_MAX    64u
#define LANES        16u
#define HEADS        8u       /* whose sums stay in registers together */
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

/* ---- Planes ---- */

/* What does not change from page to page. */
struct plane_queries {
    float inv[GROUP_MAX];                      /* 1 / largest |q| of a head */
    float top[GROUP_MAX];                      /* the largest */
    _Alignas(64) float envelope[HEAD_DIM_MAX]; /* largest |q| of a channel, each head times inv */
    float reference[GROUP_MAX]; /* of a head's exponents: its score of the first page's middle */
};

static void prepare_queries(struct plane_queries *out, const struct op_share_planes *op)
{
    const uint32_t d = op->head_dim;
    memset(out->envelope, 0, d * sizeof(float));
    for (uint32_t g = 0; g < op->group; g++) {
        const float *q = op->q + (size_t)g * d;
        __m512 most = _mm512_setzero_ps();
        for (uint32_t c = 0; c < d; c += LANES)
            most = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(q + c)), most);
        out->top[g] = _mm512_reduce_max_ps(most);
        out->inv[g] = out->top[g] > 0 ? 1 / out->top[g] : 0;
        const __m512 inv = _mm512_set1_ps(out->inv[g]);
        for (uint32_t c = 0; c < d; c += LANES)
            _mm512_store_ps(
                out->envelope + c,
                _mm512_max_ps(_mm512_load_ps(out->envelope + c),
                              _mm512_mul_ps(_mm512_abs_ps(_mm512_loadu_ps(q + c)), inv)));
    }
}

/* A block of pages on its way to weights, and those of one of them: int8 [group, head_dim] in the
 * order of the channels, and per head what turns a sum of weight * code into an exponent. */
struct page_weights {
    _Alignas(64) float step[BLOCK * HEAD_DIM_MAX];
    _Alignas(64) float mid[BLOCK * HEAD_DIM_MAX];
    float most[BLOCK]; /* no |q step| of a head, divided by its largest |q|, is above */
    float base[BLOCK][GROUP_MAX];
    _Alignas(64) int8_t w[GROUP_MAX * HEAD_DIM_MAX];
    float scale[GROUP_MAX];
};

/* A NaN or infinity among q, min and step reaches `base`: each channel of each is in its sum. */
static void weigh_block(struct page_weights *out, const struct op_share_planes *op,
                        const struct plane_queries *q, const uint8_t *const page[BLOCK])
{
    const uint32_t d = op->head_dim;
    for (uint32_t p = 0; p < BLOCK; p++) {
        __m512 most = _mm512_setzero_ps();
        for (uint32_t c = 0; c < d; c += LANES) {
            const __m512 step = load_half(page[p] + op->step_at + c * 2);
            const __m512 min = load_half(page[p] + op->min_at + c * 2);
            _mm512_store_ps(out->step + p * d + c, step);
            _mm512_store_ps(out->mid + p * d + c,
                            _mm512_fmadd_ps(step, _mm512_set1_ps(31.5f), min));
            const __m512 weight =
                _mm512_mul_ps(_mm512_abs_ps(step), _mm512_load_ps(q->envelope + c));
            most = _mm512_max_ps(weight, most);
        }
        out->most[p] = _mm512_reduce_max_ps(most);
    }
    for (uint32_t g = 0; g < op->group; g++) {
        _Alignas(16) float base[BLOCK];
        _mm_store_ps(base, dot_block(op->q + (size_t)g * d, out->mid, d));
        for (uint32_t p = 0; p < BLOCK; p++) out->base[p][g] = op->scale * base[p];
    }
}

/* int8 of 64 numbers, rounded and saturated. */
static __m512i to_int8(__m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m512i ab = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    const __m512i cd = _mm512_packs_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(ab, cd));
}

/* The weights q step * 127 / (largest) of page p of the block. */
static void weigh_page(struct page_weights *out, const struct op_share_planes *op,
                       const struct plane_queries *queries, uint32_t p)
{
    const uint32_t d = op->head_dim;
    const float *step = out->step + (size_t)p * d,
                to_code = out->most[p] > 0 ? 127 / out->most[p] : 0;
    for (uint32_t g = 0; g < op->group; g++) {
        const float *q = op->q + (size_t)g * d;
        int8_t *w = out->w + (size_t)g * d;
        const __m512 by = _mm512_set1_ps(to_code * queries->inv[g]);
        uint32_t c = 0;
        for (; c + 64 <= d; c += 64) {
            __m512 x[4];
            for (uint32_t i = 0; i < 4; i++)
                x[i] = _mm512_mul_ps(by, _mm512_mul_ps(_mm512_loadu_ps(q + c + i * LANES),
                                                       _mm512_load_ps(step + c + i * LANES)));
            _mm512_storeu_si512(w + c, to_int8(x[0], x[1], x[2], x[3]));
        }
        for (; c < d; c += LANES) {
            const __m512 x =
                _mm512_mul_ps(by, _mm512_mul_ps(_mm512_loadu_ps(q + c), _mm512_load_ps(step + c)));
            _mm_storeu_si128((__m128i *)(void *)(w + c),
                             _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
        }
        out->scale[g] = op->scale * 64 / 127 * out->most[p] * queries->top[g];
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

/* One page on its way from codes to exponentials. */
struct plane_page {
    const int8_t *w;
    const float *scale;  /* [group] of a sum, in the units of `offset` */
    const float *offset; /* [group] */
    uint32_t *out; /* [group, LANES], stride e_stride: bf16 of tokens t and t + LANES in a word */
    float (*sum)[LANES];                 /* [group] of exponentials so far */
    __m512i dword[2][HEAD_DIM_MAX / 16]; /* codes of the two halves of its tokens, transposed */
};

static __m512i broadcast_weights(const int8_t *w)
{
    int32_t four;
    memcpy(&four, w, sizeof four);
    return _mm512_set1_epi32(four);
}

/* 2^y by the straight line between powers of two, from y * 2^23 with the exponent's bias in it:
 * up to 6 % too large. */
static __m512 exp2_rough(__m512 y)
{
    const __m512 least = _mm512_setzero_ps(), most = _mm512_set1_ps(227.0f * 0x1p23f);
    const __m512i bits = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(y, least), most));
    return _mm512_castsi512_ps(bits);
}

/* Exponentials of the page's tokens for the n heads from g0; n is a constant where this is inlined,
 * so that the sums stay in registers: two chains for each head hide the latency of dpbusd. */
__attribute__((always_inline)) static inline void weigh_heads(const struct op_share_planes *op,
                                                              const struct plane_page *page,
                                                              uint32_t g0, const uint32_t n)
{
    const uint32_t d = op->head_dim, quarter = d / 4;
    const __m512i two_bits = _mm512_set1_epi8(3);
    const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u);
    __m512i sum[2][HEADS];
    for (uint32_t g = 0; g < n; g++) sum[0][g] = sum[1][g] = _mm512_setzero_si512();
    for (uint32_t m = 0; m < quarter / 4; m++) {
        __m512i a = page->dword[0][m], b = page->dword[1][m];
        for (uint32_t s = 0; s < 4; s++) {
            const __m512i x = _mm512_and_si512(a, two_bits), y = _mm512_and_si512(b, two_bits);
            const int8_t *at = page->w + (size_t)g0 * d + s * quarter + 4 * m;
            for (uint32_t g = 0; g < n; g++) {
                const __m512i w = broadcast_weights(at + (size_t)g * d);
                sum[0][g] = _mm512_dpbusd_epi32(sum[0][g], x, w);
                sum[1][g] = _mm512_dpbusd_epi32(sum[1][g], y, w);
            }
            a = _mm512_srli_epi32(a, 2);
            b = _mm512_srli_epi32(b, 2);
        }
    }
    for (uint32_t g = 0; g < n; g++) {
        const __m512 by = _mm512_set1_ps(page->scale[g0 + g]);
        const __m512 offset = _mm512_set1_ps(page->offset[g0 + g]);
        uint32_t *out = page->out + (g0 + g) * op->e_stride;
        const __m512 e0 = exp2_rough(_mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0][g]), by, offset));
        const __m512 e1 = exp2_rough(_mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[1][g]), by, offset));
        _mm512_storeu_si512(out, _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(e0), 16),
                                                 _mm512_and_si512(_mm512_castps_si512(e1), upper)));
        float *total = page->sum[g0 + g];
        _mm512_storeu_ps(total, _mm512_add_ps(_mm512_loadu_ps(total), _mm512_add_ps(e0, e1)));
    }
}

static void weigh_tokens(const struct op_share_planes *op, const struct plane_page *w)
{
    for (uint32_t g0 = 0; g0 < op->group; g0 += HEADS) {
        const uint32_t left = op->group - g0;
        switch (left < HEADS ? left : HEADS) {
        case 1: weigh_heads(op, w, g0, 1); break;
        case 2: weigh_heads(op, w, g0, 2); break;
        case 3: weigh_heads(op, w, g0, 3); break;
        case 4: weigh_heads(op, w, g0, 4); break;
        case 5: weigh_heads(op, w, g0, 5); break;
        case 6: weigh_heads(op, w, g0, 6); break;
        case 7: weigh_heads(op, w, g0, 7); break;
        default: weigh_heads(op, w, g0, HEADS); break;
        }
    }
}

/* Part of its caller: gcc drops calls of a function that does nothing but fetch. */
__attribute__((always_inline)) static inline void fetch_plane(const struct op_share_planes *op,
                                                              uint32_t i)
{
    if (i >= op->n_page) return;
    const char *next = (const char *)op->base + op->page[i] * op->stride;
    const size_t d = op->head_dim;
    for (size_t c = 0; c < 2 * d; c += 64) {
        _mm_prefetch(next + op->min_at + c, _MM_HINT_T0);
        _mm_prefetch(next + op->step_at + c, _MM_HINT_T0);
    }
    for (size_t c = 0; c < PAGE_TOK * d / 4; c += 64)
        _mm_prefetch(next + op->hi2_at + c, _MM_HINT_T0);
}

static void load_codes(struct plane_page *page, const uint8_t *codes, uint32_t head_dim)
{
    const uint32_t row = head_dim / 4;
    for (uint32_t half = 0; half < 2; half++, codes += LANES * row) {
        if (row == 16)
            transpose_rows16(page->dword[half], codes);
        else
            for (uint32_t m = 0; m < row / 4; m++)
                page->dword[half][m] = gather_dwords(codes, row, m);
    }
}

/* Turns sums and scores of page p into exponents of 2^x as exp2_rough wants them; adds to `wrong`
 * what is not finite. */
static void set_exponents(struct page_weights *w, const struct op_share_planes *op,
                          const struct plane_queries *q, uint32_t p, float *wrong)
{
    const float unit = 0x1p23f * (float)M_LOG2E;
    for (uint32_t g = 0; g < op->group; g++) {
        *wrong += w->base[p][g] - w->base[p][g];
        w->base[p][g] = (w->base[p][g] - q->reference[g]) * unit + 127 * 0x1p23f;
        w->scale[g] *= unit;
    }
}

/* Exponentials of all tokens, and their sums over tokens. False: a score is not finite. */
static bool weigh_pages(const struct op_share_planes *op, float (*sum)[LANES])
{
    struct plane_queries queries;
    struct page_weights weights;
    struct plane_page now = {.w = weights.w, .scale = weights.scale, .sum = sum};
    float wrong = 0;
    prepare_queries(&queries, op);
    for (uint32_t i = 0; i < op->n_page; i += BLOCK) {
        const uint8_t *page[BLOCK];
        const uint32_t n = block_pages(page, op->base, op->stride, op->page + i, op->n_page - i);
        weigh_block(&weights, op, &queries, page);
        if (i == 0) memcpy(queries.reference, weights.base[0], op->group * sizeof(float));
        for (uint32_t p = 0; p < n; p++) {
            fetch_plane(op, i + p + AHEAD);
            weigh_page(&weights, op, &queries, p);
            set_exponents(&weights, op, &queries, p, &wrong);
            load_codes(&now, page[p] + op->hi2_at, op->head_dim);
            now.offset = weights.base[p];
            now.out = (uint32_t *)(void *)op->e + (size_t)(i + p) * LANES;
            weigh_tokens(op, &now);
        }
    }
    return wrong == 0;
}

static bool share_planes_avx512(const struct op_share_planes *op)
{
    float sum[GROUP_MAX][LANES] = {{0}}, by[GROUP_MAX];
    assert(op->head_dim <= HEAD_DIM_MAX && op->group <= GROUP_MAX && op->head_dim % 32 == 0);
    const bool finite = weigh_pages(op, sum);
    for (uint32_t g = 0; g < op->group; g++)
        by[g] = 1 / (_mm512_reduce_add_ps(_mm512_loadu_ps(sum[g])) * (float)op->group);
    for (size_t i = 0; i < op->n_page; i++) {
        const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u);
        __m512 lo = _mm512_setzero_ps(), hi = lo;
        for (uint32_t g = 0; g < op->group; g++) {
            const __m512i e = _mm512_loadu_si512(op->e + g * op->e_stride + i * LANES);
            const __m512 share = _mm512_set1_ps(by[g]);
            lo = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(e, 16)), share, lo);
            hi = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(e, upper)), share, hi);
        }
        _mm512_storeu_ps(op->share + i * PAGE_TOK, lo);
        _mm512_storeu_ps(op->share + i * PAGE_TOK + LANES, hi);
    }
    return finite;
}

/* 2^y, relative error below 3e-6, which is nothing beside that of a choice. */
static __m512 exp2_ps(__m512 y)
{
    const __m512 r = _mm512_reduce_ps(y, 0x09); /* y - floor(y), no exception */
    __m512 p = _mm512_set1_ps(0.01353417f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.05201146f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24144276f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69300383f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.00000259f));
    return _mm512_scalef_ps(p, y);
}

/* exp(x - max) of a vector of scores; `max` in units of log 2. Where all of them lie EXP_NONE below
 * the largest, nothing is computed: a whole context of such tokens holds less than 1e-5 of the
 * mass.
 */
static __m512 weights_of(__m512 x, __m512 max)
{
    const __m512 y = _mm512_fmsub_ps(x, _mm512_set1_ps((float)M_LOG2E), max);
    if (!_mm512_cmp_ps_mask(y, _mm512_set1_ps(EXP_NONE), _CMP_GE_OQ)) return _mm512_setzero_ps();
    return exp2_ps(y);
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
    o->share_planes = share_planes_avx512;
    o->vote = vote_avx512;
}
