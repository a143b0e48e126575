/* dots_avx512.c: dot products of rows with rows, 4 x 4 products at a time.
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

/* out[i][j] = a[i] . b[j] for a block of SIDE x SIDE. */
static inline void block(float out[SIDE][SIDE], const float *const a[SIDE],
                         const float *const b[SIDE], uint32_t width)
{
    __m512 sum[SIDE * SIDE];
    for (uint32_t i = 0; i < SIDE * SIDE; i++) sum[i] = _mm512_setzero_ps();
    for (uint32_t c = 0; c < width; c += LANES) {
        __m512 x[SIDE];
        for (uint32_t j = 0; j < SIDE; j++) x[j] = _mm512_loadu_ps(b[j] + c);
        for (uint32_t i = 0; i < SIDE; i++) {
            const __m512 y = _mm512_loadu_ps(a[i] + c);
            for (uint32_t j = 0; j < SIDE; j++)
                sum[i * SIDE + j] = _mm512_fmadd_ps(y, x[j], sum[i * SIDE + j]);
        }
    }
    _mm512_storeu_ps(&out[0][0], sum_each(sum));
}

/* SIDE rows from row `i`; behind the last one it comes again. */
static inline void row_pointers(const float *row[SIDE], const float *base, size_t stride,
                                uint32_t i, uint32_t n)
{
    for (uint32_t s = 0; s < SIDE; s++) row[s] = base + (i + s < n ? i + s : n - 1) * stride;
}

static void dots_avx512(const struct op_dots *op)
{
    assert(op->width % LANES == 0);
    for (uint32_t j = 0; j < op->n_b; j += SIDE) {
        const float *b[SIDE];
        row_pointers(b, op->b, op->b_stride, j, op->n_b);
        for (uint32_t i = 0; i < op->n_a; i += SIDE) {
            const float *a[SIDE];
            float result[SIDE][SIDE];
            row_pointers(a, op->a, op->a_stride, i, op->n_a);
            block(result, a, b, op->width);
            for (uint32_t r = 0; r < SIDE && i + r < op->n_a; r++)
                for (uint32_t s = 0; s < SIDE && j + s < op->n_b; s++)
                    op->out[(i + r) * op->out_stride + j + s] = result[r][s];
        }
    }
}

void ops_fill_avx512_dots(struct ops *o)
{
    o->dots = dots_avx512;
}
