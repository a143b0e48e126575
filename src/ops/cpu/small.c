/* small.c: splits the small operations over workers.
 *
 * A piece is whole rows (or a span of `add`) of at least PIECE_ELEMS elements. Below that the join
 * costs more than the work, and a single piece runs in the caller without any join. */
#include "ops/cpu/small.h"

#include "base/minmax.h"

#include <assert.h>

#define PIECE_ELEMS ((size_t)8192) /* about 2 us of work, ten times a fork and join */

/* Rows per piece if a row has `row_elems` elements. */
static uint32_t rows_per_piece(size_t row_elems)
{
    const size_t n = PIECE_ELEMS / (row_elems ? row_elems : 1);
    return n ? (uint32_t)n : 1;
}

struct rmsnorm_job {
    const struct op_rmsnorm *op;
    small_rmsnorm_fn kernel;
    uint32_t piece_rows;
};

static void rmsnorm_piece(void *arg, uint32_t item_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct rmsnorm_job *job = arg;
    const struct op_rmsnorm *op = job->op;
    const uint32_t row0 = item_i * job->piece_rows;
    const uint32_t row1 = min_u32(op->n_row, row0 + job->piece_rows);
    for (uint32_t r = row0; r < row1; r++) {
        for (uint32_t g = 0; g < op->n_group; g++) {
            const size_t at = (size_t)g * op->width;
            job->kernel(op->y + r * op->y_stride + at, op->x + r * op->x_stride + at, op->w,
                        op->width, op->eps);
        }
    }
}

void small_rmsnorm(struct workers *pool, const struct op_rmsnorm *op, small_rmsnorm_fn kernel)
{
    assert(op->width > 0 && op->x_stride >= (size_t)op->n_group * op->width);
    struct rmsnorm_job job = {
        .op = op, .kernel = kernel, .piece_rows = rows_per_piece((size_t)op->n_group * op->width)};
    workers_for(pool, (op->n_row + job.piece_rows - 1) / job.piece_rows, rmsnorm_piece, &job);
}

struct rope_job {
    const struct op_rope *op;
    small_rope_fn kernel;
    uint32_t piece_rows;
};

static void rope_piece(void *arg, uint32_t item_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct rope_job *job = arg;
    const struct op_rope *op = job->op;
    const uint32_t row0 = item_i * job->piece_rows;
    const uint32_t row1 = min_u32(op->n_row, row0 + job->piece_rows);
    for (uint32_t r = row0; r < row1; r++) {
        const size_t angle = (size_t)r * (op->n_rot / 2);
        for (uint32_t h = 0; h < op->n_head; h++)
            job->kernel(op->x + r * op->x_stride + (size_t)h * op->head_dim, op->cos + angle,
                        op->sin + angle, op->n_rot);
    }
}

void small_rope(struct workers *pool, const struct op_rope *op, small_rope_fn kernel)
{
    assert(op->n_rot % 2 == 0 && op->n_rot <= op->head_dim);
    assert(op->x_stride >= (size_t)op->n_head * op->head_dim);
    struct rope_job job = {
        .op = op, .kernel = kernel, .piece_rows = rows_per_piece((size_t)op->n_head * op->n_rot)};
    workers_for(pool, (op->n_row + job.piece_rows - 1) / job.piece_rows, rope_piece, &job);
}

struct add_job {
    const struct op_add *op;
    small_add_fn kernel;
};

static void add_piece(void *arg, uint32_t item_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct add_job *job = arg;
    const size_t at = item_i * PIECE_ELEMS, left = job->op->n - at;
    job->kernel(job->op->y + at, job->op->x + at, left < PIECE_ELEMS ? left : PIECE_ELEMS);
}

void small_add(struct workers *pool, const struct op_add *op, small_add_fn kernel)
{
    const size_t n_piece = (op->n + PIECE_ELEMS - 1) / PIECE_ELEMS;
    assert(n_piece <= UINT32_MAX / 2);
    struct add_job job = {.op = op, .kernel = kernel};
    workers_for(pool, (uint32_t)n_piece, add_piece, &job);
}
