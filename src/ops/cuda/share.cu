/* share.cu: shares of tokens by the first planes of their keys (op_lane_shares), for all lanes of a
 * list. A lane's numbers depend on the lane alone: pieces of the context are fixed, a warp has one
 * by itself, and sums are added in one order.
 *
 * Logits do not lie in memory: of a page there is the largest one of each head, and exponentials
 * less that as halves, which are multiplied by what the sums of all pages make of it when shares
 * are wanted (choose_shares). So a second pass reads half as much, and has no exponentials of its
 * own. Weights of a page's codes, queries times steps, are rounded to halves: off by a thousandth
 * of what two bits of a key leave open. What goes with all tokens of a page is not rounded.
 *
 * Codes are the 16 rows of a matrix instruction, and heads its eight columns. Where groups are
 * small, lanes share them: those of sequences which have the same page take one reading of it. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define WARPS   4u
#define COLUMNS 8u /* heads of one instruction */
#define MATES   4u /* lanes of a block, at most */
#define BUSY    4u /* blocks of a multiprocessor at once */
#define STAGES  4u /* pages of a warp that are in shared memory, or on their way there */
#define SPREAD  256u
#define EACH    CHOOSE_TOKENS

/* ---- Heads ---- */

struct share_block {
    const struct op_lane_shares *of; /* [n_mate] in shared memory, of groups of the same size */
    uint32_t n_mate, group;
};

/* Channel c of the codes is two bits of byte c % (D / 4), and the bytes of lane j of four are D /
 * 16 from j D / 16 on: so a word of them has four channels of each quarter, the k of one
 * instruction. Codes are not shifted: as bits of a half they are multiples of 2^-24, by a power of
 * four for each quarter, which queries make up for. The queries of head lane / 4: halves, and what
 * that leaves, which is the same for all warps and wanted once for many tokens. */
template <uint32_t D> struct share_query {
    static constexpr uint32_t n_word = D / 64;
    uint32_t q[n_word][4][2];         /* by word, quarter, pair of channels */
    const uint32_t (*rest)[4][2][32]; /* [n_word] of these, by lanes, in shared memory */
};

/* What the queries of a quarter are multiplied by, so that their products with its codes are alike.
 * What rounding to halves leaves of those must be a number, and the largest query finite. */
#define SHARE_FIT 4.0f
static __device__ __forceinline__ constexpr float share_fit(uint32_t quarter)
{
    return SHARE_FIT * (float)(1u << (6 - 2 * quarter));
}

template <uint32_t D>
static __device__ __forceinline__ uint32_t share_channel(uint32_t j, uint32_t word,
                                                         uint32_t quarter)
{
    return quarter * (D / 4) + j * (D / 16) + word * 4;
}

template <uint32_t D>
static __device__ void share_query_load(struct share_query<D> &to, uint32_t (*rest)[4][2][32],
                                        const struct share_block &b, uint32_t g0)
{
    const uint32_t lane = threadIdx.x % 32, j = lane % 4;
    const struct choose_head h = choose_head_of(g0 + lane / 4, b.group, b.n_mate);
    const struct op_share_planes &op = b.of[h.mate].at;
    __syncthreads(); /* nobody reads those of the heads before any more */
    to.rest = rest;
#pragma unroll
    for (uint32_t u = 0; u < to.n_word; u++)
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            const float *from = op.q + h.head * D + share_channel<D>(j, u, s);
            const float4 v = h.is ? *(const float4 *)from : make_float4(0, 0, 0, 0);
            const float by = op.scale * share_fit(s);
            const float x[4] = {v.x * by, v.y * by, v.z * by, v.w * by};
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                to.q[u][s][k] = half_pack<HALF_F16>(x[2 * k], x[2 * k + 1]);
                if (threadIdx.x < 32)
                    rest[u][s][k][lane] =
                        half_rest<HALF_F16>(x[2 * k], x[2 * k + 1], to.q[u][s][k]);
            }
        }
    __syncthreads();
}

/* ---- Pages ---- */

/* What goes with all tokens of a page, its steps being met in the middle of what the codes leave
 * open: of head lane / 4 and pages 2 (lane % 4) and the one behind it, `page` being the page of
 * column lane / 4. */
template <uint32_t D>
static __device__ __forceinline__ float2 share_base(const struct op_share_planes &op,
                                                    const struct share_query<D> &query,
                                                    const uint8_t *page)
{
    const uint32_t lane = threadIdx.x % 32, j = lane % 4;
    float2 base = make_float2(0, 0);
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) {
        float min[4] = {}, step[4] = {};
#pragma unroll
        for (uint32_t u = 0; u < query.n_word; u++) {
            const uint32_t at = share_channel<D>(j, u, s) * 2;
            const uint2 lo = __ldg((const uint2 *)(page + op.min_at + at));
            const uint2 by = __ldg((const uint2 *)(page + op.step_at + at));
            const uint32_t a[4] = {query.q[u][s][0], query.rest[u][s][0][lane], query.q[u][s][1],
                                   query.rest[u][s][1][lane]};
            mma_16816<HALF_F16>(min, a, lo.x, lo.y);
            mma_16816<HALF_F16>(step, a, by.x, by.y);
        }
        base.x += ((min[0] + min[2]) + 31.5f * (step[0] + step[2])) / share_fit(s);
        base.y += ((min[1] + min[3]) + 31.5f * (step[1] + step[3])) / share_fit(s);
    }
    return make_float2(base.x * LOG2E, base.y * LOG2E);
}

/* Of a page's steps and the plane behind them. */
template <uint32_t D> static __host__ __device__ constexpr uint32_t share_bytes(void)
{
    return 2 * D + PAGE_TOK * D / 4;
}

/* N words that lie together at a multiple of their bytes, or of 16. */
template <uint32_t N>
static __device__ __forceinline__ void share_load(uint32_t (&to)[N], const uint8_t *from)
{
    if constexpr (N == 1) {
        to[0] = *(const uint32_t *)from;
    } else if constexpr (N == 2) {
        const uint2 v = *(const uint2 *)from;
        to[0] = v.x, to[1] = v.y;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N; i += 4) {
            const uint4 v = *(const uint4 *)(from + i * 4);
            to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
        }
    }
}

/* A lane's words of a page: codes of its four tokens, and steps of its channels by quarter. Tokens
 * are 16 (i / 2) + 2 (lane / 4) + i % 2, so that pairs of them are neighbours. */
template <uint32_t D> struct share_words {
    static constexpr uint32_t n_word = D / 64;
    uint32_t code[4][n_word], step[4][2 * n_word];
};

static __device__ __forceinline__ uint32_t share_token(uint32_t i)
{
    return i / 2 * 16 + threadIdx.x % 32 / 4 * 2 + i % 2;
}

/* Of a page's steps and the plane behind them. */
template <uint32_t D>
static __device__ __forceinline__ void share_words_load(struct share_words<D> &to,
                                                        const uint8_t *steps)
{
    const uint32_t j = threadIdx.x % 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        share_load(to.code[i], steps + 2 * D + share_token(i) * (D / 4) + j * (D / 16));
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) share_load(to.step[s], steps + share_channel<D>(j, 0, s) * 2);
}

/* Logits of a page's four tokens for heads 2 (lane % 4) and the next one, in powers of two. */
template <uint32_t D>
static __device__ __forceinline__ void share_page(float x[2][4], const struct share_query<D> &query,
                                                  const struct share_words<D> &of,
                                                  const float base[2])
{
    constexpr float unit = (float)(1u << 24) / SHARE_FIT * LOG2E;
    float c[2][4] = {};
#pragma unroll
    for (uint32_t u = 0; u < query.n_word; u++) {
        uint32_t first[4], second[4]; /* pairs of channels: the byte of each at the same place */
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            first[i] = __byte_perm(of.code[i][u], 0, 0x3120);
            second[i] = first[i] >> 8;
        }
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            const uint32_t bits = 0x00030003u << 2 * s;
            const uint32_t by[2] = {h2_mul(query.q[u][s][0], of.step[s][2 * u]),
                                    h2_mul(query.q[u][s][1], of.step[s][2 * u + 1])};
#pragma unroll
            for (uint32_t i = 0; i < 4; i += 2) {
                const uint32_t a[4] = {first[i] & bits, first[i + 1] & bits, second[i] & bits,
                                       second[i + 1] & bits};
                mma_16816<HALF_F16>(c[i / 2], a, by[0], by[1]);
            }
        }
    }
#pragma unroll
    for (uint32_t e = 0; e < 2; e++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x[e][i] = fmaf(c[i / 2][i % 2 * 2 + e], unit, base[e]);
}

/* Over the eight lanes that have a head's tokens. */
static __device__ __forceinline__ float share_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

static __device__ __forceinline__ float share_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

/* ---- Pieces ---- */

/* What is met: a piece of lane `mate`; `same`: of all of the block's lanes. */
struct share_piece {
    uint32_t piece, mate;
    bool same;
};

/* Where a head's numbers of a piece go; `is`: there is such a head, and it meets these pages. */
struct share_to {
    uint16_t *exps; /* of this thread's first token of the first page */
    float *top, *sum;
    bool is;
};

static __device__ __forceinline__ struct share_to
share_to_of(const struct share_block &b, const struct choose_head &h, const struct share_piece &p)
{
    struct share_to to = {NULL, NULL, NULL, h.is && (p.same || h.mate == p.mate)};
    if (!to.is) return to;
    const struct op_lane_shares &of = b.of[h.mate];
    const uint32_t begin = p.piece * SHARE_PAGES;
    to.exps = choose_exps(of.at, h.head) + begin * PAGE_TOK + share_token(0);
    to.top = choose_tops(of.at, h.head) + begin;
    to.sum = of.sum + (size_t)p.piece * b.group + h.head;
    return to;
}

/* Powers of a head's logits of a page less the largest one: returns that, and this thread's share
 * of their sum. NaN if one is not finite: then the page's minimum, step or the query is not, and so
 * no logit of it is. */
static __device__ __forceinline__ struct exp_sum share_put(const struct share_to &to, uint32_t page,
                                                           const float x[4])
{
    const float max = share_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
    const float from = isfinite(max) ? max : 0.0f;
    float e[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) e[i] = exp2_fast(x[i] - from);
    const struct exp_sum all = {from, isfinite(max) ? (e[0] + e[1]) + (e[2] + e[3]) : NAN};
    if (!to.is) return all;
    uint16_t *exps = to.exps + page * PAGE_TOK;
    *(uint32_t *)exps = half_pack<HALF_F16>(e[0], e[1]);
    *(uint32_t *)(exps + 16) = half_pack<HALF_F16>(e[2], e[3]);
    if (threadIdx.x % 32 < 4) to.top[page] = from;
    return all;
}

/* Adds a page's to the sum of those before it. */
static __device__ __forceinline__ void share_add(struct exp_sum &sum, const struct exp_sum &page)
{
    const float high = fmaxf(sum.max, page.max);
    sum.sum = sum.sum * exp2_fast(sum.max - high) + page.sum * exp2_fast(page.max - high);
    sum.max = high;
}

/* Tells a piece's sum, by a warp. */
static __device__ __forceinline__ void share_tell(const struct share_to &to,
                                                  const struct exp_sum &sum)
{
    const float all = share_sum(sum.sum);
    if (to.is && threadIdx.x % 32 < 4) *to.sum = sum.max + log2f(all);
}

/* Pages of a piece as a lane has them. */
static __device__ __forceinline__ uint32_t share_count(const struct op_share_planes &op,
                                                       uint32_t piece)
{
    const uint32_t begin = piece * SHARE_PAGES;
    return begin < op.n_page ? min(SHARE_PAGES, op.n_page - begin) : 0;
}

/* A piece, by a warp. Heads are those of columns 2 (lane % 4) and the next one. */
template <uint32_t D>
static __device__ __forceinline__ void
share_by_warp(const struct share_block &b, const struct share_query<D> &query,
              const struct choose_head head[2], const struct share_piece &of)
{
    const struct op_share_planes op = b.of[of.mate].at; /* in registers */
    const uint32_t lane = threadIdx.x % 32, j = lane % 4, n = share_count(op, of.piece);
    if (n == 0) return;
    const uint32_t id = lane < n ? op.page[of.piece * SHARE_PAGES + lane] : 0;
    const auto page_at = [&](uint32_t p) {
        return op.base + (size_t)__shfl_sync(~0u, id, min(p, n - 1)) * op.stride;
    };
    uint8_t *const room = kernel_shared() + threadIdx.x / 32 * STAGES * share_bytes<D>();
    const auto fetch = [&](uint32_t p) {
        const uint8_t *from = page_at(p) + op.step_at;
        const uint32_t to = smem_address(room + p % STAGES * share_bytes<D>());
        for (uint32_t at = lane * 16; at < share_bytes<D>() && p < n; at += 512)
            copy_async16(to + at, from + at);
        copy_commit();
    };
    for (uint32_t p = 0; p < STAGES - 1; p++) fetch(p);
    const float2 bases = share_base(op, query, page_at(lane / 4));
    const struct share_to to[2] = {share_to_of(b, head[0], of), share_to_of(b, head[1], of)};
    struct exp_sum sum[2] = {exp_sum_none(), exp_sum_none()};
#pragma unroll 2
    for (uint32_t p = 0; p < n; p++) {
        struct share_words<D> words;
        float x[2][4], base[2];
        copy_wait<STAGES - 2>();
        __syncwarp(); /* the page is there, and nobody reads the one before it any more */
        fetch(p + STAGES - 1);
        share_words_load(words, room + p % STAGES * share_bytes<D>());
#pragma unroll
        for (uint32_t e = 0; e < 2; e++)
            base[e] = __shfl_sync(~0u, p % 2 ? bases.y : bases.x, (j * 2 + e) * 4 + p / 2);
        share_page(x, query, words, base);
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) share_add(sum[e], share_put(to[e], p, x[e]));
    }
    share_tell(to[0], sum[0]); /* behind it all have read the last page */
    share_tell(to[1], sum[1]);
}

/* The same by a block, a warp for each page. */
template <uint32_t D>
static __device__ __forceinline__ void
share_by_block(const struct share_block &b, const struct share_query<D> &query,
               const struct choose_head head[2], const struct share_piece &of)
{
    __shared__ struct exp_sum room[SHARE_PAGES][2][32];
    const struct op_share_planes op = b.of[of.mate].at;
    const uint32_t lane = threadIdx.x % 32, j = lane % 4, p = threadIdx.x / 32;
    const uint32_t n = share_count(op, of.piece);
    const struct share_to to[2] = {share_to_of(b, head[0], of), share_to_of(b, head[1], of)};
    if (p < n) {
        const uint8_t *page = op.base + (size_t)op.page[of.piece * SHARE_PAGES + p] * op.stride;
        struct share_words<D> words;
        float x[2][4], base[2];
        share_words_load(words, page + op.step_at);
        const float2 bases = share_base(op, query, page); /* eight times the same */
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) base[e] = __shfl_sync(~0u, bases.x, (j * 2 + e) * 4);
        share_page(x, query, words, base);
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) room[p][e][lane] = share_put(to[e], p, x[e]);
    }
    __syncthreads();
    for (uint32_t e = 0; e < 2 && p == 0 && n > 0; e++) {
        struct exp_sum sum = exp_sum_none();
        for (uint32_t k = 0; k < n; k++) share_add(sum, room[k][e][lane]);
        share_tell(to[e], sum);
    }
    __syncthreads(); /* nobody reads the room any more */
}

/* Whether all lanes of the block have the same pages in a piece. */
static __device__ bool share_is_same(const struct share_block &b, uint32_t piece)
{
    const uint32_t lane = threadIdx.x % 32, n = share_count(b.of[0].at, piece);
    bool same = true;
    if (b.n_mate == 1) return true;
    const uint32_t id = lane < n ? b.of[0].at.page[piece * SHARE_PAGES + lane] : 0;
    for (uint32_t m = 1; m < b.n_mate; m++) {
        const struct op_share_planes &op = b.of[m].at;
        same = same && op.base == b.of[0].at.base && share_count(op, piece) == n &&
               (lane >= n || op.page[piece * SHARE_PAGES + lane] == id);
    }
    return __all_sync(~0u, same);
}

/* The logs of the sums of the lanes' exponentials, from those of their pieces in powers of two; a
 * warp for each head. */
static __device__ void share_logs(const struct share_block &b)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = threadIdx.x / 32; i < b.n_mate * b.group; i += blockDim.x / 32) {
        const struct op_lane_shares &of = b.of[i / b.group];
        const uint32_t n_piece = share_pieces(of.at.n_page);
        const float *log = of.sum + i % b.group;
        float max = -INFINITY, sum = 0;
#pragma unroll 8
        for (uint32_t p = lane; p < n_piece; p += 32) max = fmaxf(max, __ldcg(log + p * b.group));
        for (int k = 16; k > 0; k /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, k));
#pragma unroll 8
        for (uint32_t p = lane; p < n_piece; p += 32)
            sum += exp2_fast(__ldcg(log + p * b.group) - max);
        for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
        if (lane == 0) of.lse[i % b.group] = (max + log2f(sum)) * LN2;
    }
}

/* APART: a block has a piece, else each of its warps; sums do not tell. Lanes i, i + n_list /
 * n_mate and so on are a block's (choose_head). The last block to be done with them adds up. Blocks
 * of all lanes have the same pieces at the same time, so that sequences which share pages find them
 * in the cache. */
template <uint32_t D, bool APART>
static __global__ void __launch_bounds__((APART ? SHARE_PAGES : WARPS) * 32, D > 128 ? 1
                                                                             : APART ? 2
                                                                                     : BUSY)
    share_logits_kernel(const struct op_lane_shares *list, uint32_t n_list, uint32_t n_mate,
                        const struct choose_begin begins, uint32_t *tally)
{
    __shared__ struct op_lane_shares of[MATES];
    __shared__ uint32_t rest[D / 64][4][2][32];
    const uint32_t n = n_list / n_mate, warp = threadIdx.x / 32, each = APART ? 1 : WARPS;
    for (uint32_t m = 0; m < n_mate; m++)
        choose_copy(&of[m], list + min(blockIdx.x, n - 1) + m * n);
    kernel_begin();
    __syncthreads();
    if (blockIdx.x >= n) {
        choose_clear(begins.list[blockIdx.x - n], blockIdx.y);
        return;
    }
    const struct share_block b = {of, n_mate, of[0].at.group};
    uint32_t n_page = 0;
    for (uint32_t m = 0; m < n_mate; m++) n_page = max(n_page, of[m].at.n_page);
    for (uint32_t g0 = 0; g0 < n_mate * b.group; g0 += COLUMNS) {
        const uint32_t column = g0 + threadIdx.x % 4 * 2;
        const struct choose_head head[2] = {choose_head_of(column, b.group, n_mate),
                                            choose_head_of(column + 1, b.group, n_mate)};
        struct share_query<D> query;
        share_query_load(query, rest, b, g0);
        for (uint32_t p = blockIdx.y * each + (APART ? 0 : warp); p < share_pieces(n_page);
             p += gridDim.y * each) {
            const bool same = share_is_same(b, p);
            for (uint32_t m = 0; m < (same ? 1 : n_mate); m++) {
                if constexpr (APART)
                    share_by_block(b, query, head, {p, m, same});
                else
                    share_by_warp(b, query, head, {p, m, same});
            }
        }
    }
    if (block_is_last(tally + blockIdx.x, gridDim.y)) share_logs(b);
}

/* ---- Shares ---- */

/* The sum of a page's shares in their order, of which four threads have eight each. */
static __device__ float share_page_total(const float share[EACH])
{
    const uint32_t t = threadIdx.x % 4;
    float sum = 0;
    for (uint32_t i = 0; i < 4; i++) {
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++) sum += t == i ? share[k] : 0;
        sum = __shfl_sync(~0u, sum, threadIdx.x % 32 / 4 * 4 + i);
    }
    return sum;
}

/* Shares of tokens; a thread takes EACH. `folds` NULL: nobody asks for the sums of pages. */
static __global__ void __launch_bounds__(SPREAD)
    share_spread_kernel(const struct choose_spread shares, const struct op_lane_fold *folds)
{
    __shared__ struct op_lane_shares of;
    choose_open(&of, shares.list + blockIdx.y);
    const uint32_t i = (blockIdx.x * SPREAD + threadIdx.x) * EACH;
    const bool is = i < of.at.n_page * PAGE_TOK;
    float share[EACH] = {};
    if (!choose_shares_finite(of) && i == 0) of.result->n_bad = 1; /* cleared by what came before */
    if (is) choose_shares(share, of, i);
    if (!folds) return;
    const float total = share_page_total(share);
    if (is && threadIdx.x % 4 == 0) folds[blockIdx.y].out[i / PAGE_TOK] = total;
}

/* The launch before, if it makes shares for n lanes. */
static struct choose_spread last_spread(const struct cuda_device *d, uint32_t n)
{
    struct choose_spread s = {};
    const void *last = queue_last(d, kernel_entry(share_spread_kernel));
    if (last) memcpy(&s, last, sizeof s);
    return s.n == n ? s : (struct choose_spread){};
}

struct choose_spread choose_take_spread(struct cuda_device *d, const struct op_lane_draw *op,
                                        uint32_t n)
{
    const struct choose_spread s = last_spread(d, n);
    if (s.n == 0) return s;
    const struct op_lane_shares *of = choose_staged(d, s.list);
    for (uint32_t i = 0; i < n; i++)
        if (of[i].at.share + op[i].at.first != op[i].at.value || of[i].result != op[i].result)
            return (struct choose_spread){};
    queue_drop_last(d);
    return s;
}

static sac_status launch_spread(struct cuda_device *d, const struct choose_spread &spread,
                                const struct op_lane_fold *folds)
{
    const uint32_t each = SPREAD * EACH / PAGE_TOK; /* pages */
    return queue_launch(d, "shares of tokens", share_spread_kernel,
                        dim3((spread.n_page + each - 1) / each, spread.n), SPREAD, 0, spread,
                        folds);
}

/* Whether the sums are those of pages of these shares, and go where they do not lie. */
static bool folds_shares(const struct op_lane_fold *op, const struct op_share_planes *of)
{
    const float *end = of->e + (size_t)of->group * of->n_page * PAGE_TOK;
    return op->in == of->share && op->n == of->n_page && op->n_part == PAGE_TOK &&
           op->step == PAGE_TOK && op->part_step == 1 && (op->out < of->e || op->out >= end);
}

bool choose_fold_shares(struct cuda_device *d, const struct op_lane_fold *op,
                        const struct op_lane_fold *staged, uint32_t n)
{
    const struct choose_spread s = last_spread(d, n);
    if (s.n == 0) return false;
    const struct op_lane_shares *of = choose_staged(d, s.list);
    for (uint32_t i = 0; i < n; i++)
        if (!folds_shares(&op[i], &of[i].at)) return false;
    queue_drop_last(d);
    (void)launch_spread(d, s, staged); /* a failure is remembered */
    return true;
}

/* ---- The launcher ---- */

/* Lanes of a block: as many as have room in eight columns, where there is work for all then. */
static uint32_t count_mates(const struct cuda_device *d, const struct op_lane_shares *op,
                            uint32_t n, uint32_t n_block)
{
    for (uint32_t i = 1; i < n; i++)
        if (op[i].at.group != op->at.group) return 1;
    return choose_mates(n, op->at.group, COLUMNS, MATES, (uint64_t)BUSY * d->n_sm / n_block);
}

/* With few pieces all pages of one are read at the same time. */
template <uint32_t D>
static sac_status launch_logits(struct cuda_device *d, const struct op_lane_shares *op,
                                const struct op_lane_shares *list, uint32_t n, uint32_t n_page)
{
    const bool apart = (uint64_t)n * share_pieces(n_page) <= (uint64_t)BUSY * d->n_sm;
    const uint32_t n_need =
        apart ? share_pieces(n_page) : (share_pieces(n_page) + WARPS - 1) / WARPS;
    const uint32_t n_mate = apart ? 1 : count_mates(d, op, n, n_need);
    const uint32_t most = choose_larger(BUSY * d->n_sm / (n / n_mate), 1);
    const uint32_t n_thread = (apart ? SHARE_PAGES : WARPS) * 32;
    const struct choose_begin begins = choose_take_begin(d);
    const dim3 grid(n / n_mate + begins.n,
                    choose_larger(n_need < most ? n_need : most, choose_parts(begins, n_thread)));
    if (apart)
        return queue_launch(d, "logits by first planes", share_logits_kernel<D, true>, grid,
                            n_thread, 0, list, n, n_mate, begins, d->tally);
    return queue_launch(d, "logits by first planes", share_logits_kernel<D, false>, grid, n_thread,
                        WARPS * STAGES * share_bytes<D>(), list, n, n_mate, begins, d->tally);
}

/* Reads of 16 bytes. */
static bool is_aligned(const struct op_share_planes *op)
{
    return op->hi2_at == op->step_at + 2 * op->head_dim &&
           (op->stride | op->min_at | op->step_at | op->hi2_at | (size_t)op->base) % 16 == 0;
}

sac_status cuda_lane_shares(struct cuda_device *d, const struct op_lane_shares *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].n_segment || op[i].at.frame_of)
            return device_fail(d, SAC_ERR_UNSUPPORTED,
                               "choosing among keys that wait for a turned query");
        if (op[i].at.group > OP_GROUP_MAX || n > TALLY)
            return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for so many heads of a KV head");
        if (!is_aligned(&op[i].at))
            return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for heads of this size");
        most = choose_larger(most, op[i].at.n_page);
    }
    const struct op_lane_shares *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    most = choose_reach(most);
    switch (op->at.head_dim) {
    case 64: TRY(launch_logits<64>(d, op, list, n, most)); break;
    case 128: TRY(launch_logits<128>(d, op, list, n, most)); break;
    case 256: TRY(launch_logits<256>(d, op, list, n, most)); break;
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for heads of this size");
    }
    return launch_spread(d, {list, n, most}, NULL);
}
