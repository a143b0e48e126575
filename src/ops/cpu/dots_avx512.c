/* dots_avx512.c: keys of pages in f32, and dot products of rows with rows in vectors of 16 lanes;
 * dots_vec.h has the algorithm of these. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#define ROWS 8u

#include "ops/cpu/dots_vec.h"

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
            keys_half(out, g, page);
            continue;
        }
        for (uint32_t s = 0; s < 4; s++)
            for (uint32_t j = 0; j < quarter; j += VEC)
                keys_q8_channels(out, g, page, s, j, quarter - j < VEC ? 0xff : 0xffff);
    }
}

void dots_avx512_run(const struct op_dots *op)
{
    dots_vec(op);
}

void ops_fill_avx512_dots(struct ops *o)
{
    o->keys = keys_avx512;
    o->dots = dots_vec;
}
