/* share.cu: attention probabilities (shares) of all tokens by the first plane of their keys, for a
 * list of lanes (op_lane_shares). The logit of token t is scale * q (min + step * (64 hi2(t) +
 * 31.5)), where hi2 are the two leading bits of a channel's code.
 *
 * Two passes. share_logits_kernel reads minima, steps and planes, and leaves for each page and
 * query head the largest logit, exponentials relative to it in eight bits, and their sum
 * (choose.cuh). The second pass, here or fused into what uses the shares, reads a quarter of the
 * bytes that logits would take, and computes no exponentials.
 *
 * Codes go into m16n8k16 unshifted, as subnormal f16; queries times steps, the weights of the
 * codes, are rounded to f16, an error of a thousandth of what two bits of a key leave open. What is
 * common to all tokens of a page (min, and the middle of the code) is computed with residuals.
 *
 * A warp has a piece of SHARE_PAGES pages at a time: minima and steps in shared memory, planes in a
 * ring of STAGES pages that cp.async fills. With few pieces a block has a piece and each warp a
 * page (BY_BLOCK). A block takes several lanes of one KV head, up to 16 query heads. Where they
 * have the same pages, heads are the 16 rows of the instruction and tokens its columns. Where they
 * differ, tokens are rows and heads columns, which needs half as many products, and the idle
 * columns of the softmax take further pages. Either way an instruction adds the same products in
 * the same order, so the bits are the same. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"
#include "ops/cuda/share_unit.cuh"

#include <float.h>

#define WARPS     4u
#define LANES_MAX 4u /* lanes of a block, at most */
#define BUSY      4u /* resident blocks of a multiprocessor */
#define STAGES    4u /* pages of a warp's ring */
#define SPREAD    256u
#define EACH      CHOOSE_TOKENS

/* ---- Pieces ---- */

/* A piece of pages of lane lane_i, for the block's rows (query heads) r0 to r0 + n_row - 1. */
struct share_piece {
    uint32_t piece, lane_i, r0, n_row;
};

/* Row number i of these, or NULL if there is none. */
static __device__ __forceinline__ const struct share_row *
share_row_of(const struct share_block &b, const struct share_piece &of, uint32_t i)
{
    return i < of.n_row && b.row[of.r0 + i].lane_i != UINT32_MAX ? &b.row[of.r0 + i] : NULL;
}

/* Softmax sums of a head over two pages of a piece: 2 (lane % 4) and the next. */
struct share_page_sums {
    struct exp_sum page[2];
};

/* Stores the page sums of row lane / 4 + 8 e, and its sum over the piece; by a warp. base: the
 * logit part common to a page's tokens. */
static __device__ __forceinline__ void share_store(const struct share_block &b, uint32_t e,
                                                   const struct share_piece &of,
                                                   const struct share_page_sums &made,
                                                   const float base[2], uint32_t n)
{
    const struct share_row *row = share_row_of(b, of, threadIdx.x % 32 / 4 + 8 * e);
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

/* The same for all rows; at(p, row) gives the sum of page p in shared memory. */
template <typename F>
static __device__ __forceinline__ void share_store_all(const struct share_block &b,
                                                       const struct share_piece &of,
                                                       const float base[4], uint32_t n, const F &at)
{
    const uint32_t lane = threadIdx.x % 32, j = lane % 4;
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        struct share_page_sums made;
        if (8 * e >= of.n_row) break;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            made.page[k] = *at(min(2 * j + k, n - 1), lane / 4 + 8 * e);
        share_store(b, e, of, made, base + 2 * e, n);
    }
}

/* Pages of a piece of this lane. */
static __device__ __forceinline__ uint32_t share_page_count(const struct op_share_planes &op,
                                                            uint32_t piece)
{
    const uint32_t begin = piece * SHARE_PAGES;
    return begin < op.n_page ? min(SHARE_PAGES, op.n_page - begin) : 0;
}

/* A warp's shared memory: minima and steps of a piece's pages, and the ring of planes. The padding
 * lets eight pages be read together without bank conflicts. */
template <uint32_t D> struct share_smem {
    static constexpr uint32_t n_min = 4 * D, n_plane = PAGE_TOK * D / 4; /* bytes */
    uint8_t min[SHARE_PAGES][n_min + 64], plane[STAGES][n_plane];
    /* A page's softmax sum for one of 16 rows, in the place of the page's minima, which have been
     * used. */
    __device__ struct exp_sum *made_each(uint32_t p, uint32_t row)
    {
        static_assert(2 * D >= SHARE_ROWS * sizeof(struct exp_sum), "steps lie behind");
        return (struct exp_sum *)min[p] + row;
    }
    /* A page's softmax sum for one of 8 rows, after the minima; and a token's product for one of 8
     * rows, in the place of the minima, four tokens together and rows in different banks. */
    __device__ struct exp_sum *made(uint32_t p, uint32_t row)
    {
        return (struct exp_sum *)(min[p] + n_min) + row;
    }
    __device__ float *product(uint32_t row, uint32_t token)
    {
        static_assert(2 * D >= PAGE_TOK * sizeof(float), "steps lie behind");
        return (float *)min[row] + (token + row / 2 * 8 + row % 2 * 4) % PAGE_TOK;
    }
};

/* Bytes of the shared memory of a block's warps. */
template <uint32_t D, bool BY_BLOCK>
static __host__ __device__ constexpr size_t share_smem_bytes(void)
{
    return BY_BLOCK ? 0 : WARPS * sizeof(struct share_smem<D>);
}

/* The pages of a piece for up to 16 rows. open(p) waits for page p. */
template <uint32_t D, typename F>
static __device__ __forceinline__ void share_pages_each(const struct share_block &b,
                                                        const struct share_query<D> &query,
                                                        const struct share_piece &of, uint32_t n,
                                                        struct share_smem<D> &room, const F &open)
{
    const uint32_t lane = threadIdx.x % 32, j = lane % 4;
    uint8_t *exps[2];
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        const struct share_row *to = share_row_of(b, of, lane / 4 + 8 * e);
        exps[e] = to ? to->exps + of.piece * SHARE_PAGES * PAGE_TOK + j * 8 : NULL;
    }
#pragma unroll 2
    for (uint32_t p = 0; p < n; p++) {
        struct exp_sum made[2];
        float c[4][4];
        open(p);
        share_page<D, true>(c, query, room.plane[p % STAGES], room.min[p] + 2 * D);
        share_exponentials(made, exps, p * PAGE_TOK, c);
        if (j == 0)
            *room.made_each(p, lane / 4) = made[0], *room.made_each(p, lane / 4 + 8) = made[1];
    }
}

/* How the columns of transposed products are used: each of `span` pages has n_row columns for its
 * rows. */
struct share_columns {
    uint32_t n_row, part; /* i / n_row is i * part / 256 for i < 8 */
    uint32_t span, n;
    uint32_t query; /* shared address for share_weights */

    __device__ __forceinline__ uint32_t page(uint32_t column) const
    {
        return column * part / 256;
    }
    __device__ __forceinline__ uint32_t row(uint32_t column) const
    {
        return column - page(column) * n_row;
    }
};

/* Logits of the span of pages from p0 on for these rows, transposed through shared memory: c[i][2 e
 * + k] as share_page has them, for column lane / 4. */
template <uint32_t D, typename F>
static __device__ __forceinline__ void
share_page_group(float c[4][4], uint32_t e, const struct share_columns &column_of, uint32_t p0,
                 struct share_smem<D> &room, const F &open)
{
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
    uint32_t by[4][D / 32];
    share_weights<D>(by, column_of.query,
                     room.min[min(p0 + column_of.page(g), SHARE_PAGES - 1)] + 2 * D);
#pragma unroll 1
    for (uint32_t p = p0; p < min(p0 + column_of.span, column_of.n); p++) {
        float x[2][4];
        open(p);
        share_page_transposed<D>(x, by, room.plane[p % STAGES]);
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++)
            if (p0 + column_of.page(2 * j + odd) == p)
#pragma unroll
                for (uint32_t t = 0; t < 4; t++)
                    *room.product(2 * j + odd, g + 8 * t) = x[t / 2][t % 2 * 2 + odd];
    }
    __syncwarp();
#pragma unroll
    for (uint32_t t = 0; t < 2; t++) {
        const float4 v = *(const float4 *)room.product(g, 8 * j + 4 * t);
        c[2 * t][2 * e] = v.x, c[2 * t][2 * e + 1] = v.y;
        c[2 * t + 1][2 * e] = v.z, c[2 * t + 1][2 * e + 1] = v.w;
    }
    __syncwarp(); /* products have been read */
}

/* The pages of a piece for up to 8 rows, several pages at a time in each half of the
 * accumulators. */
template <uint32_t D, typename F>
static __device__ __forceinline__ void
share_pages_together(const struct share_block &b, const struct share_query<D> &query,
                     const struct share_piece &of, uint32_t n, struct share_smem<D> &room,
                     const F &open)
{
    const uint32_t lane = threadIdx.x % 32, j = lane % 4, tile = lane / 8;
    const uint32_t span = min(8 / of.n_row, SHARE_PAGES / 2);
    struct share_columns column_of = {of.n_row, 256 / of.n_row + 1, span, n, 0};
    column_of.query = smem_address(query.near[tile / 2][tile % 2][of.r0 + column_of.row(lane % 8)]);
    const uint32_t column_page = column_of.page(lane / 4), i = column_of.row(lane / 4);
    const struct share_row *row = column_page < span ? share_row_of(b, of, i) : NULL;
    uint8_t *to = row ? row->exps + of.piece * SHARE_PAGES * PAGE_TOK + j * 8 : NULL;
    for (uint32_t first = 0; first < n; first += 2 * span) {
        float c[4][4];
        struct exp_sum made[2];
        uint8_t *exps[2];
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            const uint32_t p0 = first + e * span;
            share_page_group<D>(c, e, column_of, p0, room, open);
            exps[e] = row && p0 + column_page < n ? to + (p0 + column_page) * PAGE_TOK : NULL;
        }
        share_exponentials(made, exps, 0, c);
#pragma unroll
        for (uint32_t e = 0; e < 2; e++)
            if (j == 0 && exps[e]) *room.made(first + e * span + column_page, i) = made[e];
    }
}

/* A piece, by a warp. */
template <uint32_t D>
static __device__ __forceinline__ void share_by_warp(const struct share_block &b,
                                                     const struct share_query<D> &query,
                                                     const struct share_piece &of)
{
    using room_of = struct share_smem<D>;
    const struct op_share_planes &op = b.of[of.lane_i].at;
    const uint32_t lane = threadIdx.x % 32, n = share_page_count(op, of.piece);
    if (n == 0) return;
    room_of &room = ((room_of *)kernel_shared())[threadIdx.x / 32];
    const uint8_t *const planes = op.base + op.min_at; /* minima, steps, codes of each page */
    const uint32_t stride = (uint32_t)op.stride;
    const uint32_t id = op.page[of.piece * SHARE_PAGES + min(lane % SHARE_PAGES, n - 1)];
    const auto page_at = [&](uint32_t p) {
        return planes + (uint64_t)__shfl_sync(~0u, id, p) * stride + lane * 16;
    };
    const auto fetch = [&](uint32_t p) {
        const uint8_t *from = page_at(p % SHARE_PAGES) + room_of::n_min;
        const uint32_t to = smem_address(room.plane[p % STAGES]);
#pragma unroll
        for (uint32_t at = 0; at < room_of::n_plane; at += 512)
            if (p < n) cp_async16(to + share_swizzle(at + lane * 16), from + at);
        cp_async_commit();
    };
    const auto open = [&](uint32_t p) {
        if (p > 0) cp_async_wait<STAGES - 2>();
        __syncwarp(); /* the page has arrived, and the last one has been read */
        fetch(p + STAGES - 1);
    };
    for (uint32_t p = 0; p < SHARE_PAGES; p++) {
        const uint8_t *from = page_at(p);
        const uint32_t to = smem_address(room.min[p]) + lane * 16;
#pragma unroll
        for (uint32_t at = 0; at < room_of::n_min; at += 512)
            if (at + lane * 16 < room_of::n_min) cp_async16(to + at, from + at);
    }
    for (uint32_t p = 0; p < STAGES - 1; p++) fetch(p);
    cp_async_wait<STAGES - 2>();
    __syncwarp();
    float base[4];
    if (of.n_row > 8)
        share_base<D, false>(base, query, of.r0, room.min[lane / 4]);
    else
        share_base<D, true>(base, query, of.r0, room.min[lane / 4]);
    __syncwarp(); /* minima have been read; their place is reused */
    const bool each = of.n_row > 8;
    if (each)
        share_pages_each(b, query, of, n, room, open);
    else
        share_pages_together(b, query, of, n, room, open);
    __syncwarp();
    share_store_all(b, of, base, n, [&](uint32_t p, uint32_t r) {
        return each ? room.made_each(p, r) : room.made(p, r % 8);
    });
    __syncwarp(); /* all sums have been read */
}

/* A piece, by a block: a warp has a page, read directly from global memory. */
template <uint32_t D>
static __device__ __forceinline__ void share_by_block(const struct share_block &b,
                                                      const struct share_query<D> &query,
                                                      const struct share_piece &of)
{
    __shared__ struct exp_sum room[SHARE_PAGES][SHARE_ROWS];
    const struct op_share_planes op = b.of[of.lane_i].at;
    const uint32_t lane = threadIdx.x % 32, j = lane % 4, p = threadIdx.x / 32;
    const uint32_t n = share_page_count(op, of.piece);
    const auto page_at = [&](uint32_t i) {
        return op.base + (size_t)op.page[of.piece * SHARE_PAGES + i] * op.stride;
    };
    float base[4];
    if (p == 0 && n > 0)
        share_base<D, false>(base, query, 0, page_at(min(lane / 4, n - 1)) + op.min_at);
    if (p < n) {
        const uint8_t *page = page_at(p);
        const uint32_t row[2] = {lane / 4, lane / 4 + 8};
        uint8_t *exps[2];
        float c[4][4];
        struct exp_sum made[2];
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            const struct share_row *to = share_row_of(b, of, row[e]);
            exps[e] = to ? to->exps + (of.piece * SHARE_PAGES + p) * PAGE_TOK + j * 8 : NULL;
        }
        share_page<D, false>(c, query, page + op.hi2_at, page + op.step_at);
        share_exponentials(made, exps, 0, c);
        if (j == 0) room[p][lane / 4] = made[0], room[p][lane / 4 + 8] = made[1];
    }
    __syncthreads();
    if (p == 0 && n > 0)
        share_store_all(b, of, base, n, [&](uint32_t i, uint32_t r) { return &room[i][r]; });
    __syncthreads(); /* all sums have been read */
}

/* Whether all lanes of the block have the same pages in a piece; by a warp. */
static __device__ bool share_is_same(const struct share_block &b, uint32_t piece)
{
    const uint32_t lane = threadIdx.x % 32, n = share_page_count(b.of[0].at, piece);
    const uint32_t at = piece * SHARE_PAGES + min(lane, n - 1);
    bool same = true;
    if (b.n_lane == 1 || n == 0) return b.n_lane == 1;
    uint32_t id[LANES_MAX];
#pragma unroll
    for (uint32_t m = 0; m < LANES_MAX; m++) {
        const struct op_share_planes &op = b.of[min(m, b.n_lane - 1)].at;
        same = same && op.base == b.of[0].at.base && share_page_count(op, piece) == n;
        id[m] = same ? op.page[at] : 0;
    }
#pragma unroll
    for (uint32_t m = 1; m < LANES_MAX; m++) same = same && id[m] == id[0];
    return __all_sync(~0u, same);
}

/* Grid: groups of lanes by parts of the pieces. BY_BLOCK: a block has a piece, else each of its
 * warps; sums are the same. Lanes i, i + n_list / n_lane, ... are a block's (choose_head). Blocks
 * of all lanes take the same pieces at the same time, so that sequences that share pages find them
 * in the L2 cache. */
template <uint32_t D, bool BY_BLOCK>
static __global__ void __launch_bounds__((BY_BLOCK ? SHARE_PAGES : WARPS) * 32, D > 128    ? 1
                                                                                : BY_BLOCK ? 2
                                                                                           : BUSY)
    share_logits_kernel(const struct op_lane_shares *list, uint32_t n_list, uint32_t n_lane,
                        const struct choose_begin begins)
{
    __shared__ struct op_lane_shares of[LANES_MAX];
    __shared__ struct share_row row[SHARE_ROWS];
    struct share_query<D> &query =
        *(struct share_query<D> *)(kernel_shared() + share_smem_bytes<D, BY_BLOCK>());
    const uint32_t n = n_list / n_lane, warp = threadIdx.x / 32, each = BY_BLOCK ? 1 : WARPS;
    for (uint32_t m = 0; m < n_lane; m++) choose_copy(&of[m], list + blockIdx.x + m * n);
    kernel_begin();
    __syncthreads();
    for (uint32_t i = blockIdx.x; i < begins.n; i += n)
        choose_clear(begins.list[i], blockIdx.y, gridDim.y);
    const struct share_block b = {of, row, n_lane, of[0].at.group};
    uint32_t n_page = 0;
    for (uint32_t m = 0; m < n_lane; m++) n_page = max(n_page, of[m].at.n_page);
    for (uint32_t g0 = 0; g0 < n_lane * b.group; g0 += SHARE_ROWS) {
        share_heads_load(&query, b, g0);
        for (uint32_t p = blockIdx.y * each + (BY_BLOCK ? 0 : warp); p < share_pieces(n_page);
             p += gridDim.y * each) {
            const bool same = share_is_same(b, p);
            const uint32_t n_row = same ? min(n_lane * b.group - g0, SHARE_ROWS) : b.group;
            for (uint32_t m = 0; m < (same ? 1 : n_lane); m++) {
                if constexpr (BY_BLOCK)
                    share_by_block(b, query, {p, m, m * b.group, n_row});
                else
                    share_by_warp(b, query, {p, m, m * b.group, n_row});
            }
        }
    }
}

/* ---- Shares ---- */

/* Shares of tokens from exponentials; a thread makes EACH. */
static __global__ void __launch_bounds__(SPREAD)
    share_spread_kernel(const struct choose_spread shares)
{
    __shared__ struct op_lane_shares of;
    __shared__ float log[OP_GROUP_MAX];
    choose_open(&of, shares.list + blockIdx.y);
    const uint32_t i = (blockIdx.x * SPREAD + threadIdx.x) * EACH;
    const bool finite = choose_make_logs(log, of);
    float share[EACH];
    if (!finite && i == 0) of.result->n_bad = 1; /* cleared by an earlier launch */
    if (i >= of.at.n_page * PAGE_TOK) return;
    choose_shares(share, of.at, log, i);
    float4 *to = (float4 *)(of.at.share + i);
    to[0] = make_float4(share[0], share[1], share[2], share[3]);
    to[1] = make_float4(share[4], share[5], share[6], share[7]);
}

/* Sums of shares over pages where no one needs single shares: sums of exponentials suffice. */
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

/* The last recorded launch, if it makes the shares of n lanes. */
static struct choose_spread last_spread(const struct cuda_device *d, uint32_t n)
{
    struct choose_spread s = {};
    const void *last = queue_last(d, kernel_entry(share_spread_kernel));
    if (last) memcpy(&s, last, sizeof s);
    return s.n == n ? s : (struct choose_spread){};
}

struct choose_spread choose_absorb_spread(struct cuda_device *d, const struct op_lane_draw *op,
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

/* Whether the sums are over pages of these shares, and do not overwrite the exponentials. */
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
                       (struct choose_folds){s, staged}); /* remembers a failure */
    return true;
}

struct choose_folds choose_absorb_folds(struct cuda_device *d, const struct op_lane_visit *op,
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

/* How many lanes share a block: as many as fit into the 16 rows of an instruction, while all
 * multiprocessors have work. */
static uint32_t lanes_per_block(const struct cuda_device *d, const struct op_lane_shares *op,
                                uint32_t n, uint32_t n_block)
{
    for (uint32_t i = 1; i < n; i++)
        if (op[i].at.group != op->at.group) return 1;
    return choose_lanes_per_block(n, op->at.group, SHARE_ROWS, LANES_MAX,
                                  (uint64_t)BUSY * d->n_sm / n_block);
}

struct share_launch {
    const struct op_lane_shares *list;
    uint32_t n, n_lane;
    dim3 grid;
};

template <uint32_t D, bool BY_BLOCK>
static sac_status launch_blocks(struct cuda_device *d, const struct share_launch &l)
{
    const struct choose_begin begins = choose_absorb_begin(d);
    return queue_launch(d, "logits by first planes", share_logits_kernel<D, BY_BLOCK>, l.grid,
                        (BY_BLOCK ? SHARE_PAGES : WARPS) * 32,
                        share_smem_bytes<D, BY_BLOCK>() + sizeof(struct share_query<D>), l.list,
                        l.n, l.n_lane, begins);
}

/* With few pieces a block takes a piece, and all its pages are read at once. */
template <uint32_t D>
static sac_status launch_logits(struct cuda_device *d, const struct op_lane_shares *op,
                                const struct op_lane_shares *list, uint32_t n, uint32_t n_page)
{
    const bool apart = (uint64_t)n * share_pieces(n_page) <= (uint64_t)BUSY * d->n_sm;
    const uint32_t n_need =
        apart ? share_pieces(n_page) : (share_pieces(n_page) + WARPS - 1) / WARPS;
    const uint32_t n_lane = apart ? 1 : lanes_per_block(d, op, n, n_need);
    const uint32_t most = choose_larger(BUSY * d->n_sm / (n / n_lane), 1);
    const struct share_launch l = {list, n, n_lane,
                                   dim3(n / n_lane, n_need < most ? n_need : most)};
    return apart ? launch_blocks<D, true>(d, l) : launch_blocks<D, false>(d, l);
}

/* 16-byte loads; minima, steps and plane are contiguous. */
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
    most = choose_round_up(most);
    switch (op->at.head_dim) {
    case 64: TRY(launch_logits<64>(d, op, list, n, most)); break;
    case 128: TRY(launch_logits<128>(d, op, list, n, most)); break;
    case 256: TRY(launch_logits<256>(d, op, list, n, most)); break;
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for heads of this size");
    }
    const uint32_t each = SPREAD * EACH / PAGE_TOK; /* in pages */
    return queue_launch(d, "shares of tokens", share_spread_kernel,
                        dim3((most + each - 1) / each, n), SPREAD, 0,
                        (struct choose_spread){list, n, most});
}
