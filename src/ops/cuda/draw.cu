/* draw.cu: draws of tokens by their shares (op_lane_draw, struct op_draw), each by many blocks: one
 * launch makes the shares and finds the cut, one takes and makes the list that attention reads.
 *
 * A token is taken where the sum of the chances dealt to its lane passes a multiple of 2^32. So
 * what the pieces before have added up to tells a piece both what its lanes begin with and how many
 * tokens are listed before its own. A block takes the next piece that nobody has, tells what it
 * adds up to, and waits for all pieces before it to tell the same: those have been taken by blocks
 * that run already and wait for fewer. Everything is whole numbers: the order in which blocks come
 * does not show. Only the sums by which the cut is found differ from the CPU's, in their rounding.
 */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"
#include "ops/cuda/marked.cuh"

#define THREADS 256u
#define WARPS   (THREADS / 32)
#define EACH    (OP_DRAW_ITEMS / THREADS) /* items of a thread: every 16th of half a stretch */
#define HALF    (EACH * OP_DRAW_LANES)
#define STRETCH (2 * HALF) /* of a warp */
#define LISTED  16u        /* pages of a thread: others wait for the one block that lists */

/* Cuts that a draw can have: draw_ref.c halves the bits between the least one and 2 until they are
 * less than OP_DRAW_STEP apart, so the bits of cut i are DRAW_LEAST + i * DRAW_WIDTH. */
#define DRAW_LEAST  0x2b800000u /* OP_DRAW_LEAST */
#define DRAW_WIDTH  ((0x40000000u - DRAW_LEAST) / DRAW_CUTS)
#define CUT_THREADS 256u
#define CUT_EACH    (DRAW_CUTS / CUT_THREADS)
#define CUT_ITEMS   (CUT_THREADS * CHOOSE_TOKENS) /* that a block looks at together */
#define TAKE_BLOCKS 5u /* of a multiprocessor at once: they wait for memory and each other */
#define CUT_BUSY    4u /* blocks of a multiprocessor at once */
#define UNTOLD      UINT32_MAX /* n_taken of a piece that has not told what it adds up to */

static_assert(DRAW_WIDTH <= OP_DRAW_STEP && 2 * DRAW_WIDTH > OP_DRAW_STEP, "as many as that");
static_assert(DRAW_WIDTH * DRAW_CUTS == 0x40000000u - DRAW_LEAST, "none is rounded");
static_assert(HALF % PAGE_TOK == 0 && PAGE_TOK == 2 * OP_DRAW_LANES,
              "a page is two rows of a half");

typedef unsigned long long u64;

/* ---- The cut ---- */

/* Sums of a block's values between cuts i - 1 and i, for i > 0, in units of the last digit that the
 * lower one of them has: low digits of the values and high ones apart, so that neither sum
 * overflows and no addition has to be waited for. */
#define SUM_DIGITS 12u        /* of 25 */
#define SUM_ITEMS  (1u << 19) /* that a block may add up */
struct draw_sums {
    uint32_t low[DRAW_CUTS], high[DRAW_CUTS];
};

/* In 2^-63, rounded down. */
static __device__ inline u64 draw_whole(uint32_t bits)
{
    const uint32_t exponent = max(bits >> 23, 1u);
    const uint32_t digits = bits >> 23 ? (bits & 0x7fffffu) | 0x800000u : bits;
    return exponent >= 87 ? (u64)digits << (exponent - 87) : digits >> min(87 - exponent, 31u);
}

/* How far those units are above 2^-63. */
static __device__ inline uint32_t draw_shift(uint32_t i)
{
    return ((DRAW_LEAST + (i - 1) * DRAW_WIDTH) >> 23) - 87;
}

/* Of DRAW_LEAST at least. */
static __device__ inline void draw_put(struct draw_sums *s, uint32_t bits)
{
    const uint32_t i = 1 + (bits - DRAW_LEAST) / DRAW_WIDTH;
    if (i >= DRAW_CUTS) return; /* below no cut, or no share */
    const uint32_t digits = (uint32_t)(draw_whole(bits) >> draw_shift(i));
    atomicAdd(&s->low[i], digits & ((1u << SUM_DIGITS) - 1));
    atomicAdd(&s->high[i], digits >> SUM_DIGITS);
}

static __device__ inline u64 draw_sum(const struct draw_sums &s, uint32_t i)
{
    return (((u64)s.high[i] << SUM_DIGITS) + s.low[i]) << draw_shift(i);
}

/* The cut that is sure: what lies below one can be no more than 1, but for rounding. */
static __device__ inline uint32_t draw_sure(const struct op_draw &op)
{
    const uint32_t bits = __float_as_uint((float)op.variance / 2);
    return bits < DRAW_LEAST ? 0 : min((bits - DRAW_LEAST) / DRAW_WIDTH, DRAW_CUTS - 1);
}

/* Adds the N values of a stretch that starts at a fixed place; 0 is no share. Those below the cut
 * that is sure, as most are, are added up as they are first; returns that, for the caller to put
 * into the first sum. Threads of a warp then put one of the others each, as long as one has some.
 */
template <uint32_t N>
static __device__ __forceinline__ u64 draw_add(struct draw_sums *s, const float value[N],
                                               uint32_t sure)
{
    const uint32_t sure_bits = DRAW_LEAST + sure * DRAW_WIDTH;
    float below = 0;
    uint32_t left = 0;
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        const bool is_below = __float_as_uint(value[k]) < sure_bits;
        below += is_below ? value[k] : 0.0f;
        left |= is_below ? 0 : 1u << k;
    }
    for (; left; left ^= 1u << (31 - __clz((int)left))) {
        float x = 0;
#pragma unroll
        for (uint32_t k = 0; k < N; k++) x = left >> k & 1 ? value[k] : x; /* the last one */
        draw_put(s, __float_as_uint(x));
    }
    return draw_whole(__float_as_uint(below));
}

/* As draw_ref.c finds it: the highest that the variance allows. Empties the sums. */
static __device__ float find_draw_cut(const struct op_draw &op, u64 *sums, u64 *room,
                                      uint32_t *room32)
{
    u64 mine[CUT_EACH], all, of_thread = 0;
    uint32_t n_may = 0;
#pragma unroll
    for (uint32_t k = 0; k < CUT_EACH; k++) {
        mine[k] = __ldcg(&sums[threadIdx.x * CUT_EACH + k]);
        of_thread += mine[k];
        sums[threadIdx.x * CUT_EACH + k] = 0;
    }
    u64 below = block_before(of_thread, room, &all);
#pragma unroll
    for (uint32_t k = 0; k < CUT_EACH; k++) {
        const uint32_t i = threadIdx.x * CUT_EACH + k, bits = DRAW_LEAST + i * DRAW_WIDTH;
        below += mine[k];
        const double sum = (double)below * 0x1p-63;
        const bool may = i > 0 && (double)__uint_as_float(bits) * sum <= op.variance;
        n_may += may;
    }
    return __uint_as_float(DRAW_LEAST + block_sum(n_may, room32) * DRAW_WIDTH);
}

/* For the taking: no piece is taken, none has told what it adds up to. */
static __device__ void begin_taking(const struct op_lane_draw &op, float cut)
{
    for (uint32_t p = threadIdx.x; p * OP_DRAW_ITEMS < op.at.n; p += CUT_THREADS)
        op.piece[p].n_taken = UNTOLD;
    if (threadIdx.x > 0) return;
    op.state->n_left = 0;
    op.state->cut = cut;
}

/* Sums of shares, of which the block looks at every gridDim.x-th stretch; those of `of` are made
 * here, of all tokens, others are there. */
static __device__ u64 sum_shares(struct draw_sums *sums, const struct op_draw &op,
                                 const struct op_lane_shares *of)
{
    const uint32_t n = of ? of->at.n_page * PAGE_TOK : op.first + op.n, sure = draw_sure(op);
    u64 least = 0;
    for (uint32_t at = blockIdx.x * CUT_ITEMS; at < n; at += gridDim.x * CUT_ITEMS) {
        const uint32_t first = at + threadIdx.x * CHOOSE_TOKENS;
        const uint32_t i = first - op.first; /* of the draw; far behind its end before its begin */
        float value[CHOOSE_TOKENS];
        if (first >= n) continue;
        if (of) choose_shares(value, *of, first);
        if (!of || i >= op.n || op.n - i < CHOOSE_TOKENS)
#pragma unroll
            for (uint32_t k = 0; k < CHOOSE_TOKENS; k++)
                value[k] = i + k >= op.n ? 0.0f : of ? value[k] : op.value[i + k];
        least += draw_add<CHOOSE_TOKENS>(sums, value, sure);
    }
    return least;
}

/* The blocks of a lane take its stretches in turns; the last one to be done finds the cut. */
static __global__ void __launch_bounds__(CUT_THREADS, CUT_BUSY)
    draw_cut_kernel(const struct choose_spread shares, const struct op_lane_draw *list,
                    const struct choose_ends ends, u64 *all_sums, uint32_t *tally)
{
    __shared__ struct op_lane_draw op;
    __shared__ struct op_lane_shares of;
    __shared__ struct draw_sums sums;
    __shared__ u64 room[32];
    __shared__ uint32_t room32[32];
    const uint32_t lane = blockIdx.y;
    for (uint32_t i = threadIdx.x; i < DRAW_CUTS; i += CUT_THREADS) sums.low[i] = sums.high[i] = 0;
    if (shares.n > 0) choose_copy(&of, shares.list + lane);
    choose_open(&op, list + lane);
    for (uint32_t e = lane; e < ends.n; e += gridDim.y)
        choose_mark_ends(ends.list[e], blockIdx.x, gridDim.x);
    const bool finite = shares.n > 0 ? choose_shares_finite(of) : !op.result->n_bad;
    if (!finite) { /* everything is read */
        if (blockIdx.x == 0 && threadIdx.x == 0) op.result->n_bad = 1;
        return;
    }
    u64 *const to = all_sums + (size_t)lane * DRAW_CUTS;
    u64 least = sum_shares(&sums, op.at, shares.n > 0 ? &of : NULL);
    least = block_sum(least, room);
    if (threadIdx.x == 0) atomicAdd(&to[0], least); /* behind a barrier: all sums are there */
    for (uint32_t i = 1 + threadIdx.x; i < DRAW_CUTS; i += CUT_THREADS) {
        const u64 sum = draw_sum(sums, i);
        if (sum) atomicAdd(&to[i], sum);
    }
    if (!block_is_last(tally + lane, gridDim.x)) return;
    begin_taking(op, find_draw_cut(op.at, to, room, room32));
}

/* ---- What pieces add up to ---- */

struct draw_by {
    float cut, by;
};

static __device__ inline struct draw_by draw_by_of(float cut)
{
    const struct draw_by by = {cut, 0x1p32f / cut};
    return by;
}

/* What lanes of the draw have added up to before an item, and the items that are certain. */
struct draw_place {
    u64 sum; /* of lane threadIdx.x % OP_DRAW_LANES */
    uint32_t n_certain;
};

/* A thread's share of a stretch: chances of its items, which are all dealt to one lane, their sum,
 * and bits of those that are certain, whose chance is 0. */
struct draw_share {
    uint32_t chance[EACH], certain;
    u64 sum;
};

/* The chances of some items by the lane that they are dealt to, and the items that are certain. */
struct draw_part {
    u64 chance[OP_DRAW_LANES];
    uint32_t n_certain;
};

/* A warp's lanes 0 to 15 have the first half of a stretch, the others the second: so chances add up
 * within a thread. */
static __device__ inline uint32_t item_of_thread(uint32_t piece)
{
    const uint32_t lane = threadIdx.x % 32, k = lane % OP_DRAW_LANES;
    return piece * OP_DRAW_ITEMS + threadIdx.x / 32 * STRETCH + lane / OP_DRAW_LANES * HALF + k;
}

static __device__ inline void read_share(struct draw_share &to, const struct op_draw &op,
                                         uint32_t first, struct draw_by v)
{
    const float *from = op.value + first;
    const uint32_t n = op.n > first ? op.n - first : 0;
    float value[EACH];
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++)
        value[k] = k * OP_DRAW_LANES < n ? from[k * OP_DRAW_LANES] : 0.0f;
    to.certain = 0;
    to.sum = 0;
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const float bits = value[k] * v.by;
        const bool below = value[k] < v.cut;
        const uint32_t chance = bits < 0x1p32f ? (uint32_t)bits : UINT32_MAX;
        to.chance[k] = below ? chance : 0;
        to.certain |= (uint32_t)!below << k;
        to.sum += to.chance[k];
    }
}

/* Of the sixteen threads that have half a stretch. */
static __device__ inline uint32_t half_sum(uint32_t x)
{
    for (int j = OP_DRAW_LANES / 2; j > 0; j /= 2) x += __shfl_xor_sync(~0u, x, j);
    return x;
}

/* What the first half of a warp's stretch adds up to, of a thread's lane, and in *all the whole. */
static __device__ inline struct draw_place add_halves(struct draw_part *all,
                                                      const struct draw_share &mine)
{
    const uint32_t lane = threadIdx.x % 32;
    const struct draw_place own = {mine.sum, half_sum((uint32_t)__popc(mine.certain))};
    const struct draw_place other = {__shfl_xor_sync(~0u, own.sum, (int)OP_DRAW_LANES),
                                     __shfl_xor_sync(~0u, own.n_certain, (int)OP_DRAW_LANES)};
    if (lane < OP_DRAW_LANES) all->chance[lane] = own.sum + other.sum;
    if (lane == 0) all->n_certain = own.n_certain + other.n_certain;
    return lane < OP_DRAW_LANES ? own : other;
}

/* Tells what the stretches of a piece add up to, by a warp: low words of the sums, and how often
 * these have passed 2^32, the items that are certain counted in. */
static __device__ void tell_piece(struct op_draw_piece *to, const struct draw_part *part)
{
    const uint32_t lane = threadIdx.x % 32;
    u64 sum = 0;
    for (uint32_t w = 0; w < WARPS; w++) sum += part[w].chance[lane % OP_DRAW_LANES];
    uint32_t n = lane < OP_DRAW_LANES ? (uint32_t)(sum >> 32) : 0;
    n += lane < WARPS ? part[lane].n_certain : 0;
    for (int j = 16; j > 0; j /= 2) n += __shfl_xor_sync(~0u, n, j);
    if (lane < OP_DRAW_LANES) to->chance[lane] = (uint32_t)sum;
    __syncwarp();
    if (lane == 0) flag_raise(&to->n_taken, n);
}

/* Until n pieces have told, by all threads of a block. */
static __device__ void wait_for_pieces(const struct op_draw_piece *piece, uint32_t n)
{
    for (uint32_t p = threadIdx.x; p < n; p += THREADS)
        while (flag_look(&piece[p].n_taken) == UNTOLD)
            ;
    __syncthreads();
}

/* ---- Taking ---- */

/* Items that are listed before it. */
static __device__ inline uint32_t listed_before(const struct draw_place &to)
{
    return half_sum((uint32_t)(to.sum >> 32)) + to.n_certain;
}

/* The pieces before this one, by all warps. */
static __device__ struct draw_place place_piece(const struct op_draw_piece *piece, uint32_t n,
                                                struct draw_part *room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = lane % OP_DRAW_LANES;
    struct draw_place at = {0, 0};
    for (uint32_t p = threadIdx.x / OP_DRAW_LANES; p < n; p += THREADS / OP_DRAW_LANES) {
        at.sum += __ldcg(&piece[p].chance[k]);
        at.n_certain += __ldcg(&piece[p].n_taken);
    }
    at.sum += __shfl_xor_sync(~0u, at.sum, (int)OP_DRAW_LANES);
    at.n_certain += __shfl_xor_sync(~0u, at.n_certain, (int)OP_DRAW_LANES);
    if (lane < OP_DRAW_LANES) room[warp].chance[lane] = at.sum;
    if (lane == 0) room[warp].n_certain = at.n_certain;
    __syncthreads();
    at.sum = (2 * k + 1) * (UINT32_MAX / (2 * OP_DRAW_LANES) + 1); /* op_draw_begin */
    at.n_certain = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        at.sum += room[w].chance[k];
        at.n_certain += room[w].n_certain;
    }
    return at;
}

/* Weights of the n items that half a warp has listed from `at` on, by their values. */
static __device__ void weigh_half(const struct op_draw &op, float cut, uint32_t at, uint32_t n)
{
    const uint32_t *item = op.item + at;
    const float *value = op.value;
    float *logw = op.logw + at;
    __syncwarp(); /* the items are there */
    for (uint32_t j = threadIdx.x % OP_DRAW_LANES; j < n; j += OP_DRAW_LANES) {
        const float x = value[item[j] - op.first];
        logw[j] = x < cut ? logf(cut / x) : 0.0f;
    }
}

/* Takes from half a warp's stretch, which is listed from `at` on; thread k of it gets the bits of
 * those of its page k. */
static __device__ uint32_t take_half(const struct op_draw &op, const struct draw_share &mine,
                                     float cut, uint32_t first, uint32_t sum, uint32_t at)
{
    const uint32_t shift = threadIdx.x % 32 / OP_DRAW_LANES * OP_DRAW_LANES;
    const uint32_t k16 = threadIdx.x % OP_DRAW_LANES, before = (1u << k16) - 1;
    const uint32_t number = op.first + first;
    uint32_t *const item = op.item + at;
    uint32_t n = 0, word = 0;
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        sum += mine.chance[k];
        const bool taken = sum < mine.chance[k] || (mine.certain >> k & 1);
        const uint32_t all = __ballot_sync(~0u, taken);
        if (all == 0) continue;
        const uint32_t row = all >> shift & ((1u << OP_DRAW_LANES) - 1);
        if (taken) item[n + (uint32_t)__popc(row & before)] = number + k * OP_DRAW_LANES;
        n += (uint32_t)__popc(row);
        if (k16 == k / 2) word |= row << k % 2 * OP_DRAW_LANES;
    }
    weigh_half(op, cut, at, n);
    return word;
}

/* A block takes from a piece; returns the bits of items, as take_half does. */
static __device__ uint32_t take_piece(const struct op_lane_draw &op, uint32_t piece, float cut,
                                      struct draw_part *part, struct draw_part *room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = item_of_thread(piece);
    struct draw_share mine;
    read_share(mine, op.at, first, draw_by_of(cut));
    const struct draw_place half = add_halves(&part[warp], mine);
    __syncthreads();
    if (warp == 0) tell_piece(&op.piece[piece], part);
    wait_for_pieces(op.piece, piece);
    struct draw_place to = place_piece(op.piece, piece, room);
    for (uint32_t w = 0; w < warp; w++) {
        to.sum += part[w].chance[lane % OP_DRAW_LANES];
        to.n_certain += part[w].n_certain;
    }
    if (lane >= OP_DRAW_LANES) {
        to.sum += half.sum;
        to.n_certain += half.n_certain;
    }
    return take_half(op.at, mine, cut, first, (uint32_t)to.sum, listed_before(to));
}

static __device__ void tell_draw(const struct op_lane_draw &op, struct op_lane_result *r,
                                 uint32_t n)
{
    r->n_tok += n;
    r->n_chosen += n;
    r->n_over += n + op.n_more > op.most;
}

struct draw_taken { /* what a launch takes, [n] on the device each */
    const struct op_lane_draw *draw;
    const struct op_lane_list *list; /* NULL: others make lists */
    uint32_t n, n_piece;
};

/* Behind all pieces: what came of the draw, and the list of what is marked beside it. */
static __device__ void end_draw(const struct op_lane_draw &op, const struct op_lane_list *list,
                                const struct page_lines &lines, struct draw_part *room,
                                struct marked_room &marked_room)
{
    const uint32_t n_piece = (op.at.n + OP_DRAW_ITEMS - 1) / OP_DRAW_ITEMS;
    struct op_lane_result r = *op.result;
    if (!r.n_bad) {
        wait_for_pieces(op.piece, n_piece);
        tell_draw(op, &r, listed_before(place_piece(op.piece, n_piece, room)));
    }
    __syncthreads(); /* all have read the result */
    if (threadIdx.x == 0) *op.result = r;
    if (!list) return;
    const bool dense = r.n_bad || r.n_over;
    const struct attn_count count =
        list_marked<LISTED>(*list, r, dense, dense ? 0 : r.n_tok, lines, marked_room);
    if (threadIdx.x > 0) return;
    struct attn_count *to = list->count; /* blocks that take add to n_line_tok */
    to->dense = count.dense;
    to->not_finite = count.not_finite;
    to->n_page = count.n_page;
    to->n_tok = count.n_tok;
    to->n_chosen = count.n_chosen;
    to->n_line = count.n_line;
}

/* A block takes from a piece; one more ends the draw of a lane. */
static __global__ void __launch_bounds__(THREADS, TAKE_BLOCKS)
    draw_take_kernel(const struct draw_taken of, const struct page_lines all_lines)
{
    __shared__ struct op_lane_draw op;
    __shared__ struct op_lane_list list;
    __shared__ struct draw_part room[WARPS], part[WARPS];
    __shared__ struct page_lines lines;
    __shared__ struct marked_room marked_room;
    __shared__ uint32_t turn;
    list_open_lines(&lines, all_lines);
    if (of.list) choose_copy(&list, of.list + blockIdx.y);
    choose_open(&op, of.draw + blockIdx.y);
    const float cut = __ldcg(&op.state->cut); /* no number that counts if the lane is bad */
    const bool bad = op.result->n_bad;
    const uint32_t n_piece = bad ? 0 : (op.at.n + OP_DRAW_ITEMS - 1) / OP_DRAW_ITEMS;
    if (threadIdx.x == 0) {
        const uint32_t next = atomicAdd(&op.state->n_left, 1u); /* on its way with what is above */
        turn = bad ? blockIdx.x : next;
    }
    __syncthreads();
    if (turn == n_piece) end_draw(op, of.list ? &list : NULL, lines, room, marked_room);
    if (turn >= n_piece) return;
    const uint32_t word = take_piece(op, turn, cut, part, room);
    if (!of.list) return;
    const uint32_t n_line = block_sum(page_lines_of(lines, word), marked_room.n);
    if (threadIdx.x == 0 && n_line) atomicAdd(&list.count->n_line_tok, n_line);
}

/* ---- The launcher ---- */

static sac_status take(struct cuda_device *d, const struct draw_taken &of,
                       const struct page_lines &lines)
{
    return queue_launch(d, "draw of tokens", draw_take_kernel, dim3(of.n_piece + 1, of.n), THREADS,
                        0, of, lines);
}

static sac_status launch(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n)
{
    const struct page_lines no_lines = {};
    const struct op_lane_draw *list = choose_stage(d, op, n);
    if (!list) return d->status;
    const struct choose_ends ends = choose_take_ends(d);
    const struct choose_spread shares = choose_take_spread(d, op, n);
    const uint32_t busy = choose_larger(CUT_BUSY * d->n_sm / n, 1);
    uint32_t most = 1;
    for (uint32_t i = 0; i < n; i++) most = choose_larger(most, op[i].at.n);
    most = choose_reach(most);
    const uint32_t n_item = shares.n > 0 ? shares.n_page * PAGE_TOK : most;
    const uint32_t n_need = (n_item + CUT_ITEMS - 1) / CUT_ITEMS;
    const uint32_t n_block = choose_larger(n_need < busy ? n_need : busy, n_item / SUM_ITEMS + 1);
    TRY(queue_launch(d, "cut of a draw", draw_cut_kernel, dim3(n_block, n), CUT_THREADS, 0, shares,
                     list, ends, d->draw_sums, d->tally));
    return take(d, {list, NULL, n, (most + OP_DRAW_ITEMS - 1) / OP_DRAW_ITEMS}, no_lines);
}

sac_status cuda_lane_draw(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += DRAW_LANES)
        TRY(launch(d, op + i, n - i < DRAW_LANES ? n - i : DRAW_LANES));
    return d->status;
}

/* Pages of a draw's items are a warp's 32 then, so that it knows what lines it reads. */
static bool lists_draws(const struct op_lane_draw *draw, const struct op_lane_list *list)
{
    return list->result == draw->result && list->weighs && !list->dense &&
           list->tok == draw->at.item && draw->at.first % PAGE_TOK == 0;
}

bool choose_list_drawn(struct cuda_device *d, const struct op_lane_list *op,
                       const struct op_lane_list *staged, uint32_t n)
{
    const void *last = queue_last(d, kernel_entry(draw_take_kernel));
    if (!last) return false;
    struct draw_taken of;
    memcpy(&of, last, sizeof of);
    const struct op_lane_draw *draw = choose_staged(d, of.draw);
    bool same = of.n == n && !of.list;
    for (uint32_t i = 0; i < n && same; i++) same = lists_draws(&draw[i], &op[i]);
    if (!same) return false;
    queue_drop_last(d);
    of.list = staged;
    (void)take(d, of, *op->lines); /* a failure is remembered */
    return true;
}
