/* visit.cu: visits pages in the order of their votes until enough of the attention has been seen
 * (op_lane_visit, for psa).
 *
 * Two launches for all teams of a list: visit_order.cu sorts the pages, rounds_kernel visits them
 * in rounds, each as long as all before it together. In a round, blocks claim pieces and compute
 * for each page and query head ln sum exp(logit) by m16n8k16, with query heads and their residuals
 * as the rows; keys are read from global memory directly, as each is used once. The block that
 * completes a round evaluates the stopping rule after every page of it, in f64 and side by side, so
 * the pages visited are those of a CPU, and opens the next round or ends the team. Each team has
 * blocks of its own that wait for its rounds; when it has finished, they help other teams, so that
 * few teams that read much get the whole GPU. About as many blocks are launched as
 * are resident, so waiting ones keep none out.
 *
 * Visits read keys only; attention reads the marked pages again. Keys of a round after the last
 * page taken were read in vain: at most as many as were visited, or as the first round has. All are
 * counted in n_line. Proofs, and keys behind segments with an offset, are refused. Scratch of the
 * op: `sum` has the log sums of the page at each place and then of the own page, `seen` and `guess`
 * belong to finished rounds; k, v, value and spare are not used. */
#include "ops/cuda/attn.cuh"
#include "ops/cuda/marked.cuh"
#include "ops/cuda/offload.cuh"
#include "ops/cuda/visit.cuh"

#define WARPS       VISIT_WARPS
#define THREADS     (32 * WARPS)
#define TEAM_BLOCKS 2u /* resident blocks of a multiprocessor, of all teams */
#define EACH        8u /* places of a thread in the stopping rule */
#define CHECKS      (32 * EACH)
#define MARKED      16u /* pages of a thread in list_marked */

static_assert(VISIT_MOST <= 32 * WARPS && VISIT_MOST % WARPS == 0, "a warp looks them up at once");

/* ---- Log sums of pages ---- */

/* A fragments of four channels: queries in 16 bits, and their residuals. */
template <int H> static __device__ __forceinline__ void query_rows(uint32_t a[4], const float w[4])
{
    a[0] = half_pack<H>(w[0], w[1]);
    a[1] = half_residual<H>(w[0], w[1], a[0]);
    a[2] = half_pack<H>(w[2], w[3]);
    a[3] = half_residual<H>(w[2], w[3], a[2]);
}

/* Channels c to c + 3 of a head's query; zeros beyond the group. */
template <uint32_t D>
static __device__ __forceinline__ void query_load(float w[4], const struct op_lane_visit &op,
                                                  uint32_t head, uint32_t c)
{
    const float4 none = make_float4(0, 0, 0, 0);
    const float4 v = head < op.group ? *(const float4 *)(op.q + head * D + c) : none;
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
}

/* The queries of eight heads as A fragments, for keys in 16-bit rows: two for each 32 channels and
 * lane. */
template <uint32_t D> struct visit_query {
    uint4 row[D / 32][2][32];
};

/* Packs the queries of the heads from g0 on; all threads of a block. */
template <int H, uint32_t D>
static __device__ void query_pack(struct visit_query<D> *to, const struct op_lane_visit &op,
                                  uint32_t g0)
{
    __syncthreads(); /* the last queries have been read */
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

/* Products of eight query heads with a page of 16-bit keys; by a warp: x[i] for head lane / 4 and
 * tokens 8 i + 2 (lane % 4) and the next. Lane j of four takes 8 channels of each 32 of a row, one
 * 16-byte load. */
template <int H, uint32_t D>
static __device__ __forceinline__ void dot_rows(float x[4][2], const struct visit_query<D> *query,
                                                const uint8_t *rows)
{
    constexpr uint32_t n_tile = D > 128 ? 2 : 4; /* tiles of 8 keys in flight together */
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

/* N adjacent words, read by one load. */
template <uint32_t N> struct words {
    uint32_t at[N];
};
template <uint32_t N>
static __device__ __forceinline__ struct words<N> words_load(const uint8_t *from) {
    struct words<N> w;
    static_assert(N == 1 || N == 2 || N == 4, "what one instruction reads");
    if constexpr (N == 4) {
        const uint4 v = *(const uint4 *)from;
        w.at[0] = v.x, w.at[1] = v.y, w.at[2] = v.z, w.at[3] = v.w;
    } else if constexpr (N == 2) {
        const uint2 v = *(const uint2 *)from;
        w.at[0] = v.x, w.at[1] = v.y;
    } else {
        w.at[0] = *(const uint32_t *)from;
    }
    return w;
}

/* The same for a q8 page. Codes are exact in f16, and steps are multiplied into the queries. Lane j
 * takes the D / 64 words of its part of each plane, which have channels of all four quarters. */
template <uint32_t D>
static __device__ __forceinline__ void dot_codes(float x[4][2], const struct op_lane_visit &op,
                                                 const uint8_t *page, uint32_t g0)
{
    using at = page_at<FORM_Q8, (int)D>;
    using plane = struct words<D / 64>;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, first = lane % 4 * (D / 16);
    float c[4][4] = {}, base = 0;
    plane hi[4], mid[4], low[4][2];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *row = page + at::k_low + (i * 8 + g) * (D * 3 / 4) + first;
        hi[i] = words_load<D / 64>(page + at::k_hi2 + (i * 8 + g) * (D / 4) + first);
        mid[i] = words_load<D / 64>(row);
        low[i][0] = words_load<D / 64>(row + D / 4);
        low[i][1] = words_load<D / 64>(row + D / 2);
    }
#pragma unroll
    for (uint32_t u = 0; u < D / 64; u++)
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            const uint32_t channel = s * (D / 4) + first + u * 4;
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
                const uint32_t codes =
                    q8_codes(hi[i].at[u], mid[i].at[u], low[i][s % 2].at[u], (int)s);
                mma_16816<HALF_F16>(c[i], a, q8_pair(codes, 0), q8_pair(codes, 2));
            }
        }
    base += __shfl_xor_sync(~0u, base, 1);
    base += __shfl_xor_sync(~0u, base, 2);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        x[i][0] = base + (c[i][0] + c[i][2]), x[i][1] = base + (c[i][1] + c[i][3]);
}

/* ln sum exp over the first n_tok logits of a page, for head lane / 4; NaN if one of them is not
 * finite. */
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

/* The log sums of a page for the query heads from g0 on; by a warp. own: the row's own page, of
 * 16-bit rows. Returns whether they are finite. */
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

/* Visits places [from, end) of one lane, and the own page if `own`, for the heads from g0 on. A
 * warp takes every WARPS-th place; all lookups are done at once. */
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

/* Visits places [from, end) of a team. packed: whose queries are in shared memory. */
template <int F, uint32_t D>
static __device__ void sum_piece(const struct op_lane_visit *list, uint32_t team,
                                 struct visit_query<D> *query, uint32_t *packed,
                                 const struct visit_round &r, bool own)
{
    constexpr int H = F == FORM_BF16 ? HALF_BF16 : HALF_F16;
    const struct op_lane_visit *op = list + team;
    for (uint32_t m = 0; m < op->n_member; m++)
        for (uint32_t g0 = 0; g0 < op[m].group; g0 += CHOOSE_HEADS) {
            const uint32_t whose = (team + m) * OP_GROUP_MAX + g0;
            if (*packed != whose) query_pack<H, D>(query, op[m], g0);
            *packed = whose;
            sum_places<F, D>(op[m], op->order, query, g0, r, own);
        }
}

/* ---- The stopping rule ---- */

/* Evaluations of the stopping rule after EACH places of a thread: sum and least of the query heads'
 * shares of the attention seen. */
struct visit_shares {
    double sum[EACH], least[EACH];
};

/* Exclusive minimum over a warp. */
static __device__ inline double warp_exclusive_min(double x)
{
    const uint32_t t = threadIdx.x % 32;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const double other = __shfl_up_sync(~0u, x, by);
        if (t >= by) x = fmin(x, other);
    }
    const double before = __shfl_up_sync(~0u, x, 1);
    return t == 0 ? INFINITY : before;
}

/* exp(guess): the mean over the pages since the last evaluation; `place` is at least n_end. */
static __device__ inline double mean_of_last(const struct op_lane_visit &lane, uint32_t g,
                                             uint32_t place, uint32_t n_end, double most)
{
    const uint32_t n = (place - n_end) % lane.step + 1;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)lane.sum[(size_t)(place - i) * lane.group + g] - most);
    return sum / n;
}

/* all / (all + rest), by Newton iterations from a float where the range allows it, as many of them
 * overlap. */
static __device__ inline double share_of(double all, double rest)
{
    const double whole = all + rest;
    double by = (double)(1 / (float)whole);
    by *= 2 - whole * by;
    by *= 2 - whole * by;
    return whole > 1e-30 && whole < 1e30 ? all * by : all / whole;
}

/* The attention not yet seen, if the seen part has the share `told` of the votes. */
static __device__ inline double rest_by_vote(double seen, float told)
{
    return told > 0 ? seen * (1 / (double)told - 1) : INFINITY;
}

/* Adds one query head's shares after each of CHECKS places from r.from on; by a warp. Sums are
 * relative to exp(most), so one exponential a page is enough. told: the team's shares of votes. */
static __device__ void check_head(struct visit_shares *to, const struct op_lane_visit &lane,
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
    double all = exp(seen - most) + warp_exclusive_sum(sum),
           least = fmin(guess, warp_exclusive_min(low));
    const double own_mass = exp(own - most);
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) { /* no divergent branches: all iterations overlap */
        const uint32_t place = at + i;
        const bool is = place < end, counts = is && place + 1 < bad_from;
        all += e[i];
        if (is && place >= n_end) least = fmin(least, x[i]);
        double rest;
        if (lane.rest == OP_REST_VOTE)
            rest = rest_by_vote(all - own_mass, is ? told[place] : 0);
        else if (lane.rest == OP_REST_LEAST)
            rest = (lane.n_page - place - 1) * (double)expf((float)(least - most));
        else
            rest = counts && place >= n_end
                       ? (lane.n_page - place - 1) * mean_of_last(lane, g, place, n_end, most)
                       : INFINITY;
        const double share = share_of(all, rest);
        to->sum[i] += counts ? share : 0;
        to->least[i] = fmin(to->least[i], counts ? share : 1);
    }
    __syncwarp();
    if (t < 31) return;
    s->seen[g] = most + log(all);
    s->guess[g] = least;
}

/* Whether the rule stops after the visit at a place; it is evaluated once in each step. */
static __device__ bool has_enough(const struct op_lane_visit *op, const double (*sum)[CHECKS],
                                  const double (*least)[CHECKS], uint32_t i, uint32_t place)
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

/* Evaluates the rule after every place of the round. Returns how many places are visited in all;
 * *done: that is enough. */
static __device__ uint32_t check_round(const struct op_lane_visit *op, const struct visit_round &r,
                                       bool *done)
{
    __shared__ double sum[WARPS][CHECKS], least[WARPS][CHECKS];
    __shared__ uint32_t stop;
    const uint32_t t = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t n_end = op->begin + op->n_page - op->end;
    if (threadIdx.x == 0) stop = UINT32_MAX;
    __syncthreads(); /* also before a round without pages */
    for (uint32_t first = r.from; first < r.end; first += CHECKS) {
        struct visit_shares mine;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) mine.sum[i] = 0, mine.least[i] = 1;
        for (uint32_t i = warp; i < op->n_member * op->group; i += WARPS)
            check_head(&mine, op[i / op->group], op->told, i % op->group, {first, r.end}, n_end);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            sum[warp][t * EACH + i] = mine.sum[i];
            least[warp][t * EACH + i] = mine.least[i];
        }
        __syncthreads();
        const uint32_t place = first + threadIdx.x;
        if (threadIdx.x < CHECKS && place < r.end && has_enough(op, sum, least, threadIdx.x, place))
            atomicMin(&stop, place + 1);
        __syncthreads();
        if (stop != UINT32_MAX) break;
    }
    *done = stop != UINT32_MAX;
    return *done ? stop : r.end;
}

/* ---- Pieces ---- */

/* Marks the pages of places [r.from, at) and counts them. */
static __device__ void end_round(const struct op_lane_visit *op, const struct page_geom &g,
                                 const struct visit_round &r, uint32_t at)
{
    const uint32_t n = at - r.from, n_end = op->begin + op->n_page - op->end;
    const uint32_t n_step = at - min(at, max(r.from, n_end));
    const size_t keys = g.type_k == SAC_KV_Q8 ? g.v_scale : g.v - g.k;
    for (uint32_t i = threadIdx.x; i < n * op->n_member; i += THREADS)
        op[i / n].mask[op->order[r.from + i % n]] = ~0u;
    for (uint32_t m = threadIdx.x; m < op->n_member; m += THREADS) {
        struct op_lane_result *to = op[m].result; /* different blocks may end different rounds */
        atomicAdd(&to->n_line, (r.end - r.from) * (uint32_t)(keys / 64));
        atomicAdd(&to->n_visit, n);
        atomicAdd(&to->n_chosen, n_step * PAGE_TOK);
        if (op[m].state->bad_from <= at) atomicAdd(&to->n_bad, 1u);
    }
}

/* A claimed piece; round OPEN_OVER: there are no more. */
struct visit_piece {
    uint32_t team, round, i;
};

static __device__ inline bool is_open(uint32_t word)
{
    return word % OPEN_ROUND > OPEN_NONE;
}

static __device__ inline uint32_t load_open(const struct op_lane_visit &op)
{
    return *(volatile const uint32_t *)&op.state->n_left;
}

/* Tries to claim a piece of the team's open round; by one thread. */
static __device__ inline bool claim_piece(struct visit_piece *to, const struct op_lane_visit *list,
                                          uint32_t team)
{
    const uint32_t word = atomicSub(&list[team].state->n_left, 1u);
    if (!is_open(word)) return false;
    *to = {team, word / OPEN_ROUND, word % OPEN_ROUND - OPEN_NONE - 1};
    return true;
}

/* Claims a piece for one of the team's own blocks, which wait for the next round. false: the team
 * has finished. */
static __device__ bool claim_own(struct visit_piece *to, const struct op_lane_visit *list,
                                 uint32_t team)
{
    while (!claim_piece(to, list, team)) {
        uint32_t word;
        while (!is_open(word = load_open(list[team])))
            if (word / OPEN_ROUND == OPEN_OVER) return false;
    }
    return true;
}

/* Tries to claim a piece of any of the n teams, starting at `first`; by a warp. Returns whether a
 * team is unfinished. */
static __device__ bool claim_any(struct visit_piece *to, const struct op_lane_visit *list,
                                 uint32_t n, uint32_t first, bool *taken)
{
    bool goes_on = false;
    for (uint32_t i = 0; i < n; i += 32) {
        const uint32_t k = i + threadIdx.x % 32, team = (first + k) % n;
        const uint32_t word =
            k < n && list[team].n_member > 0 ? load_open(list[team]) : OPEN_OVER * OPEN_ROUND;
        const bool lives = word / OPEN_ROUND != OPEN_OVER;
        goes_on = goes_on || __any_sync(~0u, lives);
        const uint32_t open = __ballot_sync(~0u, lives && is_open(word));
        if (open == 0) continue;
        const bool gets =
            threadIdx.x % 32 == (uint32_t)__ffs((int)open) - 1 && claim_piece(to, list, team);
        if ((*taken = __any_sync(~0u, gets))) return true;
    }
    return goes_on;
}

/* The block's next piece: of its own team, and when that has finished of any other. */
static __device__ bool next_piece(struct visit_piece *to, const struct op_lane_visit *list)
{
    const uint32_t own = blockIdx.y, n = gridDim.y;
    __syncthreads(); /* the last piece has been read */
    if (threadIdx.x < 32) {
        bool taken = threadIdx.x == 0 && list[own].n_member > 0 && claim_own(to, list, own);
        taken = __any_sync(~0u, taken);
        while (!taken && claim_any(to, list, n, own + 1 + blockIdx.x * (n / gridDim.x), &taken))
            if (!taken) spin_pause();
        if (!taken && threadIdx.x == 0) to->round = OPEN_OVER;
    }
    __syncthreads();
    __threadfence();
    return to->round != OPEN_OVER;
}

/* True in the block that completes the last of a round's pieces, which may then read what the
 * others have written. `tally` counts completed pieces. */
static __device__ bool ends_round(const struct op_lane_visit *op, uint32_t n_piece)
{
    __shared__ uint32_t n_done;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) n_done = atomicAdd(&op->state->tally, 1u) + 1;
    __syncthreads();
    __threadfence();
    return n_done == n_piece;
}

/* Makes the lists of a team's lanes. */
static __device__ void list_team(const struct op_lane_list *list, uint32_t n_member,
                                 const struct page_lines *lines)
{
    __shared__ struct marked_room room;
    for (uint32_t m = 0; m < n_member; m++) {
        const struct op_lane_result r = *list[m].result;
        const struct attn_count count =
            list_marked<MARKED>(list[m], r, r.n_bad || r.n_over, 0, *lines, room);
        if (threadIdx.x == 0) *list[m].count = count;
    }
}

struct visit_call {
    struct page_geom geom;
    const struct op_lane_visit *list; /* [n] on the device, with n_page pages at most */
    const struct op_lane_list *made;  /* [n]; NULL: another launch makes them */
    uint32_t n, n_page;
};

template <int F, uint32_t D>
static __global__ void __launch_bounds__(THREADS, D > 128 ? 1 : TEAM_BLOCKS)
    rounds_kernel(const struct visit_call c, const struct page_lines all_lines)
{
    __shared__ struct visit_query<D> query;
    __shared__ struct visit_piece piece;
    __shared__ struct page_lines lines; /* in shared memory, as threads look up different entries */
    uint32_t packed = UINT32_MAX;
    list_load_lines(&lines, all_lines);
    kernel_begin();
    while (next_piece(&piece, c.list)) {
        const struct op_lane_visit *op = c.list + piece.team;
        const struct visit_round r = round_of(op, piece.round);
        const uint32_t each = piece_of(r, gridDim.x), from = r.from + piece.i * each;
        sum_piece<F, D>(c.list, piece.team, &query, &packed, {from, min(from + each, r.end)},
                        piece.round + piece.i == 0);
        if (!ends_round(op, count_pieces(r, gridDim.x))) continue;
        bool done;
        const uint32_t at = check_round(op, r, &done);
        end_round(op, c.geom, r, at);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) open_round(op, done ? OPEN_OVER : piece.round + 1, gridDim.x);
        if (done && c.made) list_team(c.made + piece.team, op->n_member, &lines);
    }
}

/* Blocks of a team: as many as it has pieces, up to its share of the resident blocks. */
static uint32_t count_blocks(const struct cuda_device *d, uint32_t n_page, uint32_t n_team)
{
    const uint32_t n = n_page / WARPS + 1;
    const uint32_t most = choose_larger(TEAM_BLOCKS * d->n_sm / n_team, 1);
    return n < most ? n : most;
}

typedef void (*visit_kernel)(const struct visit_call, const struct page_lines);

template <int F> static visit_kernel kernel_of_form(uint32_t head_dim)
{
    switch (head_dim) {
    case 64: return rounds_kernel<F, 64>;
    case 128: return rounds_kernel<F, 128>;
    case 256: return rounds_kernel<F, 256>;
    default: return NULL;
    }
}

/* NULL: there is no kernel. */
static visit_kernel kernel_of(const struct page_geom *g)
{
    switch (attn_form_of(g)) {
    case FORM_F16: return kernel_of_form<FORM_F16>(g->head_dim);
    case FORM_BF16: return kernel_of_form<FORM_BF16>(g->head_dim);
    case FORM_Q8: return kernel_of_form<FORM_Q8>(g->head_dim);
    default: return NULL;
    }
}

static sac_status visit(struct cuda_device *d, const struct visit_call &c,
                        const struct page_lines &lines)
{
    return queue_launch(d, "visits of pages", kernel_of(&c.geom),
                        dim3(count_blocks(d, c.n_page, c.n), c.n), THREADS, 0, c, lines);
}

sac_status cuda_lane_visit(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n)
{
    if (n == 0) return SAC_OK;
    struct visit_call c = {*op->geom, NULL, NULL, n, 1};
    const struct page_lines no_lines = {};
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].n_segment || op[i].frames.of || op[i].proof)
            return device_fail(d, SAC_ERR_UNSUPPORTED,
                               "visits with proofs, or of keys that wait for a turned query");
        c.n_page = choose_larger(c.n_page, op[i].n_page);
    }
    if (op->group > OP_GROUP_MAX)
        return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for so many heads of a KV head");
    if (!kernel_of(op->geom))
        return device_fail(d, SAC_ERR_UNSUPPORTED, "visits: these heads, or types of K and V");
    c.n_page = choose_round_up(c.n_page);
    c.list = choose_stage(d, op, n);
    if (!c.list) return d->status;
    const struct choose_folds folds = choose_absorb_folds(d, op, n);
    const struct visit_order order = {c.list, n, c.n_page, count_blocks(d, c.n_page, n)};
    TRY(visit_put_in_order(d, &order, folds, op->geom));
    TRY(offload_fetch_visits(d, op, n));
    return visit(d, c, no_lines);
}

/* The arguments of the last recorded launch, if it is one of visits. */
static const void *last_visit(const struct cuda_device *d)
{
    static const visit_kernel all[] = {
        rounds_kernel<FORM_F16, 64>,  rounds_kernel<FORM_F16, 128>,  rounds_kernel<FORM_F16, 256>,
        rounds_kernel<FORM_BF16, 64>, rounds_kernel<FORM_BF16, 128>, rounds_kernel<FORM_BF16, 256>,
        rounds_kernel<FORM_Q8, 64>,   rounds_kernel<FORM_Q8, 128>,   rounds_kernel<FORM_Q8, 256>};
    const void *last = NULL;
    for (const visit_kernel k : all)
        if (!last) last = queue_last(d, kernel_entry(k));
    return last;
}

/* Called for lists: whether their lanes are those of the visits recorded last. */
bool choose_list_visited(struct cuda_device *d, const struct op_lane_list *op,
                         const struct op_lane_list *staged, uint32_t n)
{
    struct visit_call c;
    const void *last = last_visit(d);
    if (!last) return false;
    memcpy(&c, last, sizeof c);
    const struct op_lane_visit *of = choose_staged(d, c.list);
    if (c.n != n || c.made) return false;
    for (uint32_t i = 0; i < n; i++)
        if (of[i].mask != op[i].mask || of[i].result != op[i].result || op[i].dense || op[i].weighs)
            return false;
    queue_drop_last(d);
    c.made = staged;
    (void)visit(d, c, *op->lines); /* the device remembers a failure */
    return true;
}
