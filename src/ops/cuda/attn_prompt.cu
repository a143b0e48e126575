/* attn_prompt.cu: attention of prompt rows over pages, dense or by a plan (flash attention with
 * lists): out = softmax(q K^T + logw) V for a run of rows. Bound by the tensor cores and the
 * exponentials, which take about equally long for small heads.
 *
 * A block has R = 128 rows of one KV head, or 64 (heads of 256 channels, lists for few rows, or
 * little shared memory): pairs of a page of positions and a query head, 32 rows each. It walks over
 * what its rows read in tiles of 64 keys: two pages of the list, in its order, or 64 single tokens,
 * and finally the own pages. Grid: blocks by jobs (runs) by pieces of lists. Queries and
 * probabilities are rounded to 16 bits, accumulators are f32.
 *
 * There are two kernels, with the same bits:
 *  - attn_warpgroups_kernel, for Hopper, blocks of 128 rows, 16-bit pages and heads of 64 or 128
 *    channels: one warpgroup loads, two multiply (attn_warpgroups.cuh).
 *  - attn_prompt_kernel for everything else: all warps load the next tile by cp.async, then
 * multiply this one, by wgmma on Hopper for heads of up to 128 channels, else by m16n8k16. Dynamic
 * shared memory: the queries, S = 2 stages of K and V tiles (one where two do not fit), logs of
 * weights. q8 pages arrive as they are and are dequantized to a 16-bit tile.
 *
 * Determinism: tiles follow from the list and blocks from positions in the sequence, and keys that
 * a row does not see have probability 0, so a row's bits do not depend on how a prompt is cut into
 * chunks nor on other rows. A list of many tiles is cut into pieces by its length alone, one block
 * each, so that the longest list is not waited for: equal parts of the full page pairs before the
 * rows' tile and of the tokens; everything else, own pages included, goes to the last piece. A
 * second launch merges the pieces in their order.
 *
 * A row that sees a value that is not finite, in a tile that not all rows see, becomes NaN as a
 * whole. */
#include "ops/cuda/attn_warpgroups.cuh"

/* ---- Results of a block ---- */

/* The result of a piece: accumulators [rows, D], maxima [rows], sums [rows], in f32. */
template <int D, int R> struct prompt_part {
    static constexpr size_t floats = (size_t)R * (D + 2);
};

template <typename Warp> __device__ __forceinline__ float row_sum(const Warp &w, int m, int i)
{
    float sum = w.sum[m][i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return w.poison >> (2 * m + i) & 1 ? CUDART_NAN_F : sum;
}

template <int R, int D, int M>
__device__ void store_part(const struct prompt_warp<D, M> &w, float *part)
{
    const uint32_t j = threadIdx.x % 4;
    float *const max = part + R * D, *const sums = max + R;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = warp_row(m) + i * 8 + threadIdx.x % 32 / 4;
            const float sum = row_sum(w, m, i);
            if (j == 0) max[row] = w.max[m][i], sums[row] = sum;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(float2 *)(part + row * D + n * 8 + j * 2) =
                    make_float2(w.acc[m][n][2 * i], w.acc[m][n][2 * i + 1]);
        }
}

/* Whether a row of the block belongs to the run; *out_at is its number in the batch. */
__device__ __forceinline__ bool row_find(const struct prompt_block &b, uint32_t row,
                                         uint32_t *out_at)
{
    const struct prompt_job &job = *b.job;
    const uint32_t pos = slot_pos(b, row);
    *out_at = job.row0 + pos - job.pos0;
    return slot_head(b, row) < b.n_head && pos >= job.pos0 && pos - job.pos0 < job.n_row;
}

template <int D, int M>
__device__ void store_rows(const struct prompt_warp<D, M> &w, const struct prompt_block &b)
{
    const struct attn_call &c = *b.call;
    const uint32_t j = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = warp_row(m) + i * 8 + threadIdx.x % 32 / 4;
            const uint32_t head = slot_head(b, row);
            const float sum = row_sum(w, m, i), by = 1.0f / sum;
            uint32_t at;
            if (!row_find(b, row, &at)) continue;
            float *out = c.out + at * c.out_stride + (size_t)(b.head0 + head) * D + j * 2;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(float2 *)(out + n * 8) =
                    make_float2(w.acc[m][n][2 * i] * by, w.acc[m][n][2 * i + 1] * by);
            if (c.lse && j == 0)
                c.lse[at * c.n_head + b.head0 + head] = (w.max[m][i] + log2f(sum)) * LN2;
        }
}

/* Finds block x of a job; false: the job has fewer. Blocks of one KV head are consecutive, those
 * that read most first. */
__device__ __forceinline__ bool block_find(struct prompt_block &b, const struct attn_call &call,
                                           const struct prompt_job &job, uint32_t x)
{
    const uint32_t of_head = x / job.n_block;
    if (of_head >= job.n_kv_head * job.n_block_head) return false;
    b.call = &call;
    b.job = &job;
    b.kv_head = of_head / job.n_block_head;
    b.frame = job.frame + b.kv_head * job.stride;
    const uint32_t first = of_head % job.n_block_head * job.n_head;
    b.head0 = b.kv_head * job.group + first;
    b.n_head = min(job.n_head, job.group - first);
    b.page0 = (job.block0 + job.n_block - 1 - x % job.n_block) * job.n_page;
    return true;
}

/* The sums of a row that has read nothing. */
template <int D, int M> __device__ __forceinline__ struct prompt_warp<D, M> warp_begin(void) {
    struct prompt_warp<D, M> w = {
    };
    for (int m = 0; m < M; m++) w.max[m][0] = w.max[m][1] = -CUDART_INF_F;
    return w;
}

/* Where the result of a piece of block x is. */
template <int D, int R>
__device__ __forceinline__ float *part_of(float *parts, const struct prompt_job &job, uint32_t x,
                                          uint32_t piece)
{
    return parts + (job.part0 + (size_t)x * job.n_piece + piece) * prompt_part<D, R>::floats;
}

template <int F, int D, int R, int S>
__global__ void __launch_bounds__(prompt_warps<D, R>::threads, prompt_size<F, D, R, S>::together)
    attn_prompt_kernel(const struct attn_call call, const struct prompt_job *jobs, float *parts,
                       uint32_t block0)
{
    kernel_begin();
    if constexpr (SMEM_IS_LARGE && S == 1) return; /* on Hopper two stages fit */
    using size = prompt_size<F, D, R, S>;
    constexpr int threads = prompt_warps<D, R>::threads;
    uint8_t *const smem = kernel_shared();
    const struct prompt_job &job = jobs[blockIdx.y];
    struct prompt_block b;
    if (!block_find(b, call, job, block0 + blockIdx.x)) return;
    const struct prompt_list list = list_of(b);
    if (blockIdx.z >= list.n_piece) return;
    uint8_t *const query = smem, *const stage = smem + size::query;
    struct prompt_warp<D, size::m> w = warp_begin<D, size::m>();
    struct prompt_walk walk = walk_begin(b, list, blockIdx.z);
    constexpr uint32_t own_max = F == FORM_Q8 ? 1 : 2; /* of a stage */
    struct key_tile now = walk_next(walk, b, own_max), next = walk_next(walk, b, own_max);
    uint32_t segment = now.segment;
    if constexpr (S > 1) load_tile_async<F, D, R, S>(smem, 0, b, now);
    store_query<F, D, R>(query, b, segment);
    for (uint32_t i = 0; now.kind != TILE_END; i++) {
        uint8_t *at = stage + i % S * size::stage;
        if constexpr (S == 1) {
            __syncthreads(); /* the last tile has been read */
            load_tile_async<F, D, R, S>(smem, i, b, now);
        }
        cp_async_wait<0>();
        publish_shared();
        __syncthreads(); /* the tile has arrived, and the other stage has been read */
        if constexpr (S > 1) load_tile_async<F, D, R, S>(smem, i + 1, b, next);
        const struct key_tile then = walk_next(walk, b, own_max); /* overlaps with this tile */
        if (now.segment != segment) store_query<F, D, R>(query, b, segment = now.segment);
        if constexpr (F == FORM_Q8) {
            unpack<D, R, S>(stage + size::stages, at, b, now);
            at = stage + size::stages;
        }
        if (F == FORM_Q8 || job.n_segment) {
            publish_shared();
            __syncthreads();
        }
        const float *const logw = (const float *)(smem + size::logw) + i % 2 * KEYS;
        const bool weighs = now.kind == TILE_TOKENS && job.logw;
        struct tile_view v = {&b, &now, weighs ? logw : NULL, seen_by_all(b, now), 0};
        if (!v.whole) v.bad = find_bad<F, D, threads>(at, (uint32_t *)(smem + size::bad));
        attend_tile<F, D, R>(w, query, at, v);
        now = next;
        next = then;
    }
    cp_async_wait<0>();
    if (list.n_piece == 1)
        store_rows(w, b);
    else
        store_part<R>(w, part_of<D, R>(parts, job, block0 + blockIdx.x, blockIdx.z));
}

/* The same by specialized warpgroups (attn_warpgroups.cuh). */
template <int F, int D>
__global__ void __launch_bounds__(GROUP_THREADS, 1)
    attn_warpgroups_kernel(const struct attn_call call, const struct prompt_job *jobs, float *parts,
                           uint32_t block0)
{
    kernel_begin();
    const struct prompt_job &job = jobs[blockIdx.y];
    struct prompt_block b;
    if (!block_find(b, call, job, block0 + blockIdx.x)) return;
    const struct prompt_list list = list_of(b);
    if (blockIdx.z >= list.n_piece) return;
    float *const part = part_of<D, GROUP_ROWS>(parts, job, block0 + blockIdx.x, blockIdx.z);
#ifdef HAS_WGMMA
    uint8_t *const smem = kernel_shared();
    ring_init<D>(smem);
    __syncthreads();
    if (warpgroup_index() == 2) {
        setmaxnreg_dec<72>();
        struct prompt_walk walk = walk_begin(b, list, blockIdx.z);
        produce_tiles<F, D>(smem, b, walk);
        return;
    }
    setmaxnreg_inc<216>();
    struct prompt_warp<D, 1> w = warp_begin<D, 1>();
    consume_tiles<F, D>(w, smem, b);
    if (list.n_piece == 1)
        store_rows(w, b);
    else
        store_part<GROUP_ROWS>(w, part);
#else
    (void)part;
#endif
}

/* The weight of a piece: 2^(its maximum - the highest). */
__device__ __forceinline__ float part_factor(float max, float most)
{
    return max == -CUDART_INF_F ? 0.0f : exp2_fast(max - most);
}

/* Merges the pieces of each row in their order; a thread has four channels. */
template <int D, int R>
__global__ void __launch_bounds__(prompt_warps<D, R>::threads)
    merge_kernel(const struct attn_call call, const struct prompt_job *jobs, float *parts,
                 uint32_t block0)
{
    kernel_begin();
    const struct prompt_job &job = jobs[blockIdx.y];
    const uint32_t x = block0 + blockIdx.x;
    struct prompt_block b;
    if (!block_find(b, call, job, x)) return;
    const uint32_t n_piece = list_of(b).n_piece;
    const uint32_t first = blockIdx.z * prompt_warps<D, R>::threads + threadIdx.x;
    for (uint32_t i = first; i < R * (D / 4) && n_piece > 1;
         i += MERGE_BLOCKS * prompt_warps<D, R>::threads) {
        const uint32_t row = i / (D / 4), c = i % (D / 4) * 4;
        uint32_t at;
        if (!row_find(b, row, &at)) continue;
        float most = -CUDART_INF_F, sum = 0, v[4] = {};
        for (uint32_t p = 0; p < n_piece; p++)
            most = fmaxf(most, part_of<D, R>(parts, job, x, p)[R * D + row]);
        for (uint32_t p = 0; p < n_piece; p++) {
            const float *part = part_of<D, R>(parts, job, x, p);
            const float by = part_factor(part[R * D + row], most);
            const float4 add = *(const float4 *)(part + row * D + c);
            sum += part[R * (D + 1) + row] * by;
            v[0] += add.x * by, v[1] += add.y * by, v[2] += add.z * by, v[3] += add.w * by;
        }
        const uint32_t head = b.head0 + slot_head(b, row);
        const float by = 1.0f / sum;
        *(float4 *)(call.out + at * call.out_stride + (size_t)head * D + c) =
            make_float4(v[0] * by, v[1] * by, v[2] * by, v[3] * by);
        if (call.lse && c == 0) call.lse[at * call.n_head + head] = (most + log2f(sum)) * LN2;
    }
}

/* ---- The launcher ---- */

struct prompt_launch {
    struct attn_call call;
    const struct prompt_job *job; /* on the device */
    float *parts;
    uint32_t n_job, n_block_max, n_piece_max;
    uint32_t n_row;  /* of a block */
    bool turns;      /* some rows meet segments */
    uint32_t n_part; /* of all jobs */
    size_t n_room;   /* parts that fit into the scratch */
};

/* Rows of a block, at most, for heads of this size. */
static uint32_t rows_most(uint32_t head_dim)
{
    return head_dim > 128 ? ROWS_FEW : 2 * ROWS_FEW;
}

/* Rows of a block for this call. A block has one list, so it has 64 rows where all lists are for
 * few rows, or where shared memory is too small for more. */
static uint32_t rows_of(const struct cuda_device *d, const struct op_attn *op)
{
    const bool is_largest = attn_form_of(op->geom) == FORM_Q8 && op->geom->head_dim == 128;
    const bool fits = prompt_size<FORM_Q8, 128, 2 * ROWS_FEW>::smem <= d->smem_max;
    const uint32_t most = is_largest && !fits ? ROWS_FEW : rows_most(op->geom->head_dim);
    for (uint32_t i = 0; i < op->n_run; i++) {
        const struct attn_run *run = &op->run[i];
        const struct attn_plan *plan = run->plan;
        if (run->kind != ROW_PROMPT) continue;
        if (!plan || !plan->by_head || run->n_segment > 0 || plan->tile_tok % most == 0)
            return most;
    }
    return ROWS_FEW;
}

static size_t part_bytes(uint32_t head_dim, uint32_t n_row)
{
    return (size_t)n_row * (head_dim + 2) * sizeof(float);
}

/* Rows that meet segments are often scattered over a text, few to a page. A block then has a single
 * page of them, and of it no more rows than the run needs. The tiles of keys follow from the page
 * alone, so results do not depend on that. */
static void job_scatter(struct prompt_job *j, const struct attn_plan *plan, uint32_t pairs)
{
    const uint32_t most = plan && plan->by_head ? 1 : j->group, first = j->pos0 % PAGE_TOK;
    uint32_t slot = PAGE_TOK;
    while (slot / 2 >= j->n_row && first + j->n_row <= PAGE_TOK) slot /= 2, j->slot_bits--;
    j->at0 = first < PAGE_TOK - slot ? first : PAGE_TOK - slot;
    j->n_page = j->n_head = 1;
    while (j->n_head < most && j->n_head < pairs * (PAGE_TOK / slot)) j->n_head *= 2;
}

/* Sets the pages and heads of a block with so many pairs. */
static void job_shape(struct prompt_job *j, const struct attn_plan *plan, uint32_t pairs)
{
    const uint32_t most = plan && plan->by_head ? 1 : j->group;
    j->slot_bits = 5;
    j->at0 = 0;
    uint32_t page_max = pairs; /* of one list */
    while (plan && plan->tile_tok % (page_max * PAGE_TOK) != 0) page_max /= 2;
    j->n_head = 1;
    while (j->n_head < most && j->n_head < pairs) j->n_head *= 2;
    while (j->pos0 >= FAR_TOK && most % j->n_head != 0 && j->n_head * page_max > pairs)
        j->n_head /= 2;
    j->n_page = pairs / j->n_head < page_max ? pairs / j->n_head : page_max;
    if (j->n_segment > 0) job_scatter(j, plan, pairs);
    j->n_block_head = (j->group + j->n_head - 1) / j->n_head;
    j->block0 = j->pos0 / PAGE_TOK / j->n_page;
    j->n_block = (j->pos0 + j->n_row - 1) / PAGE_TOK / j->n_page - j->block0 + 1;
}

/* Sets the largest number of pieces of the job's lists, and its place in the scratch. */
static void job_pieces(struct prompt_job *j, uint32_t window, uint32_t *n_part)
{
    /* A page fills at most half a tile, whether it is listed whole or by its tokens. */
    const uint32_t n_page = (j->pos0 + j->n_row - 1) / PAGE_TOK, n_tile = n_page / 2 + 2;
    const uint32_t n_piece = n_tile / piece_least(*j) + 1;
    j->n_piece = n_piece < PIECES_MAX ? n_piece : PIECES_MAX;
    if (window > 0 || j->n_segment > 0) j->n_piece = 1;
    j->part0 = *n_part;
    if (j->n_piece > 1) *n_part += j->n_kv_head * j->n_block_head * j->n_block * j->n_piece;
}

size_t attn_prompt_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row)
{
    const uint32_t rows = rows_most(geom->head_dim), pairs = rows / PAGE_TOK;
    const uint32_t group = n_head / geom->n_kv_head;
    size_t n = 0;
    for (uint32_t heads = 1; heads <= pairs; heads *= 2) {
        const size_t n_block = n_row * heads / pairs / PAGE_TOK + 2;
        const size_t all = n_block * geom->n_kv_head * ((group + heads - 1) / heads);
        n = all > n ? all : n;
    }
    return n * PIECES_MAX * part_bytes(geom->head_dim, rows);
}

static uint32_t list_count(const struct op_attn *op, const struct attn_run *run)
{
    const struct attn_plan *p = run->plan;
    const uint32_t end = run->pos0 + run->n_row - 1;
    const uint32_t n_lane = p->by_head ? op->n_head : op->geom->n_kv_head;
    return (end / p->tile_tok - run->pos0 / p->tile_tok + 1) * n_lane;
}

/* Whether a run has the lists of the run before it, which are already staged: scattered rows come
 * as many short runs. */
static bool has_lists_of(const struct attn_run *run, const struct attn_run *before)
{
    return run->joins && before->kind == run->kind && run->plan == before->plan &&
           run->segment == before->segment && run->n_segment == before->n_segment;
}

static size_t list_bytes(const struct op_attn *op, const struct attn_run *run)
{
    const struct attn_plan *p = run->plan;
    size_t bytes = attn_segment_bytes(op, run) + 6 * STAGE_ALIGN;
    if (!p || p->made) return bytes;
    const uint32_t n = list_count(op, run);
    bytes += 3 * (n + 1) * sizeof(uint32_t) + p->range_ptr[n] * sizeof(struct attn_range);
    return p->tok ? bytes + p->tok_ptr[n] * 2 * sizeof(uint32_t) : bytes;
}

/* Stages, for each list, the number of pages that its ranges name before the rows' tile. */
static const uint32_t *stage_before(struct cuda_device *d, const struct prompt_job *j,
                                    const struct attn_plan *p, uint32_t n)
{
    void *host;
    const void *at = stage_alloc(d, n * sizeof(uint32_t), &host);
    for (uint32_t i = 0; at && i < n; i++) {
        const uint32_t tile = j->pos0 / p->tile_tok + i / j->n_lane;
        const uint32_t first = tile * (p->tile_tok / PAGE_TOK);
        uint32_t n_page = 0;
        for (uint32_t k = p->range_ptr[i]; k < p->range_ptr[i + 1]; k++) {
            const struct attn_range r = p->range[k];
            if (r.begin < first) n_page += (r.end < first ? r.end : first) - r.begin;
        }
        ((uint32_t *)host)[i] = n_page;
    }
    return (const uint32_t *)at;
}

static void stage_plan(struct cuda_device *d, struct prompt_job *j, const struct op_attn *op,
                       const struct attn_run *run)
{
    const struct attn_plan *p = run->plan;
    const uint32_t n = list_count(op, run);
    j->tile_tok = p->tile_tok;
    j->n_lane = p->by_head ? op->n_head : op->geom->n_kv_head;
    if (p->made) {
        j->range = p->range;
        j->tok = p->tok;
        j->logw = p->tok_logw;
        j->made = p->made;
        j->range_max = p->range_max;
        j->tok_max = p->tok_max;
        return;
    }
    /* A plan without ranges is still a plan: range must not be NULL. */
    static const struct attn_range none = {0, 0};
    const uint32_t n_range = p->range_ptr[n];
    j->range = (const struct attn_range *)stage_put(d, n_range ? p->range : &none,
                                                    (n_range ? n_range : 1) * sizeof none);
    j->range_ptr = (const uint32_t *)stage_put(d, p->range_ptr, (n + 1) * sizeof(uint32_t));
    j->n_before = stage_before(d, j, p, n);
    if (!p->tok || p->tok_ptr[n] == 0) return;
    j->tok = (const uint32_t *)stage_put(d, p->tok, p->tok_ptr[n] * sizeof(uint32_t));
    j->tok_ptr = (const uint32_t *)stage_put(d, p->tok_ptr, (n + 1) * sizeof(uint32_t));
    if (p->tok_logw)
        j->logw = (const float *)stage_put(d, p->tok_logw, p->tok_ptr[n] * sizeof(float));
}

/* before: the job of a run that has the same lists, or NULL. */
static struct prompt_job job_make(struct cuda_device *d, const struct op_attn *op,
                                  const struct attn_run *run, uint32_t pairs,
                                  const struct prompt_job *before)
{
    const struct page_geom *g = op->geom;
    struct prompt_job j;
    memset(&j, 0, sizeof j);
    if (before) j = *before;
    j.frame = run->frame;
    j.stride = run->table_stride;
    j.own0 = run->own0;
    j.own = run->own;
    if (!before) j.segment = attn_stage_segments(d, op, run);
    j.n_segment = run->n_segment;
    j.row0 = run->row0;
    j.n_row = run->n_row;
    j.pos0 = run->pos0;
    j.n_kv_head = g->n_kv_head;
    j.group = op->n_head / g->n_kv_head;
    if (run->plan && !before) stage_plan(d, &j, op, run);
    job_shape(&j, run->plan, pairs);
    return j;
}

typedef void prompt_kernel(const struct attn_call, const struct prompt_job *, float *, uint32_t);

struct prompt_kernels {
    prompt_kernel *attend, *merge;
    uint32_t n_thread, n_merge_thread, smem;
    size_t part_floats;
};

template <int F, int D, int R, int S = 2> static struct prompt_kernels kernels_of(void)
{
    constexpr uint32_t n = prompt_warps<D, R>::threads;
    return {attn_prompt_kernel<F, D, R, S>, merge_kernel<D, R>,       n, n,
            prompt_size<F, D, R, S>::smem,  prompt_part<D, R>::floats};
}

template <int F, int D> static struct prompt_kernels warpgroups_of(void)
{
    return {attn_warpgroups_kernel<F, D>,
            merge_kernel<D, GROUP_ROWS>,
            GROUP_THREADS,
            prompt_warps<D, GROUP_ROWS>::threads,
            tile_ring<D>::bytes,
            prompt_part<D, GROUP_ROWS>::floats};
}

/* Launches blocks block0 to block0 + n_block - 1 of n_job jobs, and the merge. */
static sac_status launch_blocks(struct cuda_device *d, const struct prompt_kernels *k,
                                const struct prompt_launch *l, uint32_t block0, uint32_t n_block)
{
    TRY(queue_launch(d, "attention of prompt rows", k->attend,
                     dim3(n_block, l->n_job, l->n_piece_max), k->n_thread, k->smem, l->call, l->job,
                     l->parts, block0));
    if (l->n_piece_max == 1) return SAC_OK;
    return queue_launch(d, "merging of pieces", k->merge, dim3(n_block, l->n_job, MERGE_BLOCKS),
                        k->n_merge_thread, 0, l->call, l->job, l->parts, block0);
}

/* Where the scratch cannot hold the pieces of all jobs: job by job, as many blocks at a time as
 * fit. The results are the same. */
static sac_status launch_few(struct cuda_device *d, const struct prompt_kernels *k,
                             const struct prompt_launch *all, const struct prompt_job *host)
{
    for (uint32_t i = 0; i < all->n_job; i++) {
        const struct prompt_job *j = &host[i];
        struct prompt_launch l = *all;
        const uint32_t n = j->n_kv_head * j->n_block_head * j->n_block;
        const uint32_t most = j->n_piece > 1 ? (uint32_t)(l.n_room / j->n_piece) : n;
        if (most == 0) return device_fail(d, SAC_ERR_ARG, "attention beyond its scratch");
        l.job = all->job + i;
        l.n_job = 1;
        l.n_piece_max = j->n_piece;
        for (uint32_t first = 0; first < n; first += most) {
            l.parts = all->parts - ((size_t)j->part0 + (size_t)first * j->n_piece) * k->part_floats;
            TRY(launch_blocks(d, k, &l, first, n - first < most ? n - first : most));
        }
    }
    return SAC_OK;
}

static sac_status launch(struct cuda_device *d, const struct prompt_kernels &k,
                         const struct prompt_launch *l, const struct prompt_job *host)
{
    if (l->n_part > l->n_room) return launch_few(d, &k, l, host);
    return launch_blocks(d, &k, l, 0, l->n_block_max);
}

/* Heads of 256 channels: two stages fit on Hopper, one everywhere. */
template <int F> static struct prompt_kernels kernels_large(const struct cuda_device *d)
{
    const bool fits = prompt_size<F, 256, ROWS_FEW, 2>::smem <= d->smem_max;
    return fits ? kernels_of<F, 256, ROWS_FEW, 2>() : kernels_of<F, 256, ROWS_FEW, 1>();
}

/* Heads of 64 or 128 channels. */
template <int F, int D>
static struct prompt_kernels kernels_small(const struct cuda_device *d,
                                           const struct prompt_launch *l)
{
    if (l->n_row == ROWS_FEW) return kernels_of<F, D, ROWS_FEW>();
    if constexpr (F != FORM_Q8)
        if (d->major == 9 && !l->turns) return warpgroups_of<F, D>();
    return kernels_of<F, D, 2 * ROWS_FEW>();
}

template <int F>
static sac_status launch_form(struct cuda_device *d, uint32_t head_dim,
                              const struct prompt_launch *l, const struct prompt_job *host)
{
    switch (head_dim) {
    case 64: return launch(d, kernels_small<F, 64>(d, l), l, host);
    case 128: return launch(d, kernels_small<F, 128>(d, l), l, host);
    case 256: return launch(d, kernels_large<F>(d), l, host);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: this head size");
    }
}

sac_status attn_prompt(struct cuda_device *d, const struct op_attn *op)
{
    const uint32_t head_dim = op->geom->head_dim;
    size_t bytes = 0;
    struct prompt_launch l = {};
    for (uint32_t i = 0; i < op->n_run; i++) {
        const struct attn_run *run = &op->run[i];
        if (run->kind != ROW_PROMPT) continue;
        if (run->plan && run->plan->skip > 0)
            return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: plans that skip by weight");
        l.n_job++;
        l.turns |= run->n_segment > 0;
        if (i == 0 || !has_lists_of(run, run - 1)) bytes += list_bytes(op, run);
    }
    if (l.n_job == 0) return SAC_OK;
    const size_t job_bytes = l.n_job * sizeof(struct prompt_job);
    if (stage_reserve(d, bytes + job_bytes + STAGE_ALIGN) != SAC_OK) return d->status;
    void *host;
    l.call = attn_call_of(op);
    l.parts = (float *)op->scratch;
    l.n_row = rows_of(d, op);
    l.n_room = op->scratch_bytes / part_bytes(head_dim, l.n_row);
    l.job = (const struct prompt_job *)stage_alloc(d, job_bytes, &host);
    if (!l.job) return d->status;
    struct prompt_job *job = (struct prompt_job *)host;
    for (uint32_t i = 0; i < op->n_run; i++) {
        if (op->run[i].kind != ROW_PROMPT) continue;
        const bool shares = i > 0 && has_lists_of(&op->run[i], &op->run[i - 1]);
        *job = job_make(d, op, &op->run[i], l.n_row / PAGE_TOK, shares ? job - 1 : NULL);
        job_pieces(job, op->window, &l.n_part);
        const uint32_t n = job->n_kv_head * job->n_block_head * job->n_block;
        if (n > l.n_block_max) l.n_block_max = n;
        if (job->n_piece > l.n_piece_max) l.n_piece_max = job->n_piece;
        job++;
    }
    if (d->status != SAC_OK) return d->status;
    const struct prompt_job *jobs = (const struct prompt_job *)host;
    switch (attn_form_of(op->geom)) {
    case FORM_F16: return launch_form<FORM_F16>(d, head_dim, &l, jobs);
    case FORM_BF16: return launch_form<FORM_BF16>(d, head_dim, &l, jobs);
    case FORM_Q8: return launch_form<FORM_Q8>(d, head_dim, &l, jobs);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: K and V of different types");
    }
}
