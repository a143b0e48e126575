/* attn_avx512.c: attention of many rows in vectors of bf16. The algorithm is in attn_wide_tmpl.h,
 * attention of one row in attn_narrow_avx512.c. */
#include "ops/cpu/attn_avx512.h"
#include "ops/cpu/attn.h"
#include "ops/cpu/attn_half.h"
#include "ops/cpu/attn_q8.h"
#include "ops/cpu/attn_q8_avx2.h"
#include "ops/cpu/attn_vec.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/tiles.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#define TILE_Q       896u /* their state fills half of an L2 of 1 MiB (head_dim 64) */
#define half_begin() ((void)0)
#define half_end()   ((void)0)

static uint32_t wide_panel_tok(uint32_t head_dim)
{
    return head_dim <= 128 ? 256 : 128;
}

/* ---- Products ---- */

/* rows of A at a time: with two vectors of columns their sums take half of the registers */
#define ROWS 8u

/* Computes ROWS rows of half_block, from row `first` of A on. */
ATTN_HALF void half_rows(const struct attn_half_block *x, uint32_t first, uint32_t n_vec, bool add)
{
    const uint8_t *a = x->a + first / TILE_ROWS * x->a_row + first % TILE_ROWS * 64, *b = x->b;
    uint8_t *c = x->c + first / TILE_ROWS * x->c_row + first % TILE_ROWS * x->c_stride;
    __m512 sum[ROWS][2];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < n_vec; j++)
            sum[i][j] =
                add ? _mm512_loadu_ps(c + i * x->c_stride + j * x->c_next) : _mm512_setzero_ps();
    for (uint32_t k = 0; k < x->n_tile; k++, a += TILE_BYTES, b += x->b_tile)
#pragma GCC unroll 4
        for (uint32_t pair = 0; pair < 16; pair++) {
            __m512bh column[2];
#pragma GCC unroll 2
            for (uint32_t j = 0; j < n_vec; j++)
                column[j] = (__m512bh)_mm512_load_si512(b + j * x->b_next + pair * 64);
#pragma GCC unroll 8
            for (uint32_t i = 0; i < ROWS; i++) {
                int32_t two;
                memcpy(&two, a + i * 64 + pair * 4, 4);
                const __m512bh row = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 2
                for (uint32_t j = 0; j < n_vec; j++)
                    sum[i][j] = _mm512_dpbf16_ps(sum[i][j], row, column[j]);
            }
        }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < n_vec; j++)
            _mm512_storeu_ps(c + i * x->c_stride + j * x->c_next, sum[i][j]);
}

ATTN_HALF void half_block(const struct attn_half_block *x, uint32_t n_col, bool add, bool f16)
{
    (void)f16; /* always bf16 */
    for (uint32_t i = 0; i < 2 * TILE_ROWS; i += ROWS) half_rows(x, i, n_col / 16, add);
}

/* ---- q8 to halves ---- */

/* Keys are f16 until they are centred. */
ATTN_HALF void store_f16(uint16_t *dst, __m512 v)
{
    _mm256_storeu_si256((void *)dst,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static void half_from_q8_k(uint16_t *dst, const struct page_geom *g, const uint8_t *page,
                           struct attn_tokens tok, bool f16)
{
    const uint32_t d = g->head_dim, quarter = d / 4;
    assert(f16);
    if (quarter % 16 != 0) {
        float row[HEAD_DIM_MAX];
        for (uint32_t t = 0; t < tok.n; t++) {
            attn_q8_by_eights(row, g, page, (struct attn_tokens){tok.first + t, 1});
            for (uint32_t c = 0; c < d; c += 16)
                store_f16(dst + t * (size_t)d + c, _mm512_loadu_ps(row + c));
        }
        return;
    }
    const struct attn_q8_shift shift = attn_q8_shift(16);
    for (uint32_t j = 0; j < quarter; j += 16) {
        __m512 min[4], step[4];
        for (uint32_t i = 0; i < 4; i++) {
            min[i] = attn_load_f16(page + g->k_min + 2 * (i * quarter + j));
            step[i] = attn_load_f16(page + g->k_step + 2 * (i * quarter + j));
        }
        for (size_t t = tok.first; t < tok.first + tok.n; t++) {
            const uint8_t *hi2 = page + g->k_hi2 + t * quarter + j;
            const uint8_t *low = page + g->k_low + t * 3 * quarter + j;
            const __m128i lo0 = _mm_loadu_si128((const void *)(low + quarter));
            const __m128i lo1 = _mm_loadu_si128((const void *)(low + 2 * quarter));
            const __m512i lo = _mm512_broadcast_i64x4(
                _mm256_inserti128_si256(_mm256_castsi128_si256(lo0), lo1, 1));
            const __m512i code =
                attn_q8_join(&shift, _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)hi2)),
                             _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)low)), lo);
            const __m128i part[4] = {
                _mm512_castsi512_si128(code), _mm512_extracti32x4_epi32(code, 1),
                _mm512_extracti32x4_epi32(code, 2), _mm512_extracti32x4_epi32(code, 3)};
            for (uint32_t i = 0; i < 4; i++) {
                const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(part[i]));
                store_f16(dst + (t - tok.first) * d + i * quarter + j,
                          _mm512_fmadd_ps(x, step[i], min[i]));
            }
        }
    }
}

ATTN_HALF __m512i half_from_q8_v(const uint8_t *code, uint16_t scale, bool f16)
{
    const __m512 by = _mm512_set1_ps(_cvtsh_ss(scale));
    const __m512i x = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)code));
    const __m512i y = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(code + 16)));
    return attn_half_from_f32(_mm512_mul_ps(by, _mm512_cvtepi32_ps(x)),
                              _mm512_mul_ps(by, _mm512_cvtepi32_ps(y)), f16);
}

#include "ops/cpu/attn_wide_tmpl.h"

void attn_avx512_gather_keys(uint16_t *dst, const struct page_geom *g, const struct attn_page *page)
{
    gather_keys(dst, g, page, g->type_k != SAC_KV_BF16);
}

void attn_avx512_gather_values(uint16_t *dst, const struct page_geom *g,
                               const struct attn_page *page)
{
    gather_values(dst, g, page, g->type_v != SAC_KV_BF16);
}

DEFINE_KERNEL(bf16, false, attn_narrow_avx512)

static size_t avx512_attn_scratch(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                                  uint32_t n_row, uint32_t n_tok_max)
{
    return attn_execute_scratch(&bf16_kernel, n_worker, geom, n_head, n_row, n_tok_max);
}

void ops_fill_avx512_attn(struct ops *o)
{
    o->attn = bf16_attn;
    o->attn_scratch = avx512_attn_scratch;
}
