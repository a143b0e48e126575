/* score.cu: scores and shares for choosing, for all lanes of a list (lanes.h). A lane's numbers
 * depend on the lane alone: pieces of the context are fixed, and sums are added in one order. Keys
 * that wait for a turned query have no kernel here. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define WARPS       8u
#define THREADS     1024u
#define FEW         256u
#define BOXES_BUSY  512u /* of a multiprocessor with whom warps have several eights each */
#define SHARE_WARPS 4u   /* of a block whose warps have a piece each */
#define SHARE_BUSY  4u   /* blocks of a multiprocessor with whom warps have several pages each */

static sac_status refuse_turned(struct cuda_device *d)
{
    return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing among keys that wait for a turned query");
}

/* ---- Boxes: products of matrix instructions ---- */

#define BOX_PART  64u /* channels that are met together */
#define BOX_STEPS (BOX_PART / 16)

/* Channels of a part as thread j of four has them: 16 neighbours, four for each step. Rows of A are
 * the halves of eight heads' queries, and what rounding leaves. */
struct box_rows {
    uint32_t q[BOX_STEPS][4], spread[BOX_STEPS][4];
};

static __device__ __forceinline__ void
box_rows_load(struct box_rows &to, const struct op_lane_boxes &op, uint32_t head, uint32_t c)
{
#pragma unroll
    for (uint32_t s = 0; s < BOX_STEPS; s++) {
        const float *from = op.q + head * op.at.head_dim + c + threadIdx.x % 4 * 16 + s * 4;
        const float4 v = head < op.at.group ? *(const float4 *)from : make_float4(0, 0, 0, 0);
        const float q[4] = {v.x * op.scale, v.y * op.scale, v.z * op.scale, v.w * op.scale};
        float by[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) by[k] = op.mean ? fabsf(q[k]) : fmaxf(q[k], 0) * op.unit;
#pragma unroll
        for (uint32_t k = 0; k < 4; k += 2) {
            to.q[s][k] = half_pack<HALF_F16>(q[k], q[k + 1]);
            to.q[s][k + 1] = half_rest<HALF_F16>(q[k], q[k + 1], to.q[s][k]);
            to.spread[s][k] = half_pack<HALF_F16>(by[k], by[k + 1]);
            to.spread[s][k + 1] = half_rest<HALF_F16>(by[k], by[k + 1], to.spread[s][k]);
        }
    }
}

static __device__ __forceinline__ void box_part(float c[4], const uint32_t (*rows)[4],
                                                const uint8_t *at)
{
    const uint4 first = *(const uint4 *)at, second = *(const uint4 *)(at + 16);
    mma_16816<HALF_F16>(c, rows[0], first.x, first.y);
    mma_16816<HALF_F16>(c, rows[1], first.z, first.w);
    mma_16816<HALF_F16>(c, rows[2], second.x, second.y);
    mma_16816<HALF_F16>(c, rows[3], second.z, second.w);
}

/* A warp takes EIGHTS times eight boxes; box i of all is box i / n_page of page i % n_page. */
template <uint32_t EIGHTS>
static __global__ void __launch_bounds__(WARPS * 32)
    boxes_kernel(const struct op_lane_boxes *list, uint32_t n_list, const struct choose_begin begin)
{
    __shared__ struct op_lane_boxes op;
    choose_open(&op, list + min(blockIdx.y, n_list - 1));
    if (blockIdx.y >= n_list) {
        choose_clear(begin.list[blockIdx.y - n_list], blockIdx.x);
        return;
    }
    const uint32_t lane = threadIdx.x % 32, head = lane / 4, n = op.at.n_page * op.n_box;
    const uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * EIGHTS * 8;
    const uint8_t *box[EIGHTS];
    if (first >= n) return;
#pragma unroll
    for (uint32_t t = 0; t < EIGHTS; t++) {
        const uint32_t i = min(first + t * 8 + head, n - 1);
        box[t] = op.at.base + (size_t)op.at.page[i % op.at.n_page] * op.at.stride +
                 i / op.at.n_page * op.box_at + lane % 4 * 32;
    }
    for (uint32_t g = 0; g < op.at.group; g += CHOOSE_HEADS) {
        float sum[EIGHTS][4] = {};
        for (uint32_t c = 0; c < op.at.head_dim; c += BOX_PART) {
            struct box_rows rows;
            box_rows_load(rows, op, g + head, c);
#pragma unroll
            for (uint32_t t = 0; t < EIGHTS; t++) {
                box_part(sum[t], rows.q, box[t] + op.at.a_at + c * 2);
                box_part(sum[t], rows.spread, box[t] + op.at.b_at + c * 2);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < EIGHTS * 2; k++) {
            const uint32_t i = first + k / 2 * 8 + lane % 4 * 2 + k % 2;
            if (g + head >= op.at.group || i >= n) continue;
            op.at.out[(g + head) * op.at.out_stride + i / op.at.n_page * op.box_out +
                      i % op.at.n_page] = sum[k / 2][k % 2] + sum[k / 2][2 + k % 2];
        }
    }
}

/* Reads of 16 bytes. */
static bool boxes_are_aligned(const struct op_lane_boxes *op)
{
    const size_t all = op->at.stride | op->box_at | op->at.a_at | op->at.b_at | (size_t)op->at.base;
    return all % 16 == 0 && op->at.head_dim % BOX_PART == 0;
}

template <uint32_t EIGHTS>
static sac_status launch_boxes(struct cuda_device *d, const struct op_lane_boxes *list, uint32_t n,
                               uint32_t most)
{
    const struct choose_begin begin = choose_take_begin(d);
    const uint32_t each = WARPS * EIGHTS * 8, n_block = (most + each - 1) / each;
    const dim3 grid(choose_larger(n_block, choose_parts(begin, WARPS * 32)), n + begin.n);
    return queue_launch(d, "scores of pages", boxes_kernel<EIGHTS>, grid, WARPS * 32, 0, list, n,
                        begin);
}

sac_status cuda_lane_boxes(struct cuda_device *d, const struct op_lane_boxes *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].turn || op[i].at.frame_of) return refuse_turned(d);
        if (!boxes_are_aligned(&op[i]))
            return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for heads of this size");
        most = choose_larger(most, op[i].at.n_page * op[i].n_box);
    }
    const struct op_lane_boxes *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    most = choose_reach(most);
    const bool many = (uint64_t)most * n > (uint64_t)BOXES_BUSY * d->n_sm;
    return many ? launch_boxes<4>(d, list, n, most) : launch_boxes<1>(d, list, n, most);
}

/* ---- Logits: a warp for each page, a lane for each token ---- */

static __global__ void __launch_bounds__(WARPS * 32)
    logits_kernel(const struct page_geom geom, const struct op_lane_logits *list)
{
    kernel_begin();
    const struct op_lane_logits &op = list[blockIdx.y];
    const uint32_t t = threadIdx.x % 32, i = blockIdx.x * WARPS + threadIdx.x / 32;
    const struct choose_query of = {op.q, op.group, op.scale, op.softcap};
    if (i >= op.keys.n_page) return;
    const uint8_t *page = place_page(op.keys.frames, op.keys.page[i], geom.bytes);
    for (uint32_t g0 = 0; g0 < op.group; g0 += CHOOSE_HEADS) {
        float x[CHOOSE_HEADS];
        choose_logits(x, of, geom, page, t, g0);
#pragma unroll
        for (uint32_t g = 0; g < CHOOSE_HEADS; g++)
            if (g0 + g < op.group) op.out[(g0 + g) * op.out_stride + i * PAGE_TOK + t] = x[g];
    }
}

sac_status cuda_lane_logits(struct cuda_device *d, const struct op_lane_logits *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].n_segment || op[i].keys.frames.of) return refuse_turned(d);
        most = choose_larger(most, op[i].keys.n_page);
    }
    const struct op_lane_logits *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    most = choose_reach(most);
    return queue_launch(d, "logits of all tokens", logits_kernel,
                        dim3((most + WARPS - 1) / WARPS, n), WARPS * 32, 0, *op->keys.geom, list);
}

/* ---- Shares by first planes ---- */

/* A warp multiplies the queries of eight heads by a page's codes. A number is a half and the half
 * of what that leaves, a row of A each. Channel c of the codes is two bits of byte c % (D / 4), and
 * the bytes of lane j of four are D / 16 from j D / 16 on: so a word of them has four channels of
 * each quarter, the k of one instruction. Codes are not shifted: as bits of a half they are
 * multiples of 2^-24, by a power of four for each quarter, which queries make up for. */
template <uint32_t D> struct share_query {
    static constexpr uint32_t n_word = D / 64;
    uint32_t q[n_word][4][2], rest[n_word][4][2]; /* by word, quarter, pair of channels */
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
static __device__ void share_query_load(struct share_query<D> &to, const struct op_share_planes &op,
                                        uint32_t head)
{
    const uint32_t j = threadIdx.x % 4;
#pragma unroll
    for (uint32_t u = 0; u < to.n_word; u++)
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) {
            const float *from = op.q + head * D + share_channel<D>(j, u, s);
            const float4 v = head < op.group ? *(const float4 *)from : make_float4(0, 0, 0, 0);
            const float by = op.scale * share_fit(s);
            const float x[4] = {v.x * by, v.y * by, v.z * by, v.w * by};
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                to.q[u][s][k] = half_pack<HALF_F16>(x[2 * k], x[2 * k + 1]);
                to.rest[u][s][k] = half_rest<HALF_F16>(x[2 * k], x[2 * k + 1], to.q[u][s][k]);
            }
        }
}

/* What goes with all tokens of a page, its steps being met in the middle of what the codes leave
 * open: of head lane / 4 and pages 2 (lane % 4) and the one behind it, `page` being the page of
 * column lane / 4. */
template <uint32_t D>
static __device__ __forceinline__ float2 share_base(const struct op_share_planes &op,
                                                    const struct share_query<D> &query,
                                                    const uint8_t *page)
{
    const uint32_t j = threadIdx.x % 4;
    float2 base = make_float2(0, 0);
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) {
        float min[4] = {}, step[4] = {};
#pragma unroll
        for (uint32_t u = 0; u < query.n_word; u++) {
            const uint32_t at = share_channel<D>(j, u, s) * 2;
            const uint2 lo = *(const uint2 *)(page + op.min_at + at);
            const uint2 by = *(const uint2 *)(page + op.step_at + at);
            const uint32_t a[4] = {query.q[u][s][0], query.rest[u][s][0], query.q[u][s][1],
                                   query.rest[u][s][1]};
            mma_16816<HALF_F16>(min, a, lo.x, lo.y);
            mma_16816<HALF_F16>(step, a, by.x, by.y);
        }
        base.x += ((min[0] + min[2]) + 31.5f * (step[0] + step[2])) / share_fit(s);
        base.y += ((min[1] + min[3]) + 31.5f * (step[1] + step[3])) / share_fit(s);
    }
    return base;
}

/* A lane's words of a page: codes of tokens 8 i + lane / 4, and steps of its channels. */
template <uint32_t D> struct share_words {
    static constexpr uint32_t n_word = D / 64;
    uint32_t code[4][n_word];
    uint2 step[n_word][4];
};

template <uint32_t D>
static __device__ __forceinline__ void
share_words_load(struct share_words<D> &to, const struct op_share_planes &op, const uint8_t *page)
{
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t u = 0; u < to.n_word; u++)
            to.code[i][u] = *(const uint32_t *)(page + op.hi2_at + (i * 8 + g) * (D / 4) +
                                                j * (D / 16) + u * 4);
#pragma unroll
    for (uint32_t u = 0; u < to.n_word; u++)
#pragma unroll
        for (uint32_t s = 0; s < 4; s++)
            to.step[u][s] = *(const uint2 *)(page + op.step_at + share_channel<D>(j, u, s) * 2);
}

/* What two codes of a quarter stand for, as rows of A: exact but for the rounding of the rest. */
static __device__ __forceinline__ void share_rows(uint32_t a[2], uint32_t q, uint32_t rest,
                                                  uint32_t step)
{
    a[0] = h2_mul(q, step);
    a[1] = h2_fma(rest, step, h2_fma(q, step, h2_neg(a[0])));
}

/* Logits of a page: of head lane / 4, tokens 8 i + 2 (lane % 4) and the one behind it. */
template <uint32_t D>
static __device__ __forceinline__ void share_page(float x[4][2], const struct share_query<D> &query,
                                                  const struct share_words<D> &of, float base)
{
    constexpr float unit = (float)(1u << 24) / SHARE_FIT;
    float c[4][4] = {};
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
            uint32_t a[4];
            share_rows(a, query.q[u][s][0], query.rest[u][s][0], of.step[u][s].x);
            share_rows(a + 2, query.q[u][s][1], query.rest[u][s][1], of.step[u][s].y);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                mma_16816<HALF_F16>(c[i], a, first[i] & bits, second[i] & bits);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) x[i][k] = fmaf(c[i][k] + c[i][2 + k], unit, base);
}

/* Of a page's logits, as share_page has them, for head lane / 4; NaN if one is not finite: then its
 * minimum, step or query is not, and so no logit of the page is. */
static __device__ __forceinline__ struct exp_sum share_page_sum(const float x[4][2])
{
    float max = -INFINITY, sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) max = fmaxf(max, x[i / 2][i % 2]);
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) sum += exp2_fast((x[i / 2][i % 2] - max) * LOG2E);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    struct exp_sum all = {isfinite(max) ? max : 0.0f, isfinite(max) ? sum : NAN};
    return all;
}

/* Logits of every `step`-th page of a piece from page `first` of it on, by a warp, for eight heads;
 * their sums go to `room`. */
template <uint32_t D>
static __device__ void share_warp(struct exp_sum room[CHOOSE_HEADS][SHARE_PAGES],
                                  const struct op_share_planes &op, uint32_t begin, uint32_t first,
                                  uint32_t step, uint32_t g0)
{
    const uint32_t lane = threadIdx.x % 32, head = lane / 4;
    const uint32_t n = min(SHARE_PAGES, op.n_page - begin);
    const uint32_t id = lane < n ? op.page[begin + lane] : 0;
    struct share_query<D> query;
    struct share_words<D> words;
    float2 bases = make_float2(0, 0); /* of eight pages that the warp has */
    const auto page_at = [&](uint32_t p) {
        return op.base + (size_t)__shfl_sync(~0u, id, min(p, n - 1)) * op.stride;
    };
    share_query_load(query, op, g0 + head);
    share_words_load(words, op, page_at(first));
    for (uint32_t k = 0, p = first; p < SHARE_PAGES; k++, p += step) {
        const struct share_words<D> now = words;
        struct exp_sum sum = exp_sum_none();
        if (k % 8 == 0) bases = share_base(op, query, page_at(p + head * step));
        const float base = __shfl_sync(~0u, k % 2 ? bases.y : bases.x, head * 4 + k % 8 / 2);
        if (p + step < n) share_words_load(words, op, page_at(p + step)); /* on its way */
        if (p < n) {
            float x[4][2];
            share_page(x, query, now, base);
            sum = share_page_sum(x);
            float *to = op.e + ((size_t)(g0 + head) * op.n_page + begin + p) * PAGE_TOK;
#pragma unroll
            for (uint32_t i = 0; i < 4 && g0 + head < op.group; i++)
                *(float2 *)(to + i * 8 + lane % 4 * 2) = make_float2(x[i][0], x[i][1]);
        }
        if (lane % 4 == 0) room[head][p] = sum;
    }
}

/* The logs of a piece's sums; every n_warp-th head from `first` on is this warp's. */
static __device__ void share_tell(const struct op_lane_shares &of,
                                  const struct exp_sum room[CHOOSE_HEADS][SHARE_PAGES],
                                  uint32_t piece, uint32_t g0, uint32_t first, uint32_t n_warp)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t g = first; g < CHOOSE_HEADS && g0 + g < of.at.group; g += n_warp) {
        const struct exp_sum s = warp_exp_sum(lane < SHARE_PAGES ? room[g][lane] : exp_sum_none());
        if (lane == 0) of.sum[piece * of.at.group + g0 + g] = s.max + logf(s.sum);
    }
}

/* Logits of a piece's tokens, and for each head the log of the sum of their exponentials: NaN if
 * one is not finite. ALONE: a warp has a piece by itself, else a block's warps share one; sums do
 * not tell. Blocks of all lanes have the same pieces at the same time, so that sequences which
 * share pages find them in the cache. */
template <uint32_t D, bool ALONE>
static __global__ void __launch_bounds__(ALONE     ? SHARE_WARPS * 32
                                         : D > 128 ? 256
                                                   : 512,
                                         ALONE &&D <= 128 ? 4 : 1)
    share_logits_kernel(const struct op_lane_shares *list, uint32_t n_list,
                        const struct choose_begin begins)
{
    __shared__ struct op_lane_shares of;
    __shared__ struct exp_sum room[ALONE ? SHARE_WARPS : 1][CHOOSE_HEADS][SHARE_PAGES];
    choose_open(&of, list + min(blockIdx.x, n_list - 1));
    if (blockIdx.x >= n_list) {
        choose_clear(begins.list[blockIdx.x - n_list], blockIdx.y);
        return;
    }
    const uint32_t warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    const uint32_t piece = ALONE ? blockIdx.y * SHARE_WARPS + warp : blockIdx.y;
    if (piece * SHARE_PAGES >= of.at.n_page) return;
    for (uint32_t g0 = 0; g0 < of.at.group; g0 += CHOOSE_HEADS) {
        if constexpr (ALONE) {
            __syncwarp(); /* nobody reads the room of the heads before any more */
            share_warp<D>(room[warp], of.at, piece * SHARE_PAGES, 0, 1, g0);
            __syncwarp();
            share_tell(of, room[warp], piece, g0, 0, 1);
        } else {
            __syncthreads();
            share_warp<D>(room[0], of.at, piece * SHARE_PAGES, warp, n_warp, g0);
            __syncthreads();
            share_tell(of, room[0], piece, g0, warp, n_warp);
        }
    }
}

/* The sum of a page's shares in their order, of which eight threads have four each. */
static __device__ float share_page_total(float4 share)
{
    const uint32_t t = threadIdx.x % 8;
    float sum = 0;
    for (uint32_t i = 0; i < 8; i++) {
        if (t == i) sum = sum + share.x + share.y + share.z + share.w;
        sum = __shfl_sync(~0u, sum, threadIdx.x % 32 / 8 * 8 + i);
    }
    return sum;
}

/* Shares of a piece's tokens; a thread takes four. `folds` NULL: nobody asks for the sums of pages.
 */
static __global__ void __launch_bounds__(SHARE_PAGES *PAGE_TOK / 4)
    share_spread_kernel(const struct choose_spread shares, const struct op_lane_fold *folds)
{
    __shared__ struct op_lane_shares of;
    __shared__ float lse[OP_GROUP_MAX];
    choose_open(&of, shares.list + blockIdx.y);
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const bool finite = choose_open_shares(lse, of);
    if (!finite && i == 0) of.result->n_bad = 1; /* cleared by what came before */
    float4 share = make_float4(0, 0, 0, 0);
    if (i < of.at.n_page * PAGE_TOK)
        *(float4 *)(of.at.share + i) = share = choose_shares(of.at, lse, i);
    if (!folds) return;
    const float total = share_page_total(share);
    if (i < of.at.n_page * PAGE_TOK && threadIdx.x % 8 == 0)
        folds[blockIdx.y].out[i / PAGE_TOK] = total;
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
    return queue_launch(d, "shares of tokens", share_spread_kernel,
                        dim3(share_pieces(spread.n_page), spread.n), SHARE_PAGES * PAGE_TOK / 4, 0,
                        spread, folds);
}

/* Whether the sums are those of pages of these shares, and go where they do not lie. */
static bool folds_shares(const struct op_lane_fold *op, const struct op_share_planes *of)
{
    const float *end = of->e + (size_t)of->group * of->n_page * PAGE_TOK;
    return op->in == of->share && op->n == of->n_page && op->n_part == PAGE_TOK &&
           op->step == PAGE_TOK && op->part_step == 1 && (op->out < of->e || op->out >= end);
}

/* Lets the launch before, which makes the shares, add them up, too. */
static bool fold_with_shares(struct cuda_device *d, const struct op_lane_fold *op,
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

/* With few blocks all pages of a piece are read at the same time; with many a warp reads them all,
 * for one reading of the queries. */
template <uint32_t D>
static sac_status launch_logits(struct cuda_device *d, const struct op_lane_shares *list,
                                uint32_t n_piece, uint32_t n)
{
    const bool many = (uint64_t)n_piece * n > (uint64_t)SHARE_BUSY * d->n_sm;
    const uint32_t n_thread = many ? SHARE_WARPS * 32 : D > 128 ? 256 : 512;
    const uint32_t n_block = many ? (n_piece + SHARE_WARPS - 1) / SHARE_WARPS : n_piece;
    const struct choose_begin begins = choose_take_begin(d);
    const dim3 grid(n + begins.n, choose_larger(n_block, choose_parts(begins, n_thread)));
    if (many)
        return queue_launch(d, "logits by first planes", share_logits_kernel<D, true>, grid,
                            n_thread, 0, list, n, begins);
    return queue_launch(d, "logits by first planes", share_logits_kernel<D, false>, grid, n_thread,
                        0, list, n, begins);
}

sac_status cuda_lane_shares(struct cuda_device *d, const struct op_lane_shares *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].n_segment || op[i].at.frame_of) return refuse_turned(d);
        if (op[i].at.group > OP_GROUP_MAX)
            return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for so many heads of a KV head");
        most = choose_larger(most, op[i].at.n_page);
    }
    const struct op_lane_shares *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    most = choose_reach(most);
    const uint32_t n_piece = share_pieces(most);
    switch (op->at.head_dim) {
    case 64: TRY(launch_logits<64>(d, list, n_piece, n)); break;
    case 128: TRY(launch_logits<128>(d, list, n_piece, n)); break;
    case 256: TRY(launch_logits<256>(d, list, n_piece, n)); break;
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for heads of this size");
    }
    return launch_spread(d, {list, n, most}, NULL);
}

/* ---- Votes ---- */

/* A block for each head. */
static __global__ void __launch_bounds__(THREADS) vote_sum_kernel(const struct op_lane_vote *list)
{
    kernel_begin();
    __shared__ struct exp_sum room[32];
    const struct op_lane_vote &op = list[blockIdx.y];
    if (blockIdx.x >= op.at.group) return;
    const float *score = op.at.score + blockIdx.x * op.at.score_stride;
    struct exp_sum s = exp_sum_none();
    for (uint32_t i = threadIdx.x; i < op.at.n; i += THREADS)
        s = exp_sum_add(s, exp_sum_of(score[i]));
    s = block_exp_sum(s, room);
    if (threadIdx.x > 0) return;
    op.at.lse[blockIdx.x] = s.max + logf(s.sum);
    if (!isfinite(s.sum)) atomicOr(&op.result->n_bad, 1u);
}

static __global__ void __launch_bounds__(FEW) vote_kernel(const struct op_lane_vote *list)
{
    kernel_begin();
    const struct op_lane_vote &op = list[blockIdx.y];
    const uint32_t i = blockIdx.x * FEW + threadIdx.x;
    if (i >= op.at.n) return;
    float vote = 0;
    for (uint32_t g = 0; g < op.at.group; g++)
        vote += expf(op.at.score[g * op.at.score_stride + i] - op.at.lse[g]);
    op.at.vote[i] = vote / (float)op.at.group;
}

sac_status cuda_lane_vote(struct cuda_device *d, const struct op_lane_vote *op, uint32_t n)
{
    uint32_t most = 0, group = 0;
    for (uint32_t i = 0; i < n; i++) {
        most = choose_larger(most, op[i].at.n);
        group = choose_larger(group, op[i].at.group);
    }
    const struct op_lane_vote *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    most = choose_reach(most);
    TRY(queue_launch(d, "sums of a vote", vote_sum_kernel, dim3(group, n), THREADS, 0, list));
    return queue_launch(d, "vote of heads", vote_kernel, dim3((most + FEW - 1) / FEW, n), FEW, 0,
                        list);
}

/* ---- Sums of scores ---- */

static __global__ void __launch_bounds__(FEW) fold_kernel(const struct op_lane_fold *list)
{
    kernel_begin();
    const struct op_lane_fold &op = list[blockIdx.y];
    const uint32_t i = blockIdx.x * FEW + threadIdx.x;
    if (i >= op.n) return;
    float sum = 0;
    for (uint32_t j = 0; j < op.n_part; j++) sum += op.in[i * op.step + j * op.part_step];
    op.out[i] = sum;
}

sac_status cuda_lane_fold(struct cuda_device *d, const struct op_lane_fold *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = choose_larger(most, op[i].n);
    const struct op_lane_fold *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    if (fold_with_shares(d, op, list, n)) return d->status;
    most = choose_reach(most);
    return queue_launch(d, "sums of scores", fold_kernel, dim3((most + FEW - 1) / FEW, n), FEW, 0,
                        list);
}
