/* attn_amx.c: attention of many rows in AMX tiles. The algorithm is in attn_wide_tmpl.h, attention
 * of one row in attn_narrow_amx.c.
 *
 * The tile registers belong to the calling thread: each entry point loads their configuration and
 * ends with a release (tiles.h). */
#include "ops/cpu/attn_amx.h"
#include "ops/cpu/attn.h"
#include "ops/cpu/attn_half.h"
#include "ops/cpu/attn_q8.h"
#include "ops/cpu/detect.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/tiles.h"

#include <immintrin.h>
#include <string.h>

#define TILE_Q     1792u
#define half_begin tiles_begin
#define half_end   tiles_end

static uint32_t wide_panel_tok(uint32_t head_dim)
{
    return head_dim <= 128 ? 256 : 128;
}

/* ---- Tiles ---- */

/* c += a b */
#define TILE_DOT_AS(f16, c, a, b)                                                                  \
    do {                                                                                           \
        if (f16)                                                                                   \
            __asm__ volatile("tdpfp16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::);                   \
        else                                                                                       \
            TILE_DOT(c, a, b);                                                                     \
    } while (0)

/* See attn_wide_tmpl.h. */
ATTN_HALF void half_block(const struct attn_half_block *x, uint32_t n_col, bool add, bool f16)
{
    const bool two = n_col == 32;
    const uint8_t *a = x->a, *b = x->b;
    uint8_t *second = x->c + x->c_row;
    if (add) {
        TILE_LOAD(0, x->c, x->c_stride);
        if (two) TILE_LOAD(1, x->c + x->c_next, x->c_stride);
        TILE_LOAD(2, second, x->c_stride);
        if (two) TILE_LOAD(3, second + x->c_next, x->c_stride);
    } else {
        TILE_ZERO(0);
        if (two) TILE_ZERO(1);
        TILE_ZERO(2);
        if (two) TILE_ZERO(3);
    }
    for (uint32_t i = 0; i < x->n_tile; i++, a += TILE_BYTES, b += x->b_tile) {
        TILE_LOAD(4, a, 64);
        TILE_LOAD(6, b, 64);
        TILE_DOT_AS(f16, 0, 4, 6);
        if (two) {
            TILE_LOAD(7, b + x->b_next, 64);
            TILE_DOT_AS(f16, 1, 4, 7);
        }
        TILE_LOAD(5, a + x->a_row, 64);
        TILE_DOT_AS(f16, 2, 5, 6);
        if (two) TILE_DOT_AS(f16, 3, 5, 7);
    }
    TILE_STORE(0, x->c, x->c_stride);
    if (two) TILE_STORE(1, x->c + x->c_next, x->c_stride);
    TILE_STORE(2, second, x->c_stride);
    if (two) TILE_STORE(3, second + x->c_next, x->c_stride);
}

/* ---- q8 to halves ---- */

/* min + step * code, rounded once to f16. */
ATTN_HALF __m512h q8_value(__m256i code, __m512h step, __m512h min)
{
    return _mm512_fmadd_ph(_mm512_cvtepu16_ph(_mm512_cvtepu8_epi16(code)), step, min);
}

ATTN_HALF void store_half(uint16_t *dst, __m512h v, bool f16)
{
    _mm512_storeu_si512(dst, f16 ? (__m512i)v : attn_bf16_from_f16((__m512i)v));
}

/* Dequantises keys of a sealed q8 page, for a head_dim that is a multiple of 64: quarters hold
 * multiples of 16 channels. */
ATTN_HALF void q8_keys_64(uint16_t *dst, const struct page_geom *g, const uint8_t *page,
                          struct attn_tokens tok, uint32_t d, bool f16)
{
    const uint32_t quarter = d / 4;
    const struct attn_q8_shift shift = attn_q8_shift(16);
    for (uint32_t j = 0; j < quarter; j += 16) {
        /* min and step of channels j .. j + 15 of each quarter, two quarters in a vector */
        __m512h min[2], step[2];
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *m = page + g->k_min + 2 * (j + 2 * i * quarter);
            const uint8_t *s = page + g->k_step + 2 * (j + 2 * i * quarter);
            min[i] = (__m512h)_mm512_inserti64x4(
                _mm512_castsi256_si512(_mm256_loadu_si256((const void *)m)),
                _mm256_loadu_si256((const void *)(m + 2 * quarter)), 1);
            step[i] = (__m512h)_mm512_inserti64x4(
                _mm512_castsi256_si512(_mm256_loadu_si256((const void *)s)),
                _mm256_loadu_si256((const void *)(s + 2 * quarter)), 1);
        }
        for (size_t t = tok.first; t < tok.first + tok.n; t++) {
            const uint8_t *hi2 = page + g->k_hi2 + t * quarter + j;
            const uint8_t *low = page + g->k_low + t * 3 * quarter + j;
            const __m256i lo = _mm256_inserti128_si256(
                _mm256_castsi128_si256(_mm_loadu_si128((const void *)(low + quarter))),
                _mm_loadu_si128((const void *)(low + 2 * quarter)), 1);
            const __m512i code =
                attn_q8_join(&shift, _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)hi2)),
                             _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)low)),
                             _mm512_broadcast_i64x4(lo));
            const __m512h a = q8_value(_mm512_castsi512_si256(code), step[0], min[0]);
            const __m512h b = q8_value(_mm512_extracti64x4_epi64(code, 1), step[1], min[1]);
            uint16_t *row = dst + (t - tok.first) * d + j;
            if (quarter == 16) {
                store_half(row, a, f16);
                store_half(row + 32, b, f16);
                continue;
            }
            const __m512i x = f16 ? (__m512i)a : attn_bf16_from_f16((__m512i)a);
            const __m512i y = f16 ? (__m512i)b : attn_bf16_from_f16((__m512i)b);
            _mm256_storeu_si256((void *)row, _mm512_castsi512_si256(x));
            _mm256_storeu_si256((void *)(row + quarter), _mm512_extracti64x4_epi64(x, 1));
            _mm256_storeu_si256((void *)(row + 2 * quarter), _mm512_castsi512_si256(y));
            _mm256_storeu_si256((void *)(row + 3 * quarter), _mm512_extracti64x4_epi64(y, 1));
        }
    }
}

/* Loads 8 f16 from each of the four quarters. */
ATTN_HALF __m512h load_quarters(const uint8_t *p, size_t quarter_bytes)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + quarter_bytes)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 2 * quarter_bytes)), 2);
    return (__m512h)_mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 3 * quarter_bytes)),
                                       3);
}

/* The same for other head sizes: quarters hold multiples of 8 channels. */
static void q8_keys_32(uint16_t *dst, const struct page_geom *g, const uint8_t *page,
                       struct attn_tokens tok, uint32_t d, bool f16)
{
    const uint32_t quarter = d / 4;
    const struct attn_q8_shift shift = attn_q8_shift(8);
    for (uint32_t j = 0; j < quarter; j += 8) {
        const __m512h min = load_quarters(page + g->k_min + 2 * j, 2 * quarter);
        const __m512h step = load_quarters(page + g->k_step + 2 * j, 2 * quarter);
        for (size_t t = tok.first; t < tok.first + tok.n; t++) {
            const uint8_t *low = page + g->k_low + t * 3 * quarter + j;
            uint64_t hi, mid;
            memcpy(&hi, page + g->k_hi2 + t * quarter + j, 8);
            memcpy(&mid, low, 8);
            const __m128i lo =
                _mm_unpacklo_epi64(_mm_loadl_epi64((const void *)(low + quarter)),
                                   _mm_loadl_epi64((const void *)(low + 2 * quarter)));
            const __m512i code =
                attn_q8_join(&shift, _mm512_set1_epi64((long long)hi),
                             _mm512_set1_epi64((long long)mid), _mm512_broadcast_i32x4(lo));
            const __m512h a = q8_value(_mm512_castsi512_si256(code), step, min);
            const __m512i x = f16 ? (__m512i)a : attn_bf16_from_f16((__m512i)a);
            uint16_t *row = dst + (t - tok.first) * d + j;
            _mm_storeu_si128((void *)row, _mm512_castsi512_si128(x));
            _mm_storeu_si128((void *)(row + quarter), _mm512_extracti32x4_epi32(x, 1));
            _mm_storeu_si128((void *)(row + 2 * quarter), _mm512_extracti32x4_epi32(x, 2));
            _mm_storeu_si128((void *)(row + 3 * quarter), _mm512_extracti32x4_epi32(x, 3));
        }
    }
}

static void half_from_q8_k(uint16_t *dst, const struct page_geom *g, const uint8_t *page,
                           struct attn_tokens tok, bool f16)
{
    const uint32_t d = g->head_dim;
    if (d == 64 && f16)
        q8_keys_64(dst, g, page, tok, 64, true);
    else if (d == 128 && f16)
        q8_keys_64(dst, g, page, tok, 128, true);
    else if (d % 64 == 0)
        q8_keys_64(dst, g, page, tok, d, f16);
    else
        q8_keys_32(dst, g, page, tok, d, f16);
}

ATTN_HALF __m512i half_from_q8_v(const uint8_t *code, uint16_t scale, bool f16)
{
    const __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)code));
    const __m512h v =
        _mm512_mul_ph(_mm512_cvtepi16_ph(x), (__m512h)_mm512_set1_epi16((short)scale));
    return f16 ? (__m512i)v : attn_bf16_from_f16((__m512i)v);
}

#include "ops/cpu/attn_wide_tmpl.h"

void attn_amx_gather_keys(uint16_t *dst, const struct page_geom *g, const struct attn_page *page)
{
    gather_keys(dst, g, page, g->type_k != SAC_KV_BF16);
}

void attn_amx_gather_values(uint16_t *dst, const struct page_geom *g, const struct attn_page *page)
{
    gather_values(dst, g, page, g->type_v != SAC_KV_BF16);
}

/* ---- The two kernels: CPUs with AMX-FP16 and CPUs without ---- */

DEFINE_KERNEL(fp16, true, attn_narrow_amx)
DEFINE_KERNEL(bf16, false, attn_narrow_amx)

/* The same bytes for both kernels. */
static size_t amx_attn_scratch(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                               uint32_t n_row, uint32_t n_tok_max)
{
    return attn_execute_scratch(&fp16_kernel, n_worker, geom, n_head, n_row, n_tok_max);
}

void ops_fill_amx_attn(struct ops *o)
{
    o->attn = detect_features() & DETECT_AMX_FP16 ? fp16_attn : bf16_attn;
    o->attn_scratch = amx_attn_scratch;
}
