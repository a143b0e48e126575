/* heads.cu: RoPE of queries and keys, and writing of keys and values to the row's own page
 * (op_rope, op_kv_write), bit for bit as attn_ref.c.
 *
 * y = x cos +- x' sin for the channels of a pair, interleaved or half of n_rot apart. All kernels
 * give a warp to a head; none uses shared memory. Launches that are adjacent in the queue are
 * fused, as one is faster than two:
 *  - RoPE followed by the KV write of the same keys becomes one launch (write_kernel);
 *  - for prompt rows, also the epilogue of the linear layer that made queries, keys and values
 *    (end_kernel);
 *  - for decode rows whose rotated queries are read by attention alone, attention does both
 *    (heads_absorb).
 * The arithmetic is the same in each case. */
#include "ops/cuda/heads.cuh"
#include "ops/cuda/linear.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/queue.cuh"

#define WARPS    4u /* of a block; a warp has one head */
#define END_ROWS 8u /* rows of a warp in the fused epilogue */

/* ---- Rotation ---- */

static __device__ void rotate_head(const struct op_rope &op, uint32_t row, uint32_t head)
{
    const uint32_t half = op.n_rot / 2;
    float *x = op.x + row * op.x_stride + (size_t)head * op.head_dim;
    for (uint32_t c = threadIdx.x % 32; c < half; c += 32) {
        float *a = x + (op.interleaved ? 2 * c : c), *b = a + (op.interleaved ? 1 : half);
        const float cosine = op.cos[(size_t)row * half + c], sine = op.sin[(size_t)row * half + c];
        const float va = *a, vb = *b;
        *a = rope_rotate(va, vb, cosine, -sine);
        *b = rope_rotate(vb, va, cosine, sine);
    }
}

static __global__ void __launch_bounds__(WARPS * 32) rope_kernel(const struct op_rope op)
{
    kernel_begin();
    const uint32_t head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (head < op.n_head) rotate_head(op, blockIdx.x, head);
}

sac_status cuda_rope(struct cuda_device *d, const struct op_rope *op)
{
    if (op->n_head == 0 || op->n_rot == 0 || op->n_row == 0) return SAC_OK;
    return queue_launch(d, "rotation", rope_kernel,
                        dim3(op->n_row, (op->n_head + WARPS - 1) / WARPS), WARPS * 32, 0, *op);
}

/* ---- KV write ---- */

struct write_run { /* from struct attn_run */
    uint8_t *own0, *own;
    uint32_t row0, pos0;
};

struct write_call {              /* op_kv_write, for runs with equally many rows */
    const struct write_run *run; /* [n_run] staged, as it differs from step to step */
    const float *k, *v;
    size_t kv_stride, tail_bytes, tail_v;
    uint32_t n_run, n_row; /* rows of each run */
    uint32_t n_kv_head, head_dim;
    sac_kv_type type_k, type_v;
    struct op_rope rope; /* of queries, then keys; n_head 0: done already */
};

/* The 16-bit row of head h in the run's own pages: the key, and the value c.tail_v bytes further
 * on. */
static __device__ __forceinline__ uint16_t *
place_head(const struct write_call &c, const struct write_run &run, uint32_t row, uint32_t h)
{
    const uint32_t pos = run.pos0 + row - run.row0, j = pos / PAGE_TOK - run.pos0 / PAGE_TOK;
    uint8_t *page = j == 0 ? run.own0 : run.own + (size_t)(j - 1) * c.n_kv_head * c.tail_bytes;
    return (uint16_t *)(page + h * c.tail_bytes) + pos % PAGE_TOK * c.head_dim;
}

static __device__ void write_head(const struct write_call &c, const struct write_run &run,
                                  uint32_t row, uint32_t h)
{
    uint16_t *k = place_head(c, run, row, h), *v = k + c.tail_v / 2;
    const size_t from = row * c.kv_stride + (size_t)h * c.head_dim;
    for (uint32_t i = threadIdx.x % 32; i < c.head_dim; i += 32) {
        k[i] = half_bits(c.k[from + i], c.type_k);
        v[i] = half_bits(c.v[from + i], c.type_v);
    }
}

/* A warp rotates or writes one head of one row. Grid: rows, heads by WARPS, runs. */
static __global__ void __launch_bounds__(WARPS * 32) write_kernel(const struct write_call c)
{
    kernel_begin();
    const uint32_t n_query = c.rope.n_head ? c.rope.n_head - c.n_kv_head : 0;
    const uint32_t head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (head >= n_query + c.n_kv_head) return;
    const struct write_run run = c.run[blockIdx.z];
    const uint32_t row = run.row0 + blockIdx.x;
    if (c.rope.n_head) rotate_head(c.rope, row, head);
    __syncwarp();
    if (head >= n_query) write_head(c, run, row, head - n_query);
}

/* ---- Fused epilogues of queries, keys and values ---- */

/* The epilogues of the linear layer's three parts, fused with RoPE and the KV write. */
struct end_call {
    struct write_call write;
    struct finish_args part[3];
};

/* A head of part 0 (queries), 1 (keys) or 2 (values). */
struct end_head {
    const struct end_call &op;
    const struct write_run &run;
    int part;
    uint32_t h;
};

/* The linear layer's outputs for four channels of a row, before RoPE. */
static __device__ __forceinline__ float4 end_values(const struct end_head &of, uint32_t row,
                                                    uint32_t c, float4 by)
{
    const struct finish_args &a = of.op.part[of.part];
    const uint32_t o = of.h * of.op.write.head_dim + c;
    const float4 v = finish_load(a, 0, row, o, by);
    return make_float4(linear_value(a.end, o, v.x, 0, 0), linear_value(a.end, o + 1, v.y, 0, 0),
                       linear_value(a.end, o + 2, v.z, 0, 0),
                       linear_value(a.end, o + 3, v.w, 0, 0));
}

/* RoPE of four channels, pairs being neighbours. */
static __device__ __forceinline__ float4 rotate_pairs(const struct op_rope &rope, uint32_t row,
                                                      uint32_t c, float4 x)
{
    const size_t at = ((size_t)row * rope.n_rot + c) / 2;
    const float2 cosine = *(const float2 *)(rope.cos + at), sine = *(const float2 *)(rope.sin + at);
    return make_float4(
        rope_rotate(x.x, x.y, cosine.x, -sine.x), rope_rotate(x.y, x.x, cosine.x, sine.x),
        rope_rotate(x.z, x.w, cosine.y, -sine.y), rope_rotate(x.w, x.z, cosine.y, sine.y));
}

/* RoPE of four channels whose partners `other` are half of n_rot away. */
static __device__ __forceinline__ float4 rotate_halves(const struct op_rope &rope, uint32_t row,
                                                       uint32_t c, float4 x, float4 other)
{
    const uint32_t half = rope.n_rot / 2;
    const size_t at = (size_t)row * half + c % half;
    const float4 cosine = *(const float4 *)(rope.cos + at), sine = *(const float4 *)(rope.sin + at);
    const bool first = c < half;
    return make_float4(rope_rotate(x.x, other.x, cosine.x, first ? -sine.x : sine.x),
                       rope_rotate(x.y, other.y, cosine.y, first ? -sine.y : sine.y),
                       rope_rotate(x.z, other.z, cosine.z, first ? -sine.z : sine.z),
                       rope_rotate(x.w, other.w, cosine.w, first ? -sine.w : sine.w));
}

/* Stores four channels of a row, as activations and, of keys and values, in 16 bits in the row's
 * page. */
static __device__ __forceinline__ void end_put(const struct end_head &of, uint32_t row, uint32_t c,
                                               float4 x)
{
    const struct write_call &write = of.op.write;
    const struct linear_end &end = of.op.part[of.part].end;
    *(float4 *)(end.y + row * end.y_stride + of.h * write.head_dim + c) = x;
    if (of.part == 0) return;
    const sac_kv_type type = of.part == 1 ? write.type_k : write.type_v;
    uint16_t *const k = place_head(write, of.run, row, of.h) + c;
    *(uint2 *)(of.part == 1 ? k : k + write.tail_v / 2) =
        make_uint2(half_bits(x.x, type) | (uint32_t)half_bits(x.y, type) << 16,
                   half_bits(x.z, type) | (uint32_t)half_bits(x.w, type) << 16);
}

/* A warp's work: all channels of rows row0 to row_end - 1. A lane takes four channels of a row;
 * heads of fewer than 128 channels have several rows side by side. */
static __device__ __forceinline__ void end_rows(const struct end_head &of, uint32_t row0,
                                                uint32_t row_end)
{
    const struct finish_args &a = of.op.part[of.part];
    const struct op_rope &rope = of.op.write.rope;
    const uint32_t lane = threadIdx.x % 32, d = of.op.write.head_dim, half = rope.n_rot / 2;
    const uint32_t beside = d / 4 < 32 ? 32 / (d / 4) : 1, first = lane / (d / 4);
    if (first >= beside) return;
    for (uint32_t c = lane % (d / 4) * 4; c < d; c += 4 * 32) {
        const bool turns = of.part < 2 && c < rope.n_rot;
        const uint32_t other = !turns || rope.interleaved ? c : c < half ? c + half : c - half;
        const float4 by = finish_factor(a, 0, of.h * d + c);
        const float4 other_by = finish_factor(a, 0, of.h * d + other);
#pragma unroll 4
        for (uint32_t row = row0 + first; row < row_end; row += beside) {
            float4 x = end_values(of, row, c, by);
            if (turns && rope.interleaved)
                x = rotate_pairs(rope, row, c, x);
            else if (turns)
                x = rotate_halves(rope, row, c, x, end_values(of, row, other, other_by));
            end_put(of, row, c, x);
        }
    }
}

static __global__ void __launch_bounds__(WARPS * 32, 10) end_kernel(const struct end_call op)
{
    kernel_begin();
    const uint32_t n_kv = op.write.n_kv_head, n_query = op.write.rope.n_head - n_kv;
    const uint32_t h = blockIdx.y * WARPS + threadIdx.x / 32;
    const struct write_run run = op.write.run[blockIdx.z];
    const uint32_t row = run.row0 + blockIdx.x * END_ROWS;
    const uint32_t end = min(row + END_ROWS, run.row0 + op.write.n_row);
    if (h < n_query)
        end_rows({op, run, 0, h}, row, end);
    else if (h < n_query + n_kv)
        end_rows({op, run, 1, h - n_query}, row, end);
    else if (h < n_query + 2 * n_kv)
        end_rows({op, run, 2, h - n_query - n_kv}, row, end);
}

/* Whether the launch recorded n_behind before the last one is the epilogue of the part with these
 * outputs, for all rows. */
static bool find_end(struct finish_args *out, const struct cuda_device *d, uint32_t n_behind,
                     const float *y, uint32_t n, const struct write_call *c)
{
    const struct finish_args *a = linear_end_recorded(d, n_behind);
    if (!a || a->sum[1] || !a->scale || a->first > 0 || a->end.epilogue != LINEAR_STORE ||
        a->end.y != y || a->end.y_stride != c->kv_stride || a->n != n ||
        a->n_row != c->rope.n_row || !a->wide)
        return false;
    *out = *a;
    return true;
}

/* Drops the three epilogues from the queue if they were recorded last, and describes them in
 * *out. */
static bool absorb_ends(struct end_call *out, struct cuda_device *d, const struct write_call *c)
{
    const uint32_t n_kv = c->n_kv_head * c->head_dim, n_query = c->rope.n_head * c->head_dim - n_kv;
    const uintptr_t angles = (uintptr_t)c->rope.cos | (uintptr_t)c->rope.sin;
    if (c->head_dim % 4 > 0 || c->rope.n_rot % 8 > 0 || angles % 16 > 0 || /* float4 accesses */
        !find_end(&out->part[2], d, 0, c->v, n_kv, c) ||
        !find_end(&out->part[1], d, 1, c->k, n_kv, c) ||
        !find_end(&out->part[0], d, 2, c->rope.x, n_query, c))
        return false;
    for (int i = 0; i < 3; i++) queue_drop_last(d);
    return true;
}

/* Whether the keys of the write are those that the rotation rotates, for all of its rows. */
static bool is_rotated_by(const struct op_kv_write *op, const struct op_rope *rope)
{
    const struct page_geom *g = op->geom;
    uint32_t n_row = 0;
    if (rope->head_dim != g->head_dim || rope->n_head < g->n_kv_head ||
        rope->x_stride != op->kv_stride ||
        rope->x + (size_t)(rope->n_head - g->n_kv_head) * g->head_dim != op->k)
        return false;
    for (uint32_t i = 0; i < op->n_run; n_row += op->run[i++].n_row)
        if (op->run[i].row0 != n_row) return false;
    return n_row == rope->n_row;
}

/* Launches the write of runs [first, end), which have equally many rows. is_left: the epilogues in
 * `ends` are part of it. */
static sac_status write_runs(struct cuda_device *d, const struct op_kv_write *op,
                             struct end_call *ends, bool is_left, uint32_t first, uint32_t end)
{
    struct write_call *const c = &ends->write;
    void *host;
    c->n_run = end - first;
    c->n_row = op->run[first].n_row;
    c->run = (const struct write_run *)stage_alloc(d, (end - first) * sizeof *c->run, &host);
    if (!c->run) return d->status;
    struct write_run *run = (struct write_run *)host;
    for (uint32_t i = first; i < end; i++)
        run[i - first] =
            (struct write_run){op->run[i].own0, op->run[i].own, op->run[i].row0, op->run[i].pos0};
    if (is_left)
        return queue_launch(d, "epilogues of queries, keys and values", end_kernel,
                            dim3((c->n_row + END_ROWS - 1) / END_ROWS,
                                 (c->rope.n_head + c->n_kv_head + WARPS - 1) / WARPS, c->n_run),
                            WARPS * 32, 0, *ends);
    const uint32_t n_head = c->rope.n_head ? c->rope.n_head : c->n_kv_head;
    return queue_launch(d, "writing of keys and values", write_kernel,
                        dim3(c->n_row, (n_head + WARPS - 1) / WARPS, c->n_run), WARPS * 32, 0, *c);
}

sac_status cuda_kv_write(struct cuda_device *d, const struct op_kv_write *op)
{
    const struct page_geom *g = op->geom;
    struct end_call ends;
    struct write_call &c = ends.write;
    bool is_left = false;
    memset(&ends, 0, sizeof ends);
    c.k = op->k;
    c.v = op->v;
    c.kv_stride = op->kv_stride;
    c.tail_bytes = g->tail_bytes;
    c.tail_v = g->tail_v;
    c.n_kv_head = g->n_kv_head;
    c.head_dim = g->head_dim;
    c.type_k = g->type_k;
    c.type_v = g->type_v;
    /* Reserve first: a flush here would issue the rotation. */
    TRY(stage_reserve(d, op->n_run * (sizeof(struct write_run) + STAGE_ALIGN)));
    const struct op_rope *rope = (const struct op_rope *)queue_last(d, kernel_entry(rope_kernel));
    if (rope && is_rotated_by(op, rope)) {
        c.rope = *rope;
        queue_drop_last(d);
        is_left = absorb_ends(&ends, d, &c);
    }
    for (uint32_t i = 0, end; i < op->n_run; i = end) {
        for (end = i; end < op->n_run && op->run[end].n_row == op->run[i].n_row;) end++;
        if (op->run[i].n_row > 0) TRY(write_runs(d, op, &ends, is_left, i, end));
    }
    return SAC_OK;
}

/* ---- Absorbed by attention ---- */

/* Whether attention reads the same rows, heads and pages that the write writes. */
static bool is_written_by(const struct cuda_device *d, const struct op_attn *op,
                          const struct write_call *c)
{
    const struct page_geom *g = op->geom;
    const struct write_run *run =
        (const struct write_run *)(d->ring_host + ((const uint8_t *)c->run - d->ring));
    if (c->n_run != op->n_run || c->n_row != 1 || c->n_kv_head != g->n_kv_head ||
        c->head_dim != g->head_dim || c->type_k != g->type_k)
        return false;
    if (c->rope.n_head && (c->rope.x != op->q || c->rope.x_stride != op->q_stride ||
                           c->rope.n_head != op->n_head + g->n_kv_head))
        return false;
    for (uint32_t i = 0; i < op->n_run; i++)
        if (op->run[i].kind != ROW_DECODE || op->run[i].n_segment > 0 ||
            run[i].row0 != op->run[i].row0 || run[i].pos0 != op->run[i].pos0 ||
            run[i].own0 != op->run[i].own0)
            return false;
    return true;
}

bool heads_absorb(struct cuda_device *d, const struct op_attn *op, struct heads_pending *out)
{
    const struct write_call *c =
        (const struct write_call *)queue_last(d, kernel_entry(write_kernel));
    memset(out, 0, sizeof *out);
    if (!op->q_ends || !c || !is_written_by(d, op, c)) return false;
    out->k = c->k;
    out->v = c->v;
    out->stride = c->kv_stride;
    if (c->rope.n_head) {
        out->cos = c->rope.cos;
        out->sin = c->rope.sin;
        out->n_rot = c->rope.n_rot;
        out->interleaved = c->rope.interleaved;
    }
    queue_drop_last(d);
    return true;
}
