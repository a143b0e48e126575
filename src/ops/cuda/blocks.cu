/* blocks.cu: blocks of pages for whole segments of prompt rows (op_blocks, for critiprefill). A
 * segment's queries are pooled to their channel-wise maximum and minimum; products with the pages'
 * boxes give scores; scores are fused with those of the layer before, and the best blocks are
 * marked.
 *
 * Launches: pool_kernel, a block for each query head and segment, a thread for each channel and
 * part of the rows; sums_kernel (with four scores), a block for each query head and segment;
 * score_kernel, a warp for each page; choose_kernel, a block for each KV head and segment, with a
 * radix select; list_kernel, a block for each list. All are small; shared memory holds partial
 * results only. Sums have a fixed order, though not that of the CPU, so scores differ from its by
 * rounding. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"
#include "ops/cuda/list.cuh"
#include "ops/plans.h"

#define WARPS   8u
#define THREADS (WARPS * 32)
#define POOL    1024u       /* threads of pool_kernel */
#define SPAN    (4 * WARPS) /* pages of a block of score_kernel */

struct blocks_call {
    struct op_blocks op; /* geom is not valid; segments are on the device */
    uint32_t n_kv_head, head_dim, group;
};

/* The buffers of a segment and KV head. */
struct blocks_place {
    const struct op_block_segment *segment;
    uint32_t kv_head;
    float *raw, *value; /* [n_word] */
    uint32_t *mask;
    float *fused; /* the number of the call that wrote it, then [blocks] */
};

static __device__ struct blocks_place place_of(const struct blocks_call &c, uint32_t segment,
                                               uint32_t kv_head)
{
    const size_t at = ((size_t)segment * c.n_kv_head + kv_head) * c.op.n_word;
    struct blocks_place p;
    p.segment = c.op.segment + segment;
    p.kv_head = kv_head;
    p.raw = c.op.raw + at;
    p.value = c.op.value + at;
    p.mask = c.op.mask + at;
    p.fused = c.op.fused + kv_head * c.op.fused_stride + segment * c.op.fused_row;
    return p;
}

/* ---- Queries ---- */

/* The maximum and minimum of each channel over a segment's rows; with a single score, the middle of
 * the two. */
static __global__ void __launch_bounds__(POOL) pool_kernel(const struct blocks_call c)
{
    kernel_begin();
    __shared__ float most[POOL], least[POOL];
    const struct op_block_segment &s = c.op.segment[blockIdx.y];
    const uint32_t d = c.head_dim, n_part = POOL / d, t = threadIdx.x, part = t / d;
    if (s.why != PLAN_SPARSE) return;
    const float *q = c.op.rows.q + blockIdx.x * d + t % d;
    float hi = -INFINITY, lo = INFINITY;
#pragma unroll 4
    for (uint32_t r = s.begin - c.op.rows.pos + part; r < s.end - c.op.rows.pos; r += n_part) {
        const float x = q[r * c.op.rows.q_stride];
        hi = x > hi ? x : hi;
        lo = x < lo ? x : lo;
    }
    most[t] = hi;
    least[t] = lo;
    __syncthreads();
    if (t >= d) return;
    for (uint32_t i = 1; i < n_part; i++) {
        hi = fmaxf(hi, most[i * d + t]);
        lo = fminf(lo, least[i * d + t]);
    }
    float *to = c.op.query + ((size_t)blockIdx.y * c.op.rows.n_head + blockIdx.x) * 2 * d + t;
    to[0] = c.op.four ? hi : (hi + lo) / 2;
    to[d] = lo;
}

/* ---- Scores ---- */

/* Products of a head's pooled queries with a page's box: out[2 i] with its maxima, out[2 i + 1]
 * with its minima; by a warp. */
static __device__ void box_products(float out[4], const struct blocks_call &c, const float *query,
                                    const uint8_t *box, bool four)
{
    const uint16_t *min = (const uint16_t *)(box + c.op.a_at);
    const uint16_t *by = (const uint16_t *)(box + c.op.b_at);
    float low[2] = {}, wide[2] = {};
    for (uint32_t k = threadIdx.x % 32; k < c.head_dim; k += 32) {
        const float a = choose_half(min[k], SAC_KV_F16), b = choose_half(by[k], SAC_KV_F16);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            if (i > 0 && !four) continue;
            const float q = query[i * c.head_dim + k];
            low[i] += q * a;
            wide[i] += c.op.width * q * b;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        for (int by_lane = 16; by_lane > 0; by_lane /= 2) {
            low[i] += __shfl_xor_sync(~0u, low[i], by_lane);
            wide[i] += __shfl_xor_sync(~0u, wide[i], by_lane);
        }
        out[2 * i] = low[i] + wide[i];
        out[2 * i + 1] = low[i];
    }
}

static __device__ inline const uint8_t *box_of(const struct blocks_call &c, uint32_t kv_head,
                                               uint32_t page)
{
    return c.op.box + c.op.rows.frame[kv_head * c.op.rows.table_stride + page] * c.op.box_stride;
}

static __device__ inline const float *query_of(const struct blocks_call &c, uint32_t segment,
                                               uint32_t head)
{
    return c.op.query + ((size_t)segment * c.op.rows.n_head + head) * 2 * c.head_dim;
}

/* For each of the four products of a query head, (maximum, sum of exp(x - maximum)) over the pages.
 * Scores are large, so a single log-sum-exp would lose the differences between shares. */
static __global__ void __launch_bounds__(THREADS) sums_kernel(const struct blocks_call c)
{
    kernel_begin();
    __shared__ struct exp_sum room[WARPS][4];
    const struct op_block_segment &s = c.op.segment[blockIdx.y];
    const uint32_t head = blockIdx.x, kv_head = head / c.group, t = threadIdx.x;
    if (s.why != PLAN_SPARSE) return;
    struct exp_sum sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = exp_sum_none();
    for (uint32_t p = t / 32; p < s.n_page; p += WARPS) {
        float x[4];
        box_products(x, c, query_of(c, blockIdx.y, head), box_of(c, kv_head, p), true);
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = exp_sum_add(sum[i], exp_sum_of(x[i]));
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (t % 32 == 0) room[t / 32][i] = sum[i];
    __syncthreads();
    if (t >= 4) return;
    struct exp_sum all = room[0][t];
    for (uint32_t w = 1; w < WARPS; w++) all = exp_sum_add(all, room[w][t]);
    if (!isfinite(all.sum)) list_fail(c.op.lists, kv_head);
    float *to = c.op.sums + (((size_t)blockIdx.y * c.op.rows.n_head + head) * 4 + t) * 2;
    to[0] = all.max;
    to[1] = all.sum;
}

/* A page's score: the mean over the query heads of the larger of two. */
static __device__ float score_page(const struct blocks_call &c, uint32_t segment, uint32_t kv_head,
                                   uint32_t page)
{
    float sum = 0;
    for (uint32_t g = 0; g < c.group; g++) {
        const uint32_t head = kv_head * c.group + g;
        float x[4];
        box_products(x, c, query_of(c, segment, head), box_of(c, kv_head, page), c.op.four);
        if (!c.op.four) {
            sum += x[0] > x[1] || isnan(x[0]) ? x[0] : x[1];
            continue;
        }
        const float *of = c.op.sums + ((size_t)segment * c.op.rows.n_head + head) * 8;
        for (int i = 0; i < 4; i++) x[i] = expf(x[i] - of[2 * i]) / of[2 * i + 1];
        sum += fmaxf((x[0] + x[2]) / 2, (x[1] + x[3]) / 2);
    }
    return sum / c.group;
}

static __global__ void __launch_bounds__(THREADS) score_kernel(const struct blocks_call c)
{
    kernel_begin();
    const uint32_t segment = blockIdx.y / c.n_kv_head, kv_head = blockIdx.y % c.n_kv_head;
    const struct blocks_place p = place_of(c, segment, kv_head);
    const uint32_t begin = blockIdx.x * SPAN + threadIdx.x / 32;
    const uint32_t end = min((blockIdx.x + 1) * SPAN, p.segment->n_page);
    if (p.segment->why != PLAN_SPARSE) return;
    for (uint32_t page = begin; page < end; page += WARPS) {
        const float score = score_page(c, segment, kv_head, page);
        if (threadIdx.x % 32 > 0) continue;
        p.raw[page] = score;
        if (!isfinite(score)) list_fail(c.op.lists, kv_head);
    }
}

/* ---- Choice ---- */

/* A block's score is that of its best page; fused scores are made from block scores. */
static __device__ void fuse(const struct blocks_call &c, const struct blocks_place &p, uint32_t n,
                            struct exp_sum *room)
{
    const bool go_on = c.op.before > 0 && __float_as_uint(p.fused[0]) == c.op.before;
    const float old = go_on ? c.op.fuse : 0;
    struct exp_sum sum = exp_sum_none();
    for (uint32_t j = threadIdx.x; j < n; j += THREADS) {
        float best = p.raw[j * c.op.block];
        for (uint32_t i = 1; i < c.op.block; i++) {
            const float x = p.raw[j * c.op.block + i];
            best = x > best ? x : best;
        }
        p.value[j] = best;
        sum = exp_sum_add(sum, exp_sum_of(best));
    }
    sum = block_exp_sum(sum, room);
    for (uint32_t j = threadIdx.x; j < n; j += THREADS) {
        const float x = p.value[j], soft = c.op.four ? x : expf(x - sum.max) / sum.sum;
        p.fused[1 + j] = old > 0 ? old * p.fused[1 + j] + (1 - old) * soft : soft;
    }
    __syncthreads();
}

/* Marks the pages of the n_take best blocks: by fused score, then by the unfused one, then the
 * later block. */
static __device__ void take(const struct blocks_call &c, const struct blocks_place &p, uint32_t n,
                            uint32_t *bin, uint32_t *room)
{
    const struct op_cut cut = cut_find(p.fused + 1, n, p.segment->n_take, bin, room);
    float *tied = p.raw; /* indexed by block now */
    for (uint32_t j = threadIdx.x; j < n; j += THREADS)
        tied[j] = cut_key(p.fused[1 + j]) == cut.key ? p.value[j] : -INFINITY;
    __syncthreads();
    const struct op_cut tie = cut_find(tied, n, cut.n_tie, bin, room);
    uint32_t n_same = 0, n_before = 0, all;
    for (uint32_t j = threadIdx.x; j < n; j += THREADS) n_same += cut_key(tied[j]) == tie.key;
    n_same = block_sum(n_same, room);
    for (uint32_t first = 0; first < n; first += THREADS) {
        const uint32_t j = first + threadIdx.x, key = j < n ? cut_key(tied[j]) : 0;
        const bool same = j < n && key == tie.key;
        const uint32_t before = n_before + block_exclusive_sum(same, room, &all);
        n_before += all;
        if (j >= n) continue;
        const bool taken = cut_key(p.fused[1 + j]) > cut.key || key > tie.key ||
                           (same && before >= n_same - tie.n_tie);
        for (uint32_t i = 0; i < c.op.block; i++) p.mask[j * c.op.block + i] = taken;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) choose_kernel(const struct blocks_call c)
{
    kernel_begin();
    __shared__ struct exp_sum sums[32];
    __shared__ uint32_t bin[CUT_BINS], room[32];
    const struct blocks_place p = place_of(c, blockIdx.y, blockIdx.x);
    const uint32_t n = p.segment->n_page / c.op.block;
    const bool failed = list_failed(c.op.lists, p.kv_head);
    if (p.segment->why != PLAN_SPARSE) return;
    if (!failed && n > 0) {
        fuse(c, p, n, sums);
        take(c, p, n, bin, room);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    p.fused[0] = __uint_as_float(failed ? 0 : c.op.lists.call);
}

/* ---- Lists ---- */

struct blocks_marks { /* pages before a tile; those after the blocks are all read */
    const uint32_t *mask;
    uint32_t n_page;
    __device__ uint32_t word(uint32_t page) const
    {
        return page >= n_page || mask[page] ? ~0u : 0;
    }
    __device__ float logw(uint32_t, uint32_t) const
    {
        return 0;
    }
};

static __global__ void __launch_bounds__(THREADS) list_kernel(const struct blocks_call c)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct op_prompt_rows &rows = c.op.rows;
    const size_t i = (size_t)blockIdx.y * c.n_kv_head + blockIdx.x;
    const uint32_t first = (rows.tile0 + blockIdx.y) * rows.tile_tok, n_page = first / PAGE_TOK;
    const uint32_t segment = first / c.op.segment_tok - rows.pos / c.op.segment_tok;
    const uint32_t tile_pages = rows.tile_tok / PAGE_TOK;
    const struct blocks_place p = place_of(c, segment, blockIdx.x);
    const struct list_room to = list_room_of(c.op.lists, i);
    struct attn_list list = {};
    enum plan_reason why = c.op.dense                               ? PLAN_LAYER
                           : list_failed(c.op.lists, p.kv_head)     ? PLAN_NAN
                           : first + rows.tile_tok <= rows.dense_to ? PLAN_SHORT
                                                                    : p.segment->why;
    if (why == PLAN_SPARSE) { /* uniform in the block */
        const struct blocks_marks marks = {p.mask, p.segment->n_page};
        list_make(&list, to, marks, n_page, tile_pages, room);
        if (list.n_range > to.range_max) why = PLAN_OVERFLOW;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    list_close(&list, to, why, n_page, tile_pages);
    c.op.lists.made[i] = list;
}

/* ---- The launcher ---- */

sac_status cuda_blocks(struct cuda_device *d, const struct op_blocks *op)
{
    struct blocks_call c;
    uint32_t n_page = 0;
    memset(&c, 0, sizeof c);
    c.op = *op;
    c.op.rows.geom = NULL;
    c.n_kv_head = op->rows.geom->n_kv_head;
    c.head_dim = op->rows.geom->head_dim;
    c.group = op->rows.n_head / c.n_kv_head;
    if (POOL % c.head_dim > 0)
        return device_fail(d, SAC_ERR_UNSUPPORTED, "blocks of prompt rows: this head size");
    for (uint32_t i = 0; i < op->n_segment; i++)
        if (op->segment[i].why == PLAN_SPARSE && op->segment[i].n_page > n_page)
            n_page = op->segment[i].n_page;
    c.op.segment =
        (struct op_block_segment *)stage_put(d, op->segment, op->n_segment * sizeof *op->segment);
    if (!c.op.segment) return d->status;
    if (n_page > 0 && !op->dense) {
        const dim3 heads(op->rows.n_head, op->n_segment), lanes(c.n_kv_head, op->n_segment);
        queue_launch(d, "pooled queries", pool_kernel, heads, POOL, 0, c);
        if (op->four) queue_launch(d, "sums of box scores", sums_kernel, heads, THREADS, 0, c);
        queue_launch(d, "box scores of prompt rows", score_kernel,
                     dim3((n_page + SPAN - 1) / SPAN, op->n_segment * c.n_kv_head), THREADS, 0, c);
        queue_launch(d, "blocks of prompt rows", choose_kernel, lanes, THREADS, 0, c);
    }
    return queue_launch(d, "lists of prompt rows", list_kernel, dim3(c.n_kv_head, op->rows.n_tile),
                        THREADS, 0, c);
}
