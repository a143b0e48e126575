/* draw.cu: draws of tokens by their shares (op_lane_draw, struct op_draw), each by many blocks: one
 * launch finds the cut, one what the chances of each piece of the tokens add up to, and one takes.
 *
 * A token is taken where the sum of the chances dealt to its lane passes a multiple of 2^32. So
 * what the pieces before have added up to tells a piece both what its lanes begin with and how many
 * tokens are listed before its own. Everything is whole numbers: the order in which blocks come
 * does not show. Only the sums by which the cut is found differ from the CPU's, in their rounding.
 */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define THREADS 512u
#define WARPS   (THREADS / 32)
#define EACH    (OP_DRAW_ITEMS / THREADS) /* items of a thread: every 32nd of its warp's stretch */
#define STRETCH (EACH * 32)

/* Cuts that a draw can have: draw_ref.c halves the bits between the least one and 2 until they are
 * less than OP_DRAW_STEP apart, so the bits of cut i are DRAW_LEAST + i * DRAW_WIDTH. */
#define DRAW_LEAST 0x2b800000u /* OP_DRAW_LEAST */
#define DRAW_WIDTH ((0x40000000u - DRAW_LEAST) / DRAW_CUTS)
#define CUT_EACH   (DRAW_CUTS / THREADS)

static_assert(DRAW_WIDTH <= OP_DRAW_STEP && 2 * DRAW_WIDTH > OP_DRAW_STEP, "as many as that");
static_assert(DRAW_WIDTH * DRAW_CUTS == 0x40000000u - DRAW_LEAST, "none is rounded");
static_assert(STRETCH % PAGE_TOK == 0, "the tokens of a page are a warp's");

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

/* Adds a value; returns it if it is below cut 0, as many may be, for the caller to add up. */
static __device__ inline u64 draw_add(struct draw_sums *s, float value)
{
    const uint32_t bits = __float_as_uint(value);
    if (bits < DRAW_LEAST) return draw_whole(bits);
    const uint32_t i = 1 + (bits - DRAW_LEAST) / DRAW_WIDTH;
    if (i < DRAW_CUTS) draw_put(s, i, draw_whole(bits)); /* else below no cut, or no share */
    return 0;
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

/* The blocks of a lane take its pieces in turns; the last one to be done finds the cut. */
static __global__ void __launch_bounds__(THREADS)
    draw_cut_kernel(const struct op_lane_draw *list, u64 *all_sums, uint32_t *tally)
{
    kernel_begin();
    __shared__ struct draw_sums sums;
    __shared__ u64 room[32];
    __shared__ uint32_t room32[32];
    const struct op_lane_draw &op = list[blockIdx.y];
    u64 *const to = all_sums + (size_t)blockIdx.y * DRAW_CUTS, least = 0;
    if (op.result->n_bad) return; /* everything is read */
    for (uint32_t i = threadIdx.x; i < DRAW_CUTS; i += THREADS) sums.low[i] = sums.high[i] = 0;
    __syncthreads();
    for (uint32_t at = blockIdx.x * OP_DRAW_ITEMS; at < op.at.n; at += gridDim.x * OP_DRAW_ITEMS) {
        float value[EACH];
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) {
            const uint32_t i = at + k * THREADS + threadIdx.x;
            value[k] = i < op.at.n ? op.at.value[i] : 0.0f;
        }
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) least += draw_add(&sums, value[k]);
    }
    least = block_sum(least, room);
    if (threadIdx.x == 0) draw_put(&sums, 0, least);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < DRAW_CUTS; i += THREADS) {
        const u64 sum = (u64)sums.high[i] << 32 | sums.low[i];
        if (sum) atomicAdd(&to[i], sum);
    }
    if (!block_is_last(tally + blockIdx.y, gridDim.x)) return;
    const float cut = find_draw_cut(op.at, to, room, room32);
    if (threadIdx.x == 0) op.state->cut = cut;
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

/* Values of the warp's stretch of a piece, items `first` + lane + 32 k; others are none. */
static __device__ inline void load_stretch(float value[EACH], const struct op_draw &op,
                                           uint32_t first)
{
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = first + k * 32 + threadIdx.x % 32;
        value[k] = i < op.n ? op.value[i] : 0.0f;
    }
}

static __device__ void add_stretch(struct draw_part *to, const float value[EACH], struct draw_by v)
{
    const uint32_t lane = threadIdx.x % 32;
    u64 sum = 0;
    uint32_t n = 0;
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        sum += draw_chance(v, value[k]);
        n += (uint32_t)__popc(__ballot_sync(~0u, !(value[k] < v.cut)));
    }
    sum += __shfl_xor_sync(~0u, sum, (int)OP_DRAW_LANES);
    if (lane < OP_DRAW_LANES) to->chance[lane] = sum;
    if (lane == 0) to->n_certain = n;
}

/* A block adds up a piece: low words of the sums, and how often these have passed 2^32, the items
 * that are certain counted in. */
static __global__ void __launch_bounds__(THREADS) draw_add_kernel(const struct op_lane_draw *list)
{
    kernel_begin();
    __shared__ struct draw_part part[WARPS];
    const struct op_lane_draw &op = list[blockIdx.y];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t begin = blockIdx.x * OP_DRAW_ITEMS;
    if (op.result->n_bad || begin >= op.at.n) return;
    float value[EACH];
    load_stretch(value, op.at, begin + warp * STRETCH);
    add_stretch(&part[warp], value, draw_by_of(op.state->cut));
    __syncthreads();
    if (warp > 0) return;
    u64 sum = 0;
    for (uint32_t w = 0; w < WARPS; w++) sum += part[w].chance[lane % OP_DRAW_LANES];
    uint32_t n = lane < OP_DRAW_LANES ? (uint32_t)(sum >> 32) : 0;
    n += lane < WARPS ? part[lane].n_certain : 0;
    for (int j = 16; j > 0; j /= 2) n += __shfl_xor_sync(~0u, n, j);
    if (lane < OP_DRAW_LANES) op.piece[blockIdx.x].chance[lane] = (uint32_t)sum;
    if (lane == 0) op.piece[blockIdx.x].n_taken = n;
}

/* ---- Taking ---- */

/* What lanes of the draw have added up to before an item, and the items listed before it. */
struct draw_place {
    u64 sum; /* of lane threadIdx.x % OP_DRAW_LANES */
    uint32_t n_certain;
};

/* The pieces before this one, by all warps. */
static __device__ struct draw_place place_piece(const struct op_draw_piece *piece, uint32_t n,
                                                struct draw_part *room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = lane % OP_DRAW_LANES;
    struct draw_place at = {0, 0};
    for (uint32_t p = threadIdx.x / OP_DRAW_LANES; p < n; p += THREADS / OP_DRAW_LANES) {
        at.sum += piece[p].chance[k];
        at.n_certain += piece[p].n_taken;
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

/* Takes from a warp's stretch; returns how many. */
static __device__ uint32_t take_stretch(const struct op_draw &op, const float value[EACH],
                                        struct draw_by v, uint32_t first, uint32_t sum, uint32_t at)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t n = 0;
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = first + k * 32 + lane, chance = draw_chance(v, value[k]);
        const uint32_t other = __shfl_xor_sync(~0u, chance, (int)OP_DRAW_LANES);
        const uint32_t up_to = sum + (lane < OP_DRAW_LANES ? chance : other + chance);
        const bool below = value[k] < v.cut, taken = i < op.n && (!below || up_to < chance);
        const uint32_t all = __ballot_sync(~0u, taken);
        const uint32_t to = at + n + (uint32_t)__popc(all & ((1u << lane) - 1));
        if (taken) {
            op.item[to] = op.first + i;
            op.logw[to] = below ? logf(v.cut / value[k]) : 0.0f;
        }
        sum += chance + other;
        n += (uint32_t)__popc(all);
    }
    return n;
}

static __device__ void tell_draw(const struct op_lane_draw &op, uint32_t n)
{
    op.result->n_tok += n;
    op.result->n_chosen += n;
    op.result->n_over += n + op.n_more > op.most;
}

/* A block takes from a piece; the last one of a lane tells how many there are. */
static __global__ void __launch_bounds__(THREADS) draw_take_kernel(const struct op_lane_draw *list)
{
    kernel_begin();
    __shared__ struct draw_part room[WARPS], part[WARPS];
    const struct op_lane_draw &op = list[blockIdx.y];
    const uint32_t warp = threadIdx.x / 32, begin = blockIdx.x * OP_DRAW_ITEMS;
    const uint32_t first = begin + warp * STRETCH;
    if (op.result->n_bad) return; /* everything is read */
    if (op.at.n == 0 && blockIdx.x == 0 && threadIdx.x == 0) tell_draw(op, 0);
    if (begin >= op.at.n) return;
    const struct draw_by v = draw_by_of(op.state->cut);
    float value[EACH];
    load_stretch(value, op.at, first);
    add_stretch(&part[warp], value, v);
    struct draw_place to = place_piece(op.piece, blockIdx.x, room); /* waits for all parts, too */
    for (uint32_t w = 0; w < warp; w++) {
        to.sum += part[w].chance[threadIdx.x % OP_DRAW_LANES];
        to.n_certain += part[w].n_certain;
    }
    uint32_t at = (uint32_t)(to.sum >> 32);
    for (int j = OP_DRAW_LANES / 2; j > 0; j /= 2) at += __shfl_xor_sync(~0u, at, j);
    at += to.n_certain;
    const uint32_t n = take_stretch(op.at, value, v, first, (uint32_t)to.sum, at);
    if (op.at.n - begin <= OP_DRAW_ITEMS && warp == WARPS - 1 && threadIdx.x % 32 == 0)
        tell_draw(op, at + n);
}

/* ---- The launcher ---- */

static sac_status launch(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = op[i].at.n > most ? op[i].at.n : most;
    const uint32_t n_piece = most / OP_DRAW_ITEMS + 1, busy = 2 * d->n_sm / n + 1;
    const struct op_lane_draw *list = choose_stage(d, op, n);
    if (!list) return d->status;
    TRY(queue_launch(d, "cut of a draw", draw_cut_kernel, dim3(n_piece < busy ? n_piece : busy, n),
                     THREADS, 0, list, d->draw_sums, d->tally));
    TRY(queue_launch(d, "sums of a draw", draw_add_kernel, dim3(n_piece, n), THREADS, 0, list));
    return queue_launch(d, "draw of tokens", draw_take_kernel, dim3(n_piece, n), THREADS, 0, list);
}

sac_status cuda_lane_draw(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += DRAW_LANES)
        TRY(launch(d, op + i, n - i < DRAW_LANES ? n - i : DRAW_LANES));
    return d->status;
}
