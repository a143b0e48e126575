/* choose.cuh: what the kernels of selection for decode rows share (private to this folder): staging
 * of descriptors, lanes that share a block, fusion of adjacent launches, shares of tokens, and
 * reading of keys and values in f32.
 *
 * A lane is one KV head of one decode row (ops/lanes.h). A token's share is its attention
 * probability by the first plane of its key, as a mean over the query heads of the group. */
#ifndef SAC_OPS_CUDA_CHOOSE_CUH
#define SAC_OPS_CUDA_CHOOSE_CUH

#include "ops/cuda/block.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/place.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/lanes.h"

#include <float.h>
#include <math.h>

/* Stages an array of descriptors; NULL: no room, and the failure is remembered. */
template <typename T> static const T *choose_stage(struct cuda_device *d, const T *op, uint32_t n)
{
    return (const T *)stage_put(d, op, n * sizeof *op);
}

/* Copies a descriptor to shared memory. It was staged before the series of launches, so this may
 * run before kernel_begin. No barrier. */
template <typename T> static __device__ __forceinline__ void choose_copy(T *to, const T *from)
{
    static_assert(sizeof(T) % 4 == 0, "words");
    for (uint32_t i = threadIdx.x; i < sizeof(T) / 4; i += blockDim.x)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

/* The start of most kernels: copies a descriptor while the previous kernel ends, then kernel_begin
 * and a barrier. */
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

/* n rounded up so that many n give the same result. Grids are sized by it, and a CUDA graph lasts
 * as long as its grids stay the same (queue.cu). At most an eighth of many blocks have nothing to
 * do. */
static inline uint32_t choose_round_up(uint32_t n)
{
    uint32_t step = 4;
    while (step * 16 <= n) step *= 2;
    return (n + step - 1) / step * step;
}

/* ---- Lanes that share a block ---- */

/* The lanes of a list are ordered by row, then by KV head. So lanes i, i + n / n_lane, i + 2 n /
 * n_lane, ... belong to one KV head of several sequences, if all of them select. A block that has
 * these n_lane lanes reads pages that they share once. Their query heads are numbered through; each
 * is a row or column of a matrix instruction of its own, so no result depends on which lanes share
 * a block. */
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

/* How many lanes share a block: as many as n_head query heads and `most` allow while at least
 * `least` blocks remain. */
static inline uint32_t choose_lanes_per_block(uint32_t n, uint32_t group, uint32_t n_head,
                                              uint32_t most, uint64_t least)
{
    uint32_t n_lane = n_head / group < most ? n_head / group : most;
    while (n_lane > 1 && (n % n_lane || n / n_lane < least)) n_lane--;
    return n_lane > 1 ? n_lane : 1;
}

/* Bits of the tokens of a page within positions [begin, end). */
static __device__ inline uint32_t choose_bits(uint32_t page, uint32_t begin, uint32_t end)
{
    const uint32_t first = page * PAGE_TOK;
    const uint32_t lo = begin > first ? begin - first : 0;
    const uint32_t hi = end > first ? min(end - first, PAGE_TOK) : 0;
    return lo < hi ? ~0u >> (PAGE_TOK - hi) & ~0u << lo : 0;
}

/* If the last recorded launch is of this kernel, drops it from the queue and returns its first
 * argument, a T; else returns zeros. The caller's kernel then does that work, too. */
template <typename T> static inline T choose_absorb(struct cuda_device *d, const void *kernel)
{
    T of = {};
    const void *last = queue_last(d, kernel);
    if (!last) return of;
    memcpy(&of, last, sizeof of);
    queue_drop_last(d);
    return of;
}

/* ---- Clearing, absorbed by a launch of scores ---- */

struct choose_begin {
    const struct op_lane_begin *list; /* [n] on the device */
    uint32_t n, n_page;               /* the largest of their numbers of pages, rounded up */
};

/* Clears the masks and results of a lane: part i of n_part. */
static __device__ inline void choose_clear(const struct op_lane_begin &op, uint32_t i,
                                           uint32_t n_part)
{
    for (uint32_t p = i * blockDim.x + threadIdx.x; p < op.n_page; p += n_part * blockDim.x)
        op.mask[p] = 0;
    if (i > 0 || threadIdx.x > 0) return;
    *op.result = {};
    if (op.count) *op.count = {};
}

/* Absorbs the last recorded launch if it clears masks; else n is 0. */
struct choose_begin choose_absorb_begin(struct cuda_device *d);

/* ---- Forced ends, absorbed by a launch that finds a cut ---- */

struct choose_ends {
    const struct op_lane_ends *list; /* [n] on the device */
    uint32_t n;
};

/* Marks the first and last tokens, which are always read. All threads of a block; few pages have
 * any. */
static __device__ inline void choose_mark_ends(const struct op_lane_ends &op)
{
    const uint32_t begin = (op.begin + PAGE_TOK - 1) / PAGE_TOK, end = op.end / PAGE_TOK;
    const uint32_t n_first = min(begin, op.n_page), n_skip = end > n_first ? end - n_first : 0;
    for (uint32_t i = threadIdx.x; i + n_skip < op.n_page; i += blockDim.x) {
        const uint32_t p = i < n_first ? i : i + n_skip;
        op.mask[p] |= choose_bits(p, 0, op.begin) | choose_bits(p, op.end, UINT32_MAX);
    }
}

/* Absorbs the last recorded launch if it marks ends; else n is 0. */
struct choose_ends choose_absorb_ends(struct cuda_device *d);

/* ---- Votes, absorbed by a launch that takes the best ---- */

/* Votes of items i, i + step, ...: means over the query heads of exp(score - lse). The loads of all
 * N are in flight together; past the last item the result is undefined. */
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

/* Absorbs the last recorded launch if it makes exactly the values that `op` takes the best of;
 * returns its list or NULL. */
const struct op_lane_vote *choose_absorb_votes(struct cuda_device *d, const struct op_lane_take *op,
                                               uint32_t n);

/* ---- Shares, absorbed by a launch that finds a cut ---- */

struct choose_spread {
    const struct op_lane_shares *list; /* [n] on the device */
    uint32_t n, n_page;                /* the largest of their numbers of pages, rounded up */
};

/* Absorbs the launch that makes the shares for these draws, if it was recorded last. */
struct choose_spread choose_absorb_spread(struct cuda_device *d, const struct op_lane_draw *op,
                                          uint32_t n);

#define SHARE_PAGES 8u /* pages of a piece, which has one sum of exponentials for each head */

static __host__ __device__ inline uint32_t share_pieces(uint32_t n_page)
{
    return (n_page + SHARE_PAGES - 1) / SHARE_PAGES;
}

/* What the first pass leaves in a lane's scratch `e` for the second, for each query head:
 * exponentials relative to the largest logit of their page, u8 [group, n_page * PAGE_TOK]; those
 * largest logits as exponents of 2, f32 [group, n_page]; and sums of a page's exponentials, f32
 * [group, n_page]. An exponential is multiplied by 2^CHOOSE_UP and kept as the eight bits after the
 * sign of its f16: five of exponent and three of mantissa, an error of 1/16 at most. */
#define CHOOSE_UP 15.0f
static __device__ __forceinline__ uint8_t *choose_exps(const struct op_share_planes &op,
                                                       uint32_t head)
{
    return (uint8_t *)op.e + (size_t)head * op.n_page * PAGE_TOK;
}

/* Four exponentials from two pairs of f16, rounded to eight bits each. */
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

#define CHOOSE_BATCH 8u /* pieces' sums that a lane has in flight */

/* log2 of the sum of head g's exponentials over all pieces, plus CHOOSE_UP; by a warp, in one
 * order. */
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

/* The same for all heads, to shared memory [OP_GROUP_MAX]; by all threads. Returns whether all are
 * finite. */
static __device__ inline bool choose_make_logs(float *log, const struct op_lane_shares &of)
{
    for (uint32_t g = threadIdx.x / 32; g < of.at.group; g += blockDim.x / 32) {
        const float x = choose_log(of, g);
        if (threadIdx.x % 32 == 0) log[g] = x;
    }
    __syncthreads();
    return choose_are_finite(log, of.at.group);
}

/* log2 of the largest share that a token of the page can have for head g. */
static __device__ __forceinline__ float choose_over(const struct op_share_planes &op,
                                                    const float *log, uint32_t g, uint32_t page)
{
    return choose_tops(op, g)[page] - log[g];
}

/* The factor from an exponential of the page to its part of the share. */
static __device__ __forceinline__ float choose_by(const struct op_share_planes &op,
                                                  const float *log, uint32_t g, uint32_t page)
{
    return exp2_fast(choose_over(op, log, g, page)) * (1 / (float)op.group);
}

/* The sum of the shares of a page's tokens. */
static __device__ __forceinline__ float choose_page_share(const struct op_share_planes &op,
                                                          const float *log, uint32_t page)
{
    float sum = 0;
#pragma unroll 4
    for (uint32_t g = 0; g < op.group; g++)
        sum = fmaf(choose_sums(op, g)[page], choose_by(op, log, g, page), sum);
    return sum;
}

/* Shares are summed over the heads in f16: each head's exponential times an f16 weight relative to
 * the head with the largest, and the sum times a factor common to the page. This returns log2 of
 * the largest; weights are scaled so that sums over all heads stay within the range of f16. */
static __device__ __forceinline__ float choose_most(const struct op_share_planes &op,
                                                    const float *log, uint32_t page)
{
    float most = -FLT_MAX;
#pragma unroll 4
    for (uint32_t g = 0; g < op.group; g++) most = fmaxf(most, choose_over(op, log, g, page));
    return most;
}

/* ceil(log2(group)). */
static __device__ __forceinline__ uint32_t choose_octave(const struct op_share_planes &op)
{
    return op.group > 1 ? 32 - (uint32_t)__clz((int)(op.group - 1)) : 0;
}

static __device__ __forceinline__ float choose_unit(const struct op_share_planes &op, float most)
{
    const float room = __uint_as_float((127 + choose_octave(op)) << 23);
    return exp2_fast(most) * (room / (float)op.group);
}

/* The f16 weight of a head, in both halves, from choose_over. */
static __device__ __forceinline__ uint32_t choose_weight(const struct op_share_planes &op,
                                                         float over, float most)
{
    const float room = __uint_as_float((127 - choose_octave(op)) << 23);
    const float x = exp2_fast(over - most) * room;
    return half_pack<HALF_F16>(x, x);
}

/* Adds the exponentials of four tokens times a head's weight: tokens 0 and 2 to share[0], 1 and 3
 * to share[1]. */
static __device__ __forceinline__ void choose_accumulate(uint32_t share[2], uint32_t exps,
                                                         uint32_t weight)
{
    share[0] = h2_fma(exps << 7 & 0x7f807f80u, weight, share[0]);
    share[1] = h2_fma(exps >> 1 & 0x7f807f80u, weight, share[1]);
}

#define CHOOSE_TOKENS 8u /* tokens of a thread at a time */

/* Shares of the tokens i to i + CHOOSE_TOKENS - 1; i is a multiple of CHOOSE_TOKENS. */
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

/* If the last recorded launch makes the shares that `op` sums over pages, replaces it by one that
 * makes those sums only. */
bool choose_fold_shares(struct cuda_device *d, const struct op_lane_fold *op,
                        const struct op_lane_fold *staged, uint32_t n);

/* Sums of pages' shares, made by the launch that sorts pages by them. */
struct choose_folds {
    struct choose_spread shares;
    const struct op_lane_fold *list; /* [shares.n] on the device */
};

/* Absorbs the last recorded launch if it makes exactly the votes of these visits; else shares.n is
 * 0. */
struct choose_folds choose_absorb_folds(struct cuda_device *d, const struct op_lane_visit *op,
                                        uint32_t n);

/* ---- Lists, made by a launch of draws or visits; keys and values ---- */

/* If the last recorded launch draws for these lanes, makes it list them, too. */
bool choose_list_drawn(struct cuda_device *d, const struct op_lane_list *op,
                       const struct op_lane_list *staged, uint32_t n);

/* The same for a launch of visits. */
bool choose_list_visited(struct cuda_device *d, const struct op_lane_list *op,
                         const struct op_lane_list *staged, uint32_t n);

/* The host's copy of a staged array. */
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

/* Channel c of the key of token t of a sealed page, as page_read. */
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
    return min + step * (float)code; /* the only rounding, with or without FMA */
}

/* Channels c to c + 7; c is a multiple of 8. */
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

/* Channel c of a value. */
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

/* The page of a token that a row at `pos` sees. *of, a copy of the geometry, is adjusted for the
 * row's own page, which holds 16-bit rows. */
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

#define CHOOSE_HEADS 8u /* query heads at a time */

struct choose_query {
    const float *q; /* [group, head_dim], aligned to 16 bytes */
    uint32_t group;
    float scale, softcap;
};

/* Logits of token t of a page for the query heads from g0 on, CHOOSE_HEADS of them or what is
 * left. */
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
