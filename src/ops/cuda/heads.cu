/* heads.cu: what is done to each head of a row ahead of attention: queries and keys turn, and keys and
 * values are written to the row's own page, bit for bit as attn_ref.c says.
 *
 * A rotation that is the last thing noted when its keys are written is done by the launch that
 * writes them: the same arithmetic, and one launch instead of two. And both are done by the launch
 * that attends, if that is what comes next, for decode rows whose queries nobody reads behind it. */
#include "ops/cuda/heads.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/queue.cuh"

#define WARPS 4u /* of a block; a warp takes a head */

/* ---- Rotation ---- */

static __device__ void turn_head(const struct op_rope &op, uint32_t row, uint32_t head)
{
    const uint32_t half = op.n_rot / 2;
    float *x = op.x + row * op.x_stride + (size_t)head * op.head_dim;
    for (uint32_t c = threadIdx.x % 32; c < half; c += 32) {
        float *a = x + (op.interleaved ? 2 * c : c), *b = a + (op.interleaved ? 1 : half);
        const float cosine = op.cos[(size_t)row * half + c], sine = op.sin[(size_t)row * half + c];
        const float va = *a, vb = *b;
        *a = heads_turn(va, vb, cosine, -sine);
        *b = heads_turn(vb, va, cosine, sine);
    }
}

static __global__ void __launch_bounds__(WARPS * 32) turn_kernel(const struct op_rope op)
{
    kernel_begin();
    const uint32_t head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (head < op.n_head) turn_head(op, blockIdx.x, head);
}

sac_status cuda_rope(struct cuda_device *d, const struct op_rope *op)
{
    if (op->n_head == 0 || op->n_rot == 0 || op->n_row == 0) return SAC_OK;
    return queue_launch(d, "rotation", turn_kernel,
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
    struct op_rope turn; /* of queries and keys, the keys last; n_head 0: that is done */
};

static __device__ void write_head(const struct write_call &c, const struct write_run &run,
                                  uint32_t row, uint32_t h)
{
    const uint32_t pos = run.pos0 + row - run.row0, j = pos / PAGE_TOK - run.pos0 / PAGE_TOK;
    uint8_t *page = j == 0 ? run.own0 : run.own + (size_t)(j - 1) * c.n_kv_head * c.tail_bytes;
    uint16_t *k = (uint16_t *)(page + h * c.tail_bytes) + pos % PAGE_TOK * c.head_dim;
    uint16_t *v = k + c.tail_v / 2;
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
    const uint32_t n_query = c.turn.n_head ? c.turn.n_head - c.n_kv_head : 0;
    const uint32_t head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (head >= n_query + c.n_kv_head) return;
    const struct write_run run = c.run[blockIdx.z];
    const uint32_t row = run.row0 + blockIdx.x;
    if (c.turn.n_head) turn_head(c.turn, row, head);
    __syncwarp();
    if (head >= n_query) write_head(c, run, row, head - n_query);
}

/* Whether these are the keys of that rotation, and all of its rows. */
static bool is_turned_by(const struct op_kv_write *op, const struct op_rope *turn)
{
    const struct page_geom *g = op->geom;
    uint32_t n_row = 0;
    if (turn->head_dim != g->head_dim || turn->n_head < g->n_kv_head ||
        turn->x_stride != op->kv_stride ||
        turn->x + (size_t)(turn->n_head - g->n_kv_head) * g->head_dim != op->k)
        return false;
    for (uint32_t i = 0; i < op->n_run; n_row += op->run[i++].n_row)
        if (op->run[i].row0 != n_row) return false;
    return n_row == turn->n_row;
}

/* Runs [first, end) have equally many rows. */
static sac_status write_runs(struct cuda_device *d, const struct op_kv_write *op,
                             struct write_call *c, uint32_t first, uint32_t end)
{
    void *host;
    c->n_run = end - first;
    c->n_row = op->run[first].n_row;
    c->run = (const struct write_run *)stage_take(d, (end - first) * sizeof *c->run, &host);
    if (!c->run) return d->status;
    struct write_run *run = (struct write_run *)host;
    for (uint32_t i = first; i < end; i++)
        run[i - first] = (struct write_run){op->run[i].own0, op->run[i].own, op->run[i].row0,
                                            op->run[i].pos0};
    const uint32_t n_head = c->turn.n_head ? c->turn.n_head : c->n_kv_head;
    return queue_launch(d, "writing of keys and values", write_kernel,
                        dim3(c->n_row, (n_head + WARPS - 1) / WARPS, c->n_run),
                        WARPS * 32, 0, *c);
}

sac_status cuda_kv_write(struct cuda_device *d, const struct op_kv_write *op)
{
    const struct page_geom *g = op->geom;
    struct write_call c;
    memset(&c, 0, sizeof c);
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
    const struct op_rope *turn = (const struct op_rope *)queue_last(d, kernel_entry(turn_kernel));
    if (turn && is_turned_by(op, turn)) {
        c.turn = *turn;
        queue_drop_last(d);
    }
    for (uint32_t i = 0, end; i < op->n_run; i = end) {
        for (end = i; end < op->n_run && op->run[end].n_row == op->run[i].n_row;) end++;
        if (op->run[i].n_row > 0) TRY(write_runs(d, op, &c, i, end));
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
    if (c->turn.n_head && (c->turn.x != op->q || c->turn.x_stride != op->q_stride ||
                           c->turn.n_head != op->n_head + g->n_kv_head))
        return false;
    for (uint32_t i = 0; i < op->n_run; i++)
        if (op->run[i].kind != ROW_DECODE || op->run[i].n_segment > 0 ||
            run[i].row0 != op->run[i].row0 || run[i].pos0 != op->run[i].pos0 ||
            run[i].own0 != op->run[i].own0)
            return false;
    return true;
}

bool heads_take(struct cuda_device *d, const struct op_attn *op, struct heads_new *out)
{
    const struct write_call *c =
        (const struct write_call *)queue_last(d, kernel_entry(write_kernel));
    memset(out, 0, sizeof *out);
    if (!op->q_ends || !c || !is_written_by(d, op, c)) return false;
    out->k = c->k;
    out->v = c->v;
    out->stride = c->kv_stride;
    if (c->turn.n_head) {
        out->cos = c->turn.cos;
        out->sin = c->turn.sin;
        out->n_rot = c->turn.n_rot;
        out->interleaved = c->turn.interleaved;
    }
    queue_drop_last(d);
    return true;
}
