/* score.cu: scores for choosing, for all lanes of a list (lanes.h). A lane's numbers
 * depend on the lane alone: pieces of the context are fixed, and sums are added in one order. Keys
 * that wait for a turned query have no kernel here. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define WARPS       8u
#define THREADS     1024u
#define FEW         256u
#define BOXES_BUSY  512u /* of a multiprocessor with whom warps have several eights each */

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
    if (choose_fold_shares(d, op, list, n)) return d->status;
    most = choose_reach(most);
    return queue_launch(d, "sums of scores", fold_kernel, dim3((most + FEW - 1) / FEW, n), FEW, 0,
                        list);
}
