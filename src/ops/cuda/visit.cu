/* visit.cu: pages visited in the order of their votes until enough of the attention has been seen
 * (op_lane_visit), all teams of a list in two launches. The first puts all pages in order, by a
 * block for each team: pages are dealt into bins, equal parts of the range of the votes' bits, so
 * that few are in one even if all are much alike, and a page's place is the number of those in
 * higher bins and of those before it in its own. The second visits in rounds, each as long as all
 * before it together: blocks take pieces of a round as they come and sum up the logits of the
 * pages, products of matrix instructions; the one that is done last looks at all places of the
 * round at which it could stop, side by side and in f64, so that the same pages are visited as on a
 * CPU. Who takes a piece of the next round waits for that look: it is made by a block that runs
 * already. All stop when one finds enough. Where votes tell what is left, they also tell how many
 * pages are enough in any case, the row's own page having no vote: the first round is as long, and
 * the last.
 *
 * Attention reads what is marked afterwards, by lists: a visit reads keys alone, which are read
 * again then, and those of the last round behind the last page for nothing: at most as many as were
 * visited, or FIRST. All are told in n_line. Proofs, and keys that wait for a turned query, have no
 * kernel here. `sum` holds the sums of the page at each place, and behind them those of the own
 * page; `seen` and `guess` are of the rounds that are over; k, v, value and spare are not looked
 * at. */
#include "ops/cuda/attn.cuh"
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"
#include "ops/cuda/depot.cuh"

#define THREADS     256u
#define WARPS       (THREADS / 32)
#define FIRST       256u /* pages of a first round that nothing tells of: it waits for memory longer */
#define PIECE_MOST  (8 * WARPS) /* places that a block takes together, at most; WARPS at least */
#define TEAM_BLOCKS 2u    /* of a multiprocessor, of all teams: who waits is in nobody's way */
#define ORDER       1024u /* threads that put pages in order */
#define ORDER_BITS  12u   /* that a range is divided by, or one less */
#define ORDER_BINS  (5 * ORDER) /* with one for what is below 0 */
#define ORDER_EACH  4u          /* pages whose votes a thread reads together */
#define ORDER_ZERO  0x80000000u /* the key of a vote of 0, which many pages may have */
#define EACH        8u          /* places that a thread looks at */
#define LOOKS       (32 * EACH)

static_assert(FIRST % PIECE_MOST == 0 && PIECE_MOST <= 32 * WARPS, "a piece is of one round");
static_assert(ORDER_BINS > 1u << ORDER_BITS, "each has a bin");

/* ---- Order ---- */

static __device__ void begin_lane(const struct op_lane_visit &op)
{
    struct op_visited *s = op.state;
    for (uint32_t g = threadIdx.x; g < op.group; g += blockDim.x) s->guess[g] = INFINITY;
    if (threadIdx.x > 0) return;
    s->at = s->tally = s->n_order = s->n_last = 0;
    s->plan = FIRST;
    s->done = false;
    s->bad_from = op.result->n_bad ? 0 : UINT32_MAX;
}

/* A page's votes by all lanes of the team that have some. */
static __device__ inline float team_vote(const struct op_lane_visit *op, uint32_t page)
{
    float sum = 0;
    if (op->n_member == 1) return op->vote[page];
    for (uint32_t m = 0; m < op->n_member; m++)
        sum += op[m].result->n_bad ? 0.0f : op[m].vote[page];
    return sum;
}

/* Makes the votes of a lane out of the shares of its pages, by all threads; whether they are finite
 * is in the result. */
static __device__ void make_votes(const struct op_lane_visit *op, const struct op_lane_shares &of)
{
    __shared__ float log[OP_GROUP_MAX];
    if (!choose_make_logs(log, of)) op->result->n_bad = 1;
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < op->n_page; p += ORDER)
        op->vote[p] = choose_page_share(of.at, log, p);
    __syncthreads();
}

/* The keys of what is above 0, from `low` to `high`; below 0 is a bin of its own. */
struct order_range {
    uint32_t low, high;
    bool zeros; /* there are such beside them */
};

static __device__ inline uint32_t order_bin(uint32_t key, const struct order_range &r)
{
    const uint32_t bits = 32 - (uint32_t)__clz((int)(r.high - r.low));
    return key < ORDER_ZERO ? 0 : 1 + ((key - r.low) >> (max(bits, ORDER_BITS) - ORDER_BITS));
}

/* Reads the votes of the n pages, whose keys go to memory, by all threads; returns their range. */
static __device__ struct order_range read_votes(const struct op_lane_visit *op, uint32_t *key,
                                                uint32_t n)
{
    __shared__ struct order_range all;
    struct order_range r = {UINT32_MAX, 0, false};
    if (threadIdx.x == 0) all = r;
    __syncthreads();
    for (uint32_t first = threadIdx.x; first < n; first += ORDER_EACH * ORDER) {
        uint32_t k[ORDER_EACH];
#pragma unroll
        for (uint32_t j = 0; j < ORDER_EACH; j++)
            k[j] = cut_key(team_vote(op, op->begin + min(first + j * ORDER, n - 1)));
#pragma unroll
        for (uint32_t j = 0; j < ORDER_EACH; j++) {
            r.zeros = r.zeros || k[j] == ORDER_ZERO;
            if (k[j] > ORDER_ZERO) r.low = min(r.low, k[j]), r.high = max(r.high, k[j]);
            if (first + j * ORDER < n) key[first + j * ORDER] = k[j];
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

/* Where bins begin, the highest first, from how many are in each. */
static __device__ void place_bins(uint32_t *bin, uint32_t *room)
{
    constexpr uint32_t each = ORDER_BINS / ORDER;
    const uint32_t first = ORDER_BINS - (threadIdx.x + 1) * each;
    uint32_t n = 0, all;
    for (uint32_t k = 0; k < each; k++) n += bin[first + k];
    uint32_t at = block_before(n, room, &all);
    for (uint32_t k = each; k-- > 0;) {
        const uint32_t mine = bin[first + k];
        bin[first + k] = at;
        at += mine;
    }
}

/* The place of page i among those in its bin, whose end is known: those of higher votes are before
 * it, then those of lower numbers. */
static __device__ uint32_t place_in_bin(const uint32_t *key, const struct order_range &range,
                                        const uint32_t *grouped, const uint32_t *bin, uint32_t i)
{
    const uint32_t mine = key[i], b = order_bin(mine, range);
    const uint32_t begin = b + 1 < ORDER_BINS ? bin[b + 1] : 0;
    uint32_t place = begin;
    for (uint32_t k = begin; k < bin[b]; k++) {
        const uint32_t j = grouped[k], other = key[j];
        place += other > mine || (other == mine && j < i);
    }
    return place;
}

/* Votes of 0 have a place of their own, behind all bins but the last: the n of them that are before
 * a page are counted as the block goes through the pages. Returns their number. */
static __device__ uint32_t place_zeros(const struct op_lane_visit *op, const uint32_t *key,
                                       uint32_t n, uint32_t first, uint32_t *room)
{
    uint32_t n_zero = 0, all;
    for (uint32_t i0 = 0; i0 < n; i0 += ORDER) {
        const uint32_t i = i0 + threadIdx.x;
        const bool is = i < n && key[i] == ORDER_ZERO;
        const uint32_t before = block_before(is, room, &all);
        if (is) op->order[first + n_zero + before] = op->begin + i;
        n_zero += all;
    }
    return n_zero;
}

/* The sum of x of the threads of a warp before this one. */
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

/* The same of a block's, and of all. */
static __device__ double votes_before(double x, double *all)
{
    __shared__ double warp_sum[ORDER / 32];
    double before = warp_before(x), sum = 0;
    if (threadIdx.x % 32 == 31) warp_sum[threadIdx.x / 32] = before + x;
    __syncthreads();
    for (uint32_t w = 0; w < ORDER / 32; w++) {
        if (w == threadIdx.x / 32) before += sum;
        sum += warp_sum[w];
    }
    *all = sum;
    return before;
}

/* What share of all votes the pages up to each place have; the first round ends, in whole pieces of
 * `each`, where they have enough. A thread has neighbouring places. */
static __device__ void tell_votes(const struct op_lane_visit *op, uint32_t each)
{
    __shared__ uint32_t n_enough;
    const uint32_t n = op->n_page, n_mine = (n + ORDER - 1) / ORDER;
    const uint32_t first = min(threadIdx.x * n_mine, n), end = min(first + n_mine, n);
    double sum = 0, all;
    if (threadIdx.x == 0) n_enough = n;
    for (uint32_t i = first; i < end; i++) sum += (double)fmaxf(team_vote(op, op->order[i]), 0);
    double up_to = votes_before(sum, &all);
    for (uint32_t i = first; i < end; i++) {
        const bool was_enough = up_to > op->mass * all;
        up_to += (double)fmaxf(team_vote(op, op->order[i]), 0);
        op->told[i] = all > 0 ? (float)(up_to / all) : 0;
        if (!was_enough && up_to > op->mass * all) atomicMin(&n_enough, i + 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) op->state->plan = max((n_enough + each - 1) / each, 1u) * each;
}

/* Pages at the ends come first, then those of the highest votes, then of the lowest numbers. A vote
 * that is below 0 or no number is in the last bin, behind those of 0. */
static __global__ void __launch_bounds__(ORDER)
    order_kernel(const struct choose_folds folds, const struct op_lane_visit *list, uint32_t n_near,
                 uint32_t each)
{
    __shared__ struct op_lane_shares of;
    __shared__ uint32_t room[32];
    uint32_t *const bin = (uint32_t *)kernel_shared(), *const near = bin + ORDER_BINS;
    const bool makes = folds.shares.n > 0;
    const struct op_lane_visit *op = list + blockIdx.x;
    if (makes) choose_copy(&of, folds.shares.list + blockIdx.x);
    kernel_begin();
    __syncthreads();
    if (makes) make_votes(op, of);
    begin_lane(*op);
    if (op->n_member == 0) return; /* of the team before */
    const uint32_t n = op->end - op->begin, n_end = op->begin + op->n_page - op->end;
    uint32_t *const key = n_near ? near : (uint32_t *)op->sum;
    uint32_t *const grouped = n_near ? near + n_near : op->spare;
    for (uint32_t p = threadIdx.x; p < n_end; p += ORDER) op->order[p] = p < op->begin ? p : p + n;
    for (uint32_t b = threadIdx.x; b < ORDER_BINS; b += ORDER) bin[b] = 0;
    const struct order_range range = read_votes(op, key, n);
    for (uint32_t i = threadIdx.x; i < n; i += ORDER)
        if (key[i] != ORDER_ZERO) atomicAdd(&bin[order_bin(key[i], range)], 1u);
    __syncthreads();
    place_bins(bin, room);
    __syncthreads();
    const uint32_t n_above = bin[0]; /* of all bins but the last */
    const uint32_t n_zero = range.zeros ? place_zeros(op, key, n, n_end + n_above, room) : 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += ORDER)
        if (key[i] != ORDER_ZERO) grouped[atomicAdd(&bin[order_bin(key[i], range)], 1u)] = i;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += ORDER) {
        if (key[i] == ORDER_ZERO) continue;
        const uint32_t place = place_in_bin(key, range, grouped, bin, i);
        op->order[n_end + place + (key[i] < ORDER_ZERO ? n_zero : 0)] = op->begin + i;
    }
    __syncthreads();
    if (op->rest == OP_REST_VOTE) tell_votes(op, each);
}

/* ---- Sums ---- */

/* Rows of A of four channels: heads' queries as halves, and what that leaves. */
template <int H> static __device__ __forceinline__ void query_rows(uint32_t a[4], const float w[4])
{
    a[0] = half_pack<H>(w[0], w[1]);
    a[1] = half_rest<H>(w[0], w[1], a[0]);
    a[2] = half_pack<H>(w[2], w[3]);
    a[3] = half_rest<H>(w[2], w[3], a[2]);
}

/* Channels c .. c + 3 of a head's query; nothing behind the group. */
template <uint32_t D>
static __device__ __forceinline__ void query_load(float w[4], const struct op_lane_visit &op,
                                                  uint32_t head, uint32_t c)
{
    const float4 none = make_float4(0, 0, 0, 0);
    const float4 v = head < op.group ? *(const float4 *)(op.q + head * D + c) : none;
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
}

/* The queries of eight heads as rows of instructions, for keys in rows: of four channels of each 32
 * and thread. */
template <uint32_t D> struct visit_query {
    uint4 row[D / 32][2][32];
};

/* By all threads of a block. */
template <int H, uint32_t D>
static __device__ void query_pack(struct visit_query<D> *to, const struct op_lane_visit &op,
                                  uint32_t g0)
{
    __syncthreads(); /* nobody reads those before any more */
    for (uint32_t i = threadIdx.x; i < D * 2; i += THREADS) {
        const uint32_t lane = i % 32, half = i / 32 % 2, b = i / 64;
        float w[4];
        uint32_t a[4];
        query_load<D>(w, op, g0 + lane / 4, b * 32 + lane % 4 * 8 + half * 4);
        query_rows<H>(a, w);
        to->row[b][half][lane] = make_uint4(a[0], a[1], a[2], a[3]);
    }
    __syncthreads();
}

/* Products of eight heads' queries and the keys of a page, by a warp: of head lane / 4, tokens
 * 8 i + 2 (lane % 4) and the one behind it. Lane j of four takes 8 channels of each 32 of a row, so
 * that it reads 16 bytes at once. */
template <int H, uint32_t D>
static __device__ __forceinline__ void dot_rows(float x[4][2], const struct visit_query<D> *query,
                                                const uint8_t *rows)
{
    constexpr uint32_t n_tile = D > 128 ? 2 : 4; /* whose keys are under way together */
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
#pragma unroll
    for (uint32_t first = 0; first < 4; first += n_tile) {
        float c[n_tile][4] = {};
        uint4 key[n_tile][D / 32];
#pragma unroll
        for (uint32_t i = 0; i < n_tile; i++)
#pragma unroll
            for (uint32_t b = 0; b < D / 32; b++)
                key[i][b] =
                    *(const uint4 *)(rows + ((first + i) * 8 + g) * (D * 2) + b * 64 + j * 16);
#pragma unroll
        for (uint32_t b = 0; b < D / 32; b++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const uint4 q = query->row[b][half][lane];
                const uint32_t a[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
                for (uint32_t i = 0; i < n_tile; i++)
                    mma_16816<H>(c[i], a, half ? key[i][b].z : key[i][b].x,
                                 half ? key[i][b].w : key[i][b].y);
            }
#pragma unroll
        for (uint32_t i = 0; i < n_tile; i++)
            x[first + i][0] = c[i][0] + c[i][2], x[first + i][1] = c[i][1] + c[i][3];
    }
}

/* The same of a q8 page: codes are exact as halves, and steps are multiplied into the queries. Lane
 * j takes the bytes of its D / 64 words of a plane, which have channels of all quarters. */
template <uint32_t D>
static __device__ __forceinline__ void dot_codes(float x[4][2], const struct op_lane_visit &op,
                                                 const uint8_t *page, uint32_t g0)
{
    using at = page_at<FORM_Q8, (int)D>;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
    float c[4][4] = {}, base = 0;
#pragma unroll
    for (uint32_t u = 0; u < D / 64; u++) {
        const uint32_t byte = j * (D / 16) + u * 4;
        uint32_t hi[4], mid[4], low[4][2];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *row = page + at::k_low + (i * 8 + g) * (D * 3 / 4) + byte;
            hi[i] = *(const uint32_t *)(page + at::k_hi2 + (i * 8 + g) * (D / 4) + byte);
            mid[i] = *(const uint32_t *)row;
            low[i][0] = *(const uint32_t *)(row + D / 4);
            low[i][1] = *(const uint32_t *)(row + D / 2);
        }
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            const uint32_t channel = s * (D / 4) + byte;
            const uint2 lo = *(const uint2 *)(page + at::k_min + channel * 2);
            const uint2 by = *(const uint2 *)(page + at::k_step + channel * 2);
            const float2 lo01 = half_unpack<HALF_F16>(lo.x), lo23 = half_unpack<HALF_F16>(lo.y);
            const float2 by01 = half_unpack<HALF_F16>(by.x), by23 = half_unpack<HALF_F16>(by.y);
            float w[4];
            uint32_t a[4];
            query_load<D>(w, op, g0 + g, channel);
            base += w[0] * lo01.x + w[1] * lo01.y + w[2] * lo23.x + w[3] * lo23.y;
            w[0] *= by01.x, w[1] *= by01.y, w[2] *= by23.x, w[3] *= by23.y;
            query_rows<HALF_F16>(a, w);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t codes = q8_codes(hi[i], mid[i], low[i][s % 2], (int)s);
                mma_16816<HALF_F16>(c[i], a, q8_pair(codes, 0), q8_pair(codes, 2));
            }
        }
    }
    base += __shfl_xor_sync(~0u, base, 1);
    base += __shfl_xor_sync(~0u, base, 2);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        x[i][0] = base + (c[i][0] + c[i][2]), x[i][1] = base + (c[i][1] + c[i][3]);
}

/* ln of the sum of exp over the first n_tok of a page's logits, of head lane / 4; NaN if one of
 * them is not finite. */
static __device__ inline float page_log_sum(const float x[4][2], uint32_t n_tok)
{
    const uint32_t j = threadIdx.x % 4;
    float most = -INFINITY, sum = 0;
    bool bad = false;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const bool is = i / 2 * 8 + j * 2 + i % 2 < n_tok;
        bad = bad || (is && !isfinite(x[i / 2][i % 2]));
        if (is) most = fmaxf(most, x[i / 2][i % 2]);
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        if (i / 2 * 8 + j * 2 + i % 2 < n_tok) sum += expf(x[i / 2][i % 2] - most);
    if (bad) sum = NAN;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return most + logf(sum);
}

static __device__ inline float visit_logit(const struct op_lane_visit &op, float dot)
{
    const float x = dot * op.scale;
    return op.softcap > 0 ? op.softcap * tanhf(x / op.softcap) : x;
}

/* The log sums of a page's first n_tok tokens for the query heads from g0 on, by a warp; `own`: of
 * rows of 16 bits. Returns whether they are finite. */
template <int F, uint32_t D>
static __device__ bool sum_page(float *out, const struct op_lane_visit &op,
                                const struct visit_query<D> *query, uint32_t g0,
                                const uint8_t *page, bool own)
{
    constexpr int H = F == FORM_BF16 ? HALF_BF16 : HALF_F16;
    const uint32_t lane = threadIdx.x % 32;
    float x[4][2];
    if (F == FORM_Q8 && !own)
        dot_codes<D>(x, op, page, g0);
    else
        dot_rows<H, D>(x, query, page);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) x[i / 2][i % 2] = visit_logit(op, x[i / 2][i % 2]);
    const float sum = page_log_sum(x, own ? op.n_own : PAGE_TOK);
    const bool is_head = g0 + lane / 4 < op.group;
    if (is_head && lane % 4 == 0) out[g0 + lane / 4] = sum;
    return !__any_sync(~0u, is_head && !isfinite(sum));
}

/* What is visited at places from .. end - 1, and the own page before all. */
struct visit_round {
    uint32_t from, end;
};

/* Round i. */
static __device__ inline struct visit_round round_of(const struct op_lane_visit *op, uint32_t i)
{
    const uint32_t first = op->state->plan;
    const struct visit_round r = {i == 0 ? 0 : min(first << (i - 1), op->n_page),
                                  min(first << i, op->n_page)};
    return r;
}

/* The round of the piece that starts at a place. */
static __device__ inline uint32_t round_of_place(const struct op_lane_visit *op, uint32_t place)
{
    uint32_t i = 0;
    while (place >= op->state->plan << i) i++;
    return i;
}

/* Pieces before place `end`: a team without pages has one, for its own. */
static __device__ inline uint32_t count_pieces(uint32_t end, uint32_t each)
{
    return end == 0 ? 1 : (end + each - 1) / each;
}

/* Places from .. end - 1 of a piece and, if `own`, the own page, of one lane and its heads from g0
 * on: a warp takes every WARPS-th, and looks up where all of them are together. */
template <int F, uint32_t D>
static __device__ void sum_places(const struct op_lane_visit &lane, const uint32_t *order,
                                  const struct visit_query<D> *query, uint32_t g0,
                                  const struct visit_round &r, bool own)
{
    using at = page_at<F, (int)D>;
    const uint32_t first = r.from + threadIdx.x / 32, mine = first + threadIdx.x % 32 * WARPS;
    const uint32_t id = mine < r.end ? lane.page[order[mine]] : 0;
    for (uint32_t place = first, k = 0; place < r.end; place += WARPS, k++) {
        const uint8_t *page = place_page(lane.frames, __shfl_sync(~0u, id, (int)k), at::bytes);
        float *out = lane.sum + (size_t)place * lane.group;
        if (!sum_page<F, D>(out, lane, query, g0, page, false) && threadIdx.x % 32 == 0)
            atomicMin(&lane.state->bad_from, place + 1);
    }
    if (!own || threadIdx.x / 32 != WARPS - 1) return;
    float *out = lane.sum + (size_t)lane.n_page * lane.group;
    if (!sum_page<F, D>(out, lane, query, g0, lane.own, true) && threadIdx.x % 32 == 0)
        atomicMin(&lane.state->bad_from, 0u);
}

/* Places of the piece that starts at one, and before the first the own page. `packed`: of whose
 * heads the queries are. */
template <int F, uint32_t D>
static __device__ void sum_piece(const struct op_lane_visit *op, struct visit_query<D> *query,
                                 uint32_t *packed, uint32_t from, uint32_t each)
{
    constexpr int H = F == FORM_BF16 ? HALF_BF16 : HALF_F16;
    const struct visit_round r = {from, min(from + each, op->n_page)};
    for (uint32_t m = 0; m < op->n_member; m++)
        for (uint32_t g0 = 0; g0 < op[m].group; g0 += CHOOSE_HEADS) {
            const uint32_t whose = m * OP_GROUP_MAX + g0;
            if (*packed != whose) query_pack<H, D>(query, op[m], g0);
            *packed = whose;
            sum_places<F, D>(op[m], op->order, query, g0, r, from == 0);
        }
}

/* ---- Looks ---- */

/* Of the looks after EACH visits of each thread of a warp: shares of the query heads. */
struct visit_shares {
    double sum[EACH], least[EACH];
};

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

/* exp(guess) by the pages since the look before, which are n_end places behind the first at least.
 */
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
 * of exp(x - most), so one exponential for each page is enough. `told`: of the team. */
static __device__ void look_head(struct visit_shares *to, const struct op_lane_visit &lane,
                                 const float *told, uint32_t g, const struct visit_round &r,
                                 uint32_t n_end)
{
    const uint32_t first = r.from, end = r.end;
    struct op_visited *s = lane.state;
    const uint32_t t = threadIdx.x % 32, at = first + t * EACH, bad_from = s->bad_from;
    const double own = (double)lane.sum[(size_t)lane.n_page * lane.group + g];
    const double seen = first == 0 ? own : s->seen[g], guess = s->guess[g];
    double x[EACH], e[EACH], most = seen, sum = 0, low = INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const bool is = at + i < end;
        x[i] = is ? (double)lane.sum[(size_t)(at + i) * lane.group + g] : -INFINITY;
        most = fmax(most, x[i]);
        if (is && at + i >= n_end) low = fmin(low, x[i]);
    }
    for (int i = 16; i > 0; i /= 2) most = fmax(most, __shfl_xor_sync(~0u, most, i));
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) sum += e[i] = (double)expf((float)(x[i] - most));
    double all = exp(seen - most) + warp_before(sum), least = fmin(guess, warp_least_before(low));
    const double own_mass = exp(own - most);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t place = at + i;
        if (place >= end) continue;
        all += e[i];
        if (place >= n_end) least = fmin(least, x[i]);
        if (place + 1 >= bad_from) continue;
        double rest;
        if (lane.rest == OP_REST_VOTE)
            rest = told[place] > 0 ? (all - own_mass) * (1 / (double)told[place] - 1) : INFINITY;
        else if (lane.rest == OP_REST_LEAST)
            rest = (lane.n_page - place - 1) * (double)expf((float)(least - most));
        else
            rest = place < n_end
                       ? INFINITY
                       : (lane.n_page - place - 1) * mean_of_last(lane, g, place, n_end, most);
        const double share = 1 / (1 + rest / all);
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
    for (uint32_t m = 0; m < op->n_member; m++) n += op[m].state->bad_from > n_seen ? op->group : 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        all += sum[w][i];
        low = fmin(low, least[w][i]);
    }
    return n == 0 || (op->by_mean ? all / n : low) > op->mass;
}

/* Looks after every visit of the round; returns how many pages are visited then, and whether that
 * is enough. */
static __device__ uint32_t look_round(const struct op_lane_visit *op, const struct visit_round &r,
                                      bool *done)
{
    __shared__ double sum[WARPS][LOOKS], least[WARPS][LOOKS];
    __shared__ uint32_t stop;
    const uint32_t t = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t n_end = op->begin + op->n_page - op->end;
    if (threadIdx.x == 0) stop = UINT32_MAX;
    __syncthreads(); /* a round of no pages reads it, too */
    for (uint32_t first = r.from; first < r.end; first += LOOKS) {
        struct visit_shares mine;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) mine.sum[i] = 0, mine.least[i] = 1;
        for (uint32_t i = warp; i < op->n_member * op->group; i += WARPS)
            look_head(&mine, op[i / op->group], op->told, i % op->group, {first, r.end}, n_end);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            sum[warp][t * EACH + i] = mine.sum[i];
            least[warp][t * EACH + i] = mine.least[i];
        }
        __syncthreads();
        const uint32_t place = first + threadIdx.x;
        if (threadIdx.x < LOOKS && place < r.end && has_enough(op, sum, least, threadIdx.x, place))
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
                                 const struct visit_round &r, uint32_t at)
{
    const uint32_t n = at - r.from, n_end = op->begin + op->n_page - op->end;
    const uint32_t n_step = at - min(at, max(r.from, n_end));
    const size_t keys = g.type_k == SAC_KV_Q8 ? g.v_scale : g.v - g.k;
    for (uint32_t i = threadIdx.x; i < n * op->n_member; i += THREADS)
        op[i / n].mask[op->order[r.from + i % n]] = ~0u;
    for (uint32_t m = threadIdx.x; m < op->n_member; m += THREADS) {
        struct op_lane_result *to = op[m].result; /* rounds are of different blocks */
        atomicAdd(&to->n_line, (r.end - r.from) * (uint32_t)(keys / 64));
        atomicAdd(&to->n_visit, n);
        atomicAdd(&to->n_chosen, n_step * PAGE_TOK);
        if (op[m].state->bad_from <= at) atomicAdd(&to->n_bad, 1u);
    }
    if (threadIdx.x == 0) op->state->at = at;
}

/* Where the next piece that nobody has starts, when the round before its own is over; UINT32_MAX:
 * no more are wanted. n_order counts the pieces that are taken, n_last the rounds that are over. */
static __device__ uint32_t next_piece(const struct op_lane_visit *op, uint32_t each)
{
    __shared__ uint32_t next;
    volatile const struct op_visited *s = op->state;
    __syncthreads(); /* nobody reads the piece before any more */
    if (threadIdx.x == 0) {
        const uint32_t t = atomicAdd(&op->state->n_order, 1u), i = round_of_place(op, t * each);
        const bool is = t < count_pieces(op->n_page, each);
        while (is && s->n_last < i && !s->done)
            ;
        __threadfence(); /* done is told before its round is */
        next = is && !s->done ? t * each : UINT32_MAX;
    }
    __syncthreads();
    __threadfence();
    return next;
}

/* Whether this block has done the last piece of a round, and can read what the others have written
 * for it. `tally` counts the pieces of all rounds that are done. */
static __device__ bool ends_round(const struct op_lane_visit *op, const struct visit_round &r,
                                  uint32_t each)
{
    __shared__ uint32_t n_done;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) n_done = atomicAdd(&op->state->tally, 1u) + 1;
    __syncthreads();
    __threadfence();
    return n_done == count_pieces(r.end, each);
}

template <int F, uint32_t D>
static __global__ void __launch_bounds__(THREADS, D > 128 ? 1 : TEAM_BLOCKS)
    rounds_kernel(const struct page_geom geom, const struct op_lane_visit *list, uint32_t each)
{
    __shared__ struct visit_query<D> query;
    uint32_t packed = UINT32_MAX;
    kernel_begin();
    const struct op_lane_visit *op = list + blockIdx.y;
    if (op->n_member == 0) return;
    for (uint32_t from; (from = next_piece(op, each)) != UINT32_MAX;) {
        const uint32_t i = round_of_place(op, from);
        const struct visit_round r = round_of(op, i);
        sum_piece<F, D>(op, &query, &packed, from, each);
        if (!ends_round(op, r, each)) continue;
        bool done;
        const uint32_t at = look_round(op, r, &done);
        end_round(op, geom, r, at);
        __threadfence();
        __syncthreads();
        if (threadIdx.x > 0) continue;
        if (done) *(volatile bool *)&op->state->done = true;
        __threadfence();
        *(volatile uint32_t *)&op->state->n_last = i + 1;
    }
}

/* Blocks of a team: as many as it has pieces, up to its share of those that a GPU has at once. */
static uint32_t count_blocks(const struct cuda_device *d, uint32_t n_page, uint32_t n_team)
{
    const uint32_t n = choose_reach(n_page) / WARPS + 1;
    const uint32_t most = choose_larger(TEAM_BLOCKS * d->n_sm / n_team, 1);
    return n < most ? n : most;
}

/* Places of a piece: few, so that the first round keeps all blocks of a team busy, and else many,
 * as a block waits for others between two of them. No result depends on it. */
static uint32_t piece_of(uint32_t n_block)
{
    uint32_t each = WARPS;
    while (each < PIECE_MOST && 2 * each * n_block <= FIRST) each *= 2;
    return each;
}

struct visit_launch {
    const struct page_geom *geom;
    const struct op_lane_visit *list;
    uint32_t n, n_page;
};

template <int F, uint32_t D>
static sac_status launch_rounds(struct cuda_device *d, const struct visit_launch *l)
{
    const uint32_t n_block = count_blocks(d, l->n_page, l->n);
    return queue_launch(d, "visits of pages", rounds_kernel<F, D>, dim3(n_block, l->n), THREADS, 0,
                        *l->geom, l->list, piece_of(n_block));
}

template <int F> static sac_status launch_form(struct cuda_device *d, const struct visit_launch *l)
{
    switch (l->geom->head_dim) {
    case 64: return launch_rounds<F, 64>(d, l);
    case 128: return launch_rounds<F, 128>(d, l);
    case 256: return launch_rounds<F, 256>(d, l);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for heads of this size");
    }
}

sac_status cuda_lane_visit(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n)
{
    if (n == 0) return SAC_OK;
    struct visit_launch l = {op->geom, NULL, n, 1};
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].n_segment || op[i].frames.of || op[i].proof)
            return device_fail(d, SAC_ERR_UNSUPPORTED,
                               "visits with proofs, or of keys that wait for a turned query");
        l.n_page = choose_larger(l.n_page, op[i].n_page);
    }
    if (op->group > OP_GROUP_MAX)
        return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for so many heads of a KV head");
    l.list = choose_stage(d, op, n);
    if (!l.list) return d->status;
    const struct choose_folds folds = choose_take_folds(d, op, n);
    const uint32_t n_reach = choose_reach(l.n_page), n_near = n_reach > ORDER_NEAR ? 0 : n_reach;
    TRY(queue_launch(d, "order of visits", order_kernel, n, ORDER,
                     (ORDER_BINS + 2 * n_near) * sizeof(uint32_t), folds, l.list, n_near,
                     piece_of(count_blocks(d, l.n_page, n))));
    TRY(depot_bring_visits(d, op, n));
    switch (attn_form_of(op->geom)) {
    case FORM_F16: return launch_form<FORM_F16>(d, &l);
    case FORM_BF16: return launch_form<FORM_BF16>(d, &l);
    case FORM_Q8: return launch_form<FORM_Q8>(d, &l);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "visits: K and V of different types");
    }
}
