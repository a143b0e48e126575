/* share.cu: shares of tokens by the first planes of their keys (op_lane_shares), for all lanes of a
 * list. A lane's numbers depend on the lane alone: pieces of the context are fixed, a warp has one
 * by itself, and sums are added in one order.
 *
 * Logits do not lie in memory: of a page there is the largest one of each head, and exponentials
 * less that as bytes, which are multiplied by what the sums of all pages make of it when shares
 * are wanted (choose_shares). So a second pass reads a quarter as much, and has no exponentials of
 * its own; what the exponentials of a page, as halves, add up to lies beside them. Weights of a
 * page's codes, queries times steps, are rounded to halves: off by a thousandth of what two bits of
 * a key leave open. What goes with all tokens of a page is not rounded.
 *
 * Heads are the 16 rows of a matrix instruction, and codes of tokens its columns. Where groups are
 * small, lanes share them: those of sequences which have the same page take one reading of it. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#include <float.h>

#define WARPS  4u
#define ROWS   16u /* heads of one instruction */
#define MATES  4u  /* lanes of a block, at most */
#define BUSY   4u  /* blocks of a multiprocessor at once */
#define STAGES 4u  /* pages of a warp that are in shared memory, or on their way there */
#define SPREAD 256u
#define EACH   CHOOSE_TOKENS

/* ---- Heads ---- */

/* Where the numbers of a row's head go: exponentials, the largest logits and sums of pages; sums of
 * pieces, `group` apart. */
struct share_row {
    uint8_t *exps;
    float *top, *page_sum, *sum;
    uint32_t mate; /* whose head it is; UINT32_MAX: there is none */
};

struct share_block {
    const struct op_lane_shares *of; /* [n_mate] in shared memory, of groups of the same size */
    struct share_row *row;           /* there: of the heads at hand */
    uint32_t n_mate, group;
};

/* Channel c of the codes is two bits of byte c % (D / 4), and the bytes of lane j of four are D /
 * 16 from j D / 16 on: so a word of them has four channels of each quarter, the k of one
 * instruction. Codes are not shifted: as bits of a half they are multiples of 2^-24, by a power of
 * four for each quarter, which queries make up for. Queries are halves, and what that leaves, which
 * is the same for all warps and wanted once for many tokens. */
template <uint32_t D> struct share_query {
    static constexpr uint32_t n_word = D / 64;
    /* By word and quarter, of all lanes of a warp: channels 0, 1 of heads lane / 4 and 8 + lane /
     * 4, then channels 2, 3. In shared memory. */
    uint4 near[n_word][4][32], rest[n_word][4][32];
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

/* Of heads g0 .. g0 + ROWS - 1, by all threads of a block: queries, and rows. */
template <uint32_t D>
static __device__ void share_heads_load(struct share_query<D> *to, const struct share_block &b,
                                        uint32_t g0)
{
    constexpr uint32_t n_word = D / 64;
    const uint32_t lane = threadIdx.x % 32;
    __syncthreads(); /* nobody reads those of the heads before any more */
    if (threadIdx.x < ROWS) {
        const struct choose_head h = choose_head_of(g0 + threadIdx.x, b.group, b.n_mate);
        const struct op_share_planes &op = b.of[h.mate].at;
        b.row[threadIdx.x] = {choose_exps(op, h.head), choose_tops(op, h.head),
                              choose_sums(op, h.head), b.of[h.mate].sum + h.head,
                              h.is ? h.mate : UINT32_MAX};
    }
    for (uint32_t i = threadIdx.x / 32; i < n_word * 4; i += blockDim.x / 32) {
        const uint32_t u = i / 4, s = i % 4;
        uint32_t near[4], left[4];
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            const struct choose_head h = choose_head_of(g0 + e * 8 + lane / 4, b.group, b.n_mate);
            const struct op_share_planes &op = b.of[h.mate].at;
            const float *from = op.q + h.head * D + share_channel<D>(lane % 4, u, s);
            const float4 v = h.is ? *(const float4 *)from : make_float4(0, 0, 0, 0);
            const float by = op.scale * share_fit(s);
            const float x[4] = {v.x * by, v.y * by, v.z * by, v.w * by};
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                near[2 * k + e] = half_pack<HALF_F16>(x[2 * k], x[2 * k + 1]);
                left[2 * k + e] = half_rest<HALF_F16>(x[2 * k], x[2 * k + 1], near[2 * k + e]);
            }
        }
        to->near[u][s][lane] = make_uint4(near[0], near[1], near[2], near[3]);
        to->rest[u][s][lane] = make_uint4(left[0], left[1], left[2], left[3]);
    }
    __syncthreads();
}

/* ---- Pages ---- */

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

/* What goes with all tokens of a page, its steps being met in the middle of what the codes leave
 * open, in powers of two: base[2 e + k] of head lane / 4 + 8 e and page 2 (lane % 4) + k. `mins`:
 * where those of page lane / 4 are, and behind them its steps. */
template <uint32_t D>
static __device__ __forceinline__ void share_base(float base[4], const struct share_query<D> &query,
                                                  const uint8_t *mins)
{
    constexpr uint32_t n_word = D / 64;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) base[i] = 0;
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) {
        const uint8_t *from = mins + share_channel<D>(lane % 4, 0, s) * 2;
        uint32_t lo[2 * n_word], by[2 * n_word];
        float min[4] = {}, step[4] = {};
        share_load(lo, from);
        share_load(by, from + 2 * D);
#pragma unroll
        for (uint32_t u = 0; u < n_word; u++) {
            const uint4 x = query.near[u][s][lane], y = query.rest[u][s][lane];
            const uint32_t near[4] = {x.x, x.y, x.z, x.w}, rest[4] = {y.x, y.y, y.z, y.w};
            mma_16816<HALF_F16>(min, near, lo[2 * u], lo[2 * u + 1]);
            mma_16816<HALF_F16>(step, near, by[2 * u], by[2 * u + 1]);
            mma_16816<HALF_F16>(min, rest, lo[2 * u], lo[2 * u + 1]);
            mma_16816<HALF_F16>(step, rest, by[2 * u], by[2 * u + 1]);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            base[i] += (min[i] + 31.5f * step[i]) * (LOG2E / share_fit(s));
    }
}

/* A lane has four tokens of a page as a column of instructions: two of each second pair. What comes
 * of these is of eight neighbours, from 8 (lane % 4) on. */
static __device__ __forceinline__ uint32_t share_token(uint32_t i)
{
    const uint32_t column = threadIdx.x % 32 / 4;
    return column / 2 * 8 + i * 2 + column % 2;
}

/* Products of a page's codes and queries: c[i][2 e + k] of head lane / 4 + 8 e and
 * token 8 (lane % 4) + 2 i + k. `plane`, `steps`: where the page's are. */
template <uint32_t D>
static __device__ __forceinline__ void share_page(float c[4][4], const struct share_query<D> &query,
                                                  const uint8_t *plane, const uint8_t *steps)
{
    constexpr uint32_t n_word = D / 64;
    const uint32_t lane = threadIdx.x % 32, j = lane % 4;
    uint32_t code[4][n_word];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        share_load(code[i], plane + share_token(i) * (D / 4) + j * (D / 16));
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) c[i / 4][i % 4] = 0;
#pragma unroll
    for (uint32_t u = 0; u < n_word; u++) {
        uint32_t first[4], second[4]; /* pairs of channels: the byte of each at the same place */
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            first[i] = __byte_perm(code[i][u], 0, 0x3120);
            second[i] = first[i] >> 8;
        }
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            const uint32_t bits = 0x00030003u << 2 * s;
            uint32_t step[2];
            share_load(step, steps + share_channel<D>(j, u, s) * 2);
            const uint4 q = query.near[u][s][lane];
            const uint32_t by[4] = {h2_mul(q.x, step[0]), h2_mul(q.y, step[0]),
                                    h2_mul(q.z, step[1]), h2_mul(q.w, step[1])};
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                mma_16816<HALF_F16>(c[i], by, first[i] & bits, second[i] & bits);
        }
    }
}

/* Products are in units of it, in powers of two. */
#define SHARE_UNIT ((float)(1u << 24) / SHARE_FIT * LOG2E)

/* Over the four lanes that have a head's numbers; all of them get it. */
static __device__ __forceinline__ float share_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

static __device__ __forceinline__ float share_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

#define SHARE_ONES 0x3c003c00u /* two halves */

/* Powers of the eight logits of each head e that a lane has, less the largest one of the page, as
 * halves and then as bytes to exps[e] unless that is NULL: makes that, of products alone, and the
 * page's sum, which is a product with ones. The sum is NaN if one is not finite: then the page's
 * step or the query is not, and some products are NaN or all infinite. */
static __device__ __forceinline__ void share_put(struct exp_sum made[2], uint8_t *const exps[2],
                                                 uint32_t at, const float c[4][4])
{
    uint32_t power[4][2];
    float sum[4] = {};
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        float max = fmaxf(c[0][2 * e], c[0][2 * e + 1]);
#pragma unroll
        for (uint32_t i = 1; i < 4; i++) max = fmaxf(max, fmaxf(c[i][2 * e], c[i][2 * e + 1]));
        made[e].max = share_max(max) * SHARE_UNIT;
        const float up = CHOOSE_UP - made[e].max;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            power[i][e] = half_pack<HALF_F16>(exp2_fast(fmaf(c[i][2 * e], SHARE_UNIT, up)),
                                              exp2_fast(fmaf(c[i][2 * e + 1], SHARE_UNIT, up)));
        if (exps[e])
            *(uint2 *)(exps[e] + at) = make_uint2(choose_pack(power[0][e], power[1][e]),
                                                  choose_pack(power[2][e], power[3][e]));
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i += 2) {
        const uint32_t a[4] = {power[i][0], power[i][1], power[i + 1][0], power[i + 1][1]};
        mma_16816<HALF_F16>(sum, a, SHARE_ONES, SHARE_ONES);
    }
    made[0].sum = sum[0];
    made[1].sum = sum[2];
}

/* ---- Pieces ---- */

/* What is met: a piece of lane `mate`; `same`: of all of the block's lanes. */
struct share_piece {
    uint32_t piece, mate;
    bool same;
};

/* The row of head lane / 4 + 8 e, if it meets these pages; else NULL. */
static __device__ __forceinline__ const struct share_row *
share_row_of(const struct share_block &b, uint32_t e, const struct share_piece &of)
{
    const struct share_row *row = &b.row[threadIdx.x % 32 / 4 + 8 * e];
    return row->mate != UINT32_MAX && (of.same || row->mate == of.mate) ? row : NULL;
}

/* Where the exponentials of this thread's tokens of the piece's first page go, or NULL. */
static __device__ __forceinline__ uint8_t *share_exps_of(const struct share_block &b, uint32_t e,
                                                         const struct share_piece &of)
{
    const struct share_row *row = share_row_of(b, e, of);
    return row ? row->exps + of.piece * SHARE_PAGES * PAGE_TOK + threadIdx.x % 4 * 8 : NULL;
}

/* What comes of a piece's pages 2 (lane % 4) and the one behind it, for a head. */
struct share_made {
    struct exp_sum page[2];
};

/* Tells it of head lane / 4 + 8 e and n pages, by a warp. */
static __device__ __forceinline__ void share_tell(const struct share_block &b, uint32_t e,
                                                  const struct share_piece &of,
                                                  const struct share_made &made,
                                                  const float base[2], uint32_t n)
{
    const struct share_row *row = share_row_of(b, e, of);
    const uint32_t j = threadIdx.x % 4, at = of.piece * SHARE_PAGES + 2 * j;
    float top[2], all = 0;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        const bool is = 2 * j + k < n;
        top[k] = is ? made.page[k].max + base[k] : -FLT_MAX;
        if (!is || !row) continue;
        row->top[at + k] = top[k];
        row->page_sum[at + k] = made.page[k].sum;
    }
    const float max = share_max(fmaxf(top[0], top[1]));
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
        all += 2 * j + k < n ? made.page[k].sum * exp2_fast(top[k] - max) : 0;
    all = share_sum(all);
    if (row && j == 0) row->sum[(size_t)of.piece * b.group] = max + log2f(all) - CHOOSE_UP;
}

/* Pages of a piece as a lane has them. */
static __device__ __forceinline__ uint32_t share_count(const struct op_share_planes &op,
                                                       uint32_t piece)
{
    const uint32_t begin = piece * SHARE_PAGES;
    return begin < op.n_page ? min(SHARE_PAGES, op.n_page - begin) : 0;
}

/* What a warp has in shared memory: minima and steps of a piece's pages, and planes of some. Rows
 * of eight pages are read together, each from 16 banks that others do not want. */
template <uint32_t D> struct share_room {
    static constexpr uint32_t n_min = 4 * D, n_plane = PAGE_TOK * D / 4; /* bytes */
    uint8_t min[SHARE_PAGES][n_min + 64], plane[STAGES][n_plane];
};

/* Bytes of the rooms of a block's warps. */
template <uint32_t D, bool APART> static __host__ __device__ constexpr size_t share_rooms(void)
{
    return APART ? 0 : WARPS * sizeof(struct share_room<D>);
}

/* A piece, by a warp. */
template <uint32_t D>
static __device__ __forceinline__ void share_by_warp(const struct share_block &b,
                                                     const struct share_query<D> &query,
                                                     const struct share_piece &of)
{
    using room_of = struct share_room<D>;
    const struct op_share_planes op = b.of[of.mate].at; /* in registers */
    const uint32_t lane = threadIdx.x % 32, j = lane % 4, n = share_count(op, of.piece);
    if (n == 0) return;
    room_of &room = ((room_of *)kernel_shared())[threadIdx.x / 32];
    const uint32_t id = op.page[of.piece * SHARE_PAGES + min(lane % SHARE_PAGES, n - 1)];
    const auto page_at = [&](uint32_t p) {
        return op.base + (size_t)__shfl_sync(~0u, id, p) * op.stride;
    };
    const auto fetch = [&](uint32_t p) {
        const uint8_t *from = page_at(p % SHARE_PAGES) + op.hi2_at;
        const uint32_t to = smem_address(room.plane[p % STAGES]);
#pragma unroll
        for (uint32_t at = lane * 16; at < room_of::n_plane; at += 512)
            if (p < n) copy_async16(to + at, from + at);
        copy_commit();
    };
#pragma unroll
    for (uint32_t i = lane * 16; i < SHARE_PAGES * room_of::n_min; i += 512) {
        const uint32_t p = i / room_of::n_min, at = i % room_of::n_min;
        copy_async16(smem_address(room.min[p] + at), page_at(p) + op.min_at + at);
    }
    for (uint32_t p = 0; p < STAGES - 1; p++) fetch(p);
    uint8_t *const exps[2] = {share_exps_of(b, 0, of), share_exps_of(b, 1, of)};
    struct share_made made[2] = {};
    for (uint32_t first = 0; first < n; first += 2)
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t p = first + k;
            struct exp_sum page[2];
            float c[4][4];
            if (p >= n) break;
            copy_wait<STAGES - 2>();
            __syncwarp(); /* the page is there, and nobody reads the one before it any more */
            fetch(p + STAGES - 1);
            share_page(c, query, room.plane[p % STAGES], room.min[p] + 2 * D);
            share_put(page, exps, p * PAGE_TOK, c);
            if (p / 2 == j) made[0].page[k] = page[0], made[1].page[k] = page[1];
        }
    float base[4];
    share_base(base, query, room.min[lane / 4]);
    __syncwarp(); /* nobody reads the room any more */
    share_tell(b, 0, of, made[0], base, n);
    share_tell(b, 1, of, made[1], base + 2, n);
}

/* The same by a block, a warp for each page. */
template <uint32_t D>
static __device__ __forceinline__ void share_by_block(const struct share_block &b,
                                                      const struct share_query<D> &query,
                                                      const struct share_piece &of)
{
    __shared__ struct exp_sum room[SHARE_PAGES][ROWS];
    const struct op_share_planes op = b.of[of.mate].at;
    const uint32_t lane = threadIdx.x % 32, j = lane % 4, p = threadIdx.x / 32;
    const uint32_t n = share_count(op, of.piece);
    uint8_t *const exps[2] = {share_exps_of(b, 0, of), share_exps_of(b, 1, of)};
    const auto page_at = [&](uint32_t i) {
        return op.base + (size_t)op.page[of.piece * SHARE_PAGES + i] * op.stride;
    };
    float base[4];
    if (p == 0 && n > 0) share_base(base, query, page_at(min(lane / 4, n - 1)) + op.min_at);
    if (p < n) {
        const uint8_t *page = page_at(p);
        float c[4][4];
        struct exp_sum made[2];
        share_page(c, query, page + op.hi2_at, page + op.step_at);
        share_put(made, exps, p * PAGE_TOK, c);
        if (j == 0) room[p][lane / 4] = made[0], room[p][lane / 4 + 8] = made[1];
    }
    __syncthreads();
    for (uint32_t e = 0; e < 2 && p == 0 && n > 0; e++) {
        struct share_made made = {};
        for (uint32_t k = 0; k < 2; k++)
            if (2 * j + k < n) made.page[k] = room[2 * j + k][lane / 4 + 8 * e];
        share_tell(b, e, of, made, base + 2 * e, n);
    }
    __syncthreads(); /* nobody reads the room any more */
}

/* Whether all lanes of the block have the same pages in a piece. */
static __device__ bool share_is_same(const struct share_block &b, uint32_t piece)
{
    const uint32_t lane = threadIdx.x % 32, n = share_count(b.of[0].at, piece);
    const uint32_t at = piece * SHARE_PAGES + min(lane, n - 1);
    bool same = true;
    if (b.n_mate == 1 || n == 0) return b.n_mate == 1;
    uint32_t id[MATES];
#pragma unroll
    for (uint32_t m = 0; m < MATES; m++) {
        const struct op_share_planes &op = b.of[min(m, b.n_mate - 1)].at;
        same = same && op.base == b.of[0].at.base && share_count(op, piece) == n;
        id[m] = same ? op.page[at] : 0;
    }
#pragma unroll
    for (uint32_t m = 1; m < MATES; m++) same = same && id[m] == id[0];
    return __all_sync(~0u, same);
}

/* APART: a block has a piece, else each of its warps; sums do not tell. Lanes i, i + n_list /
 * n_mate and so on are a block's (choose_head). Blocks of all lanes have the same pieces at the
 * same time, so that sequences which share pages find them in the cache. */
template <uint32_t D, bool APART>
static __global__ void __launch_bounds__((APART ? SHARE_PAGES : WARPS) * 32, D > 128 ? 1
                                                                             : APART ? 2
                                                                                     : BUSY)
    share_logits_kernel(const struct op_lane_shares *list, uint32_t n_list, uint32_t n_mate,
                        const struct choose_begin begins)
{
    __shared__ struct op_lane_shares of[MATES];
    __shared__ struct share_row row[ROWS];
    struct share_query<D> &query =
        *(struct share_query<D> *)(kernel_shared() + share_rooms<D, APART>());
    const uint32_t n = n_list / n_mate, warp = threadIdx.x / 32, each = APART ? 1 : WARPS;
    for (uint32_t m = 0; m < n_mate; m++) choose_copy(&of[m], list + blockIdx.x + m * n);
    kernel_begin();
    __syncthreads();
    for (uint32_t i = blockIdx.x; i < begins.n; i += n)
        choose_clear(begins.list[i], blockIdx.y, gridDim.y);
    const struct share_block b = {of, row, n_mate, of[0].at.group};
    uint32_t n_page = 0;
    for (uint32_t m = 0; m < n_mate; m++) n_page = max(n_page, of[m].at.n_page);
    for (uint32_t g0 = 0; g0 < n_mate * b.group; g0 += ROWS) {
        share_heads_load(&query, b, g0);
        for (uint32_t p = blockIdx.y * each + (APART ? 0 : warp); p < share_pieces(n_page);
             p += gridDim.y * each) {
            const bool same = share_is_same(b, p);
            for (uint32_t m = 0; m < (same ? 1 : n_mate); m++) {
                if constexpr (APART)
                    share_by_block(b, query, {p, m, same});
                else
                    share_by_warp(b, query, {p, m, same});
            }
        }
    }
}

/* ---- Shares ---- */

/* Shares of tokens; a thread takes EACH. */
static __global__ void __launch_bounds__(SPREAD)
    share_spread_kernel(const struct choose_spread shares)
{
    __shared__ struct op_lane_shares of;
    __shared__ float log[OP_GROUP_MAX];
    choose_open(&of, shares.list + blockIdx.y);
    const uint32_t i = (blockIdx.x * SPREAD + threadIdx.x) * EACH;
    const bool finite = choose_make_logs(log, of);
    float share[EACH];
    if (!finite && i == 0) of.result->n_bad = 1; /* cleared by what came before */
    if (i >= of.at.n_page * PAGE_TOK) return;
    choose_shares(share, of.at, log, i);
    float4 *to = (float4 *)(of.at.share + i);
    to[0] = make_float4(share[0], share[1], share[2], share[3]);
    to[1] = make_float4(share[4], share[5], share[6], share[7]);
}

/* Their sums over pages, of which nobody else asks for shares: those of exponentials will do. */
static __global__ void __launch_bounds__(SPREAD) share_fold_kernel(const struct choose_folds folds)
{
    __shared__ struct op_lane_shares of;
    __shared__ float log[OP_GROUP_MAX];
    choose_open(&of, folds.shares.list + blockIdx.y);
    const uint32_t p = blockIdx.x * SPREAD + threadIdx.x;
    const bool finite = choose_make_logs(log, of);
    if (!finite && p == 0) of.result->n_bad = 1;
    if (p < of.at.n_page) folds.list[blockIdx.y].out[p] = choose_page_share(of.at, log, p);
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
        if (of[i].at.share + op[i].at.first != op[i].at.value || of[i].result != op[i].result ||
            op[i].at.first % PAGE_TOK > 0)
            return (struct choose_spread){};
    queue_drop_last(d);
    return s;
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
    (void)queue_launch(d, "shares of pages", share_fold_kernel,
                       dim3((s.n_page + SPREAD - 1) / SPREAD, n), SPREAD, 0,
                       (struct choose_folds){s, staged}); /* a failure is remembered */
    return true;
}

struct choose_folds choose_take_folds(struct cuda_device *d, const struct op_lane_visit *op,
                                      uint32_t n)
{
    const void *last = queue_last(d, kernel_entry(share_fold_kernel));
    struct choose_folds f;
    if (!last) return {};
    memcpy(&f, last, sizeof f);
    if (f.shares.n != n) return {};
    const struct op_lane_fold *of = choose_staged(d, f.list);
    const struct op_lane_shares *shares = choose_staged(d, f.shares.list);
    for (uint32_t i = 0; i < n; i++)
        if (of[i].out != op[i].vote || of[i].n != op[i].n_page || op[i].n_member != 1 ||
            shares[i].result != op[i].result)
            return {};
    queue_drop_last(d);
    return f;
}

/* ---- The launcher ---- */

/* Lanes of a block: as many as have room in an instruction's rows, where there is work for all
 * then. */
static uint32_t count_mates(const struct cuda_device *d, const struct op_lane_shares *op,
                            uint32_t n, uint32_t n_block)
{
    for (uint32_t i = 1; i < n; i++)
        if (op[i].at.group != op->at.group) return 1;
    return choose_mates(n, op->at.group, ROWS, MATES, (uint64_t)BUSY * d->n_sm / n_block);
}

struct share_launch {
    const struct op_lane_shares *list;
    uint32_t n, n_mate;
    dim3 grid;
};

template <uint32_t D, bool APART>
static sac_status launch_blocks(struct cuda_device *d, const struct share_launch &l)
{
    const struct choose_begin begins = choose_take_begin(d);
    return queue_launch(d, "logits by first planes", share_logits_kernel<D, APART>, l.grid,
                        (APART ? SHARE_PAGES : WARPS) * 32,
                        share_rooms<D, APART>() + sizeof(struct share_query<D>), l.list, l.n,
                        l.n_mate, begins);
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
    const struct share_launch l = {list, n, n_mate,
                                   dim3(n / n_mate, n_need < most ? n_need : most)};
    return apart ? launch_blocks<D, true>(d, l) : launch_blocks<D, false>(d, l);
}

/* Reads of 16 bytes; minima, steps and the plane lie behind each other. */
static bool is_aligned(const struct op_share_planes *op)
{
    const size_t bytes = 2 * op->head_dim;
    return op->step_at == op->min_at + bytes && op->hi2_at == op->step_at + bytes &&
           (op->stride | op->min_at | (size_t)op->base) % 16 == 0;
}

sac_status cuda_lane_shares(struct cuda_device *d, const struct op_lane_shares *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].n_segment || op[i].at.frame_of)
            return device_fail(d, SAC_ERR_UNSUPPORTED,
                               "choosing among keys that wait for a turned query");
        if (op[i].at.group > OP_GROUP_MAX)
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
    const uint32_t each = SPREAD * EACH / PAGE_TOK; /* pages */
    return queue_launch(d, "shares of tokens", share_spread_kernel,
                        dim3((most + each - 1) / each, n), SPREAD, 0,
                        (struct choose_spread){list, n, most});
}
