/* linear_amx.c: linear layers of many rows in AMX tiles; few rows go to linear_avx512.c.
 *
 * The input is rounded to 16 bits and laid out in tiles once per call. A worker takes some columns
 * (groups of 16 outputs) two by two; for each pair, and for a GLU that is a group of gate and the
 * same of up, a chunk of 256 inputs is dequantised to 16 KiB of tiles, which stay in L1 while the
 * rows (up to ROWS_PASS) stream past them from L2. The vector units dequantise the pair that comes
 * next between the products, a little behind every block: the core looks ahead too little to mix
 * larger pieces by itself.
 *
 * Precision. f16 where the CPU multiplies it (TDPFP16PS), which has 3 bits more than bf16. Its
 * range is made sufficient by powers of two: each input row is scaled so that its largest magnitude
 * lies in 2^14..2^15, each weight row by its `shrink`; the sum is scaled back. So what falls below
 * f16 is 2^-39 of the row's maximum. bf16 has the range of f32 and is not scaled. A weight is d * v
 * + m rounded once (d * s of K types once more). Sums are f32 in the tiles. A row with an infinity
 * or NaN has no finite outputs; other rows do not notice.
 *
 * Order, the same for every n_row and split: chunks of 256 inputs in rising order, blocks of 32 in
 * them, in a block what TDPFP16PS does with the pairs of inputs (4j, 4j + 2), (4j + 1, 4j + 3).
 *
 * Layouts. A tile is 1 KiB, contiguous: input [16 rows][32 inputs], the inputs in the order of
 * pairs above; weights [16 pairs][16 outputs][2]; sums [16 rows][16 outputs] f32. Rows and columns
 * go in pairs of tiles, block by block: [8 blocks][2]. Tile registers: sums 0..3, inputs 4 and 5,
 * weights 6 and 7. The compiler does not know them; each asm is volatile, and names the memory
 * that it touches. */
#include "ops/cpu/detect.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/linear_avx512.h"
#include "ops/cpu/linear_decode.h"

#include <string.h>

#define TILE      16u  /* rows of a tile, columns of sums */
#define ROWS_PASS 512u /* rows per pass over the weights: 64 KiB of sums for a pair of columns */
#define PAIRS_MAX 7u   /* of an item: their sums, 448 KiB, stay in L2 */
#define X_L2      (1200u << 10) /* bytes of input tiles that stay in L2 beside one pair's sums */

struct tile {
    uint8_t bytes[1024];
};

/* Two tiles of sums under each other, two beside. */
struct sums {
    struct tile at[2][2]; /* [row tile][column] */
};

struct job {
    const struct op_linear *op;
    bool f16; /* else bf16 */
    uint32_t n_block, n_chunk,
        n_row2;              /* of the input: blocks and chunks of a row, pairs of tiles */
    uint32_t n_pair, n_item; /* pairs of columns in all; items of equal size */
    struct tile *x;      /* [n_chunk, n_row2, LAYOUT_BLOCKS, 2]: what a chunk reads lies together */
    float *unscale;      /* [n_row2 * 32] inverse powers of two */
    uint8_t *per_worker; /* [n_worker][worker_bytes] */
};

/* ---- Tile instructions ------------------------------------------------------------------------
 */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#define TILE_CONFIG(config) __asm__ volatile("ldtilecfg %0" : : "m"(config))
#define TILE_RELEASE()      __asm__ volatile("tilerelease")
#define TILE_ZERO(t)        __asm__ volatile("tilezero %%tmm" #t : :)
#define TILE_LOAD(t, from)                                                                         \
    __asm__ volatile("tileloadd (%0,%1), %%tmm" #t : : "r"(from), "r"((size_t)64), "m"(*(from)))
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

/* ---- Inputs -------------------------------------------------------------------------------------
 */

/* Block 0 of chunk `chunk_i` of row pair r2; the next blocks follow. */
static struct tile *x_tiles(const struct job *job, uint32_t chunk_i, uint32_t r2)
{
    return job->x + ((size_t)chunk_i * job->n_row2 + r2) * LAYOUT_BLOCKS * 2;
}

/* The power of two that takes a magnitude with these bits into 2^14..2^15, at most 2^126; 1 for
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

/* Interleaves the 16-bit forms of even and odd: the pairs of 16 rows, or inputs 2i and 2i + 1. */
INLINE __m512i round_pairs(bool f16, __m512 even, __m512 odd)
{
    if (f16) {
        const __m256i e = _mm512_cvtps_ph(even, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256i o = _mm512_cvtps_ph(odd, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        return _mm512_or_si512(_mm512_cvtepu16_epi32(e),
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(o), 16));
    }
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    const __m512i order = _mm512_or_si512(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
        _mm512_slli_epi32(
            _mm512_set_epi32(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16), 16));
    return _mm512_permutexvar_epi16(order, both);
}

/* 32 inputs in the order of pairs: per quad 0, 2, 1, 3. */
INLINE __m512i round_inputs(bool f16, __m512 x0, __m512 x1)
{
    /* Lane i of even and odd becomes words 2i and 2i + 1: even wants 0, 1, 4, 5, ..., odd 2, 3, ...
     */
    const __m512i even = _mm512_set_epi32(29, 28, 25, 24, 21, 20, 17, 16, 13, 12, 9, 8, 5, 4, 1, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(2));
    return round_pairs(f16, _mm512_permutex2var_ps(x0, even, x1),
                       _mm512_permutex2var_ps(x0, odd, x1));
}

/* The power of two that row r is multiplied by, after the norm's `scale`. */
static float row_shrink(const struct op_linear *op, uint32_t r, float scale)
{
    __m512i top = _mm512_setzero_si512();
    for (uint32_t k = 0; k < op->n_in; k += 16) {
        const __m512i bits = _mm512_castps_si512(linear_load_x(op, r, k, scale));
        top = _mm512_max_epu32(top, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    return shrink_of(_mm512_reduce_max_epu32(top));
}

/* One row's inputs of chunk `chunk_i` go to its line of each tile; those of the row below, which
 * come from memory or from another core, are asked for meanwhile. */
INLINE void round_chunk(const struct job *job, uint32_t r, uint32_t chunk_i, float scale,
                        float shrink, const bool f16)
{
    const struct op_linear *op = job->op;
    const uint32_t nb = layout_chunk_blocks(job->n_block, chunk_i), k0 = chunk_i * LAYOUT_CHUNK;
    const float *below = op->x + (r + 1) * op->x_stride + k0;
    uint8_t *line = x_tiles(job, chunk_i, r / (2 * TILE))[r / TILE % 2].bytes + r % TILE * 64;
    for (uint32_t b = 0; b < nb; b++, line += 2 * sizeof(struct tile)) {
        __m512 x0 = linear_load_x(op, r, k0 + b * LAYOUT_BLOCK, scale);
        __m512 x1 = linear_load_x(op, r, k0 + b * LAYOUT_BLOCK + 16, scale);
        _mm_prefetch((const char *)(below + b * LAYOUT_BLOCK), _MM_HINT_T0);
        _mm_prefetch((const char *)(below + b * LAYOUT_BLOCK + 16), _MM_HINT_T0);
        if (f16) {
            x0 = _mm512_mul_ps(x0, _mm512_set1_ps(shrink));
            x1 = _mm512_mul_ps(x1, _mm512_set1_ps(shrink));
        }
        _mm512_store_si512(line, round_inputs(f16, x0, x1));
    }
}

static void clear_chunk(const struct job *job, uint32_t r, uint32_t chunk_i)
{
    const uint32_t nb = layout_chunk_blocks(job->n_block, chunk_i);
    uint8_t *line = x_tiles(job, chunk_i, r / (2 * TILE))[r / TILE % 2].bytes + r % TILE * 64;
    for (uint32_t b = 0; b < nb; b++) memset(line + b * 2 * sizeof(struct tile), 0, 64);
}

/* A tile of 16 rows, chunk by chunk: long enough pieces of a row for the core to fetch ahead, and
 * tiles that stay in L1 until they are whole. */
INLINE void round_tile(const struct job *job, uint32_t tile_i, const bool f16)
{
    const struct op_linear *op = job->op;
    const uint32_t r0 = tile_i * TILE, left = op->n_row > r0 ? op->n_row - r0 : 0;
    const uint32_t n = left < TILE ? left : TILE;
    float scale[TILE], shrink[TILE];
    for (uint32_t i = 0; i < n; i++) {
        const float *row = op->x + (r0 + i) * op->x_stride;
        scale[i] = op->norm ? linear_rms_scale(row, op->n_in, op->norm_eps) : 1;
        shrink[i] = f16 ? row_shrink(op, r0 + i, scale[i]) : 1;
        job->unscale[r0 + i] = 1 / shrink[i];
    }
    for (uint32_t c = 0; c < job->n_chunk; c++) {
        for (uint32_t i = 0; i < n; i++) round_chunk(job, r0 + i, c, scale[i], shrink[i], f16);
        for (uint32_t i = n; i < TILE; i++) clear_chunk(job, r0 + i, c);
    }
}

static void round_tile_item(void *arg, uint32_t tile_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    if (job->f16)
        round_tile(job, tile_i, true);
    else
        round_tile(job, tile_i, false);
}

/* ---- Weights ------------------------------------------------------------------------------------
 */

/* 32 f16 lanes: both halves of each pair get the row's value. */
INLINE __m512h pair_f16(__m512 v)
{
    const __m512i h =
        _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return _mm512_castsi512_ph(_mm512_or_si512(h, _mm512_slli_epi32(h, 16)));
}

/* code * scale + plus for 16 pairs of 16-bit codes, rounded once. */
struct affine {
    __m512h scale_f16, plus_f16;
    __m512 scale, plus; /* for bf16 */
};

/* plus includes -offset * scale, exact as the offset is a power of two. */
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

INLINE __m512i dequant_pairs(bool f16, __m512i codes, const struct affine *a)
{
    if (f16)
        return _mm512_castph_si512(
            _mm512_fmadd_ph(_mm512_cvtepu16_ph(codes), a->scale_f16, a->plus_f16));
    const __m512i low = _mm512_and_si512(codes, _mm512_set1_epi32(0xffff));
    const __m512 even = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low), a->scale, a->plus);
    const __m512i high = _mm512_srli_epi32(codes, 16);
    return round_pairs(false, even, _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), a->scale, a->plus));
}

/* A chunk of a column on its way to tiles. */
struct source {
    const uint8_t *chunk;
    uint32_t nb; /* blocks in it */
    __m512 shrink;
    struct affine affine; /* of the block and half at hand */
};

/* A share of the block at p of the group's next chunk, of quad line j of 8, goes to L2. */
INLINE void fetch_ahead(const uint8_t *p, const struct weight_layout l, const int j)
{
    for (uint32_t i = 64 * (uint32_t)j; i < layout_full_chunk_bytes(l) / LAYOUT_BLOCKS; i += 512)
        _mm_prefetch((const char *)p + layout_full_chunk_bytes(l) + i, _MM_HINT_T1);
}

/* Quad line j of block b: 2 lines of 64 bytes of the tile. Those of a block come in rising order,
 * as line 0 (and 4) sets the scales. */
INLINE void dequant_quant(struct tile *dst, struct source *s, uint32_t b, const int j,
                          const enum quant_type type, const bool f16)
{
    const struct weight_layout l = weight_layout_of(type);
    const uint8_t *p = s->chunk + layout_scale_bytes(l, s->nb) + b * layout_block_bytes(l);
    fetch_ahead(p, l, j);
    if (j == 0 || (j == 4 && decode_halves(l))) {
        const struct decoded_scales scales = decode_scales(s->chunk, l, b);
        const float offset = l.iq4 ? LAYOUT_IQ4_OFFSET : l.offset;
        const __m512 plus =
            decode_has_plus(l) ? _mm512_mul_ps(scales.plus[j / 4], s->shrink) : _mm512_setzero_ps();
        s->affine = affine_of(f16, _mm512_mul_ps(scales.scale[j / 4], s->shrink), plus, offset);
    }
    const __m512i q = decode_quad(p, l, j);
    const __m512i even = _mm512_and_si512(q, _mm512_set1_epi16(0xff));
    const __m512i odd = _mm512_srli_epi16(q, 8);
    _mm512_store_si512(dst->bytes + 128 * j, dequant_pairs(f16, even, &s->affine));
    _mm512_store_si512(dst->bytes + 128 * j + 64, dequant_pairs(f16, odd, &s->affine));
}

INLINE void dequant_dense(struct tile *dst, struct source *s, uint32_t b, const int quad,
                          const enum quant_type type, const bool f16)
{
    const struct weight_layout l = weight_layout_of(type);
    const uint8_t *p = s->chunk + b * layout_block_bytes(l);
    const uint32_t j = (uint32_t)quad;
    fetch_ahead(p, l, quad);
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t i = 2 * j + h;
        __m512 w[2];
        if (type == QUANT_F32) {
            w[0] = _mm512_loadu_ps(p + 64 * (4 * j + h));
            w[1] = _mm512_loadu_ps(p + 64 * (4 * j + h + 2));
        } else {
            decode_pair(w, p + 64 * i, type);
        }
        _mm512_store_si512(dst->bytes + 64 * i, round_pairs(f16, _mm512_mul_ps(w[0], s->shrink),
                                                            _mm512_mul_ps(w[1], s->shrink)));
    }
}

/* Quad line j of a block has a function of its own, in which shifts and masks are constants. */
typedef void (*dequant_fn)(struct tile *dst, struct source *s, uint32_t b);

#define DEQUANT_LINE(kind, TYPE, j)                                                                \
    static void TYPE##_f16_##j(struct tile *dst, struct source *s, uint32_t b)                     \
    {                                                                                              \
        dequant_##kind(dst, s, b, j, QUANT_##TYPE, true);                                          \
    }                                                                                              \
    static void TYPE##_bf16_##j(struct tile *dst, struct source *s, uint32_t b)                    \
    {                                                                                              \
        dequant_##kind(dst, s, b, j, QUANT_##TYPE, false);                                         \
    }
#define DEQUANT(kind, TYPE)                                                                        \
    DEQUANT_LINE(kind, TYPE, 0)                                                                    \
    DEQUANT_LINE(kind, TYPE, 1)                                                                    \
    DEQUANT_LINE(kind, TYPE, 2)                                                                    \
    DEQUANT_LINE(kind, TYPE, 3)                                                                    \
    DEQUANT_LINE(kind, TYPE, 4)                                                                    \
    DEQUANT_LINE(kind, TYPE, 5)                                                                    \
    DEQUANT_LINE(kind, TYPE, 6)                                                                    \
    DEQUANT_LINE(kind, TYPE, 7)

DEQUANT(dense, F32)
DEQUANT(dense, F16)
DEQUANT(dense, BF16)
DEQUANT(quant, Q4_0)
DEQUANT(quant, Q4_1)
DEQUANT(quant, Q5_0)
DEQUANT(quant, Q5_1)
DEQUANT(quant, Q8_0)
DEQUANT(quant, Q2_K)
DEQUANT(quant, Q3_K)
DEQUANT(quant, Q4_K)
DEQUANT(quant, Q5_K)
DEQUANT(quant, Q6_K)
DEQUANT(quant, IQ4_NL)
DEQUANT(quant, IQ4_XS)

#define LINES(name)                                                                                \
    {                                                                                              \
        name##_0, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7             \
    }
#define ROW(TYPE) [QUANT_##TYPE] = {LINES(TYPE##_bf16), LINES(TYPE##_f16)}

/* [type][f16][quad line] */
static const dequant_fn dequant[QUANT_BF16 + 1][2][8] = {
    ROW(F32),  ROW(F16),  ROW(BF16), ROW(Q4_0), ROW(Q4_1), ROW(Q5_0),   ROW(Q5_1),  ROW(Q8_0),
    ROW(Q2_K), ROW(Q3_K), ROW(Q4_K), ROW(Q5_K), ROW(Q6_K), ROW(IQ4_NL), ROW(IQ4_XS)};

/* ---- Items --------------------------------------------------------------------------------------
 * An item is some pairs of columns; its steps are (pair, chunk) in an order that suits the caches:
 * pair by pair if the whole input stays in L2, else chunk by chunk. */

struct step {
    uint32_t pair_i, chunk_i; /* the pair counted in the item */
    uint32_t n_col;           /* 2, or 1 for the last pair of an odd number */
    struct linear_unit unit[2];
    struct source source[2];
    const dequant_fn *dequant[2]; /* [8] */
    struct tile *w;               /* [LAYOUT_BLOCKS, 2] */
};

struct item {
    const struct job *job;
    uint32_t pair0, n_pair;
    bool by_pair;        /* else by chunk */
    uint32_t r0, n_row2; /* the pass: first row pair, how many */
    struct tile *w;      /* [2, LAYOUT_BLOCKS, 2]: of this step and the next */
    struct sums *sums;   /* [n_pair or 1, n_row2] */
};

static bool input_stays(uint32_t n_row2, uint32_t n_chunk)
{
    return (size_t)n_row2 * n_chunk * LAYOUT_BLOCKS * 2 * sizeof(struct tile) <= X_L2;
}

static void open_source(struct step *st, const struct job *job, uint32_t col)
{
    const struct weight *w = job->op->part[st->unit[col].part_i].w;
    const uint8_t *group = w->data + st->unit[col].group_i * w->group_bytes;
    const uint32_t full = layout_full_chunk_bytes(weight_layout_of(w->type));
    st->source[col] =
        (struct source){.chunk = group + LAYOUT_HEAD + (size_t)st->chunk_i * full,
                        .nb = layout_chunk_blocks(job->n_block, st->chunk_i),
                        .shrink = job->f16 ? _mm512_loadu_ps(group) : _mm512_set1_ps(1)};
    st->dequant[col] = dequant[w->type][job->f16];
}

static void open_step(struct step *st, const struct item *it, uint32_t i)
{
    const struct job *job = it->job;
    st->pair_i = it->by_pair ? i / job->n_chunk : i % it->n_pair;
    st->chunk_i = it->by_pair ? i % job->n_chunk : i / it->n_pair;
    st->w = it->w + i % 2 * LAYOUT_BLOCKS * 2;
    const uint32_t pair = it->pair0 + st->pair_i;
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

/* Quad lines of a step, in the order in which fill_line wants them. */
static uint32_t step_lines(const struct step *st)
{
    return st->source[0].nb * st->n_col * 8;
}

static void fill_line(struct step *st, uint32_t i)
{
    const uint32_t two = st->n_col - 1, col = i / 8 & two, b = i / 8 >> two;
    st->dequant[col][i % 8](st->w + 2 * b + col, &st->source[col], b);
}

/* ---- Chores -------------------------------------------------------------------------------------
 * What is done besides the products, in small pieces: one call of do_chores behind each block of
 * products. A call does a fixed number of each kind while there are any: more elaborate rates cost
 * branches that the core guesses wrong, and then the tile unit waits. */

struct chores {
    struct step *next; /* to be dequantised */
    uint32_t line, n_line, lines_per_call;
    const char *x; /* input of the next chunk to fetch to L2 */
    uint32_t x_per_call;
};

static void do_chores(struct chores *c)
{
    for (uint32_t i = 0; i < c->lines_per_call && c->line < c->n_line; i++)
        fill_line(c->next, c->line++);
    for (uint32_t i = 0; i < c->x_per_call; i++, c->x += 64) _mm_prefetch(c->x, _MM_HINT_T1);
}

/* ---- Products -----------------------------------------------------------------------------------
 */

/* sums += x * w over nb blocks of two row tiles and two columns, or one where `rows2`, `cols2` say
 * so; they begin at zero if `first`. */
struct product {
    const struct tile *x, *w; /* [nb, 2] */
    struct sums *sums;
    struct chores *chores;
    uint32_t nb;
    bool first, rows2, cols2;
};

INLINE void multiply(const struct product *k, const bool f16, const bool rows2, const bool cols2)
{
    struct sums *s = k->sums;
    if (k->first) {
        TILE_ZERO(0);
        if (cols2) TILE_ZERO(1);
        if (rows2) TILE_ZERO(2);
        if (rows2 && cols2) TILE_ZERO(3);
    } else {
        TILE_LOAD(0, &s->at[0][0]);
        if (cols2) TILE_LOAD(1, &s->at[0][1]);
        if (rows2) TILE_LOAD(2, &s->at[1][0]);
        if (rows2 && cols2) TILE_LOAD(3, &s->at[1][1]);
    }
    const struct tile *x = k->x, *w = k->w;
    for (uint32_t b = 0; b < k->nb; b++, x += 2, w += 2) {
        TILE_LOAD(4, x);
        TILE_LOAD(6, w);
        TILE_FMA(f16, 0, 4, 6);
        if (cols2) {
            TILE_LOAD(7, w + 1);
            TILE_FMA(f16, 1, 4, 7);
        }
        if (rows2) {
            TILE_LOAD(5, x + 1);
            TILE_FMA(f16, 2, 5, 6);
        }
        if (rows2 && cols2) TILE_FMA(f16, 3, 5, 7);
        do_chores(k->chores);
    }
    TILE_STORE(0, &s->at[0][0]);
    if (cols2) TILE_STORE(1, &s->at[0][1]);
    if (rows2) TILE_STORE(2, &s->at[1][0]);
    if (rows2 && cols2) TILE_STORE(3, &s->at[1][1]);
}

INLINE void multiply_shape(const struct product *k, const bool f16)
{
    if (k->rows2 && k->cols2)
        multiply(k, f16, true, true);
    else if (k->rows2)
        multiply(k, f16, true, false);
    else if (k->cols2)
        multiply(k, f16, false, true);
    else
        multiply(k, f16, false, false);
}

static void multiply_f16(const struct product *k)
{
    multiply_shape(k, true);
}

static void multiply_bf16(const struct product *k)
{
    multiply_shape(k, false);
}

static __m512 unscale_of(const struct job *job, struct linear_unit unit)
{
    if (!job->f16) return _mm512_set1_ps(1);
    const struct weight *w = job->op->part[unit.part_i].w;
    return _mm512_div_ps(_mm512_set1_ps(1),
                         _mm512_loadu_ps(w->data + unit.group_i * w->group_bytes));
}

/* Whole lines past the caches: those of a GLU are as many as L2 holds, and a store that misses
 * keeps one of the few buffers that the tile loads need for as long as memory takes. */
static void stream(struct linear_out o)
{
    if (o.m == 0xffff && (uintptr_t)o.y % 64 == 0)
        _mm512_stream_ps(o.y, o.v);
    else
        _mm512_mask_storeu_ps(o.y, o.m, o.v);
}

/* The outputs of row pair r2 (of the op) from its sums. */
static void finish(const struct job *job, const struct step *st, uint32_t r2,
                   const struct sums *sums)
{
    const bool is_glu = linear_is_glu(job->op);
    __m512 unscale[2];
    for (uint32_t c = 0; c < st->n_col; c++) unscale[c] = unscale_of(job, st->unit[c]);
    for (uint32_t i = 0; i < 2 * TILE && r2 * 2 * TILE + i < job->op->n_row; i++) {
        const uint32_t r = r2 * 2 * TILE + i;
        const __m512 s = _mm512_set1_ps(job->unscale[r]);
        __m512 v[2];
        /* The product of the powers first: it is in range whenever the result is. */
        for (uint32_t c = 0; c < st->n_col; c++)
            v[c] = _mm512_mul_ps(_mm512_load_ps(sums->at[i / TILE][c].bytes + i % TILE * 64),
                                 _mm512_mul_ps(s, unscale[c]));
        if (is_glu) {
            stream(linear_finished(job->op, st->unit[0], r, v[0], v[1]));
            continue;
        }
        for (uint32_t c = 0; c < st->n_col; c++) linear_finish(job->op, st->unit[c], r, v[c], v[c]);
    }
}

/* The input of the next chunk goes to L2, of each row pair a share in each pair of columns. */
static void plan_fetch(struct chores *c, const struct item *it, const struct step *st, uint32_t r2)
{
    const uint32_t n_line = LAYOUT_BLOCKS * 2 * TILE, share = it->n_pair * st->source[0].nb;
    c->x_per_call = 0;
    if (it->by_pair || st->chunk_i + 1 == it->job->n_chunk) return;
    c->x = (const char *)x_tiles(it->job, st->chunk_i + 1, r2) +
           (size_t)64 * (n_line * st->pair_i / it->n_pair);
    c->x_per_call = (n_line + share - 1) / share;
}

/* All row pairs of the pass times the pair's chunk; meanwhile `next` (or NULL) is dequantised. */
static void run_step(const struct item *it, const struct step *st, struct step *next)
{
    const struct job *job = it->job;
    const bool last = st->chunk_i + 1 == job->n_chunk;
    const uint32_t n_call = it->n_row2 * st->source[0].nb;
    struct sums *sums = it->sums + (it->by_pair ? 0 : (size_t)st->pair_i * it->n_row2);
    struct chores chores = {.next = next, .n_line = next ? step_lines(next) : 0};
    chores.lines_per_call = (chores.n_line + n_call - 1) / n_call;
    struct product k = {.w = st->w,
                        .chores = &chores,
                        .nb = st->source[0].nb,
                        .first = st->chunk_i == 0,
                        .cols2 = st->n_col == 2};
    for (uint32_t i = 0; i < it->n_row2; i++) {
        k.x = x_tiles(job, st->chunk_i, it->r0 + i);
        k.sums = sums + i;
        k.rows2 = (it->r0 + i) * 2 * TILE + TILE < job->op->n_row;
        plan_fetch(&chores, it, st, it->r0 + i);
        if (job->f16)
            multiply_f16(&k);
        else
            multiply_bf16(&k);
        /* A row pair later, so that the sums have left the store buffer. */
        if (last && i > 0) finish(job, st, it->r0 + i - 1, k.sums - 1);
    }
    if (last) finish(job, st, it->r0 + it->n_row2 - 1, k.sums);
    assert(chores.line == chores.n_line);
}

static uint32_t row_pairs(uint32_t n_row)
{
    return (n_row + 2 * TILE - 1) / (2 * TILE);
}

static size_t worker_bytes(uint32_t n_row, uint32_t n_chunk)
{
    const uint32_t n = row_pairs(n_row < ROWS_PASS ? n_row : ROWS_PASS);
    const size_t n_sums = input_stays(n, n_chunk) ? n : (size_t)PAIRS_MAX * n;
    return 2 * LAYOUT_BLOCKS * 2 * sizeof(struct tile) + n_sums * sizeof(struct sums);
}

static void run_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct job *job = arg;
    struct item it = {.job = job};
    it.pair0 = (uint32_t)((uint64_t)job->n_pair * item_i / job->n_item);
    it.n_pair = (uint32_t)((uint64_t)job->n_pair * (item_i + 1) / job->n_item) - it.pair0;
    it.w = (struct tile *)(job->per_worker + worker_i * worker_bytes(job->op->n_row, job->n_chunk));
    it.sums = (struct sums *)(it.w + 2 * LAYOUT_BLOCKS * 2);
    tiles_begin();
    for (; it.r0 < job->n_row2; it.r0 += it.n_row2) {
        const uint32_t left = job->n_row2 - it.r0, pass = ROWS_PASS / (2 * TILE);
        it.n_row2 = left < pass ? left : pass;
        it.by_pair = input_stays(it.n_row2, job->n_chunk);
        const uint32_t n_step = it.n_pair * job->n_chunk;
        struct step step[2];
        open_step(&step[0], &it, 0);
        for (uint32_t i = 0; i < step_lines(&step[0]); i++) fill_line(&step[0], i);
        for (uint32_t i = 0; i < n_step; i++) {
            struct step *next = i + 1 < n_step ? &step[(i + 1) % 2] : NULL;
            if (next) open_step(next, &it, i + 1);
            run_step(&it, &step[i % 2], next);
        }
    }
    TILE_RELEASE();
    _mm_sfence(); /* orders the streamed outputs before the end of the item */
}

/* Items of about equal size, a multiple of the workers in number if there are enough pairs. */
static void cut_items(struct job *job, uint32_t n_worker)
{
    const uint32_t n_unit = linear_n_unit(job->op);
    job->n_pair = linear_is_glu(job->op) ? n_unit : (n_unit + 1) / 2;
    uint32_t n = (job->n_pair + PAIRS_MAX - 1) / PAIRS_MAX;
    n = (n + n_worker - 1) / n_worker * n_worker;
    job->n_item = n < job->n_pair ? n : job->n_pair;
}

static uint32_t n_chunk_of(uint32_t n_in)
{
    return (n_in + LAYOUT_CHUNK - 1) / LAYOUT_CHUNK;
}

static size_t amx_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in)
{
    const size_t n_row2 = row_pairs(n_row);
    return n_row2 * n_chunk_of(n_in) * LAYOUT_BLOCKS * 2 * sizeof(struct tile) +
           n_row2 * 2 * TILE * sizeof(float) + n_worker * worker_bytes(n_row, n_chunk_of(n_in));
}

static size_t scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    const size_t narrow = linear_avx512_scratch(n_worker, n_row, n_in, n_out_sum);
    const size_t wide = amx_scratch(n_worker, n_row, n_in);
    return narrow > wide ? narrow : wide;
}

static void run_wide(struct workers *pool, const struct op_linear *op, bool f16)
{
    linear_check(op);
    assert(op->scratch_bytes >= amx_scratch(workers_count(pool), op->n_row, op->n_in));
    struct job job = {.op = op,
                      .f16 = f16,
                      .n_block = layout_n_block(op->n_in),
                      .n_chunk = n_chunk_of(op->n_in),
                      .n_row2 = row_pairs(op->n_row)};
    job.x = op->scratch;
    job.unscale = (float *)(job.x + (size_t)job.n_row2 * job.n_chunk * LAYOUT_BLOCKS * 2);
    job.per_worker = (uint8_t *)(job.unscale + (size_t)job.n_row2 * 2 * TILE);
    cut_items(&job, workers_count(pool));
    workers_for(pool, 2 * job.n_row2, round_tile_item, &job);
    workers_for(pool, job.n_item, run_item, &job);
}

void linear_amx_f16(struct workers *pool, const struct op_linear *op)
{
    if (op->mode == LINEAR_NARROW)
        linear_narrow_amx(pool, op);
    else
        run_wide(pool, op, true);
}

void linear_amx_bf16(struct workers *pool, const struct op_linear *op)
{
    if (op->mode == LINEAR_NARROW)
        linear_narrow_amx(pool, op);
    else
        run_wide(pool, op, false);
}

void ops_fill_amx_linear(struct ops *o)
{
    o->linear = detect_features() & DETECT_AMX_FP16 ? linear_amx_f16 : linear_amx_bf16;
    o->linear_scratch = scratch;
}
