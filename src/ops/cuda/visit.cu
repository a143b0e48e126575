/* visit.cu: pages visited in the order of their votes until enough of the attention has been seen
 * (op_lane_visit), all teams of a list in a fixed row of launches. The first puts all pages in order:
 * a page's place is the number of those before it. Then come rounds, each as long as all before it
 * together: many blocks sum up the logits of a round's pages, and the last one of a team looks at
 * all places of the round at which it could stop, side by side and in f64, so that the same pages
 * are visited as on a CPU. A team that is done has rounds of nothing.
 *
 * Attention reads what is marked afterwards, by lists: a visit reads keys alone, which are read
 * again then, and those of the last round behind the last page for nothing: at most as many as were
 * visited, or FIRST. All are told in n_line. Proofs, and keys that wait for a turned query, have no
 * kernel here. `sum` holds the sums of the page at each place, and behind them those of the own page;
 * `seen` and `guess` are of the rounds that are over; k, v, value and spare are not looked at. */
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"

#define THREADS 256u
#define WARPS   (THREADS / 32)
#define FIRST   64u /* pages of the first round */
#define EACH    4u  /* places that a thread looks at */
#define LOOKS   (32 * EACH)

/* ---- Order ---- */

static __device__ void begin_lane(const struct op_lane_visit &op)
{
    struct op_visited *s = op.state;
    for (uint32_t g = threadIdx.x; g < op.group; g += THREADS) s->guess[g] = INFINITY;
    if (threadIdx.x > 0) return;
    s->at = s->tally = s->done = 0;
    s->bad_from = op.result->n_bad ? 0 : UINT32_MAX;
}

/* A page's votes by all lanes of the team that have some, as a number to compare. */
static __device__ inline uint32_t team_key(const struct op_lane_visit *op, uint32_t page)
{
    float sum = 0;
    if (op->n_member == 1) return cut_key(op->vote[page]);
    for (uint32_t m = 0; m < op->n_member; m++)
        sum += op[m].result->n_bad ? 0.0f : op[m].vote[page];
    return cut_key(sum);
}

/* Pages at the ends come first, then those of the highest votes, then of the lowest numbers. */
static __global__ void __launch_bounds__(THREADS) order_kernel(const struct op_lane_visit *list)
{
    kernel_begin();
    __shared__ uint32_t key[THREADS];
    const struct op_lane_visit *op = list + blockIdx.y;
    if (blockIdx.x == 0) begin_lane(*op);
    if (op->n_member == 0) return; /* of the team before */
    const uint32_t p = blockIdx.x * THREADS + threadIdx.x, n_end = op->begin + op->n_page - op->end;
    const bool open = p >= op->begin && p < op->end;
    const uint32_t mine = open ? team_key(op, p) : 0;
    uint32_t rank = n_end;
    for (uint32_t first = op->begin; first < op->end; first += THREADS) {
        const uint32_t n = min(THREADS, op->end - first);
        __syncthreads();
        if (threadIdx.x < n) key[threadIdx.x] = team_key(op, first + threadIdx.x);
        __syncthreads();
        for (uint32_t i = 0; open && i < n; i++)
            rank += key[i] > mine || (key[i] == mine && first + i < p);
    }
    if (open)
        op->order[rank] = p;
    else if (p < op->n_page)
        op->order[p < op->begin ? p : op->begin + p - op->end] = p;
}

/* ---- Sums ---- */

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

/* Those of a page's first n_tok tokens for each query head, by a warp; a lane takes a token. Returns
 * whether they are finite. */
static __device__ bool sum_page(float *out, const struct op_lane_visit &op,
                                const struct page_geom &g, const uint8_t *page, uint32_t n_tok)
{
    const uint32_t t = threadIdx.x % 32;
    const struct choose_query of = {op.q, op.group, op.scale, op.softcap};
    bool finite = true;
    for (uint32_t g0 = 0; g0 < op.group; g0 += CHOOSE_HEADS) {
        float x[CHOOSE_HEADS] = {};
        if (t < n_tok) choose_logits(x, of, g, page, t, g0);
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
            if (g0 + i >= op.group) continue;
            const float sum = warp_log_sum(x[i], t < n_tok);
            if (t == 0) out[g0 + i] = sum;
            finite = finite && isfinite(sum);
        }
    }
    return finite;
}

/* What is visited at places from .. end - 1, and the own page before all. */
struct visit_round {
    uint32_t from, end;
};

static __device__ void sum_one(const struct op_lane_visit &lane, const struct page_geom &g,
                               const uint32_t *order, uint32_t place)
{
    struct page_geom tail = g; /* an own page is rows of 16 bits */
    tail.k = 0;
    if (g.type_k == SAC_KV_Q8) tail.type_k = SAC_KV_F16;
    float *out = lane.sum + (size_t)place * lane.group;
    const bool own = place == lane.n_page;
    const uint8_t *page =
        own ? lane.own : place_page(lane.frames, lane.page[order[place]], g.bytes);
    if (sum_page(out, lane, own ? tail : g, page, own ? lane.n_own : PAGE_TOK)) return;
    if (threadIdx.x % 32 == 0) atomicMin(&lane.state->bad_from, own ? 0 : place + 1);
}

/* A warp takes one page of one lane at a time. */
static __device__ void sum_round(const struct op_lane_visit *op, const struct page_geom &g,
                                 const struct visit_round &r)
{
    const uint32_t n_own = r.from == 0, n = r.end - r.from + n_own;
    for (uint32_t i = blockIdx.x * WARPS + threadIdx.x / 32; i < n * op->n_member;
         i += gridDim.x * WARPS) {
        const uint32_t k = i % n;
        sum_one(op[i / n], g, op->order, k < n_own ? op->n_page : r.from + k - n_own);
    }
}

/* ---- Looks ---- */

/* Of the looks after EACH visits of each thread of a warp: shares of the query heads. */
struct visit_shares {
    double sum[EACH], least[EACH];
};

static __device__ inline double warp_before(double x)
{
    const uint32_t t = threadIdx.x % 32;
    double up_to = x;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const double other = __shfl_up_sync(~0u, up_to, by);
        if (t >= by) up_to += other;
    }
    return up_to - x;
}

/* The least x of the threads before this one. */
static __device__ inline double warp_least_before(double x)
{
    const uint32_t t = threadIdx.x % 32;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const double other = __shfl_up_sync(~0u, x, by);
        if (t >= by) x = fmin(x, other);
    }
    const double before = __shfl_up_sync(~0u, x, 1);
    return t == 0 ? INFINITY : before;
}

/* exp(guess) by the pages since the look before, which are n_end places behind the first at least. */
static __device__ inline double mean_of_last(const struct op_lane_visit &lane, uint32_t g,
                                             uint32_t place, uint32_t n_end, double most)
{
    const uint32_t n = (place - n_end) % lane.step + 1;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)lane.sum[(size_t)(place - i) * lane.group + g] - most);
    return sum / n;
}

/* Adds the shares of one query head after each of LOOKS visits from `first` on; by a warp. Sums are
 * of exp(x - most), so one exponential for each page is enough. */
static __device__ void look_head(struct visit_shares *to, const struct op_lane_visit &lane,
                                 uint32_t g, uint32_t first, uint32_t end, uint32_t n_end)
{
    struct op_visited *s = lane.state;
    const uint32_t t = threadIdx.x % 32, at = first + t * EACH, bad_from = s->bad_from;
    const double own = (double)lane.sum[(size_t)lane.n_page * lane.group + g];
    const double seen = first == 0 ? own : s->seen[g], guess = s->guess[g];
    double x[EACH], most = seen, sum = 0, low = INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const bool is = at + i < end;
        x[i] = is ? (double)lane.sum[(size_t)(at + i) * lane.group + g] : -INFINITY;
        most = fmax(most, x[i]);
        if (is && at + i >= n_end) low = fmin(low, x[i]);
    }
    for (int i = 16; i > 0; i /= 2) most = fmax(most, __shfl_xor_sync(~0u, most, i));
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) sum += exp(x[i] - most);
    double all = exp(seen - most) + warp_before(sum), least = fmin(guess, warp_least_before(low));
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t place = at + i;
        if (place >= end) continue;
        all += exp(x[i] - most);
        if (place >= n_end) least = fmin(least, x[i]);
        if (place + 1 >= bad_from) continue;
        const double page = !lane.by_last    ? exp(least - most)
                            : place >= n_end ? mean_of_last(lane, g, place, n_end, most)
                                             : INFINITY;
        const double share = 1 / (1 + (lane.n_page - place - 1) * page / all);
        to->sum[i] += share;
        to->least[i] = fmin(to->least[i], share);
    }
    __syncwarp();
    if (t < 31) return;
    s->seen[g] = most + log(all);
    s->guess[g] = least;
}

/* Whether the look after the visit at a place finds enough; there is one after each step. */
static __device__ bool has_enough(const struct op_lane_visit *op, const double (*sum)[LOOKS],
                                  const double (*least)[LOOKS], uint32_t i, uint32_t place)
{
    const uint32_t n_end = op->begin + op->n_page - op->end, n_seen = place + 1;
    if (n_seen == op->n_page) return true;
    if (n_seen < n_end || (n_seen - n_end) % op->step > 0) return false;
    uint32_t n = 0;
    double all = 0, low = 1;
    for (uint32_t m = 0; m < op->n_member; m++)
        n += op[m].state->bad_from > n_seen ? op->group : 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        all += sum[w][i];
        low = fmin(low, least[w][i]);
    }
    return n == 0 || (op->by_mean ? all / n : low) > op->mass;
}

/* Looks after every visit of the round; returns how many pages are visited then, and whether that is
 * enough. */
static __device__ uint32_t look_round(const struct op_lane_visit *op, const struct visit_round &r,
                                      bool *done)
{
    __shared__ double sum[WARPS][LOOKS], least[WARPS][LOOKS];
    __shared__ uint32_t stop;
    const uint32_t t = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t n_end = op->begin + op->n_page - op->end;
    if (threadIdx.x == 0) stop = UINT32_MAX;
    for (uint32_t first = r.from; first < r.end; first += LOOKS) {
        struct visit_shares mine;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) mine.sum[i] = 0, mine.least[i] = 1;
        for (uint32_t i = warp; i < op->n_member * op->group; i += WARPS)
            look_head(&mine, op[i / op->group], i % op->group, first, r.end, n_end);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            sum[warp][t * EACH + i] = mine.sum[i];
            least[warp][t * EACH + i] = mine.least[i];
        }
        __syncthreads();
        const uint32_t place = first + threadIdx.x;
        if (threadIdx.x < LOOKS && place < r.end &&
            has_enough(op, sum, least, threadIdx.x, place))
            atomicMin(&stop, place + 1);
        __syncthreads();
        if (stop != UINT32_MAX) break;
    }
    *done = stop != UINT32_MAX;
    return *done ? stop : r.end;
}

/* ---- A round ---- */

/* Pages at places from .. at - 1 are visited. */
static __device__ void end_round(const struct op_lane_visit *op, const struct page_geom &g,
                                 const struct visit_round &r, uint32_t at, bool done)
{
    const uint32_t n = at - r.from, n_end = op->begin + op->n_page - op->end;
    const uint32_t n_step = at - min(at, max(r.from, n_end));
    const size_t keys = g.type_k == SAC_KV_Q8 ? g.v_scale : g.v - g.k;
    for (uint32_t i = threadIdx.x; i < n * op->n_member; i += THREADS)
        op[i / n].mask[op->order[r.from + i % n]] = ~0u;
    for (uint32_t m = threadIdx.x; m < op->n_member; m += THREADS) {
        struct op_lane_result *to = op[m].result;
        to->n_line += (r.end - r.from) * (uint32_t)(keys / 64);
        to->n_visit += n;
        to->n_chosen += n_step * PAGE_TOK;
        if (op[m].state->bad_from <= at) to->n_bad++;
    }
    if (threadIdx.x > 0) return;
    op->state->at = at;
    op->state->done = done;
}

static __global__ void __launch_bounds__(THREADS)
    round_kernel(const struct page_geom geom, const struct op_lane_visit *list, uint32_t from,
                 uint32_t end)
{
    kernel_begin();
    const struct op_lane_visit *op = list + blockIdx.y;
    if (op->n_member == 0 || op->state->done) return;
    const struct visit_round r = {min(from, op->n_page), min(end, op->n_page)};
    sum_round(op, geom, r);
    if (!block_is_last(&op->state->tally, gridDim.x)) return;
    bool done;
    const uint32_t at = look_round(op, r, &done);
    end_round(op, geom, r, at, done);
}

/* Blocks of a team: enough for one page a warp, up to those that a GPU has at once. */
static uint32_t count_blocks(uint32_t n_page, uint32_t n_member)
{
    const uint32_t n = (n_page * n_member + WARPS) / WARPS;
    return n < 256 ? n : 256;
}

sac_status cuda_lane_visit(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n)
{
    uint32_t most = 1, n_member = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].n_segment || op[i].frames.of || op[i].proof)
            return device_fail(d, SAC_ERR_UNSUPPORTED,
                               "visits with proofs, or of keys that wait for a turned query");
        most = op[i].n_page > most ? op[i].n_page : most;
        n_member = op[i].n_member > n_member ? op[i].n_member : n_member;
    }
    if (n > 0 && op->group > OP_GROUP_MAX)
        return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for so many heads of a KV head");
    const struct op_lane_visit *list = choose_stage(d, op, n);
    if (!list || n == 0) return d->status;
    queue_launch(d, "order of visits", order_kernel, dim3((most + THREADS - 1) / THREADS, n), THREADS,
                 0, list);
    for (uint32_t from = 0, end = FIRST; from < most; from = end, end *= 2)
        queue_launch(d, "visits of pages", round_kernel, dim3(count_blocks(end - from, n_member), n),
                     THREADS, 0, *op->geom, list, from, end);
    return d->status;
}
