/* linear_narrow_amx.c: narrow linear layers for eight rows at once, by tiles of int8.
 *
 * VPDPBUSD needs 16 instructions for a block of 32 inputs, 16 outputs and one row, and is slower
 * than memory from about four rows on. One TDPBSSD multiplies the block with both planes of eight
 * rows: 16 lines of 32 bytes on the left, 8 quad lines of codes on the right. The sums are exact
 * integers, so they equal those of linear_avx512.c, and what follows them is the same arithmetic in
 * the same order: the number of rows in a call does not change a bit.
 *
 * The loop is a pipeline of four stages per block: its codes become signed bytes (8-bit codes are
 * multiplied as they are in memory, and the sums corrected), they are multiplied, the sums are
 * stored from their tile, and are scaled and added. Each stage runs one turn of the loop after the
 * previous one, because stages communicate through memory: a load would wait for a store that is
 * too recent, and a tile that is stored right after its product fills the scheduler with waiting
 * stores. Two groups alternate and share the tile of inputs. The pipeline continues over all chunks
 * of a group.
 *
 * Where the time goes. Storing a tile occupies the decoder for 16 cycles and port 5 for longer; and
 * while tiles are in use, 512-bit multiplications, conversions and shifts share port 0. Bytes are
 * therefore moved by permutations, which port 5 executes. Types with one scale per 16 inputs take
 * two products per block, each with zeros in place of the other half. Weights are prefetched to L2
 * only, and from further ahead than for one row: the few fill buffers of L1 are needed for the data
 * that passes between the stages.
 *
 * Inline assembly, because the compiler does not know what tile instructions read and write: every
 * one names its memory as an operand. */
#include "ops/cpu/linear_narrow.h"
#include "ops/cpu/tile_config.h"

#define ROWS  NARROW_TILE_ROWS
#define LAG   3u    /* iterations from unpacking codes to adding sums */
#define RING  2u    /* blocks in flight between two stages */
#define AHEAD 4096u /* prefetch distance in bytes */

struct sums { /* [plane, row, output] */
    _Alignas(64) int32_t hi[ROWS][WEIGHT_GROUP];
    int32_t lo[ROWS][WEIGHT_GROUP];
};

/* Quad lines of a block. Types with a scale per 16 inputs have zeros in the middle: the right
 * operand of the first half begins at line 0, that of the second half at line 4. */
struct codes {
    _Alignas(64) uint8_t line[12][64];
};

struct codes_tile {
    uint8_t line[8][64];
};

struct inputs_tile {
    int8_t line[2 * ROWS][32];
};

/* Data between the stages of a group. */
struct work {
    struct codes codes[RING];
    struct sums sums[RING][2]; /* [half]; [0] for types with one scale */
};

#define TILE_LOAD(t, from, stride)                                                                 \
    __asm__ volatile("tileloadd (%0,%1), %%tmm" #t                                                 \
                     :                                                                             \
                     : "r"(from), "r"((size_t)(stride)), "m"(*(from)))
#define TILE_STORE(t, to)                                                                          \
    __asm__ volatile("tilestored %%tmm" #t ", (%1,%2)" : "=m"(*(to)) : "r"(to), "r"((size_t)64))
#define TILE_ZERO(t)         __asm__ volatile("tilezero %%tmm" #t : :)
#define TILE_DOT(sum, x, w)  __asm__ volatile("tdpbssd %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :)
#define TILE_DOTU(sum, x, w) __asm__ volatile("tdpbsud %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :)

/* Tiles 0 and 1: sums of two groups; 2 and 3: those of their second halves; 4: inputs; 6 and 7:
 * codes. */
static void tiles_begin(void)
{
    struct tile_config config = {.palette = 1};
    for (uint32_t t = 0; t < 8; t++) {
        config.rows[t] = t < 5 ? 2 * ROWS : 8;
        config.row_bytes[t] = t == 4 ? 32 : 64;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

static void tiles_end(void)
{
    __asm__ volatile("tilerelease");
}

/* Whether tile products read the codes as they are packed. */
INLINE bool is_plain(const struct weight_layout l)
{
    return l.low_bits == 8;
}

/* ---- Stages ---- */

/* The place of a block in the first group. */
struct place {
    const uint8_t *chunk;
    uint32_t b, nb; /* in the chunk */
    uint32_t left;  /* blocks of the group from this one on */
};

INLINE struct place first_place(const uint8_t *chunk, uint32_t n_block)
{
    return (struct place){chunk, 0, n_block < LAYOUT_BLOCKS ? n_block : LAYOUT_BLOCKS, n_block};
}

INLINE void advance(struct place *at, const struct weight_layout l)
{
    at->left--;
    if (++at->b < at->nb) return;
    *at = first_place(at->chunk + layout_full_chunk_bytes(l), at->left);
}

INLINE const uint8_t *codes_at(const struct place *at, const struct weight_layout l)
{
    return at->chunk + layout_scale_bytes(l, at->nb) + at->b * layout_block_bytes(l);
}

INLINE void unpack(struct codes *out, const uint8_t *p, const struct weight_layout l)
{
    if (is_plain(l)) return;
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        _mm512_store_si512(out->line[j < 4 || !layout_halves(l) ? j : j + 4],
                           decode_signed(p, l, j));
}

#define MULTIPLY(dot, t_sum, t_codes, codes)                                                       \
    do {                                                                                           \
        const struct codes_tile *from = (const void *)(codes);                                     \
        TILE_ZERO(t_sum);                                                                          \
        TILE_LOAD(t_codes, from, 64);                                                              \
        dot(t_sum, 4, t_codes);                                                                    \
    } while (0)

/* Multiplies a block; `p` points to its packed codes. */
INLINE void multiply(const struct codes *codes, const struct narrow_tile *x, const uint8_t *p,
                     const uint32_t g, const struct weight_layout l)
{
    if (g == 0) {
        const struct inputs_tile *inputs = (const void *)x->hi;
        TILE_LOAD(4, inputs, 32);
        if (is_plain(l))
            MULTIPLY(TILE_DOTU, 0, 6, p);
        else
            MULTIPLY(TILE_DOT, 0, 6, codes->line[0]);
        if (layout_halves(l)) MULTIPLY(TILE_DOT, 2, 7, codes->line[4]);
    } else {
        if (is_plain(l))
            MULTIPLY(TILE_DOTU, 1, 6, p);
        else
            MULTIPLY(TILE_DOT, 1, 6, codes->line[0]);
        if (layout_halves(l)) MULTIPLY(TILE_DOT, 3, 7, codes->line[4]);
    }
}

INLINE void store(struct sums sums[2], const uint32_t g, const struct weight_layout l)
{
    if (g == 0) {
        TILE_STORE(0, &sums[0]);
        if (layout_halves(l)) TILE_STORE(2, &sums[1]);
    } else {
        TILE_STORE(1, &sums[0]);
        if (layout_halves(l)) TILE_STORE(3, &sums[1]);
    }
}

/* Adds the scaled products of half h of a block: add_part of linear_avx512.c, with sums from
 * memory. */
INLINE void add(__m512 acc[ROWS], const struct sums *sums, const struct narrow_tile *x,
                const struct decoded_scales *w, const uint32_t h, const struct weight_layout l)
{
    const __m512i times_256 = _mm512_broadcast_i32x4(
        _mm_set_epi8(14, 13, 12, -1, 10, 9, 8, -1, 6, 5, 4, -1, 2, 1, 0, -1));
#pragma GCC unroll 8
    for (uint32_t m = 0; m < ROWS; m++) {
        __m512i v = _mm512_shuffle_epi8(_mm512_load_si512(sums->hi[m]), times_256);
        v = _mm512_add_epi32(v, _mm512_load_si512(sums->lo[m]));
        if (is_plain(l)) /* codes are 128 too large */
            v = _mm512_sub_epi32(v, _mm512_set1_epi32(x->isum_128[m]));
        const __m512 scale = _mm512_mul_ps(w->scale[h], _mm512_set1_ps(x->scale[m]));
        acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(v), scale, acc[m]);
        if (!layout_has_min(l)) continue;
        const float sum = layout_halves(l) ? x->half_sum[h][m] : x->sum[m];
        acc[m] = _mm512_fmadd_ps(w->plus[h], _mm512_set1_ps(sum), acc[m]);
    }
}

/* ---- Kernels; `type` and `ng` are constants at every call ---- */

/* Prefetches the bytes AHEAD of offset `at` in the group that is `group` bytes after the first. */
INLINE void prefetch(const struct narrow_tiled *k, size_t at, size_t group, const uint32_t bytes)
{
    const char *p = (const char *)k->w + group + at + AHEAD;
    for (uint32_t i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
}

INLINE void tile_groups(const struct narrow_tiled *k, const enum quant_type type, const uint32_t ng)
{
    const struct weight_layout l = weight_layout_of(type);
    const uint32_t share = layout_full_chunk_bytes(l) / LAYOUT_BLOCKS, n = k->n_block;
    struct place first = first_place(k->w, n), second = first, last = first;
    struct work work[2];
    __m512 acc[2][ROWS];
#pragma GCC unroll 2
    for (uint32_t g = 0; g < ng; g++) {
#pragma GCC unroll 8
        for (uint32_t m = 0; m < ROWS; m++) acc[g][m] = _mm512_setzero_ps();
        for (uint32_t b = 0; b < RING && layout_halves(l); b++)
            memset(work[g].codes[b].line[4], 0, sizeof work[g].codes[b].line[4] * 4);
    }
    for (uint32_t i = 0; i < n + LAG; i++) {
        const struct narrow_tile *x = k->x + i;
#pragma GCC unroll 2
        for (uint32_t g = 0; g < ng; g++) {
            struct work *at = &work[g];
            const size_t group = g * k->group_bytes;
            if (i < n) unpack(&at->codes[i % RING], codes_at(&first, l) + group, l);
            if (i >= 2 && i < n + 2) store(at->sums[(i - 2) % RING], g, l);
            if (i >= LAG) {
                const struct sums *sums = at->sums[(i - LAG) % RING];
                const struct decoded_scales w = decode_scales(last.chunk + group, l, last.b);
                prefetch(k, (size_t)(i - LAG) * share, group, share);
                add(acc[g], &sums[0], x - LAG, &w, 0, l);
                if (layout_halves(l)) add(acc[g], &sums[1], x - LAG, &w, 1, l);
            }
            if (i >= 1 && i < n + 1)
                multiply(&at->codes[(i - 1) % RING], x - 1, codes_at(&second, l) + group, g, l);
        }
        if (i < n) advance(&first, l);
        if (i >= 1 && i < n + 1) advance(&second, l);
        if (i >= LAG) advance(&last, l);
    }
#pragma GCC unroll 2
    for (uint32_t g = 0; g < ng; g++)
#pragma GCC unroll 8
        for (uint32_t m = 0; m < ROWS; m++)
            _mm512_store_ps(k->acc + g * k->acc_stride + 16 * m, acc[g][m]);
}

#define KERNELS(TYPE)                                                                              \
    static void TYPE##_1(const struct narrow_tiled *k)                                             \
    {                                                                                              \
        tile_groups(k, QUANT_##TYPE, 1);                                                           \
    }                                                                                              \
    static void TYPE##_2(const struct narrow_tiled *k)                                             \
    {                                                                                              \
        tile_groups(k, QUANT_##TYPE, 2);                                                           \
    }

KERNELS(Q4_0)
KERNELS(Q4_1)
KERNELS(Q5_0)
KERNELS(Q5_1)
KERNELS(Q8_0)
KERNELS(Q2_K)
KERNELS(Q3_K)
KERNELS(Q4_K)
KERNELS(Q5_K)
KERNELS(Q6_K)
KERNELS(IQ4_NL)
KERNELS(IQ4_XS)

#define ROW(TYPE) [QUANT_##TYPE] = {TYPE##_1, TYPE##_2}

/* [type][groups - 1] */
static const narrow_tiled_fn kernels[QUANT_BF16 + 1][2] = {
    ROW(Q4_0), ROW(Q4_1), ROW(Q5_0), ROW(Q5_1), ROW(Q8_0),   ROW(Q2_K),
    ROW(Q3_K), ROW(Q4_K), ROW(Q5_K), ROW(Q6_K), ROW(IQ4_NL), ROW(IQ4_XS)};

static const struct narrow_tiles tiles = {
    .begin = tiles_begin, .end = tiles_end, .kernel = kernels};

/* Four streams, because the CPU does not prefetch a single one at the full rate. */
static const struct narrow_set set = {.reading = {{4, 2048}, {4, 2048}, {4, 2048}, {4, 2048}},
                                      .tiles = &tiles};

void linear_narrow_amx(struct workers *pool, const struct op_linear *op)
{
    linear_narrow_run(pool, op, &set);
}
