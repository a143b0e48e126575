/* score.cu: scores and shares for choosing, for all lanes of a list (lanes.h). A lane's numbers
 * depend on the lane alone: pieces of the context are fixed, and sums are added in one order. Keys
 * that wait for a turned query have no kernel here. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

#define WARPS       8u
#define THREADS     1024u
#define FEW         256u
#define SHARE_WARPS 16u
#define SHARE_PAGES 16u /* of a piece */
#define HEADS       8u  /* that a page is unpacked for together */
#define CODE_LOADS  4u  /* of 16 bytes, of a token of 256 channels */

static_assert(SHARE_WARPS >= HEADS, "a warp adds up for a head");

static sac_status refuse_turned(struct cuda_device *d)
{
    return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing among keys that wait for a turned query");
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* ---- Boxes: a warp for each ---- */

static __global__ void __launch_bounds__(WARPS * 32) boxes_kernel(const struct op_lane_boxes *list)
{
    kernel_begin();
    const struct op_lane_boxes &op = list[blockIdx.y];
    const uint32_t lane = threadIdx.x % 32, i = blockIdx.x * WARPS + threadIdx.x / 32;
    if (i >= op.at.n_page * op.n_box) return;
    const uint32_t page = i % op.at.n_page, box = i / op.at.n_page;
    const uint8_t *at = op.at.base + (size_t)op.at.page[page] * op.at.stride + box * op.box_at;
    const uint16_t *a = (const uint16_t *)(at + op.at.a_at);
    const uint16_t *b = (const uint16_t *)(at + op.at.b_at);
    for (uint32_t g = 0; g < op.at.group; g++) {
        float sum = 0;
        for (uint32_t c = lane; c < op.at.head_dim; c += 32) {
            const float q = op.q[g * op.at.head_dim + c] * op.scale;
            const float spread = op.mean ? fabsf(q) : fmaxf(q, 0) * op.unit;
            sum += q * choose_half(a[c], SAC_KV_F16) + spread * choose_half(b[c], SAC_KV_F16);
        }
        for (int j = 16; j > 0; j /= 2) sum += __shfl_xor_sync(~0u, sum, j);
        if (lane == 0) op.at.out[g * op.at.out_stride + box * op.box_out + page] = sum;
    }
}

sac_status cuda_lane_boxes(struct cuda_device *d, const struct op_lane_boxes *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].turn || op[i].at.frame_of) return refuse_turned(d);
        most = larger(most, op[i].at.n_page * op[i].n_box);
    }
    const struct op_lane_boxes *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    return queue_launch(d, "scores of pages", boxes_kernel, dim3((most + WARPS - 1) / WARPS, n),
                        WARPS * 32, 0, list);
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
        most = larger(most, op[i].keys.n_page);
    }
    const struct op_lane_logits *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    return queue_launch(d, "logits of all tokens", logits_kernel,
                        dim3((most + WARPS - 1) / WARPS, n), WARPS * 32, 0, *op->keys.geom, list);
}

/* ---- Shares by first planes ---- */

/* What a page's codes are multiplied by, for some heads: w [n][d], in shared memory of the warp's.
 * Lanes get the sums that go with all tokens. */
static __device__ void plane_weights(float *w, float base[HEADS], const struct op_share_planes &op,
                                     const uint8_t *page, uint32_t g0, uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32, d = op.head_dim;
    const uint16_t *min = (const uint16_t *)(page + op.min_at);
    const uint16_t *step = (const uint16_t *)(page + op.step_at);
    for (uint32_t g = 0; g < HEADS; g++) base[g] = 0;
    __syncwarp(); /* nobody reads the page before any more */
    for (uint32_t c = lane; c < d; c += 32) {
        const float lo = choose_half(min[c], SAC_KV_F16), by = choose_half(step[c], SAC_KV_F16);
#pragma unroll
        for (uint32_t g = 0; g < HEADS; g++) {
            if (g >= n) continue;
            const float q = op.q[(g0 + g) * d + c];
            w[g * d + c] = q * by * 64;
            base[g] += q * (lo + by * 31.5f);
        }
    }
    for (uint32_t g = 0; g < n; g++)
        for (int j = 16; j > 0; j /= 2) base[g] += __shfl_xor_sync(~0u, base[g], j);
    __syncwarp();
}

/* One token's codes, on their way before they are needed. */
static __device__ inline void load_codes(uint4 code[CODE_LOADS], const uint8_t *from, uint32_t d)
{
#pragma unroll
    for (uint32_t i = 0; i < CODE_LOADS; i++)
        code[i] = i * 64 < d ? *(const uint4 *)(from + i * 16) : make_uint4(0, 0, 0, 0);
}

/* Its sums of weights times codes. A byte holds one channel of each quarter. */
static __device__ inline void plane_sums(float sum[HEADS], const float *w,
                                         const uint4 code[CODE_LOADS], uint32_t d, uint32_t n)
{
    const uint32_t quarter = d / 4;
#pragma unroll
    for (uint32_t i = 0; i < CODE_LOADS * 4; i++) {
        if (i * 16 >= d) break;
        const uint4 four = code[i / 4];
        const uint32_t word = i % 4 == 0   ? four.x
                              : i % 4 == 1 ? four.y
                              : i % 4 == 2 ? four.z
                                           : four.w;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const float x[4] = {(float)(word >> 2 * k & 3u), (float)(word >> (8 + 2 * k) & 3u),
                                (float)(word >> (16 + 2 * k) & 3u),
                                (float)(word >> (24 + 2 * k) & 3u)};
#pragma unroll
            for (uint32_t g = 0; g < HEADS; g++) {
                if (g >= n) continue;
                const float4 by = *(const float4 *)(w + g * d + k * quarter + i * 4);
                sum[g] += by.x * x[0] + by.y * x[1] + by.z * x[2] + by.w * x[3];
            }
        }
    }
}

/* Logits of a piece's tokens, and for each head the log of the sum of their exponentials: NaN if
 * one is not finite. Shared memory: weights [SHARE_WARPS][HEADS][d]. */
static __global__ void __launch_bounds__(SHARE_WARPS * 32)
    share_logits_kernel(const struct op_lane_shares *list)
{
    kernel_begin();
    __shared__ struct exp_sum room[HEADS][SHARE_WARPS];
    const struct op_lane_shares &of = list[blockIdx.y];
    const struct op_share_planes &op = of.at;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = op.head_dim;
    const uint32_t begin = blockIdx.x * SHARE_PAGES, end = min(begin + SHARE_PAGES, op.n_page);
    if (begin >= op.n_page) return;
    float *w = (float *)kernel_shared() + warp * HEADS * d;
    for (uint32_t g0 = 0; g0 < op.group; g0 += HEADS) {
        const uint32_t n = min(HEADS, op.group - g0);
        struct exp_sum all[HEADS];
        for (uint32_t g = 0; g < HEADS; g++) all[g] = exp_sum_none();
        for (uint32_t p = begin + warp; p < end; p += SHARE_WARPS) {
            const uint8_t *page = op.base + (size_t)op.page[p] * op.stride;
            float base[HEADS], sum[HEADS] = {};
            uint4 code[CODE_LOADS];
            load_codes(code, page + op.hi2_at + lane * (d / 4), d);
            plane_weights(w, base, op, page, g0, n);
            plane_sums(sum, w, code, d, n);
#pragma unroll
            for (uint32_t g = 0; g < HEADS; g++) {
                if (g >= n) continue;
                const float x = op.scale * (base[g] + sum[g]);
                op.e[((size_t)(g0 + g) * op.n_page + p) * PAGE_TOK + lane] = x;
                all[g] = exp_sum_add(all[g], exp_sum_of(x));
            }
        }
        __syncthreads(); /* nobody reads the room of the heads before any more */
#pragma unroll
        for (uint32_t g = 0; g < HEADS; g++) {
            if (g >= n) continue;
            const struct exp_sum s = warp_exp_sum(all[g]);
            if (lane == 0) room[g][warp] = s;
        }
        __syncthreads();
        if (warp >= n) continue;
        const struct exp_sum s =
            warp_exp_sum(lane < SHARE_WARPS ? room[warp][lane] : exp_sum_none());
        if (lane == 0) of.sum[blockIdx.x * op.group + g0 + warp] = s.max + logf(s.sum);
    }
}

/* Shares of a piece's tokens, from the sums of all pieces, which a warp adds up for a head. */
static __global__ void __launch_bounds__(SHARE_WARPS * 32)
    share_spread_kernel(const struct op_lane_shares *list)
{
    kernel_begin();
    __shared__ float total[OP_GROUP_MAX];
    const struct op_lane_shares &of = list[blockIdx.y];
    const struct op_share_planes &op = of.at;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t n_piece = (op.n_page + SHARE_PAGES - 1) / SHARE_PAGES;
    if (blockIdx.x >= n_piece) return;
    for (uint32_t g = threadIdx.x / 32; g < op.group; g += SHARE_WARPS) {
        struct exp_sum s = exp_sum_none();
        for (uint32_t i = lane; i < n_piece; i += 32)
            s = exp_sum_add(s, exp_sum_of(of.sum[i * op.group + g]));
        s = warp_exp_sum(s);
        if (lane > 0) continue;
        total[g] = s.max + logf(s.sum);
        if (!isfinite(s.sum) && blockIdx.x == 0) atomicOr(&of.result->n_bad, 1u);
    }
    __syncthreads();
    const uint32_t end = min((blockIdx.x + 1) * SHARE_PAGES, op.n_page) * PAGE_TOK;
    for (uint32_t i = blockIdx.x * SHARE_PAGES * PAGE_TOK + threadIdx.x; i < end; i += blockDim.x) {
        float share = 0;
#pragma unroll 8
        for (uint32_t g = 0; g < op.group; g++)
            share += expf(op.e[(size_t)g * op.n_page * PAGE_TOK + i] - total[g]);
        op.share[i] = share / (float)op.group;
    }
}

sac_status cuda_lane_shares(struct cuda_device *d, const struct op_lane_shares *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].n_segment || op[i].at.frame_of) return refuse_turned(d);
        if (op[i].at.group > OP_GROUP_MAX)
            return device_fail(d, SAC_ERR_UNSUPPORTED, "choosing for so many heads of a KV head");
        most = larger(most, op[i].at.n_page);
    }
    const struct op_lane_shares *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    const dim3 grid((most + SHARE_PAGES - 1) / SHARE_PAGES, n);
    const size_t smem = SHARE_WARPS * HEADS * op->at.head_dim * sizeof(float);
    TRY(queue_launch(d, "logits by first planes", share_logits_kernel, grid, SHARE_WARPS * 32,
                     smem, list));
    return queue_launch(d, "shares of tokens", share_spread_kernel, grid, SHARE_WARPS * 32, 0,
                        list);
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
        most = larger(most, op[i].at.n);
        group = larger(group, op[i].at.group);
    }
    const struct op_lane_vote *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
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
    for (uint32_t i = 0; i < n; i++) most = larger(most, op[i].n);
    const struct op_lane_fold *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    return queue_launch(d, "sums of scores", fold_kernel, dim3((most + FEW - 1) / FEW, n), FEW, 0,
                        list);
}
