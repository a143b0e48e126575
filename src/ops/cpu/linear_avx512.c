/* linear_avx512.c: linear layers by VPDPBUSD on the packed codes; bound by memory for one row, by
 * the two multiply ports from about eight rows on.
 *
 * Activations. A row is cut into blocks of 32. A block with largest magnitude a becomes integers v
 * = round(x * 32512 / a), held as two int8 planes, v = 256 * hi + lo with hi in -127..127 and lo in
 * -128..127. Two planes, because one (8 bits) costs a relative error of 5e-3 per layer and two cost
 * 2e-5, while a decode step waits for memory either way. A block with a NaN or an infinity makes
 * its row's outputs NaN; blocks below 1e-30 count as zero.
 *
 * Arithmetic of one output and row, the same for every n_row and split: blocks in ascending order;
 * per block the exact integer sum of v * (code - offset), one FMA with (weight scale * block
 * scale), and for types with an offset one more FMA with the block's sum. 16 and 32-bit weights:
 * one FMA per input in ascending order on f32 activations.
 *
 * Work. A worker processes several groups of 16 outputs in parallel: as many streams as it takes to
 * read memory at its full rate. These groups are an equal part of the matrix apart, because the
 * CPU's prefetcher needs streams that continue, and starts anew where one ends. Chunks of 256
 * inputs are the outer loop, so that the activations of a chunk stay in L1 across groups and row
 * tiles. Accumulators live in registers within a chunk, in scratch between chunks. Where the CPU
 * has int8 tiles, the kernels of linear_narrow_amx.c take eight rows at once and whole groups. */
#include "ops/cpu/fill.h"
#include "ops/cpu/linear_narrow.h"

#include <string.h>

#define ROWS_PASS 256u  /* rows per pass over the weights: a chunk of their activations fits L2 */
#define V_MAX     32512 /* 127 * 256: hi = 127, lo = 0 */
#define TILES_MIN 5u    /* minimum number of rows for which a tile is faster than single rows */
#define TINY      1e-30f

struct job {
    const struct op_linear *op;
    struct narrow_reading reading;
    bool want_int, want_f32; /* formats of x that the parts need */
    uint32_t n_block;
    struct narrow_block *act;         /* [n_row, n_block] */
    float *x;                         /* [n_row, n_block * 32] */
    float *scale;                     /* [n_row] of the RMS norm; with tiles only */
    const struct narrow_tiles *tiles; /* NULL: no tiles, or too few rows */
    struct narrow_tile *tile;         /* [n_row / NARROW_TILE_ROWS rounded up, n_block] */
    float *acc;                       /* [n_worker, 2, NARROW_STREAMS, ROWS_PASS, 16] */
};

/* ---- Activations ---- */

/* n rounded up to whole tiles. */
static uint32_t whole_tiles(uint32_t n)
{
    return (n + NARROW_TILE_ROWS - 1) / NARROW_TILE_ROWS * NARROW_TILE_ROWS;
}

static void quantise_half(int8_t *hi, int8_t *lo, int32_t *out_sum, __m512 x, __m512 inverse)
{
    const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
    const __m512i low = _mm512_sub_epi32(v, _mm512_slli_epi32(high, 8));
    _mm_storeu_si128((__m128i *)hi, _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128((__m128i *)lo, _mm512_cvtepi32_epi8(low));
    *out_sum = _mm512_reduce_add_epi32(v);
}

static void quantise_block(struct narrow_block *b, __m512 x0, __m512 x1)
{
    /* Compared as integers, magnitudes are in the order of the floats, with infinity and NaN
     * last. */
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const uint32_t top = _mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(x1), magnitude)));
    float a;
    memcpy(&a, &top, sizeof a);
    memset(b, 0, sizeof *b);
    if (top >= 0x7f800000u) {
        b->scale = b->sum = b->half_sum[0] = b->half_sum[1] = NAN;
        return;
    }
    if (a < TINY) return;
    const __m512 inverse = _mm512_set1_ps(V_MAX / a);
    quantise_half(b->hi, b->lo, &b->half_isum[0], x0, inverse);
    quantise_half(b->hi + 16, b->lo + 16, &b->half_isum[1], x1, inverse);
    b->isum = b->half_isum[0] + b->half_isum[1];
    b->scale = a / V_MAX;
    b->sum = b->scale * (float)b->isum;
    for (uint32_t h = 0; h < 2; h++) b->half_sum[h] = b->scale * (float)b->half_isum[h];
}

/* Copies a block to row r of a tile. */
static void copy_to_tile(struct narrow_tile *tile, uint32_t r, const struct narrow_block *b)
{
    memcpy(tile->hi[r], b->hi, sizeof b->hi);
    memcpy(tile->lo[r], b->lo, sizeof b->lo);
    tile->scale[r] = b->scale;
    tile->sum[r] = b->sum;
    tile->half_sum[0][r] = b->half_sum[0];
    tile->half_sum[1][r] = b->half_sum[1];
    tile->isum_128[r] = 128 * b->isum;
}

static float row_scale(const struct op_linear *op, uint32_t r)
{
    return op->norm ? linear_rms_scale(op->x + r * op->x_stride, op->n_in, op->norm_eps) : 1;
}

/* Packs block b of row r in the formats that the parts need. */
static void prepare_block(const struct job *job, uint32_t r, uint32_t b, float scale)
{
    const size_t block = (size_t)r * job->n_block + b;
    const __m512 x0 = linear_load_x(job->op, r, b * LAYOUT_BLOCK, scale);
    const __m512 x1 = linear_load_x(job->op, r, b * LAYOUT_BLOCK + 16, scale);
    if (job->want_int) quantise_block(&job->act[block], x0, x1);
    if (job->want_f32) {
        _mm512_store_ps(job->x + block * LAYOUT_BLOCK, x0);
        _mm512_store_ps(job->x + block * LAYOUT_BLOCK + 16, x1);
    }
}

static void prepare_row(void *arg, uint32_t r, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    const float scale = row_scale(job->op, r);
    for (uint32_t b = 0; b < job->n_block; b++) prepare_block(job, r, b, scale);
}

static void find_scale(void *arg, uint32_t r, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    job->scale[r] = row_scale(job->op, r);
}

/* Packs blocks [begin, end), counted over all tiles. Work is divided by blocks and not by rows:
 * workers that share a tile would write to the same cache lines. */
static void prepare_tiles(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    const struct narrow_block empty = {.scale = 0};
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t r0 = i / job->n_block * NARROW_TILE_ROWS, b = i % job->n_block;
        for (uint32_t k = 0; k < NARROW_TILE_ROWS; k++) {
            const uint32_t r = r0 + k;
            if (r < job->op->n_row) prepare_block(job, r, b, job->scale[r]);
            copy_to_tile(&job->tile[i], k,
                         r < job->op->n_row ? &job->act[(size_t)r * job->n_block + b] : &empty);
        }
    }
}

static void prepare(struct workers *pool, struct job *job)
{
    const uint32_t n_row = job->op->n_row;
    if (!job->tiles) {
        workers_for(pool, n_row, prepare_row, job);
        return;
    }
    if (job->op->norm)
        workers_for(pool, n_row, find_scale, job);
    else
        for (uint32_t r = 0; r < n_row; r++) job->scale[r] = 1;
    const uint32_t n = whole_tiles(n_row) / NARROW_TILE_ROWS * job->n_block;
    workers_for_span(pool, n, n, prepare_tiles, job);
}

/* ---- Chunk kernels; `type` and `mr` are constants at every call ---- */

INLINE __m512i broadcast_quad(const int8_t *p)
{
    int32_t quad;
    memcpy(&quad, p, sizeof quad);
    return _mm512_set1_epi32(quad);
}

/* Compile-time constants of a kernel: groups, rows, and the weight layout. */
struct shape {
    uint32_t ng, mr;
    struct weight_layout l;
};

INLINE void load_acc(__m512 acc[4][8], const struct narrow_chunk *c, const uint32_t ng,
                     const uint32_t mr)
{
#pragma GCC unroll 4
    for (uint32_t g = 0; g < ng; g++)
#pragma GCC unroll 8
        for (uint32_t m = 0; m < mr; m++)
            acc[g][m] = _mm512_load_ps(c->acc + g * c->acc_stride + 16 * m);
}

INLINE void store_acc(const struct narrow_chunk *c, __m512 acc[4][8], const uint32_t ng,
                      const uint32_t mr)
{
#pragma GCC unroll 4
    for (uint32_t g = 0; g < ng; g++)
#pragma GCC unroll 8
        for (uint32_t m = 0; m < mr; m++)
            _mm512_store_ps(c->acc + g * c->acc_stride + 16 * m, acc[g][m]);
}

/* log2 of the offset that the kernels subtract from codes; -1: none. */
INLINE int log_offset_of(const struct weight_layout l)
{
    return l.iq4 ? 7 : l.offset ? __builtin_ctz(l.offset) : -1;
}

/* Integer sums over the inputs that share a scale: half h = 0, 1 of a block, or all of it. */
struct dots {
    __m512i hi[4][8], lo[4][8]; /* [groups, rows] */
};

/* Exact integer sums of hi and of lo times (code - offset), over the inputs of half h of the block
 * at p. */
INLINE void dot_part(struct dots *d, const struct narrow_chunk *c, const uint8_t *p,
                     const struct narrow_block *a, const uint32_t h, const struct shape s)
{
    const struct weight_layout l = s.l;
    const int log_offset = log_offset_of(l);
    const int n_line = layout_halves(l) ? 4 : 8;
#pragma GCC unroll 8
    for (uint32_t m = 0; m < s.mr; m++, a += c->stride) {
        const int32_t isum = layout_halves(l) ? a->half_isum[h] : a->isum;
        const __m512i zero = _mm512_setzero_si512();
        const __m512i shift = _mm512_slli_epi32(_mm512_set1_epi32(isum), (unsigned)log_offset);
#pragma GCC unroll 4
        for (uint32_t g = 0; g < s.ng; g++) {
            d->hi[g][m] = zero;
            d->lo[g][m] = log_offset < 0 ? zero : _mm512_sub_epi32(zero, shift);
        }
    }
    a -= s.mr * c->stride;
#pragma GCC unroll 8
    for (int i = 0; i < n_line; i++) {
        /* Lines j and j + 4 share their bytes in the 4-bit types. */
        const int j = layout_halves(l) ? (int)(4 * h) + i : i % 2 * 4 + i / 2;
        __m512i q[4];
#pragma GCC unroll 4
        for (uint32_t g = 0; g < s.ng; g++) q[g] = decode_quad(p + g * c->group_bytes, l, j);
#pragma GCC unroll 8
        for (uint32_t m = 0; m < s.mr; m++) {
            const __m512i hi = broadcast_quad(a[m * c->stride].hi + 4 * j);
            const __m512i lo = broadcast_quad(a[m * c->stride].lo + 4 * j);
#pragma GCC unroll 4
            for (uint32_t g = 0; g < s.ng; g++) {
                d->hi[g][m] = _mm512_dpbusd_epi32(d->hi[g][m], q[g], hi);
                d->lo[g][m] = _mm512_dpbusd_epi32(d->lo[g][m], q[g], lo);
            }
        }
    }
}

/* Adds the scaled products of half h of block b. */
INLINE void add_part(__m512 acc[4][8], const struct narrow_chunk *c, const uint8_t *p, uint32_t b,
                     const uint32_t h, const struct shape s)
{
    const struct weight_layout l = s.l;
    struct dots d;
    dot_part(&d, c, p, c->act + b, h, s);
#pragma GCC unroll 4
    for (uint32_t g = 0; g < s.ng; g++) {
        const struct decoded_scales w = decode_scales(c->w + g * c->group_bytes, l, b);
#pragma GCC unroll 8
        for (uint32_t m = 0; m < s.mr; m++) {
            const struct narrow_block *a = c->act + b + m * c->stride;
            const __m512 scale = _mm512_mul_ps(w.scale[h], _mm512_set1_ps(a->scale));
            const __m512i v = _mm512_add_epi32(_mm512_slli_epi32(d.hi[g][m], 8), d.lo[g][m]);
            acc[g][m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(v), scale, acc[g][m]);
            if (!layout_has_min(l)) continue;
            const float sum = layout_halves(l) ? a->half_sum[h] : a->sum;
            acc[g][m] = _mm512_fmadd_ps(w.plus[h], _mm512_set1_ps(sum), acc[g][m]);
        }
    }
}

INLINE void quant_chunk(const struct narrow_chunk *c, const enum quant_type type, const uint32_t ng,
                        const uint32_t mr)
{
    const struct weight_layout l = weight_layout_of(type);
    const struct shape shape = {ng, mr, l};
    const uint32_t share = layout_full_chunk_bytes(l) / LAYOUT_BLOCKS;
    const uint8_t *p = c->w + layout_scale_bytes(l, c->nb);
    __m512 acc[4][8];
    load_acc(acc, c, ng, mr);
    for (uint32_t b = 0; b < c->nb; b++, p += layout_block_bytes(l)) {
        narrow_prefetch(c, b * share, share, ng);
        add_part(acc, c, p, b, 0, shape);
        if (layout_halves(l)) add_part(acc, c, p, b, 1, shape);
    }
    store_acc(c, acc, ng, mr);
}

/* Inputs 4j .. 4j+3 of all 16 outputs. */
INLINE void load_quad(__m512 w[4], const uint8_t *p, const enum quant_type type)
{
    if (type == QUANT_F32) {
#pragma GCC unroll 4
        for (uint32_t k = 0; k < 4; k++) w[k] = _mm512_loadu_ps(p + 64 * k);
    } else {
        __m512 even[2], odd[2];
        decode_pair(even, p, type);
        decode_pair(odd, p + 64, type);
        w[0] = even[0], w[1] = odd[0], w[2] = even[1], w[3] = odd[1];
    }
}

INLINE void dense_chunk(const struct narrow_chunk *c, const enum quant_type type, const uint32_t ng,
                        const uint32_t mr)
{
    const uint32_t quad_bytes = type == QUANT_F32 ? 256 : 128;
    __m512 acc[4][8];
    load_acc(acc, c, ng, mr);
    for (uint32_t j = 0; j < c->nb * 8; j++) {
        narrow_prefetch(c, j * quad_bytes, quad_bytes, ng);
#pragma GCC unroll 4
        for (uint32_t g = 0; g < ng; g++) {
            __m512 w[4];
            load_quad(w, c->w + g * c->group_bytes + j * quad_bytes, type);
#pragma GCC unroll 8
            for (uint32_t m = 0; m < mr; m++)
#pragma GCC unroll 4
                for (uint32_t k = 0; k < 4; k++)
                    acc[g][m] = _mm512_fmadd_ps(
                        w[k], _mm512_set1_ps(c->x[m * c->stride + 4 * j + k]), acc[g][m]);
        }
    }
    store_acc(c, acc, ng, mr);
}

#define KERNEL(kind, TYPE, ng, mr)                                                                 \
    static void TYPE##_##ng##x##mr(const struct narrow_chunk *c)                                   \
    {                                                                                              \
        kind##_chunk(c, QUANT_##TYPE, ng, mr);                                                     \
    }

/* Sixteen sums of hi and of lo fill the registers, so more rows mean fewer groups. */
#define KERNELS(kind, TYPE)                                                                        \
    KERNEL(kind, TYPE, 1, 1)                                                                       \
    KERNEL(kind, TYPE, 1, 2)                                                                       \
    KERNEL(kind, TYPE, 1, 4)                                                                       \
    KERNEL(kind, TYPE, 1, 8)                                                                       \
    KERNEL(kind, TYPE, 4, 1)                                                                       \
    KERNEL(kind, TYPE, 4, 2)                                                                       \
    KERNEL(kind, TYPE, 2, 4)

KERNELS(dense, F32)
KERNELS(dense, F16)
KERNELS(dense, BF16)
KERNELS(quant, Q4_0)
KERNELS(quant, Q4_1)
KERNELS(quant, Q5_0)
KERNELS(quant, Q5_1)
KERNELS(quant, Q8_0)
KERNELS(quant, Q2_K)
KERNELS(quant, Q3_K)
KERNELS(quant, Q4_K)
KERNELS(quant, Q5_K)
KERNELS(quant, Q6_K)
KERNELS(quant, IQ4_NL)
KERNELS(quant, IQ4_XS)

#define ROW(TYPE)                                                                                  \
    [QUANT_##TYPE] = {{TYPE##_1x1, TYPE##_4x1},                                                    \
                      {TYPE##_1x2, TYPE##_4x2},                                                    \
                      {TYPE##_1x4, TYPE##_2x4},                                                    \
                      {TYPE##_1x8, TYPE##_1x8}}

/* [type][log2 of the rows][one group, or side_by_side] */
static const narrow_fn kernels[QUANT_BF16 + 1][4][2] = {
    ROW(F32),  ROW(F16),  ROW(BF16), ROW(Q4_0), ROW(Q4_1), ROW(Q5_0),   ROW(Q5_1),  ROW(Q8_0),
    ROW(Q2_K), ROW(Q3_K), ROW(Q4_K), ROW(Q5_K), ROW(Q6_K), ROW(IQ4_NL), ROW(IQ4_XS)};

static const uint32_t side_by_side[4] = {4, 4, 2, 1};

/* ---- The op ---- */

/* Groups first, first + apart, ... of one part. */
struct groups {
    uint32_t part_i, first, n, apart;
};

/* Rows of a pass that the sums have room for. */
static uint32_t rows_of_pass(uint32_t n_row)
{
    return n_row < ROWS_PASS ? whole_tiles(n_row) : ROWS_PASS;
}

/* Sums of a pass: [groups, rows_of_pass, 16]. */
struct sums {
    float *acc;
    size_t stride;
};

/* Adds chunk i of the groups' weights to the sums of rows r0 .. r0 + n_row - 1. */
static void run_chunk(const struct job *job, struct groups gr, uint32_t i, uint32_t r0,
                      uint32_t n_row, struct sums sums)
{
    const struct weight *w = job->op->part[gr.part_i].w;
    const struct weight_layout l = weight_layout_of(w->type);
    const size_t block0 = (size_t)r0 * job->n_block + i * LAYOUT_BLOCKS;
    const size_t at = LAYOUT_HEAD + (size_t)i * layout_full_chunk_bytes(l);
    const uint8_t *data = w->data + gr.first * w->group_bytes + at;
    struct narrow_chunk c = {
        .group_bytes = gr.apart * w->group_bytes,
        .nb = layout_chunk_blocks(job->n_block, i),
        .act = job->act + block0,
        .x = job->x + block0 * LAYOUT_BLOCK,
        .stride = l.scale == SCALE_NONE ? (size_t)job->n_block * LAYOUT_BLOCK : job->n_block,
        .acc_stride = sums.stride,
        .ahead_bytes = job->reading.ahead_bytes,
    };
    while (n_row > 0) {
        const uint32_t log_mr = n_row >= 8 ? 3 : n_row >= 4 ? 2 : n_row >= 2 ? 1 : 0;
        const uint32_t mr = 1u << log_mr, side = side_by_side[log_mr];
        for (uint32_t g = 0, ng; g < gr.n; g += ng) {
            ng = gr.n - g >= side ? side : 1;
            c.w = data + g * c.group_bytes;
            c.acc = sums.acc + g * sums.stride;
            kernels[w->type][log_mr][ng > 1](&c);
        }
        c.act += mr * c.stride;
        c.x += mr * c.stride;
        sums.acc += 16 * mr;
        n_row -= mr;
    }
}

/* Computes the sums of rows r0 .. r0 + n_row - 1 with tile kernels: over all inputs at once. */
static void run_tiled(const struct job *job, struct groups gr, uint32_t r0, uint32_t n_row,
                      struct sums sums)
{
    const struct weight *w = job->op->part[gr.part_i].w;
    const struct narrow_tile *tile = job->tile + (size_t)(r0 / NARROW_TILE_ROWS) * job->n_block;
    for (uint32_t g = 0, ng; g < gr.n; g += ng) {
        ng = gr.n - g >= 2 ? 2 : 1;
        struct narrow_tiled k = {
            .w = w->data + (gr.first + g * gr.apart) * w->group_bytes + LAYOUT_HEAD,
            .group_bytes = gr.apart * w->group_bytes,
            .n_block = job->n_block,
            .x = tile,
            .acc = sums.acc + g * sums.stride,
            .acc_stride = sums.stride,
        };
        for (uint32_t r = 0; r < n_row; r += NARROW_TILE_ROWS) {
            job->tiles->kernel[w->type][ng - 1](&k);
            k.x += job->n_block;
            k.acc += (size_t)NARROW_TILE_ROWS * 16;
        }
    }
}

static bool is_tiled(const struct job *job, uint32_t part_i)
{
    return job->tiles && job->tiles->kernel[job->op->part[part_i].w->type][0];
}

static void run_groups(const struct job *job, struct groups gr, uint32_t worker_i)
{
    const struct op_linear *op = job->op;
    const uint32_t n_chunk = (job->n_block + LAYOUT_BLOCKS - 1) / LAYOUT_BLOCKS;
    const size_t stride = (size_t)rows_of_pass(op->n_row) * 16, part_size = NARROW_STREAMS * stride;
    float *acc = job->acc + worker_i * 2 * part_size;
    const uint32_t n_part = linear_is_glu(op) ? 2 : 1;
    for (uint32_t r0 = 0; r0 < op->n_row; r0 += ROWS_PASS) {
        const uint32_t n_row = op->n_row - r0 < ROWS_PASS ? op->n_row - r0 : ROWS_PASS;
        struct groups part[2] = {gr, {gr.part_i + 1, gr.first, gr.n, gr.apart}};
        struct sums sums[2] = {{acc, stride}, {acc + part_size, stride}};
        for (uint32_t p = 0; p < n_part; p++) memset(sums[p].acc, 0, gr.n * stride * sizeof *acc);
        for (uint32_t p = 0; p < n_part; p++)
            if (is_tiled(job, part[p].part_i)) run_tiled(job, part[p], r0, n_row, sums[p]);
        for (uint32_t i = 0; i < n_chunk; i++)
            for (uint32_t p = 0; p < n_part; p++)
                if (!is_tiled(job, part[p].part_i)) run_chunk(job, part[p], i, r0, n_row, sums[p]);
        for (uint32_t g = 0; g < gr.n; g++)
            for (uint32_t r = 0; r < n_row; r++) {
                const float *a = acc + g * stride + (size_t)r * 16;
                linear_finish(op, (struct linear_unit){gr.part_i, gr.first + g * gr.apart}, r0 + r,
                              _mm512_load_ps(a), _mm512_load_ps(a + part_size));
            }
    }
}

/* A piece of work is n_stream groups, an n_stream-th of the matrix apart: a worker reads n_stream
 * places at once, and each of them continues in memory from piece to piece. Groups left over by the
 * division are pieces of their own. */
static uint32_t part_pieces(const struct job *job, uint32_t part_i)
{
    const uint32_t n = job->op->part[part_i].w->n_group, n_stream = job->reading.n_stream;
    return n / n_stream + n % n_stream;
}

static uint32_t n_piece_of(const struct job *job)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < (linear_is_glu(job->op) ? 1 : job->op->n_part); p++)
        n += part_pieces(job, p);
    return n;
}

static struct groups find_piece(const struct job *job, uint32_t i)
{
    uint32_t p = 0;
    for (; i >= part_pieces(job, p); p++) i -= part_pieces(job, p);
    const uint32_t n_stream = job->reading.n_stream;
    const uint32_t apart = job->op->part[p].w->n_group / n_stream;
    if (i < apart) return (struct groups){p, i, n_stream, apart};
    return (struct groups){p, apart * n_stream + i - apart, 1, 1};
}

static void run_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct job *job = arg;
    if (job->tiles) job->tiles->begin();
    for (; begin < end; begin++) run_groups(job, find_piece(job, begin), worker_i);
    if (job->tiles) job->tiles->end();
}

/* Computes the groups that op->group lists. Consecutive groups are read side by side, up to
 * n_stream of them. */
static void run_listed(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct job *job = arg;
    const uint32_t *group = job->op->group;
    if (job->tiles) job->tiles->begin();
    for (uint32_t n; begin < end; begin += n) {
        const uint32_t most =
            end - begin < job->reading.n_stream ? end - begin : job->reading.n_stream;
        for (n = 1; n < most && group[begin + n] == group[begin] + n;) n++;
        run_groups(job, (struct groups){0, group[begin], n, 1}, worker_i);
    }
    if (job->tiles) job->tiles->end();
}

static size_t tile_bytes(uint32_t n_row, uint32_t n_in)
{
    const size_t n = whole_tiles(n_row) / NARROW_TILE_ROWS;
    return n * layout_n_block(n_in) * sizeof(struct narrow_tile);
}

size_t linear_avx512_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    (void)n_out_sum;
    const size_t n_block = (size_t)n_row * layout_n_block(n_in);
    return tile_bytes(n_row, n_in) + align_line(n_block * sizeof(struct narrow_block)) +
           n_block * LAYOUT_BLOCK * sizeof(float) + align_line(n_row * sizeof(float)) +
           (size_t)n_worker * NARROW_STREAMS * 2 * rows_of_pass(n_row) * 16 * sizeof(float);
}

static struct narrow_reading reading_of(const struct narrow_set *set, uint32_t n_row)
{
    return set->reading[n_row >= 8 ? 3 : n_row >= 4 ? 2 : n_row >= 2 ? 1 : 0];
}

void linear_narrow_run(struct workers *pool, const struct op_linear *op,
                       const struct narrow_set *set)
{
    linear_check(op);
    assert(op->scratch_bytes >= linear_avx512_scratch(workers_count(pool), op->n_row, op->n_in, 0));
    struct job job = {
        .op = op, .reading = reading_of(set, op->n_row), .n_block = layout_n_block(op->n_in)};
    for (uint32_t p = 0; p < op->n_part; p++) {
        const bool dense = weight_layout_of(op->part[p].w->type).scale == SCALE_NONE;
        job.want_f32 |= dense;
        job.want_int |= !dense;
    }
    if (job.want_int && op->n_row >= TILES_MIN) job.tiles = set->tiles;
    const size_t n_block = (size_t)op->n_row * job.n_block;
    uint8_t *at = op->scratch;
    job.tile = (struct narrow_tile *)at;
    at += tile_bytes(op->n_row, op->n_in);
    job.act = (struct narrow_block *)at;
    at += align_line(n_block * sizeof *job.act);
    job.x = (float *)at;
    job.scale = job.x + n_block * LAYOUT_BLOCK;
    job.acc = job.scale + (op->n_row + 15u) / 16 * 16;
    prepare(pool, &job);
    if (op->group)
        workers_for_span(pool, op->n_group, NARROW_STREAMS, run_listed, &job);
    else
        workers_for_span(pool, n_piece_of(&job), NARROW_STREAMS / job.reading.n_stream, run_pieces,
                         &job);
}

/* Zen 4 prefetches a single stream at the full rate by itself, and slows down with more streams or
 * longer distances. From four rows on, products take longer than the memory: a long distance pays,
 * and two groups share the loads of activations. */
static const struct narrow_set one_stream = {.reading = {{1, 256}, {1, 512}, {2, 2048}, {1, 2048}}};
/* Golden Cove needs four streams for the full rate, as far as registers hold their sums. */
static const struct narrow_set streams = {.reading = {{4, 2048}, {4, 2048}, {2, 2048}, {1, 2048}}};

void linear_avx512_narrow(struct workers *pool, const struct op_linear *op)
{
    linear_narrow_run(pool, op, &one_stream);
}

void linear_avx512_int8(struct workers *pool, const struct op_linear *op)
{
    linear_narrow_run(pool, op, &streams);
}
