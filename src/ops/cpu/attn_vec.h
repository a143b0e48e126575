/* attn_vec.h: operations on vectors of 16 floats for attention, for files compiled with AVX-512
 * (private). */
#ifndef SAC_OPS_CPU_ATTN_VEC_H
#define SAC_OPS_CPU_ATTN_VEC_H

#include "ops/cpu/math_avx512.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTN_VEC static inline __attribute__((always_inline))

/* cap * tanh(x / cap), tanh z = 1 - 2 / (1 + e^2z); saturates without overflow. */
ATTN_VEC __m512 attn_softcap(__m512 x, float cap)
{
    const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(2.0f * (float)M_LOG2E / cap));
    const __m512 limit = _mm512_set1_ps(64.0f);
    /* min(limit, y) returns its second operand, y, if y is NaN. */
    const __m512 e =
        math_exp2_cubic(_mm512_max_ps(_mm512_set1_ps(-64.0f), _mm512_min_ps(limit, y)));
    const __m512 q = _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
    return _mm512_mul_ps(_mm512_set1_ps(cap), _mm512_sub_ps(_mm512_set1_ps(1.0f), q));
}

/* Loads 16 f16 as f32. */
ATTN_VEC __m512 attn_load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

/* Horizontal sums: lane i is the sum of the lanes of r[i]. Adds halves of neighbours until each
 * lane holds a sum. */
ATTN_VEC __m512 attn_sums(const __m512 r[16])
{
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) /* rows i and i + 8: 128-bit lanes (0+2, 1+3) of each */
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(r[i], r[i + 8], 0x44),
                             _mm512_shuffle_f32x4(r[i], r[i + 8], 0xee));
    for (int i = 0; i < 4; i++) /* rows i, i+4, i+8, i+12: one 128-bit lane of each */
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),
                             _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    for (int i = 0; i < 2; i++) /* in each lane: two halves of row i + .. and of row i + 2 + .. */
        c[i] =
            _mm512_add_ps(_mm512_unpacklo_ps(b[i], b[i + 2]), _mm512_unpackhi_ps(b[i], b[i + 2]));
    const __m512 sum =
        _mm512_add_ps(_mm512_unpacklo_ps(c[0], c[1]), _mm512_unpackhi_ps(c[0], c[1]));
    /* lanes of b are rows i, i+8, i+4, i+12; inside a lane c gives i, i+1, i+2, i+3 */
    return _mm512_shuffle_f32x4(sum, sum, 0xd8);
}

/* Loads 16 bytes of each of rows 0, 4, 8 and 12. */
ATTN_VEC __m512i attn_quarter_rows(const uint8_t *p, size_t stride)
{
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(p + 4 * stride)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(p + 8 * stride)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(p + 12 * stride)), 3);
}

/* Transposes 4 by 4 dwords within each 128-bit lane. */
ATTN_VEC void attn_transpose_4x4(__m512i x[4])
{
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, c);
    x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d);
    x[3] = _mm512_unpackhi_epi64(b, d);
}

/* Transposes 16 rows of 16 bytes: dword k of row i becomes lane i of x[k]. Loading rows 0, 4, 8, 12
 * together saves half of the shuffles of the textbook network. */
ATTN_VEC void attn_dword_lanes(__m512i x[4], const uint8_t *p, size_t stride)
{
    for (uint32_t i = 0; i < 4; i++) x[i] = attn_quarter_rows(p + i * stride, stride);
    attn_transpose_4x4(x);
}

/* Transposes 16 rows of 64 bytes: dword i of each becomes row i of a tile. */
ATTN_VEC void attn_transpose(uint8_t *dst, const uint8_t *src, size_t stride)
{
    for (uint32_t c = 0; c < 64; c += 16) {
        __m512i x[4];
        attn_dword_lanes(x, src + c, stride);
        for (uint32_t i = 0; i < 4; i++) _mm512_store_si512(dst + (c + 4 * i) * (size_t)16, x[i]);
    }
}

#endif
