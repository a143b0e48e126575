/* attn_decode.cu: attention of decode rows over pages, single tokens and the own page.
 *
 * What a row reads is a list of units: halves of f16 pages or whole q8 pages, then 16 single tokens
 * each, then the two halves of its own page. A list is cut into splits of a length that depends on
 * the list, the model and the GPU alone; a block takes a split and deals its units out to its warps
 * in turns. A warp keeps pages on their way into shared memory while it multiplies others; where
 * the two launches before have nothing to do with them, the first are under way before these have
 * ended. Rows whose queries and keys have not turned, and whose keys and values are not in their
 * page yet, are turned and written here (heads.cuh). Warps are merged in their order; the block
 * that is the last of a list to be done merges the splits in the same way, each warp every so
 * many-th, whichever block it is: same bits whatever else is in the call.
 */
#include "ops/cuda/attn_unit.cuh"
#include "ops/cuda/block.cuh"

#define SPLIT_MAX     64u   /* splits of a list, unless they would be too long */
#define SPLIT_UNIT    128u  /* units of a split at most: a lane knows one of its warp */
#define SPLIT_LEAST   8u    /* and at least: a multiple of the warps of any block */
#define BUSY_WARPS    8u    /* of a multiprocessor that are enough for one row */
#define CHOSEN_BLOCKS 4u    /* of a multiprocessor for lists that the device makes, or fewer */
#define PART_MAX      TALLY /* splits at a time: 34 MB of scratch for heads of 128 */

/* ---- Jobs ---- */

/* Units of a split, in whole turns of a block's warps. */
static __host__ __device__ inline uint32_t split_units(const struct decode_job *j)
{
    const uint32_t each = (j->n_unit + j->split_most - 1) / j->split_most;
    const uint32_t turns = (each + j->n_warp - 1) / j->n_warp;
    const uint32_t n = turns * j->n_warp < SPLIT_LEAST ? SPLIT_LEAST : turns * j->n_warp;
    return n < SPLIT_UNIT ? n : SPLIT_UNIT;
}

/* The units of a job whose lists are known, and its splits. */
static __host__ __device__ inline void job_cut(struct decode_job *j, uint32_t unit_page)
{
    j->n_unit = j->n_page * unit_page + (j->n_tok + UNIT_TOK - 1) / UNIT_TOK +
                j->pos % PAGE_TOK / UNIT_TOK + 1;
    j->split_unit = split_units(j);
    j->n_split = (j->n_unit + j->split_unit - 1) / j->split_unit;
}

/* What the device has chosen, into a block's copy of its job. */
static __device__ void job_choose(struct decode_job *j, uint32_t unit_page)
{
    const struct attn_count count = *j->count;
    if (count.dense) {
        j->page = NULL; /* page0 and n_page say so */
    } else {
        j->n_page = count.n_page;
        j->n_tok = count.n_tok;
    }
    job_cut(j, unit_page);
}

/* ---- A split ---- */

/* Sums of this lane's warp, and its maximum, in its piece of `merge`. */
template <int D> __device__ void put_warp(struct decode_warp<D> &w, float *merge)
{
    using at = decode_merge<D>;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
    float *acc = merge + threadIdx.x / 32 * at::piece;
    w.sum += __shfl_xor_sync(~0u, w.sum, 1);
    w.sum += __shfl_xor_sync(~0u, w.sum, 2);
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            acc[g * at::head + (2 * j + e) * at::eighth + i] = w.acc[i][e] + w.acc[i][2 + e];
    if (j == 0) acc[at::max + g] = w.max, acc[at::sum + g] = w.sum;
}

/* All warps in their order: sums [HEADS][D], maxima [HEADS], sums [HEADS]. */
template <int D> __device__ void put_split(const float *merge, float *part)
{
    using at = decode_merge<D>;
    constexpr int n_warp = (int)decode_warps(D);
    for (uint32_t i = threadIdx.x; i < HEADS * D + HEADS; i += n_warp * 32) {
        const uint32_t g = i < HEADS * D ? i / D : i - HEADS * D;
        const uint32_t from = i < HEADS * D ? at::at(i) : at::sum + g;
        float max = -CUDART_INF_F, sum = 0;
#pragma unroll
        for (int w = 0; w < n_warp; w++)
            max = fmaxf(max, merge[w * at::piece + at::max + g]);
        if (i >= HEADS * D) part[HEADS * D + g] = max;
#pragma unroll
        for (int w = 0; w < n_warp; w++) {
            const float *m = merge + w * at::piece;
            const float top = m[at::max + g];
            const float by = top == -CUDART_INF_F ? 0.0f : exp2_fast(top - max);
            sum += by * m[from];
        }
        part[i < HEADS * D ? i : i + HEADS] = sum;
    }
}

/* ---- All splits of a job ---- */

/* Every so many-th split into the warp's piece of `merge`, as put_warp leaves it. A lane takes four
 * channels of one head at a time. */
template <int D> __device__ void merge_splits(float *merge, const float *part, uint32_t n_split)
{
    constexpr uint32_t stride = HEADS * D + 2 * HEADS, n_piece = HEADS * D / 128;
    constexpr uint32_t n_warp = decode_warps(D);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float4 acc[n_piece];
    float max[n_piece], sum[n_piece];
#pragma unroll
    for (uint32_t k = 0; k < n_piece; k++) {
        acc[k] = make_float4(0, 0, 0, 0);
        max[k] = -CUDART_INF_F;
        sum[k] = 0;
    }
#pragma unroll(D > 128 ? 1 : D > 64 ? 2 : 4) /* whose loads are under way together */
    for (uint32_t s = warp; s < n_split; s += n_warp) {
        const float *p = part + (size_t)s * stride;
#pragma unroll
        for (uint32_t k = 0; k < n_piece; k++) {
            const uint32_t at = (k * 32 + lane) * 4, g = at / D;
            const float top = __ldcg(p + HEADS * D + g), add = __ldcg(p + HEADS * D + HEADS + g);
            const float4 v = __ldcg((const float4 *)(p + at));
            const float most = fmaxf(max[k], top);
            const float by = top == -CUDART_INF_F ? 0.0f : exp2_fast(top - most);
            const float was = max[k] == -CUDART_INF_F ? 0.0f : exp2_fast(max[k] - most);
            acc[k].x = was * acc[k].x + by * v.x, acc[k].y = was * acc[k].y + by * v.y;
            acc[k].z = was * acc[k].z + by * v.z, acc[k].w = was * acc[k].w + by * v.w;
            sum[k] = was * sum[k] + by * add;
            max[k] = most;
        }
    }
    using merged = decode_merge<D>;
    float *to = merge + warp * merged::piece;
#pragma unroll
    for (uint32_t k = 0; k < n_piece; k++) {
        const uint32_t at = (k * 32 + lane) * 4, g = at / D, first = merged::at(at);
        to[first] = acc[k].x, to[first + 1] = acc[k].y;
        to[first + 2] = acc[k].z, to[first + 3] = acc[k].w;
        if (at % D == 0) to[merged::max + g] = max[k], to[merged::sum + g] = sum[k];
    }
}

/* What a job's row gets, from the sums of all. */
template <int D>
__device__ void put_out(const struct attn_call &call, const struct decode_job &job,
                        const float *all)
{
    const uint32_t n_thread = decode_warps(D) * 32;
    for (uint32_t i = threadIdx.x; i < job.n_head * D; i += n_thread)
        call.out[job.row * call.out_stride + (size_t)job.head0 * D + i] =
            all[i] * (1.0f / all[HEADS * D + HEADS + i / D]);
    const uint32_t g = threadIdx.x;
    if (call.lse && g < job.n_head)
        call.lse[(size_t)job.row * call.n_head + job.head0 + g] =
            (all[HEADS * D + g] + log2f(all[HEADS * D + HEADS + g])) * LN2;
}

/* What the warps have left in `merge` becomes the row's, or a part of it: then the last block of
 * the job puts all parts together. */
template <int F, int D>
__device__ void end_split(const struct attn_call &call, const struct decode_job &job,
                          uint32_t split, float *merge, float *scratch, uint32_t *tally)
{
    using size = decode_size<F, D>;
    float *all = merge + size::warps * decode_merge<D>::piece;
    if (job.n_split > 1) {
        float *part = scratch + (size_t)job.part0 * size::part;
        put_split<D>(merge, part + (size_t)split * size::part);
        if (!block_is_last(tally, job.n_split)) return;
        merge_splits<D>(merge, part, job.n_split);
        __syncthreads();
    }
    put_split<D>(merge, all);
    __syncthreads();
    put_out<D>(call, job, all);
}

/* Begins the copies of a unit; `place`: of its page, if it is of one. Single tokens of q8 pages are
 * read when their turn comes. */
template <int F, int D>
__device__ __forceinline__ void stage_unit(uint32_t to, const struct decode_view &v, uint32_t place,
                                           uint32_t unit)
{
    if (unit < v.n_staged)
        stage_page<F, D>(to, place_bytes(v.call->frames, place, page_at<F, D>::bytes),
                         unit % decode_size<F, D>::unit_page);
    else if (unit >= v.n_staged + v.n_single)
        stage_own<D>(to, v, unit - v.n_staged - v.n_single);
    else if (F != FORM_Q8)
        stage_single<F, D>(to, v, unit - v.n_staged);
}

/* A split, as a warp sees it: every so many-th of its units, of which lane i has looked up number i. */
struct decode_split {
    uint32_t begin, end; /* units; none behind the last split */
    uint32_t page, place;
};

/* Unit i of the warp into its ring. */
template <int F, int D>
__device__ __forceinline__ void bring_unit(const struct decode_view &v,
                                           const struct decode_split &s, uint32_t i)
{
    using size = decode_size<F, D>;
    const uint32_t warp = threadIdx.x / 32, unit = s.begin + warp + i * size::warps;
    const uint32_t from = __shfl_sync(~0u, s.place, i % 32);
    uint8_t *to = kernel_shared() + (warp * size::stages + i % size::stages) * size::stage;
    if (unit < s.end) stage_unit<F, D>(smem_address(to), v, from, unit);
    copy_commit();
}

/* Looks the warp's units up and begins to bring them. */
template <int F, int D>
__device__ struct decode_split open_split(const struct decode_view &v, uint32_t split)
{
    using size = decode_size<F, D>;
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
    for (uint32_t i = 0; i < size::stages; i++) bring_unit<F, D>(v, s, i);
    return s;
}

/* The rest of it, from rows that are there. */
template <int F, int D>
__device__ void add_split(const struct decode_view &v, const struct decode_split &s,
                          const struct decode_rows<D> *rows, uint32_t split, float *scratch,
                          uint32_t *tally)
{
    using size = decode_size<F, D>;
    const struct decode_job &job = *v.job;
    uint8_t *const smem = kernel_shared();
    const uint32_t warp = threadIdx.x / 32;
    uint8_t *ring = smem + warp * (size::stages * size::stage);
    struct decode_warp<D> w;
    w.max = -CUDART_INF_F;
    w.sum = 0;
    w.q_shared = (uint4 *)(smem + size::smem - size::query + warp * (D * 32));
    w.rows = rows;
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) w.acc[i][e] = 0;
    decode_query<F, D>(w, *v.call, job, UINT32_MAX);
    for (uint32_t i = 0, unit = s.begin + warp; unit < s.end; i++, unit += size::warps) {
        uint8_t *at = ring + i % size::stages * size::stage;
        copy_wait<size::stages - 1>();
        __syncwarp();
        const uint32_t now = __shfl_sync(~0u, s.page, i % 32);
        if (unit < v.n_staged) {
            add_page<F, D>(w, v, at, now, unit % size::unit_page);
        } else {
            const bool own = unit >= v.n_staged + v.n_single;
            if (F == FORM_Q8 && !own) read_single<D>(at, v, unit - v.n_staged);
            if (v.fresh->k && unit + 1 == job.n_unit) put_own<F, D>(at, v, *rows);
            add_rows<F, D>(w, v, at, own ? UINT32_MAX : unit - v.n_staged,
                           own ? unit - v.n_staged - v.n_single : 0);
        }
        __syncwarp(); /* nobody reads the unit any more */
        bring_unit<F, D>(v, s, i + size::stages);
    }
    copy_wait<0>();
    __syncthreads();
    put_warp<D>(w, (float *)smem);
    __syncthreads();
    end_split<F, D>(*v.call, job, split, (float *)smem, scratch, tally);
}

/* A block takes every so many-th split: where the device has chosen, few of those that lists can
 * have are there, and blocks that find nothing take their time, too. `early`: pages, lists and what
 * tells where they are had been written before the two launches before this one. */
template <int F, int D>
__global__ void __launch_bounds__(decode_size<F, D>::warps * 32, D > 128 ? 1 : 2)
    attn_decode_kernel(const struct attn_call call, const struct heads_new fresh, bool early,
                       const struct decode_job *jobs, float *scratch, uint32_t *tally)
{
    __shared__ struct decode_job job;
    __shared__ struct decode_rows<D> rows;
    if (threadIdx.x == 0) job = jobs[blockIdx.y];
    if (!early) kernel_begin();
    if (threadIdx.x == 0 && job.count) job_choose(&job, decode_size<F, D>::unit_page);
    __syncthreads();
    struct decode_view v;
    v.call = &call;
    v.fresh = &fresh;
    v.job = &job;
    v.first = call.window > 0 && job.pos >= call.window ? job.pos - call.window + 1 : 0;
    v.n_staged = job.n_page * decode_size<F, D>::unit_page;
    v.n_single = (job.n_tok + UNIT_TOK - 1) / UNIT_TOK;
    for (uint32_t split = blockIdx.x;; split += gridDim.x) {
        const struct decode_split s = open_split<F, D>(v, split);
        if (early && split == blockIdx.x) kernel_begin();
        if (split >= job.n_split) return;
        if (split == blockIdx.x) bring_rows<D>(&rows, call, fresh, job);
        add_split<F, D>(v, s, &rows, split, scratch, tally + blockIdx.y);
        __syncthreads(); /* nobody reads the shared memory of the split any more */
    }
}

/* ---- The launcher ---- */

/* Splits of a list that are enough to fill the GPU if no other row is in the call. */
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
    const size_t longest = n_unit / SPLIT_UNIT + 1;
    const size_t each = longest > SPLIT_MAX ? longest : SPLIT_MAX;
    const size_t least = each > PART_MAX ? each : PART_MAX;
    return (n_job * each < least ? n_job * each : least) * part_bytes(geom);
}

struct decode_plan { /* a call as it is put together on the host */
    struct decode_job *job;
    uint32_t split_most; /* of a list */
    uint32_t n_job, n_split_max;
    uint32_t n_part, part_max; /* of the wave of jobs that share the scratch */
    bool all_chosen;           /* by the device */
};

struct decode_lists { /* of a run, on the device */
    const uint32_t *page, *tok;
    const float *logw;
    const struct segment_view *segment;
};

/* A job whose lists the device has chosen: as many splits as they can have. A page is read whole or
 * up to 31 tokens of it. */
static void job_reserve(struct decode_job *j, const struct attn_run *run, uint32_t h,
                        uint32_t unit_page)
{
    const struct attn_chosen *c = &run->chosen;
    const uint32_t own = run->pos0 / PAGE_TOK, each = unit_page > 2 ? unit_page : 2;
    const uint32_t n_unit = own * each + 2;
    const uint32_t most = (n_unit + SPLIT_LEAST - 1) / SPLIT_LEAST;
    const uint32_t long_most = (n_unit + SPLIT_UNIT - 1) / SPLIT_UNIT;
    j->count = c->count + h;
    j->page = c->page + h * c->stride;
    j->tok = c->tok ? c->tok + h * c->stride * PAGE_TOK : NULL;
    j->logw = c->logw ? c->logw + h * c->stride * PAGE_TOK : NULL;
    j->n_split = most < j->split_most ? most : j->split_most;
    if (j->n_split < long_most) j->n_split = long_most;
}

static struct decode_job job_make(const struct op_attn *op, const struct attn_run *run,
                                  const struct decode_lists *l, uint32_t h, uint32_t most)
{
    const struct page_geom *g = op->geom;
    struct decode_job j;
    memset(&j, 0, sizeof j);
    j.n_warp = decode_warps(g->head_dim);
    j.split_most = most;
    j.frame = run->frame + h * run->table_stride;
    j.own = attn_own_page(run, g, run->pos0, h);
    j.row = run->row0;
    j.pos = run->pos0;
    j.segment = l->segment;
    j.n_segment = run->n_segment;
    const uint32_t own = run->pos0 / PAGE_TOK;
    if (run->attended && run->attended[h]) {
        /* its own page alone */
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
    job_cut(&j, unit_page_of(g));
    if (run->chosen.count) job_reserve(&j, run, h, unit_page_of(g));
    return j;
}

static void plan_run(struct decode_plan *p, const struct op_attn *op, const struct attn_run *run,
                     const struct decode_lists *l)
{
    const uint32_t group = op->n_head / op->geom->n_kv_head;
    for (uint32_t h = 0; h < op->geom->n_kv_head; h++) {
        struct decode_job job = job_make(op, run, l, h, p->split_most);
        for (uint32_t g = 0; g < group; g += HEADS) {
            job.head0 = h * group + g;
            job.kv_head = h;
            job.is_first = g == 0;
            job.n_head = group - g < HEADS ? group - g : HEADS;
            if (p->n_part + job.n_split > p->part_max) p->n_part = 0; /* another wave */
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
    struct heads_new fresh;
    bool early;
    struct decode_job *job;        /* on the device */
    const struct decode_job *host; /* the same */
    float *scratch;
    uint32_t n_job, n_grid; /* blocks of a job, which take its splits in turns */
};

template <int F, int D>
static sac_status launch(struct cuda_device *d, const struct decode_launch *l)
{
    constexpr int smem = decode_size<F, D>::smem;
    TRY(attn_fits(d, smem));
    for (uint32_t i = 0, end; i < l->n_job; i = end) { /* a wave */
        for (end = i + 1; end < l->n_job && l->host[end].part0 > 0;) end++;
        TRY(queue_launch(d, "attention of decode rows", attn_decode_kernel<F, D>,
                         dim3(l->n_grid, end - i), decode_size<F, D>::warps * 32, smem, l->call,
                         l->fresh, l->early, l->job + i, l->scratch, d->tally));
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
    case 256: return launch<F, 256>(d, l);
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
    l.early = heads_take(d, op, &l.fresh) && queue_is_apart(d);
    l.job = (struct decode_job *)stage_take(d, job_bytes, &host);
    l.scratch = (float *)op->scratch;
    if (!l.job) return d->status;
    struct decode_plan p;
    memset(&p, 0, sizeof p);
    p.job = (struct decode_job *)host;
    p.all_chosen = true;
    p.split_most = split_most(d, decode_warps(op->geom->head_dim), per_run);
    const size_t part_max = op->scratch_bytes / part_bytes(op->geom);
    p.part_max = (uint32_t)(part_max < PART_MAX ? part_max : PART_MAX);
    l.host = p.job;
    for (uint32_t i = 0; i < op->n_run; i++) {
        if (op->run[i].kind != ROW_DECODE) continue;
        const struct decode_lists lists = stage_lists(d, op, &op->run[i]);
        p.all_chosen = p.all_chosen && op->run[i].chosen.count;
        plan_run(&p, op, &op->run[i], &lists);
    }
    if (d->status != SAC_OK) return d->status;
    l.n_job = p.n_job;
    for (l.n_grid = 1; l.n_grid < p.n_split_max;) l.n_grid *= 2; /* few shapes: a graph lasts */
    while (p.all_chosen && l.n_grid > 1 && l.n_grid * p.n_job > CHOSEN_BLOCKS * d->n_sm)
        l.n_grid /= 2;
    if (p.n_split_max > p.part_max)
        return device_fail(d, SAC_ERR_MEMORY, "attention: scratch is too small");
    switch (attn_form_of(op->geom)) {
    case FORM_F16: return launch_form<FORM_F16>(d, op->geom->head_dim, &l);
    case FORM_BF16: return launch_form<FORM_BF16>(d, op->geom->head_dim, &l);
    case FORM_Q8: return launch_form<FORM_Q8>(d, op->geom->head_dim, &l);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: K and V of different types");
    }
}
