/* dots_amx.c: dot products of rows with rows in AMX tiles of bf16.
 *
 * A number x is split into hi + lo, two bf16, and a product into hi hi + hi lo + lo hi. What is
 * left out is 2^-16 of the product, so three tile products, of which a core computes sixteen times
 * as many as vector products, give nearly the accuracy of f32. As many rows of `b` as fit L2 are
 * split and stored in the layout of a B tile, in which a row is two neighbouring channels of 16
 * rows of `b`. Then 32 rows of `a` at a time are split and stream past them. Neither matrix is
 * split twice unless both are large. If rows of `a` are bf16, they are tiles as they are: nothing
 * is packed, and there are two products.
 *
 * Every element is summed in the order of the channels, whatever its place in a tile. Wide rows
 * would not fit the stack: they use the AVX-512 slot. */
#include "ops/cpu/fill.h"
#include "ops/cpu/tiles.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#define TILE      16u
#define SIDE      OP_DOTS_ROWS /* rows of either matrix in a block of tiles */
#define STEP      32u          /* channels of a tile product */
#define WIDTH_MAX 2048u
#define B_STEPS   8192u /* rows of `b` times steps of STEP channels that are kept: 1 MiB */

/* Products of a 2 x 2 block of tiles, with a in 4 and 5, b in 6 and 7. */
#define TILE_DOT_ALL()                                                                             \
    do {                                                                                           \
        TILE_DOT(0, 4, 6);                                                                         \
        TILE_DOT(1, 4, 7);                                                                         \
        TILE_DOT(2, 5, 6);                                                                         \
        TILE_DOT(3, 5, 7);                                                                         \
    } while (0)

/* Splits n numbers, at most 32, into hi + lo in bf16. */
static inline void split(__m512i *hi, __m512i *lo, const float *x, uint32_t n)
{
    const __m512 a = _mm512_loadu_ps(x);
    const __m512 b = n > TILE ? _mm512_loadu_ps(x + TILE) : _mm512_setzero_ps();
    *hi = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(*hi));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(*hi, 1));
    *lo = (__m512i)_mm512_cvtne2ps_pbh(
        _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16))),
        _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16))));
}

struct pack {
    _Alignas(64) uint16_t a[2][SIDE * WIDTH_MAX]; /* hi, lo: [SIDE, padded width] */
    _Alignas(
        64) uint8_t b[B_STEPS / SIDE][4][TILE_BYTES]; /* hi of two times 16 rows, lo of these */
};

/* Splits SIDE rows of `a`; missing rows are zeros. */
static void pack_a(struct pack *p, const struct op_dots *op, uint32_t row, uint32_t padded)
{
    for (uint32_t i = 0; i < SIDE; i++)
        for (uint32_t c = 0; c < padded; c += STEP) {
            __m512i hi = _mm512_setzero_si512(), lo = hi;
            if (row + i < op->n_a)
                split(&hi, &lo, op->a + (row + i) * op->a_stride + c, op->width - c);
            _mm512_store_si512(p->a[0] + i * padded + c, hi);
            _mm512_store_si512(p->a[1] + i * padded + c, lo);
        }
}

static void pack_b(uint8_t (*out)[4][TILE_BYTES], const struct op_dots *op, uint32_t row,
                   uint32_t padded)
{
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t c = 0; c < padded; c += STEP) {
            __m512i hi[16], lo[16];
            for (uint32_t t = 0; t < TILE; t++) {
                const uint32_t j = row + half * TILE + t;
                hi[t] = lo[t] = _mm512_setzero_si512();
                if (j < op->n_b) split(&hi[t], &lo[t], op->b + j * op->b_stride + c, op->width - c);
            }
            tiles_transpose(hi);
            tiles_transpose(lo);
            memcpy(out[c / STEP][half], hi, sizeof hi);
            memcpy(out[c / STEP][2 + half], lo, sizeof lo);
        }
}

/* A block of products: SIDE rows of `a`, [SIDE, padded] in bf16, and packed rows of `b`. */
struct block {
    const uint16_t *hi, *lo;
    const uint8_t (*b)[4][TILE_BYTES];
    uint32_t padded;
};

static void store_sums(float *out, size_t out_stride)
{
    const size_t stride = out_stride * sizeof(float);
    uint8_t *to = (uint8_t *)out;
    TILE_STORE(0, to, stride);
    TILE_STORE(1, to + 64, stride);
    TILE_STORE(2, to + TILE * stride, stride);
    TILE_STORE(3, to + TILE * stride + 64, stride);
}

/* The same at an edge, where n_a x n_b sums are valid. */
static void store_edge(float *out, size_t out_stride, uint32_t n_a, uint32_t n_b)
{
    _Alignas(64) float whole[SIDE * SIDE];
    if (n_a >= SIDE && n_b >= SIDE) {
        store_sums(out, out_stride);
        return;
    }
    store_sums(whole, SIDE);
    const uint32_t lanes = n_b < SIDE ? (1u << n_b) - 1 : UINT32_MAX;
    for (uint32_t r = 0; r < n_a && r < SIDE; r++) {
        const float *from = whole + r * SIDE;
        _mm512_mask_storeu_ps(out + r * out_stride, (__mmask16)lanes, _mm512_load_ps(from));
        if (lanes >> TILE)
            _mm512_mask_storeu_ps(out + r * out_stride + TILE, (__mmask16)(lanes >> TILE),
                                  _mm512_load_ps(from + TILE));
    }
}

static void zero_sums(void)
{
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
}

static void multiply(const struct block *block)
{
    const size_t stride = block->padded * sizeof(uint16_t), below = TILE * (size_t)block->padded;
    const uint8_t(*b)[4][TILE_BYTES] = block->b;
    zero_sums();
    for (uint32_t c = 0; c < block->padded; c += STEP, b++) {
        TILE_LOAD(6, (*b)[0], 64);
        TILE_LOAD(7, (*b)[1], 64);
        TILE_LOAD(4, block->lo + c, stride);
        TILE_LOAD(5, block->lo + c + below, stride);
        TILE_DOT_ALL();
        TILE_LOAD(4, block->hi + c, stride);
        TILE_LOAD(5, block->hi + c + below, stride);
        TILE_DOT_ALL();
        TILE_LOAD(6, (*b)[2], 64);
        TILE_LOAD(7, (*b)[3], 64);
        TILE_DOT_ALL();
    }
}

/* Products of all rows of `a` with rows j .. end - 1 of `b`, which are packed. */
static void multiply_rows(struct pack *p, const struct op_dots *op, uint32_t j, uint32_t end,
                          uint32_t padded)
{
    for (uint32_t i = 0; i < op->n_a; i += SIDE) {
        struct block block = {.hi = p->a[0], .lo = p->a[1], .b = p->b, .padded = padded};
        pack_a(p, op, i, padded);
        for (uint32_t k = j; k < end; k += SIDE, block.b += padded / STEP) {
            multiply(&block);
            store_edge(op->out + i * op->out_stride + k, op->out_stride, op->n_a - i, end - k);
        }
    }
}

static void dots_tiles(const struct op_dots *op)
{
    const uint32_t padded = (op->width + STEP - 1) & ~(STEP - 1), n_step = padded / STEP;
    const uint32_t n_kept = B_STEPS / n_step / SIDE * SIDE;
    struct pack p;
    tiles_begin();
    for (uint32_t j = 0; j < op->n_b; j += n_kept) {
        const uint32_t end = op->n_b - j < n_kept ? op->n_b : j + n_kept;
        for (uint32_t k = j; k < end; k += SIDE)
            pack_b(p.b + (k - j) / SIDE * n_step, op, k, padded);
        multiply_rows(&p, op, j, end, padded);
    }
    tiles_end();
}

static void dots_amx(const struct op_dots *op)
{
    assert(op->width % TILE == 0);
    if (op->width > WIDTH_MAX)
        dots_avx512_run(op);
    else
        dots_tiles(op);
}

static void multiply_bf16(const uint16_t *a, size_t a_stride, const uint16_t *b, uint32_t width)
{
    const size_t stride = a_stride * sizeof *a;
    zero_sums();
    for (uint32_t c = 0; c < width; c += STEP, b += 2 * TILE * STEP) {
        TILE_LOAD(6, b, 64);
        TILE_LOAD(7, b + TILE * STEP, 64);
        TILE_LOAD(4, a + c, stride);
        TILE_LOAD(5, a + c + TILE * a_stride, stride);
        TILE_DOT_ALL();
    }
}

static void dots_bf16_amx(const struct op_dots_bf16 *op)
{
    assert(op->width % STEP == 0);
    tiles_begin();
    for (uint32_t i = 0; i < op->n_a; i += SIDE)
        for (uint32_t j = 0; j < op->n_b; j += SIDE) {
            multiply_bf16(op->a + i * op->a_stride, op->a_stride, op->b + (size_t)j * op->width,
                          op->width);
            store_edge(op->out + i * op->out_stride + j, op->out_stride, op->n_a - i, op->n_b - j);
        }
    tiles_end();
}

void ops_fill_amx_dots(struct ops *o)
{
    o->dots = dots_amx;
    o->dots_bf16 = dots_bf16_amx;
}
