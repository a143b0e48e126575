/* linear_narrow_amx.c: narrow linear layers for eight rows at once, by tiles of int8.
 *
 * VPDPBUSD spends 16 instructions on a block of 32 inputs, 16 outputs and one row, and is slower
 * than memory from about four rows on. One TDPBSSD multiplies the block with both planes of eight
 * rows: 16 lines of 32 bytes on the left, 8 quad lines of codes on the right. The sums are exact
 * integers, so they are those of linear_avx512.c, and what follows them is the same arithmetic in
 * the same order: how many rows are in a call does not change a bit.
 *
 * A block goes through three steps, codes to bytes, tiles, sums to f32. What one step stores the
 * next loads through memory, and a load too soon behind its store would wait for it: while block b
 * comes to bytes, b - 1 is multiplied and b - LAG summed. Types with a scale for 16 inputs take two
 * products to a block. Weights are prefetched to L2 only, and from further away than for one row:
 * the few buffers of L1 are needed for all that passes between the steps.
 *
 * Inline assembly, as the compiler knows nothing of what tile instructions read and write: every
 * one names its memory as an operand. */
#include "ops/cpu/linear_narrow.h"

#define ROWS  NARROW_TILE_ROWS
#define LAG   3u    /* blocks that sums are behind */
#define AHEAD 4096u /* prefetch distance in bytes */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

struct sums { /* [plane, row, output] */
    _Alignas(64) int32_t hi[ROWS][WEIGHT_GROUP];
    int32_t lo[ROWS][WEIGHT_GROUP];
};

/* Quad lines of a block. Types with a scale for 16 inputs have zeros where the other half would be:
 * the right operand of the first half begins at line 0, that of the second at line 4. */
struct codes {
    _Alignas(64) uint8_t line[12][64];
};

struct codes_tile {
    uint8_t line[8][64];
};

/* What lies between the steps of a chunk. */
struct work {
    struct codes codes[LAYOUT_BLOCKS];
    struct sums sums[LAYOUT_BLOCKS][2]; /* of the halves, or [0] */
};

#define TILE_LOAD(t, from, stride)                                                                 \
    __asm__ volatile("tileloadd (%0,%1), %%tmm" #t                                                 \
                     :                                                                             \
                     : "r"(from), "r"((size_t)(stride)), "m"(*(from)))
#define TILE_STORE(t, to)                                                                          \
    __asm__ volatile("tilestored %%tmm" #t ", (%1,%2)" : "=m"(*(to)) : "r"(to), "r"((size_t)64))
#define TILE_ZERO(t)        __asm__ volatile("tilezero %%tmm" #t : :)
#define TILE_DOT(sum, x, w) __asm__ volatile("tdpbssd %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :)

/* Tiles 0 and 1: sums, 2 and 3: inputs, 4 and 5: codes. */
static void tiles_begin(void)
{
    struct tile_config config = {.palette = 1};
    for (uint32_t t = 0; t < 6; t++) {
        config.rows[t] = t < 4 ? 2 * ROWS : 8;
        config.row_bytes[t] = t == 2 || t == 3 ? 32 : 64;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

static void tiles_end(void)
{
    __asm__ volatile("tilerelease");
}

/* The planes' sums of codes times inputs. */
#define MULTIPLY(out, t_sum, x, t_x, codes, t_codes)                                               \
    do {                                                                                           \
        TILE_ZERO(t_sum);                                                                          \
        TILE_LOAD(t_x, x, 32);                                                                     \
        TILE_LOAD(t_codes, codes, 64);                                                             \
        TILE_DOT(t_sum, t_x, t_codes);                                                             \
        TILE_STORE(t_sum, out);                                                                    \
    } while (0)

/* A block's codes as signed bytes: less their offset, which sums of eight rows would have to be
 * rid of one by one. */
INLINE void unpack(struct codes *out, const uint8_t *p, const struct weight_layout l)
{
    const int log_offset = narrow_log_offset(l);
    const __m512i offset = _mm512_set1_epi8((char)(log_offset < 0 ? 0 : 1 << log_offset));
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        _mm512_store_si512(out->line[j < 4 || !decode_halves(l) ? j : j + 4],
                           _mm512_sub_epi8(decode_quad(p, l, j), offset));
    if (!decode_halves(l)) return;
#pragma GCC unroll 4
    for (int j = 4; j < 8; j++) _mm512_store_si512(out->line[j], _mm512_setzero_si512());
}

/* The products of block b. */
INLINE void multiply_block(struct work *work, const struct narrow_chunk *c, uint32_t b,
                           const struct weight_layout l)
{
    const struct narrow_tile *x = c->tile + b;
    const struct codes_tile *codes = (const void *)work->codes[b].line[0];
    const struct codes_tile *second = (const void *)work->codes[b].line[4];
    MULTIPLY(&work->sums[b][0], 0, x, 2, codes, 4);
    if (decode_halves(l)) MULTIPLY(&work->sums[b][1], 1, x, 3, second, 5);
}

/* Adds what one scale of block b belongs to: add_part of linear_avx512.c, with sums from memory. */
INLINE void add_sums(__m512 acc[ROWS], const struct narrow_chunk *c, const struct sums *sums,
                     uint32_t b, const uint32_t h, const struct weight_layout l)
{
    const struct decoded_scales w = decode_scales(c->w, l, b);
    const struct narrow_block *a = c->act + b;
#pragma GCC unroll 8
    for (uint32_t m = 0; m < ROWS; m++, a += c->stride) {
        const __m512i hi = _mm512_load_si512(sums->hi[m]);
        const __m512i lo = _mm512_load_si512(sums->lo[m]);
        const __m512i v = _mm512_add_epi32(_mm512_slli_epi32(hi, 7), lo);
        const __m512 scale = _mm512_mul_ps(w.scale[h], _mm512_set1_ps(a->scale));
        acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(v), scale, acc[m]);
        if (!decode_has_plus(l)) continue;
        const float sum = decode_halves(l) ? a->half_sum[h] : a->sum;
        acc[m] = _mm512_fmadd_ps(w.plus[h], _mm512_set1_ps(sum), acc[m]);
    }
}

INLINE void tile_chunk(const struct narrow_chunk *c, const enum quant_type type)
{
    const struct weight_layout l = weight_layout_of(type);
    const uint32_t share = layout_full_chunk_bytes(l) / LAYOUT_BLOCKS;
    const uint8_t *p = c->w + layout_scale_bytes(l, c->nb);
    struct work work;
    __m512 acc[ROWS];
#pragma GCC unroll 8
    for (uint32_t m = 0; m < ROWS; m++) acc[m] = _mm512_load_ps(c->acc + 16 * m);
    for (uint32_t i = 0; i < c->nb + LAG; i++) {
        if (i < c->nb) unpack(&work.codes[i], p + (size_t)i * layout_block_bytes(l), l);
        if (i >= 1 && i <= c->nb) multiply_block(&work, c, i - 1, l);
        if (i < LAG) continue;
        const uint32_t b = i - LAG;
        const char *ahead = narrow_ahead(c, b * share, AHEAD);
        for (uint32_t k = 0; k < share; k += 64) _mm_prefetch(ahead + k, _MM_HINT_T1);
        add_sums(acc, c, &work.sums[b][0], b, 0, l);
        if (decode_halves(l)) add_sums(acc, c, &work.sums[b][1], b, 1, l);
    }
#pragma GCC unroll 8
    for (uint32_t m = 0; m < ROWS; m++) _mm512_store_ps(c->acc + 16 * m, acc[m]);
}

#define KERNEL(TYPE)                                                                               \
    static void TYPE##_tiled(const struct narrow_chunk *c)                                         \
    {                                                                                              \
        tile_chunk(c, QUANT_##TYPE);                                                               \
    }

KERNEL(Q4_0)
KERNEL(Q4_1)
KERNEL(Q5_0)
KERNEL(Q5_1)
KERNEL(Q8_0)
KERNEL(Q2_K)
KERNEL(Q3_K)
KERNEL(Q4_K)
KERNEL(Q5_K)
KERNEL(Q6_K)
KERNEL(IQ4_NL)
KERNEL(IQ4_XS)

#define ROW(TYPE) [QUANT_##TYPE] = TYPE##_tiled

static const narrow_fn kernels[QUANT_BF16 + 1] = {ROW(Q4_0), ROW(Q4_1), ROW(Q5_0),   ROW(Q5_1),
                                                  ROW(Q8_0), ROW(Q2_K), ROW(Q3_K),   ROW(Q4_K),
                                                  ROW(Q5_K), ROW(Q6_K), ROW(IQ4_NL), ROW(IQ4_XS)};

void linear_narrow_amx(struct workers *pool, const struct op_linear *op)
{
    linear_narrow_run(
        pool, op,
        &(struct narrow_tiles){.begin = tiles_begin, .end = tiles_end, .kernel = kernels});
}
