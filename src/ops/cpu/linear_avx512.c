/* linear_avx512.c: linear layers by VPDPBUSD on the packed codes; bound by memory up to about eight
 * rows, by the two multiply ports beyond.
 *
 * Activations. A row is cut into blocks of 32; a block with largest magnitude a becomes integers
 * v = round(x * 16256 / a), held as two int8 planes, v = 128 * hi + lo with hi in -127..127 and lo
 * in -64..63. Two planes because one (8 bits) costs a relative error of 5e-3 per layer and two
 * 4e-5, while a decode step waits for memory either way. A block with a NaN or an infinity makes
 * its row's outputs NaN; blocks below 1e-30 count as zero.
 *
 * Arithmetic of one output and row, the same for every n_row and split: blocks in rising order; per
 * block the exact integer sum of v * (code - offset), one FMA with (weight scale * block scale),
 * for types with an offset one FMA more with the block's sum. 16 and 32-bit weights: one FMA per
 * input in rising order on f32 activations.
 *
 * Work. An item is UNITS groups of 16 outputs; chunks of 256 inputs are the outer loop so that the
 * activations of a chunk stay in L1 across groups and row tiles. A group's bytes are one stream,
 * prefetched AHEAD bytes. Accumulators live in registers within a chunk, in scratch between. */
#include "ops/cpu/linear_avx512.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/linear_decode.h"

#include <string.h>

#define UNITS     2u    /* of an item */
#define AHEAD     2048u /* prefetch distance in bytes */
#define ROWS_PASS 256u  /* rows per pass over the weights: a chunk of their activations fits L2 */
#define V_MAX     16256 /* 127 * 128: hi = 127, lo = 0 */
#define TINY      1e-30f

struct act_block { /* 32 inputs of a row */
    int8_t hi[32], lo[32];
    float scale;
    float sum, half_sum[2]; /* scale * the integers' sum: all 32, first and last 16 */
    int32_t isum, half_isum[2];
    int32_t pad;
};

struct job {
    const struct op_linear *op;
    bool want_int, want_f32; /* forms of x that the parts' types read */
    uint32_t n_block;
    struct act_block *act; /* [n_row, n_block] */
    float *x;              /* [n_row, n_block * 32] */
    float *acc;            /* [n_worker, UNITS * 2, ROWS_PASS, 16] */
};

/* ---- Activations -------------------------------------------------------------------------------
 */

static void quantise_half(int8_t *hi, int8_t *lo, int32_t *out_sum, __m512 x, __m512 inverse)
{
    const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(64)), 7);
    const __m512i low = _mm512_sub_epi32(v, _mm512_slli_epi32(high, 7));
    _mm_storeu_si128((__m128i *)hi, _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128((__m128i *)lo, _mm512_cvtepi32_epi8(low));
    *out_sum = _mm512_reduce_add_epi32(v);
}

static void quantise_block(struct act_block *b, __m512 x0, __m512 x1)
{
    /* As integers, magnitudes order like the floats, infinities and NaN on top. */
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

static void prepare_row(void *arg, uint32_t r, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    const struct op_linear *op = job->op;
    const float *row = op->x + r * op->x_stride;
    const float scale = op->norm ? linear_rms_scale(row, op->n_in, op->norm_eps) : 1;
    struct act_block *act = job->act + (size_t)r * job->n_block;
    float *x = job->x + (size_t)r * job->n_block * LAYOUT_BLOCK;
    for (uint32_t b = 0; b < job->n_block; b++) {
        const __m512 x0 = linear_load_x(op, r, b * LAYOUT_BLOCK, scale);
        const __m512 x1 = linear_load_x(op, r, b * LAYOUT_BLOCK + 16, scale);
        if (job->want_int) quantise_block(&act[b], x0, x1);
        if (job->want_f32) {
            _mm512_store_ps(x + b * LAYOUT_BLOCK, x0);
            _mm512_store_ps(x + b * LAYOUT_BLOCK + 16, x1);
        }
    }
}

/* ---- Chunk kernels; `type` and `mr` are constants at every call ----------------------------- */

INLINE __m512i broadcast_quad(const int8_t *p)
{
    int32_t quad;
    memcpy(&quad, p, sizeof quad);
    return _mm512_set1_epi32(quad);
}

/* The exact sum of v * (code - offset) over quad lines j0..j1-1, as f32. `isum` is v's sum there.
 */
INLINE __m512 dot(const __m512i q[8], const struct act_block *a, int j0, int j1, int32_t offset,
                  int32_t isum)
{
    __m512i hi = _mm512_setzero_si512(), lo = _mm512_set1_epi32(-offset * isum);
#pragma GCC unroll 8
    for (int j = j0; j < j1; j++) {
        hi = _mm512_dpbusd_epi32(hi, q[j], broadcast_quad(a->hi + 4 * j));
        lo = _mm512_dpbusd_epi32(lo, q[j], broadcast_quad(a->lo + 4 * j));
    }
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(hi, 7), lo));
}

struct chunk { /* arguments of a chunk kernel */
    const uint8_t *w;
    uint32_t nb;                 /* blocks in it */
    const struct act_block *act; /* of the first row and block, or */
    const float *x;              /* for plain floats */
    size_t stride;               /* rows apart, in elements of either */
    float *acc;                  /* [rows, 16], read and written */
};

INLINE void quant_chunk(const struct chunk *c, const enum quant_type type, const uint32_t mr)
{
    const struct weight_layout l = weight_layout_of(type);
    const int32_t offset = l.iq4 ? LAYOUT_IQ4_OFFSET : l.offset;
    const uint8_t *p = c->w + layout_scale_bytes(l, c->nb);
    __m512 acc[8];
#pragma GCC unroll 8
    for (uint32_t m = 0; m < mr; m++) acc[m] = _mm512_load_ps(c->acc + 16 * m);
    for (uint32_t b = 0; b < c->nb; b++, p += layout_block_bytes(l)) {
        __m512i q[8];
        for (uint32_t i = 0; i < layout_block_bytes(l) + 64; i += 64)
            _mm_prefetch((const char *)p + AHEAD + i, _MM_HINT_T0);
        decode_block(q, p, l);
        const struct decoded_scales s = decode_scales(c->w, l, b);
#pragma GCC unroll 8
        for (uint32_t m = 0; m < mr; m++) {
            const struct act_block *a = c->act + m * c->stride + b;
            const __m512 scale = _mm512_set1_ps(a->scale);
            if (decode_halves(l)) {
                const __m512 d0 = dot(q, a, 0, 4, offset, a->half_isum[0]);
                const __m512 d1 = dot(q, a, 4, 8, offset, a->half_isum[1]);
                acc[m] = _mm512_fmadd_ps(d0, _mm512_mul_ps(s.scale[0], scale), acc[m]);
                acc[m] = _mm512_fmadd_ps(d1, _mm512_mul_ps(s.scale[1], scale), acc[m]);
            } else {
                const __m512 d = dot(q, a, 0, 8, offset, a->isum);
                acc[m] = _mm512_fmadd_ps(d, _mm512_mul_ps(s.scale[0], scale), acc[m]);
            }
            if (decode_has_plus(l) && decode_halves(l)) {
                acc[m] = _mm512_fmadd_ps(s.plus[0], _mm512_set1_ps(a->half_sum[0]), acc[m]);
                acc[m] = _mm512_fmadd_ps(s.plus[1], _mm512_set1_ps(a->half_sum[1]), acc[m]);
            } else if (decode_has_plus(l)) {
                acc[m] = _mm512_fmadd_ps(s.plus[0], _mm512_set1_ps(a->sum), acc[m]);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t m = 0; m < mr; m++) _mm512_store_ps(c->acc + 16 * m, acc[m]);
}

INLINE void dense_chunk(const struct chunk *c, const enum quant_type type, const uint32_t mr)
{
    const uint32_t quad_bytes = type == QUANT_F32 ? 256 : 128;
    const uint8_t *p = c->w;
    __m512 acc[8];
#pragma GCC unroll 8
    for (uint32_t m = 0; m < mr; m++) acc[m] = _mm512_load_ps(c->acc + 16 * m);
    for (uint32_t j = 0; j < c->nb * 8; j++, p += quad_bytes) {
        __m512 w[4];
        for (uint32_t i = 0; i < quad_bytes; i += 64)
            _mm_prefetch((const char *)p + AHEAD + i, _MM_HINT_T0);
        if (type == QUANT_F32) {
#pragma GCC unroll 4
            for (uint32_t k = 0; k < 4; k++) w[k] = _mm512_loadu_ps(p + 64 * k);
        } else {
            __m512 even[2], odd[2];
            decode_pair(even, p, type);
            decode_pair(odd, p + 64, type);
            w[0] = even[0], w[1] = odd[0], w[2] = even[1], w[3] = odd[1];
        }
#pragma GCC unroll 8
        for (uint32_t m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (uint32_t k = 0; k < 4; k++)
                acc[m] =
                    _mm512_fmadd_ps(w[k], _mm512_set1_ps(c->x[m * c->stride + 4 * j + k]), acc[m]);
    }
#pragma GCC unroll 8
    for (uint32_t m = 0; m < mr; m++) _mm512_store_ps(c->acc + 16 * m, acc[m]);
}

#define KERNELS(kind, TYPE)                                                                        \
    static void TYPE##_1(const struct chunk *c)                                                    \
    {                                                                                              \
        kind##_chunk(c, QUANT_##TYPE, 1);                                                          \
    }                                                                                              \
    static void TYPE##_2(const struct chunk *c)                                                    \
    {                                                                                              \
        kind##_chunk(c, QUANT_##TYPE, 2);                                                          \
    }                                                                                              \
    static void TYPE##_4(const struct chunk *c)                                                    \
    {                                                                                              \
        kind##_chunk(c, QUANT_##TYPE, 4);                                                          \
    }                                                                                              \
    static void TYPE##_8(const struct chunk *c)                                                    \
    {                                                                                              \
        kind##_chunk(c, QUANT_##TYPE, 8);                                                          \
    }

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

typedef void (*chunk_fn)(const struct chunk *c);

#define ROW(TYPE) [QUANT_##TYPE] = {TYPE##_1, TYPE##_2, TYPE##_4, TYPE##_8}

/* [type][log2 of the rows at once] */
static const chunk_fn kernels[QUANT_BF16 + 1][4] = {
    ROW(F32),  ROW(F16),  ROW(BF16), ROW(Q4_0), ROW(Q4_1), ROW(Q5_0),   ROW(Q5_1),  ROW(Q8_0),
    ROW(Q2_K), ROW(Q3_K), ROW(Q4_K), ROW(Q5_K), ROW(Q6_K), ROW(IQ4_NL), ROW(IQ4_XS)};

/* ---- The op -------------------------------------------------------------------------------------
 */

/* Adds chunk i of a unit's weights to acc [n_row, 16] for rows r0 .. r0 + n_row - 1. */
static void run_chunk(const struct job *job, struct linear_unit unit, uint32_t i, uint32_t r0,
                      uint32_t n_row, float *acc)
{
    const struct weight *w = job->op->part[unit.part_i].w;
    const struct weight_layout l = weight_layout_of(w->type);
    const bool dense = l.scale == SCALE_NONE;
    const size_t block0 = (size_t)r0 * job->n_block + i * LAYOUT_BLOCKS;
    struct chunk c = {
        .w = w->data + unit.group_i * w->group_bytes + LAYOUT_HEAD +
             (size_t)i * layout_full_chunk_bytes(l),
        .nb = layout_chunk_blocks(job->n_block, i),
        .act = job->act + block0,
        .x = job->x + block0 * LAYOUT_BLOCK,
        .stride = dense ? (size_t)job->n_block * LAYOUT_BLOCK : job->n_block,
        .acc = acc,
    };
    while (n_row > 0) {
        const uint32_t log_mr = n_row >= 8 ? 3 : n_row >= 4 ? 2 : n_row >= 2 ? 1 : 0;
        const uint32_t mr = 1u << log_mr;
        kernels[w->type][log_mr](&c);
        c.act += mr * c.stride;
        c.x += mr * c.stride;
        c.acc += 16 * mr;
        n_row -= mr;
    }
}

static void run_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct job *job = arg;
    const struct op_linear *op = job->op;
    const bool is_glu = linear_is_glu(op);
    const uint32_t n_unit = linear_n_unit(op), u0 = item_i * UNITS;
    const uint32_t n = n_unit - u0 < UNITS ? n_unit - u0 : UNITS;
    const uint32_t n_chunk = (job->n_block + LAYOUT_BLOCKS - 1) / LAYOUT_BLOCKS;
    const uint32_t rows_pass = op->n_row < ROWS_PASS ? op->n_row : ROWS_PASS;
    const size_t acc_size = (size_t)rows_pass * 16;
    float *acc = job->acc + worker_i * UNITS * 2 * acc_size;
    struct linear_unit unit[UNITS];
    for (uint32_t u = 0; u < n; u++) unit[u] = linear_find_unit(op, u0 + u);
    for (uint32_t r0 = 0; r0 < op->n_row; r0 += ROWS_PASS) {
        const uint32_t n_row = op->n_row - r0 < ROWS_PASS ? op->n_row - r0 : ROWS_PASS;
        memset(acc, 0, UNITS * 2 * acc_size * sizeof *acc);
        for (uint32_t i = 0; i < n_chunk; i++)
            for (uint32_t u = 0; u < n; u++) {
                float *a = acc + 2 * u * acc_size;
                run_chunk(job, unit[u], i, r0, n_row, a);
                if (is_glu)
                    run_chunk(job, (struct linear_unit){1, unit[u].group_i}, i, r0, n_row,
                              a + acc_size);
            }
        for (uint32_t u = 0; u < n; u++)
            for (uint32_t r = 0; r < n_row; r++) {
                const float *a = acc + 2 * u * acc_size + (size_t)r * 16;
                linear_finish(op, unit[u], r0 + r, _mm512_load_ps(a), _mm512_load_ps(a + acc_size));
            }
    }
}

size_t linear_avx512_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    (void)n_out_sum;
    const size_t n_block = (size_t)n_row * layout_n_block(n_in);
    const size_t rows_pass = n_row < ROWS_PASS ? n_row : ROWS_PASS;
    return linear_round64(n_block * sizeof(struct act_block)) +
           n_block * LAYOUT_BLOCK * sizeof(float) +
           n_worker * UNITS * 2 * rows_pass * 16 * sizeof(float);
}

void linear_avx512_run(struct workers *pool, const struct op_linear *op)
{
    linear_check(op);
    assert(op->scratch_bytes >= linear_avx512_scratch(workers_count(pool), op->n_row, op->n_in, 0));
    struct job job = {.op = op, .n_block = layout_n_block(op->n_in)};
    for (uint32_t p = 0; p < op->n_part; p++) {
        const bool dense = weight_layout_of(op->part[p].w->type).scale == SCALE_NONE;
        job.want_f32 |= dense;
        job.want_int |= !dense;
    }
    const size_t n_block = (size_t)op->n_row * job.n_block;
    job.act = op->scratch;
    job.x = (float *)((uint8_t *)op->scratch + linear_round64(n_block * sizeof *job.act));
    job.acc = job.x + n_block * LAYOUT_BLOCK;
    workers_for(pool, op->n_row, prepare_row, &job);
    workers_for(pool, (linear_n_unit(op) + UNITS - 1) / UNITS, run_item, &job);
}

void ops_fill_avx512_linear(struct ops *o)
{
    o->linear = linear_avx512_run;
    o->linear_scratch = linear_avx512_scratch;
}
