/* linear_tile.c: packs the rows of a linear layer, distributes items, and stores the results.
 *
 * There are two passes over the workers: rows to tiles, then items. Items of one tile follow each
 * other, so that a tile stays in L2 while the weights stream; with one row there is one tile and
 * the split is by groups alone. All arithmetic is in the kernels of the instruction set. */
#include "ops/cpu/linear_tile.h"

#include "base/minmax.h"

#include <string.h>

#define ITEM_UNITS_MAX   8u
#define ITEMS_PER_WORKER 16u /* enough items that nobody waits long for the last one */

struct job {
    const struct op_linear *op;
    const struct linear_tile_isa *isa;
    uint32_t n_chunk, n_tile;
    uint32_t n_unit, item_units, n_item; /* n_item: per tile */
    uint8_t *xq;                         /* [n_tile][n_chunk, rows of the tile], or NULL */
    struct linear_tile_dense *xf;        /* the same layout */
};

static uint32_t n_chunk_of(uint32_t n_in)
{
    return (n_in + LAYOUT_CHUNK - 1) / LAYOUT_CHUNK;
}

static uint32_t tile_rows(const struct job *job, uint32_t tile_i)
{
    return min_u32(LINEAR_TILE_ROWS, job->op->n_row - tile_i * LINEAR_TILE_ROWS);
}

/* Index of chunk `c` of row `r` of a tile. */
static size_t chunk_index(const struct job *job, uint32_t tile_i, uint32_t c, uint32_t r)
{
    return (size_t)tile_i * LINEAR_TILE_ROWS * job->n_chunk + (size_t)c * tile_rows(job, tile_i) +
           r;
}

static void pack_row(void *arg, uint32_t row_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    const struct op_linear *op = job->op;
    const float *x = op->x + row_i * op->x_stride;
    const float scale = op->norm ? job->isa->rms_scale(x, op->n_in, op->norm_eps) : 1;
    const uint32_t tile_i = row_i / LINEAR_TILE_ROWS, r = row_i % LINEAR_TILE_ROWS;
    for (uint32_t i = 0; i < op->n_in; i += LAYOUT_BLOCK) {
        const size_t chunk = chunk_index(job, tile_i, i / LAYOUT_CHUNK, r);
        const struct linear_tile_slot slot = {
            .xq = job->xq ? job->xq + chunk * job->isa->chunk_bytes : NULL,
            .xf = job->xf ? job->xf + chunk : NULL,
            .block_i = i % LAYOUT_CHUNK / LAYOUT_BLOCK,
        };
        job->isa->pack_block(&slot, x + i, min_u32(LAYOUT_BLOCK, op->n_in - i), scale,
                             op->norm ? op->norm + i : NULL);
    }
}

static void run_kernel(const struct job *job, uint32_t part_i, uint32_t group_i, uint32_t tile_i,
                       float (*acc)[WEIGHT_GROUP])
{
    const struct weight *w = job->op->part[part_i].w;
    const size_t x = chunk_index(job, tile_i, 0, 0);
    const struct linear_tile t = {
        .group = w->data + group_i * w->group_bytes,
        .n_chunk = job->n_chunk,
        .n_block = layout_n_block(w->n_in),
        .n_row = tile_rows(job, tile_i),
        .single = job->op->n_row == 1,
        .xq = job->xq ? job->xq + x * job->isa->chunk_bytes : NULL,
        .xf = job->xf ? job->xf + x : NULL,
        .acc = acc,
    };
    job->isa->kernels[w->type](&t);
}

static void copy_bias(float dst[WEIGHT_GROUP], const struct linear_part *part, uint32_t o0,
                      uint32_t width)
{
    memset(dst, 0, WEIGHT_GROUP * sizeof *dst);
    if (part->bias) memcpy(dst, part->bias + o0, width * sizeof *dst);
}

static void finish_rows(const struct job *job, struct linear_unit unit, uint32_t tile_i,
                        float (*acc)[WEIGHT_GROUP], float (*up)[WEIGHT_GROUP])
{
    const struct linear_part *part = &job->op->part[unit.part_i];
    const uint32_t o0 = unit.group_i * WEIGHT_GROUP;
    const uint32_t width = linear_group_width(part->w, unit.group_i);
    float bias[WEIGHT_GROUP], bias_up[WEIGHT_GROUP] = {0};
    copy_bias(bias, part, o0, width);
    if (linear_is_glu(job->op)) copy_bias(bias_up, &job->op->part[1], o0, width);
    const struct linear_tile_finish f = {
        .epilogue = job->op->epilogue, .bias = bias, .bias_up = bias_up};
    for (uint32_t r = 0; r < tile_rows(job, tile_i); r++) {
        const size_t row = (size_t)tile_i * LINEAR_TILE_ROWS + r;
        float *y = part->y + row * part->y_stride + o0;
        if (width == WEIGHT_GROUP) {
            job->isa->finish(&f, y, acc[r], up[r]);
            continue;
        }
        float edge[WEIGHT_GROUP] = {0}; /* y ends inside the last group */
        if (f.epilogue == LINEAR_ADD) memcpy(edge, y, width * sizeof *y);
        job->isa->finish(&f, edge, acc[r], up[r]);
        memcpy(y, edge, width * sizeof *y);
    }
}

static void run_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct job *job = arg;
    const uint32_t tile_i = item_i / job->n_item, unit0 = item_i % job->n_item * job->item_units;
    const uint32_t unit1 = min_u32(job->n_unit, unit0 + job->item_units);
    _Alignas(64) float acc[LINEAR_TILE_ROWS][WEIGHT_GROUP], up[LINEAR_TILE_ROWS][WEIGHT_GROUP];
    for (uint32_t u = unit0; u < unit1; u++) {
        const struct linear_unit unit = linear_find_unit(job->op, u);
        run_kernel(job, unit.part_i, unit.group_i, tile_i, acc);
        if (linear_is_glu(job->op)) run_kernel(job, 1, unit.group_i, tile_i, up);
        finish_rows(job, unit, tile_i, acc, up);
    }
}

size_t linear_tile_scratch(size_t chunk_bytes, uint32_t n_row, uint32_t n_in)
{
    return n_row * (size_t)n_chunk_of(n_in) * (chunk_bytes + sizeof(struct linear_tile_dense));
}

void linear_tile_run(struct workers *pool, const struct op_linear *op,
                     const struct linear_tile_isa *isa)
{
    linear_check(op);
    assert(op->scratch_bytes >= linear_tile_scratch(isa->chunk_bytes, op->n_row, op->n_in));
    assert((uintptr_t)op->scratch % 64 == 0 && isa->chunk_bytes % 64 == 0);
    struct job job = {
        .op = op,
        .isa = isa,
        .n_chunk = n_chunk_of(op->n_in),
        .n_tile = (op->n_row + LINEAR_TILE_ROWS - 1) / LINEAR_TILE_ROWS,
        .n_unit = linear_n_unit(op),
    };
    uint8_t *scratch = op->scratch;
    for (uint32_t p = 0; p < op->n_part; p++) {
        if (weight_layout_of(op->part[p].w->type).scale != SCALE_NONE)
            job.xq = scratch;
        else
            job.xf = (void *)(scratch + (size_t)op->n_row * job.n_chunk * isa->chunk_bytes);
    }
    const uint32_t n_item_wanted = workers_count(pool) * ITEMS_PER_WORKER;
    job.item_units = min_u32(ITEM_UNITS_MAX, (job.n_unit + n_item_wanted - 1) / n_item_wanted);
    job.n_item = (job.n_unit + job.item_units - 1) / job.item_units;
    workers_for(pool, op->n_row, pack_row, &job);
    workers_for(pool, job.n_tile * job.n_item, run_item, &job);
}
