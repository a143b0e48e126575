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

#define THREADS 128u
#define WARPS   (THREADS / 32)
#define EACH    (OP_DRAW_ITEMS / THREADS) /* items of a thread */
#define STRETCH (EACH * 32)               /* items of a warp: 32 pages */
#define NEAR    8u                        /* of a thread's that are neighbours */
#define TURNS   (EACH / NEAR)             /* of a thread's: draw lanes are dealt once in each */
#define MARKED  32u                       /* pages of a thread that lists what is marked */
#define HEADS   4u                        /* whose exponentials a warp has together */

/* Cuts that a draw can have: draw_ref.c halves the bits between the least one and 2 until they are
 * less than OP_DRAW_STEP apart, so the bits of cut i are DRAW_LEAST + i * DRAW_WIDTH. */
#define DRAW_LEAST  0x2b800000u /* OP_DRAW_LEAST */
#define DRAW_WIDTH  ((0x40000000u - DRAW_LEAST) / DRAW_CUTS)
#define CUT_THREADS 256u
#define CUT_EACH    (DRAW_CUTS / CUT_THREADS)
#define CUT_ITEMS   (CUT_THREADS * CHOOSE_TOKENS) /* that a block looks at together */
#define CUT_PAGES   (2 * CUT_THREADS)             /* the same of pages */
#define TAKE_BLOCKS 6u    /* of a multiprocessor at once: they wait for memory and each other */
#define OVER        1.02f /* of what halves add up to, for as many heads as there may be */
#define CUT_BUSY    4u    /* blocks of a multiprocessor at once */

static_assert(DRAW_WIDTH <= OP_DRAW_STEP && 2 * DRAW_WIDTH > OP_DRAW_STEP, "as many as that");
static_assert(DRAW_WIDTH * DRAW_CUTS == 0x40000000u - DRAW_LEAST, "none is rounded");
static_assert(2 * NEAR == OP_DRAW_LANES, "two threads have all draw lanes");
static_assert(TURNS * OP_DRAW_LANES == 2 * PAGE_TOK, "and two pages");
static_assert(STRETCH == 32 * PAGE_TOK, "a thread of a warp for each of its pages");

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

/* What a piece adds up to, in the place of an op_draw_piece: for each draw lane the low word of its
 * sum of chances and, above it, how often that has passed 2^32; the items that are certain are
 * counted with the first lane's. A word says of itself whether it has been told. */
struct draw_told {
    uint64_t word[OP_DRAW_LANES];
};
#define TOLD ((uint64_t)1 << 63)
static_assert(sizeof(struct draw_told) <= sizeof(struct op_draw_piece), "there is room");

static __device__ __forceinline__ struct draw_told *draw_told_of(const struct op_lane_draw &op)
{
    return (struct draw_told *)op.piece;
}

static __device__ __forceinline__ uint32_t draw_pieces(const struct op_lane_draw &op)
{
    return (op.at.n + OP_DRAW_ITEMS - 1) / OP_DRAW_ITEMS;
}

/* For the taking: no piece is taken, none has told what it adds up to. */
static __device__ void begin_taking(const struct op_lane_draw &op, float cut)
{
    for (uint32_t i = threadIdx.x; i < draw_pieces(op) * OP_DRAW_LANES; i += CUT_THREADS)
        draw_told_of(op)[i / OP_DRAW_LANES].word[i % OP_DRAW_LANES] = 0;
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
    float log[OP_GROUP_MAX]; /* choose_make_logs */
};

/* Pages of a block whose tokens are to be looked at one by one. */
struct draw_pages {
    uint32_t page[CUT_PAGES], n;
};

/* Pages that a block's threads have each, if they are the draw's. No share of a page is more than
 * what its largest exponentials make, rounding of halves and all (OVER): where that is below the
 * cut that is sure, as for most, its sum will do. Others are put down. */
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
    if (whole && __float_as_uint(most * (OVER * exp2f(CHOOSE_UP))) < DRAW_LEAST + sure * DRAW_WIDTH)
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
    for (uint32_t p = blockIdx.x * CUT_PAGES; p < from.of.at.n_page; p += gridDim.x * CUT_PAGES) {
        __syncthreads(); /* nobody reads those before any more */
        if (threadIdx.x == 0) few->n = 0;
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < CUT_PAGES; k += CUT_THREADS)
            least += sum_pages(few, op, from, p + k + threadIdx.x, sure);
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
    const bool finite = spreads ? choose_make_logs(from.log, from.of) : !op.result->n_bad;
    if (spreads && blockIdx.x == 0 && threadIdx.x < from.of.at.group)
        from.of.lse[threadIdx.x] = from.log[threadIdx.x]; /* for the taking */
    if (!finite) {                                        /* everything is read */
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

/* Of the chances of a warp's items, by the lane that they are dealt to: their sum without what has
 * passed 2^32, and the sum of their upper 20 bits; and the items that are certain. */
struct draw_part {
    uint32_t low[OP_DRAW_LANES], high[OP_DRAW_LANES];
    uint32_t n_certain;
};
#define DRAW_SHIFT 12

/* The whole sum: what the upper bits leave is less than 2^32, as items are few. */
static __device__ __forceinline__ u64 draw_sum(const struct draw_part &of, uint32_t k)
{
    const u64 high = (u64)of.high[k] << DRAW_SHIFT;
    return high + (of.low[k] - (uint32_t)high);
}
static_assert(STRETCH / OP_DRAW_LANES << DRAW_SHIFT <= 1 << 20, "few");

/* What a warp has in shared memory, one behind the other: exponentials of some heads, 64 bytes for
 * two lanes, which have two pages; chances, in the order in which threads come to them; values of
 * shares, likewise, and places of what is taken, behind each other. */
struct draw_room {
    union {
        uint4 exps[HEADS][STRETCH / 16];
        uint4 chance[EACH / 4][32];
        struct {
            uint4 value[TURNS][32];
            uint16_t place[STRETCH];
        };
    };
    uint32_t weight[HEADS][32]; /* of pages: choose_weight */
    float by[32];
};

/* What a thread has of its warp's stretch, which begins with item `first`: lane 2 r + j has of turn
 * s the items 64 r + 16 s + 8 j .. + 7, which are always dealt to the same draw lanes. */
struct draw_stretch {
    uint32_t share[TURNS][NEAR / 2]; /* of shares that are made here: choose_meet */
    uint32_t sum[NEAR];              /* what its draw lanes have added up to before these */
    uint32_t certain;                /* bits */
    uint32_t first;
    bool made; /* shares; else values are there */
};

static __device__ __forceinline__ uint32_t draw_item(uint32_t s)
{
    const uint32_t lane = threadIdx.x % 32;
    return lane / 2 * 2 * PAGE_TOK + s * OP_DRAW_LANES + lane % 2 * NEAR;
}

/* Copies the exponentials of heads from g0 on: 16 bytes of each eight lines of banks apart. */
static __device__ __forceinline__ void
fetch_exps(struct draw_room &room, const struct op_share_planes &at, uint32_t g0, uint32_t page0)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < HEADS * 2; i++) {
        const uint32_t g = g0 + i / 2, n = i % 2 * 32 + lane, r = n / 4;
        const uint32_t page = min(page0 + n / 2, at.n_page - 1);
        const uint8_t *from = choose_exps(at, g) + page * PAGE_TOK + n % 2 * 16;
        if (g < at.group)
            copy_async16(smem_address(&room.exps[i / 2][r * 4 + (n % 4 ^ r / 2 % 4)]), from);
    }
    copy_commit();
}

/* Makes the shares of a stretch, by a warp; page by page lanes make what these are multiplied by.
 */
static __device__ __forceinline__ void make_shares(struct draw_stretch &to, struct draw_room &room,
                                                   const struct draw_from &from, uint32_t page0)
{
    const struct op_share_planes &at = from.of.at;
    const uint32_t lane = threadIdx.x % 32, r = lane / 2, page = min(page0 + lane, at.n_page - 1);
    fetch_exps(room, at, 0, page0);
    const float most = choose_most(at, from.log, page);
    room.by[lane] = choose_unit(at, most);
#pragma unroll
    for (uint32_t i = 0; i < EACH / 2; i++) to.share[i / (NEAR / 2)][i % (NEAR / 2)] = 0;
    for (uint32_t g0 = 0; g0 < at.group; g0 += HEADS) {
        const uint32_t n = min(HEADS, at.group - g0);
        for (uint32_t g = 0; g < n; g++)
            room.weight[g][lane] = choose_weight(at, from.log, g0 + g, page, most);
        copy_wait<0>();
        __syncwarp(); /* all of it is there */
        for (uint32_t g = 0; g < n; g++) {
            const uint2 weight = *(const uint2 *)&room.weight[g][r * 2];
#pragma unroll
            for (uint32_t s = 0; s < TURNS; s++) {
                const uint4 *e16 = &room.exps[g][r * 4 + (s ^ r / 2 % 4)];
                const uint2 e = ((const uint2 *)e16)[lane % 2];
                choose_meet(to.share[s], e.x, s / 2 ? weight.y : weight.x);
                choose_meet(to.share[s] + 2, e.y, s / 2 ? weight.y : weight.x);
            }
        }
        __syncwarp(); /* nobody reads it any more */
        if (g0 + HEADS < at.group) fetch_exps(room, at, g0 + HEADS, page0);
    }
}

/* Values of a turn: of shares that are made here, or those that are there; behind the last item,
 * none. */
static __device__ __forceinline__ void turn_values(float value[NEAR], const struct draw_stretch &of,
                                                   const struct draw_room &room,
                                                   const struct op_draw &op, uint32_t s)
{
    const uint32_t first = of.first + draw_item(s);
    const float by = of.made ? room.by[threadIdx.x % 32 / 2 * 2 + s / 2] : 0;
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k += 2) {
        const float2 both = half_unpack<HALF_F16>(of.share[s][k / 2]);
        value[k] = both.x * by;
        value[k + 1] = both.y * by;
    }
    if (of.made && first + NEAR <= op.n) return;
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++)
        if (first + k >= op.n)
            value[k] = 0;
        else if (!of.made)
            value[k] = op.value[first + k];
}

/* Sums of eight words over the 16 lanes of the same j: lane 4 i + j or 4 i + 2 + j has those of
 * word i, put together of bits 4, 3 and 2 of the lane. */
static __device__ __forceinline__ uint32_t sum_eight(uint32_t x[NEAR])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t n = NEAR / 2; n > 0; n /= 2) {
        const bool upper = lane & n * 4;
#pragma unroll
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + n], (int)(n * 4));
            x[i] = (upper ? x[i + n] : x[i]) + other;
        }
    }
    return x[0] + __shfl_xor_sync(~0u, x[0], 2);
}

/* Adds up a stretch, by a warp: chances go to the room. */
static __device__ __forceinline__ void add_stretch(struct draw_part *to, struct draw_stretch &mine,
                                                   struct draw_room &room, const struct op_draw &op,
                                                   struct draw_by v)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t high[NEAR] = {}, n;
    mine.certain = 0;
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) mine.sum[k] = 0;
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++) {
        float value[NEAR];
        uint32_t chance[NEAR];
        turn_values(value, mine, room, op, s);
#pragma unroll
        for (uint32_t k = 0; k < NEAR; k++) {
            chance[k] = draw_chance(v, value[k]);
            mine.certain |= (uint32_t) !(value[k] < v.cut) << (s * NEAR + k);
            mine.sum[k] += chance[k];
            high[k] += chance[k] >> DRAW_SHIFT;
        }
        room.chance[2 * s][lane] = make_uint4(chance[0], chance[1], chance[2], chance[3]);
        room.chance[2 * s + 1][lane] = make_uint4(chance[4], chance[5], chance[6], chance[7]);
    }
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) {
        const uint32_t own = mine.sum[k];
#pragma unroll
        for (uint32_t by = 2; by < 32; by *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, mine.sum[k], by);
            if (lane >= by) mine.sum[k] += other;
        }
        if (lane >= 30) to->low[lane % 2 * NEAR + k] = mine.sum[k];
        mine.sum[k] -= own;
    }
    const uint32_t all = sum_eight(high);
    if (!(lane & 2)) to->high[lane % 2 * NEAR + lane / 4] = all;
    n = (uint32_t)__popc(mine.certain);
    for (int by = 16; by > 0; by /= 2) n += __shfl_xor_sync(~0u, n, by);
    if (lane == 0) to->n_certain = n;
}

/* Tells what the stretches of a piece add up to, by a warp. */
static __device__ void tell_piece(struct draw_told *to, const struct draw_part *part)
{
    const uint32_t lane = threadIdx.x % 32;
    u64 sum = 0;
    if (lane >= OP_DRAW_LANES) return;
    for (uint32_t w = 0; w < WARPS; w++) {
        sum += draw_sum(part[w], lane);
        if (lane == 0) sum += (u64)part[w].n_certain << 32;
    }
    word_tell(&to->word[lane], TOLD | sum);
}

/* ---- Taking ---- */

/* What lanes of the draw have added up to before an item, how often that has passed 2^32 being
 * counted apart for some of it; the items that are certain are counted with the first one's. */
struct draw_place {
    u64 sum; /* of lane threadIdx.x % OP_DRAW_LANES */
    uint32_t n;
};

/* Items that are listed before it. */
static __device__ inline uint32_t listed_before(const struct draw_place &to)
{
    uint32_t at = to.n + (uint32_t)(to.sum >> 32);
    for (int j = OP_DRAW_LANES / 2; j > 0; j /= 2) at += __shfl_xor_sync(~0u, at, j);
    return at;
}

#define LOOKS 4u /* at pieces, by a thread together */

/* The pieces before this one, by all warps, when all of these have told. */
static __device__ struct draw_place place_piece(const struct draw_told *told, uint32_t n,
                                                struct draw_place (*room)[OP_DRAW_LANES])
{
    constexpr uint32_t step = THREADS / OP_DRAW_LANES;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = lane % OP_DRAW_LANES;
    struct draw_place at = {0, 0};
    for (uint32_t p = threadIdx.x / OP_DRAW_LANES; p < n; p += step * LOOKS) {
        uint64_t word[LOOKS];
        for (bool all = false; !all;) {
            all = true;
#pragma unroll
            for (uint32_t i = 0; i < LOOKS; i++)
                word[i] = p + i * step < n ? word_told(&told[p + i * step].word[k]) : TOLD;
#pragma unroll
            for (uint32_t i = 0; i < LOOKS; i++) all = all && word[i] & TOLD;
        }
#pragma unroll
        for (uint32_t i = 0; i < LOOKS; i++) {
            at.sum += (uint32_t)word[i];
            at.n += (uint32_t)(word[i] >> 32) & ~(1u << 31);
        }
    }
    __syncwarp();
    at.sum += __shfl_xor_sync(~0u, at.sum, (int)OP_DRAW_LANES);
    at.n += __shfl_xor_sync(~0u, at.n, (int)OP_DRAW_LANES);
    if (lane < OP_DRAW_LANES) room[warp][lane] = at;
    __syncthreads();
    at.sum = (2 * k + 1) * (UINT32_MAX / (2 * OP_DRAW_LANES) + 1); /* op_draw_begin */
    at.n = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        at.sum += room[w][k].sum;
        at.n += room[w][k].n;
    }
    return at;
}

/* Bits of this thread's items that are taken. */
static __device__ __forceinline__ uint32_t choose_items(const struct draw_stretch &of,
                                                        const struct draw_room &room)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t bits = of.certain, sum[NEAR];
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++) sum[k] = of.sum[k];
#pragma unroll
    for (uint32_t s = 0; s < TURNS; s++) {
        const uint4 a = room.chance[2 * s][lane], b = room.chance[2 * s + 1][lane];
        const uint32_t chance[NEAR] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (uint32_t k = 0; k < NEAR; k++) {
            sum[k] += chance[k];
            bits |= (uint32_t)(sum[k] < chance[k]) << (s * NEAR + k);
        }
    }
    return bits;
}

/* Bits of the tokens of page threadIdx.x % 32 of the stretch, of which two lanes have two. */
static __device__ __forceinline__ uint32_t gather_page(uint32_t bits)
{
    const uint32_t j = threadIdx.x % 2, mine = __byte_perm(bits >> 16 * j, 0, 0x4140);
    const uint32_t others = __byte_perm(bits >> 16 * (1 - j), 0, 0x4140);
    return mine << 8 * j | __shfl_xor_sync(~0u, others << 8 * j, 1);
}

/* The share of an item of the stretch, which is there as a half. */
static __device__ __forceinline__ float made_share(const struct draw_room &room, uint32_t place)
{
    const uint32_t page = place / PAGE_TOK, t = place % PAGE_TOK;
    const uint32_t s = page % 2 * 2 + t / 16, lane = page / 2 * 2 + t / NEAR % 2;
    const uint32_t both = ((const uint32_t *)&room.value[s][lane])[t % NEAR / 2];
    return half_unpack<HALF_F16>(t % 2 ? both >> 16 : both).x * room.by[page];
}

/* Lists what is taken of a stretch, from number `at` on; `word`: the tokens of a lane's page. Few
 * are taken, so all lanes take logs of what some had. */
static __device__ __forceinline__ void list_stretch(const struct op_draw &op,
                                                    struct draw_room &room,
                                                    const struct draw_stretch &of, float cut,
                                                    uint32_t at, uint32_t word)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t up_to = (uint32_t)__popc(word);
    uint32_t to = 0u - up_to;
#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, up_to, by);
        if (lane >= by) up_to += other;
    }
    const uint32_t n = __shfl_sync(~0u, up_to, 31);
    if (n == 0) return;
    to += up_to;
    __syncwarp(); /* nobody reads chances any more */
#pragma unroll
    for (uint32_t s = 0; s < TURNS && of.made; s++)
        room.value[s][lane] =
            make_uint4(of.share[s][0], of.share[s][1], of.share[s][2], of.share[s][3]);
    for (; word; word &= word - 1)
        room.place[to++] = (uint16_t)(lane * PAGE_TOK + (uint32_t)__ffs((int)word) - 1);
    __syncwarp(); /* all of them are there */
    for (uint32_t i = lane; i < n; i += 32) {
        const uint32_t place = room.place[i];
        const float x = of.made ? made_share(room, place) : op.value[of.first + place];
        op.item[at + i] = op.first + of.first + place;
        op.logw[at + i] = x < cut ? logf(cut / x) : 0.0f;
    }
}

struct take_room { /* of a block */
    struct draw_part part[WARPS];
    struct draw_place place[WARPS][OP_DRAW_LANES];
};

/* A block takes from a piece; returns the bits of a page for each lane of its warps. `from`: where
 * shares come from that are not there; or NULL. */
static __device__ uint32_t take_piece(const struct op_lane_draw &op, const struct draw_from *from,
                                      uint32_t piece, float cut, struct take_room &all)
{
    const uint32_t warp = threadIdx.x / 32;
    const struct draw_by v = draw_by_of(cut);
    struct draw_room &room = ((struct draw_room *)kernel_shared())[warp];
    struct draw_stretch mine = {};
    mine.made = from != NULL;
    mine.first = piece * OP_DRAW_ITEMS + warp * STRETCH;
    if (from) make_shares(mine, room, *from, (op.at.first + mine.first) / PAGE_TOK);
    add_stretch(&all.part[warp], mine, room, op.at, v);
    __syncthreads();
    if (warp == 0) tell_piece(&draw_told_of(op)[piece], all.part);
    struct draw_place to = place_piece(draw_told_of(op), piece, all.place);
    for (uint32_t w = 0; w < warp; w++) {
        to.sum += draw_sum(all.part[w], threadIdx.x % OP_DRAW_LANES);
        to.n += threadIdx.x % OP_DRAW_LANES == 0 ? all.part[w].n_certain : 0;
    }
#pragma unroll
    for (uint32_t k = 0; k < NEAR; k++)
        mine.sum[k] += __shfl_sync(~0u, (uint32_t)to.sum, (int)(threadIdx.x % 2 * NEAR + k));
    const uint32_t word = gather_page(choose_items(mine, room));
    list_stretch(op.at, room, mine, cut, listed_before(to), word);
    return word;
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
                                const struct page_lines &lines, struct take_room &room,
                                struct marked_room &marked_room)
{
    struct op_lane_result r = *op.result;
    if (!r.n_bad)
        tell_draw(op, &r,
                  listed_before(place_piece(draw_told_of(op), draw_pieces(op), room.place)));
    __syncthreads(); /* all have read the result */
    if (threadIdx.x == 0) *op.result = r;
    if (!list) return;
    const bool dense = r.n_bad || r.n_over;
    const struct attn_count count =
        list_marked<MARKED>(*list, r, dense, dense ? 0 : r.n_tok, lines, marked_room);
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
    __shared__ struct take_room room;
    __shared__ struct page_lines lines;
    __shared__ struct marked_room marked_room;
    __shared__ uint32_t turn;
    list_open_lines(&lines, all_lines);
    if (of.list) choose_copy(&list, of.list + blockIdx.y);
    if (of.shares) choose_copy(&from.of, of.shares + blockIdx.y);
    choose_open(&op, of.draw + blockIdx.y);
    const float cut = __ldcg(&op.state->cut); /* no number that counts if the lane is bad */
    const bool bad = op.result->n_bad;
    const uint32_t n_piece = bad ? 0 : draw_pieces(op);
    if (threadIdx.x == 0) {
        const uint32_t next = atomicAdd(&op.state->n_left, 1u); /* on its way with what is above */
        turn = bad ? blockIdx.x : next;
    }
    if (of.shares && threadIdx.x < from.of.at.group)
        from.log[threadIdx.x] = __ldcg(from.of.lse + threadIdx.x);
    __syncthreads();
    if (turn == n_piece) end_draw(op, of.list ? &list : NULL, lines, room, marked_room);
    if (turn >= n_piece) return;
    const uint32_t word = take_piece(op, of.shares ? &from : NULL, turn, cut, room);
    if (!of.list) return;
    const uint32_t n_line = block_sum(page_lines_of(lines, word), marked_room.n);
    if (threadIdx.x == 0 && n_line) atomicAdd(&list.count->n_line_tok, n_line);
}

/* ---- The launcher ---- */

static sac_status take(struct cuda_device *d, const struct draw_taken &of,
                       const struct page_lines &lines)
{
    return queue_launch(d, "draw of tokens", draw_take_kernel, dim3(of.n_piece + 1, of.n), THREADS,
                        WARPS * sizeof(struct draw_room), of, lines);
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
    const uint32_t n_need = shares.n > 0 ? (shares.n_page + CUT_PAGES - 1) / CUT_PAGES
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
