/* draw_cut.cu: the cut of each draw (op_lane_draw): the highest of DRAW_CUTS candidates for which
 * cut * (sum of values below the cut) <= variance.
 *
 * A block builds in shared memory the histogram of value sums between neighbouring cuts, in fixed
 * point (units of 2^-63), so the order of atomics does not show and one pass over the values finds
 * the cut. Blocks of a lane add their histograms in global memory; the last one scans it and
 * evaluates all candidates at once. Where values are shares to be made from exponentials, a page
 * whose largest share lies below a cut that the variance allows in any case, as nearly always,
 * contributes its sum only; tokens of the other pages are made one by one. Results differ from the
 * CPU's only by the rounding of sums. */
#include "ops/cuda/draw.cuh"

#define THREADS 512u
#define EACH    (DRAW_CUTS / THREADS)
#define ITEMS   (THREADS * CHOOSE_TOKENS) /* of a block at a time */
#define LOTS    4u                        /* pages of a thread at a time, at most */
#define BUSY    1u /* resident blocks of a multiprocessor: draw.cu's prefetch beside them */

/* The candidates: draw_ref.c bisects the bits between the least cut and 2 until they are less than
 * OP_DRAW_STEP apart, so cut i has the bits DRAW_LEAST + i * DRAW_WIDTH. */
#define DRAW_LEAST 0x2b800000u /* the bits of OP_DRAW_LEAST */
#define DRAW_WIDTH ((0x40000000u - DRAW_LEAST) / DRAW_CUTS)

static_assert(DRAW_WIDTH <= OP_DRAW_STEP && 2 * DRAW_WIDTH > OP_DRAW_STEP, "as many as that");
static_assert(DRAW_WIDTH * DRAW_CUTS == 0x40000000u - DRAW_LEAST, "none is rounded");

/* The block's histogram in 2^-63: entry 0 has values below cut 0, entry i those between cuts i - 1
 * and i. 64 bits in two words, as shared memory has no 64-bit add. */
struct draw_sums {
    uint32_t low[DRAW_CUTS], high[DRAW_CUTS];
};

/* A float in units of 2^-63, rounded down. */
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

/* The cut that is allowed in any case, as the values below it sum to 1 at most, but for
 * rounding. */
static __device__ inline uint32_t draw_sure(const struct op_draw &op)
{
    const uint32_t bits = __float_as_uint((float)op.variance / 2);
    return bits < DRAW_LEAST ? 0 : min((bits - DRAW_LEAST) / DRAW_WIDTH, DRAW_CUTS - 1);
}

/* Adds N values of a stretch with a fixed start; bit k of `in` says whether value k counts. Values
 * below the sure cut, as most are, are added in f32 first; that sum is returned, for entry 0. */
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
        if (i < DRAW_CUTS) draw_put(s, i, draw_whole(bits)); /* else above all cuts */
    }
    return draw_whole(__float_as_uint(low));
}

/* The highest cut that the variance allows, as draw_ref.c. mine: the histogram entries of this
 * thread. */
static __device__ float find_draw_cut(const struct op_draw &op, const u64 mine[EACH], u64 *room,
                                      uint32_t *room32)
{
    u64 all, of_thread = 0;
    uint32_t n_may = 0;
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) of_thread += mine[k];
    u64 below = block_exclusive_sum(of_thread, room, &all);
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = threadIdx.x * EACH + k, bits = DRAW_LEAST + i * DRAW_WIDTH;
        below += mine[k];
        const double sum = (double)below * 0x1p-63;
        const bool may = i > 0 && (double)__uint_as_float(bits) * sum <= op.variance;
        n_may += may;
    }
    return __uint_as_float(DRAW_LEAST + block_sum(n_may, room32) * DRAW_WIDTH);
}

/* Prepares the sampling: no piece has published its sums. */
static __device__ void clear_prefixes(const struct op_lane_draw &op, float cut)
{
    for (uint32_t i = threadIdx.x; i < draw_pieces(op) * OP_DRAW_LANES; i += THREADS)
        draw_prefix_of(op)[i / OP_DRAW_LANES].word[i % OP_DRAW_LANES] = 0;
    if (threadIdx.x == 0) op.state->cut = cut;
}

/* Adds values in global memory; the block has every gridDim.x-th stretch. */
static __device__ u64 sum_values(struct draw_sums *sums, const struct op_draw &op)
{
    const uint32_t sure = draw_sure(op);
    u64 least = 0;
    for (uint32_t at = blockIdx.x * ITEMS; at < op.n; at += gridDim.x * ITEMS) {
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

/* Pages of the block whose tokens must be made one by one. */
struct draw_pages {
    uint32_t page[LOTS * THREADS], n;
};

/* For the LOTS pages p, p + THREADS, ... of a thread: the sums of their shares, and bounds of their
 * largest shares, including the rounding of f16 (DRAW_OVER). */
static __device__ __forceinline__ void add_pages(float sum[LOTS], float most[LOTS],
                                                 const struct draw_from &from, uint32_t p)
{
    const struct op_share_planes &at = from.of.at;
    const uint32_t last = at.n_page - 1, group = at.group;
#pragma unroll
    for (uint32_t k = 0; k < LOTS; k++) sum[k] = most[k] = 0;
#pragma unroll 4
    for (uint32_t g = 0; g < group; g++) {
        const float *const sums = choose_sums(at, g);
#pragma unroll
        for (uint32_t k = 0; k < LOTS; k++) {
            const uint32_t page = min(p + k * THREADS, last);
            const float by = choose_by(at, from.log, g, page);
            most[k] += by;
            sum[k] = fmaf(sums[page], by, sum[k]);
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < LOTS; k++) most[k] *= DRAW_OVER * exp2f(CHOOSE_UP);
}

/* Adds a page: its sum, if all its tokens belong to the draw and none can reach the sure cut; else
 * puts it on the list. */
static __device__ __forceinline__ u64 sum_page(struct draw_pages *few, const struct op_draw &op,
                                               uint32_t p, float sum, float most, uint32_t sure)
{
    const uint32_t begin = p * PAGE_TOK, end = op.first + op.n;
    if (begin + PAGE_TOK <= op.first || begin >= end) return 0;
    const bool whole = begin >= op.first && begin + PAGE_TOK <= end;
    if (whole && __float_as_uint(most) < DRAW_LEAST + sure * DRAW_WIDTH)
        return draw_whole(__float_as_uint(sum));
    few->page[atomicAdd(&few->n, 1u)] = p;
    return 0;
}

/* Adds shares made here; the block has every gridDim.x-th group of n_lot * THREADS pages. */
static __device__ u64 sum_shares(struct draw_sums *sums, struct draw_pages *few,
                                 const struct op_draw &op, const struct draw_from &from,
                                 uint32_t n_lot)
{
    constexpr uint32_t parts = PAGE_TOK / CHOOSE_TOKENS;
    const uint32_t sure = draw_sure(op), n = n_lot * THREADS;
    u64 least = 0;
    for (uint32_t p = blockIdx.x * n; p < from.of.at.n_page; p += gridDim.x * n) {
        __syncthreads(); /* the last group's list has been read */
        if (threadIdx.x == 0) few->n = 0;
        __syncthreads();
        float sum[LOTS], most[LOTS];
        add_pages(sum, most, from, p + threadIdx.x);
#pragma unroll
        for (uint32_t k = 0; k < LOTS; k++) {
            const uint32_t page = p + k * THREADS + threadIdx.x;
            if (k < n_lot && page < from.of.at.n_page)
                least += sum_page(few, op, page, sum[k], most[k], sure);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < few->n * parts; i += THREADS) {
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

struct cut_call {
    struct choose_spread shares;     /* to make values from; n 0: values are in memory */
    const struct op_lane_draw *list; /* [n] on the device */
    uint32_t n, n_lot;
    struct choose_ends ends;
    u64 *sums;       /* [n][DRAW_CUTS], over the blocks of a lane */
    uint32_t *tally; /* [n] for block_is_last */
};

/* Grid: blocks of a lane by lanes. The last block of a lane finds the cut. */
static __global__ void __launch_bounds__(THREADS, BUSY) draw_cut_kernel(const struct cut_call call)
{
    __shared__ struct op_lane_draw op;
    __shared__ struct draw_from from;
    __shared__ struct draw_pages few;
    __shared__ struct draw_sums sums;
    __shared__ u64 room[32];
    __shared__ uint32_t room32[32];
    const uint32_t lane = blockIdx.y;
    const bool spreads = call.shares.n > 0;
    for (uint32_t i = threadIdx.x; i < DRAW_CUTS; i += THREADS) sums.low[i] = sums.high[i] = 0;
    if (spreads) choose_copy(&from.of, call.shares.list + lane);
    choose_open(&op, call.list + lane);
    for (uint32_t i = lane; blockIdx.x == 0 && i < call.ends.n; i += call.n)
        choose_mark_ends(call.ends.list[i]);
    const bool finite = spreads ? choose_make_logs(from.log, from.of) : !op.result->n_bad;
    if (spreads && blockIdx.x == 0 && threadIdx.x < from.of.at.group)
        from.of.lse[threadIdx.x] = from.log[threadIdx.x]; /* for draw.cu */
    if (!finite) {                                        /* everything is read */
        if (blockIdx.x == 0 && threadIdx.x == 0) op.result->n_bad = 1;
        return;
    }
    u64 *const to = call.sums + (size_t)lane * DRAW_CUTS + threadIdx.x * EACH;
    u64 least =
        spreads ? sum_shares(&sums, &few, op.at, from, call.n_lot) : sum_values(&sums, op.at);
    u64 mine[EACH];
    least = block_sum(least, room);
    if (threadIdx.x == 0) draw_put(&sums, 0, least);
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = threadIdx.x * EACH + k;
        mine[k] = (u64)sums.high[i] << 32 | sums.low[i];
        if (mine[k] && gridDim.x > 1) atomicAdd(&to[k], mine[k]);
    }
    if (gridDim.x > 1) {
        if (!block_is_last(call.tally + lane, gridDim.x)) return;
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) {
            mine[k] = __ldcg(&to[k]);
            to[k] = 0;
        }
    }
    clear_prefixes(op, find_draw_cut(op.at, mine, room, room32));
}

sac_status draw_find_cuts(struct cuda_device *d, const struct choose_spread &shares,
                          const struct op_lane_draw *list, uint32_t n, uint32_t most,
                          const struct choose_ends &ends)
{
    const uint32_t busy = choose_larger(BUSY * d->n_sm / n, 1);
    const uint32_t need = shares.n > 0 ? (shares.n_page + THREADS - 1) / THREADS
                                       : (most + ITEMS - 1) / ITEMS; /* in stretches */
    const uint32_t each = (need + busy - 1) / busy, n_lot = each < LOTS ? each : LOTS;
    const uint32_t n_block = (need + n_lot - 1) / n_lot;
    const struct cut_call call = {shares, list, n, n_lot, ends, d->draw_sums, d->tally};
    return queue_launch(d, "cut of a draw", draw_cut_kernel,
                        dim3(n_block < busy ? n_block : busy, n), THREADS, 0, call);
}
