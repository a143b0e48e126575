/* attn_decode.cu: attention of decode rows over pages, single tokens and the row's own page (flash
 * decoding): out = softmax(q K^T + logw) V, one row, up to 8 query heads of a KV head. Bound by the
 * bytes of K and V.
 *
 * What a job (a row and up to HEADS query heads of one KV head) reads is a list of units: halves of
 * 16-bit pages or whole q8 pages, then 16 single tokens each, then the two halves of the row's own
 * page. A list is cut into splits; their length depends on the list, the model and the GPU alone.
 * Grid: blocks of a job by jobs. The blocks of a job take its splits in turn, and a block deals the
 * units of a split to its warps in turn. Each warp runs its own cp.async pipeline: a ring of 2 or 4
 * units in dynamic shared memory (1 where there is no room), which reaches into the block's next
 * split. A warp keeps an online softmax for all heads (attn_unit.cuh); warps are merged in their
 * order through shared memory, and the last block of a job to finish (block_is_last) merges the
 * splits in theirs. So the bits depend neither on the rest of the call nor on the number of blocks
 * of a job.
 *
 * If the two previous launches write activations only, the first units are loaded before
 * kernel_begin, while those still run. Rows whose RoPE and KV write are pending (heads.cuh) are
 * rotated and written here. */
#include "ops/cuda/attn_merge.cuh"
#include "ops/cuda/attn_unit.cuh"
#include "ops/cuda/block.cuh"

#define SPLIT_MAX   64u   /* splits of a list, unless they would be too long */
#define SPLIT_UNIT  128u  /* units of a split, at most */
#define SPLIT_LEAST 16u   /* units of a split, at least: two for each warp */
#define BUSY_WARPS  8u    /* warps of a multiprocessor that suffice for one row */
#define PART_MAX    TALLY /* splits of one wave: 34 MB of scratch for heads of 128 */
#define STATIC_MAX  1024u /* bytes of static shared memory beside rows, units and sums */

/* ---- Jobs ---- */

/* Units of a split, at most: lane i of a warp has looked up number i of the warp's. */
static __host__ __device__ constexpr uint32_t split_max(uint32_t n_warp)
{
    return n_warp * 32 < SPLIT_UNIT ? n_warp * 32 : SPLIT_UNIT;
}

/* Units of a split: a multiple of the block's warps, at most `longest`. */
static __host__ __device__ inline uint32_t split_units(const struct decode_job *j, uint32_t longest)
{
    const uint32_t each = (j->n_unit + j->split_most - 1) / j->split_most;
    const uint32_t turns = (each + j->n_warp - 1) / j->n_warp;
    const uint32_t n = turns * j->n_warp < SPLIT_LEAST ? SPLIT_LEAST : turns * j->n_warp;
    return n < longest ? n : longest;
}

/* Sets the units and splits of a job whose lists are known. */
static __host__ __device__ inline void job_cut(struct decode_job *j, uint32_t unit_page,
                                               uint32_t longest)
{
    j->n_unit = j->n_page * unit_page + (j->n_tok + UNIT_TOK - 1) / UNIT_TOK +
                j->pos % PAGE_TOK / UNIT_TOK + 1;
    j->split_unit = split_units(j, longest);
    j->n_split = (j->n_unit + j->split_unit - 1) / j->split_unit;
}

/* Takes over what was selected on the device, in the block's copy of the job. */
static __device__ void job_choose(struct decode_job *j, uint32_t unit_page, uint32_t longest)
{
    const struct attn_count count = *j->count;
    if (count.dense) {
        j->page = NULL; /* page0 and n_page describe the list */
    } else {
        j->n_page = count.n_page;
        j->n_tok = count.n_tok;
    }
    job_cut(j, unit_page, longest);
    j->n_block = min(j->n_block, j->n_split);
}

/* ---- The pipeline of a warp ---- */

/* Starts the copies of a unit; `place` is that of its page. Single tokens of q8 pages are not
 * copied but dequantized when the unit is used. */
template <int F, int D>
__device__ __forceinline__ void stage_unit(uint32_t to, const struct decode_view &v, uint32_t place,
                                           uint32_t unit)
{
    if (likely(unit < v.n_staged))
        stage_page<F, D>(to, place_bytes(v.call->frames, place, page_at<F, D>::bytes),
                         unit % decode_size<F, D>::unit_page);
    else if (unit >= v.n_staged + v.n_single)
        stage_own<D>(to, v, unit - v.n_staged - v.n_single);
    else if (F != FORM_Q8)
        stage_single<F, D>(to, v, unit - v.n_staged);
}

/* The units of a split for a warp: lane i has looked up the warp's i-th. */
struct decode_split {
    uint32_t begin, end; /* empty after the last split */
    uint32_t page, place;
};

template <int F, int D, int W>
__device__ __forceinline__ struct decode_split find_split(const struct decode_view &v,
                                                          uint32_t split)
{
    using size = decode_size<F, D, W>;
    const struct decode_job &job = *v.job;
    struct decode_split s;
    memset(&s, 0, sizeof s);
    s.begin = split * job.split_unit;
    s.end = min(s.begin + job.split_unit, job.n_unit);
    const uint32_t mine = s.begin + threadIdx.x / 32 + threadIdx.x % 32 * size::warps;
    if (mine < s.end && mine < v.n_staged) {
        s.page = job.page ? job.page[mine / size::unit_page] : job.page0 + mine / size::unit_page;
        s.place = place_find(v.call->frames, job.frame[s.page]);
    }
    return s;
}

/* A warp's position in the pipeline. All of its units, also those beyond a list's end, have a stage
 * in turn. */
struct decode_walk {
    struct decode_split now, next;
    uint32_t n_turn, n_stage; /* units of a split for the warp; stages of its ring */
    uint32_t slot;            /* the stage to use next */
};

/* Starts the copies of the warp's i-th unit, counted from the current split on, into stage `slot`,
 * as one commit group (possibly empty). */
template <int F, int D, int W>
__device__ __forceinline__ void
prefetch_unit(const struct decode_view &v, const struct decode_walk &w, uint32_t i, uint32_t slot)
{
    using size = decode_size<F, D, W>;
    const uint32_t warp = threadIdx.x / 32;
    const bool is_next = i >= w.n_turn;
    if (is_next) i -= w.n_turn;
    const uint32_t unit = (is_next ? w.next.begin : w.now.begin) + warp + i * size::warps;
    const uint32_t from = __shfl_sync(~0u, is_next ? w.next.place : w.now.place, i % 32);
    uint8_t *to = kernel_shared() + (warp * w.n_stage + slot) * size::stage;
    if (i < w.n_turn && unit < (is_next ? w.next.end : w.now.end))
        stage_unit<F, D>(smem_address(to), v, from, unit);
    cp_async_commit();
}

/* Looks up the block's first two splits and fills the pipeline. Before an early kernel_begin only
 * two units are requested, as the kernels still running load weights. */
template <int F, int D, int W>
__device__ __forceinline__ struct decode_walk open_walk(const struct decode_view &v, uint32_t split,
                                                        uint32_t n_stage, bool early)
{
    struct decode_walk w;
    w.now = find_split<F, D, W>(v, split);
    w.next = find_split<F, D, W>(v, split + v.job->n_block);
    w.n_turn = v.job->split_unit / W;
    w.n_stage = n_stage;
    w.slot = 0;
    for (uint32_t i = 0; i < n_stage; i++) {
        prefetch_unit<F, D, W>(v, w, i, i);
        if (early && i == 1) kernel_begin();
    }
    if constexpr (W == WARPS_FEW)
        if (early && n_stage == 1) kernel_begin();
    return w;
}

/* Waits until the oldest unit of the pipeline has arrived. */
template <int W> static __device__ __forceinline__ void wait_unit(uint32_t n_stage)
{
    if (W == WARPS_FEW && n_stage == 1)
        cp_async_wait<0>();
    else if (n_stage > 2)
        cp_async_wait<3>();
    else
        cp_async_wait<1>();
    __syncwarp();
}

/* Adds a unit that has arrived. */
template <int F, int D>
__device__ __forceinline__ void add_unit(struct decode_warp<D> &w, const struct decode_view &v,
                                         uint8_t *at, uint32_t page, uint32_t unit)
{
    const struct decode_job &job = *v.job;
    if (likely(unit < v.n_staged)) {
        add_page<F, D>(w, v, at, page, unit % decode_size<F, D>::unit_page);
        return;
    }
    const bool own = unit >= v.n_staged + v.n_single;
    if (F == FORM_Q8 && !own) read_single<D>(at, v, unit - v.n_staged);
    if (v.fresh->k && unit + 1 == job.n_unit) store_own<F, D>(at, v, *w.rows);
    add_rows<F, D>(w, v, at, own ? UINT32_MAX : unit - v.n_staged,
                   own ? unit - v.n_staged - v.n_single : 0);
}

/* Adds the warp's units of the current split, starting from an empty softmax. */
template <int F, int D, int W>
__device__ __forceinline__ void add_split(struct decode_warp<D> &w, const struct decode_view &v,
                                          struct decode_walk &walk)
{
    using size = decode_size<F, D, W>;
    const uint32_t warp = threadIdx.x / 32;
    w.max = -CUDART_INF_F;
    w.sum = 0;
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) w.acc[i][e] = 0;
    for (uint32_t i = 0; i < walk.n_turn; i++) {
        const uint32_t unit = walk.now.begin + warp + i * size::warps, slot = walk.slot;
        uint8_t *at = kernel_shared() + (warp * walk.n_stage + slot) * size::stage;
        wait_unit<W>(walk.n_stage);
        const uint32_t page = __shfl_sync(~0u, walk.now.page, i % 32);
        if (unit < walk.now.end) add_unit<F, D>(w, v, at, page, unit);
        __syncwarp(); /* all lanes have read the unit */
        prefetch_unit<F, D, W>(v, walk, i + walk.n_stage, slot);
        walk.slot = slot + 1 == walk.n_stage ? 0 : slot + 1;
    }
}

/* ---- The kernel ---- */

/* Copies the job to shared memory and completes it with what was selected on the device; all
 * threads. */
template <int F, int D, int W>
__device__ void open_job(struct decode_job *to, const struct decode_job *from, bool early)
{
    static_assert(sizeof *to % 4 == 0 && sizeof *to / 4 <= W * 32, "a word each");
    if (threadIdx.x < sizeof *to / 4)
        ((uint32_t *)to)[threadIdx.x] = ((const uint32_t *)from)[threadIdx.x];
    if (!early) kernel_begin();
    __syncthreads();
    if (!to->count) return;
    using size = decode_size<F, D, W>;
    if (threadIdx.x == 0) job_choose(to, size::unit_page, split_max(W));
    __syncthreads();
}

struct decode_way {   /* of the pipeline */
    uint32_t n_stage; /* 2 or 4; 1 where there is no room */
    bool early;       /* pages, lists and tables were complete before the last two launches */
};

/* Block blockIdx.x of job blockIdx.y. */
template <int F, int D, int W>
__global__ void __launch_bounds__(W * 32, D > 128 ? 1 : 2)
    attn_decode_kernel(const struct attn_call call, const struct heads_pending fresh,
                       const struct decode_way way, const struct decode_job *jobs, float *scratch,
                       uint32_t *tally)
{
    if constexpr (SMEM_IS_LARGE && W < decode_warps(D)) return;
    using size = decode_size<F, D, W>;
    __shared__ struct decode_job job;
    __shared__ struct decode_rows<D> rows;
    open_job<F, D, W>(&job, jobs + blockIdx.y, way.early);
    const bool has_split = blockIdx.x < job.n_block;
    struct decode_view v;
    v.call = &call;
    v.fresh = &fresh;
    v.job = &job;
    v.first = call.window > 0 && job.pos >= call.window ? job.pos - call.window + 1 : 0;
    v.n_staged = job.n_page * size::unit_page;
    v.n_single = (job.n_tok + UNIT_TOK - 1) / UNIT_TOK;
    static_assert(SPLIT_LEAST >= 2 * size::warps, "a ring of two reaches no further than a split");
    constexpr int ring = (W == WARPS_FEW ? 1 : 2) * size::warps * size::stage; /* the least */
    static_assert(sizeof(struct decode_all<D>) <= ring + size::merge + size::query,
                  "there is room");
    struct decode_walk walk =
        open_walk<F, D, W>(v, has_split ? blockIdx.x : job.n_split, way.n_stage, way.early);
    if (!has_split) return;
    load_rows<D, W>(&rows, call, fresh, job);
    uint8_t *const smem = kernel_shared();
    float *const merge = (float *)(smem + size::warps * way.n_stage * size::stage);
    struct decode_warp<D> w;
    w.q_shared = (uint4 *)((uint8_t *)merge + size::merge + threadIdx.x / 32 * (D * 32));
    w.rows = &rows;
    decode_query<F, D>(w, call, job, UINT32_MAX);
    for (uint32_t split = blockIdx.x; split < job.n_split; split += job.n_block) {
        add_split<F, D, W>(w, v, walk);
        walk.now = walk.next;
        walk.next = find_split<F, D, W>(v, split + 2 * job.n_block);
        __syncthreads(); /* the last split's sums have been read */
        store_warp_sums<D>(w, merge);
        __syncthreads();
        store_split<D, W>(call, job, split, merge, scratch);
    }
    cp_async_wait<0>();
    if (job.n_split == 1 || !block_is_last(tally + blockIdx.y, job.n_block)) return;
    merge_splits<D, W>(call, job, (struct decode_all<D> *)smem, scratch);
}

/* ---- The launcher ---- */

template <int F, int D, int W> static size_t smem_of(uint32_t n_stage)
{
    using size = decode_size<F, D, W>;
    return size::warps * n_stage * size::stage + size::merge + size::query;
}

/* Dynamic shared memory that a block can have. */
template <int D> static size_t smem_most(const struct cuda_device *d)
{
    return d->smem_max - sizeof(struct decode_rows<D>) - STATIC_MAX;
}

static uint32_t warps_least(uint32_t head_dim)
{
    return head_dim > 128 ? WARPS_FEW : decode_warps(head_dim);
}

/* Warps of a block. Heads of 256 channels have as many as they should only with Hopper's shared
 * memory. */
static uint32_t warps_here(const struct cuda_device *d, uint32_t head_dim)
{
    const bool fits = smem_of<FORM_Q8, 256, decode_warps(256)>(2) <= smem_most<256>(d);
    return fits ? decode_warps(head_dim) : warps_least(head_dim);
}

/* Splits of a list that fill the GPU if the call has no other row. */
static uint32_t split_most(const struct cuda_device *d, uint32_t n_warp, uint32_t n_list)
{
    const uint32_t n = d->n_sm * BUSY_WARPS / n_warp / n_list;
    return n < 1 ? 1 : n < SPLIT_MAX ? n : SPLIT_MAX;
}

static uint32_t unit_page_of(const struct page_geom *g)
{
    return g->type_k == SAC_KV_Q8 ? 1 : 2;
}

static uint32_t unit_max(const struct page_geom *g, uint32_t n_tok_max)
{
    return (n_tok_max / PAGE_TOK + 1) * unit_page_of(g) + n_tok_max / UNIT_TOK + 3;
}

static size_t part_bytes(const struct page_geom *g)
{
    return (HEADS * g->head_dim + 2 * HEADS) * sizeof(float);
}

size_t attn_decode_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row,
                           uint32_t n_tok_max)
{
    const uint32_t n_unit = unit_max(geom, n_tok_max), group = n_head / geom->n_kv_head;
    const size_t n_job = (size_t)n_row * geom->n_kv_head * ((group + HEADS - 1) / HEADS);
    const size_t most = n_unit / split_max(warps_least(geom->head_dim)) + 1;
    const size_t each = most > SPLIT_MAX ? most : SPLIT_MAX;
    const size_t least = each > PART_MAX ? each : PART_MAX;
    return (n_job * each < least ? n_job * each : least) * part_bytes(geom);
}

struct decode_plan { /* a call while the host plans it */
    struct decode_job *job;
    uint32_t n_warp;     /* of a block */
    uint32_t split_most; /* of a list */
    uint32_t n_job, n_split_max;
    uint32_t n_part, part_max; /* splits of the wave of jobs that share the scratch */
};

struct decode_lists { /* of a run, on the device */
    const uint32_t *page, *tok;
    const float *logw;
    const struct segment_view *segment;
};

/* Plans a job whose lists are selected on the device: for as many splits as they can have. Of a
 * page either all is read or up to 31 tokens. */
static void job_reserve(struct decode_job *j, const struct attn_run *run, uint32_t h,
                        uint32_t unit_page)
{
    const struct attn_chosen *c = &run->chosen;
    const uint32_t own = run->pos0 / PAGE_TOK, each = unit_page > 2 ? unit_page : 2;
    const uint32_t n_unit = own * each + 2;
    const uint32_t most = (n_unit + SPLIT_LEAST - 1) / SPLIT_LEAST;
    const uint32_t longest = split_max(j->n_warp), long_most = (n_unit + longest - 1) / longest;
    j->count = c->count + h;
    j->page = c->page + h * c->stride;
    j->tok = c->tok ? c->tok + h * c->stride * PAGE_TOK : NULL;
    j->logw = c->logw ? c->logw + h * c->stride * PAGE_TOK : NULL;
    j->n_split = most < j->split_most ? most : j->split_most;
    if (j->n_split < long_most) j->n_split = long_most;
}

static struct decode_job job_make(const struct decode_plan *p, const struct op_attn *op,
                                  const struct attn_run *run, const struct decode_lists *l,
                                  uint32_t h)
{
    const struct page_geom *g = op->geom;
    struct decode_job j;
    memset(&j, 0, sizeof j);
    j.n_warp = p->n_warp;
    j.split_most = p->split_most;
    j.frame = run->frame + h * run->table_stride;
    j.own = attn_own_page(run, g, run->pos0, h);
    j.row = run->row0;
    j.pos = run->pos0;
    j.segment = l->segment;
    j.n_segment = run->n_segment;
    const uint32_t own = run->pos0 / PAGE_TOK;
    if (run->attended && run->attended[h]) {
        /* only its own page */
    } else if (!run->select) {
        const bool windowed = op->window > 0 && run->pos0 >= op->window;
        j.page0 = windowed ? (run->pos0 - op->window + 1) / PAGE_TOK : 0;
        if (j.page0 > own) j.page0 = own;
        j.n_page = own - j.page0;
    } else {
        j.page = l->page + run->select_ptr[h];
        j.n_page = run->select_ptr[h + 1] - run->select_ptr[h];
        if (run->select_tok) {
            j.tok = l->tok + run->select_tok_ptr[h];
            j.n_tok = run->select_tok_ptr[h + 1] - run->select_tok_ptr[h];
            j.logw = run->select_logw ? l->logw + run->select_tok_ptr[h] : NULL;
        }
    }
    job_cut(&j, unit_page_of(g), split_max(j.n_warp));
    if (run->chosen.count) job_reserve(&j, run, h, unit_page_of(g));
    return j;
}

static void plan_run(struct decode_plan *p, const struct op_attn *op, const struct attn_run *run,
                     const struct decode_lists *l)
{
    const uint32_t group = op->n_head / op->geom->n_kv_head;
    for (uint32_t h = 0; h < op->geom->n_kv_head; h++) {
        struct decode_job job = job_make(p, op, run, l, h);
        for (uint32_t g = 0; g < group; g += HEADS) {
            job.head0 = h * group + g;
            job.kv_head = h;
            job.is_first = g == 0;
            job.n_head = group - g < HEADS ? group - g : HEADS;
            if (p->n_part + job.n_split > p->part_max) p->n_part = 0; /* start another wave */
            job.part0 = p->n_part;
            p->n_part += job.n_split;
            if (job.n_split > p->n_split_max) p->n_split_max = job.n_split;
            p->job[p->n_job++] = job;
        }
    }
}

static size_t list_bytes(const struct op_attn *op, const struct attn_run *run)
{
    const uint32_t n = op->geom->n_kv_head;
    size_t bytes = attn_segment_bytes(op, run) + 4 * STAGE_ALIGN;
    if (run->select) bytes += run->select_ptr[n] * sizeof(uint32_t);
    if (run->select && run->select_tok)
        bytes += run->select_tok_ptr[n] * (sizeof(uint32_t) + sizeof(float));
    return bytes;
}

static struct decode_lists stage_lists(struct cuda_device *d, const struct op_attn *op,
                                       const struct attn_run *run)
{
    const uint32_t n = op->geom->n_kv_head;
    struct decode_lists l;
    memset(&l, 0, sizeof l);
    l.segment = attn_stage_segments(d, op, run);
    if (!run->select) return l;
    l.page = (const uint32_t *)stage_put(d, run->select, run->select_ptr[n] * sizeof(uint32_t));
    if (!run->select_tok) return l;
    const uint32_t n_tok = run->select_tok_ptr[n];
    l.tok = (const uint32_t *)stage_put(d, run->select_tok, n_tok * sizeof(uint32_t));
    if (run->select_logw)
        l.logw = (const float *)stage_put(d, run->select_logw, n_tok * sizeof(float));
    return l;
}

struct decode_launch {
    struct attn_call call;
    struct heads_pending fresh;
    bool early;
    struct decode_job *job;  /* on the device */
    struct decode_job *host; /* its copy in the ring */
    float *scratch;
    uint32_t n_job, n_warp; /* of a block */
};

static uint32_t count_splits(const struct decode_job *job, uint32_t n_job)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_job; i++) n += job[i].n_split;
    return n;
}

/* Sets the blocks of each job of a wave; together about as many as are resident, as each block has
 * a fixed cost before and after its work: one for each split, or shares by length. Returns the
 * grid's blocks for each job. */
static uint32_t share_blocks(struct decode_job *job, uint32_t n_job, uint32_t n_room)
{
    size_t n_unit = 0;
    uint32_t most = 1, n_grid = 1;
    const bool is_full = count_splits(job, n_job) > n_room;
    for (uint32_t i = 0; i < n_job; i++) n_unit += job[i].n_unit;
    for (uint32_t i = 0; i < n_job; i++) {
        const uint32_t share = (uint32_t)((size_t)n_room * job[i].n_unit / n_unit);
        const uint32_t n = is_full ? (share > 1 ? share : 1) : job[i].n_split;
        job[i].n_block = n < job[i].n_split ? n : job[i].n_split;
        if (job[i].n_block > most) most = job[i].n_block;
    }
    while (n_grid < most) n_grid *= 2; /* few grid sizes, so that a graph lasts */
    return most <= n_room / n_job && n_room / n_job < n_grid ? n_room / n_job : n_grid;
}

/* Launches a wave. The pipeline is deep where every split has a multiprocessor to itself and shared
 * memory allows; one stage where two do not fit. */
template <int F, int D, int W>
static sac_status launch_wave(struct cuda_device *d, const struct decode_launch *l, uint32_t first,
                              uint32_t n)
{
    using size = decode_size<F, D, W>;
    const uint32_t n_grid = share_blocks(l->host + first, n, d->n_sm * (D > 128 ? 1 : 2));
    const size_t most = smem_most<D>(d);
    const bool deep = count_splits(l->host + first, n) <= d->n_sm;
    struct decode_way way;
    memset(&way, 0, sizeof way);
    way.n_stage = deep && smem_of<F, D, W>(size::stages) <= most ? size::stages : 2;
    if (W == WARPS_FEW && smem_of<F, D, W>(2) > most) way.n_stage = 1;
    way.early = l->early;
    return queue_launch(d, "attention of decode rows", attn_decode_kernel<F, D, W>, dim3(n_grid, n),
                        W * 32, smem_of<F, D, W>(way.n_stage), l->call, l->fresh, way,
                        l->job + first, l->scratch, d->tally);
}

template <int F, int D, int W = decode_warps(D)>
static sac_status launch(struct cuda_device *d, const struct decode_launch *l)
{
    for (uint32_t i = 0, end; i < l->n_job; i = end) {
        for (end = i + 1; end < l->n_job && l->host[end].part0 > 0;) end++;
        const sac_status status = launch_wave<F, D, W>(d, l, i, end - i);
        if (status != SAC_OK) return status;
    }
    return SAC_OK;
}

template <int F>
static sac_status launch_form(struct cuda_device *d, uint32_t head_dim,
                              const struct decode_launch *l)
{
    switch (head_dim) {
    case 64: return launch<F, 64>(d, l);
    case 128: return launch<F, 128>(d, l);
    case 256:
        return l->n_warp == WARPS_FEW ? launch<F, 256, WARPS_FEW>(d, l) : launch<F, 256>(d, l);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: this head size");
    }
}

sac_status attn_decode(struct cuda_device *d, const struct op_attn *op)
{
    const uint32_t group = op->n_head / op->geom->n_kv_head;
    const uint32_t per_run = op->geom->n_kv_head * ((group + HEADS - 1) / HEADS);
    size_t bytes = 0;
    uint32_t n_run = 0;
    for (uint32_t i = 0; i < op->n_run; i++)
        if (op->run[i].kind == ROW_DECODE) n_run++, bytes += list_bytes(op, &op->run[i]);
    if (n_run == 0) return SAC_OK;
    const size_t job_bytes = (size_t)n_run * per_run * sizeof(struct decode_job);
    if (stage_reserve(d, bytes + job_bytes + STAGE_ALIGN) != SAC_OK) return d->status;
    void *host;
    struct decode_launch l;
    l.call = attn_call_of(op);
    l.n_warp = warps_here(d, op->geom->head_dim);
    l.early = heads_absorb(d, op, &l.fresh) && queue_allows_early_loads(d);
    l.job = (struct decode_job *)stage_alloc(d, job_bytes, &host);
    l.scratch = (float *)op->scratch;
    if (!l.job) return d->status;
    struct decode_plan p;
    memset(&p, 0, sizeof p);
    p.job = (struct decode_job *)host;
    p.n_warp = l.n_warp;
    p.split_most = split_most(d, p.n_warp, per_run);
    const size_t part_max = op->scratch_bytes / part_bytes(op->geom);
    p.part_max = (uint32_t)(part_max < PART_MAX ? part_max : PART_MAX);
    l.host = p.job;
    for (uint32_t i = 0; i < op->n_run; i++) {
        if (op->run[i].kind != ROW_DECODE) continue;
        const struct decode_lists lists = stage_lists(d, op, &op->run[i]);
        plan_run(&p, op, &op->run[i], &lists);
    }
    if (d->status != SAC_OK) return d->status;
    l.n_job = p.n_job;
    if (p.n_split_max > p.part_max)
        return device_fail(d, SAC_ERR_MEMORY, "attention: scratch is too small");
    if (p.n_split_max > MERGE_MAX)
        return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: a list of so many pages");
    switch (attn_form_of(op->geom)) {
    case FORM_F16: return launch_form<FORM_F16>(d, op->geom->head_dim, &l);
    case FORM_BF16: return launch_form<FORM_BF16>(d, op->geom->head_dim, &l);
    case FORM_Q8: return launch_form<FORM_Q8>(d, op->geom->head_dim, &l);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: K and V of different types");
    }
}
