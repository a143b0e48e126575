/* visit.cu: pages visited in the order of their votes until enough of the attention has been seen
 * (op_lane_visit). A block leads a team. The logits of CHUNK pages are summed up at once, and then
 * the pages are looked at one after another, in f64 as on a CPU, so that the same are marked.
 *
 * Attention reads what is marked afterwards, by lists: a visit reads keys alone, which are read
 * again then, and those of a last chunk behind its last page for nothing. All are told in n_line.
 * Proofs, and keys that wait for a turned query, have no kernel here. `k` is a room for the sums of
 * a chunk; v, value, order and spare are not looked at. */
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"

#define THREADS 512u
#define WARPS   (THREADS / 32)
#define CHUNK   32u /* pages; `k` has room for the sums of OP_GROUP_MAX heads of each */

struct visit_walk { /* of a team, in shared memory */
    uint32_t at, look, n_last; /* as in struct op_visited */
    bool done;
    uint32_t page[CHUNK]; /* visited next, in order */
};

static __device__ inline bool takes_part(const struct op_lane_visit &op)
{
    return op.result->n_bad == 0;
}

static __device__ inline double log_add(double a, double b)
{
    const double hi = a > b ? a : b, lo = a > b ? b : a; /* a NaN comes through */
    return lo == -INFINITY ? hi : hi + log1p(exp(lo - hi));
}

/* ---- Sums of a page ---- */

/* ln of the sum of exp over the lanes' logits; NaN if one of them is not finite. */
static __device__ inline float warp_log_sum(float x, bool is_token)
{
    const bool bad = __any_sync(~0u, is_token && !isfinite(x));
    float most = is_token ? x : -INFINITY;
    for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    float sum = is_token ? expf(x - most) : 0.0f;
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    return bad ? NAN : most + logf(sum);
}

/* Those of a page's first n_tok tokens for each query head, by a warp; a lane takes a token. */
static __device__ void sum_page(float *out, const struct op_lane_visit &op,
                                const struct page_geom &g, const uint8_t *page, uint32_t n_tok)
{
    const uint32_t t = threadIdx.x % 32;
    const struct choose_query of = {op.q, op.group, op.scale, op.softcap};
    for (uint32_t g0 = 0; g0 < op.group; g0 += CHOOSE_HEADS) {
        float x[CHOOSE_HEADS] = {};
        if (t < n_tok) choose_logits(x, of, g, page, t, g0);
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
            if (g0 + i >= op.group) continue;
            const float sum = warp_log_sum(x[i], t < n_tok);
            if (t == 0) out[g0 + i] = sum;
        }
    }
}

/* Of n pages of the walk for all lanes of the team. */
static __device__ void sum_chunk(const struct op_lane_visit *op, const struct page_geom &g,
                                 const struct visit_walk &walk, uint32_t n)
{
    for (uint32_t i = threadIdx.x / 32; i < n * op->n_member; i += WARPS) {
        const struct op_lane_visit &lane = op[i / n];
        const uint8_t *page = place_page(lane.frames, lane.page[walk.page[i % n]], g.bytes);
        sum_page(lane.k + i % n * lane.group, lane, g, page, PAGE_TOK);
    }
    __syncthreads();
}

/* ---- Looks: by the first warp, a lane for a query head ---- */

/* One more page of the chunk, or the own page, is seen. */
static __device__ void see(const struct op_lane_visit *op, uint32_t in_chunk, bool is_step)
{
    for (uint32_t i = threadIdx.x; i < op->n_member * op->group; i += 32) {
        const struct op_lane_visit &lane = op[i / op->group];
        const uint32_t g = i % op->group;
        struct op_visited *s = lane.state;
        if (!takes_part(lane)) continue;
        const double lse = (double)lane.k[in_chunk * op->group + g];
        s->seen[g] = log_add(s->seen[g], lse);
        if (!isfinite(s->seen[g])) {
            atomicOr(&lane.result->n_bad, 1u);
        } else if (is_step) {
            s->step[g] = log_add(s->step[g], lse);
            if (!op->by_last) s->guess[g] = fmin(s->guess[g], lse);
        }
    }
    __syncwarp();
}

/* Whether the share seen is enough when n_left pages are left. */
static __device__ bool has_enough(const struct op_lane_visit *op, uint32_t n_left)
{
    double sum = 0, least = 1;
    uint32_t n = 0;
    for (uint32_t i = threadIdx.x; i < op->n_member * op->group; i += 32) {
        const struct op_lane_visit &lane = op[i / op->group];
        const uint32_t g = i % op->group;
        if (!takes_part(lane)) continue;
        const double p = 1 / (1 + n_left * exp(lane.state->guess[g] - lane.state->seen[g]));
        sum += p;
        least = fmin(least, p);
        n++;
    }
    for (int i = 16; i > 0; i /= 2) {
        sum += __shfl_xor_sync(~0u, sum, i);
        least = fmin(least, __shfl_xor_sync(~0u, least, i));
        n += __shfl_xor_sync(~0u, n, i);
    }
    return n_left == 0 || n == 0 || (op->by_mean ? sum / n : least) > op->mass;
}

static __device__ void look(struct visit_walk *walk, const struct op_lane_visit *op)
{
    const uint32_t n_last = walk->n_last, n_left = op->n_page - walk->at;
    for (uint32_t i = threadIdx.x; i < op->n_member * op->group; i += 32) {
        struct op_visited *s = op[i / op->group].state;
        const uint32_t g = i % op->group;
        if (op->by_last && n_last) s->guess[g] = s->step[g] - log((double)n_last);
        s->step[g] = -INFINITY;
    }
    __syncwarp();
    const bool done = has_enough(op, n_left);
    if (threadIdx.x == 0) {
        walk->done = done;
        walk->n_last = min(op->step, n_left);
        walk->look = walk->at + walk->n_last;
    }
    __syncwarp();
}

/* Goes through n pages that are summed up; returns how many of them are visited. All threads. */
static __device__ uint32_t go_through(struct visit_walk *walk, const struct op_lane_visit *op,
                                      uint32_t n, bool is_step)
{
    const uint32_t from = walk->at;
    __syncthreads();
    for (uint32_t i = 0; threadIdx.x < 32 && i < n && !walk->done; i++) {
        see(op, i, is_step);
        if (threadIdx.x == 0) walk->at++;
        __syncwarp();
        if (is_step && walk->at == walk->look) look(walk, op);
    }
    __syncthreads();
    return walk->at - from;
}

/* ---- A team ---- */

/* Of n pages summed up, n_visited are read; none of the n comes again. */
static __device__ void mark(const struct op_lane_visit *op, const struct visit_walk &walk,
                            uint32_t n, uint32_t n_visited)
{
    for (uint32_t i = threadIdx.x; i < n * op->n_member; i += THREADS) {
        const uint32_t page = walk.page[i % n];
        if (i < n) op->vote[page] = -1;
        if (i % n < n_visited) op[i / n].mask[page] = ~0u;
    }
    __syncthreads();
}

static __device__ void count(const struct op_lane_visit *op, const struct page_geom &g, uint32_t n,
                             uint32_t n_visited, bool is_step)
{
    const size_t keys = g.type_k == SAC_KV_Q8 ? g.v_scale : g.v - g.k;
    for (uint32_t m = threadIdx.x; m < op->n_member; m += THREADS) {
        struct op_lane_result *r = op[m].result;
        r->n_line += n * (uint32_t)(keys / 64);
        if (!takes_part(op[m])) continue;
        r->n_visit += n_visited;
        r->n_chosen += is_step ? n_visited * PAGE_TOK : 0;
    }
}

/* Nothing is seen but the own page; votes of all lanes are in those of the first. */
static __device__ void begin_team(struct visit_walk *walk, const struct op_lane_visit *op,
                                  const struct page_geom &g)
{
    struct page_geom tail = g; /* an own page is rows of 16 bits */
    tail.k = 0;
    if (g.type_k == SAC_KV_Q8) tail.type_k = SAC_KV_F16;
    for (uint32_t i = threadIdx.x; i < op->n_member * op->group; i += THREADS) {
        struct op_visited *s = op[i / op->group].state;
        s->seen[i % op->group] = s->step[i % op->group] = -INFINITY;
        s->guess[i % op->group] = INFINITY;
    }
    for (uint32_t m = threadIdx.x / 32; m < op->n_member; m += WARPS)
        sum_page(op[m].k, op[m], tail, op[m].own, op[m].n_own);
    for (uint32_t p = threadIdx.x; p < op->n_page && op->n_member > 1; p += THREADS) {
        float sum = 0;
        for (uint32_t m = 0; m < op->n_member; m++)
            sum += takes_part(op[m]) ? op[m].vote[p] : 0.0f;
        op->vote[p] = sum;
    }
    if (threadIdx.x == 0) walk->at = walk->look = walk->n_last = walk->done = 0;
    __syncthreads();
    if (threadIdx.x < 32) see(op, 0, false);
    __syncthreads();
}

/* Pages at the ends, in any case; then the first look. */
static __device__ void visit_ends(struct visit_walk *walk, const struct op_lane_visit *op,
                                  const struct page_geom &g)
{
    const uint32_t n_end = op->begin + op->n_page - op->end;
    for (uint32_t first = 0, n; first < n_end; first += n) {
        n = min(CHUNK, n_end - first);
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            const uint32_t k = first + i;
            walk->page[i] = k < op->begin ? k : op->end + k - op->begin;
        }
        __syncthreads();
        sum_chunk(op, g, *walk, n);
        const uint32_t n_visited = go_through(walk, op, n, false);
        mark(op, *walk, n, n_visited);
        count(op, g, n, n_visited, false);
        __syncthreads();
    }
    if (threadIdx.x < 32) look(walk, op);
    __syncthreads();
}

/* The n best pages that are left, by vote, then by number. */
static __device__ void find_best(struct visit_walk *walk, const struct op_lane_visit *op,
                                 uint32_t n, uint32_t *bin, uint32_t *room)
{
    __shared__ uint32_t found[CHUNK];
    const struct op_cut cut = cut_find(op->vote, op->n_page, n, bin, room);
    uint32_t n_found = 0, n_tie = 0, all;
    for (uint32_t first = 0; first < op->n_page; first += THREADS) {
        const uint32_t p = first + threadIdx.x, key = p < op->n_page ? cut_key(op->vote[p]) : 0;
        const bool tie = p < op->n_page && key == cut.key;
        const uint32_t before = n_tie + block_before(tie, room, &all);
        n_tie += all;
        const bool taken = p < op->n_page && (key > cut.key || (tie && before < cut.n_tie));
        const uint32_t at = n_found + block_before(taken, room, &all);
        n_found += all;
        if (taken) found[at] = p;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint32_t rank = 0; /* found are ascending, so of equal votes the first comes first */
        for (uint32_t j = 0; j < n; j++) {
            const uint32_t a = cut_key(op->vote[found[j]]), b = cut_key(op->vote[found[i]]);
            rank += a > b || (a == b && j < i);
        }
        walk->page[rank] = found[i];
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS)
    visit_kernel(const struct page_geom geom, const struct op_lane_visit *list)
{
    kernel_begin();
    __shared__ struct visit_walk walk;
    __shared__ uint32_t bin[CUT_BINS], room[32];
    const struct op_lane_visit *op = list + blockIdx.x;
    if (op->n_member == 0) return; /* of the team before */
    begin_team(&walk, op, geom);
    visit_ends(&walk, op, geom);
    while (!walk.done) {
        const uint32_t n = min(CHUNK, op->n_page - walk.at);
        find_best(&walk, op, n, bin, room);
        sum_chunk(op, geom, walk, n);
        const uint32_t n_visited = go_through(&walk, op, n, true);
        mark(op, walk, n, n_visited);
        count(op, geom, n, n_visited, true);
        __syncthreads();
    }
}

sac_status cuda_lane_visit(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (op[i].n_segment || op[i].frames.of || op[i].proof)
            return device_fail(d, SAC_ERR_UNSUPPORTED,
                               "visits with proofs, or of keys that wait for a turned query");
    if (n > 0 && op->group > OP_GROUP_MAX)
        return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for so many heads of a KV head");
    const struct op_lane_visit *list = choose_stage(d, op, n);
    if (!list || n == 0) return d->status;
    return queue_launch(d, "visits of pages", visit_kernel, n, THREADS, 0, *op->geom, list);
}
