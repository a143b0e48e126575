/* linear_ref.c: linear layers in plain C, the definition against which the other instruction sets
 * are tested.
 *
 * Order of arithmetic. The input row is normalised as in small_ref.c (sum of squares in double,
 * from the first to the last; (x * scale) * norm). Each output is one f32 accumulator from 0
 * through the inputs in ascending order, acc = acc + x[k] * w[k], product and sum rounded
 * separately, weights unpacked to exact f32; then bias is added, then the epilogue applied with
 * libm's expf and tanhf. ROW_PROMPT and ROW_DECODE are the same here.
 *
 * For speed without a change of order, eight rows are computed at a time, one per vector lane. The
 * rows are transposed in scratch, eight side by side, the last eight filled up with zeros. A weight
 * is unpacked once per call and row of outputs. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "ops/cpu/linear.h"

#include <math.h>

#define LANES 8u /* rows computed side by side */

struct job {
    const struct op_linear *op;
    float *x; /* [n_tile, n_in, LANES] normalised rows */
    float *w; /* [n_worker, 2, n_in] unpacked weights of one output; for a GLU of gate and up */
};

static uint32_t n_tile_of(uint32_t n_row)
{
    return (n_row + LANES - 1) / LANES;
}

static void transpose_tile(void *arg, uint32_t tile_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    const struct op_linear *op = job->op;
    float *dst = job->x + (size_t)tile_i * op->n_in * LANES;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const uint32_t r = tile_i * LANES + lane;
        if (r >= op->n_row) {
            for (uint32_t k = 0; k < op->n_in; k++) dst[k * LANES + lane] = 0;
            continue;
        }
        const float *x = op->x + r * op->x_stride;
        float scale = 1;
        if (op->norm) {
            double sum = 0;
            for (uint32_t k = 0; k < op->n_in; k++) sum += (double)x[k] * x[k];
            scale = (float)(1.0 / sqrt(sum / op->n_in + (double)op->norm_eps));
        }
        for (uint32_t k = 0; k < op->n_in; k++)
            dst[k * LANES + lane] = op->norm ? x[k] * scale * op->norm[k] : x[k];
    }
}

static void dot_tile(float out[LANES], const float *x, const float *w, uint32_t n)
{
    float acc[LANES] = {0};
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t lane = 0; lane < LANES; lane++) acc[lane] += x[k * LANES + lane] * w[k];
    for (uint32_t lane = 0; lane < LANES; lane++) out[lane] = acc[lane];
}

static float glu(enum linear_epilogue epilogue, float gate, float up)
{
    if (epilogue == LINEAR_GLU_SILU) return gate / (1 + expf(-gate)) * up;
    const float inner = GELU_SQRT_2_OVER_PI * (gate + GELU_CUBIC * gate * gate * gate);
    return 0.5f * gate * (1 + tanhf(inner)) * up;
}

/* Computes output o of part p for all rows. */
static void compute_output(const struct job *job, uint32_t p, uint32_t o, float *w)
{
    const struct op_linear *op = job->op;
    const struct linear_part *part = &op->part[p];
    const bool is_glu = linear_is_glu(op);
    float *w_up = w + op->n_in;
    weight_unpack_row(w, part->w, o);
    if (is_glu) weight_unpack_row(w_up, op->part[1].w, o);
    const float bias = part->bias ? part->bias[o] : 0;
    const float bias_up = is_glu && op->part[1].bias ? op->part[1].bias[o] : 0;
    for (uint32_t t = 0; t < n_tile_of(op->n_row); t++) {
        const float *x = job->x + (size_t)t * op->n_in * LANES;
        float sum[LANES], up[LANES] = {0};
        dot_tile(sum, x, w, op->n_in);
        if (is_glu) dot_tile(up, x, w_up, op->n_in);
        for (uint32_t r = t * LANES; r < op->n_row && r < (t + 1) * LANES; r++) {
            float *y = part->y + r * part->y_stride + o;
            const float value = sum[r % LANES] + bias;
            if (is_glu)
                *y = glu(op->epilogue, value, up[r % LANES] + bias_up);
            else
                *y = op->epilogue == LINEAR_ADD ? *y + value : value;
        }
    }
}

static void compute_unit(void *arg, uint32_t unit_i, uint32_t worker_i)
{
    const struct job *job = arg;
    const struct linear_unit unit = linear_find_unit(job->op, unit_i);
    const struct weight *weight = job->op->part[unit.part_i].w;
    const uint32_t o0 = unit.group_i * WEIGHT_GROUP;
    float *w = job->w + (size_t)worker_i * 2 * job->op->n_in;
    for (uint32_t i = 0; i < linear_group_width(weight, unit.group_i); i++)
        compute_output(job, unit.part_i, o0 + i, w);
}

static size_t scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    (void)n_out_sum;
    return ((size_t)n_tile_of(n_row) * LANES + 2 * (size_t)n_worker) * n_in * sizeof(float);
}

static void linear(struct workers *pool, const struct op_linear *op)
{
    linear_check(op);
    assert(op->scratch_bytes >= scratch(workers_count(pool), op->n_row, op->n_in, 0));
    struct job job = {.op = op, .x = op->scratch};
    const uint32_t n_tile = n_tile_of(op->n_row);
    job.w = job.x + (size_t)n_tile * LANES * op->n_in;
    workers_for(pool, n_tile, transpose_tile, &job);
    workers_for(pool, linear_n_unit(op), compute_unit, &job);
}

void ops_fill_ref_linear(struct ops *o)
{
    o->linear = linear;
    o->linear_scratch = scratch;
}
