/* attn_half.h: building blocks of attention in products of 16-bit floats, for files compiled with
 * AVX-512 (private).
 *
 * A tile is 16 consecutive rows of 64 bytes. An A tile has 16 rows and 32 columns of its matrix. A
 * B tile has 32 rows and 16 columns: dword j of its row i holds rows 2i and 2i + 1 of column j. A C
 * tile holds f32. */
#ifndef SAC_OPS_CPU_ATTN_HALF_H
#define SAC_OPS_CPU_ATTN_HALF_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTN_HALF static inline __attribute__((always_inline))

/* A product of 32 rows of A with 32 or 16 columns of B. Offsets are in bytes. */
struct attn_half_block {
    const uint8_t *a, *b;
    size_t a_row;          /* from an A tile to that of the next 16 rows */
    size_t b_tile, b_next; /* from a B tile to that of the next 32 rows; of the next 16 columns */
    uint32_t n_tile;       /* tiles of a row of A, consecutive in memory */
    uint8_t *c;
    size_t c_stride;      /* from a row of C to the next */
    size_t c_row, c_next; /* from a C tile to the next 16 rows; to the next 16 columns */
};

ATTN_HALF __m512i attn_half_from_f32(__m512 lo, __m512 hi, bool f16)
{
    if (f16) {
        const __m256i a = _mm512_cvtps_ph(lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256i b = _mm512_cvtps_ph(hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    }
    return (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
}

/* Converts 32 f16 to bf16, for CPUs without products of f16. */
ATTN_HALF __m512i attn_bf16_from_f16(__m512i h)
{
    return attn_half_from_f32(_mm512_cvtph_ps(_mm512_castsi512_si256(h)),
                              _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)), false);
}

/* The lower or upper half of a vector of 32 bf16, as f32. */
ATTN_HALF __m512 attn_f32_from_bf16(__m512i h, int upper)
{
    const __m256i x = upper ? _mm512_extracti64x4_epi64(h, 1) : _mm512_castsi512_si256(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

#endif
