/* attn_narrow_avx512.c: decode attention in f32 with vectors of 16 lanes; attn_f32.h holds the
 * algorithms. */
#include "ops/cpu/attn.h"
#include "ops/cpu/attn_avx512.h"
#include "ops/cpu/attn_q8.h"
#include "ops/cpu/attn_q8_avx2.h"
#include "ops/cpu/attn_vec.h"

#include <immintrin.h>
#include <math.h>

typedef __m512 vec;
#define VEC     16u
#define KEYS    8u
#define CHANS   8u
#define TILE_Q  448u
#define v_zero  _mm512_setzero_ps
#define v_set1  _mm512_set1_ps
#define v_load  _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_add   _mm512_add_ps
#define v_sub   _mm512_sub_ps
#define v_mul   _mm512_mul_ps
#define v_div   _mm512_div_ps
#define v_max   _mm512_max_ps
#define v_min   _mm512_min_ps
#define v_fma   _mm512_fmadd_ps
#define v_floor _mm512_floor_ps
#define v_sums  attn_sums

static inline vec v_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}

static inline vec v_scale2(vec p, vec n)
{
    const __mmask16 normal = _mm512_cmp_ps_mask(n, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(normal, p, n);
}

static inline bool v_any_gt(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}

static inline vec v_unless_lt(vec a, vec b, vec y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), y);
}

static inline vec v_seen(vec y, int32_t at, const int32_t *lo, const int32_t *hi)
{
    const __m512i x = _mm512_set1_epi32(at);
    const __mmask16 seen = _mm512_cmple_epi32_mask(_mm512_loadu_si512(lo), x) &
                           _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(hi), x);
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, y);
}

static void f32_from_half(float *dst, const uint8_t *src, size_t n, bool bf16)
{
    if (bf16)
        for (size_t i = 0; i < n; i += 16) {
            const __m256i x = _mm256_loadu_si256((const void *)(src + 2 * i));
            _mm512_storeu_si512(dst + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
        }
    else
        for (size_t i = 0; i < n; i += 16)
            _mm512_storeu_ps(dst + i,
                             _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(src + 2 * i))));
}

static void f32_from_q8_k(float *dst, const struct page_geom *g, const uint8_t *page,
                          struct attn_tokens tok)
{
    const uint32_t d = g->head_dim, quarter = d / 4;
    if (quarter % 16 != 0) {
        attn_q8_by_eights(dst, g, page, tok);
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
                _mm512_storeu_ps(dst + (t - tok.first) * d + i * quarter + j,
                                 _mm512_fmadd_ps(x, step[i], min[i]));
            }
        }
    }
}

#include "ops/cpu/attn_f32.h"

size_t attn_narrow_avx512_bytes(const struct page_geom *g, uint32_t group)
{
    return f32_kernel.narrow_bytes(g, group);
}

void attn_narrow_avx512(const struct attn_chunk *c)
{
    (void)f32_attn, (void)f32_attn_scratch;
    f32_kernel.narrow(c);
}
