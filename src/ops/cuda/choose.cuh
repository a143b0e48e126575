/* choose.cuh: what the slots of choosing have in common (private to this folder): lists of lanes on
 * the device, and keys of pages. */
#ifndef SAC_OPS_CUDA_CHOOSE_CUH
#define SAC_OPS_CUDA_CHOOSE_CUH

#include "ops/cuda/block.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/place.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/lanes.h"

#include <float.h>
#include <math.h>

/* A list of descriptors in the ring; NULL: there is no room, which is remembered. */
template <typename T> static const T *choose_stage(struct cuda_device *d, const T *op, uint32_t n)
{
    return (const T *)stage_put(d, op, n * sizeof *op);
}

/* A block's own copy of its descriptor, which was there before the row of launches. */
template <typename T> static __device__ __forceinline__ void choose_copy(T *to, const T *from)
{
    static_assert(sizeof(T) % 4 == 0, "words");
    for (uint32_t i = threadIdx.x; i < sizeof(T) / 4; i += blockDim.x)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

/* The same of the last one: the first words of a kernel (kernel_begin). */
template <typename T> static __device__ __forceinline__ void choose_open(T *to, const T *from)
{
    choose_copy(to, from);
    kernel_begin();
    __syncthreads();
}

static inline uint32_t choose_larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* At least n, and the same for many n: launches are told how far they reach, and a graph lasts as
 * long as they are told the same (queue.cu). Of many blocks at most an eighth find nothing to do.
 */
static inline uint32_t choose_reach(uint32_t n)
{
    uint32_t step = 4;
    while (step * 16 <= n) step *= 2;
    return (n + step - 1) / step * step;
}

/* ---- Lanes that share a block ---- */

/* Rows of a batch stand behind each other in a list, so lanes i, i + n / n_lane and so on are those
 * of one KV head of several sequences, if all of these choose: a block that has them all reads the
 * pages that they have in common once. Their heads are numbered through, and are columns of matrix
 * instructions, whose sums do not depend on each other. */
struct choose_head {
    uint32_t lane_i, head;
    bool is;
};

static __device__ __forceinline__ struct choose_head choose_head_of(uint32_t i, uint32_t group,
                                                                    uint32_t n_lane)
{
    const bool is = i < n_lane * group;
    const struct choose_head h = {is ? i / group : 0, i % group, is};
    return h;
}

/* Lanes of a block: as many as n_head heads, `most`, and `least` blocks allow. */
static inline uint32_t choose_lanes_per_block(uint32_t n, uint32_t group, uint32_t n_head,
                                              uint32_t most, uint64_t least)
{
    uint32_t n_lane = n_head / group < most ? n_head / group : most;
    while (n_lane > 1 && (n % n_lane || n / n_lane < least)) n_lane--;
    return n_lane > 1 ? n_lane : 1;
}

/* Bits of a page's tokens [begin, end), positions of the sequence. */
static __device__ inline uint32_t choose_bits(uint32_t page, uint32_t begin, uint32_t end)
{
    const uint32_t first = page * PAGE_TOK;
    const uint32_t lo = begin > first ? begin - first : 0;
    const uint32_t hi = end > first ? min(end - first, PAGE_TOK) : 0;
    return lo < hi ? ~0u >> (PAGE_TOK - hi) & ~0u << lo : 0;
}

/* Takes back the launch before if it is of this kernel, whose first argument is T; else all zeros.
 */
template <typename T> static inline T choose_absorb(struct cuda_device *d, const void *kernel)
{
    T of = {};
    const void *last = queue_last(d, kernel);
    if (!last) return of;
    memcpy(&of, last, sizeof of);
    queue_drop_last(d);
    return of;
}

/* ---- Begins: a launch of scores carries them along ---- */

struct choose_begin {
    const struct op_lane_begin *list; /* [n] on the device */
    uint32_t n, n_page;               /* at least as many as one of them has */
};

/* Clears some of them: part i of n_part, which blocks take. */
static __device__ inline void choose_clear(const struct op_lane_begin &op, uint32_t i,
                                           uint32_t n_part)
{
    for (uint32_t p = i * blockDim.x + threadIdx.x; p < op.n_page; p += n_part * blockDim.x)
        op.mask[p] = 0;
    if (i > 0 || threadIdx.x > 0) return;
    *op.result = {};
    if (op.count) *op.count = {};
}

/* Takes back the launch before, if it is one; else n is 0. */
struct choose_begin choose_absorb_begin(struct cuda_device *d);

/* ---- Ends: a launch that finds a cut marks them ---- */

struct choose_ends {
    const struct op_lane_ends *list; /* [n] on the device */
    uint32_t n;
};

/* Marks them, by a block: few pages have any. */
static __device__ inline void choose_mark_ends(const struct op_lane_ends &op)
{
    const uint32_t begin = (op.begin + PAGE_TOK - 1) / PAGE_TOK, end = op.end / PAGE_TOK;
    const uint32_t n_first = min(begin, op.n_page), n_skip = end > n_first ? end - n_first : 0;
    for (uint32_t i = threadIdx.x; i + n_skip < op.n_page; i += blockDim.x) {
        const uint32_t p = i < n_first ? i : i + n_skip;
        op.mask[p] |= choose_bits(p, 0, op.begin) | choose_bits(p, op.end, UINT32_MAX);
    }
}

struct choose_ends choose_absorb_ends(struct cuda_device *d);

/* ---- Votes: a launch that takes the best makes them ---- */

/* Votes of items i, i + step and so on, whose scores are under way together; behind the last item:
 * any. */
template <uint32_t N>
static __device__ __forceinline__ void choose_votes(float vote[N], const struct op_vote &op,
                                                    uint32_t i, uint32_t step)
{
#pragma unroll
    for (uint32_t k = 0; k < N; k++) vote[k] = 0;
#pragma unroll 4
    for (uint32_t g = 0; g < op.group; g++)
#pragma unroll
        for (uint32_t k = 0; k < N; k++)
            vote[k] +=
                expf(op.score[g * op.score_stride + min(i + k * step, op.n - 1)] - op.lse[g]);
#pragma unroll
    for (uint32_t k = 0; k < N; k++) vote[k] /= (float)op.group;
}

/* Takes back the launch before if it makes the values of these and no others: its list. */
const struct op_lane_vote *choose_absorb_votes(struct cuda_device *d, const struct op_lane_take *op,
                                               uint32_t n);

/* ---- Shares: a launch that finds a cut makes them ---- */

struct choose_spread {
    const struct op_lane_shares *list; /* [n] on the device */
    uint32_t n, n_page;                /* at least as many as one of them has */
};

/* The same; only what was made for these draws. */
struct choose_spread choose_absorb_spread(struct cuda_device *d, const struct op_lane_draw *op,
                                          uint32_t n);

#define SHARE_PAGES 8u /* of a piece, for which the sums of exponentials are told */

static __host__ __device__ inline uint32_t share_pieces(uint32_t n_page)
{
    return (n_page + SHARE_PAGES - 1) / SHARE_PAGES;
}

/* What lies in a lane's `e` between the passes, for each head: exponentials of logits less the
 * largest one of their page [group, n_page * PAGE_TOK], behind them these largest ones, in powers
 * of two [group, n_page], and sums of the exponentials of pages [group, n_page]. Exponentials are
 * times 2^CHOOSE_UP, and of eight bits, those of a half behind its sign: off by a sixteenth at
 * most. */
#define CHOOSE_UP 15.0f
static __device__ __forceinline__ uint8_t *choose_exps(const struct op_share_planes &op,
                                                       uint32_t head)
{
    return (uint8_t *)op.e + (size_t)head * op.n_page * PAGE_TOK;
}

/* Four of them, from halves. */
static __device__ __forceinline__ uint32_t choose_pack(uint32_t low, uint32_t high)
{
    return __byte_perm(low * 2 + 0x00800080u, high * 2 + 0x00800080u, 0x7531);
}

static __device__ __forceinline__ float *choose_tops(const struct op_share_planes &op,
                                                     uint32_t head)
{
    return (float *)choose_exps(op, op.group) + (size_t)head * op.n_page;
}

static __device__ __forceinline__ float *choose_sums(const struct op_share_planes &op,
                                                     uint32_t head)
{
    return choose_tops(op, op.group + head);
}

#define CHOOSE_BATCH 8u /* at sums of pieces, by a thread together */

/* What powers of head g add up to, as a power of two: from the sums of their pieces, by a warp. */
static __device__ __forceinline__ float choose_log(const struct op_lane_shares &of, uint32_t g)
{
    const uint32_t n = share_pieces(of.at.n_page), group = of.at.group;
    float most = -FLT_MAX, sum = 0;
    for (uint32_t p = threadIdx.x % 32; p < n; p += 32 * CHOOSE_BATCH) {
        float x[CHOOSE_BATCH], high = most;
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_BATCH; i++)
            x[i] = p + i * 32 < n ? __ldcg(of.sum + (size_t)(p + i * 32) * group + g) : -INFINITY;
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_BATCH; i++) high = fmaxf(high, x[i]);
        sum *= exp2_fast(most - high);
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_BATCH; i++) sum += exp2_fast(x[i] - high);
        most = high;
    }
    float high = most;
    for (int by = 16; by > 0; by /= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, by));
    sum *= exp2_fast(most - high);
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
    return high + log2f(sum) + CHOOSE_UP;
}

static __device__ inline bool choose_are_finite(const float *log, uint32_t n)
{
    bool finite = true;
    for (uint32_t g = 0; g < n; g++) finite = finite && isfinite(log[g]);
    return finite;
}

/* These of all heads, into shared memory [OP_GROUP_MAX], by all threads; whether they are finite.
 */
static __device__ inline bool choose_make_logs(float *log, const struct op_lane_shares &of)
{
    for (uint32_t g = threadIdx.x / 32; g < of.at.group; g += blockDim.x / 32) {
        const float x = choose_log(of, g);
        if (threadIdx.x % 32 == 0) log[g] = x;
    }
    __syncthreads();
    return choose_are_finite(log, of.at.group);
}

/* The power of two of the largest exponential of a page, less that of all. */
static __device__ __forceinline__ float choose_over(const struct op_share_planes &op,
                                                    const float *log, uint32_t g, uint32_t page)
{
    return choose_tops(op, g)[page] - log[g];
}

/* What exponentials of a page are multiplied by. */
static __device__ __forceinline__ float choose_by(const struct op_share_planes &op,
                                                  const float *log, uint32_t g, uint32_t page)
{
    return exp2_fast(choose_over(op, log, g, page)) * (1 / (float)op.group);
}

/* The sum of a page's shares. */
static __device__ __forceinline__ float choose_page_share(const struct op_share_planes &op,
                                                          const float *log, uint32_t page)
{
    float sum = 0;
#pragma unroll 4
    for (uint32_t g = 0; g < op.group; g++)
        sum = fmaf(choose_sums(op, g)[page], choose_by(op, log, g, page), sum);
    return sum;
}

/* Shares are sums of halves: exponentials of a page, each head's multiplied by a half that says how
 * much of the heads' largest one it is, and the sum by what is the same for all. `most`: the
 * largest one's power of two; sums of all heads are in a half's range. */
static __device__ __forceinline__ float choose_most(const struct op_share_planes &op,
                                                    const float *log, uint32_t page)
{
    float most = -FLT_MAX;
#pragma unroll 4
    for (uint32_t g = 0; g < op.group; g++) most = fmaxf(most, choose_over(op, log, g, page));
    return most;
}

/* Of the least power of two that is not less than the heads, the exponent. */
static __device__ __forceinline__ uint32_t choose_octave(const struct op_share_planes &op)
{
    return op.group > 1 ? 32 - (uint32_t)__clz((int)(op.group - 1)) : 0;
}

static __device__ __forceinline__ float choose_unit(const struct op_share_planes &op, float most)
{
    const float room = __uint_as_float((127 + choose_octave(op)) << 23);
    return exp2_fast(most) * (room / (float)op.group);
}

/* Of a head, twice, by choose_over. */
static __device__ __forceinline__ uint32_t choose_weight(const struct op_share_planes &op,
                                                         float over, float most)
{
    const float room = __uint_as_float((127 - choose_octave(op)) << 23);
    const float x = exp2_fast(over - most) * room;
    return half_pack<HALF_F16>(x, x);
}

/* Adds those of four tokens: of the first and the third, and of the others. */
static __device__ __forceinline__ void choose_accumulate(uint32_t share[2], uint32_t exps,
                                                         uint32_t weight)
{
    share[0] = h2_fma(exps << 7 & 0x7f807f80u, weight, share[0]);
    share[1] = h2_fma(exps >> 1 & 0x7f807f80u, weight, share[1]);
}

#define CHOOSE_TOKENS 8u /* whose shares a thread makes together */

/* Shares of the tokens from token i on, a multiple of CHOOSE_TOKENS. */
static __device__ __forceinline__ void choose_shares(float share[CHOOSE_TOKENS],
                                                     const struct op_share_planes &op,
                                                     const float *log, uint32_t i)
{
    const uint32_t page = i / PAGE_TOK;
    const float most = choose_most(op, log, page), unit = choose_unit(op, most);
    uint32_t sum[CHOOSE_TOKENS / 2] = {};
#pragma unroll 4
    for (uint32_t g = 0; g < op.group; g++) {
        const uint2 e = *(const uint2 *)(choose_exps(op, g) + i);
        const uint32_t weight = choose_weight(op, choose_over(op, log, g, page), most);
        choose_accumulate(sum, e.x, weight);
        choose_accumulate(sum + 2, e.y, weight);
    }
#pragma unroll
    for (uint32_t k = 0; k < CHOOSE_TOKENS; k++) {
        const float2 both = half_unpack<HALF_F16>(sum[k / 4 * 2 + k % 2]);
        share[k] = (k / 2 % 2 ? both.y : both.x) * unit;
    }
}

/* Whether the launch before makes these shares and adds them up, too, now. */
bool choose_fold_shares(struct cuda_device *d, const struct op_lane_fold *op,
                        const struct op_lane_fold *staged, uint32_t n);

/* Sums of pages' shares: a launch that puts pages in order makes them. */
struct choose_folds {
    struct choose_spread shares;
    const struct op_lane_fold *list; /* [shares.n] on the device */
};

/* Takes back the launch before, if it makes the votes of these and no others; else there are none.
 */
struct choose_folds choose_absorb_folds(struct cuda_device *d, const struct op_lane_visit *op,
                                        uint32_t n);

/* ---- Lists: a launch of draws makes them ---- */

/* Whether the launch before draws for these lanes and makes their lists now. */
bool choose_list_drawn(struct cuda_device *d, const struct op_lane_list *op,
                       const struct op_lane_list *staged, uint32_t n);

/* The same of visits. */
bool choose_list_visited(struct cuda_device *d, const struct op_lane_list *op,
                         const struct op_lane_list *staged, uint32_t n);

/* What a staged list says, in the memory of the host. */
template <typename T>
static inline const T *choose_staged(const struct cuda_device *d, const T *list)
{
    return (const T *)(d->ring_host + ((const uint8_t *)list - d->ring));
}

static __device__ inline float choose_half(uint16_t bits, sac_kv_type type)
{
    return type == SAC_KV_BF16 ? __uint_as_float((uint32_t)bits << 16)
                               : __half2float(__ushort_as_half(bits));
}

/* Channel c of the key of token t of a sealed page, as page_read says. */
static __device__ inline float choose_key(const struct page_geom &g, const uint8_t *page,
                                          uint32_t t, uint32_t c)
{
    const uint32_t d = g.head_dim, quarter = d / 4, half = d / 2;
    if (g.type_k != SAC_KV_Q8)
        return choose_half(((const uint16_t *)(page + g.k))[t * d + c], g.type_k);
    const uint8_t *hi = page + g.k_hi2 + t * quarter, *low = page + g.k_low + t * (quarter + half);
    const uint32_t two = 2 * (c / quarter), four = 4 * (c / half);
    const uint32_t code = (hi[c % quarter] >> two & 3u) << 6 | (low[c % quarter] >> two & 3u) << 4 |
                          (low[quarter + c % half] >> four & 15u);
    const float min = choose_half(((const uint16_t *)(page + g.k_min))[c], SAC_KV_F16);
    const float step = choose_half(((const uint16_t *)(page + g.k_step))[c], SAC_KV_F16);
    return min + step * (float)code; /* the sum is the only rounding, fused or not */
}

/* Channels c .. c + 7 of it; c is a multiple of 8. */
static __device__ inline void choose_keys(float key[8], const struct page_geom &g,
                                          const uint8_t *page, uint32_t t, uint32_t c)
{
    if (g.type_k == SAC_KV_Q8) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) key[i] = choose_key(g, page, t, c + i);
        return;
    }
    const uint4 v = *(const uint4 *)(page + g.k + (t * g.head_dim + c) * 2);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        key[i] = choose_half((uint16_t)(word[i / 2] >> i % 2 * 16), g.type_k);
}

/* Channel c of its value. */
static __device__ inline float choose_value(const struct page_geom &g, const uint8_t *page,
                                            uint32_t t, uint32_t c)
{
    const uint32_t d = g.head_dim;
    if (g.type_v != SAC_KV_Q8)
        return choose_half(((const uint16_t *)(page + g.v))[t * d + c], g.type_v);
    const uint16_t *scale = (const uint16_t *)(page + g.v_scale) + t * (d / PAGE_VBLOCK);
    const float code = (float)((const int8_t *)(page + g.v))[t * d + c];
    return choose_half(scale[c / PAGE_VBLOCK], SAC_KV_F16) * code;
}

/* The page of a token that rows up to `pos` see, and in *of, a geometry, what it is like: the own
 * page is rows of 16 bits. */
static __device__ inline const uint8_t *
choose_page(struct page_geom *of, const struct op_seen &keys, uint32_t pos, uint32_t tok)
{
    const uint32_t page_i = tok / PAGE_TOK;
    if (page_i < pos / PAGE_TOK) return place_page(keys.frames, keys.page[page_i], of->bytes);
    of->k = 0;
    of->v = of->tail_v;
    if (of->type_k == SAC_KV_Q8) of->type_k = of->type_v = SAC_KV_F16;
    return keys.own;
}

#define CHOOSE_HEADS 8u /* whose logits are made together */

struct choose_query {
    const float *q; /* [group, head_dim], at a multiple of 16 bytes */
    uint32_t group;
    float scale, softcap;
};

/* Logits of token t of a page for heads g0 .. g0 + CHOOSE_HEADS - 1, as far as there are such. */
static __device__ inline void choose_logits(float logit[CHOOSE_HEADS],
                                            const struct choose_query &of,
                                            const struct page_geom &g, const uint8_t *page,
                                            uint32_t t, uint32_t g0)
{
    const uint32_t d = g.head_dim;
#pragma unroll
    for (uint32_t i = 0; i < CHOOSE_HEADS; i++) logit[i] = 0;
    for (uint32_t c = 0; c < d; c += 8) {
        float key[8];
        choose_keys(key, g, page, t, c);
#pragma unroll
        for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
            if (g0 + i >= of.group) continue;
            const float4 *row = (const float4 *)(of.q + (g0 + i) * d + c), a = row[0], b = row[1];
            const float q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) logit[i] += q[k] * key[k];
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < CHOOSE_HEADS; i++) {
        logit[i] *= of.scale;
        if (of.softcap > 0) logit[i] = of.softcap * tanhf(logit[i] / of.softcap);
    }
}

#endif
