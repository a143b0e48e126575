/* pooled.cu: whole blocks for prompt rows, by columns and diagonals of a few rows' attention or by
 * pooled scores (op_trace, OP_TRACE_POOLED, for flexprefill).
 *
 * Launches after those of trace.cu: mean keys of blocks and mean queries of tiles, a thread for
 * each channel; a softmax of each mean query over the blocks, a block of threads for each; budgets,
 * a block for each head and kind of line, which sums lines over blocks; a choice for each head, by
 * the Jensen-Shannon distance between the columns and the softmax of the rows' mean query; and the
 * lists. Shared memory holds histograms and partial sums.
 *
 * Attention is summed in fixed point and means in a fixed order, so a head's choice depends on its
 * rows and keys alone. */
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"
#include "ops/cuda/list.cuh"
#include "ops/cuda/trace.cuh"

#define THREADS      256u
#define WARPS        (THREADS / 32)
#define BEST_THREADS 1024u /* threads of a head's choice */
#define BLOCK        OP_TRACE_BLOCK
#define PAGES        (BLOCK / PAGE_TOK)
#define SHARE_ONE    0x1p40f /* probabilities in fixed point */

struct pooled_call {
    struct trace_call c;
    struct page_geom geom;
    uint32_t n_row;     /* rows whose attention was computed */
    uint32_t n_block;   /* blocks up to the last tile */
    float *key;         /* [KV heads][n_block][head_dim] means */
    float *query;       /* [n_head][n_tile + 1][head_dim] means; the last one of the n_row rows */
    float *share;       /* [n_head][n_tile + 1][n_block]; later 1: read, 0: not */
    float *by;          /* [n_head][kinds][n_block] sums of lines; later 1 or 0 likewise */
    uint32_t *is_dense; /* [n_head] the head goes by lines; `share` is not used */
    uint32_t *budget;   /* [n_head][kinds], in blocks */
};

/* The run's rows of a tile; for tile n_tile, the rows whose attention was computed. */
static __device__ void pooled_rows(const struct pooled_call &p, uint32_t tile, uint32_t *begin,
                                   uint32_t *end)
{
    const struct op_prompt_rows &rows = p.c.op.rows;
    const uint32_t first = (rows.tile0 + tile) * BLOCK;
    const bool is_tile = tile < rows.n_tile;
    *begin = is_tile ? max(first, rows.pos) - rows.pos : rows.end - rows.pos - p.n_row;
    *end = (is_tile ? min(first + BLOCK, rows.end) : rows.end) - rows.pos;
}

static __device__ inline float *pooled_query(const struct pooled_call &p, uint32_t head,
                                             uint32_t tile)
{
    return p.query + ((size_t)head * (p.c.op.rows.n_tile + 1) + tile) * p.geom.head_dim;
}

static __device__ inline float *pooled_share(const struct pooled_call &p, uint32_t head,
                                             uint32_t tile)
{
    return p.share + ((size_t)head * (p.c.op.rows.n_tile + 1) + tile) * p.n_block;
}

static __device__ inline float *pooled_by(const struct pooled_call &p, uint32_t head, uint32_t kind)
{
    return p.by + ((size_t)head * TRACE_KINDS + kind) * p.n_block;
}

/* ---- Means ---- */

/* Thread c averages channel c over a block's keys. */
static __global__ void __launch_bounds__(THREADS) pooled_keys_kernel(const struct pooled_call p)
{
    kernel_begin();
    const struct rows_pages &pages = p.c.pages;
    const uint32_t block = blockIdx.x, kv_head = blockIdx.y, c = threadIdx.x, d = p.geom.head_dim;
    const uint32_t end = min((block + 1) * BLOCK, pages.end);
    if (c >= d) return;
    float sum = 0;
    for (uint32_t page = block * PAGES; page * PAGE_TOK < end; page++) {
        const uint32_t n = min(end - page * PAGE_TOK, PAGE_TOK);
        if (n < PAGE_TOK) {
            const uint16_t *own = (const uint16_t *)(pages.own + kv_head * p.geom.tail_bytes) + c;
            for (uint32_t t = 0; t < n; t++) sum += choose_half(own[t * d], p.geom.type_k);
            continue;
        }
        const uint32_t frame = pages.frame[kv_head * pages.table_stride + page];
        const uint8_t *at = place_page(pages.frames, frame, pages.page_bytes);
        float of_page = 0;
        for (uint32_t t = 0; t < PAGE_TOK; t++) of_page += choose_key(p.geom, at, t, c);
        sum += of_page;
    }
    p.key[((size_t)kv_head * p.n_block + block) * d + c] = sum / (float)(end - block * BLOCK);
}

/* Thread c averages channel c over a tile's queries, scaled. */
static __global__ void __launch_bounds__(THREADS) pooled_queries_kernel(const struct pooled_call p)
{
    kernel_begin();
    const struct op_prompt_rows &rows = p.c.op.rows;
    const uint32_t head = blockIdx.x, tile = blockIdx.y, c = threadIdx.x, d = p.geom.head_dim;
    uint32_t begin, end;
    if (c >= d) return;
    pooled_rows(p, tile, &begin, &end);
    float sum = 0;
    for (uint32_t r = begin; r < end; r++) sum += rows.q[r * rows.q_stride + head * d + c];
    pooled_query(p, head, tile)[c] = sum * (rows.scale / (float)(end - begin));
}

/* Softmax of a mean query over the blocks up to its own; 0 for later ones. */
static __global__ void __launch_bounds__(THREADS) pooled_shares_kernel(const struct pooled_call p)
{
    kernel_begin();
    __shared__ struct exp_sum room[32];
    const uint32_t head = blockIdx.x, tile = blockIdx.y, d = p.geom.head_dim;
    const uint32_t kv_head = head / p.c.group, lane = threadIdx.x % 32;
    const uint32_t n = min(p.c.op.rows.tile0 + tile + 1, p.n_block);
    const float *q = pooled_query(p, head, tile);
    float *share = pooled_share(p, head, tile);
    for (uint32_t b = threadIdx.x / 32; b < n; b += WARPS) {
        const float *k = p.key + ((size_t)kv_head * p.n_block + b) * d;
        float sum = 0;
        for (uint32_t c = lane; c < d; c += 32) sum += q[c] * k[c];
        for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
        if (lane == 0) share[b] = sum;
    }
    __syncthreads();
    struct exp_sum all = exp_sum_none();
    for (uint32_t b = threadIdx.x; b < n; b += THREADS)
        all = exp_sum_add(all, exp_sum_of(share[b]));
    all = block_exp_sum(all, room);
    for (uint32_t b = threadIdx.x; b < p.n_block; b += THREADS)
        share[b] = b < n ? expf(share[b] - all.max) / all.sum : 0.0f;
    if (threadIdx.x == 0 && !isfinite(all.sum)) list_fail(p.c.op.lists, kv_head);
}

/* ---- Choice ---- */

struct pooled_room { /* in shared memory */
    struct cut_room cut;
    uint32_t *bin; /* [CUT_BINS] */
    double *sum;   /* [32] */
};

/* Sums of lines over blocks, as means over the rows; a warp has a block. */
static __device__ void sum_blocks(const struct pooled_call &p, uint32_t head, uint32_t kind)
{
    const trace_sum *sum = trace_sums(p.c, head, kind);
    for (uint32_t b = threadIdx.x / 32; b < p.n_block; b += BEST_THREADS / 32) {
        trace_sum all = 0;
        for (uint32_t x = b * BLOCK + threadIdx.x % 32; x < min((b + 1) * BLOCK, p.c.n); x += 32)
            all += sum[x];
        for (int by = 16; by > 0; by /= 2) all += __shfl_xor_sync(~0u, all, by);
        if (threadIdx.x % 32 == 0)
            pooled_by(p, head, kind)[b] = (float)((double)all / TRACE_ONE / p.n_row);
    }
}

/* The Jensen-Shannon distance (root of the divergence) between the columns and the mean query's
 * softmax. */
static __device__ double pooled_distance(const struct pooled_call &p, uint32_t head, double *room)
{
    const float *guess = pooled_share(p, head, p.c.op.rows.n_tile);
    const float *column = pooled_by(p, head, TRACE_COLUMN);
    double sum = 0;
    for (uint32_t b = threadIdx.x; b < p.n_block; b += BEST_THREADS) {
        const double x = (double)guess[b], y = (double)column[b], m = (x + y) / 2;
        if (x > 0) sum += x * log(x / m) / 2;
        if (y > 0) sum += y * log(y / m) / 2;
    }
    return sqrt(fmax(block_sum(sum, room), 0.0));
}

/* The budget in blocks: that of the fewest best lines that hold the share, rounded down, plus
 * one. */
static __device__ uint32_t budget_blocks(const struct pooled_call &p, uint32_t head, uint32_t kind,
                                         const struct cut_room &r)
{
    const trace_sum *sum = trace_sums(p.c, head, kind);
    const float *rank = p.c.rank + ((size_t)head * TRACE_KINDS + kind) * p.c.stride;
    const auto weight = [&](uint32_t x) { return sum[x]; };
    trace_sum total = 0;
    uint32_t count = 0;
    for (uint32_t x = threadIdx.x; x < p.c.n; x += BEST_THREADS) total += sum[x];
    total = block_sum(total, r.sum);
    const struct cut_by_sum cut =
        cut_find_sum(rank, p.c.n, (cut_sum)ceil(p.c.op.mass * (double)total), weight, r);
    const uint32_t limit = cut_limit(rank, p.c.n, cut, weight, r);
    for (uint32_t x = threadIdx.x; x < p.c.n; x += BEST_THREADS)
        count += rank[x] > cut.value || (rank[x] == cut.value && x < limit);
    return block_sum(count, r.count) / BLOCK + 1;
}

/* Replaces sums by marks of the n_take best blocks, of equal ones the first. */
static __device__ void mark_best(float *by, uint32_t n, uint32_t n_take,
                                 const struct pooled_room &r)
{
    uint32_t n_before = 0, all;
    const struct op_cut cut = cut_find(by, n, min(n_take, n), r.bin, r.cut.count);
    for (uint32_t first = 0; first < n; first += BEST_THREADS) {
        const uint32_t b = first + threadIdx.x, key = b < n ? cut_key(by[b]) : 0;
        const bool same = b < n && key == cut.key;
        const uint32_t before = n_before + block_exclusive_sum(same, r.cut.count, &all);
        n_before += all;
        if (b < n) by[b] = key > cut.key || (same && before < cut.n_tie);
    }
    __syncthreads();
}

/* Replaces the probabilities of all tiles by marks of the best, until they hold the share. */
static __device__ void mark_shares(const struct pooled_call &p, uint32_t head,
                                   const struct pooled_room &r)
{
    float *share = pooled_share(p, head, 0);
    const uint32_t n = p.c.op.rows.n_tile * p.n_block;
    const auto whole = [&](uint32_t i) { return (cut_sum)(share[i] * SHARE_ONE); };
    cut_sum total = 0;
    for (uint32_t i = threadIdx.x; i < n; i += BEST_THREADS) total += whole(i);
    total = block_sum(total, r.cut.sum);
    const struct cut_by_sum cut =
        cut_find_sum(share, n, (cut_sum)ceil(p.c.op.mass * (double)total), whole, r.cut);
    const uint32_t limit = cut_limit(share, n, cut, whole, r.cut);
    for (uint32_t i = threadIdx.x; i < n; i += BEST_THREADS)
        share[i] = share[i] > cut.value || (share[i] == cut.value && i < limit);
}

/* One block for each kind of lines and head. */
static __global__ void __launch_bounds__(BEST_THREADS)
    pooled_budgets_kernel(const struct pooled_call p)
{
    kernel_begin();
    __shared__ uint32_t count[32];
    __shared__ cut_sum sum_room[32], sum_bin[CUT_BINS];
    const uint32_t kind = blockIdx.x, head = blockIdx.y;
    if (trace_failed(p.c, head)) return;
    sum_blocks(p, head, kind);
    const uint32_t n = budget_blocks(p, head, kind, {sum_bin, sum_room, count});
    if (threadIdx.x == 0) p.budget[head * TRACE_KINDS + kind] = n;
}

static __global__ void __launch_bounds__(BEST_THREADS)
    pooled_choose_kernel(const struct pooled_call p)
{
    kernel_begin();
    __shared__ uint32_t count[32], bin[CUT_BINS];
    __shared__ cut_sum sum_room[32], sum_bin[CUT_BINS];
    __shared__ double sum[32];
    const struct pooled_room r = {{sum_bin, sum_room, count}, bin, sum};
    const uint32_t head = blockIdx.x, least = p.c.op.least;
    if (trace_failed(p.c, head)) return;
    const bool is_pooled = pooled_distance(p, head, sum) < p.c.op.tau;
    for (uint32_t k = 0; k < TRACE_KINDS; k++) {
        const uint32_t n = is_pooled ? least : max(least, p.budget[head * TRACE_KINDS + k]);
        mark_best(pooled_by(p, head, k), p.n_block, n, r);
    }
    if (is_pooled) mark_shares(p, head, r);
    if (threadIdx.x == 0) p.is_dense[head] = !is_pooled;
}

/* ---- Lists ---- */

struct pooled_marks {
    const float *column, *slash, *share; /* share: of the tile, or NULL */
    uint32_t own;
    __device__ uint32_t word(uint32_t page) const
    {
        const uint32_t b = page / PAGES;
        return b == 0 || column[b] > 0 || slash[own - b] > 0 || (share && share[b] > 0) ? ~0u : 0;
    }
    __device__ float logw(uint32_t, uint32_t) const
    {
        return 0;
    }
};

static __global__ void __launch_bounds__(THREADS) pooled_list_kernel(const struct pooled_call p)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct op_trace &op = p.c.op;
    const uint32_t head = blockIdx.x, tile = blockIdx.y, own = op.rows.tile0 + tile;
    const size_t i = (size_t)tile * op.rows.n_head + head;
    const struct list_room to = list_room_of(op.lists, i);
    struct attn_list list = {};
    enum plan_reason why = trace_failed(p.c, head)                 ? PLAN_NAN
                           : (own + 1) * BLOCK <= op.rows.dense_to ? PLAN_SHORT
                                                                   : PLAN_SPARSE;
    if (why == PLAN_SPARSE) { /* uniform in the block */
        const struct pooled_marks marks = {
            pooled_by(p, head, TRACE_COLUMN), pooled_by(p, head, TRACE_SLASH),
            p.is_dense[head] ? NULL : pooled_share(p, head, tile), own};
        list_make(&list, to, marks, own * PAGES, PAGES, room);
        if (list.n_range > to.range_max) why = PLAN_OVERFLOW;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    list_close(&list, to, why, own * PAGES, PAGES);
    op.lists.made[i] = list;
}

/* ---- The launcher ---- */

sac_status trace_pooled(struct cuda_device *d, const struct trace_call *c,
                        const struct page_geom *geom)
{
    struct pooled_call p;
    const uint32_t n_head = c->op.rows.n_head, n_tile = c->op.rows.n_tile;
    memset(&p, 0, sizeof p);
    p.c = *c;
    p.geom = *geom;
    p.n_row = c->op.choose.n;
    p.n_block = c->op.rows.tile0 + n_tile;
    p.key = (float *)c->op.pool;
    p.query = p.key + (size_t)geom->n_kv_head * p.n_block * geom->head_dim;
    p.share = p.query + (size_t)n_head * (n_tile + 1) * geom->head_dim;
    p.by = p.share + (size_t)n_head * (n_tile + 1) * p.n_block;
    p.is_dense = (uint32_t *)(p.by + (size_t)n_head * TRACE_KINDS * p.n_block);
    p.budget = p.is_dense + n_head;
    TRY(queue_launch(d, "mean keys of blocks", pooled_keys_kernel, dim3(p.n_block, geom->n_kv_head),
                     THREADS, 0, p));
    TRY(queue_launch(d, "mean queries of tiles", pooled_queries_kernel, dim3(n_head, n_tile + 1),
                     THREADS, 0, p));
    TRY(queue_launch(d, "pooled scores", pooled_shares_kernel, dim3(n_head, n_tile + 1), THREADS, 0,
                     p));
    TRY(queue_launch(d, "budgets of lines", pooled_budgets_kernel, dim3(TRACE_KINDS, n_head),
                     BEST_THREADS, 0, p));
    TRY(queue_launch(d, "blocks by lines or pools", pooled_choose_kernel, dim3(n_head),
                     BEST_THREADS, 0, p));
    return queue_launch(d, "lists of blocks", pooled_list_kernel, dim3(n_head, n_tile), THREADS, 0,
                        p);
}
