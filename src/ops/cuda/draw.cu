/* draw.cu: draws of tokens by their shares (op_lane_draw, struct op_draw), each by many blocks: one
 * launch finds the cut, one takes and makes the list that attention reads. Shares that are not
 * there are made where they are wanted (choose_shares): for the cut of few pages, to take of all.
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
#define EACH    (OP_DRAW_ITEMS / THREADS) /* items of a thread */
#define STRETCH (EACH * 32)               /* items of a warp */
#define NEAR    4u                        /* of a thread's that are neighbours */
#define TURNS   (EACH / NEAR)             /* of a thread's: draw lanes are dealt once in each */

/* Cuts that a draw can have: draw_ref.c halves the bits between the least one and 2 until they are
 * less than OP_DRAW_STEP apart, so the bits of cut i are DRAW_LEAST + i * DRAW_WIDTH. */
#define DRAW_LEAST  0x2b800000u /* OP_DRAW_LEAST */
#define DRAW_WIDTH  ((0x40000000u - DRAW_LEAST) / DRAW_CUTS)
#define CUT_THREADS 256u
#define CUT_EACH    (DRAW_CUTS / CUT_THREADS)
#define CUT_ITEMS   (CUT_THREADS * CHOOSE_TOKENS) /* that a block looks at together */
#define TAKE_BLOCKS 4u /* of a multiprocessor at once: they wait for memory and each other */
#define CUT_BUSY    4u /* blocks of a multiprocessor at once */
#define UNTOLD      UINT32_MAX /* n_taken of a piece that has not told what it adds up to */

static_assert(DRAW_WIDTH <= OP_DRAW_STEP && 2 * DRAW_WIDTH > OP_DRAW_STEP, "as many as that");
static_assert(DRAW_WIDTH * DRAW_CUTS == 0x40000000u - DRAW_LEAST, "none is rounded");
static_assert(TURNS * OP_DRAW_LANES == 2 * PAGE_TOK, "four threads have two pages");
static_assert(STRETCH == 16 * PAGE_TOK, "the tokens of a page are a warp's");

typedef unsigned long long u64;

/* ---- The cut ---- */

/* Sums of a block's values between two cuts, in 2^-63: of those below cut 0, below cut 1 and so on.
 */
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

static __device__ inline void draw_put(struct draw_sums *s, uint32_t i, u64 x)
{
    const uint32_t low = (uint32_t)x, was = atomicAdd(&s->low[i], low);
    const uint32_t high = (uint32_t)(x >> 32) + (was + low < was);
    if (high) atomicAdd(&s->high[i], high);
}

/* The cut that is sure: what lies below one can be no more than 1, but for rounding. */
static __device__ inline uint32_t draw_sure(const struct op_draw &op)
{
    const uint32_t bits = __float_as_uint((float)op.variance / 2);
    return bits < DRAW_LEAST ? 0 : min((bits - DRAW_LEAST) / DRAW_WIDTH, DRAW_CUTS - 1);
}

/* Adds the n values of a stretch that starts at a fixed place, bit k of `in` telling of value k
 * whether it counts. Those below the cut that is sure, as most are, are added up as they are first;
 * returns that, for the caller to put into the first sum. */
template <uint32_t N>
static __device__ __forceinline__ u64 draw_add(struct draw_sums *s, const float value[N],
                                               uint32_t in, uint32_t sure)
{
    const uint32_t sure_bits = DRAW_LEAST + sure * DRAW_WIDTH;
    float low = 0;
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        const uint32_t bits = __float_as_uint(value[k]);
        if (!(in >> k & 1)) continue;
        if (bits < sure_bits) {
            low += value[k];
            continue;
        }
        const uint32_t i = 1 + (bits - DRAW_LEAST) / DRAW_WIDTH;
        if (i < DRAW_CUTS) draw_put(s, i, draw_whole(bits)); /* else below no cut, or no share */
    }
    return draw_whole(__float_as_uint(low));
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

/* The values of a draw whose shares are there: the block looks at every gridDim.x-th stretch. */
static __device__ u64 sum_values(struct draw_sums *sums, const struct op_draw &op)
{
    const uint32_t sure = draw_sure(op);
    u64 least = 0;
    for (uint32_t at = blockIdx.x * CUT_ITEMS; at < op.n; at += gridDim.x * CUT_ITEMS) {
        const uint32_t first = at + threadIdx.x * CHOOSE_TOKENS;
        float value[CHOOSE_TOKENS];
        uint32_t in = 0;
#pragma unroll
        for (uint32_t k = 0; k < CHOOSE_TOKENS; k++) {
            in |= (uint32_t)(first + k < op.n) << k;
            value[k] = first + k < op.n ? op.value[first + k] : 0;
        }
        least += draw_add<CHOOSE_TOKENS>(sums, value, in, sure);
    }
    return least;
}

/* Shares of tokens that are not there: where they come from. */
struct draw_from {
    struct op_lane_shares of;
    float log[OP_GROUP_MAX]; /* choose_open_logs */
};

/* Pages of a block whose tokens are to be looked at one by one. */
struct draw_pages {
    uint32_t page[CUT_THREADS], n;
};

/* Pages that a block's threads have each, if they are the draw's. No share of a page is more than
 * what its largest exponentials make, rounding and all: where that is below the cut that is sure,
 * as for most, its sum will do. Others are put down. */
static __device__ u64 sum_pages(struct draw_pages *few, const struct op_draw &op,
                                const struct draw_from &from, uint32_t p, uint32_t sure)
{
    const struct op_share_planes &at = from.of.at;
    const uint32_t begin = p * PAGE_TOK, end = op.first + op.n;
    float most = 0, sum = 0;
    if (p >= at.n_page || begin + PAGE_TOK <= op.first || begin >= end) return 0;
#pragma unroll 4
    for (uint32_t g = 0; g < at.group; g++) {
        const float by = choose_by(at, from.log, g, p);
        most += by;
        sum = fmaf(choose_sums(at, g)[p], by, sum);
    }
    const bool whole = begin >= op.first && begin + PAGE_TOK <= end;
    if (whole && __float_as_uint(most * exp2f(CHOOSE_UP)) < DRAW_LEAST + sure * DRAW_WIDTH)
        return draw_whole(__float_as_uint(sum));
    few->page[atomicAdd(&few->n, 1u)] = p;
    return 0;
}

/* Sums of shares that are made here, for pages of which the block has every gridDim.x-th lot. */
static __device__ u64 sum_shares(struct draw_sums *sums, struct draw_pages *few,
                                 const struct op_draw &op, const struct draw_from &from)
{
    constexpr uint32_t parts = PAGE_TOK / CHOOSE_TOKENS;
    const uint32_t sure = draw_sure(op);
    u64 least = 0;
    for (uint32_t p = blockIdx.x * CUT_THREADS; p < from.of.at.n_page;
         p += gridDim.x * CUT_THREADS) {
        __syncthreads(); /* nobody reads those before any more */
        if (threadIdx.x == 0) few->n = 0;
        __syncthreads();
        least += sum_pages(few, op, from, p + threadIdx.x, sure);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < few->n * parts; i += CUT_THREADS) {
            const uint32_t first = few->page[i / parts] * PAGE_TOK + i % parts * CHOOSE_TOKENS;
            float value[CHOOSE_TOKENS];
            uint32_t in = 0;
            choose_shares(value, from.of.at, from.log, first);
#pragma unroll
            for (uint32_t k = 0; k < CHOOSE_TOKENS; k++)
                in |= (uint32_t)(first + k - op.first < op.n) << k;
            least += draw_add<CHOOSE_TOKENS>(sums, value, in, sure);
        }
    }
    return least;
}

/* The blocks of a lane take its stretches in turns; the last one to be done finds the cut. */
static __global__ void __launch_bounds__(CUT_THREADS, CUT_BUSY)
    draw_cut_kernel(const struct choose_spread shares, const struct op_lane_draw *list, uint32_t n,
                    const struct choose_ends ends, u64 *all_sums, uint32_t *tally)
{
    __shared__ struct op_lane_draw op;
    __shared__ struct draw_from from;
    __shared__ struct draw_pages few;
    __shared__ struct draw_sums sums;
    __shared__ u64 room[32];
    __shared__ uint32_t room32[32];
    const uint32_t lane = blockIdx.y;
    const bool spreads = shares.n > 0;
    for (uint32_t i = threadIdx.x; i < DRAW_CUTS; i += CUT_THREADS) sums.low[i] = sums.high[i] = 0;
    if (spreads) choose_copy(&from.of, shares.list + lane);
    choose_open(&op, list + lane);
    for (uint32_t i = lane; blockIdx.x == 0 && i < ends.n; i += n) choose_mark_ends(ends.list[i]);
    const bool finite = spreads ? choose_open_logs(from.log, from.of) : !op.result->n_bad;
    if (!finite) { /* everything is read */
        if (blockIdx.x == 0 && threadIdx.x == 0) op.result->n_bad = 1;
        return;
    }
    u64 *const to = all_sums + (size_t)lane * DRAW_CUTS;
    u64 least = spreads ? sum_shares(&sums, &few, op.at, from) : sum_values(&sums, op.at);
    least = block_sum(least, room);
    if (threadIdx.x == 0) draw_put(&sums, 0, least);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < DRAW_CUTS; i += CUT_THREADS) {
        const u64 sum = (u64)sums.high[i] << 32 | sums.low[i];
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

static __device__ inline uint32_t draw_chance(struct draw_by v, float value)
{
    const float bits = value * v.by;
    return !(value < v.cut) ? 0 : bits < 0x1p32f ? (uint32_t)bits : UINT32_MAX;
}

/* Of the chances of some items, by the lane that they are dealt to, and the items that are certain.
 */
struct draw_part {
    u64 chance[OP_DRAW_LANES];
    uint32_t n_certain;
};

/* Of a warp's stretch lanes 4 r .. 4 r + 3 have two pages, 64 r items on: lane 4 r + j has of turn
 * s the items 16 s + 4 j .. + 3, which are always dealt to the same draw lanes. */
static __device__ __forceinline__ uint32_t draw_item(uint32_t s)
{
    const uint32_t lane = threadIdx.x % 32;
    return lane / 4 * 2 * PAGE_TOK + s * OP_DRAW_LANES + lane % 4 * NEAR;
}

/* Values of a stretch that begins with item `first`; of items behind the last one, none. */
static __device__ __forceinline__ void load_stretch(float value[EACH], const struct op_draw &op,
                                                    uint32_t first)
{
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = first + draw_item(k / NEAR) + k % NEAR;
        value[k] = i < op.n ? op.value[i] : 0.0f;
    }
}

/* The same of shares that are made here: items begin with a page. */
static __device__ __forceinline__ void make_stretch(float value[EACH], const struct op_draw &op,
                                                    const struct draw_from &from, uint32_t first)
{
    const struct op_share_planes &at = from.of.at;
    const uint32_t tok = op.first + first + draw_item(0), last = at.n_page - 1;
    const uint32_t page[2] = {min(tok / PAGE_TOK, last), min(tok / PAGE_TOK + 1, last)};
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) value[k] = 0;
#pragma unroll 4
    for (uint32_t g = 0; g < at.group; g++)
#pragma unroll
        for (uint32_t s = 0; s < TURNS; s++) {
            const uint32_t p = page[s / 2], t = s % 2 * OP_DRAW_LANES + tok % PAGE_TOK;
            const uint32_t e = *(const uint32_t *)(choose_exps(at, g) + p * PAGE_TOK + t);
            choose_add(value + s * NEAR, e, choose_by(at, from.log, g, p));
        }
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++)
        if (first + draw_item(k / NEAR) + k % NEAR >= op.n) value[k] = 0;
}

/* Adds up a stretch, by a warp; `mine` gets what this thread's draw lanes have added up to before
 * it. */
static __device__ __forceinline__ void add_stretch(struct draw_part *to, uint32_t mine[NEAR],
                                                   const float value[EACH], struct draw_by v)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t n = 0;
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) {
        u64 sum = 0;
#pragma unroll
        for (uint32_t s = 0; s < TURNS; s++) {
            sum += draw_chance(v, value[s * NEAR + k]);
            n += !(value[s * NEAR + k] < v.cut);
        }
        const u64 own = sum;
#pragma unroll
        for (uint32_t by = 4; by < 32; by *= 2) {
            const u64 other = __shfl_up_sync(~0u, sum, by);
            if (lane >= by) sum += other;
        }
        mine[k] = (uint32_t)(sum - own);
        if (lane >= 28) to->chance[lane % 4 * NEAR + k] = sum;
    }
    for (int by = 16; by > 0; by /= 2) n += __shfl_xor_sync(~0u, n, by);
    if (lane == 0) to->n_certain = n;
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

/* What lanes of the draw have added up to before an item, and the items that are certain. */
struct draw_place {
    u64 sum; /* of lane threadIdx.x % OP_DRAW_LANES */
    uint32_t n_certain;
};

/* Items that are listed before it. */
static __device__ inline uint32_t listed_before(const struct draw_place &to)
{
    uint32_t at = (uint32_t)(to.sum >> 32);
    for (int j = OP_DRAW_LANES / 2; j > 0; j /= 2) at += __shfl_xor_sync(~0u, at, j);
    return at + to.n_certain;
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

/* Bits of this thread's items that are taken, `sum` being what its draw lanes have added up to
 * before them. */
static __device__ __forceinline__ uint32_t choose_items(const float value[EACH], struct draw_by v,
                                                        const uint32_t sum[NEAR])
{
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) {
        uint32_t up_to = sum[k];
#pragma unroll
        for (uint32_t s = 0; s < TURNS; s++) {
            const float x = value[s * NEAR + k];
            const uint32_t chance = draw_chance(v, x);
            up_to += chance;
            bits |= (uint32_t)(!(x < v.cut) || up_to < chance) << (s * NEAR + k);
        }
    }
    return bits;
}

/* Bits of the page's items that lane % 2 stands for of the two that four lanes have, put together
 * of their threads'. */
static __device__ __forceinline__ u64 gather_pages(uint32_t bits)
{
    u64 both = 0;
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++)
        both |= (u64)(bits >> s * NEAR & 15u) << (s * OP_DRAW_LANES + threadIdx.x % 4 * NEAR);
    both |= __shfl_xor_sync(~0u, both, 1);
    return both | __shfl_xor_sync(~0u, both, 2);
}

static __device__ __forceinline__ uint32_t count_bits(u64 x)
{
    return (uint32_t)__popc((uint32_t)x) + (uint32_t)__popc((uint32_t)(x >> 32));
}

/* What a warp has taken of a stretch, behind each other: values, and places in the stretch. */
struct draw_room {
    float value[STRETCH];
    uint16_t place[STRETCH];
};

/* Lists them from number `at` on: few are taken, so all lanes take logs of what some had. */
static __device__ __forceinline__ void list_taken_items(const struct op_draw &op,
                                                        const struct draw_room &room, float cut,
                                                        uint32_t first, uint32_t at, uint32_t n)
{
    __syncwarp(); /* all of them are there */
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32) {
        const float x = room.value[i];
        op.item[at + i] = op.first + first + room.place[i];
        op.logw[at + i] = x < cut ? logf(cut / x) : 0.0f;
    }
}

/* What a thread has of its warp's stretch, which begins with item `first`. */
struct draw_stretch {
    float value[EACH];
    uint32_t sum[NEAR]; /* what its draw lanes have added up to before these */
    uint32_t first;
};

/* Takes from a warp's stretch, to number `at` of the list; returns the bits of one of the two pages
 * that four threads have to two of these, to others none. */
static __device__ __forceinline__ uint32_t take_stretch(const struct op_draw &op,
                                                        struct draw_room &room,
                                                        const struct draw_stretch &from,
                                                        struct draw_by v, uint32_t at)
{
    const uint32_t lane = threadIdx.x % 32, bits = choose_items(from.value, v, from.sum);
    const u64 both = gather_pages(bits);
    uint32_t up_to = count_bits(both);
    const uint32_t own = up_to;
#pragma unroll
    for (uint32_t by = 4; by < 32; by *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, up_to, by);
        if (lane >= by) up_to += other;
    }
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++) {
        const uint32_t place = draw_item(s);
        uint32_t to = up_to - own + count_bits(both & (((u64)1 << place % (2 * PAGE_TOK)) - 1));
#pragma unroll
        for (uint32_t k = 0; k < NEAR; k++) {
            if (!(bits >> (s * NEAR + k) & 1)) continue;
            room.value[to] = from.value[s * NEAR + k];
            room.place[to++] = (uint16_t)(place + k);
        }
    }
    list_taken_items(op, room, v.cut, from.first, at, __shfl_sync(~0u, up_to, 31));
    return lane % 4 == 0 ? (uint32_t)both : lane % 4 == 1 ? (uint32_t)(both >> 32) : 0;
}

/* A block takes from a piece; returns the bits of items, as take_stretch does. `from`: where shares
 * come from that are not there; or NULL. */
static __device__ uint32_t take_piece(const struct op_lane_draw &op, const struct draw_from *from,
                                      uint32_t piece, float cut, struct draw_part *part,
                                      struct draw_part *room)
{
    const uint32_t warp = threadIdx.x / 32;
    const struct draw_by v = draw_by_of(cut);
    __shared__ struct draw_room taken[WARPS];
    struct draw_stretch mine;
    mine.first = piece * OP_DRAW_ITEMS + warp * STRETCH;
    if (from)
        make_stretch(mine.value, op.at, *from, mine.first);
    else
        load_stretch(mine.value, op.at, mine.first);
    add_stretch(&part[warp], mine.sum, mine.value, v);
    __syncthreads();
    if (warp == 0) tell_piece(&op.piece[piece], part);
    wait_for_pieces(op.piece, piece);
    struct draw_place to = place_piece(op.piece, piece, room);
    for (uint32_t w = 0; w < warp; w++) {
        to.sum += part[w].chance[threadIdx.x % OP_DRAW_LANES];
        to.n_certain += part[w].n_certain;
    }
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++)
        mine.sum[k] += __shfl_sync(~0u, (uint32_t)to.sum, threadIdx.x % 4 * NEAR + k);
    return take_stretch(op.at, taken[warp], mine, v, listed_before(to));
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
    const struct op_lane_shares *shares; /* of which values are made; NULL: they are there */
    const struct op_lane_list *list;     /* NULL: others make lists */
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
        list_marked(*list, r, dense, dense ? 0 : r.n_tok, lines, marked_room);
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
    __shared__ struct draw_from from;
    __shared__ struct draw_part room[WARPS], part[WARPS];
    __shared__ struct page_lines lines;
    __shared__ struct marked_room marked_room;
    __shared__ uint32_t turn;
    list_open_lines(&lines, all_lines);
    if (of.list) choose_copy(&list, of.list + blockIdx.y);
    if (of.shares) choose_copy(&from.of, of.shares + blockIdx.y);
    choose_open(&op, of.draw + blockIdx.y);
    const float cut = __ldcg(&op.state->cut); /* no number that counts if the lane is bad */
    const bool bad = op.result->n_bad;
    const uint32_t n_piece = bad ? 0 : (op.at.n + OP_DRAW_ITEMS - 1) / OP_DRAW_ITEMS;
    if (threadIdx.x == 0) {
        const uint32_t next = atomicAdd(&op.state->n_left, 1u); /* on its way with what is above */
        turn = bad ? blockIdx.x : next;
    }
    if (of.shares) (void)choose_open_logs(from.log, from.of);
    __syncthreads();
    if (turn == n_piece) end_draw(op, of.list ? &list : NULL, lines, room, marked_room);
    if (turn >= n_piece) return;
    const uint32_t word = take_piece(op, of.shares ? &from : NULL, turn, cut, part, room);
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
    const uint32_t n_need = shares.n > 0 ? (shares.n_page + CUT_THREADS - 1) / CUT_THREADS
                                         : (most + CUT_ITEMS - 1) / CUT_ITEMS;
    TRY(queue_launch(d, "cut of a draw", draw_cut_kernel, dim3(n_need < busy ? n_need : busy, n),
                     CUT_THREADS, 0, shares, list, n, ends, d->draw_sums, d->tally));
    const uint32_t n_piece = (most + OP_DRAW_ITEMS - 1) / OP_DRAW_ITEMS;
    return take(d, {list, shares.n > 0 ? shares.list : NULL, NULL, n, n_piece}, no_lines);
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
