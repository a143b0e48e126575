/* score.cu: scores of pages and tokens for decode rows: products with boxes (op_lane_boxes), logits
 * of all tokens (op_lane_logits), votes of query heads (op_lane_vote), and sums of scores
 * (op_lane_fold).
 *
 * Box scores are q a + q' b for each query head and box, with a and b f16 vectors [head_dim] and q'
 * = max(q, 0) * unit or |q|, bound by the bytes of the boxes. A block has up to BOX_LANES lanes of
 * one KV head (choose.cuh), with their queries packed in shared memory as B fragments; a warp
 * multiplies 16 ROWS boxes, the rows of m16n8k16, with tiles of eight query heads. Queries are
 * split into f16 and residual, so products are nearly of f32.
 *
 * Logits: a warp has a page, a lane a token. Votes: a block for each head makes the softmax sum,
 * then a thread for each item averages over the heads.
 *
 * Results of a lane depend on that lane alone, and sums have one order. Keys behind segments with
 * an offset are refused. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define WARPS      8u
#define THREADS    1024u
#define FEW_THREADS 256u
#define BOXES_BUSY 2u /* blocks of a multiprocessor in one grid */

static sac_status refuse_segments(struct cuda_device *d)
{
    return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing among keys that wait for a turned query");
}

/* ---- Box scores ---- */

#define BOX_PART  64u /* channels loaded at a time */
#define BOX_STEPS (BOX_PART / 16)
#define BOX_KINDS 4u /* q and q', each as f16 and residual */
#define BOX_LANES 8u /* of a block, at most */
#define BOX_TILES 4u /* tiles of eight query heads, at most */

/* Queries of a block's lanes as B fragments: for each 16 channels, tile of eight heads and kind,
 * two words for each lane of a warp. Lane j of four has 16 neighbouring channels of each BOX_PART,
 * four for each step, so that the box's side is one wide load. */
template <uint32_t TILES> struct box_query {
    uint2 word[TILES][BOX_KINDS][32];
};

struct box_block {
    const struct op_lane_boxes *of; /* [n_lane] in shared memory, all of one shape */
    uint32_t n_lane;
};

/* Packs the queries of the heads from g0 on; all threads. */
template <uint32_t TILES>
static __device__ void box_query_load(struct box_query<TILES> *to, const struct box_block &b,
                                      uint32_t g0)
{
    const uint32_t lane = threadIdx.x % 32, n = b.of[0].at.head_dim / 16 * TILES;
    for (uint32_t i = threadIdx.x / 32; i < n; i += blockDim.x / 32) {
        const uint32_t step = i / TILES, tile = i % TILES;
        const struct choose_head h =
            choose_head_of(g0 + tile * 8 + lane / 4, b.of[0].at.group, b.n_lane);
        const struct op_lane_boxes &op = b.of[h.lane_i];
        const uint32_t c = step / BOX_STEPS * BOX_PART + lane % 4 * 16 + step % BOX_STEPS * 4;
        const float4 v =
            h.is ? *(const float4 *)(op.q + h.head * op.at.head_dim + c) : make_float4(0, 0, 0, 0);
        const float q[4] = {v.x * op.scale, v.y * op.scale, v.z * op.scale, v.w * op.scale};
        uint32_t word[BOX_KINDS][2];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const float x = q[2 * k], y = q[2 * k + 1];
            const float by[2] = {op.mean ? fabsf(x) : fmaxf(x, 0) * op.unit,
                                 op.mean ? fabsf(y) : fmaxf(y, 0) * op.unit};
            word[0][k] = half_pack<HALF_F16>(x, y);
            word[1][k] = half_residual<HALF_F16>(x, y, word[0][k]);
            word[2][k] = half_pack<HALF_F16>(by[0], by[1]);
            word[3][k] = half_residual<HALF_F16>(by[0], by[1], word[2][k]);
        }
#pragma unroll
        for (uint32_t k = 0; k < BOX_KINDS; k++)
            to[step].word[tile][k][lane] = make_uint2(word[k][0], word[k][1]);
    }
}

/* Box i: the first boxes of all pages, then the second ones. */
struct box_place {
    uint32_t page, second;
};

static __device__ __forceinline__ struct box_place box_place_of(const struct op_lane_boxes &op,
                                                                uint32_t i)
{
    const uint32_t second = i >= op.at.n_page; /* at most two, and a division costs more */
    return {second ? i - op.at.n_page : i, second};
}

static __device__ __forceinline__ const uint8_t *box_at(const struct op_lane_boxes &op, uint32_t i)
{
    const struct box_place at = box_place_of(op, i);
    return op.at.base + (size_t)op.at.page[at.page] * op.at.stride + at.second * op.box_at +
           threadIdx.x % 4 * 32;
}

/* Accumulates one vector of ROWS * 16 boxes, over BOX_PART channels, times the tiles whose bit is
 * set. */
template <uint32_t TILES, uint32_t ROWS>
static __device__ __forceinline__ void
box_part(float sum[TILES][ROWS][4], const struct box_query<TILES> *query, uint32_t kind,
         const uint8_t *const box[ROWS][2], size_t at, uint32_t tiles)
{
    const uint32_t lane = threadIdx.x % 32;
    uint4 v[ROWS][2][2];
#pragma unroll
    for (uint32_t i = 0; i < ROWS * 4; i++)
        v[i / 4][i / 2 % 2][i % 2] = __ldg((const uint4 *)(box[i / 4][i / 2 % 2] + at) + i % 2);
#pragma unroll
    for (uint32_t s = 0; s < BOX_STEPS; s++)
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
            if (!(tiles >> t & 1)) continue;
            const uint2 near = query[s].word[t][kind][lane],
                        rest = query[s].word[t][kind + 1][lane];
#pragma unroll
            for (uint32_t r = 0; r < ROWS; r++) {
                const uint4 lo = v[r][0][s / 2], hi = v[r][1][s / 2];
                const uint32_t a[4] = {s % 2 ? lo.z : lo.x, s % 2 ? hi.z : hi.x,
                                       s % 2 ? lo.w : lo.y, s % 2 ? hi.w : hi.y};
                mma_16816<HALF_F16>(sum[t][r], a, near.x, near.y);
                mma_16816<HALF_F16>(sum[t][r], a, rest.x, rest.y);
            }
        }
}

/* Whether all lanes of the block have the same boxes from `first` on; by a warp. */
template <uint32_t ROWS>
static __device__ bool boxes_are_same(const struct box_block &b, uint32_t first)
{
    const struct op_lane_boxes &one = b.of[0];
    const uint32_t i = first + threadIdx.x % (ROWS * 16);
    bool same = true;
    for (uint32_t m = 1; m < b.n_lane; m++) {
        const struct op_lane_boxes &op = b.of[m];
        same = same && op.at.base == one.at.base && op.at.n_page == one.at.n_page &&
               (i >= op.at.n_page * op.n_box ||
                op.at.page[box_place_of(op, i).page] == one.at.page[box_place_of(op, i).page]);
    }
    return __all_sync(~0u, same);
}

/* Bits of the tiles from head g0 on that contain heads of lane lane_i. */
static __device__ __forceinline__ uint32_t tiles_of(uint32_t group, uint32_t g0, uint32_t lane_i)
{
    const uint32_t first = lane_i * group, end = first + group;
    if (end <= g0) return 0;
    return ~0u << (first > g0 ? (first - g0) / 8 : 0) & ~0u >> (31 - min((end - 1 - g0) / 8, 31u));
}

/* Scores of ROWS * 16 boxes of lane lane_i for the heads from g0 on; by a warp. same: the boxes are
 * those of all lanes, whose scores are stored as well. */
template <uint32_t TILES, uint32_t ROWS>
static __device__ __forceinline__ void box_unit(const struct box_block &b,
                                                const struct box_query<TILES> *query, uint32_t g0,
                                                uint32_t first, uint32_t lane_i, bool same)
{
    const struct op_lane_boxes &op = b.of[lane_i];
    const uint32_t lane = threadIdx.x % 32, n = op.at.n_page * op.n_box, group = op.at.group;
    const uint32_t tiles = same ? ~0u : tiles_of(group, g0, lane_i);
    const uint8_t *box[ROWS][2];
    float sum[TILES][ROWS][4] = {};
    if (first >= n || tiles == 0) return;
#pragma unroll
    for (uint32_t i = 0; i < ROWS * 2; i++)
        box[i / 2][i % 2] = box_at(op, min(first + i * 8 + lane / 4, n - 1));
    for (uint32_t c = 0; c < op.at.head_dim; c += BOX_PART) {
        box_part<TILES, ROWS>(sum, query + c / 16, 0, box, op.at.a_at + c * 2, tiles);
        box_part<TILES, ROWS>(sum, query + c / 16, 2, box, op.at.b_at + c * 2, tiles);
    }
#pragma unroll
    for (uint32_t k = 0; k < TILES * 2; k++) {
        const struct choose_head h =
            choose_head_of(g0 + k / 2 * 8 + lane % 4 * 2 + k % 2, group, b.n_lane);
        const struct op_lane_boxes &to = b.of[h.lane_i];
        if (!h.is || !(same || h.lane_i == lane_i)) continue;
        float *out = to.at.out + h.head * to.at.out_stride;
#pragma unroll
        for (uint32_t r = 0; r < ROWS * 2; r++) {
            const uint32_t i = first + r * 8 + lane / 4;
            const struct box_place at = box_place_of(op, i);
            if (i < n) out[at.second * to.box_out + at.page] = sum[k / 2][r / 2][r % 2 * 2 + k % 2];
        }
    }
}

/* Grid: parts of the boxes by groups of lanes. A block walks over its part in a grid-stride loop.
 * Lanes i, i + n_list / n_lane, ... are a block's (choose_head). */
template <uint32_t TILES, uint32_t ROWS>
static __global__ void __launch_bounds__(WARPS * 32, 2)
    boxes_kernel(const struct op_lane_boxes *list, uint32_t n_list, uint32_t n_lane,
                 const struct choose_begin begin)
{
    __shared__ struct op_lane_boxes of[BOX_LANES];
    struct box_query<TILES> *query = (struct box_query<TILES> *)kernel_shared();
    const uint32_t n = n_list / n_lane;
    for (uint32_t m = 0; m < n_lane; m++) choose_copy(&of[m], list + blockIdx.y + m * n);
    kernel_begin();
    __syncthreads();
    for (uint32_t i = blockIdx.y; i < begin.n; i += n)
        choose_clear(begin.list[i], blockIdx.x, gridDim.x);
    const struct box_block b = {of, n_lane};
    const uint32_t n_head = n_lane * of[0].at.group, step = gridDim.x * WARPS * ROWS * 16;
    uint32_t n_box = 0;
    for (uint32_t m = 0; m < n_lane; m++) n_box = max(n_box, of[m].at.n_page * of[m].n_box);
    for (uint32_t g0 = 0; g0 < n_head; g0 += TILES * 8) {
        __syncthreads(); /* the last heads' queries have been read */
        box_query_load(query, b, g0);
        __syncthreads();
        for (uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * ROWS * 16; first < n_box;
             first += step) {
            const bool same = boxes_are_same<ROWS>(b, first);
            for (uint32_t m = 0; m < (same ? 1 : n_lane); m++)
                box_unit<TILES, ROWS>(b, query, g0, first, m, same);
        }
    }
}

/* 16-byte loads. */
static bool boxes_are_aligned(const struct op_lane_boxes *op)
{
    const size_t all = op->at.stride | op->box_at | op->at.a_at | op->at.b_at | (size_t)op->at.base;
    return all % 16 == 0 && op->at.head_dim % BOX_PART == 0;
}

struct box_launch {
    const struct op_lane_boxes *list;
    uint32_t n, n_lane, n_box, head_dim;
};

template <uint32_t TILES, uint32_t ROWS>
static sac_status launch_boxes(struct cuda_device *d, const struct box_launch &l)
{
    const struct choose_begin begin = choose_absorb_begin(d);
    const uint32_t n = l.n / l.n_lane, each = WARPS * ROWS * 16;
    const uint32_t n_need = (l.n_box + each - 1) / each, most = BOXES_BUSY * d->n_sm / n + 1;
    return queue_launch(d, "scores of pages", boxes_kernel<TILES, ROWS>,
                        dim3(n_need < most ? n_need : most, n), WARPS * 32,
                        l.head_dim / 16 * sizeof(struct box_query<TILES>), l.list, l.n, l.n_lane,
                        begin);
}

/* How many lanes share a block, while all multiprocessors have work. */
static uint32_t box_lanes_per_block(const struct cuda_device *d, const struct op_lane_boxes *op,
                                    uint32_t n, uint32_t n_box)
{
    for (uint32_t i = 1; i < n; i++)
        if (op[i].at.group != op->at.group || op[i].at.head_dim != op->at.head_dim ||
            op[i].n_box != op->n_box)
            return 1;
    return choose_lanes_per_block(n, op->at.group, op->at.head_dim > 128 ? 16 : BOX_TILES * 8,
                                  BOX_LANES, (uint64_t)d->n_sm * WARPS * 32 / n_box + 1);
}

sac_status cuda_lane_boxes(struct cuda_device *d, const struct op_lane_boxes *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].turn || op[i].at.frame_of) return refuse_segments(d);
        if (op[i].n_box > 2)
            return device_fail(d, SAC_ERR_UNSUPPORTED, "more than two boxes of a page");
        if (!boxes_are_aligned(&op[i]))
            return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for heads of this size");
        most = choose_larger(most, op[i].at.n_page * op[i].n_box);
    }
    const struct op_lane_boxes *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    most = choose_round_up(most);
    const struct box_launch l = {list, n, box_lanes_per_block(d, op, n, most), most,
                                 op->at.head_dim};
    if (l.n_lane * op->at.group > 16) return launch_boxes<4, 2>(d, l);
    if (l.n_lane * op->at.group > 8) return launch_boxes<2, 2>(d, l);
    const bool many = (uint64_t)most * n > (uint64_t)d->n_sm * WARPS * 32;
    return many ? launch_boxes<1, 2>(d, l) : launch_boxes<1, 1>(d, l);
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
        if (op[i].n_segment || op[i].keys.frames.of) return refuse_segments(d);
        most = choose_larger(most, op[i].keys.n_page);
    }
    const struct op_lane_logits *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    most = choose_round_up(most);
    return queue_launch(d, "logits of all tokens", logits_kernel,
                        dim3((most + WARPS - 1) / WARPS, n), WARPS * 32, 0, *op->keys.geom, list);
}

/* ---- Votes ---- */

/* ln of the sum of exp(score) over a lane's items; one block for each query head. */
static __global__ void __launch_bounds__(THREADS) vote_sum_kernel(const struct op_lane_vote *list)
{
    kernel_begin();
    __shared__ struct exp_sum room[32];
    const struct op_lane_vote &op = list[blockIdx.y];
    if (blockIdx.x >= op.at.group) return;
    const float *score = op.at.score + blockIdx.x * op.at.score_stride;
    struct exp_sum s = exp_sum_none();
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < op.at.n; i += THREADS)
        s = exp_sum_add(s, exp_sum_of(score[i]));
    s = block_exp_sum(s, room);
    if (threadIdx.x > 0) return;
    op.at.lse[blockIdx.x] = s.max + logf(s.sum);
    if (!isfinite(s.sum)) atomicOr(&op.result->n_bad, 1u);
}

struct vote_list {
    const struct op_lane_vote *list; /* [n] on the device */
    uint32_t n;
};

static __global__ void __launch_bounds__(FEW_THREADS) vote_kernel(const struct vote_list votes)
{
    kernel_begin();
    const struct op_lane_vote &op = votes.list[blockIdx.y];
    const uint32_t i = blockIdx.x * FEW_THREADS + threadIdx.x;
    float vote[1];
    if (i >= op.at.n) return;
    choose_votes<1>(vote, op.at, i, FEW_THREADS);
    op.at.vote[i] = vote[0];
}

const struct op_lane_vote *choose_absorb_votes(struct cuda_device *d, const struct op_lane_take *op,
                                               uint32_t n)
{
    const void *last = queue_last(d, kernel_entry(vote_kernel));
    struct vote_list votes;
    if (!last) return NULL;
    memcpy(&votes, last, sizeof votes);
    const struct op_lane_vote *of = choose_staged(d, votes.list);
    if (votes.n != n) return NULL;
    for (uint32_t i = 0; i < n; i++)
        if (of[i].at.vote != op[i].value || of[i].result != op[i].result ||
            of[i].at.n != op[i].n_page * (PAGE_TOK / op[i].item_tok))
            return NULL;
    queue_drop_last(d);
    return votes.list;
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
    most = choose_round_up(most);
    TRY(queue_launch(d, "sums of a vote", vote_sum_kernel, dim3(group, n), THREADS, 0, list));
    return queue_launch(d, "vote of heads", vote_kernel,
                        dim3((most + FEW_THREADS - 1) / FEW_THREADS, n), FEW_THREADS, 0,
                        (struct vote_list){list, n});
}

/* ---- Sums of scores ---- */

static __global__ void __launch_bounds__(FEW_THREADS) fold_kernel(const struct op_lane_fold *list)
{
    kernel_begin();
    const struct op_lane_fold &op = list[blockIdx.y];
    const uint32_t i = blockIdx.x * FEW_THREADS + threadIdx.x;
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
    if (choose_fold_shares(d, op, list, n)) return d->status;
    most = choose_round_up(most);
    return queue_launch(d, "sums of scores", fold_kernel,
                        dim3((most + FEW_THREADS - 1) / FEW_THREADS, n), FEW_THREADS, 0, list);
}
