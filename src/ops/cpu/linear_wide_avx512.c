/* linear_wide_avx512.c: linear layers of many rows by VDPBF16PS; few rows use linear_avx512.c.
 *
 * The input is rounded to bf16 once per call and laid out in consecutive tiles of 12 rows times 32
 * inputs. A worker takes two columns (groups of 16 outputs; for a GLU a group of gate and the same
 * of up), dequantises their weights for all inputs to a panel of bf16, and streams the rows past
 * it, 12 at a time. 24 sums stay in registers over the whole panel, a pair of inputs is broadcast
 * to both columns, and panel and input are each one stream, which L2 and L3 deliver in time.
 * Outputs of a GLU that only the next layer reads (keep_y) are stored as the tiles that it needs,
 * rounded as it would round them.
 *
 * Precision. A weight is d * v + m rounded once to bf16, an input is rounded once, products and
 * sums are f32. An infinity or NaN stays in its row, or in its output if it is a weight's.
 *
 * Order, the same for every n_row and split: pairs of inputs in the order of linear_bf16.h. */
#include "base/minmax.h"
#include "ops/cpu/detect.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/linear_bf16.h"

#define ROWS      12u /* of a tile: 24 sums, two weights and an input fill the registers */
#define STRIP_GLU 2u  /* pairs of columns per item: 32 outputs of a GLU, whole cache lines */
#define AHEAD     2u  /* prefetch distance in tiles of the input */

struct x_tile { /* 32 inputs of ROWS rows */
    uint8_t row[ROWS][64];
};

struct w_tile { /* 32 inputs of 16 outputs: [16 pairs][16][2] */
    uint8_t bytes[1024];
};

struct worker { /* private memory of a worker, followed by its panel [n_block][2] */
    float sums[ROWS][2][WEIGHT_GROUP];
};

struct job {
    const struct op_linear *op;
    uint32_t n_block, n_out_block; /* blocks of an input row, and of y if it is stored as tiles */
    uint32_t n_pair, strip_pairs;  /* pairs of columns */
    const struct x_tile *x;        /* [n_row / ROWS rounded up, n_block] */
    struct x_tile *y;              /* NULL: y is stored as f32 */
    uint8_t *per_worker;           /* [n_worker][worker_bytes] */
};

static uint32_t row_tiles(uint32_t n_row)
{
    return (n_row + ROWS - 1) / ROWS;
}

/* ---- Inputs ---- */

static void round_rows(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    const struct op_linear *op = job->op;
    struct x_tile *x = op->scratch;
    for (uint32_t r = begin * ROWS; r < min_u32(end * ROWS, op->n_row); r++) {
        const float *row = op->x + r * op->x_stride;
        const float scale = op->norm ? linear_rms_scale(row, op->n_in, op->norm_eps) : 1;
        struct x_tile *to = x + (size_t)(r / ROWS) * job->n_block;
        for (uint32_t b = 0; b < job->n_block; b++) {
            const struct bf16_split s =
                bf16_split(linear_load_x(op, r, b * LAYOUT_BLOCK, scale),
                           linear_load_x(op, r, b * LAYOUT_BLOCK + 16, scale));
            _mm512_store_si512(to[b].row[r % ROWS], bf16_pairs(s.even, s.odd));
        }
    }
}

/* ---- Weights ---- */

/* Arguments of dequantisation: the first chunk of a column, and its first tile. */
struct filling {
    const uint8_t *chunk;
    uint32_t n_block;
    struct w_tile *w; /* tiles of the column: every second one of the panel */
};
typedef void (*fill_fn)(const struct filling *f);

INLINE void fill_quant_block(uint8_t *dst, const uint8_t *chunk, uint32_t nb, uint32_t b,
                             const struct weight_layout l)
{
    const uint8_t *p = chunk + layout_scale_bytes(l, nb) + b * layout_block_bytes(l);
    const struct decoded_scales s = decode_scales(chunk, l, b);
    const __m512 offset = _mm512_set1_ps(-bf16_offset(l));
    const __m512 plus[2] = {_mm512_fmadd_ps(s.scale[0], offset, s.plus[0]),
                            _mm512_fmadd_ps(s.scale[1], offset, s.plus[1])};
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const int h = layout_halves(l) ? j / 4 : 0;
        bf16_quad(dst + 128 * j, p, l, j, s.scale[h], plus[h]);
    }
}

INLINE void fill_dense_block(uint8_t *dst, const uint8_t *p, const enum quant_type type)
{
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m512 w[2];
        bf16_dense_pair(w, p, type, i);
        _mm512_store_si512(dst + 64 * i, bf16_pairs(w[0], w[1]));
    }
}

INLINE void fill(const struct filling *f, const enum quant_type type)
{
    const struct weight_layout l = weight_layout_of(type);
    const uint8_t *chunk = f->chunk;
    struct w_tile *w = f->w;
    for (uint32_t b0 = 0; b0 < f->n_block; b0 += LAYOUT_BLOCKS) {
        const uint32_t nb = min_u32(LAYOUT_BLOCKS, f->n_block - b0);
        for (uint32_t b = 0; b < nb; b++, w += 2) {
            if (l.scale == SCALE_NONE)
                fill_dense_block(w->bytes, chunk + b * layout_block_bytes(l), type);
            else
                fill_quant_block(w->bytes, chunk, nb, b, l);
        }
        chunk += layout_full_chunk_bytes(l);
    }
}

#define FILL(TYPE)                                                                                 \
    static void fill_##TYPE(const struct filling *f)                                               \
    {                                                                                              \
        fill(f, QUANT_##TYPE);                                                                     \
    }
FILL(F32)
FILL(F16)
FILL(BF16)
FILL(Q4_0)
FILL(Q4_1)
FILL(Q5_0)
FILL(Q5_1)
FILL(Q8_0)
FILL(Q2_K)
FILL(Q3_K)
FILL(Q4_K)
FILL(Q5_K)
FILL(Q6_K)
FILL(IQ4_NL)
FILL(IQ4_XS)

#define FILL_ROW(TYPE) [QUANT_##TYPE] = fill_##TYPE

static const fill_fn fill_of[QUANT_BF16 + 1] = {
    FILL_ROW(F32),  FILL_ROW(F16),  FILL_ROW(BF16), FILL_ROW(Q4_0),   FILL_ROW(Q4_1),
    FILL_ROW(Q5_0), FILL_ROW(Q5_1), FILL_ROW(Q8_0), FILL_ROW(Q2_K),   FILL_ROW(Q3_K),
    FILL_ROW(Q4_K), FILL_ROW(Q5_K), FILL_ROW(Q6_K), FILL_ROW(IQ4_NL), FILL_ROW(IQ4_XS)};

/* ---- Products ---- */

struct product {
    const struct x_tile *x; /* [n_block] tiles, of which row `row` is the first */
    uint32_t row;
    const struct w_tile *w; /* [n_block, 2] */
    uint32_t n_block;
    float (*sums)[2][WEIGHT_GROUP]; /* [rows], out */
};

INLINE __m512bh broadcast_pair(const uint8_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

INLINE void multiply(const struct product *p, const uint32_t mr)
{
    __m512 sum[ROWS][2];
#pragma GCC unroll 12
    for (uint32_t r = 0; r < mr; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    const uint8_t *x = p->x->row[p->row], *w = p->w->bytes;
    for (uint32_t b = 0; b < p->n_block; b++, x += sizeof(struct x_tile), w += 2048) {
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++) {
            const __m512bh w0 = (__m512bh)_mm512_load_si512(w + 64 * i);
            const __m512bh w1 = (__m512bh)_mm512_load_si512(w + 1024 + 64 * i);
            if (i < mr)
                _mm_prefetch((const char *)x + AHEAD * sizeof(struct x_tile) + 64 * i, _MM_HINT_T0);
#pragma GCC unroll 12
            for (uint32_t r = 0; r < mr; r++) {
                const __m512bh pair = broadcast_pair(x + 64 * r + 4 * i);
                sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, w0);
                sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, w1);
            }
        }
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < mr; r++) {
        _mm512_store_ps(p->sums[r][0], sum[r][0]);
        _mm512_store_ps(p->sums[r][1], sum[r][1]);
    }
}

static void multiply_12(const struct product *p)
{
    multiply(p, 12);
}

/* For the rows after the last full tile. */
static void multiply_4(const struct product *p)
{
    multiply(p, 4);
}

/* ---- Epilogues ---- */

/* Where a column's outputs (16 per row) are stored. */
struct epilogue_col {
    float *y; /* of row 0 */
    size_t y_stride;
    __mmask16 m;
    __m512 bias;
};

static struct epilogue_col open_col(const struct op_linear *op, struct linear_unit unit)
{
    const struct linear_part *part = &op->part[unit.part_i];
    const uint32_t out_i = unit.group_i * WEIGHT_GROUP;
    const __mmask16 m = math_lane_mask(part->w->n_out - out_i);
    return (struct epilogue_col){
        .y = part->y ? part->y + out_i : NULL,
        .y_stride = part->y_stride,
        .m = m,
        .bias = linear_add_bias(part, out_i, m, _mm512_setzero_ps()),
    };
}

/* Rows r0 .. r0 + n - 1 of a pair of columns, all of one tile. */
struct epilogue {
    uint32_t r0, n, n_col;
    float (*sums)[2][WEIGHT_GROUP];
    const struct epilogue_col *col;
    uint8_t *half_line; /* of row r0 in its tile of y, or NULL */
};

static void store_columns(const struct epilogue *e, bool add)
{
    for (uint32_t c = 0; c < e->n_col; c++) {
        const struct epilogue_col *col = &e->col[c];
        float *y = col->y + e->r0 * col->y_stride;
        for (uint32_t r = 0; r < e->n; r++, y += col->y_stride) {
            __m512 v = _mm512_add_ps(_mm512_load_ps(e->sums[r][c]), col->bias);
            if (add) v = _mm512_add_ps(_mm512_maskz_loadu_ps(col->m, y), v);
            _mm512_mask_storeu_ps(y, col->m, v);
        }
    }
}

INLINE void store_glu(const struct epilogue *e, const bool is_gelu)
{
    const struct epilogue_col *col = e->col;
    for (uint32_t r = 0; r < e->n; r++) {
        const __m512 gate = _mm512_add_ps(_mm512_load_ps(e->sums[r][0]), col[0].bias);
        const __m512 up = _mm512_add_ps(_mm512_load_ps(e->sums[r][1]), col[1].bias);
        const __m512 v = bf16_glu(is_gelu, gate, up);
        if (e->half_line)
            bf16_store_half_line(e->half_line + 64 * r, v);
        else
            _mm512_mask_storeu_ps(col[0].y + (e->r0 + r) * col[0].y_stride, col[0].m, v);
    }
}

static void store_rows(const struct epilogue *e, enum linear_epilogue epilogue)
{
    switch (epilogue) {
    case LINEAR_STORE: store_columns(e, false); return;
    case LINEAR_ADD: store_columns(e, true); return;
    case LINEAR_GLU_SILU: store_glu(e, false); return;
    case LINEAR_GLU_GELU: store_glu(e, true); return;
    }
    __builtin_unreachable();
}

/* ---- Workers ---- */

static void fill_column(const struct job *job, struct linear_unit unit, struct w_tile *w)
{
    const struct weight *m = job->op->part[unit.part_i].w;
    const struct filling f = {m->data + unit.group_i * m->group_bytes + LAYOUT_HEAD, job->n_block,
                              w};
    fill_of[m->type](&f);
}

/* Two columns, or one if the last has no partner. */
struct pair {
    uint32_t n_col;
    struct linear_unit unit[2];
};

static struct pair find_pair(const struct op_linear *op, uint32_t i)
{
    if (linear_is_glu(op)) return (struct pair){2, {{0, i}, {1, i}}};
    struct pair p = {1, {linear_find_unit(op, 2 * i)}};
    if (2 * i + 1 < linear_n_unit(op)) p.unit[p.n_col++] = linear_find_unit(op, 2 * i + 1);
    return p;
}

static void run_pair(const struct job *job, uint32_t pair_i, struct worker *worker)
{
    const struct op_linear *op = job->op;
    struct w_tile *w = (struct w_tile *)(worker + 1);
    const struct pair pair = find_pair(op, pair_i);
    const uint32_t group_i = pair.unit[0].group_i;
    struct epilogue_col col[2];
    for (uint32_t c = 0; c < pair.n_col; c++) {
        fill_column(job, pair.unit[c], w + c);
        col[c] = open_col(op, pair.unit[c]);
    }
    for (uint32_t r = 0, n; r < op->n_row; r += n) {
        const uint32_t left = op->n_row - r, row = r % ROWS;
        const struct product p = {.x = job->x + (size_t)(r / ROWS) * job->n_block,
                                  .row = row,
                                  .w = w,
                                  .n_block = job->n_block,
                                  .sums = worker->sums};
        const bool whole = row == 0 && left > 8;
        if (whole)
            multiply_12(&p);
        else
            multiply_4(&p);
        n = min_u32(whole ? 12 : 4, left);
        struct epilogue e = {
            .r0 = r, .n = n, .n_col = pair.n_col, .sums = worker->sums, .col = col};
        if (job->y)
            e.half_line = job->y[(size_t)(r / ROWS) * job->n_out_block + group_i / 2].row[row] +
                          group_i % 2 * 32;
        store_rows(&e, op->epilogue);
    }
}

static size_t worker_bytes(uint32_t n_block)
{
    return sizeof(struct worker) + (size_t)n_block * sizeof(struct w_tile[2]);
}

static void run_strips(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct job *job = arg;
    struct worker *worker =
        (struct worker *)(job->per_worker + worker_i * worker_bytes(job->n_block));
    const uint32_t last = min_u32(end * job->strip_pairs, job->n_pair);
    for (uint32_t i = begin * job->strip_pairs; i < last; i++) run_pair(job, i, worker);
}

static size_t wide_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in)
{
    const uint32_t n_block = layout_n_block(n_in);
    return (size_t)row_tiles(n_row) * n_block * sizeof(struct x_tile) +
           n_worker * worker_bytes(n_block);
}

static size_t scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    const size_t narrow = linear_avx512_scratch(n_worker, n_row, n_in, n_out_sum);
    const size_t wide = wide_scratch(n_worker, n_row, n_in);
    return narrow > wide ? narrow : wide;
}

/* Whether the tiles of n_row rows fit into the memory of the f32 rows that they replace. */
static bool tiles_fit(uint32_t n_row, uint32_t width)
{
    return width % LAYOUT_BLOCK == 0 && row_tiles(n_row) * ROWS <= 2 * n_row;
}

static void run_wide(struct workers *pool, const struct op_linear *op)
{
    linear_check(op);
    assert(!op->kept_x || (!op->norm && op->x_stride == op->n_in));
    assert(!op->keep_y || (linear_is_glu(op) && op->part[0].y_stride == op->part[0].w->n_out));
    assert(op->scratch_bytes >= wide_scratch(workers_count(pool), op->n_row, op->n_in));
    const uint32_t n_unit = linear_n_unit(op), n_tile = row_tiles(op->n_row);
    struct job job = {.op = op,
                      .n_block = layout_n_block(op->n_in),
                      .n_pair = linear_is_glu(op) ? n_unit : (n_unit + 1) / 2,
                      .strip_pairs = linear_is_glu(op) ? STRIP_GLU : 1,
                      .x = op->scratch};
    job.per_worker = (uint8_t *)op->scratch + (size_t)n_tile * job.n_block * sizeof(struct x_tile);
    if (op->keep_y && tiles_fit(op->n_row, op->part[0].w->n_out)) {
        job.n_out_block = layout_n_block(op->part[0].w->n_out);
        job.y = (struct x_tile *)op->part[0].y;
    }
    if (op->kept_x && tiles_fit(op->n_row, op->n_in))
        job.x = (const struct x_tile *)op->x;
    else
        workers_for_span(pool, n_tile, 1, round_rows, &job);
    workers_for_span(pool, (job.n_pair + job.strip_pairs - 1) / job.strip_pairs, 1, run_strips,
                     &job);
}

void linear_avx512_bf16(struct workers *pool, const struct op_linear *op)
{
    if (op->kind == ROW_DECODE)
        linear_avx512_narrow(pool, op);
    else
        run_wide(pool, op);
}

/* Zen 4 multiplies bf16 at twice the rate of f32. Golden Cove (recognised by FP16) does not: 150 to
 * 170 GFLOP/s on two cores, while the int8 kernels reach 190 to 270. */
void ops_fill_avx512_linear(struct ops *o)
{
    o->linear = detect_features() & DETECT_AVX512_FP16 ? linear_avx512_int8 : linear_avx512_bf16;
    o->linear_scratch = scratch;
}
