/* linear_amx.c: linear layers of many rows in AMX tiles; few rows use linear_avx512.c.
 *
 * The input is rounded to 16 bits and laid out in tiles once per call. A worker processes its
 * columns (groups of 16 outputs) in pairs; for a GLU a pair is a group of gate and the same group
 * of up. The weights of a pair are dequantised to a panel of tiles, and the rows (up to ROWS_PASS)
 * stream past it, 32 at a time. Their sums stay in registers over the whole panel. The panel's
 * tiles come from L1 as far as they fit, those of the input from L2 by loads that bypass L1. What
 * does not fit L2 is cut into ranges of inputs, between which sums are kept in memory. Workers keep
 * to their own rows as long as there are enough passes for them: storing an output line that
 * another core wrote or read last costs more than its products.
 *
 * Between the products, the vector units dequantise the next panel and finish the previous rows: a
 * tile over four blocks, some rows after each. The core does not look ahead far enough to
 * interleave larger pieces by itself, and every additional instruction shortens its view: hence a
 * function for each type and each kind of epilogue, without branches inside. Outputs of a GLU that
 * only the next layer reads (keep_y) are stored as the tiles that it needs, rounded as it would
 * round them.
 *
 * Precision. f16 where the CPU multiplies it (TDPFP16PS), which has 3 bits more than bf16. Powers
 * of two make its range sufficient: each input row is scaled so that its largest magnitude lies in
 * 2^14..2^15, each weight row by its `shrink`; the sum is scaled back. What falls below f16 is thus
 * at most 2^-39 of the row's maximum. bf16 has the range of f32 and is not scaled. A weight is d *
 * v + m rounded once (d * s of K types once more). Sums are f32 in the tiles. A row with an
 * infinity or NaN has no finite outputs; other rows are not affected.
 *
 * Order, the same for every n_row and split: blocks of 32 inputs in ascending order; within a block
 * what TDPFP16PS does with the pairs of inputs (4j, 4j + 2), (4j + 1, 4j + 3).
 *
 * Layouts. A tile is 1 KiB, contiguous: input [16 rows][32 inputs], the inputs in the order of
 * pairs above; weights [16 pairs][16 outputs][2]; sums [16 rows][16 outputs] f32. Rows and columns
 * are stored as pairs of tiles, block by block: [blocks][2]. Tile registers: sums 0..3, inputs 4
 * and 5, weights 6 and 7. The compiler does not know them; each asm is volatile, and names the
 * memory that it accesses. */
#include "base/minmax.h"
#include "ops/cpu/detect.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/linear_bf16.h"
#include "ops/cpu/tile_config.h"

#include <stdatomic.h>
#include <string.h>

#define TILE      16u  /* rows of a tile, columns of sums */
#define ROWS_PASS 256u /* of a pass over the weights: its input and sums fit the L2 of a worker */
#define WHOLE_MAX 8u   /* maximum chunks of the only range: 1 MiB of inputs for ROWS_PASS rows */
#define RANGE_MAX 6u   /* maximum chunks of each of several ranges: L2 holds sums as well */
#define STRIP_GLU 2u   /* pairs of columns of a strip: 32 outputs of a GLU, a cache line of bf16 */
#define STRIP_MAX 12u  /* the same with several ranges: each strip reads the input from L3 */

struct tile {
    uint8_t bytes[1024];
};

/* 2 by 2 tiles of sums: 32 rows of two columns. */
struct sums {
    struct tile at[2][2]; /* [column][row tile] */
};

/* Order of the tiles of an input: [ranges of blocks][pairs of row tiles][blocks of the range][2].
 * All ranges but the last have range_blocks. */
struct shape {
    uint32_t n_row2, n_block, range_blocks;
};

/* The next strip of a pass. Padded to a cache line against false sharing. */
struct queue {
    _Atomic uint32_t next;
    char pad[64 - sizeof(_Atomic uint32_t)];
};

struct job {
    const struct op_linear *op;
    bool f16;             /* else bf16 */
    struct shape in, out; /* of x, and of y if it is stored as tiles */
    uint32_t n_range;
    uint32_t n_pair, strip_pairs; /* pairs of columns */
    uint32_t n_pass, n_strip;     /* passes of rows, strips of each */
    struct queue *queue;          /* [n_pass] */
    const struct tile *x;
    struct tile *y;      /* NULL: y is stored as f32 */
    float *unscale;      /* [n_row2 * 32] inverse powers of two */
    uint8_t *per_worker; /* [n_worker][worker_bytes] */
};

/* ---- Tile instructions ---- */

#define TILE_CONFIG(config) __asm__ volatile("ldtilecfg %0" : : "m"(config))
#define TILE_RELEASE()      __asm__ volatile("tilerelease")
#define TILE_ZERO(t)        __asm__ volatile("tilezero %%tmm" #t : :)
#define TILE_LOAD(t, from)                                                                         \
    __asm__ volatile("tileloadd (%0,%1), %%tmm" #t : : "r"(from), "r"((size_t)64), "m"(*(from)))
/* Bypasses L1: for data that is not used again soon. */
#define TILE_LOAD_ONCE(t, from)                                                                    \
    __asm__ volatile("tileloaddt1 (%0,%1), %%tmm" #t : : "r"(from), "r"((size_t)64), "m"(*(from)))
#define TILE_STORE(t, to)                                                                          \
    __asm__ volatile("tilestored %%tmm" #t ", (%1,%2)" : "=m"(*(to)) : "r"(to), "r"((size_t)64))
#define TILE_FMA(f16, sum, x, w)                                                                   \
    do {                                                                                           \
        if (f16)                                                                                   \
            __asm__ volatile("tdpfp16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :);                \
        else                                                                                       \
            __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :);                \
    } while (0)

static void tiles_begin(void)
{
    struct tile_config config = {.palette = 1};
    for (uint32_t t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = TILE;
    }
    TILE_CONFIG(config);
}

/* ---- Inputs ---- */

static uint32_t row_pairs(uint32_t n_row)
{
    return (n_row + 2 * TILE - 1) / (2 * TILE);
}

static uint32_t range_count(const struct shape *s)
{
    return (s->n_block + s->range_blocks - 1) / s->range_blocks;
}

static struct shape shape_of(uint32_t n_row, uint32_t width)
{
    struct shape s = {.n_row2 = row_pairs(n_row), .n_block = layout_n_block(width)};
    const uint32_t n_chunk = (s.n_block + LAYOUT_BLOCKS - 1) / LAYOUT_BLOCKS;
    const uint32_t n_range = n_chunk <= WHOLE_MAX ? 1 : (n_chunk + RANGE_MAX - 1) / RANGE_MAX;
    s.range_blocks = LAYOUT_BLOCKS * ((n_chunk + n_range - 1) / n_range);
    return s;
}

static uint32_t pass_count(const struct shape *s)
{
    return (s->n_row2 * 2 * TILE + ROWS_PASS - 1) / ROWS_PASS;
}

static size_t shape_tiles(const struct shape *s)
{
    return (size_t)s->n_row2 * s->n_block * 2;
}

/* Index of the first tile of block b and row pair r2. Its second tile and the next blocks of the
 * range follow. */
static size_t tile_index(const struct shape *s, uint32_t b, uint32_t r2)
{
    const uint32_t b0 = b - b % s->range_blocks, nb = min_u32(s->range_blocks, s->n_block - b0);
    return 2 * ((size_t)b0 * s->n_row2 + (size_t)r2 * nb + (b - b0));
}

/* The power of two (at most 2^126) that brings a magnitude with these bits into 2^14..2^15; 1 for
 * zero, infinity and NaN. */
static float shrink_of(uint32_t bits)
{
    const uint32_t e = bits >> 23; /* magnitude < 2^(e - 126) */
    if (bits == 0 || e == 255) return 1;
    const uint32_t biased = 268 - e < 253 ? 268 - e : 253;
    float f;
    memcpy(&f, &(uint32_t){biased << 23}, sizeof f);
    return f;
}

/* Rounds to 16 bits and interleaves: lane i of even and odd becomes words 2i and 2i + 1. */
INLINE __m512i round_pairs(bool f16, __m512 even, __m512 odd)
{
    if (f16) {
        const __m256i e = _mm512_cvtps_ph(even, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256i o = _mm512_cvtps_ph(odd, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        return _mm512_or_si512(_mm512_cvtepu16_epi32(e),
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(o), 16));
    }
    return bf16_pairs(even, odd);
}

/* Rounds 32 inputs, in the order of pairs: 0, 2, 1, 3 of each four. */
INLINE __m512i round_inputs(bool f16, __m512 x0, __m512 x1)
{
    const struct bf16_split s = bf16_split(x0, x1);
    return round_pairs(f16, s.even, s.odd);
}

/* The power of two by which row r is scaled after the norm's `scale`. */
static float row_shrink(const struct op_linear *op, uint32_t r, float scale)
{
    __m512i top = _mm512_setzero_si512();
    for (uint32_t k = 0; k < op->n_in; k += 16) {
        const __m512i bits = _mm512_castps_si512(linear_load_x(op, r, k, scale));
        top = _mm512_max_epu32(top, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    return shrink_of(_mm512_reduce_max_epu32(top));
}

/* Factors of a row: 1 / its root mean square, and a power of two. */
struct factor {
    float scale, shrink;
};

/* Rounds chunk `chunk_i` of a row and stores it in the row's line of each tile. Meanwhile it
 * prefetches the next row, which comes from memory or from another core's cache. */
INLINE void round_chunk(const struct job *job, uint8_t *line, uint32_t r, uint32_t chunk_i,
                        struct factor factor, const bool f16)
{
    const struct op_linear *op = job->op;
    const uint32_t nb = layout_chunk_blocks(job->in.n_block, chunk_i), k0 = chunk_i * LAYOUT_CHUNK;
    const float *below = op->x + (r + 1) * op->x_stride + k0;
    for (uint32_t b = 0; b < nb; b++, line += 2 * sizeof(struct tile)) {
        __m512 x0 = linear_load_x(op, r, k0 + b * LAYOUT_BLOCK, factor.scale);
        __m512 x1 = linear_load_x(op, r, k0 + b * LAYOUT_BLOCK + 16, factor.scale);
        _mm_prefetch((const char *)(below + b * LAYOUT_BLOCK), _MM_HINT_T0);
        _mm_prefetch((const char *)(below + b * LAYOUT_BLOCK + 16), _MM_HINT_T0);
        if (f16) {
            x0 = _mm512_mul_ps(x0, _mm512_set1_ps(factor.shrink));
            x1 = _mm512_mul_ps(x1, _mm512_set1_ps(factor.shrink));
        }
        _mm512_store_si512(line, round_inputs(f16, x0, x1));
    }
}

/* Rounds a tile of 16 rows, chunk by chunk: pieces of a row are long enough for the hardware
 * prefetcher, and tiles stay in L1 until they are complete. */
INLINE void round_tile(const struct job *job, uint32_t tile_i, const bool f16)
{
    const struct op_linear *op = job->op;
    const uint32_t r0 = tile_i * TILE, left = op->n_row > r0 ? op->n_row - r0 : 0;
    const uint32_t n = min_u32(left, TILE);
    struct tile *x = op->scratch;
    struct factor factor[TILE];
    for (uint32_t i = 0; i < n; i++) {
        const float *row = op->x + (r0 + i) * op->x_stride;
        factor[i].scale = op->norm ? linear_rms_scale(row, op->n_in, op->norm_eps) : 1;
        factor[i].shrink = f16 ? row_shrink(op, r0 + i, factor[i].scale) : 1;
        job->unscale[r0 + i] = 1 / factor[i].shrink;
    }
    for (uint32_t b = 0; b < job->in.n_block; b += LAYOUT_BLOCKS) {
        uint8_t *line = x[tile_index(&job->in, b, tile_i / 2) + tile_i % 2].bytes;
        for (uint32_t i = 0; i < n; i++)
            round_chunk(job, line + 64 * i, r0 + i, b / LAYOUT_BLOCKS, factor[i], f16);
    }
}

static void round_tiles(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    for (uint32_t i = begin; i < end; i++)
        if (job->f16)
            round_tile(job, i, true);
        else
            round_tile(job, i, false);
}

/* ---- Weights ---- */

/* Rounds to f16 and repeats each value twice, for both inputs of a pair. */
INLINE __m512h pair_f16(__m512 v)
{
    const __m512i h =
        _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return _mm512_castsi512_ph(_mm512_or_si512(h, _mm512_slli_epi32(h, 16)));
}

/* Dequantisation of 16 pairs of codes: code * scale + plus, rounded once. */
struct affine {
    __m512h scale_f16, plus_f16;
    __m512 scale, plus; /* for bf16 */
};

/* Includes -offset * scale in plus: exact, because the offset is a power of two. */
INLINE struct affine affine_of(bool f16, __m512 scale, __m512 plus, float offset)
{
    struct affine a = {.scale = scale};
    const __m512 o = _mm512_set1_ps(-offset);
    if (f16) {
        a.scale_f16 = pair_f16(scale);
        a.plus_f16 = offset != 0 ? _mm512_mul_ph(a.scale_f16, pair_f16(o)) : pair_f16(plus);
    } else {
        a.plus = _mm512_fmadd_ps(scale, o, plus);
    }
    return a;
}

/* The blocks of a column in one range, to be dequantised. */
struct source {
    const uint8_t *chunk; /* the first */
    uint32_t nb;          /* number of blocks */
    size_t skip;          /* bytes from the last chunk to the next range or group of the column */
    __m512 shrink;
};

/* The place of block b. */
struct place {
    const uint8_t *chunk;
    uint32_t nb, b;      /* blocks of the chunk, and the number of this one */
    const uint8_t *next; /* the chunk that is dequantised next */
};

INLINE struct place find_block(const struct source *s, uint32_t b, const struct weight_layout l)
{
    const uint32_t full = layout_full_chunk_bytes(l), b0 = b & ~(LAYOUT_BLOCKS - 1);
    struct place at = {.chunk = s->chunk + b0 / LAYOUT_BLOCKS * full, .b = b - b0};
    const bool last = b0 + LAYOUT_BLOCKS >= s->nb;
    at.nb = last ? s->nb - b0 : LAYOUT_BLOCKS;
    at.next = at.chunk + (last ? s->skip : full);
    return at;
}

/* Prefetches to L2 this block's share of the next chunk, one quarter (q) at a time. */
INLINE void fetch_ahead(const struct place *at, const struct weight_layout l, const int q)
{
    const uint32_t share = layout_full_chunk_bytes(l) / LAYOUT_BLOCKS;
    const char *p = (const char *)at->next + at->b * share;
    for (uint32_t i = 64 * (uint32_t)q; i < share; i += 256) _mm_prefetch(p + i, _MM_HINT_T1);
}

/* The offset of unsigned codes, as dequantisation subtracts it. */
INLINE float code_offset(const struct weight_layout l, const bool f16)
{
    return f16 && l.iq4 ? LAYOUT_IQ4_OFFSET : bf16_offset(l);
}

/* Dequantises quad line j of a block to 2 lines of a tile. */
INLINE void dequant_line_f16(uint8_t *dst, const uint8_t *p, const struct weight_layout l,
                             const int j, const struct affine *a)
{
    const __m512i q = decode_quad(p, l, j);
    const __m512i codes[2] = {_mm512_and_si512(q, _mm512_set1_epi16(0xff)),
                              _mm512_srli_epi16(q, 8)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        _mm512_store_si512(dst + 64 * i,
                           _mm512_castph_si512(_mm512_fmadd_ph(_mm512_cvtepu16_ph(codes[i]),
                                                               a->scale_f16, a->plus_f16)));
}

/* A block that is dequantised to a tile, quarter by quarter. */
struct filling {
    uint8_t *dst;
    struct place from;
    __m512 shrink;
    struct affine affine; /* of the current block or half */
};

/* Dequantises quad lines 2q and 2q + 1 of a block, q = 0..3 ascending: lines 0 and 4 set the
 * scales. */
INLINE void fill_quant(struct filling *f, const int q, const enum quant_type type, const bool f16)
{
    const struct weight_layout l = weight_layout_of(type);
    const struct place at = f->from;
    const uint8_t *p = at.chunk + layout_scale_bytes(l, at.nb) + at.b * layout_block_bytes(l);
    if (q == 0 || (q == 2 && layout_halves(l))) {
        const struct decoded_scales scales = decode_scales(at.chunk, l, at.b);
        const __m512 scale = _mm512_mul_ps(scales.scale[q / 2], f->shrink);
        const __m512 plus =
            layout_has_min(l) ? _mm512_mul_ps(scales.plus[q / 2], f->shrink) : _mm512_setzero_ps();
        f->affine = affine_of(f16, scale, plus, code_offset(l, f16));
    }
#pragma GCC unroll 2
    for (int j = 2 * q; j < 2 * q + 2; j++) {
        if (f16)
            dequant_line_f16(f->dst + 128 * j, p, l, j, &f->affine);
        else
            bf16_quad(f->dst + 128 * j, p, l, j, f->affine.scale, f->affine.plus);
    }
}

INLINE void fill_dense(struct filling *f, const int q, const enum quant_type type, const bool f16)
{
    const uint8_t *p = f->from.chunk + f->from.b * layout_block_bytes(weight_layout_of(type));
#pragma GCC unroll 4
    for (int i = 4 * q; i < 4 * q + 4; i++) {
        __m512 w[2];
        bf16_dense_pair(w, p, type, i);
        _mm512_store_si512(f->dst + 64 * i, round_pairs(f16, _mm512_mul_ps(w[0], f->shrink),
                                                        _mm512_mul_ps(w[1], f->shrink)));
    }
}

INLINE void fill_quarter(struct filling *f, const int q, const enum quant_type type, const bool f16)
{
    const struct weight_layout l = weight_layout_of(type);
    fetch_ahead(&f->from, l, q);
    if (l.scale == SCALE_NONE)
        fill_dense(f, q, type, f16);
    else
        fill_quant(f, q, type, f16);
}

/* ---- Epilogues ---- */

/* Where a column's outputs (16 per row) are stored. */
struct epilogue_col {
    float *y; /* of the next row */
    size_t y_stride;
    __mmask16 m; /* 0 for a missing second column */
    __m512 bias, unscale;
};

/* A row pair whose sums are complete, and the state of its epilogue. */
struct epilogue {
    void (*finish)(struct epilogue *e, uint32_t n); /* finishes the next n rows */
    const uint8_t *sum; /* of the first column; those of the second follow */
    const float *unscale;
    struct epilogue_col col[2];
    uint8_t *line; /* half a line of the tiles of y, if y is stored as tiles */
    uint32_t left;
};

INLINE __m512 epilogue_sum(const struct epilogue *e, uint32_t col, const bool f16)
{
    __m512 v = _mm512_load_ps(e->sum + col * sizeof(struct tile[2]));
    /* The product of the powers comes first: it is in range whenever the result is. */
    if (f16) v = _mm512_mul_ps(v, _mm512_mul_ps(_mm512_set1_ps(*e->unscale), e->col[col].unscale));
    return _mm512_add_ps(v, e->col[col].bias);
}

/* Stores whole lines with non-temporal stores: a GLU writes as much as L2 holds, and a store that
 * misses would occupy, for as long as memory takes, a fill buffer that the tile loads need. */
static void stream(float *y, __mmask16 m, __m512 v)
{
    if (m == 0xffff && (uintptr_t)y % 64 == 0)
        _mm512_stream_ps(y, v);
    else
        _mm512_mask_storeu_ps(y, m, v);
}

/* Kinds of epilogues. */
enum finish {
    FINISH_STORE,
    FINISH_ADD,
    FINISH_SILU,
    FINISH_GELU,
    FINISH_SILU_TILES,
    FINISH_GELU_TILES
};

INLINE void finish_row(struct epilogue *e, const enum finish how, const bool f16)
{
    const bool tiles = how == FINISH_SILU_TILES || how == FINISH_GELU_TILES;
    if (how == FINISH_STORE || how == FINISH_ADD) {
#pragma GCC unroll 2
        for (uint32_t c = 0; c < 2; c++) {
            struct epilogue_col *col = &e->col[c];
            __m512 v = epilogue_sum(e, c, f16);
            if (how == FINISH_ADD) v = _mm512_add_ps(_mm512_maskz_loadu_ps(col->m, col->y), v);
            _mm512_mask_storeu_ps(col->y, col->m, v);
            col->y += col->y_stride;
        }
    } else {
        const bool gelu = how == FINISH_GELU || how == FINISH_GELU_TILES;
        const __m512 v = bf16_glu(gelu, epilogue_sum(e, 0, f16), epilogue_sum(e, 1, f16));
        if (tiles)
            bf16_store_half_line(e->line, v);
        else
            stream(e->col[0].y, e->col[0].m, v);
        e->line += tiles ? 64 : 0;
        e->col[0].y += tiles ? 0 : e->col[0].y_stride;
    }
    e->sum += 64;
    if (f16) e->unscale++; /* bf16 sums are not scaled */
}

INLINE void finish_rows(struct epilogue *e, uint32_t n, const enum finish how, const bool f16)
{
    n = min_u32(n, e->left);
    e->left -= n;
    for (uint32_t i = 0; i < n; i++) finish_row(e, how, f16);
}

#define FINISH(how)                                                                                \
    static void how##_f16(struct epilogue *e, uint32_t n)                                          \
    {                                                                                              \
        finish_rows(e, n, FINISH_##how, true);                                                     \
    }                                                                                              \
    static void how##_bf16(struct epilogue *e, uint32_t n)                                         \
    {                                                                                              \
        finish_rows(e, n, FINISH_##how, false);                                                    \
    }
FINISH(STORE)
FINISH(ADD)
FINISH(SILU)
FINISH(GELU)
FINISH(SILU_TILES)
FINISH(GELU_TILES)

typedef void (*finish_fn)(struct epilogue *e, uint32_t n);

#define FINISH_ROW(how) [FINISH_##how] = {how##_bf16, how##_f16}

/* [how][f16] */
static const finish_fn finish_of[][2] = {FINISH_ROW(STORE),      FINISH_ROW(ADD),
                                         FINISH_ROW(SILU),       FINISH_ROW(GELU),
                                         FINISH_ROW(SILU_TILES), FINISH_ROW(GELU_TILES)};

/* ---- Products ----
 * A piece of work is the products of up to four blocks. Interleaved with them, a tile of the next
 * panel is dequantised and some rows of the previous row pair are finished. */

struct work {
    const struct tile *x, *w; /* [n, 2] */
    uint32_t n;
    bool rows2, cols2; /* there is a second row tile, a second column */
    struct epilogue *epilogue;
    uint32_t rows_per_block;
    struct tile *dst; /* receives block `block` of the source */
    const struct source *source;
    uint32_t block;
};

typedef void (*work_fn)(const struct work *k);

/* sums += x * w for block i; the sums are in tile registers. */
INLINE void multiply_block(const struct work *k, const uint32_t i, const bool f16)
{
    const struct tile *x = k->x + 2 * i, *w = k->w + 2 * i;
    TILE_LOAD_ONCE(4, x);
    TILE_LOAD(6, w);
    TILE_FMA(f16, 0, 4, 6);
    if (k->cols2) {
        TILE_LOAD(7, w + 1);
        TILE_FMA(f16, 1, 4, 7);
    }
    if (k->rows2) {
        TILE_LOAD_ONCE(5, x + 1);
        TILE_FMA(f16, 2, 5, 6);
        if (k->cols2) TILE_FMA(f16, 3, 5, 7);
    }
}

INLINE void multiply_and_finish(const struct work *k, const uint32_t i, const bool f16)
{
    if (i >= k->n) return;
    multiply_block(k, i, f16);
    if (k->epilogue->left) k->epilogue->finish(k->epilogue, k->rows_per_block);
}

INLINE void multiply_and_fill(const struct work *k, const enum quant_type type, const bool f16)
{
    struct filling f = {.dst = k->dst->bytes,
                        .from = find_block(k->source, k->block, weight_layout_of(type)),
                        .shrink = k->source->shrink};
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        multiply_and_finish(k, (uint32_t)q, f16);
        fill_quarter(&f, q, type, f16);
    }
}

INLINE void multiply_only(const struct work *k, const bool f16)
{
    for (uint32_t i = 0; i < k->n; i++) multiply_and_finish(k, i, f16);
}

static void only_bf16(const struct work *k)
{
    multiply_only(k, false);
}

static void only_f16(const struct work *k)
{
    multiply_only(k, true);
}

#define WORK(TYPE)                                                                                 \
    static void TYPE##_bf16(const struct work *k)                                                  \
    {                                                                                              \
        multiply_and_fill(k, QUANT_##TYPE, false);                                                 \
    }                                                                                              \
    static void TYPE##_f16(const struct work *k)                                                   \
    {                                                                                              \
        multiply_and_fill(k, QUANT_##TYPE, true);                                                  \
    }
WORK(F32)
WORK(F16)
WORK(BF16)
WORK(Q4_0)
WORK(Q4_1)
WORK(Q5_0)
WORK(Q5_1)
WORK(Q8_0)
WORK(Q2_K)
WORK(Q3_K)
WORK(Q4_K)
WORK(Q5_K)
WORK(Q6_K)
WORK(IQ4_NL)
WORK(IQ4_XS)

#define WORK_ROW(TYPE) [QUANT_##TYPE] = {TYPE##_bf16, TYPE##_f16}

/* [type of the dequantised weights][f16] */
static const work_fn work_of[QUANT_BF16 + 1][2] = {
    WORK_ROW(F32),  WORK_ROW(F16),  WORK_ROW(BF16), WORK_ROW(Q4_0),   WORK_ROW(Q4_1),
    WORK_ROW(Q5_0), WORK_ROW(Q5_1), WORK_ROW(Q8_0), WORK_ROW(Q2_K),   WORK_ROW(Q3_K),
    WORK_ROW(Q4_K), WORK_ROW(Q5_K), WORK_ROW(Q6_K), WORK_ROW(IQ4_NL), WORK_ROW(IQ4_XS)};

/* ---- Steps ----
 * A strip is some pairs of columns times the rows of a pass: the unit that a worker claims. Its
 * steps are (range, pair), with ranges as the outer loop. */

struct strip {
    uint32_t r0, n_row2; /* row pairs of the pass: first, number */
    uint32_t pair0, n_pair;
};

struct step {
    struct strip strip;
    uint32_t pair_i, range_i; /* index of the pair within the strip */
    uint32_t n_col;           /* 2, or 1 for the last pair of an odd number */
    struct linear_unit unit[2];
    struct source source[2];
    work_fn work[2];
    struct tile *w; /* [blocks of the range, 2] */
};

/* Claims the next strip of the worker's own pass, or of the next pass that has strips left. */
static bool take_strip(struct strip *s, const struct job *job, uint32_t worker_i)
{
    const uint32_t pass = ROWS_PASS / (2 * TILE);
    for (uint32_t k = 0; k < job->n_pass; k++) {
        const uint32_t p = (worker_i + k) % job->n_pass;
        const uint32_t i = atomic_fetch_add_explicit(&job->queue[p].next, 1, memory_order_relaxed);
        if (i >= job->n_strip) continue;
        s->r0 = p * pass;
        s->n_row2 = min_u32(pass, job->in.n_row2 - s->r0);
        s->pair0 = i * job->strip_pairs;
        s->n_pair = min_u32(job->strip_pairs, job->n_pair - s->pair0);
        return true;
    }
    return false;
}

static void open_source(struct step *st, const struct job *job, uint32_t col)
{
    const struct weight *w = job->op->part[st->unit[col].part_i].w;
    const uint8_t *group = w->data + st->unit[col].group_i * w->group_bytes;
    const uint32_t full = layout_full_chunk_bytes(weight_layout_of(w->type));
    const uint32_t b0 = st->range_i * job->in.range_blocks;
    struct source *s = &st->source[col];
    s->chunk = group + LAYOUT_HEAD + (size_t)(b0 / LAYOUT_BLOCKS) * full;
    s->nb = min_u32(job->in.range_blocks, job->in.n_block - b0);
    const size_t behind = (size_t)((s->nb - 1) / LAYOUT_BLOCKS) * full;
    s->skip = (linear_is_glu(job->op) ? 1 : 2) * w->group_bytes - behind;
    s->shrink = job->f16 ? _mm512_loadu_ps(group) : _mm512_set1_ps(1);
    st->work[col] = work_of[w->type][job->f16];
}

static void open_step(struct step *st, const struct job *job)
{
    const uint32_t pair = st->strip.pair0 + st->pair_i;
    if (linear_is_glu(job->op)) {
        st->unit[0] = (struct linear_unit){0, pair};
        st->unit[1] = (struct linear_unit){1, pair};
        st->n_col = 2;
    } else {
        st->n_col = 2 * pair + 1 < linear_n_unit(job->op) ? 2 : 1;
        for (uint32_t c = 0; c < st->n_col; c++)
            st->unit[c] = linear_find_unit(job->op, 2 * pair + c);
    }
    for (uint32_t c = 0; c < st->n_col; c++) open_source(st, job, c);
}

static bool first_step(struct step *st, const struct job *job, uint32_t worker_i)
{
    if (!take_strip(&st->strip, job, worker_i)) return false;
    st->pair_i = st->range_i = 0;
    open_step(st, job);
    return true;
}

/* Finds the step after `st`; false: there is no more work. */
static bool next_step(struct step *next, const struct step *st, const struct job *job,
                      uint32_t worker_i)
{
    next->strip = st->strip;
    next->pair_i = st->pair_i + 1;
    next->range_i = st->range_i;
    if (next->pair_i == st->strip.n_pair) {
        next->pair_i = 0;
        if (++next->range_i == job->n_range) return first_step(next, job, worker_i);
    }
    open_step(next, job);
    return true;
}

static uint32_t step_tiles(const struct step *st)
{
    return st->source[0].nb * st->n_col;
}

/* Runs `k` with the dequantisation of tile i of the panel. */
static void fill_tile(struct step *st, uint32_t i, struct work *k)
{
    const uint32_t two = st->n_col - 1, col = i & two, b = i >> two;
    k->dst = st->w + 2 * b + col;
    k->source = &st->source[col];
    k->block = b;
    st->work[col](k);
}

static void open_col(struct epilogue_col *c, const struct job *job, struct linear_unit unit,
                     uint32_t r0)
{
    const struct linear_part *part = &job->op->part[unit.part_i];
    const uint32_t out_i = unit.group_i * WEIGHT_GROUP;
    c->m = math_lane_mask(part->w->n_out - out_i);
    c->y = part->y ? part->y + r0 * part->y_stride + out_i : NULL;
    c->y_stride = part->y_stride;
    c->bias = part->bias ? _mm512_maskz_loadu_ps(c->m, part->bias + out_i) : _mm512_setzero_ps();
    if (job->f16)
        c->unscale =
            _mm512_div_ps(_mm512_set1_ps(1),
                          _mm512_loadu_ps(part->w->data + unit.group_i * part->w->group_bytes));
}

static enum finish finish_kind(const struct job *job)
{
    switch (job->op->epilogue) {
    case LINEAR_STORE: return FINISH_STORE;
    case LINEAR_ADD: return FINISH_ADD;
    case LINEAR_GLU_SILU: return job->y ? FINISH_SILU_TILES : FINISH_SILU;
    case LINEAR_GLU_GELU: return job->y ? FINISH_GELU_TILES : FINISH_GELU;
    }
    __builtin_unreachable();
}

/* Begins the epilogue of the step's columns for row pair r2. */
static void begin_epilogue(struct epilogue *e, const struct job *job, const struct step *st,
                           uint32_t r2, const struct sums *sums)
{
    const uint32_t group = st->unit[0].group_i, r0 = r2 * 2 * TILE;
    e->finish = finish_of[finish_kind(job)][job->f16];
    e->sum = sums->at[0][0].bytes;
    e->unscale = job->unscale + r0;
    for (uint32_t c = 0; c < st->n_col; c++) open_col(&e->col[c], job, st->unit[c], r0);
    if (st->n_col == 1) {
        e->col[1] = e->col[0];
        e->col[1].m = 0;
    }
    if (job->y) e->line = job->y[tile_index(&job->out, group / 2, r2)].bytes + group % 2 * 32;
    e->left = min_u32(2 * TILE, job->op->n_row - r0);
}

/* ---- Workers ---- */

/* The state of a worker. */
struct worker {
    const struct job *job;
    struct sums *sums; /* [strip_pairs, n_row2]; one if there is one range */
    struct epilogue epilogue;
};

/* Distribution of the next panel's tiles over the products of a step. */
struct spread {
    struct step *next;     /* or NULL */
    uint32_t tile, n_tile; /* the next tile, and their number */
    uint32_t blocks;       /* products of a piece of work */
    uint32_t more;         /* further tiles per piece of work */
};

/* Chooses the longest pieces of work of which there are enough for all tiles. */
static struct spread spread_tiles(struct step *next, uint32_t n_row2, uint32_t nb)
{
    struct spread s = {.next = next, .blocks = 4, .n_tile = next ? step_tiles(next) : 0};
    while (s.blocks > 1 && n_row2 * ((nb + s.blocks - 1) / s.blocks) < s.n_tile) s.blocks--;
    const uint32_t n_work = n_row2 * ((nb + s.blocks - 1) / s.blocks);
    if (s.n_tile > n_work) s.more = (s.n_tile - 1) / n_work;
    return s;
}

/* Multiplies a row pair with a panel; `k` locates both. */
static void run_product(struct work *k, uint32_t nb, struct spread *s, work_fn only)
{
    for (uint32_t b = 0; b < nb; b += s->blocks) {
        k->n = 0;
        for (uint32_t i = 0; i < s->more && s->tile < s->n_tile; i++)
            fill_tile(s->next, s->tile++, k);
        k->n = min_u32(s->blocks, nb - b);
        if (s->tile < s->n_tile)
            fill_tile(s->next, s->tile++, k);
        else
            only(k);
        k->x += 2 * k->n;
        k->w += 2 * k->n;
    }
    assert(k->epilogue->left == 0);
}

static void load_sums(const struct sums *s, bool first)
{
    if (first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, &s->at[0][0]);
        TILE_LOAD(1, &s->at[1][0]);
        TILE_LOAD(2, &s->at[0][1]);
        TILE_LOAD(3, &s->at[1][1]);
    }
}

static void store_sums(struct sums *s)
{
    TILE_STORE(0, &s->at[0][0]);
    TILE_STORE(1, &s->at[1][0]);
    TILE_STORE(2, &s->at[0][1]);
    TILE_STORE(3, &s->at[1][1]);
}

/* Prefetches the lines of y for row pair r2 while it is computed: otherwise every store would wait
 * for memory. */
static void fetch_ends(const struct job *job, const struct step *st, uint32_t r2)
{
    const uint32_t r0 = r2 * 2 * TILE, n = min_u32(2 * TILE, job->op->n_row - r0);
    for (uint32_t c = 0; c < st->n_col; c++) {
        const struct linear_part *part = &job->op->part[st->unit[c].part_i];
        const float *y = part->y + r0 * part->y_stride + st->unit[c].group_i * WEIGHT_GROUP;
        for (uint32_t r = 0; r < n; r++, y += part->y_stride)
            _mm_prefetch((const char *)y, _MM_HINT_T1);
    }
}

/* Multiplies all row pairs of the pass with the panel; meanwhile dequantises that of `next` (or
 * NULL). */
static void run_step(struct worker *worker, const struct step *st, struct step *next)
{
    const struct job *job = worker->job;
    const uint32_t nb = st->source[0].nb, n_row2 = st->strip.n_row2;
    const bool is_last = st->range_i + 1 == job->n_range;
    struct sums *sums = worker->sums;
    if (job->n_range > 1) sums += (size_t)st->pair_i * n_row2;
    struct spread spread = spread_tiles(next, n_row2, nb);
    struct work k = {.cols2 = st->n_col == 2,
                     .epilogue = &worker->epilogue,
                     .rows_per_block = (2 * TILE + nb - 1) / nb};
    for (uint32_t i = 0; i < n_row2; i++) {
        const uint32_t r2 = st->strip.r0 + i;
        struct sums *to = job->n_range > 1 ? sums + i : sums;
        k.x = job->x + tile_index(&job->in, st->range_i * job->in.range_blocks, r2);
        k.w = st->w;
        k.rows2 = r2 * 2 * TILE + TILE < job->op->n_row;
        if (is_last && !linear_is_glu(job->op)) fetch_ends(job, st, r2);
        load_sums(to, st->range_i == 0);
        run_product(&k, nb, &spread, job->f16 ? only_f16 : only_bf16);
        store_sums(to);
        if (is_last) begin_epilogue(&worker->epilogue, job, st, r2, to);
    }
    assert(spread.tile == spread.n_tile);
}

static size_t panel_tiles(const struct shape *in)
{
    return (size_t)min_u32(in->range_blocks, in->n_block) * 2;
}

static size_t worker_bytes(const struct shape *in)
{
    const size_t n_row2 = min_u32(in->n_row2, ROWS_PASS / (2 * TILE));
    const size_t n_sums = range_count(in) > 1 ? STRIP_MAX * n_row2 : 1;
    return 2 * panel_tiles(in) * sizeof(struct tile) + n_sums * sizeof(struct sums);
}

/* Runs strips until the queues are empty. */
static void run_worker(void *arg, uint32_t worker_i)
{
    const struct job *job = arg;
    struct tile *w = (struct tile *)(job->per_worker + worker_i * worker_bytes(&job->in));
    const size_t panel = panel_tiles(&job->in);
    struct worker worker = {.job = job, .sums = (struct sums *)(w + 2 * panel)};
    struct step step[2] = {{.w = w}, {.w = w + panel}};
    if (!first_step(&step[0], job, worker_i)) return;
    tiles_begin();
    for (uint32_t i = 0; i < step_tiles(&step[0]); i++)
        fill_tile(&step[0], i, &(struct work){.n = 0});
    for (uint32_t i = 0, more = 1; more; i++) {
        struct step *next = &step[(i + 1) % 2];
        more = next_step(next, &step[i % 2], job, worker_i);
        run_step(&worker, &step[i % 2], more ? next : NULL);
    }
    if (worker.epilogue.left) worker.epilogue.finish(&worker.epilogue, worker.epilogue.left);
    TILE_RELEASE();
    _mm_sfence(); /* orders the non-temporal stores before the end of the item */
}

static void cut_strips(struct job *job, uint32_t n_worker)
{
    const uint32_t n_unit = linear_n_unit(job->op);
    job->n_pair = linear_is_glu(job->op) ? n_unit : (n_unit + 1) / 2;
    job->strip_pairs = linear_is_glu(job->op) ? STRIP_GLU : 1;
    if (job->n_range > 1) {
        /* Two for every worker of a pass: if one worker is delayed, others take its second. */
        const uint32_t each = 2 * ((n_worker + job->n_pass - 1) / job->n_pass);
        uint32_t n = (job->n_pair + STRIP_MAX - 1) / STRIP_MAX;
        n = (n + each - 1) / each * each;
        job->strip_pairs = (job->n_pair + n - 1) / n;
    }
    job->n_strip = (job->n_pair + job->strip_pairs - 1) / job->strip_pairs;
}

static size_t amx_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in)
{
    const struct shape in = shape_of(n_row, n_in);
    return shape_tiles(&in) * sizeof(struct tile) + in.n_row2 * 2 * TILE * sizeof(float) +
           pass_count(&in) * sizeof(struct queue) + n_worker * worker_bytes(&in);
}

static size_t scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    const size_t narrow = linear_avx512_scratch(n_worker, n_row, n_in, n_out_sum);
    const size_t wide = amx_scratch(n_worker, n_row, n_in);
    return narrow > wide ? narrow : wide;
}

/* Whether the tiles of n_row rows fit into the memory of the f32 rows that they replace. */
static bool tiles_fit(uint32_t n_row, uint32_t width, bool f16)
{
    return !f16 && width % LAYOUT_BLOCK == 0 && row_pairs(n_row) * TILE <= n_row;
}

static void run_wide(struct workers *pool, const struct op_linear *op, bool f16)
{
    linear_check(op);
    assert(!op->kept_x || (!op->norm && op->x_stride == op->n_in));
    assert(!op->keep_y || (linear_is_glu(op) && op->part[0].y_stride == op->part[0].w->n_out));
    assert(op->scratch_bytes >= amx_scratch(workers_count(pool), op->n_row, op->n_in));
    struct job job = {.op = op, .f16 = f16, .in = shape_of(op->n_row, op->n_in)};
    struct tile *x = op->scratch;
    job.n_range = range_count(&job.in);
    job.unscale = (float *)(x + shape_tiles(&job.in));
    job.n_pass = pass_count(&job.in);
    job.queue = (struct queue *)(job.unscale + (size_t)job.in.n_row2 * 2 * TILE);
    for (uint32_t i = 0; i < job.n_pass; i++) atomic_init(&job.queue[i].next, 0);
    job.per_worker = (uint8_t *)(job.queue + job.n_pass);
    job.x = x;
    if (op->keep_y && tiles_fit(op->n_row, op->part[0].w->n_out, f16)) {
        job.out = shape_of(op->n_row, op->part[0].w->n_out);
        job.y = (struct tile *)op->part[0].y;
    }
    cut_strips(&job, workers_count(pool));
    if (op->kept_x && tiles_fit(op->n_row, op->n_in, f16))
        job.x = (const struct tile *)op->x;
    else
        workers_for_span(pool, 2 * job.in.n_row2, 1, round_tiles, &job);
    workers_share(pool, run_worker, &job);
}

void linear_amx_f16(struct workers *pool, const struct op_linear *op)
{
    if (op->kind == ROW_DECODE)
        linear_narrow_amx(pool, op);
    else
        run_wide(pool, op, true);
}

void linear_amx_bf16(struct workers *pool, const struct op_linear *op)
{
    if (op->kind == ROW_DECODE)
        linear_narrow_amx(pool, op);
    else
        run_wide(pool, op, false);
}

void ops_fill_amx_linear(struct ops *o)
{
    o->linear = detect_features() & DETECT_AMX_FP16 ? linear_amx_f16 : linear_amx_bf16;
    o->linear_scratch = scratch;
}
