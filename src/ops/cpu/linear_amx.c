/* linear_amx.c: linear layers of many rows in AMX tiles; few rows go to linear_avx512.c.
 *
 * Weights are dequantised, 256 inputs of up to COLS_MAX groups of 16 outputs at a time, to 16-bit
 * floats in a scratch that fits L2, and multiplied there by all rows (up to ROWS_PASS) of the
 * input, which was rounded to 16 bits and laid out in tiles once per call.
 *
 * Precision. f16 where the CPU multiplies it (TDPFP16PS), which has 3 bits more than bf16. Its
 * range is made sufficient by powers of two: each input row is scaled so that its largest magnitude
 * lies in 2^14..2^15, each weight row by its `shrink`; the sum is scaled back. So what falls below
 * f16 is 2^-39 of the row's maximum. A weight is d * v + m rounded once (d * s of K types once
 * more). Sums are f32 in the tiles. A row with an infinity or NaN has no finite outputs; other rows
 * do not notice.
 *
 * Order, the same for every n_row and split: chunks of 256 inputs in rising order, blocks of 32 in
 * them, in a block what TDPFP16PS does with the pairs of inputs (4j, 4j + 2), (4j + 1, 4j + 3).
 *
 * Layouts. A tile is 1 KiB, contiguous: input [16 rows][32 inputs], the inputs in the order of
 * pairs above; weights [16 pairs][16 outputs][2]; sums [16 rows][16 outputs] f32. Tile registers:
 * sums 0..3, inputs 4 and 5, weights 6 and 7. The compiler does not know them; each asm is
 * volatile, and names the memory that it touches. */
#include "ops/cpu/detect.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/linear_avx512.h"
#include "ops/cpu/linear_decode.h"

#include <string.h>

#define COLS_MAX  20u  /* groups (tile columns) of an item */
#define ROWS_PASS 512u /* rows per pass over the weights: their sums, 640 KiB, stay in L2 */
#define TILE      16u  /* rows of a tile, columns of sums */

struct tile {
    uint8_t bytes[1024];
};

/* What an item computes: units u0.. of the op; for a GLU column u and column n_unit + u. */
struct cols {
    uint32_t n, n_unit;
    struct linear_unit unit[COLS_MAX]; /* part and group of each column */
};

struct job {
    const struct op_linear *op;
    bool f16;                          /* else bf16 */
    uint32_t n_block, n_chunk, n_tile; /* of the input: blocks and chunks of a row, row tiles */
    uint32_t n_item, item_units;
    struct tile *x;      /* [n_chunk, n_tile, 8]: what a chunk reads lies together */
    float *unscale;      /* [n_row rounded up to 16] inverse powers of two */
    uint8_t *per_worker; /* [n_worker][worker_bytes] weights, then sums */
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

/* Block b of row tile t. */
static struct tile *x_tile(const struct job *job, uint32_t t, uint32_t b)
{
    const size_t chunk_i = b / LAYOUT_BLOCKS;
    return job->x + (chunk_i * job->n_tile + t) * LAYOUT_BLOCKS + b % LAYOUT_BLOCKS;
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

static void prepare_row(const struct job *job, uint32_t r)
{
    const struct op_linear *op = job->op;
    const float *row = op->x + r * op->x_stride;
    const float scale = op->norm ? linear_rms_scale(row, op->n_in, op->norm_eps) : 1;
    __m512i top = _mm512_setzero_si512();
    for (uint32_t k = 0; k < op->n_in; k += 16) {
        const __m512i bits = _mm512_castps_si512(linear_load_x(op, r, k, scale));
        top = _mm512_max_epu32(top, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    const float shrink = shrink_of(_mm512_reduce_max_epu32(top));
    const __m512 s = _mm512_set1_ps(shrink);
    job->unscale[r] = 1 / shrink;
    for (uint32_t b = 0; b < job->n_block; b++) {
        const __m512 x0 = linear_load_x(op, r, b * LAYOUT_BLOCK, scale);
        const __m512 x1 = linear_load_x(op, r, b * LAYOUT_BLOCK + 16, scale);
        _mm512_store_si512(x_tile(job, r / TILE, b)->bytes + r % TILE * 64,
                           round_inputs(job->f16, _mm512_mul_ps(x0, s), _mm512_mul_ps(x1, s)));
    }
}

static void prepare_tile(void *arg, uint32_t tile_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    for (uint32_t r = tile_i * TILE; r < (tile_i + 1) * TILE; r++) {
        if (r < job->op->n_row) {
            prepare_row(job, r);
            continue;
        }
        for (uint32_t b = 0; b < job->n_block; b++)
            memset(x_tile(job, tile_i, b)->bytes + r % TILE * 64, 0, 64);
    }
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

INLINE void dequant_quant(struct tile *dst, const uint8_t *src, uint32_t nb, __m512 shrink,
                          const enum quant_type type, const bool f16)
{
    const struct weight_layout l = weight_layout_of(type);
    const float offset = l.iq4 ? LAYOUT_IQ4_OFFSET : l.offset;
    const uint8_t *p = src + layout_scale_bytes(l, nb);
    for (uint32_t b = 0; b < nb; b++, p += layout_block_bytes(l)) {
        __m512i q[8];
        decode_block(q, p, l);
        const struct decoded_scales s = decode_scales(src, l, b);
        struct affine a = {0};
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            if (j == 0 || (j == 4 && decode_halves(l))) {
                const int h = j / 4;
                const __m512 plus =
                    decode_has_plus(l) ? _mm512_mul_ps(s.plus[h], shrink) : _mm512_setzero_ps();
                a = affine_of(f16, _mm512_mul_ps(s.scale[h], shrink), plus, offset);
            }
            const __m512i even = _mm512_and_si512(q[j], _mm512_set1_epi16(0xff));
            const __m512i odd = _mm512_srli_epi16(q[j], 8);
            uint8_t *line = dst[b].bytes + 128 * j;
            _mm512_store_si512(line, dequant_pairs(f16, even, &a));
            _mm512_store_si512(line + 64, dequant_pairs(f16, odd, &a));
        }
    }
}

INLINE void dequant_dense(struct tile *dst, const uint8_t *src, uint32_t nb, __m512 shrink,
                          const enum quant_type type, const bool f16)
{
    for (uint32_t i = 0; i < nb * 16; i++) {
        const uint32_t j = i / 2, h = i % 2;
        __m512 w[2];
        if (type == QUANT_F32) {
            w[0] = _mm512_loadu_ps(src + 64 * (4 * j + h));
            w[1] = _mm512_loadu_ps(src + 64 * (4 * j + h + 2));
        } else {
            decode_pair(w, src + 64 * i, type);
        }
        _mm512_store_si512(
            dst[i / 16].bytes + 64 * (i % 16),
            round_pairs(f16, _mm512_mul_ps(w[0], shrink), _mm512_mul_ps(w[1], shrink)));
    }
}

typedef void (*dequant_fn)(struct tile *dst, const uint8_t *src, uint32_t nb, __m512 shrink);

#define DEQUANT(kind, TYPE)                                                                        \
    static void TYPE##_f16(struct tile *dst, const uint8_t *src, uint32_t nb, __m512 shrink)       \
    {                                                                                              \
        dequant_##kind(dst, src, nb, shrink, QUANT_##TYPE, true);                                  \
    }                                                                                              \
    static void TYPE##_bf16(struct tile *dst, const uint8_t *src, uint32_t nb, __m512 shrink)      \
    {                                                                                              \
        dequant_##kind(dst, src, nb, shrink, QUANT_##TYPE, false);                                 \
    }

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

#define ROW(TYPE) [QUANT_##TYPE] = {TYPE##_bf16, TYPE##_f16}

/* [type][f16] */
static const dequant_fn dequant[QUANT_BF16 + 1][2] = {
    ROW(F32),  ROW(F16),  ROW(BF16), ROW(Q4_0), ROW(Q4_1), ROW(Q5_0),   ROW(Q5_1),  ROW(Q8_0),
    ROW(Q2_K), ROW(Q3_K), ROW(Q4_K), ROW(Q5_K), ROW(Q6_K), ROW(IQ4_NL), ROW(IQ4_XS)};

static const uint8_t *chunk_at(const struct weight *w, uint32_t group_i, uint32_t chunk_i)
{
    return w->data + group_i * w->group_bytes + LAYOUT_HEAD +
           (size_t)chunk_i * layout_full_chunk_bytes(weight_layout_of(w->type));
}

/* ---- Products -----------------------------------------------------------------------------------
 */

/* sum[r][c] += x[r] * w[c] over nb blocks for up to 2 x 2 tiles; sums begin at zero if `first`. */
struct block {
    const struct tile *x[2], *w[2];
    struct tile *sum[2][2];
    uint32_t nb;
    bool first;
};

INLINE void multiply(const struct block *k, const bool f16, const bool rows2, const bool cols2)
{
    if (k->first) {
        TILE_ZERO(0);
        if (cols2) TILE_ZERO(1);
        if (rows2) TILE_ZERO(2);
        if (rows2 && cols2) TILE_ZERO(3);
    } else {
        TILE_LOAD(0, k->sum[0][0]);
        if (cols2) TILE_LOAD(1, k->sum[0][1]);
        if (rows2) TILE_LOAD(2, k->sum[1][0]);
        if (rows2 && cols2) TILE_LOAD(3, k->sum[1][1]);
    }
    for (uint32_t b = 0; b < k->nb; b++) {
        TILE_LOAD(4, k->x[0] + b);
        TILE_LOAD(6, k->w[0] + b);
        TILE_FMA(f16, 0, 4, 6);
        if (cols2) {
            TILE_LOAD(7, k->w[1] + b);
            TILE_FMA(f16, 1, 4, 7);
        }
        if (rows2) {
            TILE_LOAD(5, k->x[1] + b);
            TILE_FMA(f16, 2, 5, 6);
        }
        if (rows2 && cols2) TILE_FMA(f16, 3, 5, 7);
    }
    TILE_STORE(0, k->sum[0][0]);
    if (cols2) TILE_STORE(1, k->sum[0][1]);
    if (rows2) TILE_STORE(2, k->sum[1][0]);
    if (rows2 && cols2) TILE_STORE(3, k->sum[1][1]);
}

INLINE void multiply_shape(const struct block *k, const bool f16, bool rows2, bool cols2)
{
    if (rows2 && cols2)
        multiply(k, f16, true, true);
    else if (rows2)
        multiply(k, f16, true, false);
    else if (cols2)
        multiply(k, f16, false, true);
    else
        multiply(k, f16, false, false);
}

static void multiply_f16(const struct block *k, bool rows2, bool cols2)
{
    multiply_shape(k, true, rows2, cols2);
}

static void multiply_bf16(const struct block *k, bool rows2, bool cols2)
{
    multiply_shape(k, false, rows2, cols2);
}

/* ---- The op -------------------------------------------------------------------------------------
 */

static size_t worker_bytes(uint32_t n_row)
{
    const uint32_t n_tile = (n_row + TILE - 1) / TILE, pass = ROWS_PASS / TILE;
    return (size_t)COLS_MAX * (LAYOUT_BLOCKS + (n_tile < pass ? n_tile : pass)) *
           sizeof(struct tile);
}

static struct cols find_cols(const struct job *job, uint32_t item_i)
{
    const uint32_t n_unit = linear_n_unit(job->op), u0 = item_i * job->item_units;
    struct cols c = {.n_unit = n_unit - u0 < job->item_units ? n_unit - u0 : job->item_units};
    for (uint32_t u = 0; u < c.n_unit; u++) c.unit[c.n++] = linear_find_unit(job->op, u0 + u);
    if (linear_is_glu(job->op))
        for (uint32_t u = 0; u < c.n_unit; u++) c.unit[c.n++] = (struct linear_unit){1, u0 + u};
    return c;
}

/* Slice `i` of `n` of the next chunk's bytes of a column goes to L2. */
static void prefetch_slice(const struct job *job, struct linear_unit unit, uint32_t chunk_i,
                           uint32_t i, uint32_t n)
{
    const struct weight *w = job->op->part[unit.part_i].w;
    const struct weight_layout l = weight_layout_of(w->type);
    const uint8_t *p = chunk_at(w, unit.group_i, chunk_i);
    const uint32_t nb = layout_chunk_blocks(job->n_block, chunk_i);
    const uint32_t lines = (layout_chunk_bytes(l, nb) + 63) / 64;
    for (uint32_t at = lines * i / n; at < lines * (i + 1) / n; at++)
        _mm_prefetch((const char *)p + 64 * at, _MM_HINT_T1);
}

/* A pass of a worker: its columns, row tiles t0 .. t0 + n_tile - 1, and its memory. */
struct pass {
    struct cols c;
    uint32_t t0, n_tile;
    struct tile *w;   /* [columns, LAYOUT_BLOCKS] the current chunk's weights */
    struct tile *sum; /* [columns, n_tile] */
};

/* The pass's rows times chunk `chunk_i` of all its columns. */
static void run_chunk(const struct job *job, const struct pass *pass, uint32_t chunk_i)
{
    const struct cols *c = &pass->c;
    struct tile *w = pass->w, *sum = pass->sum;
    const uint32_t t0 = pass->t0, n_tile = pass->n_tile;
    struct block k = {.nb = layout_chunk_blocks(job->n_block, chunk_i), .first = chunk_i == 0};
    for (uint32_t i = 0; i < c->n; i++) {
        const struct weight *weight = job->op->part[c->unit[i].part_i].w;
        const __m512 shrink =
            _mm512_loadu_ps(weight->data + c->unit[i].group_i * weight->group_bytes);
        dequant[weight->type][job->f16](
            w + i * LAYOUT_BLOCKS, chunk_at(weight, c->unit[i].group_i, chunk_i), k.nb, shrink);
    }
    for (uint32_t t = 0; t < n_tile; t += 2) {
        const bool rows2 = t + 1 < n_tile;
        k.x[0] = x_tile(job, t0 + t, chunk_i * LAYOUT_BLOCKS);
        k.x[1] = k.x[0] + LAYOUT_BLOCKS;
        for (uint32_t i = 0; i < c->n; i += 2) {
            const bool cols2 = i + 1 < c->n;
            k.w[0] = w + i * LAYOUT_BLOCKS;
            k.w[1] = k.w[0] + LAYOUT_BLOCKS;
            k.sum[0][0] = sum + (size_t)i * n_tile + t;
            k.sum[1][0] = k.sum[0][0] + 1;
            k.sum[0][1] = k.sum[0][0] + n_tile;
            k.sum[1][1] = k.sum[0][1] + 1;
            if (job->f16)
                multiply_f16(&k, rows2, cols2);
            else
                multiply_bf16(&k, rows2, cols2);
            /* The two row tiles after these, a share per pair of columns. */
            const uint8_t *next = (const uint8_t *)(k.x[0] + 2 * LAYOUT_BLOCKS);
            const uint32_t x_lines = 2 * LAYOUT_BLOCKS * 16;
            for (uint32_t at = x_lines * i / c->n; at < x_lines * (i + 2) / c->n; at++)
                _mm_prefetch((const char *)next + 64 * at, _MM_HINT_T1);
            for (uint32_t p = i; p < i + 2 && p < c->n && chunk_i + 1 < job->n_chunk; p++)
                prefetch_slice(job, c->unit[p], chunk_i + 1, t / 2, (n_tile + 1) / 2);
        }
    }
}

static __m512 unscale_of(const struct job *job, struct linear_unit unit)
{
    const struct weight *w = job->op->part[unit.part_i].w;
    return _mm512_div_ps(_mm512_set1_ps(1),
                         _mm512_loadu_ps(w->data + unit.group_i * w->group_bytes));
}

/* Rows outside, so that a row of y is written as one stretch and not line by line. */
static void finish_pass(const struct job *job, const struct pass *pass)
{
    const struct cols *c = &pass->c;
    const struct tile *sum = pass->sum;
    const uint32_t t0 = pass->t0, n_tile = pass->n_tile;
    const uint32_t r0 = t0 * TILE, left = job->op->n_row - r0;
    const uint32_t n_row = left < n_tile * TILE ? left : n_tile * TILE;
    const uint32_t up = linear_is_glu(job->op) ? c->n_unit : 0; /* column of unit u's other part */
    __m512 unscale[COLS_MAX];
    for (uint32_t i = 0; i < c->n; i++) unscale[i] = unscale_of(job, c->unit[i]);
    for (uint32_t r = 0; r < n_row; r++) {
        const __m512 s = _mm512_set1_ps(job->unscale[r0 + r]);
        const float *row = (const float *)sum + (size_t)r * TILE;
        for (uint32_t u = 0; u < c->n_unit; u++) {
            const __m512 v = _mm512_load_ps(row + (size_t)u * n_tile * TILE * TILE);
            const __m512 v_up = _mm512_load_ps(row + (size_t)(u + up) * n_tile * TILE * TILE);
            /* The product of the powers first: it is in range whenever the result is. */
            linear_finish(job->op, c->unit[u], r0 + r,
                          _mm512_mul_ps(v, _mm512_mul_ps(s, unscale[u])),
                          _mm512_mul_ps(v_up, _mm512_mul_ps(s, unscale[u + up])));
        }
    }
}

static void run_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct job *job = arg;
    struct pass p = {.c = find_cols(job, item_i)};
    p.w = (struct tile *)(job->per_worker + worker_i * worker_bytes(job->op->n_row));
    p.sum = p.w + COLS_MAX * LAYOUT_BLOCKS;
    tiles_begin();
    for (; p.t0 < job->n_tile; p.t0 += ROWS_PASS / TILE) {
        const uint32_t left = job->n_tile - p.t0;
        p.n_tile = left < ROWS_PASS / TILE ? left : ROWS_PASS / TILE;
        for (uint32_t i = 0; i < job->n_chunk; i++) run_chunk(job, &p, i);
        finish_pass(job, &p);
    }
    TILE_RELEASE();
}

/* Items of equal size, a multiple of the workers in number, at most COLS_MAX columns each. */
static void cut_items(struct job *job, uint32_t n_worker)
{
    const uint32_t n_unit = linear_n_unit(job->op), cols_per_unit = linear_is_glu(job->op) ? 2 : 1;
    const uint32_t n_col = n_unit * cols_per_unit;
    uint32_t n_item = (n_col + COLS_MAX - 1) / COLS_MAX;
    n_item = (n_item + n_worker - 1) / n_worker * n_worker;
    const uint32_t cols = ((n_col + n_item - 1) / n_item + 1) & ~1u; /* even: pairs of tiles */
    job->item_units = cols / cols_per_unit;
    job->n_item = (n_unit + job->item_units - 1) / job->item_units;
}

static uint32_t n_chunk_of(uint32_t n_in)
{
    return (n_in + LAYOUT_CHUNK - 1) / LAYOUT_CHUNK;
}

static size_t amx_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in)
{
    const size_t n_tile = (n_row + TILE - 1) / TILE;
    return n_tile * n_chunk_of(n_in) * LAYOUT_BLOCKS * sizeof(struct tile) +
           n_tile * TILE * sizeof(float) + n_worker * worker_bytes(n_row);
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
                      .n_tile = (op->n_row + TILE - 1) / TILE};
    job.x = op->scratch;
    job.unscale = (float *)(job.x + (size_t)job.n_tile * job.n_chunk * LAYOUT_BLOCKS);
    job.per_worker = (uint8_t *)(job.unscale + (size_t)job.n_tile * TILE);
    cut_items(&job, workers_count(pool));
    workers_for(pool, job.n_tile, prepare_tile, &job);
    workers_for(pool, job.n_item, run_item, &job);
}

void linear_amx_f16(struct workers *pool, const struct op_linear *op)
{
    if (op->mode == LINEAR_NARROW)
        linear_avx512_run(pool, op);
    else
        run_wide(pool, op, true);
}

void linear_amx_bf16(struct workers *pool, const struct op_linear *op)
{
    if (op->mode == LINEAR_NARROW)
        linear_avx512_run(pool, op);
    else
        run_wide(pool, op, false);
}

void ops_fill_amx_linear(struct ops *o)
{
    o->linear = detect_features() & DETECT_AMX_FP16 ? linear_amx_f16 : linear_amx_bf16;
    o->linear_scratch = scratch;
}
