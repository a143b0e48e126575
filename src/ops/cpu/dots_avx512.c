/* dots_avx512.c: keys of pages in f32, and dot products of rows with rows in vectors of 16 lanes;
 * the algorithm of those in f32 is in dots_tmpl.h.
 *
 * Rows of `b` in bf16 are packed in the layout of an AMX B tile: 64 bytes hold one pair of channels
 * of 16 rows; 16 pairs follow each other, then the other 16 rows of a block. Both instruction sets
 * therefore share the slot `pack`. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#define ROWS 8u

#include "ops/cpu/dots_tmpl.h"

static __m512i load_bytes(__mmask16 k, const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(k, p));
}

static __m512 load_halves(__mmask16 k, const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k, p));
}

/* Channels of tokens of a q8 page: from c on, those of mask k, all of one quarter, so that their
 * bits are at the same place in the planes. */
static void keys_q8_channels(float *out, const struct page_geom *g, const uint8_t *page,
                             uint32_t tok, uint32_t c, __mmask16 k)
{
    const uint32_t d = g->head_dim, quarter = d / 4, s = c / quarter, j = c % quarter;
    const __m512 min = load_halves(k, page + g->k_min + 2 * (size_t)c);
    const __m512 step = load_halves(k, page + g->k_step + 2 * (size_t)c);
    const __m128i by2 = _mm_cvtsi32_si128((int)(2 * s)), by4 = _mm_cvtsi32_si128((int)(s / 2 * 4));
    const __m512i three = _mm512_set1_epi32(3), fifteen = _mm512_set1_epi32(15);
    for (; tok; tok &= tok - 1, out += d) {
        const size_t t = (size_t)__builtin_ctz(tok);
        const uint8_t *low = page + g->k_low + t * (d * 3 / 4);
        const __m512i hi = load_bytes(k, page + g->k_hi2 + t * quarter + j);
        const __m512i mid = load_bytes(k, low + j);
        const __m512i lo = load_bytes(k, low + quarter + s % 2 * quarter + j);
        __m512i code = _mm512_and_si512(_mm512_srl_epi32(lo, by4), fifteen);
        code = _mm512_or_si512(
            code, _mm512_slli_epi32(_mm512_and_si512(_mm512_srl_epi32(mid, by2), three), 4));
        code = _mm512_or_si512(
            code, _mm512_slli_epi32(_mm512_and_si512(_mm512_srl_epi32(hi, by2), three), 6));
        _mm512_mask_storeu_ps(out + c, k, _mm512_fmadd_ps(step, _mm512_cvtepi32_ps(code), min));
    }
}

static void keys_avx512(const struct op_keys *op)
{
    const struct page_geom *g = op->geom;
    const uint32_t quarter = g->head_dim / 4;
    float *out = op->out;
    for (uint32_t i = 0; i < op->n_page; i++) {
        const uint8_t *page = page_frame(g, op->frames, op->page[i]);
        const uint32_t tok = op_keys_tok(op, i);
        if (g->type_k != SAC_KV_Q8) keys_half(out, g, page, tok);
        for (uint32_t s = 0; s < 4 && g->type_k == SAC_KV_Q8; s++)
            for (uint32_t j = 0; j < quarter; j += VEC)
                keys_q8_channels(out, g, page, tok, s * quarter + j,
                                 quarter - j < VEC ? 0xff : 0xffff);
        out += (size_t)__builtin_popcount(tok) * g->head_dim;
    }
}

static bool pack_avx512(const struct op_pack *op)
{
    vec wrong[2] = {v_zero(), v_zero()};
    uint8_t *dst = (uint8_t *)op->out;
    for (uint32_t j = 0; j < op->n_b; j += 2 * TILE_ROWS)
        for (uint32_t c = 0; c < op->width; c += 32)
            for (uint32_t half = 0; half < 2; half++, dst += TILE_BYTES) {
                __m512i x[TILE_ROWS];
                for (uint32_t t = 0; t < TILE_ROWS; t++) {
                    const uint32_t row = j + half * TILE_ROWS + t;
                    const float *from = op->b + (row < op->n_b ? row : op->n_b - 1) * op->b_stride;
                    vec lo = v_load(from + c), hi = v_load(from + c + VEC);
                    if (op->less) {
                        lo = v_sub(lo, v_load(op->less + c));
                        hi = v_sub(hi, v_load(op->less + c + VEC));
                    }
                    x[t] = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
                    wrong[0] = v_fma(lo, v_zero(), wrong[0]);
                    wrong[1] = v_fma(hi, v_zero(), wrong[1]);
                }
                tiles_transpose(x);
                memcpy(dst, x, sizeof x);
            }
    return !v_any_nan(v_add(wrong[0], wrong[1]));
}

/* ROWS rows of `a` times a block of `b`; n: the number of valid rows of `a` and of `b`. */
VEC_PART void multiply_bf16(float *out, const struct op_dots_bf16 *op, const uint16_t *a,
                            const uint16_t *b, const uint32_t n[2])
{
    const uint8_t *pairs = (const uint8_t *)b;
    vec sum[ROWS][2];
    for (uint32_t r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = v_zero();
    for (uint32_t c = 0; c < op->width; c += 32, pairs += 2 * TILE_BYTES)
#pragma GCC unroll 4
        for (uint32_t p = 0; p < 16; p++) {
            const __m512bh x = (__m512bh)_mm512_load_si512(pairs + p * 64);
            const __m512bh y = (__m512bh)_mm512_load_si512(pairs + TILE_BYTES + p * 64);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < ROWS; r++) {
                int32_t two;
                memcpy(&two, a + r * op->a_stride + c + 2 * p, sizeof two);
                const __m512bh each = (__m512bh)_mm512_set1_epi32(two);
                sum[r][0] = _mm512_dpbf16_ps(sum[r][0], each, x);
                sum[r][1] = _mm512_dpbf16_ps(sum[r][1], each, y);
            }
        }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < ROWS; r++) {
        if (r >= n[0]) break;
        v_store_first(out + r * op->out_stride, n[1], sum[r][0]);
        if (n[1] > VEC) v_store_first(out + r * op->out_stride + VEC, n[1] - VEC, sum[r][1]);
    }
}

static void dots_bf16_avx512(const struct op_dots_bf16 *op)
{
    for (uint32_t j = 0; j < op->n_b; j += OP_DOTS_ROWS)
        for (uint32_t i = 0; i < op->n_a; i += ROWS) {
            const uint32_t n[] = {op->n_a - i, op->n_b - j};
            multiply_bf16(op->out + i * op->out_stride + j, op, op->a + i * op->a_stride,
                          op->b + (size_t)j * op->width, n);
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
    o->dots_few = dots_vec;
    o->pack = pack_avx512;
    o->dots_bf16 = dots_bf16_avx512;
}
