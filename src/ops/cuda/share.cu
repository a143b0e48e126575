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
 * Codes are the 16 rows of a matrix instruction, and heads its eight columns: a tile. A warp has up
 * to TILES of them, whose heads are those of several lanes, and makes rows of a page's codes once
 * for all. Lanes of sequences that have the same page take one reading of it. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#include <float.h>

#define WARPS   4u
#define COLUMNS 8u   /* heads of one instruction */
#define TILES   4u   /* of a warp, at most */
#define MATES   8u   /* lanes of a block, at most */
#define BUSY    4u   /* blocks of a multiprocessor at once */
#define STAGES  4u   /* pages of a warp that are in shared memory, or on their way there */
#define SPREAD  256u /* threads of a block that spreads shares */
#define EACH    CHOOSE_TOKENS

/* ---- Heads ---- */

/* Where numbers of the head of a column go. */
struct share_column {
    uint16_t *exps;
    float *top, *sum; /* of pages; of pieces, `group` apart */
    uint32_t mate;    /* whose it is; UINT32_MAX: there is no such head */
};

struct share_block { /* of all of a block's threads, in shared memory */
    struct op_lane_shares of[MATES];
    struct share_column column[TILES * COLUMNS]; /* of the heads at hand */
    uint32_t n_mate, group, n_piece;
};

/* Channel c of the codes is two bits of byte c % (D / 4), and the bytes of lane j of four are D /
 * 16 from j D / 16 on: so a word of them has four channels of each quarter, the k of one
 * instruction. Codes are not shifted: as bits of a half they are multiples of 2^-24, by a power of
 * four for each quarter, which queries make up for. The queries of a tile as halves, and what that
 * leaves, by word, two quarters and lane: two pairs of channels of either quarter, of head lane
 * / 4.
 */
template <uint32_t D> struct share_query {
    uint4 near[D / 64][2][32], rest[D / 64][2][32];
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

/* Channels of a word and quarter: as halves, and what that leaves. */
template <uint32_t D>
static __device__ void share_query_part(uint2 *near, uint2 *rest, const struct share_block &b,
                                        const struct choose_head &h, uint32_t word, uint32_t s)
{
    const struct op_share_planes &op = b.of[h.mate].at;
    const float *from = op.q + h.head * D + share_channel<D>(threadIdx.x % 4, word, s);
    const float4 v = h.is ? *(const float4 *)from : make_float4(0, 0, 0, 0);
    const float by = op.scale * share_fit(s);
    near->x = half_pack<HALF_F16>(v.x * by, v.y * by);
    near->y = half_pack<HALF_F16>(v.z * by, v.w * by);
    rest->x = half_rest<HALF_F16>(v.x * by, v.y * by, near->x);
    rest->y = half_rest<HALF_F16>(v.z * by, v.w * by, near->y);
}

/* Of heads g0 .. g0 + n_tile * COLUMNS - 1, by all threads of a block: queries, and columns. */
template <uint32_t D>
static __device__ void share_heads_load(struct share_query<D> *query, struct share_block &b,
                                        uint32_t g0, uint32_t n_tile)
{
    constexpr uint32_t n_word = D / 64;
    const uint32_t lane = threadIdx.x % 32;
    __syncthreads(); /* nobody reads those of the heads before any more */
    for (uint32_t i = threadIdx.x / 32; i < n_tile * n_word * 2; i += blockDim.x / 32) {
        const uint32_t tile = i / 2 / n_word, word = i / 2 % n_word;
        const struct choose_head h =
            choose_head_of(g0 + tile * COLUMNS + lane / 4, b.group, b.n_mate);
        uint2 near[2], rest[2];
        for (uint32_t s = 0; s < 2; s++)
            share_query_part<D>(&near[s], &rest[s], b, h, word, i % 2 * 2 + s);
        query[tile].near[word][i % 2][lane] =
            make_uint4(near[0].x, near[0].y, near[1].x, near[1].y);
        query[tile].rest[word][i % 2][lane] =
            make_uint4(rest[0].x, rest[0].y, rest[1].x, rest[1].y);
    }
    if (threadIdx.x < n_tile * COLUMNS) {
        const struct choose_head h = choose_head_of(g0 + threadIdx.x, b.group, b.n_mate);
        const struct op_share_planes &op = b.of[h.mate].at;
        struct share_column &to = b.column[threadIdx.x];
        to.exps = choose_exps(op, h.head);
        to.top = choose_tops(op, h.head);
        to.sum = b.of[h.mate].sum + h.head;
        to.mate = h.is ? h.mate : UINT32_MAX;
    }
    __syncthreads();
}

/* ---- Pages ---- */

/* What goes with all tokens of a page, its steps being met in the middle of what the codes leave
 * open: of the page that is given to lane / 4, and heads 2 (lane % 4) and the next one of each
 * tile. Rows of an instruction are the minima of eight pages, and their steps. NaN if it is not
 * finite. */
template <uint32_t D, uint32_t N>
static __device__ __forceinline__ void
share_bases(float base[N][2], const struct share_query<D> *query, const struct op_share_planes &op,
            const uint8_t *page)
{
    constexpr uint32_t n_word = D / 64;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t a[4][n_word][4];
#pragma unroll
    for (uint32_t s = 0; s < 4; s++)
#pragma unroll
        for (uint32_t u = 0; u < n_word; u++) {
            const uint32_t at = share_channel<D>(lane % 4, u, s) * 2;
            const uint2 lo = __ldg((const uint2 *)(page + op.min_at + at));
            const uint2 by = __ldg((const uint2 *)(page + op.step_at + at));
            a[s][u][0] = lo.x, a[s][u][1] = by.x, a[s][u][2] = lo.y, a[s][u][3] = by.y;
        }
#pragma unroll
    for (uint32_t c = 0; c < N; c++) {
        base[c][0] = base[c][1] = 0;
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            float sum[4] = {};
#pragma unroll
            for (uint32_t u = 0; u < n_word; u++) {
                const uint2 near = ((const uint2 *)&query[c].near[u][s / 2][lane])[s % 2];
                const uint2 rest = ((const uint2 *)&query[c].rest[u][s / 2][lane])[s % 2];
                mma_16816<HALF_F16>(sum, a[s][u], near.x, near.y);
                mma_16816<HALF_F16>(sum, a[s][u], rest.x, rest.y);
            }
            base[c][0] += fmaf(31.5f, sum[2], sum[0]) / share_fit(s);
            base[c][1] += fmaf(31.5f, sum[3], sum[1]) / share_fit(s);
        }
#pragma unroll
        for (uint32_t e = 0; e < 2; e++)
            base[c][e] = isfinite(base[c][e]) ? base[c][e] * LOG2E : NAN;
    }
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

/* A thread's first token: it has four neighbours. */
static __device__ __forceinline__ uint32_t share_token(void)
{
    return threadIdx.x % 32 / 4 * 4;
}

/* Products of a page's codes and the queries of those of N tiles whose bit is set, or of ALL: of
 * token i of four and head e, c[tile][i / 2][i % 2 * 2 + e]. `steps`: where its bytes are. */
template <uint32_t D, uint32_t N, bool ALL>
static __device__ __forceinline__ void share_page(float c[N][2][4],
                                                  const struct share_query<D> *query,
                                                  const uint8_t *steps, uint32_t tiles)
{
    constexpr uint32_t n_word = D / 64;
    const uint32_t lane = threadIdx.x % 32, j = lane % 4;
    uint32_t code[4][n_word];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        share_load(code[i], steps + 2 * D + (share_token() + i) * (D / 4) + j * (D / 16));
#pragma unroll
    for (uint32_t t = 0; t < N; t++)
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) c[t][i / 4][i % 4] = 0;
#pragma unroll
    for (uint32_t u = 0; u < n_word; u++) {
        uint32_t first[4], second[4]; /* pairs of channels: the byte of each at the same place */
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            first[i] = __byte_perm(code[i][u], 0, 0x3120);
            second[i] = first[i] >> 8;
        }
#pragma unroll
        for (uint32_t s2 = 0; s2 < 2; s2++) {
            uint32_t a[2][2][4];
            uint2 step[2];
#pragma unroll
            for (uint32_t s = 0; s < 2; s++) {
                const uint32_t bits = 0x00030003u << 2 * (2 * s2 + s);
                step[s] = *(const uint2 *)(steps + share_channel<D>(j, u, 2 * s2 + s) * 2);
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    a[s][i][0] = first[2 * i] & bits, a[s][i][1] = first[2 * i + 1] & bits;
                    a[s][i][2] = second[2 * i] & bits, a[s][i][3] = second[2 * i + 1] & bits;
                }
            }
#pragma unroll
            for (uint32_t t = 0; t < N; t++) {
                if (!ALL && !(tiles >> t & 1)) continue;
                const uint4 q = query[t].near[u][s2][lane];
                const uint32_t by[2][2] = {{h2_mul(q.x, step[0].x), h2_mul(q.y, step[0].y)},
                                           {h2_mul(q.z, step[1].x), h2_mul(q.w, step[1].y)}};
#pragma unroll
                for (uint32_t s = 0; s < 2; s++)
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++)
                        mma_16816<HALF_F16>(c[t][i], a[s][i], by[s][0], by[s][1]);
            }
        }
    }
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

/* Powers of a head's logits of a page less the largest one, to `exps` if they go there, from the
 * products of four tokens and what goes with all. Returns the largest logit, and this thread's
 * share of the sum of the powers: NaN if one is not finite, as then the page's minimum, step or the
 * query is not, and so no product is. */
static __device__ __forceinline__ struct exp_sum
share_put(uint16_t *exps, bool is, const float c[2][4], uint32_t e, float base)
{
    constexpr float unit = (float)(1u << 24) / SHARE_FIT * LOG2E;
    const float x[4] = {c[0][e], c[0][2 + e], c[1][e], c[1][2 + e]};
    const float most = share_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
    const float less = -(most * unit);
    float p[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) p[i] = exp2_fast(fmaf(x[i], unit, less));
    if (is)
        *(uint2 *)exps =
            make_uint2(half_pack<HALF_F16>(p[0], p[1]), half_pack<HALF_F16>(p[2], p[3]));
    return {fmaf(most, unit, base), (p[0] + p[1]) + (p[2] + p[3])};
}

/* Adds a page's to the sum of those before it. */
static __device__ __forceinline__ void share_add(struct exp_sum &sum, const struct exp_sum &page)
{
    const float high = fmaxf(sum.max, page.max);
    const float before = sum.sum * exp2_fast(sum.max - high);
    sum.sum = fmaf(page.sum, exp2_fast(page.max - high), before);
    sum.max = high;
}

/* ---- Pieces ---- */

/* Pages of a piece as lane `mate` has them; `same`: all of the block's lanes do. */
struct share_piece {
    uint32_t piece, mate, n;
    uint32_t id; /* of page threadIdx.x % 8 */
    bool same;
};

static __device__ __forceinline__ uint32_t share_count(const struct op_share_planes &op,
                                                       uint32_t piece)
{
    const uint32_t begin = piece * SHARE_PAGES;
    return begin < op.n_page ? min(SHARE_PAGES, op.n_page - begin) : 0;
}

/* Whether all lanes of the block have the same pages in a piece: four are looked at together. */
static __device__ bool share_is_same(const struct share_block &b, uint32_t piece)
{
    const uint32_t lane = threadIdx.x % 32, p = lane % SHARE_PAGES;
    const struct op_share_planes &first = b.of[0].at;
    const uint32_t n = share_count(first, piece), at = piece * SHARE_PAGES + p;
    if (b.n_mate == 1) return true;
    const uint32_t id = p < n ? first.page[at] : 0;
    bool same = true;
#pragma unroll
    for (uint32_t k = 0; k < MATES; k += 4) {
        const struct op_share_planes &op = b.of[min(k + lane / SHARE_PAGES, b.n_mate - 1)].at;
        const bool alike = op.base == first.base && share_count(op, piece) == n;
        same &= alike && (p >= n || op.page[at] == id);
    }
    return __all_sync(~0u, same);
}

static __device__ __forceinline__ struct share_piece share_piece_of(const struct share_block &b,
                                                                    uint32_t piece, uint32_t mate)
{
    struct share_piece p = {piece, mate, 0, 0, false};
    if (piece >= b.n_piece) return p;
    const struct op_share_planes &op = b.of[mate].at;
    p.n = share_count(op, piece);
    if (threadIdx.x % SHARE_PAGES < p.n)
        p.id = op.page[piece * SHARE_PAGES + threadIdx.x % SHARE_PAGES];
    p.same = mate == 0 && share_is_same(b, piece);
    return p;
}

/* The next one of a warp: of the next lane, where lanes have others, or `by` pieces on. */
static __device__ __forceinline__ struct share_piece
share_piece_next(const struct share_block &b, const struct share_piece &p, uint32_t by)
{
    const bool more = !p.same && p.mate + 1 < b.n_mate;
    return share_piece_of(b, more ? p.piece : p.piece + by, more ? p.mate + 1 : 0);
}

static __device__ __forceinline__ const uint8_t *
share_page_at(const struct share_block &b, const struct share_piece &of, uint32_t page)
{
    const struct op_share_planes &op = b.of[of.mate].at;
    return op.base + (size_t)__shfl_sync(~0u, of.id, (int)page) * op.stride;
}

/* Whose columns they are: bit 2 c + e, that of head e of tile c of this thread. */
template <uint32_t N>
static __device__ __forceinline__ uint32_t share_heads_of(const struct share_block &b,
                                                          const struct share_piece &of)
{
    uint32_t mine = 0;
#pragma unroll
    for (uint32_t i = 0; i < 2 * N; i++) {
        const uint32_t mate = b.column[i / 2 * COLUMNS + threadIdx.x % 4 * 2 + i % 2].mate;
        mine |= (uint32_t)(of.same ? mate != UINT32_MAX : mate == of.mate) << i;
    }
    return mine;
}

/* Tiles of which some lane of the warp has a head. */
template <uint32_t N> static __device__ __forceinline__ uint32_t share_tiles_of(uint32_t mine)
{
    uint32_t tiles = 0;
#pragma unroll
    for (uint32_t c = 0; c < N; c++)
        tiles |= (uint32_t)__any_sync(~0u, (mine >> 2 * c & 3) != 0) << c;
    return tiles;
}

/* What a warp knows of a piece when its pages have been met. */
template <uint32_t N> struct share_made {
    float top[N][2]; /* of page lane / 4 */
    struct exp_sum sum[N][2];
};

template <uint32_t N> static __device__ __forceinline__ struct share_made<N> share_nothing(void) {
    struct share_made<N> made;
#pragma unroll
    for (uint32_t i = 0; i < 2 * N; i++) {
        made.top[i / 2][i % 2] = 0;
        made.sum[i / 2][i % 2] = exp_sum_none();
    }
    return made;
}

template <uint32_t N>
static __device__ __forceinline__ void share_tell(const struct share_block &b,
                                                  const struct share_made<N> &made,
                                                  const struct share_piece &of, uint32_t mine)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 2 * N; i++) {
        const struct exp_sum &sum = made.sum[i / 2][i % 2];
        const struct share_column &to = b.column[i / 2 * COLUMNS + lane % 4 * 2 + i % 2];
        const float all = share_sum(sum.sum);
        if (!(mine >> i & 1)) continue;
        if (lane / 4 < of.n) to.top[of.piece * SHARE_PAGES + lane / 4] = made.top[i / 2][i % 2];
        if (lane < 4) to.sum[(size_t)of.piece * b.group] = sum.max + log2f(all);
    }
}

/* What a warp meets pages of a piece with. */
template <uint32_t D, uint32_t N> struct share_with {
    const struct share_block *b;
    const struct share_query<D> *query;
    float base[N][2];     /* of page lane / 4 */
    uint32_t mine, tiles; /* as share_heads_of and share_tiles_of tell */
};

/* What page p of a piece adds to it, whose steps and codes are at `steps`. */
template <uint32_t D, uint32_t N, bool ALL>
static __device__ __forceinline__ void
share_meet(struct share_made<N> &made, const struct share_with<D, N> &with,
           const struct share_piece &of, uint32_t p, const uint8_t *steps)
{
    const uint32_t lane = threadIdx.x % 32;
    const size_t at = (of.piece * SHARE_PAGES + p) * PAGE_TOK + share_token();
    float c[N][2][4];
    share_page<D, N, ALL>(c, with.query, steps, with.tiles);
#pragma unroll
    for (uint32_t i = 0; i < 2 * N; i++) {
        const uint32_t t = i / 2, e = i % 2;
        if (!ALL && !(with.tiles >> t & 1)) continue;
        const struct share_column &to = with.b->column[t * COLUMNS + lane % 4 * 2 + e];
        const float base = __shfl_sync(~0u, with.base[t][e], (int)(p * 4 + lane % 4));
        const struct exp_sum page = share_put(to.exps + at, with.mine >> i & 1, c[t], e, base);
        if (lane / 4 == p) made.top[t][e] = page.max;
        share_add(made.sum[t][e], page);
    }
}

/* ---- A warp's pieces, and a block's ---- */

template <uint32_t D>
static __device__ __forceinline__ uint8_t *share_stage(uint8_t *room, uint32_t p)
{
    return room + p % STAGES * share_bytes<D>();
}

/* Begins to bring page p of a piece, if it has one. */
template <uint32_t D>
static __device__ __forceinline__ void share_fetch(const struct share_block &b, uint8_t *room,
                                                   const struct share_piece &of, uint32_t p)
{
    if (p < of.n) {
        const uint32_t mine = threadIdx.x % 32 * 16;
        const uint8_t *from = share_page_at(b, of, p) + b.of[of.mate].at.step_at + mine;
        const uint32_t to = smem_address(share_stage<D>(room, p)) + mine;
#pragma unroll
        for (uint32_t at = 0; at < share_bytes<D>(); at += 512)
            if (mine + at < share_bytes<D>()) copy_async16(to + at, from + at);
    }
    copy_commit();
}

/* Pieces first, first + by and so on, by a warp, which has pages of the next one on their way when
 * it comes to the last of one. */
template <uint32_t D, uint32_t N>
static __device__ __forceinline__ void share_by_warp(const struct share_block &b,
                                                     const struct share_query<D> *query,
                                                     uint8_t *room, uint32_t first, uint32_t by)
{
    static_assert(SHARE_PAGES % STAGES == 0, "a page's place is the same in all pieces");
    struct share_piece now = share_piece_of(b, first, 0);
    for (uint32_t p = 0; p < STAGES - 1; p++) share_fetch<D>(b, room, now, p);
    while (now.piece < b.n_piece) {
        const struct share_piece next = share_piece_next(b, now, by);
        struct share_made<N> made = share_nothing<N>();
        struct share_with<D, N> with = {
            &b, query, {}, share_heads_of<N>(b, now), 0
        };
        with.tiles = share_tiles_of<N>(with.mine);
        if (now.n > 0)
            share_bases<D, N>(with.base, query, b.of[now.mate].at,
                              share_page_at(b, now, min(threadIdx.x % 32 / 4, now.n - 1)));
#pragma unroll 1
        for (uint32_t p = 0; p < SHARE_PAGES; p++) {
            const uint32_t ahead = p + STAGES - 1;
            copy_wait<STAGES - 2>();
            __syncwarp(); /* the page is there, and nobody reads the one before it any more */
            if (ahead < SHARE_PAGES)
                share_fetch<D>(b, room, now, ahead);
            else
                share_fetch<D>(b, room, next, ahead - SHARE_PAGES);
            if (p >= now.n) continue;
            const uint8_t *steps = share_stage<D>(room, p);
            if (with.tiles == (1u << N) - 1) /* nothing is asked between instructions then */
                share_meet<D, N, true>(made, with, now, p, steps);
            else
                share_meet<D, N, false>(made, with, now, p, steps);
        }
        if (now.n > 0) share_tell<N>(b, made, now, with.mine);
        now = next;
    }
}

/* The same of a piece of a block's only lane, a warp for each page. */
template <uint32_t D>
static __device__ __forceinline__ void
share_by_block(const struct share_block &b, const struct share_query<D> *query, uint32_t piece)
{
    __shared__ struct exp_sum room[SHARE_PAGES][2][32];
    const uint32_t lane = threadIdx.x % 32, p = threadIdx.x / 32;
    const struct share_piece of = share_piece_of(b, piece, 0);
    struct share_made<1> made = share_nothing<1>();
    struct share_with<D, 1> with = {
        &b, query, {}, share_heads_of<1>(b, of), 1
    };
    if (p < of.n) {
        const uint8_t *page = share_page_at(b, of, p);
        share_bases<D, 1>(with.base, query, b.of[0].at, page); /* eight times the same */
        share_meet<D, 1, true>(made, with, of, p, page + b.of[0].at.step_at);
        room[p][0][lane] = made.sum[0][0];
        room[p][1][lane] = made.sum[0][1];
    }
    __syncthreads();
    if (p == 0) {
        made = share_nothing<1>();
        for (uint32_t e = 0; e < 2; e++) {
            made.top[0][e] = room[min(lane / 4, of.n - 1)][e][lane].max;
            for (uint32_t k = 0; k < of.n; k++) share_add(made.sum[0][e], room[k][e][lane]);
        }
        share_tell<1>(b, made, of, with.mine);
    }
    __syncthreads(); /* nobody reads the room any more */
}

/* ---- The kernel ---- */

#define LOGS 4u /* heads whose sums a warp adds up together */

/* Adds up what is told of heads i .. i + LOGS - 1 of a block's lanes, in powers of two. */
static __device__ void share_log(const struct share_block &b, uint32_t i)
{
    const uint32_t n_head = b.n_mate * b.group;
    const float *sum[LOGS];
    uint32_t n[LOGS];
    struct exp_sum all[LOGS];
#pragma unroll
    for (uint32_t k = 0; k < LOGS; k++) {
        const struct choose_head h = choose_head_of(min(i + k, n_head - 1), b.group, b.n_mate);
        sum[k] = b.of[h.mate].sum + h.head;
        n[k] = share_pieces(b.of[h.mate].at.n_page);
        all[k] = {-FLT_MAX, 0};
    }
#pragma unroll 4
    for (uint32_t p = threadIdx.x % 32; p < b.n_piece; p += 32)
#pragma unroll
        for (uint32_t k = 0; k < LOGS; k++)
            share_add(all[k], {p < n[k] ? __ldcg(sum[k] + (size_t)p * b.group) : -INFINITY, 1});
#pragma unroll
    for (uint32_t k = 0; k < LOGS; k++) {
        float max = all[k].max;
        for (int j = 16; j > 0; j /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, j));
        float one = all[k].sum * exp2_fast(all[k].max - max);
        for (int j = 16; j > 0; j /= 2) one += __shfl_xor_sync(~0u, one, j);
        if (threadIdx.x % 32 == 0 && i + k < n_head)
            b.of[(i + k) / b.group].lse[(i + k) % b.group] = (max + log2f(one)) * LN2;
    }
}

static __host__ __device__ constexpr uint32_t share_threads(bool apart)
{
    return (apart ? SHARE_PAGES : WARPS) * 32;
}

/* Of shared memory: queries, and behind them pages on their way. */
template <uint32_t D, uint32_t N> static constexpr size_t share_shared(bool apart)
{
    return N * sizeof(struct share_query<D>) + (apart ? 0 : WARPS * STAGES * share_bytes<D>());
}

/* The block's lanes, whose begins it clears. */
static __device__ void share_open(struct share_block &b, const struct op_lane_shares *list,
                                  uint32_t n_list, uint32_t n_mate,
                                  const struct choose_begin &begins)
{
    const uint32_t n = n_list / n_mate;
    for (uint32_t m = 0; m < n_mate; m++) choose_copy(&b.of[m], list + blockIdx.x + m * n);
    kernel_begin();
    __syncthreads();
    for (uint32_t i = blockIdx.x; i < begins.n; i += n)
        choose_clear(begins.list[i], blockIdx.y, gridDim.y);
    if (threadIdx.x > 0) return;
    uint32_t n_page = 0;
    for (uint32_t m = 0; m < n_mate; m++) n_page = max(n_page, b.of[m].at.n_page);
    b.n_mate = n_mate;
    b.group = b.of[0].at.group;
    b.n_piece = share_pieces(n_page);
}

/* APART: a block has a piece, else each of its warps; neither this nor N tells in sums. Lanes i, i
 * + n_list / n_mate and so on are a block's (choose_head). The last block to be done with them adds
 * up. Blocks of all lanes have the same pieces at the same time, so that sequences which share
 * pages find them in the cache. */
template <uint32_t D, uint32_t N, bool APART>
static __global__ void __launch_bounds__(share_threads(APART), D > 128 ? 1
                                                               : APART ? 2
                                                                       : BUSY)
    share_logits_kernel(const struct op_lane_shares *list, uint32_t n_list, uint32_t n_mate,
                        const struct choose_begin begins, uint32_t *tally)
{
    __shared__ struct share_block b;
    struct share_query<D> *const query = (struct share_query<D> *)kernel_shared();
    const uint32_t warp = threadIdx.x / 32;
    uint8_t *const room = (uint8_t *)(query + N) + warp * STAGES * share_bytes<D>();
    share_open(b, list, n_list, n_mate, begins);
    __syncthreads();
    for (uint32_t g0 = 0; g0 < b.n_mate * b.group; g0 += N * COLUMNS) {
        share_heads_load<D>(query, b, g0, N);
        if constexpr (APART) {
            for (uint32_t p = blockIdx.y; p < b.n_piece; p += gridDim.y)
                share_by_block<D>(b, query, p);
        } else {
            share_by_warp<D, N>(b, query, room, blockIdx.y * WARPS + warp, gridDim.y * WARPS);
        }
    }
    if (!block_is_last(tally + blockIdx.x, gridDim.y)) return;
    for (uint32_t i = warp * LOGS; i < b.n_mate * b.group; i += blockDim.x / 32 * LOGS)
        share_log(b, i);
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

/* Shares of tokens; a thread takes EACH of every gridDim.x-th stretch. `folds` NULL: nobody asks
 * for the sums of pages. */
static __global__ void __launch_bounds__(SPREAD, BUSY)
    share_spread_kernel(const struct choose_spread shares, const struct op_lane_fold *folds)
{
    __shared__ struct op_lane_shares of;
    choose_open(&of, shares.list + blockIdx.y);
    float *const out = folds ? folds[blockIdx.y].out : NULL;
    const uint32_t n = of.at.n_page * PAGE_TOK;
    if (blockIdx.x == 0 && threadIdx.x == 0 && !choose_shares_finite(of))
        of.result->n_bad = 1; /* cleared by what came before */
    for (uint32_t first = blockIdx.x * SPREAD * EACH; first < n;
         first += gridDim.x * SPREAD * EACH) {
        const uint32_t i = first + threadIdx.x * EACH;
        float share[EACH] = {};
        if (i < n) choose_shares(share, of, i);
        if (!out) continue;
        const float total = share_page_total(share);
        if (i < n && threadIdx.x % 4 == 0) out[i / PAGE_TOK] = total;
    }
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
    const uint32_t n_need = (spread.n_page + each - 1) / each;
    const uint32_t most = choose_larger(BUSY * d->n_sm / spread.n, 1);
    return queue_launch(d, "shares of tokens", share_spread_kernel,
                        dim3(n_need < most ? n_need : most, spread.n), SPREAD, 0, spread, folds);
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

/* Tiles of a warp, at most: registers have room for them. */
template <uint32_t D> static constexpr uint32_t share_tiles(void)
{
    return D > 128 ? TILES / 2 : TILES;
}

/* Lanes of a block: as many as have room in a warp's tiles, where there is work for all then. */
static uint32_t count_mates(const struct cuda_device *d, const struct op_lane_shares *op,
                            uint32_t n, uint32_t n_tile, uint32_t n_block)
{
    for (uint32_t i = 1; i < n; i++)
        if (op[i].at.group != op->at.group) return 1;
    return choose_mates(op, n, n_tile * COLUMNS, MATES, (uint64_t)BUSY * d->n_sm / n_block);
}

struct share_launch {
    const struct op_lane_shares *list;
    uint32_t n, n_mate, n_block; /* lanes, those of a block; blocks that a lane can keep busy */
};

template <uint32_t D, uint32_t N, bool APART>
static sac_status launch_logits(struct cuda_device *d, const struct share_launch &l)
{
    const struct choose_begin begins = choose_take_begin(d);
    const uint32_t n = l.n / l.n_mate, most = choose_larger(BUSY * d->n_sm / n, 1);
    return queue_launch(d, "logits by first planes", share_logits_kernel<D, N, APART>,
                        dim3(n, l.n_block < most ? l.n_block : most), share_threads(APART),
                        share_shared<D, N>(APART), l.list, l.n, l.n_mate, begins, d->tally);
}

/* With few pieces all pages of one are read at the same time. */
template <uint32_t D>
static sac_status launch_tiles(struct cuda_device *d, const struct op_lane_shares *op,
                               const struct op_lane_shares *list, uint32_t n, uint32_t n_page)
{
    const uint32_t n_piece = share_pieces(n_page), n_block = (n_piece + WARPS - 1) / WARPS;
    if ((uint64_t)n * n_piece <= (uint64_t)BUSY * d->n_sm)
        return launch_logits<D, 1, true>(d, {list, n, 1, n_piece});
    const uint32_t n_mate = count_mates(d, op, n, share_tiles<D>(), n_block);
    const struct share_launch l = {list, n, n_mate, n_block};
    const uint32_t n_tile = (n_mate * op->at.group + COLUMNS - 1) / COLUMNS;
    if (n_tile == 1) return launch_logits<D, 1, false>(d, l);
    if (n_tile == 2) return launch_logits<D, 2, false>(d, l);
    return launch_logits<D, share_tiles<D>(), false>(d, l);
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
    case 64: TRY(launch_tiles<64>(d, op, list, n, most)); break;
    case 128: TRY(launch_tiles<128>(d, op, list, n, most)); break;
    case 256: TRY(launch_tiles<256>(d, op, list, n, most)); break;
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for heads of this size");
    }
    return launch_spread(d, {list, n, most}, NULL);
}
