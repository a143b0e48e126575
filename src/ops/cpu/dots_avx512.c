/* dots_avx512.c: keys of pages in f32, and dot products of rows with rows, 4 x 4 at a time.
 *
 * Each product has a vector of 16 sums of its own, so nothing has to be packed; the 16 vectors of a
 * block are then added across their lanes together, by a transpose that adds as it goes. A product
 * at the edge is computed in a block of which the rest is thrown away: its arithmetic does not
 * depend on its place. */
#include "ops/cpu/fill.h"

#include <assert.h>
#include <immintrin.h>

#define LANES 16u
#define SIDE  4u /* of a block */

/* ---- Keys ---- */

static void keys_half(float *out, const uint8_t *src, sac_kv_type type, size_t n)
{
    for (size_t i = 0; i < n; i += LANES) {
        const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)(src + 2 * i));
        const __m512 f = type == SAC_KV_BF16
                             ? (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)
                             : _mm512_cvtph_ps(h);
        _mm512_storeu_ps(out + i, f);
    }
}

static __m512i load_bytes(__mmask16 k, const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(k, p));
}

static __m512 load_halves(__mmask16 k, const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k, p));
}

/* Channels s * d/4 + j .. of a q8 page, those of mask k: their bits lie in the same bytes of the
 * planes for all tokens. */
static void keys_q8_channels(float *out, const struct page_geom *g, const uint8_t *page, uint32_t s,
                             uint32_t j, __mmask16 k)
{
    const uint32_t d = g->head_dim, quarter = d / 4, c = s * quarter + j;
    const __m512 min = load_halves(k, page + g->k_min + 2 * (size_t)c);
    const __m512 step = load_halves(k, page + g->k_step + 2 * (size_t)c);
    const __m128i by2 = _mm_cvtsi32_si128((int)(2 * s)), by4 = _mm_cvtsi32_si128((int)(s / 2 * 4));
    const __m512i three = _mm512_set1_epi32(3), fifteen = _mm512_set1_epi32(15);
    for (size_t t = 0; t < PAGE_TOK; t++) {
        const uint8_t *low = page + g->k_low + t * (d * 3 / 4);
        const __m512i hi = load_bytes(k, page + g->k_hi2 + t * quarter + j);
        const __m512i mid = load_bytes(k, low + j);
        const __m512i lo = load_bytes(k, low + quarter + s % 2 * quarter + j);
        __m512i code = _mm512_and_si512(_mm512_srl_epi32(lo, by4), fifteen);
        code = _mm512_or_si512(
            code, _mm512_slli_epi32(_mm512_and_si512(_mm512_srl_epi32(mid, by2), three), 4));
        code = _mm512_or_si512(
            code, _mm512_slli_epi32(_mm512_and_si512(_mm512_srl_epi32(hi, by2), three), 6));
        _mm512_mask_storeu_ps(out + t * d + c, k,
                              _mm512_fmadd_ps(step, _mm512_cvtepi32_ps(code), min));
    }
}

static void keys_avx512(const struct op_keys *op)
{
    const struct page_geom *g = op->geom;
    const uint32_t quarter = g->head_dim / 4;
    for (uint32_t i = 0; i < op->n_page; i++) {
        const uint8_t *page = op->pool + (size_t)op->page[i] * g->bytes;
        float *out = op->out + (size_t)i * PAGE_TOK * g->head_dim;
        if (g->type_k != SAC_KV_Q8) {
            keys_half(out, page + g->k, g->type_k, (size_t)PAGE_TOK * g->head_dim);
            continue;
        }
        for (uint32_t s = 0; s < 4; s++)
            for (uint32_t j = 0; j < quarter; j += LANES)
                keys_q8_channels(out, g, page, s, j, quarter - j < LANES ? 0xff : 0xffff);
    }
}

/* ---- Products ---- */

/* Lane i of the result is the sum of the lanes of x[i]. */
static inline __m512 sum_each(const __m512 x[16])
{
    __m512 y[8], z[4];
    /* Lane-wise quarters: after two rounds z[i] holds in each 128-bit lane the partial sums of
     * x[4i]
     * .. x[4i + 3]. */
    for (uint32_t i = 0; i < 8; i++)
        y[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                             _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    for (uint32_t i = 0; i < 4; i++)
        z[i] = _mm512_add_ps(_mm512_shuffle_ps(y[2 * i], y[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(y[2 * i], y[2 * i + 1], 0xee));
    /* Then the four lanes are added by the same transpose on lanes. */
    const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(z[0], z[1], 0x88),
                                   _mm512_shuffle_f32x4(z[0], z[1], 0xdd));
    const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(z[2], z[3], 0x88),
                                   _mm512_shuffle_f32x4(z[2], z[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

static inline __m512 load_a(const struct op_dots *op, size_t at)
{
    if (!op->a_bf16) return _mm512_loadu_ps(op->a + at);
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(op->a_bf16 + at));
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

/* out[i][j] = a[i] . b[j] for a block of SIDE x SIDE; `a` and `b` are where rows begin. */
static inline void block(float out[SIDE][SIDE], const struct op_dots *op, const size_t a[SIDE],
                         const size_t b[SIDE])
{
    __m512 sum[SIDE * SIDE];
    for (uint32_t i = 0; i < SIDE * SIDE; i++) sum[i] = _mm512_setzero_ps();
    for (uint32_t c = 0; c < op->width; c += LANES) {
        __m512 x[SIDE];
        for (uint32_t j = 0; j < SIDE; j++) x[j] = _mm512_loadu_ps(op->b + b[j] + c);
        for (uint32_t i = 0; i < SIDE; i++) {
            const __m512 y = load_a(op, a[i] + c);
            for (uint32_t j = 0; j < SIDE; j++)
                sum[i * SIDE + j] = _mm512_fmadd_ps(y, x[j], sum[i * SIDE + j]);
        }
    }
    _mm512_storeu_ps(&out[0][0], sum_each(sum));
}

/* SIDE rows from row `i`; behind the last one it comes again. */
static inline void find_rows(size_t row[SIDE], size_t stride, uint32_t i, uint32_t n)
{
    for (uint32_t s = 0; s < SIDE; s++) row[s] = (i + s < n ? i + s : n - 1) * stride;
}

void dots_avx512_run(const struct op_dots *op)
{
    assert(op->width % LANES == 0);
    for (uint32_t j = 0; j < op->n_b; j += SIDE) {
        size_t b[SIDE];
        find_rows(b, op->b_stride, j, op->n_b);
        for (uint32_t i = 0; i < op->n_a; i += SIDE) {
            size_t a[SIDE];
            float result[SIDE][SIDE];
            find_rows(a, op->a_stride, i, op->n_a);
            block(result, op, a, b);
            for (uint32_t r = 0; r < SIDE && i + r < op->n_a; r++)
                for (uint32_t s = 0; s < SIDE && j + s < op->n_b; s++)
                    op->out[(i + r) * op->out_stride + j + s] = result[r][s];
        }
    }
}

void ops_fill_avx512_dots(struct ops *o)
{
    o->keys = keys_avx512;
    o->dots = dots_avx512_run;
}
