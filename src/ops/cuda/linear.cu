/* linear.cu: linear layers. The input is normalised and rounded to f16 once for all parts, but for
 * the few decode rows for which each block of the multiplying kernel does it again, sooner than
 * another launch could. Decode rows are multiplied by packed weights (narrow.cu), prompt rows by
 * weights that are unpacked a panel at a time (blas.cu). Sums are f32, and so is everything behind them.
 *
 * Scratch: rows in f16, their scales, then for prompt rows a panel of weights in f16 and the sums
 * that it makes; for decode rows the sums of pieces of rows of weights, and those of a GLU whose two
 * matrices are of different types. */
#include "ops/cuda/linear.cuh"
#include "ops/cuda/queue.cuh"

#include "ops/weight_layout.h"

#define PANEL   4096u /* outputs that are unpacked and multiplied together */
#define THREADS LINEAR_THREADS
#define ALIGN   256u

static size_t align(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static uint32_t width_of(uint32_t n_in)
{
    return layout_n_block(n_in) * LAYOUT_BLOCK;
}

static bool is_glu(const struct op_linear *op)
{
    return op->epilogue == LINEAR_GLU_SILU || op->epilogue == LINEAR_GLU_GELU;
}

/* ---- Scratch ---- */

struct linear_room {
    __half *x;
    float *scale;
    __half *w;      /* [PANEL, width] */
    float *sum[2];  /* [n_row, PANEL], of the parts of a GLU; or of pieces of rows of weights */
    size_t bytes;
};

static struct linear_room lay_out(void *scratch, uint32_t n_row, uint32_t n_in, uint32_t panel)
{
    const size_t width = width_of(n_in);
    const size_t bytes[5] = {n_row * width * sizeof(__half), n_row * sizeof(float),
                             panel * width * sizeof(__half), (size_t)n_row * panel * sizeof(float),
                             (size_t)n_row * panel * sizeof(float)};
    uint8_t *piece[5], *at = (uint8_t *)scratch;
    for (int i = 0; i < 5; i++) {
        piece[i] = at;
        at += align(bytes[i]);
    }
    return (struct linear_room){.x = (__half *)piece[0],
                                .scale = (float *)piece[1],
                                .w = (__half *)piece[2],
                                .sum = {(float *)piece[3], (float *)piece[4]},
                                .bytes = (size_t)(at - (uint8_t *)scratch)};
}

static uint32_t panel_of(uint32_t n_out)
{
    const uint32_t n = (n_out + WEIGHT_GROUP - 1) / WEIGHT_GROUP * WEIGHT_GROUP;
    return n < PANEL ? n : PANEL;
}

size_t cuda_linear_scratch(uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    (void)n_out_sum; /* a panel at a time */
    return lay_out(NULL, n_row, n_in, PANEL).bytes;
}

/* ---- Rows ---- */

/* One row a block. */
static __global__ void __launch_bounds__(THREADS)
    pack_rows(const struct linear_input a, __half *out, float *scale)
{
    kernel_begin();
    linear_pack(out + (size_t)blockIdx.x * a.width, scale + blockIdx.x, a, blockIdx.x, 0, a.width);
}

static struct linear_input input_of(const struct op_linear *op)
{
    const uintptr_t places = (uintptr_t)op->x | (uintptr_t)op->norm | op->x_stride * sizeof(float);
    return (struct linear_input){.x = op->x,
                                 .x_stride = op->x_stride,
                                 .n_in = op->n_in,
                                 .width = width_of(op->n_in),
                                 .norm = op->norm,
                                 .eps = op->norm_eps,
                                 .wide = places % 16 == 0 && op->n_in % 4 == 0};
}

static sac_status pack(struct cuda_device *d, const struct linear_input *input,
                       const struct linear_rows *rows)
{
    return queue_launch(d, "norm of a linear layer's input", pack_rows, rows->n_row, THREADS, 0,
                        *input, rows->x, rows->scale);
}

/* ---- Ends ---- */

struct finish_args {
    const float *sum[2]; /* [n_row, panel]; the second of a GLU, or NULL */
    uint32_t panel, n;   /* of the panel's outputs `n` exist */
    uint32_t first;      /* output of the panel's first */
    const float *scale;  /* [n_row] or NULL: sums are final */
    const uint8_t *head[2]; /* the panel's first group, which begins with its shrinks */
    size_t group_bytes[2];
    struct linear_end end;
};

static __global__ void __launch_bounds__(THREADS) finish(const struct finish_args a)
{
    kernel_begin();
    const uint32_t o = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (o >= a.n) return;
    float v[2] = {0, 0};
    for (int m = 0; m < 2 && a.sum[m]; m++) {
        v[m] = a.sum[m][(size_t)row * a.panel + o];
        if (!a.scale) continue;
        const uint8_t *head = a.head[m] + o / WEIGHT_GROUP * a.group_bytes[m];
        v[m] = v[m] / reinterpret_cast<const float *>(head)[o % WEIGHT_GROUP] * a.scale[row];
    }
    linear_finish(a.end, row, a.first + o, v[0], v[1]);
}

static sac_status run_finish(struct cuda_device *d, const struct finish_args *a, uint32_t n_row)
{
    return queue_launch(d, "end of a linear layer", finish,
                        dim3((a->n + THREADS - 1) / THREADS, n_row), THREADS, 0, *a);
}

static struct linear_end end_of(const struct op_linear *op, uint32_t part)
{
    const struct op_linear::linear_part *p = &op->part[part];
    return (struct linear_end){.epilogue = op->epilogue,
                               .bias = p->bias,
                               .y = p->y,
                               .y_stride = p->y_stride,
                               .n_out = p->w->n_out};
}

/* ---- Decode rows ---- */

/* Groups of the panel that begins at output `first`. */
static struct weight panel_weight(const struct weight *w, uint32_t first)
{
    struct weight piece = *w;
    const uint32_t group = first / WEIGHT_GROUP, left = w->n_group - group;
    piece.n_group = left < PANEL / WEIGHT_GROUP ? left : PANEL / WEIGHT_GROUP;
    piece.n_out = w->n_out - first < PANEL ? w->n_out - first : PANEL;
    piece.data += group * w->group_bytes;
    return piece;
}

/* Gate and up are of different types: each alone, a panel at a time, and then together. */
static sac_status run_mixed(struct cuda_device *d, const struct op_linear *op,
                            const struct linear_rows *rows, const struct linear_room *room)
{
    for (uint32_t first = 0; first < op->part[0].w->n_out; first += PANEL) {
        struct finish_args a = {.panel = PANEL, .first = first, .end = end_of(op, 0)};
        for (uint32_t m = 0; m < 2; m++) {
            const struct weight w = panel_weight(op->part[m].w, first);
            const struct narrow_use use = {.w = &w,
                                           .end = {.epilogue = LINEAR_STORE,
                                                   .y = room->sum[m],
                                                   .y_stride = PANEL,
                                                   .n_out = w.n_out}};
            TRY(narrow_run(d, rows, &use, 1));
            a.sum[m] = room->sum[m];
            a.n = w.n_out;
        }
        TRY(run_finish(d, &a, rows->n_row));
    }
    return SAC_OK;
}

static sac_status run_narrow(struct cuda_device *d, const struct op_linear *op,
                             const struct linear_rows *rows, const struct linear_room *room)
{
    if (is_glu(op) && op->part[0].w->type != op->part[1].w->type)
        return run_mixed(d, op, rows, room);
    const uint32_t n = is_glu(op) ? 1 : op->n_part;
    struct narrow_use use[LINEAR_PARTS_MAX];
    for (uint32_t i = 0; i < n; i++)
        use[i] = (struct narrow_use){.w = op->part[i].w,
                                     .up = is_glu(op) ? op->part[1].w : NULL,
                                     .end = end_of(op, i)};
    return narrow_run(d, rows, use, n);
}

/* ---- Prompt rows ---- */

/* Panel `first` .. of part i; of a GLU both parts. */
static sac_status run_panel(struct cuda_device *d, const struct op_linear *op,
                            const struct linear_rows *rows, const struct linear_room *room,
                            uint32_t part, uint32_t first)
{
    const struct weight *w = op->part[part].w;
    const uint32_t left = w->n_group * WEIGHT_GROUP - first, panel = left < PANEL ? left : PANEL;
    struct finish_args a = {.panel = panel,
                            .n = w->n_out - first < panel ? w->n_out - first : panel,
                            .first = first,
                            .scale = rows->scale,
                            .end = end_of(op, part)};
    for (uint32_t m = 0; m < (is_glu(op) ? 2u : 1u); m++) {
        const struct weight *of = op->part[part + m].w;
        TRY(narrow_unpack(d, room->w, of, first / WEIGHT_GROUP, panel / WEIGHT_GROUP));
        TRY(blas_multiply(d, room->sum[m], rows, room->w, panel));
        a.sum[m] = room->sum[m];
        a.head[m] = of->data + first / WEIGHT_GROUP * of->group_bytes;
        a.group_bytes[m] = of->group_bytes;
    }
    return run_finish(d, &a, rows->n_row);
}

static sac_status run_wide(struct cuda_device *d, const struct op_linear *op,
                           const struct linear_rows *rows, const struct linear_room *room)
{
    const uint32_t n = is_glu(op) ? 1 : op->n_part;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t first = 0; first < op->part[i].w->n_out; first += PANEL)
            TRY(run_panel(d, op, rows, room, i, first));
    return SAC_OK;
}

/* Outputs of a panel of the op's parts. */
static uint32_t panel_of_op(const struct op_linear *op)
{
    uint32_t n = 0;
    if (op->kind == ROW_DECODE) return PANEL;
    for (uint32_t i = 0; i < op->n_part; i++)
        n = op->part[i].w->n_out > n ? op->part[i].w->n_out : n;
    return panel_of(n);
}

sac_status cuda_linear(struct cuda_device *d, const struct op_linear *op)
{
    const struct linear_room room =
        lay_out(op->scratch, op->n_row, op->n_in, panel_of_op(op));
    const struct linear_input input = input_of(op);
    struct linear_rows rows = {.x = room.x,
                               .scale = room.scale,
                               .part = is_glu(op) ? NULL : room.sum[0],
                               .part_row = 2 * PANEL, /* both sums, which lie together */
                               .n_row = op->n_row,
                               .width = input.width};
    if (op->group || room.bytes > op->scratch_bytes)
        return device_fail(d, SAC_ERR_ARG, "a linear layer beyond its scratch");
    uint32_t n_group = 0;
    for (uint32_t i = 0; i < op->n_part; i++) n_group += op->part[i].w->n_group;
    if (op->kind == ROW_DECODE && narrow_packs(d, op->n_row, input.width, n_group))
        rows.input = &input;
    else
        TRY(pack(d, &input, &rows));
    return op->kind == ROW_DECODE ? run_narrow(d, op, &rows, &room)
                                  : run_wide(d, op, &rows, &room);
}
