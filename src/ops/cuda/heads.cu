/* heads.cu: what is done to each head of a row ahead of attention: queries and keys rope, and keys
 * and values are written to the row's own page, bit for bit as attn_ref.c says.
 *
 * A rotation that is the last thing noted when its keys are written is done by the launch that
 * writes them: the same arithmetic, and one launch instead of two; so are the ends of the linear
 * layer that makes them, of prompt rows, if they are what was noted before. And both are done by
 * the launch that attends, if that is what comes next, for decode rows whose queries nobody reads
 * behind it. */
#include "ops/cuda/heads.cuh"
#include "ops/cuda/linear.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/queue.cuh"

#define WARPS    4u /* of a block; a warp takes a head */
#define END_ROWS 8u /* of which a warp makes queries, keys or values of sums */

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

/* ---- Writing ---- */

struct write_run { /* of struct attn_run */
    uint8_t *own0, *own;
    uint32_t row0, pos0;
};

struct write_call {          /* struct op_kv_write, for runs of equally many rows */
    const struct write_run *run; /* [n_run] staged: it is what differs from step to step */
    const float *k, *v;
    size_t kv_stride, tail_bytes, tail_v;
    uint32_t n_run, n_row; /* of each run */
    uint32_t n_kv_head, head_dim;
    sac_kv_type type_k, type_v;
    struct op_rope rope; /* of queries and keys, the keys last; n_head 0: that is done */
};

/* Where a row's head lies in its page: keys, and values c.tail_v bytes behind them. */
static __device__ __forceinline__ uint16_t *place_head(const struct write_call &c,
                                                       const struct write_run &run, uint32_t row,
                                                       uint32_t h)
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

/* A warp for each head that turns or is written. */
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

/* ---- Ends of queries, keys and values ---- */

/* What the linear layer's sums become of the three, which rope and are written on the way. */
struct end_call {
    struct write_call write;
    struct finish_args part[3];
};

/* A head of a part: of queries (0), keys (1) or values (2). */
struct end_head {
    const struct end_call &op;
    const struct write_run &run;
    int part;
    uint32_t h;
};

/* Four channels of a row from c on, before they rope. */
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

/* They rope: neighbours are pairs. */
static __device__ __forceinline__ float4 rotate_pairs(const struct op_rope &rope, uint32_t row,
                                                      uint32_t c, float4 x)
{
    const size_t at = ((size_t)row * rope.n_rot + c) / 2;
    const float2 cosine = *(const float2 *)(rope.cos + at), sine = *(const float2 *)(rope.sin + at);
    return make_float4(
        rope_rotate(x.x, x.y, cosine.x, -sine.x), rope_rotate(x.y, x.x, cosine.x, sine.x),
        rope_rotate(x.z, x.w, cosine.y, -sine.y), rope_rotate(x.w, x.z, cosine.y, sine.y));
}

/* The others of their pairs lie half of what turns further on, or back. */
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

/* Four channels of a row from c on are x. */
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

/* All channels of rows row0 .. row_end - 1: a lane takes four of a row, and small heads of several
 * rows stand beside each other. A warp. */
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

/* Whether the launch noted so many before the last one ends a part with these outputs, of all rows. */
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

/* The three ends, if they are the last things noted, are taken back. */
static bool absorb_ends(struct end_call *out, struct cuda_device *d, const struct write_call *c)
{
    const uint32_t n_kv = c->n_kv_head * c->head_dim, n_query = c->rope.n_head * c->head_dim - n_kv;
    const uintptr_t angles = (uintptr_t)c->rope.cos | (uintptr_t)c->rope.sin;
    if (c->head_dim % 4 > 0 || c->rope.n_rot % 8 > 0 || angles % 16 > 0 || /* of fours */
        !find_end(&out->part[2], d, 0, c->v, n_kv, c) ||
        !find_end(&out->part[1], d, 1, c->k, n_kv, c) ||
        !find_end(&out->part[0], d, 2, c->rope.x, n_query, c))
        return false;
    for (int i = 0; i < 3; i++) queue_drop_last(d);
    return true;
}

/* Whether these are the keys of that rotation, and all of its rows. */
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

/* Runs [first, end) have equally many rows; `ends`: what makes them is left to do. */
static sac_status write_runs(struct cuda_device *d, const struct op_kv_write *op,
                             struct end_call *ends, bool is_left, uint32_t first,
                             uint32_t end)
{
    struct write_call *const c = &ends->write;
    void *host;
    c->n_run = end - first;
    c->n_row = op->run[first].n_row;
    c->run = (const struct write_run *)stage_alloc(d, (end - first) * sizeof *c->run, &host);
    if (!c->run) return d->status;
    struct write_run *run = (struct write_run *)host;
    for (uint32_t i = first; i < end; i++)
        run[i - first] = (struct write_run){op->run[i].own0, op->run[i].own, op->run[i].row0,
                                            op->run[i].pos0};
    if (is_left)
        return queue_launch(d, "ends of queries, keys and values", end_kernel,
                            dim3((c->n_row + END_ROWS - 1) / END_ROWS,
                                 (c->rope.n_head + c->n_kv_head + WARPS - 1) / WARPS, c->n_run),
                            WARPS * 32, 0, *ends);
    const uint32_t n_head = c->rope.n_head ? c->rope.n_head : c->n_kv_head;
    return queue_launch(d, "writing of keys and values", write_kernel,
                        dim3(c->n_row, (n_head + WARPS - 1) / WARPS, c->n_run),
                        WARPS * 32, 0, *c);
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
    /* Room first: where there is none, the row is flushed, and the rotation with it. */
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

/* ---- Left to attention ---- */

/* Whether attention has the same rows, heads and pages. */
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
