/* visit_order.cu: sorts a team's pages by their votes, descending, and plans the first round of
 * visits (op_lane_visit).
 *
 * One block of 1024 threads has a team. It is a bucket sort on integer keys: bins are equal parts
 * of the keys' range, each bin is divided into as many parts as it has pages, and a page's place in
 * its part is found by comparing it with the few others there. So few are compared even if all
 * votes are much alike. Shared memory holds the bins and, for up to ORDER_NEAR pages, keys, groups
 * and parts; else those are in scratch. Ties go to the lower page, so the order does not depend on
 * atomics.
 *
 * The first round: if votes also tell what is left (OP_REST_VOTE), they tell how many pages suffice
 * in any case, as the own page has no vote, and the first round has that many and is the last.
 * Otherwise it leaves twice the allowed rest, by the votes and by what the own page has beside all
 * others; that mostly suffices, because pages not seen are taken to be like the least one seen,
 * which is less than they are by votes. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"
#include "ops/cuda/visit.cuh"

#define FIRST      256u        /* pages of a first round, at most: more are seldom visited */
#define ORDER      1024u       /* threads of the block */
#define ORDER_BITS 12u         /* bits of a bin's number within the range */
#define ORDER_BINS (5 * ORDER) /* the last bin is for votes below 0 */
#define ORDER_EACH 4u          /* votes of a thread in flight */
#define ORDER_ZERO 0x80000000u /* the key of a vote of 0, which many pages may have */
#define ORDER_OWN  10240u      /* bytes of static shared memory */

static_assert(ORDER_BINS > 1u << ORDER_BITS, "each has a bin");
static_assert(ORDER == 32 * PAGE_TOK, "a warp for each token of a page");

struct order_call {
    struct choose_folds folds;
    const struct op_lane_visit *list;
    uint32_t n_near;  /* pages with their keys in shared memory; 0: none */
    uint32_t n_block; /* visiting blocks of a team */
    uint32_t head_dim;
    sac_kv_type type; /* 16-bit type of own pages */
};

/* ---- Votes ---- */

static __device__ void begin_lane(const struct op_lane_visit &op)
{
    struct op_visited *s = op.state;
    for (uint32_t g = threadIdx.x; g < op.group; g += blockDim.x) s->guess[g] = INFINITY;
    if (threadIdx.x == 0) s->bad_from = op.result->n_bad ? 0 : UINT32_MAX;
}

/* A page's votes, summed over the lanes of the team that have finite ones. */
static __device__ inline float team_vote(const struct op_lane_visit *op, uint32_t page)
{
    float sum = 0;
    if (op->n_member == 1) return op->vote[page];
    for (uint32_t m = 0; m < op->n_member; m++)
        sum += op[m].result->n_bad ? 0.0f : op[m].vote[page];
    return sum;
}

/* The shares from which votes are made, with the heads' logs; `of` NULL: votes are in memory. */
struct order_from {
    const struct op_lane_shares *of;
    float log[OP_GROUP_MAX];
};

/* ---- Order ---- */

/* The range of the keys above 0; below 0 there is one bin. */
struct order_range {
    uint32_t low, high;
    bool zeros; /* some votes are 0 */
};

static __device__ inline uint32_t order_shift(const struct order_range &r)
{
    const uint32_t bits = 32 - (uint32_t)__clz((int)(r.high - r.low));
    return max(bits, ORDER_BITS) - ORDER_BITS;
}

static __device__ inline uint32_t order_bin(uint32_t key, const struct order_range &r)
{
    return key < ORDER_ZERO ? 0 : 1 + ((key - r.low) >> order_shift(r));
}

/* The part of a key, counted from the highest: a bin has as many equal parts as pages. bin
 * [ORDER_BINS]: where each bin begins. */
static __device__ inline uint32_t order_part(uint32_t key, const struct order_range &r,
                                             const uint32_t *bin)
{
    const uint32_t b = order_bin(key, r), first = bin[b];
    if (b == 0) return first;
    const uint32_t shift = order_shift(r), in = (key - r.low) & ((1u << shift) - 1);
    return bin[b - 1] - 1 - (uint32_t)((uint64_t)in * (bin[b - 1] - first) >> shift);
}

/* Reads or makes all votes and stores the keys of the pages between the ends; all threads. Returns
 * the keys' range. */
static __device__ struct order_range read_votes(const struct op_lane_visit *op,
                                                const struct order_from &from, uint32_t *key)
{
    __shared__ struct order_range all;
    const uint32_t n = op->n_page, begin = op->begin, end = op->end;
    struct order_range r = {UINT32_MAX, 0, false};
    if (threadIdx.x == 0) all = r;
    __syncthreads();
    for (uint32_t first = threadIdx.x; first < n; first += ORDER_EACH * ORDER) {
        float vote[ORDER_EACH];
#pragma unroll
        for (uint32_t j = 0; j < ORDER_EACH; j++) {
            const uint32_t p = min(first + j * ORDER, n - 1);
            vote[j] = from.of ? choose_page_share(from.of->at, from.log, p) : team_vote(op, p);
        }
#pragma unroll
        for (uint32_t j = 0; j < ORDER_EACH; j++) {
            const uint32_t p = first + j * ORDER, k = cut_key(vote[j]);
            if (p >= n) continue;
            if (from.of) op->vote[p] = vote[j];
            if (p < begin || p >= end) continue;
            r.zeros = r.zeros || k == ORDER_ZERO;
            if (k > ORDER_ZERO) r.low = min(r.low, k), r.high = max(r.high, k);
            key[p - begin] = k;
        }
    }
    for (int i = 16; i > 0; i /= 2) {
        r.low = min(r.low, __shfl_xor_sync(~0u, r.low, i));
        r.high = max(r.high, __shfl_xor_sync(~0u, r.high, i));
    }
    if (r.zeros) all.zeros = true;
    if (threadIdx.x % 32 == 0) {
        atomicMin(&all.low, r.low);
        atomicMax(&all.high, r.high);
    }
    __syncthreads();
    return all;
}

/* Turns the bins' counts into offsets, the highest bin first; returns the total. */
static __device__ uint32_t place_bins(uint32_t *bin, uint32_t *room)
{
    constexpr uint32_t each = ORDER_BINS / ORDER;
    const uint32_t first = ORDER_BINS - (threadIdx.x + 1) * each;
    uint32_t n = 0, all;
    for (uint32_t k = 0; k < each; k++) n += bin[first + k];
    uint32_t at = block_exclusive_sum(n, room, &all);
    for (uint32_t k = each; k-- > 0;) {
        const uint32_t mine = bin[first + k];
        bin[first + k] = at;
        at += mine;
    }
    return all;
}

/* The same for n parts. */
static __device__ void place_parts(uint32_t *part, uint32_t n, uint32_t *room)
{
    const uint32_t each = (n + ORDER - 1) / ORDER;
    const uint32_t first = min(threadIdx.x * each, n), end = min(first + each, n);
    uint32_t sum = 0, all;
    for (uint32_t k = first; k < end; k++) sum += part[k];
    uint32_t at = block_exclusive_sum(sum, room, &all);
    for (uint32_t k = first; k < end; k++) {
        const uint32_t mine = part[k];
        part[k] = at;
        at += mine;
    }
}

/* The place of page i: pages of its part with higher keys come first, then those with lower
 * numbers. part[] holds the parts' ends by now. */
static __device__ uint32_t place_in_part(const uint32_t *key, const uint32_t *grouped,
                                         const uint32_t *part, uint32_t at, uint32_t i)
{
    const uint32_t mine = key[i], begin = at > 0 ? part[at - 1] : 0;
    uint32_t place = begin;
    for (uint32_t k = begin; k < part[at]; k++) {
        const uint32_t j = grouped[k], other = key[j];
        place += other > mine || (other == mine && j < i);
    }
    return place;
}

/* Places pages with a vote of 0 in the order of their numbers, from `first` on; returns how many
 * there are. */
static __device__ uint32_t place_zeros(const struct op_lane_visit *op, const uint32_t *key,
                                       uint32_t n, uint32_t first, uint32_t *room)
{
    uint32_t n_zero = 0, all;
    for (uint32_t i0 = 0; i0 < n; i0 += ORDER) {
        const uint32_t i = i0 + threadIdx.x;
        const bool is = i < n && key[i] == ORDER_ZERO;
        const uint32_t before = block_exclusive_sum(is, room, &all);
        if (is) op->order[first + n_zero + before] = op->begin + i;
        n_zero += all;
    }
    return n_zero;
}

/* ---- The first round ---- */

/* Exclusive sum over the block in double, and the total. */
static __device__ double block_exclusive_votes(double x, double *all)
{
    __shared__ double warp_sum[ORDER / 32];
    double before = warp_exclusive_sum(x), sum = 0;
    if (threadIdx.x % 32 == 31) warp_sum[threadIdx.x / 32] = before + x;
    __syncthreads();
    for (uint32_t w = 0; w < ORDER / 32; w++) {
        if (w == threadIdx.x / 32) before += sum;
        sum += warp_sum[w];
    }
    *all = sum;
    return before;
}

/* Logits of the own page's tokens for all heads, a token for each warp: logit [PAGE_TOK][group]. */
static __device__ void own_logits(float *logit, const struct op_lane_visit &op,
                                  const struct order_call &c)
{
    const uint32_t t = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint16_t *key = (const uint16_t *)op.own + t * c.head_dim;
    if (t >= op.n_own) return;
#pragma unroll 4
    for (uint32_t g = 0; g < op.group; g++) {
        float dot = 0;
        for (uint32_t i = lane; i < c.head_dim; i += 32)
            dot += op.q[g * c.head_dim + i] * choose_half(key[i], c.type);
        for (int by = 16; by > 0; by /= 2) dot += __shfl_xor_sync(~0u, dot, by);
        if (lane == 0) logit[t * op.group + g] = visit_logit(op, dot);
    }
}

/* The share of a head's attention on pages other than the own one, from the log of their sum. */
static __device__ inline float share_beside(const float *logit, const struct op_lane_visit &op,
                                            uint32_t g, float log)
{
    const uint32_t t = threadIdx.x % 32;
    const float x = t < op.n_own ? logit[t * op.group + g] * 1.44269504f : -INFINITY;
    float own = exp2f(x - (log - CHOOSE_UP));
    for (int by = 16; by > 0; by /= 2) own += __shfl_xor_sync(~0u, own, by);
    return 1 / (1 + own);
}

/* The mean of these over the heads, or the largest. */
static __device__ float share_of_pages(const struct op_lane_visit &op, const struct order_call &c,
                                       const float *log)
{
    __shared__ float logit[PAGE_TOK * OP_GROUP_MAX], beside[OP_GROUP_MAX];
    own_logits(logit, op, c);
    __syncthreads();
    for (uint32_t g = threadIdx.x / 32; g < op.group; g += ORDER / 32) {
        const float x = share_beside(logit, op, g, log[g]);
        if (threadIdx.x % 32 == 0) beside[g] = x;
    }
    __syncthreads();
    float sum = 0, most = 0;
    for (uint32_t g = 0; g < op.group; g++) sum += beside[g], most = fmaxf(most, beside[g]);
    return op.by_mean ? sum / (float)op.group : most;
}

/* Plans the first round, in whole pieces: as many pages as suffice by votes, or most likely do,
 * given that all pages together have `share` of the attention; a lane's votes sum to 1. With
 * OP_REST_VOTE also stores the cumulative votes of each place. A thread has neighbouring places. */
static __device__ void plan_first_round(const struct op_lane_visit *op, float share,
                                        uint32_t n_block)
{
    __shared__ uint32_t n_enough;
    const bool by_vote = op->rest == OP_REST_VOTE;
    const uint32_t n = by_vote ? op->n_page : min(op->n_page, FIRST);
    const uint32_t n_mine = (n + ORDER - 1) / ORDER;
    const uint32_t first = min(threadIdx.x * n_mine, n), end = min(first + n_mine, n);
    double sum = 0, all;
    if (threadIdx.x == 0) n_enough = n;
    for (uint32_t i = first; i < end; i++) sum += (double)fmaxf(team_vote(op, op->order[i]), 0);
    double up_to = block_exclusive_votes(sum, &all);
    const double enough =
        by_vote ? op->mass * all : op->n_member * (1 - 2 * (1 - op->mass) / (double)share);
    for (uint32_t i = first; i < end; i++) {
        const bool was_enough = i > 0 && up_to > enough;
        up_to += (double)fmaxf(team_vote(op, op->order[i]), 0);
        if (by_vote) op->told[i] = all > 0 ? (float)(up_to / all) : 0;
        if (!was_enough && up_to > enough) atomicMin(&n_enough, i + 1);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    const uint32_t least = by_vote ? 1 : min(n_block, FIRST / VISIT_WARPS);
    op->state->plan = max((n_enough + VISIT_WARPS - 1) / VISIT_WARPS, least) * VISIT_WARPS;
    open_round(op, 0, n_block);
}

/* The order: pages at the ends first, then by descending vote, then by number. Negative and NaN
 * votes are in the last bin, after those of 0. */
static __global__ void __launch_bounds__(ORDER) order_kernel(const struct order_call c)
{
    __shared__ struct op_lane_shares of;
    __shared__ uint32_t room[32];
    __shared__ struct order_from from;
    uint32_t *const bin = (uint32_t *)kernel_shared(), *const near = bin + ORDER_BINS;
    const bool makes = c.folds.shares.n > 0;
    const struct op_lane_visit *op = c.list + blockIdx.x;
    if (makes) choose_copy(&of, c.folds.shares.list + blockIdx.x);
    if (threadIdx.x == 0) from.of = makes ? &of : NULL;
    kernel_begin();
    __syncthreads();
    if (makes && !choose_make_logs(from.log, of)) op->result->n_bad = 1;
    __syncthreads();
    begin_lane(*op);
    if (op->n_member == 0) return; /* a member: its leader's block sorts */
    const uint32_t n = op->end - op->begin, n_end = op->begin + op->n_page - op->end;
    uint32_t *const key = c.n_near ? near : (uint32_t *)op->sum;
    uint32_t *const grouped = c.n_near ? key + c.n_near : op->spare;
    uint32_t *const part = c.n_near ? grouped + c.n_near : (uint32_t *)op->told;
    for (uint32_t p = threadIdx.x; p < n_end; p += ORDER) op->order[p] = p < op->begin ? p : p + n;
    for (uint32_t b = threadIdx.x; b < ORDER_BINS; b += ORDER) bin[b] = 0;
    for (uint32_t i = threadIdx.x; i < n; i += ORDER) part[i] = 0;
    const struct order_range range = read_votes(op, from, key);
    for (uint32_t i = threadIdx.x; i < n; i += ORDER)
        if (key[i] != ORDER_ZERO) atomicAdd(&bin[order_bin(key[i], range)], 1u);
    __syncthreads();
    const uint32_t n_part = place_bins(bin, room);
    __syncthreads();
    const uint32_t n_above = bin[0]; /* in all bins but the last */
    const uint32_t n_zero = range.zeros ? place_zeros(op, key, n, n_end + n_above, room) : 0;
    for (uint32_t i = threadIdx.x; i < n; i += ORDER)
        if (key[i] != ORDER_ZERO) atomicAdd(&part[order_part(key[i], range, bin)], 1u);
    __syncthreads();
    place_parts(part, n_part, room);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += ORDER)
        if (key[i] != ORDER_ZERO) grouped[atomicAdd(&part[order_part(key[i], range, bin)], 1u)] = i;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += ORDER) {
        if (key[i] == ORDER_ZERO) continue;
        const uint32_t at = order_part(key[i], range, bin);
        const uint32_t place = place_in_part(key, grouped, part, at, i);
        op->order[n_end + place + (key[i] < ORDER_ZERO ? n_zero : 0)] = op->begin + i;
    }
    __syncthreads();
    plan_first_round(op, makes ? share_of_pages(*op, c, from.log) : 1, c.n_block);
}

static size_t order_bytes(uint32_t n_near)
{
    return (ORDER_BINS + 3 * (size_t)n_near) * sizeof(uint32_t);
}

sac_status visit_put_in_order(struct cuda_device *d, const struct visit_order *v,
                              const struct choose_folds &folds, const struct page_geom *geom)
{
    const uint32_t n_reach = choose_round_up(v->n_page);
    const bool fits = n_reach <= ORDER_NEAR && order_bytes(n_reach) + ORDER_OWN <= d->smem_max;
    const uint32_t n_near = fits ? n_reach : 0;
    const struct order_call c = {
        folds,      v->list,        n_near,
        v->n_block, geom->head_dim, geom->type_k == SAC_KV_BF16 ? SAC_KV_BF16 : SAC_KV_F16};
    return queue_launch(d, "order of visits", order_kernel, v->n, ORDER, order_bytes(n_near), c);
}
