/* linear.cu: linear layers (op_linear): y = epilogue(norm(x) W^T + bias) for up to LINEAR_PARTS_MAX
 * matrices with the same input, with RMS norm, bias, residual addition and GLU fused.
 *
 * Decode rows are multiplied by packed weights (narrow.cu), bound by the bytes of the weights.
 * Prompt rows are multiplied in f16 by cuBLASLt (blas.cu), with the parts' weights side by side as
 * one matrix: unpacked at startup (weight.plain), or unpacked here a panel at a time. The input is
 * normalized and rounded to f16 once for all parts, with a power of two for each row; only for a
 * few decode rows each block of narrow.cu does it again, which is faster than another launch.
 *
 * Sums are in f32, or in f16 where several matrices share a product (linear_half_by), and outputs
 * in f32. Launches between two products of prompt rows are fused: an epilogue that adds to the
 * residual stream also packs the rows for the next layer (finish_and_pack), and a GLU whose output
 * only the next call reads packs it directly (pack_glu). Every reduction is over one row by one
 * block, in a fixed order.
 *
 * Scratch: rows in f16 and their scales; for prompt rows also exponents of shrinks, a panel of
 * weights in f16, and the sums of all outputs; for decode rows the sums of pieces (split k), and
 * those of a GLU whose matrices have different types. */
#include "ops/cuda/linear.cuh"
#include "ops/cuda/queue.cuh"

#include "ops/weight_layout.h"

#define PANEL      4096u              /* outputs of a GLU of two types in one panel */
#define KEPT_MAX   24576u             /* outputs of a GLU that is packed directly, at most */
#define PANEL_STEP (2 * WEIGHT_GROUP) /* half a panel is a multiple of 64 bytes */
#define THREADS    LINEAR_THREADS
#define ALIGN      256u

#define GLU_THREADS    512u
#define FINISH_THREADS 128u
#define FINISH_ROWS    4u /* of a block */
#define PACK_BLOCKS    4u /* blocks of a multiprocessor that should fit with two rows each */

static size_t align(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static uint32_t width_of(uint32_t n_in)
{
    return layout_n_block(n_in) * LAYOUT_BLOCK;
}

static uint32_t strips_of(uint32_t n_in)
{
    return (n_in + STRIP - 1) / STRIP;
}

static bool is_glu(const struct op_linear *op)
{
    return op->epilogue == LINEAR_GLU_SILU || op->epilogue == LINEAR_GLU_GELU;
}

/* ---- Scratch ---- */

struct linear_room {
    uint8_t *x; /* decode rows: strips */
    float *scale;
    uint8_t *exponent; /* [n_out], of shrinks */
    __half *w;         /* [panel, width] */
    float *sum;        /* [n_row, n_out]; of decode rows 2 * PANEL instead of n_out */
    size_t bytes;
};

/* Outputs of all parts of prompt rows, in whole groups. 0 for decode rows, whose weights stay
 * packed. */
static uint32_t wide_outputs(const struct op_linear *op)
{
    uint32_t n = 0;
    for (uint32_t i = 0; op->kind == ROW_PROMPT && i < op->n_part; i++)
        n += op->part[i].w->n_group * WEIGHT_GROUP;
    return n;
}

/* Panels of about equal size, a multiple of PANEL_STEP. */
static uint32_t panel_of(uint32_t n_out)
{
    const uint32_t n_panel = (n_out + LINEAR_PANEL - 1) / LINEAR_PANEL;
    const uint32_t n = n_panel ? (n_out + n_panel - 1) / n_panel : 0;
    return (n + PANEL_STEP - 1) / PANEL_STEP * PANEL_STEP;
}

static struct linear_room lay_out(void *scratch, uint32_t n_row, uint32_t n_in, uint32_t n_out,
                                  uint32_t panel)
{
    const size_t width = width_of(n_in), n_sum = n_out > 2 * PANEL ? n_out : 2 * PANEL;
    const size_t bytes[5] = {n_row * (size_t)strips_of(n_in) * STRIP_BYTES, n_row * sizeof(float),
                             n_out, panel * width * sizeof(__half), n_row * n_sum * sizeof(float)};
    uint8_t *piece[5], *at = (uint8_t *)scratch;
    for (int i = 0; i < 5; i++) {
        piece[i] = at;
        at += align(bytes[i]);
    }
    return (struct linear_room){.x = piece[0],
                                .scale = (float *)piece[1],
                                .exponent = piece[2],
                                .w = (__half *)piece[3],
                                .sum = (float *)piece[4],
                                .bytes = (size_t)(at - (uint8_t *)scratch)};
}

size_t cuda_linear_scratch(uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    const uint32_t most = n_out_sum + LINEAR_PARTS_MAX * WEIGHT_GROUP; /* rounded up */
    return lay_out(NULL, n_row, n_in, most, most < LINEAR_PANEL ? most : LINEAR_PANEL).bytes;
}

/* A GLU's outputs packed for the next product, in the place of the f32 ones. */
struct linear_kept {
    __half *x;    /* [n_row, n] */
    float *scale; /* [n_row] */
};

static bool is_kept(const struct op_linear *op, const float *y, uint32_t n, size_t stride)
{
    return op->kind == ROW_PROMPT && (uintptr_t)y % 64 == 0 && n % 64 == 0 && n <= KEPT_MAX &&
           stride == n;
}

static struct linear_kept kept_at(const float *y, uint32_t n_row, uint32_t n)
{
    __half *x = (__half *)y;
    return (struct linear_kept){x, (float *)(x + (size_t)n_row * n)};
}

/* ---- Shrinks ---- */

/* The shrinks of a GLU's two matrices are at the heads of their groups, far apart. pack_glu reads
 * them for every two rows, so the launch that packs the GLU's input collects the bytes that matter.
 */
struct gather {
    const uint8_t *head[2];
    size_t group_bytes[2];
    uint32_t n;  /* outputs of each matrix, in whole groups; 0: nothing to gather */
    uint8_t *to; /* [2][n] exponents of the shrinks' inverses */
};

static __device__ __forceinline__ void gather_exponents(const struct gather &g)
{
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < 2 * g.n; i += gridDim.x * THREADS) {
        const bool is_up = i >= g.n;
        const uint32_t o = is_up ? i - g.n : i;
        const uint8_t *head = is_up ? g.head[1] + o / WEIGHT_GROUP * g.group_bytes[1]
                                    : g.head[0] + o / WEIGHT_GROUP * g.group_bytes[0];
        const uint32_t shrink = *(const uint32_t *)(head + o % WEIGHT_GROUP * sizeof(float));
        g.to[i] = (uint8_t)(2 * 127 - (shrink >> 23));
    }
}

/* ---- Packing of rows ---- */

/* Packs prompt rows; one block for each row. */
static __global__ void __launch_bounds__(THREADS)
    pack_rows(const struct linear_input a, __half *out, float *scale, const struct gather g)
{
    kernel_begin();
    gather_exponents(g);
    linear_pack_row(out + (size_t)blockIdx.x * a.width, scale + blockIdx.x, a, blockIdx.x);
}

/* Packs decode rows in strips. With a norm one block has a row, as the squares are summed in one
 * order; else as many blocks as there are strips for their warps. */
static __global__ void __launch_bounds__(THREADS)
    pack_strips(const struct linear_input a, uint8_t *out, float *scale, uint32_t n_strip)
{
    __shared__ float square[THREADS / 32];
    kernel_launch_dependents(); /* narrow.cu's kernel is next and can load weights meanwhile */
    kernel_begin();
    const uint32_t row = blockIdx.x, first = row / TILE_ROWS * TILE_ROWS, warp = threadIdx.x / 32;
    const uint32_t stride = min(gridDim.x - first, TILE_ROWS) * STRIP_BYTES; /* of the row's tile */
    const uint32_t strip = blockIdx.y * (THREADS / 32) + warp;
    uint8_t *to = out + ((size_t)first * n_strip + row - first) * STRIP_BYTES;
    const float sum = linear_warp_sum(linear_pack_strips(
        {to + strip * stride, stride, strip, gridDim.y * (THREADS / 32), n_strip}, a, row));
    if (threadIdx.x % 32 == 0) square[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.y == 0) scale[row] = linear_norm_factor(square, a);
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

/* ---- Epilogues ---- */

/* Four outputs of a row from their sums. */
static __device__ __forceinline__ void finish_row(const struct finish_args &a, uint32_t row,
                                                  uint32_t o, float4 v, float4 up)
{
    const uint32_t out = a.first + o;
    float4 *const y = (float4 *)(a.end.y + row * a.end.y_stride + out);
    if (a.wide && o + 4 <= a.n) {
        const float4 old = a.end.epilogue == LINEAR_ADD ? *y : make_float4(0, 0, 0, 0);
        *y = make_float4(linear_value(a.end, out, v.x, up.x, old.x),
                         linear_value(a.end, out + 1, v.y, up.y, old.y),
                         linear_value(a.end, out + 2, v.z, up.z, old.z),
                         linear_value(a.end, out + 3, v.w, up.w, old.w));
        return;
    }
    const float x[4] = {v.x, v.y, v.z, v.w}, w[4] = {up.x, up.y, up.z, up.w};
    for (uint32_t i = 0; i < 4 && o + i < a.n; i++) linear_finish(a.end, row, out + i, x[i], w[i]);
}

/* The epilogue of a part; a thread has four outputs of FINISH_ROWS rows. */
static __global__ void __launch_bounds__(FINISH_THREADS) finish(const struct finish_args a)
{
    kernel_begin();
    const uint32_t o = (blockIdx.x * FINISH_THREADS + threadIdx.x) * 4;
    if (o >= a.n) return;
    const float4 by[2] = {finish_factor(a, 0, o), finish_factor(a, 1, o)};
#pragma unroll
    for (uint32_t r = 0; r < FINISH_ROWS; r++) {
        const uint32_t row = blockIdx.y * FINISH_ROWS + r;
        if (row < a.n_row)
            finish_row(a, row, o, finish_load(a, 0, row, o, by[0]),
                       finish_load(a, 1, row, o, by[1]));
    }
}

static sac_status run_finish(struct cuda_device *d, struct finish_args *a)
{
    const uint32_t each = 4 * FINISH_THREADS;
    a->wide = ((uintptr_t)(a->end.y + a->first) | a->end.y_stride * sizeof(float)) % 16 == 0;
    return queue_launch(d, "epilogue of a linear layer", finish,
                        dim3((a->n + each - 1) / each, (a->n_row + FINISH_ROWS - 1) / FINISH_ROWS),
                        FINISH_THREADS, 0, *a);
}

const struct finish_args *linear_end_recorded(const struct cuda_device *d, uint32_t n_behind)
{
    return (const struct finish_args *)queue_before(d, n_behind, kernel_entry(finish));
}

static __device__ __forceinline__ float4 finish_bias(const struct finish_args &a, uint32_t o)
{
    const float *bias = a.end.bias + o;
    return make_float4(bias[0], bias[1], bias[2], bias[3]);
}

/* ---- Fused epilogues and packing ---- */

static __device__ __forceinline__ float4 plus(float4 x, float4 y)
{
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

/* The epilogue of a layer that adds to its rows, fused with packing these rows for the next layer.
 * A block has R rows, so that shrinks and norms are read once for two. A thread packs the outputs
 * that it has made. Dynamic shared memory: the rows [R][n]. */
template <uint32_t R>
static __global__ void __launch_bounds__(THREADS)
    finish_and_pack(const struct finish_args a, const struct linear_input input, __half *out,
                    float *scale, const struct gather g)
{
    kernel_begin();
    gather_exponents(g);
    float4 *const y = (float4 *)kernel_shared();
    const uint32_t row = blockIdx.x * R, n_row = min(R, a.n_row - row);
    float square[R] = {}, most[R] = {}, by_row[R];
    float4 *at[R];
    const float4 *sum[R];
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
        const uint32_t of = row + min(r, n_row - 1);
        by_row[r] = finish_scale(a, of);
        at[r] = (float4 *)(a.end.y + of * a.end.y_stride);
        sum[r] = (const float4 *)((const float *)a.sum[0] + (size_t)of * a.stride);
    }
#pragma unroll 2 /* loads in flight together */
    for (uint32_t i = threadIdx.x; i < a.n / 4; i += THREADS) {
        const float4 by = finish_factor(a, 0, 4 * i), norm = linear_norm4<true>(input, 4 * i);
        float4 v[R], old[R];
#pragma unroll
        for (uint32_t r = 0; r < R; r++) v[r] = sum[r][i], old[r] = at[r][i];
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
            v[r] = finish_times(v[r], by, by_row[r]);
            if (a.end.bias) v[r] = plus(v[r], finish_bias(a, 4 * i));
            v[r] = plus(old[r], v[r]);
            if (r < n_row) at[r][i] = v[r];
            y[r * (a.n / 4) + i] = v[r];
            square[r] = linear_add_square(v[r], square[r]);
            most[r] = linear_most4(most[r], linear_times(v[r], norm));
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
        if (r >= n_row) return;
        const float2 factor = linear_row_factors(square[r], most[r], input);
        __half *const to = out + (size_t)(row + r) * input.width;
        for (uint32_t o = 4 * threadIdx.x; o < input.width; o += 4 * THREADS)
            linear_put4(to + o, o < a.n ? y[(r * a.n + o) / 4] : make_float4(0, 0, 0, 0),
                        linear_norm4<true>(input, o), factor);
        if (threadIdx.x == 0) scale[row + r] = 1.0f / factor.y;
    }
}

static bool are_disjoint(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const uint8_t *const x = (const uint8_t *)a, *const y = (const uint8_t *)b;
    return x + a_bytes <= y || y + b_bytes <= x;
}

/* Whether `a` is the epilogue that produces these rows, and nothing that blocks of other rows still
 * read is overwritten by the packed ones: calls share their scratch. */
static bool ends_in(const struct finish_args *a, const struct linear_input *input,
                    const struct linear_rows *rows, const struct gather *g)
{
    const size_t n = rows->n_row, sums = n * a->stride * sizeof(float), scales = n * sizeof(float);
    const size_t packed = n * rows->width * sizeof(__half);
    return a->end.epilogue == LINEAR_ADD && !a->halves && a->first == 0 && a->scale && a->wide &&
           input->wide && a->n <= KEPT_MAX && a->end.y == input->x &&
           a->end.y_stride == input->x_stride && a->n == input->n_in && a->n_row == n &&
           are_disjoint(rows->x, packed, a->sum[0], sums) &&
           are_disjoint(rows->x, packed, a->scale, scales) &&
           are_disjoint(g->to, 2 * g->n, a->sum[0], sums) &&
           are_disjoint(g->to, 2 * g->n, a->scale, scales) &&
           are_disjoint(rows->scale, scales, a->sum[0], sums) &&
           (rows->scale == a->scale || are_disjoint(rows->scale, scales, a->scale, scales));
}

/* Packs the input. If the epilogue of the same prompt rows was recorded last, it is absorbed. */
static sac_status pack(struct cuda_device *d, const struct linear_input *input,
                       const struct linear_rows *rows, enum row_kind kind, const struct gather *g)
{
    if (kind == ROW_DECODE) {
        const uint32_t n_strip = strips_of(input->n_in), n_warp = THREADS / 32;
        return queue_launch(d, "norm of a linear layer's input", pack_strips,
                            dim3(rows->n_row, input->norm ? 1 : (n_strip + n_warp - 1) / n_warp),
                            THREADS, 0, *input, rows->strips, rows->scale, n_strip);
    }
    const struct finish_args *last = linear_end_recorded(d, 0);
    if (last && ends_in(last, input, rows, g)) {
        const struct finish_args end = *last;
        queue_drop_last(d);
        const bool two = 2 * PACK_BLOCKS * end.n * sizeof(float) <= d->smem_max;
        return queue_launch(d, "epilogue of a linear layer and norm of the next one's input",
                            two ? finish_and_pack<2> : finish_and_pack<1>,
                            two ? (rows->n_row + 1) / 2 : rows->n_row, THREADS,
                            (two ? 2 : 1) * end.n * sizeof(float), end, *input, rows->x,
                            rows->scale, *g);
    }
    return queue_launch(d, "norm of a linear layer's input", pack_rows, rows->n_row, THREADS, 0,
                        *input, rows->x, rows->scale, *g);
}

template <enum linear_epilogue E>
static __device__ __forceinline__ float4 glu_values(float4 v, float4 up)
{
    if (E == LINEAR_GLU_SILU)
        return make_float4(linear_silu(v.x) * up.x, linear_silu(v.y) * up.y,
                           linear_silu(v.z) * up.z, linear_silu(v.w) * up.w);
    return make_float4(linear_gelu(v.x) * up.x, linear_gelu(v.y) * up.y, linear_gelu(v.z) * up.z,
                       linear_gelu(v.w) * up.w);
}

/* Eight sums of a row from output o on, in f16: gate (m 0) or up (m 1). */
static __device__ __forceinline__ uint4 glu_load(const struct finish_args &a, int m, uint32_t row,
                                                 uint32_t o)
{
    return *(const uint4 *)((const __half *)a.sum[m] + (size_t)row * a.stride + o);
}

/* The factors of four outputs from a word of their exponents. */
static __device__ __forceinline__ float4 glu_factor(uint32_t exponents)
{
    const uint32_t mask = 0xffu << 23;
    return make_float4(
        __uint_as_float(exponents << 23 & mask), __uint_as_float(exponents << 15 & mask),
        __uint_as_float(exponents << 7 & mask), __uint_as_float(exponents >> 1 & mask));
}

static __device__ __forceinline__ float4 glu_floats(uint32_t low, uint32_t high)
{
    const float2 x = __half22float2(*reinterpret_cast<const __half2 *>(&low));
    const float2 y = __half22float2(*reinterpret_cast<const __half2 *>(&high));
    return make_float4(x.x, x.y, y.x, y.y);
}

/* Packs a row of a GLU from shared memory, as linear_pack_row does. A thread has eight outputs, in
 * halves n / 2 apart, which avoids bank conflicts. */
static __device__ __forceinline__ void glu_pack(const struct linear_kept &to, uint32_t row,
                                                const float4 *y, uint32_t n, float most)
{
    const float scale = linear_scale_for(linear_reduce<GLU_THREADS / 32>(0, most).y);
    for (uint32_t i = threadIdx.x; i < n / 8; i += GLU_THREADS) {
        const float4 v = y[i], w = y[n / 8 + i];
        const __half2 h[4] = {__floats2half2_rn(v.x * scale, v.y * scale),
                              __floats2half2_rn(v.z * scale, v.w * scale),
                              __floats2half2_rn(w.x * scale, w.y * scale),
                              __floats2half2_rn(w.z * scale, w.w * scale)};
        *(uint4 *)(to.x + (size_t)row * n + 8 * i) = *reinterpret_cast<const uint4 *>(h);
    }
    if (threadIdx.x == 0) to.scale[row] = 1.0f / scale;
}

/* A GLU's epilogue with packing; a block has R rows, so that the shrinks are read once for two.
 * Dynamic shared memory: the rows [R][n]. It limits the blocks of a multiprocessor, so they have
 * many threads. */
template <uint32_t R, enum linear_epilogue E>
static __global__ void __launch_bounds__(GLU_THREADS, 2)
    pack_glu(const struct finish_args a, const struct linear_kept to)
{
    kernel_begin();
    float4 *const y = (float4 *)kernel_shared();
    const uint32_t row = blockIdx.x * R, n_row = min(R, a.n_row - row);
    float most[R] = {}, scale[R];
#pragma unroll
    for (uint32_t r = 0; r < R; r++) scale[r] = finish_scale(a, row + min(r, n_row - 1));
    for (uint32_t i = threadIdx.x; i < a.n / 8; i += GLU_THREADS) {
        uint4 sum[R][2];
        uint2 exponents[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            exponents[m] = *(const uint2 *)(a.exponent[m] + 8 * i);
#pragma unroll
            for (uint32_t r = 0; r < R; r++)
                sum[r][m] = glu_load(a, m, row + min(r, n_row - 1), 8 * i);
        }
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t o = 8 * i + 4 * k;
            const float4 by[2] = {glu_factor(k ? exponents[0].y : exponents[0].x),
                                  glu_factor(k ? exponents[1].y : exponents[1].x)};
            const float4 bias = a.end.bias ? finish_bias(a, o) : make_float4(0, 0, 0, 0);
#pragma unroll
            for (uint32_t r = 0; r < R; r++) {
                const uint4 gates = sum[r][0], ups = sum[r][1];
                const float4 v =
                    finish_times(k ? glu_floats(gates.z, gates.w) : glu_floats(gates.x, gates.y),
                                 by[0], scale[r]);
                const float4 up = finish_times(
                    k ? glu_floats(ups.z, ups.w) : glu_floats(ups.x, ups.y), by[1], scale[r]);
                const float4 x = glu_values<E>(plus(v, bias), up);
                y[r * (a.n / 4) + k * (a.n / 8) + i] = x;
                most[r] = linear_most4(most[r], x);
            }
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < R; r++)
        if (r < n_row) glu_pack(to, row + r, y + r * (a.n / 4), a.n, most[r]);
}

template <uint32_t R> static sac_status run_glu(struct cuda_device *d, const struct finish_args *a)
{
    const auto kernel = a->end.epilogue == LINEAR_GLU_SILU ? pack_glu<R, LINEAR_GLU_SILU>
                                                           : pack_glu<R, LINEAR_GLU_GELU>;
    return queue_launch(d, "packing of a GLU", kernel, (a->n_row + R - 1) / R, GLU_THREADS,
                        R * a->n * sizeof(float), *a, kept_at(a->end.y, a->n_row, a->n));
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

/* The groups of the panel that begins at output `first`. */
static struct weight panel_weight(const struct weight *w, uint32_t first)
{
    struct weight piece = *w;
    const uint32_t group = first / WEIGHT_GROUP, left = w->n_group - group;
    piece.n_group = left < PANEL / WEIGHT_GROUP ? left : PANEL / WEIGHT_GROUP;
    piece.n_out = w->n_out - first < PANEL ? w->n_out - first : PANEL;
    piece.data += group * w->group_bytes;
    return piece;
}

/* Gate and up of different types: both sums a panel at a time, then the epilogue of both. */
static sac_status run_mixed(struct cuda_device *d, const struct op_linear *op,
                            const struct linear_rows *rows, const struct linear_room *room)
{
    for (uint32_t first = 0; first < op->part[0].w->n_out; first += PANEL) {
        struct finish_args a = {
            .stride = PANEL, .n_row = rows->n_row, .first = first, .end = end_of(op, 0)};
        for (uint32_t m = 0; m < 2; m++) {
            const struct weight w = panel_weight(op->part[m].w, first);
            float *const sum = room->sum + m * PANEL * (size_t)rows->n_row;
            const struct narrow_use use = {
                .w = &w,
                .end = {.epilogue = LINEAR_STORE, .y = sum, .y_stride = PANEL, .n_out = w.n_out}};
            TRY(narrow_run(d, rows, &use, 1));
            a.sum[m] = sum;
            a.n = w.n_out;
        }
        TRY(run_finish(d, &a));
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
        use[i] = (struct narrow_use){
            .w = op->part[i].w, .up = is_glu(op) ? op->part[1].w : NULL, .end = end_of(op, i)};
    return narrow_run(d, rows, use, n);
}

/* ---- Prompt rows ---- */

/* The f16 matrix of all parts if they were unpacked contiguously; else NULL. */
static const __half *plain_of(const struct op_linear *op)
{
    const uint8_t *at = (const uint8_t *)op->part[0].w->plain;
    for (uint32_t i = 0; i < op->n_part && at; i++) {
        const struct weight *w = op->part[i].w;
        if (w->plain != at) return NULL;
        at += w->n_group * WEIGHT_GROUP * (size_t)width_of(w->n_in) * sizeof(__half);
    }
    return (const __half *)op->part[0].w->plain;
}

/* Whether the GLU's output is packed directly. */
static bool packs_glu(const struct op_linear *op)
{
    const struct op_linear::linear_part *gate = &op->part[0];
    return op->keep_y && is_kept(op, gate->y, gate->w->n_out, gate->y_stride);
}

static struct gather gather_of(const struct op_linear *op, const struct linear_room *room)
{
    struct gather g = {.to = room->exponent};
    if (!packs_glu(op)) return g;
    for (uint32_t m = 0; m < 2; m++) {
        g.head[m] = op->part[m].w->data;
        g.group_bytes[m] = op->part[m].w->group_bytes;
    }
    g.n = op->part[0].w->n_group * WEIGHT_GROUP;
    return g;
}

static sac_status multiply_plain(struct cuda_device *d, const struct linear_sums *to,
                                 const __half *w)
{
    const uint32_t n_out = (uint32_t)to->stride, panel = panel_of(n_out);
    for (uint32_t first = 0; first < n_out; first += panel)
        TRY(blas_multiply(d, to, first, w + first * (size_t)to->rows->width,
                          min(panel, n_out - first)));
    return SAC_OK;
}

/* Sums of all parts, unpacked panel by panel, as if they were one matrix. */
static sac_status multiply_parts(struct cuda_device *d, const struct op_linear *op,
                                 const struct linear_sums *to, __half *panel)
{
    const size_t width = to->rows->width;
    const uint32_t n_panel = panel_of((uint32_t)to->stride) / WEIGHT_GROUP; /* in groups */
    uint32_t first = 0, n = 0;
    for (uint32_t i = 0; i < op->n_part; i++) {
        const struct weight *w = op->part[i].w;
        for (uint32_t g = 0, take; g < w->n_group; g += take) {
            take = w->n_group - g < n_panel - n ? w->n_group - g : n_panel - n;
            TRY(narrow_unpack(d, panel + n * WEIGHT_GROUP * width, w, g, take));
            n += take;
            if (n < n_panel && (g + take < w->n_group || i + 1 < op->n_part)) continue;
            TRY(blas_multiply(d, to, first, panel, n * WEIGHT_GROUP));
            first += n * WEIGHT_GROUP;
            n = 0;
        }
    }
    return SAC_OK;
}

/* The product of prompt rows and its epilogues. Sums of several matrices are f16: queries, keys,
 * values and GLU outputs are rounded to 16 bits again before they are multiplied. */
static sac_status run_wide(struct cuda_device *d, const struct op_linear *op,
                           const struct linear_rows *rows, const struct linear_room *room)
{
    const uint32_t n_out = wide_outputs(op), n_sum = is_glu(op) ? 2 : 1;
    const struct linear_sums sums = {rows, room->sum, n_out, op->n_part > 1};
    const size_t bytes = sums.halves ? sizeof(__half) : sizeof(float);
    const uint8_t *sum = (const uint8_t *)room->sum;
    const __half *plain = plain_of(op);
    TRY(plain ? multiply_plain(d, &sums, plain) : multiply_parts(d, op, &sums, room->w));
    for (uint32_t i = 0; i < op->n_part; i += n_sum) {
        struct finish_args a = {.halves = sums.halves,
                                .by = sums.halves ? 1 / linear_half_by(rows->width) : 1,
                                .stride = n_out,
                                .n = op->part[i].w->n_out,
                                .n_row = rows->n_row,
                                .scale = rows->scale,
                                .end = end_of(op, i)};
        for (uint32_t m = 0; m < n_sum; m++) {
            const struct weight *w = op->part[i + m].w;
            a.sum[m] = sum;
            a.head[m] = w->data;
            a.group_bytes[m] = w->group_bytes;
            a.exponent[m] = room->exponent + m * w->n_group * WEIGHT_GROUP;
            sum += (size_t)w->n_group * WEIGHT_GROUP * bytes;
        }
        if (packs_glu(op))
            return 4 * a.n * sizeof(float) <= d->smem_max ? run_glu<2>(d, &a) : run_glu<1>(d, &a);
        TRY(run_finish(d, &a));
    }
    return SAC_OK;
}

sac_status cuda_unpack(struct cuda_device *d, const struct weight *w)
{
    return narrow_unpack(d, (__half *)w->plain, w, 0, w->n_group);
}

sac_status cuda_linear(struct cuda_device *d, const struct op_linear *op)
{
    const uint32_t n_out = wide_outputs(op);
    const struct linear_room room =
        lay_out(op->scratch, op->n_row, op->n_in, n_out, panel_of(n_out));
    const struct linear_input input = input_of(op);
    struct linear_rows rows = {.x = (__half *)room.x,
                               .strips = room.x,
                               .scale = room.scale,
                               .part = is_glu(op) ? NULL : room.sum,
                               .part_row = 2 * PANEL,
                               .n_row = op->n_row,
                               .width = input.width};
    if (op->group || room.bytes > op->scratch_bytes)
        return device_fail(d, SAC_ERR_ARG, "a linear layer beyond its scratch");
    if (op->kept_x && op->keep_y) /* pack, which gathers the exponents, would be skipped */
        return device_fail(d, SAC_ERR_ARG, "a GLU of rows that are packed");
    if (op->kind == ROW_DECODE && narrow_packs(op->n_row, input.width))
        rows.input = &input;
    else if (op->kept_x && is_kept(op, op->x, op->n_in, op->x_stride)) {
        const struct linear_kept kept = kept_at(op->x, op->n_row, op->n_in);
        rows.x = kept.x;
        rows.scale = kept.scale;
    } else {
        const struct gather g = gather_of(op, &room);
        TRY(pack(d, &input, &rows, op->kind, &g));
    }
    return op->kind == ROW_DECODE ? run_narrow(d, op, &rows, &room) : run_wide(d, op, &rows, &room);
}
