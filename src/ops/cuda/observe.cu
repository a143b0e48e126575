/* observe.cu: the attention of some rows over all tokens (op_lane_observe), selections that are
 * kept from step to step (op_lane_keep, op_lane_lines), and the ring of past queries (op_past); for
 * loopserve, snapkv and its relatives (ops/observe.h).
 *
 * Observation is an exact softmax in three launches: a block for each page computes, for each pair
 * of head and row, the largest logit and the sum of exponentials; a block for each pair merges
 * these over the pages; a block for each page computes its logits again and adds up the
 * probabilities. With `slash`, a fourth sums them along diagonals. A lane is a token, a warp has
 * PAIRS pairs at a time, so that a key in registers serves several. Shared memory: the page's keys
 * in f32, [PAGE_TOK][d + 1], padded against bank conflicts. All sums have one order. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define THREADS   256u
#define WARPS     (THREADS / 32)
#define PAIRS     8u  /* (head, row) pairs of a warp at a time */
#define GRID_STEP 64u /* pages */

/* ---- Scores ---- */

static __device__ inline uint32_t page_count(const struct op_lane_observe &op)
{
    return op.rows.pos / PAGE_TOK;
}

/* Whether the page has been released: no row sees it. */
static __device__ inline bool is_gone(const struct op_lane_observe &op, uint32_t page_i)
{
    return page_i < page_count(op) && op.keys.page[page_i] == PAGE_NONE;
}

/* The keys of a page, or of the row's own, in f32: key [PAGE_TOK][d + 1] in shared memory. */
static __device__ void load_keys(float *key, const struct op_lane_observe &op,
                                 const struct page_geom &g, uint32_t page_i)
{
    const uint32_t d = g.head_dim, own = page_count(op);
    const uint32_t n_tok = page_i == own ? op.rows.pos % PAGE_TOK + 1 : PAGE_TOK;
    const sac_kv_type half = g.type_k == SAC_KV_BF16 ? SAC_KV_BF16 : SAC_KV_F16;
    const uint16_t *tail = (const uint16_t *)op.keys.own;
    const uint8_t *page =
        page_i < own ? place_page(op.keys.frames, op.keys.page[page_i], g.bytes) : NULL;
    for (uint32_t i = threadIdx.x; i < PAGE_TOK * d; i += THREADS) {
        const uint32_t t = i / d, c = i % d;
        key[t * (d + 1) + c] = t >= n_tok ? 0.0f
                               : page     ? choose_key(g, page, t, c)
                                          : choose_half(tail[i], half);
    }
    __syncthreads();
}

static __device__ inline const float *query_of(const struct op_lane_observe &op, uint32_t d,
                                               uint32_t pair)
{
    const struct op_rows &r = op.rows;
    const uint32_t row = op.row0 + pair / r.group, g = pair % r.group;
    const float *q = row == r.pos ? r.q : r.past + row % r.n_slot * r.stride;
    return q + (size_t)g * d;
}

/* Logits of the lane's token for the pairs from `first` on; the result has a bit for each pair that
 * sees the token. */
static __device__ uint32_t pair_scores(float x[PAIRS], const float *key,
                                       const struct op_lane_observe &op, uint32_t d,
                                       uint32_t page_i, uint32_t first)
{
    const uint32_t n_pair = op.n_row * op.rows.group;
    const uint32_t lane = threadIdx.x % 32, tok = page_i * PAGE_TOK + lane;
    const float *k = key + lane * (d + 1), *q[PAIRS];
    uint32_t seen = 0;
#pragma unroll
    for (uint32_t i = 0; i < PAIRS; i++) {
        const uint32_t pair = min(first + i, n_pair - 1);
        x[i] = 0;
        q[i] = query_of(op, d, pair);
        const bool sees = tok >= op.first && tok <= op.row0 + pair / op.rows.group;
        seen |= (uint32_t)(first + i < n_pair && sees) << i;
    }
    for (uint32_t c = 0; c < d; c += 4) {
        const float k0 = k[c], k1 = k[c + 1], k2 = k[c + 2], k3 = k[c + 3];
#pragma unroll
        for (uint32_t i = 0; i < PAIRS; i++) {
            const float4 four = *(const float4 *)(q[i] + c);
            x[i] += four.x * k0 + four.y * k1 + four.z * k2 + four.w * k3;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < PAIRS; i++) {
        x[i] *= op.scale;
        if (op.softcap > 0) x[i] = op.softcap * tanhf(x[i] / op.softcap);
    }
    return seen;
}

/* The softmax sum of a page for a pair. The entry after the own page is the merged one, with 1 /
 * sum in place of the sum. */
static __device__ inline struct exp_sum *top_of(const struct op_lane_observe &op, uint32_t pair,
                                                uint32_t page_i)
{
    return (struct exp_sum *)op.spare + (size_t)pair * (page_count(op) + 2) + page_i;
}

/* ---- Observation ---- */

static __global__ void __launch_bounds__(THREADS)
    observe_tops(const struct page_geom geom, const struct op_lane_observe *list)
{
    kernel_begin();
    const struct op_lane_observe &op = list[blockIdx.y];
    const uint32_t page_i = blockIdx.x, n_pair = op.n_row * op.rows.group;
    float *key = (float *)kernel_shared();
    if (page_i > page_count(op)) return;
    const bool gone = is_gone(op, page_i);
    if (!gone) load_keys(key, op, geom, page_i);
    for (uint32_t first = threadIdx.x / 32 * PAIRS; first < n_pair; first += WARPS * PAIRS) {
        float x[PAIRS];
        const uint32_t seen = gone ? 0 : pair_scores(x, key, op, geom.head_dim, page_i, first);
#pragma unroll
        for (uint32_t i = 0; i < PAIRS; i++) {
            const struct exp_sum top =
                warp_exp_sum(seen >> i & 1 ? exp_sum_of(x[i]) : exp_sum_none());
            if (threadIdx.x % 32 == 0 && first + i < n_pair) *top_of(op, first + i, page_i) = top;
        }
    }
}

static __global__ void __launch_bounds__(THREADS) observe_merge(const struct op_lane_observe *list)
{
    kernel_begin();
    __shared__ struct exp_sum room[32];
    const struct op_lane_observe &op = list[blockIdx.y];
    const uint32_t pair = blockIdx.x, n = page_count(op) + 1;
    if (pair >= op.n_row * op.rows.group) return;
    struct exp_sum all = exp_sum_none();
    for (uint32_t p = threadIdx.x; p < n; p += THREADS)
        all = exp_sum_add(all, *top_of(op, pair, p));
    all = block_exp_sum(all, room);
    if (threadIdx.x > 0) return;
    if (!isfinite(all.sum)) atomicOr(&op.result->n_bad, 1u);
    all.sum = 1.0f / all.sum;
    *top_of(op, pair, n) = all;
}

static __global__ void __launch_bounds__(THREADS)
    observe_sums(const struct page_geom geom, const struct op_lane_observe *list)
{
    kernel_begin();
    __shared__ float part[WARPS][PAGE_TOK];
    const struct op_lane_observe &op = list[blockIdx.y];
    const uint32_t page_i = blockIdx.x, n_pair = op.n_row * op.rows.group;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *key = (float *)kernel_shared(), sum = 0;
    if (page_i > page_count(op)) return;
    const bool gone = is_gone(op, page_i);
    if (!gone) load_keys(key, op, geom, page_i);
    for (uint32_t first = warp * PAIRS; first < n_pair && !gone; first += WARPS * PAIRS) {
        float x[PAIRS];
        const uint32_t seen = pair_scores(x, key, op, geom.head_dim, page_i, first);
#pragma unroll
        for (uint32_t i = 0; i < PAIRS; i++) {
            if (!(seen >> i & 1)) continue;
            const struct exp_sum all = *top_of(op, first + i, page_count(op) + 1);
            sum += expf(x[i] - all.max) * all.sum;
        }
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0) return;
    for (uint32_t w = 1; w < WARPS; w++) sum += part[w][lane];
    const uint32_t tok = page_i * PAGE_TOK + lane;
    if (tok < op.begin || tok >= op.end) sum = -INFINITY;
    float *out = op.sum + tok;
    *out = op.adds ? *out + sum : sum;
}

/* The probabilities of a row's heads for one token, summed. */
static __device__ float row_shares(const struct op_lane_observe &op, const struct page_geom &g,
                                   uint32_t row, uint32_t tok)
{
    if (tok < op.first || is_gone(op, tok / PAGE_TOK)) return 0;
    struct page_geom of = g;
    const uint8_t *page = choose_page(&of, op.keys, op.rows.pos, tok);
    const uint32_t pair0 = (row - op.row0) * op.rows.group;
    const struct choose_query q = {query_of(op, g.head_dim, pair0), op.rows.group, op.scale,
                                   op.softcap};
    float sum = 0;
    for (uint32_t g0 = 0; g0 < q.group; g0 += CHOOSE_HEADS) {
        float x[CHOOSE_HEADS];
        choose_logits(x, q, of, page, tok % PAGE_TOK, g0);
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
            if (g0 + i >= q.group) continue;
            const struct exp_sum all = *top_of(op, pair0 + g0 + i, page_count(op) + 1);
            sum += expf(x[i] - all.max) * all.sum;
        }
    }
    return sum;
}

/* A block for 32 diagonals, a lane for each; a warp takes every eighth row. */
static __global__ void __launch_bounds__(THREADS)
    observe_slashes(const struct page_geom geom, const struct op_lane_observe *list)
{
    kernel_begin();
    __shared__ float part[WARPS][PAGE_TOK];
    const struct op_lane_observe &op = list[blockIdx.y];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t x = blockIdx.x * PAGE_TOK + lane;
    float sum = 0;
    if (!op.slash || blockIdx.x > page_count(op)) return;
    for (uint32_t row = op.row0 + warp; row < op.row0 + op.n_row; row += WARPS)
        if (x <= op.rows.pos && x + row >= op.rows.pos)
            sum += row_shares(op, geom, row, x + row - op.rows.pos);
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0) return;
    for (uint32_t w = 1; w < WARPS; w++) sum += part[w][lane];
    if (x >= op.end) sum = -INFINITY;
    op.slash[x] = op.adds ? op.slash[x] + sum : sum;
}

/* Rounded up, so that a graph lasts; blocks after the last page return at once. */
static uint32_t grid_pages(uint32_t n)
{
    return (n + GRID_STEP - 1) / GRID_STEP * GRID_STEP;
}

sac_status cuda_lane_observe(struct cuda_device *d, const struct op_lane_observe *op, uint32_t n)
{
    uint32_t most = 0, n_pair = 0;
    bool by_distance = false;
    for (uint32_t i = 0; i < n; i++) {
        most = choose_larger(most, op[i].rows.pos / PAGE_TOK + 1);
        n_pair = choose_larger(n_pair, op[i].n_row * op[i].rows.group);
        by_distance = by_distance || op[i].slash;
    }
    const struct op_lane_observe *list = choose_stage(d, op, n);
    if (!list || n_pair == 0) return d->status;
    const struct page_geom geom = *op->keys.geom;
    const size_t smem = PAGE_TOK * (geom.head_dim + 1) * sizeof(float);
    TRY(queue_launch(d, "attention of observed rows, page by page", observe_tops,
                     dim3(grid_pages(most), n), THREADS, smem, geom, list));
    TRY(queue_launch(d, "attention of observed rows, merged", observe_merge, dim3(n_pair, n),
                     THREADS, 0, list));
    TRY(queue_launch(d, "attention of observed rows", observe_sums, dim3(grid_pages(most), n),
                     THREADS, smem, geom, list));
    if (!by_distance) return SAC_OK;
    return queue_launch(d, "attention of observed rows, by distance", observe_slashes,
                        dim3(grid_pages(most), n), THREADS, 0, geom, list);
}

/* ---- Kept selections ---- */

static __global__ void __launch_bounds__(THREADS) keep_kernel(const struct op_lane_keep *list)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct op_lane_keep &op = list[blockIdx.y];
    const uint32_t p = blockIdx.x * THREADS + threadIdx.x;
    const bool bad = op.made && op.made->n_bad, is = p < op.n_kept;
    const uint32_t word = !is ? 0 : bad ? ~0u : op.kept[p];
    if (is && bad) op.kept[p] = word;
    if (is && p < op.n_page) op.mask[p] |= word;
    const bool counts = is && p < op.n_page;
    const uint32_t n =
        block_sum(counts ? (uint32_t)__popc(word & choose_bits(p, op.begin, op.end)) : 0, room);
    if (threadIdx.x > 0) return;
    if (n) atomicAdd(&op.result->n_chosen, n);
    if (bad) atomicOr(&op.result->n_bad, 1u);
}

sac_status cuda_lane_keep(struct cuda_device *d, const struct op_lane_keep *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = choose_larger(most, op[i].n_kept);
    const struct op_lane_keep *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    return queue_launch(d, "kept selections", keep_kernel, dim3((most + THREADS - 1) / THREADS, n),
                        THREADS, 0, list);
}

/* Keeps what was just selected, or everything if something was not finite. */
static __device__ inline void keep_line(const struct op_lane_lines &op, uint32_t *line,
                                        const uint32_t *taken, uint32_t i)
{
    line[i] = op.made->n_bad ? ~0u : taken[i];
}

/* One block for each lane: ORs the kept columns, and the kept diagonals shifted by the row's
 * distance, into the mask. */
static __global__ void __launch_bounds__(THREADS) lines_kernel(const struct op_lane_lines *list)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct op_lane_lines &op = list[blockIdx.x];
    const uint32_t n = op.n_line, words = op.by / PAGE_TOK, bits = op.by % PAGE_TOK;
    uint32_t n_new = 0;
    for (uint32_t i = threadIdx.x; i < n && op.made; i += THREADS) {
        keep_line(op, op.column, op.taken, i);
        keep_line(op, op.slash, op.taken + n, i);
    }
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < op.n_page; p += THREADS) {
        const uint32_t here = p >= words && p - words < n ? op.slash[p - words] : 0;
        const uint32_t below = p > words && p - words - 1 < n ? op.slash[p - words - 1] : 0;
        const uint32_t moved = bits ? here << bits | below >> (PAGE_TOK - bits) : here;
        const uint32_t word = moved | (p < n ? op.column[p] : 0);
        n_new += (uint32_t)__popc(word & ~op.mask[p]);
        op.mask[p] |= word;
    }
    n_new = block_sum(n_new, room);
    if (threadIdx.x > 0) return;
    op.result->n_chosen += n_new;
    if (op.made && op.made->n_bad) op.result->n_bad = 1;
}

sac_status cuda_lane_lines(struct cuda_device *d, const struct op_lane_lines *op, uint32_t n)
{
    const struct op_lane_lines *list = choose_stage(d, op, n);
    if (!list || n == 0) return d->status;
    return queue_launch(d, "columns and diagonals", lines_kernel, n, THREADS, 0, list);
}

/* ---- Past queries ---- */

static __global__ void __launch_bounds__(THREADS) past_kernel(const struct op_past *list)
{
    kernel_begin();
    const struct op_past &op = list[blockIdx.y];
    if (blockIdx.x >= op.n_row) return;
    const float *from = op.q + blockIdx.x * op.q_stride;
    float *to = op.past + (size_t)((op.row0 + blockIdx.x) % op.n_slot) * op.width;
    for (uint32_t i = threadIdx.x; i < op.width; i += THREADS) to[i] = from[i];
}

sac_status cuda_past(struct cuda_device *d, const struct op_past *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = choose_larger(most, op[i].n_row);
    const struct op_past *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    return queue_launch(d, "past queries", past_kernel, dim3(most, n), THREADS, 0, list);
}
