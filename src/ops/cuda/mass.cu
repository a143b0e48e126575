/* mass.cu: the attention mass that each token gets from the last rows of a prompt (op_mass): the
 * sum of softmax(q k) over query heads and rows, of which the last row counts whole, the one before
 * it half, the third from the end a third. Of q8 keys only the first plane is read.
 *
 * Three launches: a block for each page computes, for each head and row, the maximum of its logits
 * and the sum of their exponentials; a block for each head and row merges these over the pages; a
 * block for each page computes its logits again and adds up the probabilities. A warp has one (row,
 * head), a lane one token of the page. Shared memory holds the keys of one page and KV head in f32,
 * [PAGE_TOK][d + 1], padded against bank conflicts. Every sum has a fixed order. */
#include "ops/cuda/attn.cuh"
#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"
#include "ops/mass.h"

#define THREADS 256u
#define WARPS   (THREADS / 32)

struct mass_call {
    struct op_mass op; /* q and segments are on the device */
    uint32_t group, n_pair;
};

/* The maximum and the sum of exponentials of a page; in the merged entry, sum is the factor of a
 * probability. */
struct mass_top {
    float most, sum;
};

static __device__ inline struct mass_top *top_of(const struct mass_call &c, uint32_t h,
                                                 uint32_t pair, uint32_t page)
{
    struct mass_top *top = (struct mass_top *)c.op.spare;
    return top + ((size_t)h * c.n_pair + pair) * (c.op.n_page + 1) + page;
}

/* A key from the first plane of a q8 page alone, in the middle of what the other bits leave
 * open. */
static __device__ inline float rough_key(const struct page_geom &g, const uint8_t *page, uint32_t t,
                                         uint32_t c)
{
    const uint32_t quarter = g.head_dim / 4;
    const uint32_t code = page[g.k_hi2 + t * quarter + c % quarter] >> 2 * (c / quarter) & 3u;
    const float min = choose_half(((const uint16_t *)(page + g.k_min))[c], SAC_KV_F16);
    const float step = choose_half(((const uint16_t *)(page + g.k_step))[c], SAC_KV_F16);
    return min + step * (64.0f * (float)code + 31.5f);
}

/* The keys of the block's page in f32, rotated by its segment's offset instead of rotating every
 * query: key [PAGE_TOK][d + 1]. */
static __device__ void load_keys(float *key, const struct mass_call &c, uint32_t h)
{
    const struct op_mass &op = c.op;
    const struct page_geom &g = *op.geom;
    const uint32_t d = g.head_dim, page_i = blockIdx.x;
    const uint8_t *page = op.frames.base + op.frame[h * op.table_stride + page_i] * g.bytes;
    __syncthreads(); /* the last head's readers are done */
    for (uint32_t i = threadIdx.x; i < PAGE_TOK * d; i += THREADS)
        key[i / d * (d + 1) + i % d] = g.type_k == SAC_KV_Q8 ? rough_key(g, page, i / d, i % d)
                                                             : choose_key(g, page, i / d, i % d);
    __syncthreads();
    const uint32_t s = attn_segment_of(op.segment, op.n_segment, page_i);
    if (s >= op.n_segment || !op.segment[s].cos) return;
    const uint32_t half = op.rope.n_rot / 2, step = op.rope.interleaved ? 2 : 1;
    const uint32_t other = op.rope.interleaved ? 1 : half;
    for (uint32_t i = threadIdx.x; i < PAGE_TOK * half; i += THREADS) {
        float *x = key + i / half * (d + 1) + i % half * step;
        const float a = x[0], b = x[other];
        const float cosine = op.segment[s].cos[i % half], sine = -op.segment[s].sin[i % half];
        x[0] = a * cosine - b * sine;
        x[other] = a * sine + b * cosine;
    }
    __syncthreads();
}

/* The logit of the lane's token for a (row, head). */
static __device__ inline float score_of(const float *key, const struct mass_call &c, uint32_t h,
                                        uint32_t pair)
{
    const struct op_mass &op = c.op;
    const uint32_t d = op.geom->head_dim, lane = threadIdx.x % 32;
    const size_t head = h * c.group + pair % c.group;
    const float4 *q = (const float4 *)(op.q + (pair / c.group * op.n_head + head) * d);
    const float *k = key + lane * (d + 1);
    float sum = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < d / 4; i++) {
        const float4 four = q[i];
        sum += four.x * k[4 * i] + four.y * k[4 * i + 1] + four.z * k[4 * i + 2] +
               four.w * k[4 * i + 3];
    }
    sum *= op.scale;
    return op.softcap > 0 ? op.softcap * tanhf(sum / op.softcap) : sum;
}

__global__ void __launch_bounds__(THREADS) mass_tops(const struct mass_call c)
{
    kernel_begin();
    float *key = (float *)kernel_shared();
    for (uint32_t h = 0; h < c.op.geom->n_kv_head; h++) {
        load_keys(key, c, h);
        for (uint32_t pair = threadIdx.x / 32; pair < c.n_pair; pair += WARPS) {
            const float score = score_of(key, c, h, pair);
            float most = score;
            for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
            float sum = expf(score - most);
            for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
            if (threadIdx.x % 32 == 0) {
                struct mass_top top;
                top.most = most;
                top.sum = sum;
                *top_of(c, h, pair, blockIdx.x) = top;
            }
        }
    }
}

/* One block merges one (row, head) over all pages, into the entry after the last page. */
__global__ void __launch_bounds__(THREADS) mass_merge(const struct mass_call c)
{
    kernel_begin();
    __shared__ float tops[32];
    __shared__ double sums[32];
    const uint32_t h = blockIdx.x / c.n_pair, pair = blockIdx.x % c.n_pair;
    const struct mass_top *top = top_of(c, h, pair, 0);
    float most = -INFINITY;
    for (uint32_t p = threadIdx.x; p < c.op.n_page; p += THREADS) most = fmaxf(most, top[p].most);
    for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = most;
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++) most = fmaxf(most, tops[w]);
    double sum = 0;
    for (uint32_t p = threadIdx.x; p < c.op.n_page; p += THREADS)
        sum += (double)(top[p].sum * expf(top[p].most - most));
    sum = block_sum(sum, sums);
    if (threadIdx.x > 0) return;
    struct mass_top all;
    all.most = most;
    all.sum = (float)(1.0 / (sum * (c.op.n_row - pair / c.group)));
    *top_of(c, h, pair, c.op.n_page) = all;
}

__global__ void __launch_bounds__(THREADS) mass_shares(const struct mass_call c)
{
    kernel_begin();
    __shared__ float part[WARPS][PAGE_TOK];
    float *key = (float *)kernel_shared(), mass = 0;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (uint32_t h = 0; h < c.op.geom->n_kv_head; h++) {
        load_keys(key, c, h);
        for (uint32_t pair = warp; pair < c.n_pair; pair += WARPS) {
            const struct mass_top all = *top_of(c, h, pair, c.op.n_page);
            mass += expf(score_of(key, c, h, pair) - all.most) * all.sum;
        }
    }
    part[warp][lane] = mass;
    __syncthreads();
    if (warp > 0) return;
    for (uint32_t w = 1; w < WARPS; w++) mass += part[w][lane];
    c.op.mass[blockIdx.x * PAGE_TOK + lane] = mass;
}

static const float *stage_queries(struct cuda_device *d, const struct op_mass *op)
{
    const size_t width = (size_t)op->n_head * op->geom->head_dim;
    return (const float *)stage_put(d, op->q, op->n_row * width * sizeof(float));
}

sac_status cuda_mass(struct cuda_device *d, const struct op_mass *op)
{
    struct op_attn attn;
    struct attn_run run;
    struct mass_call c;
    const size_t smem = PAGE_TOK * (op->geom->head_dim + 1) * sizeof(float);
    memset(&attn, 0, sizeof attn);
    memset(&run, 0, sizeof run);
    attn.rope = op->rope;
    run.segment = op->segment;
    run.n_segment = op->n_segment;
    const size_t q_bytes = (size_t)op->n_row * op->n_head * op->geom->head_dim * sizeof(float);
    if (op->n_page == 0 || op->n_row == 0) return SAC_OK;
    if (stage_reserve(d, q_bytes + sizeof *op->geom + attn_segment_bytes(&attn, &run) +
                             4 * STAGE_ALIGN) != SAC_OK)
        return d->status;
    c.op = *op;
    c.group = op->n_head / op->geom->n_kv_head;
    c.n_pair = op->n_row * c.group;
    c.op.geom = (const struct page_geom *)stage_put(d, op->geom, sizeof *op->geom);
    c.op.q = stage_queries(d, op);
    c.op.segment = attn_stage_segments(d, &attn, &run);
    if (d->status != SAC_OK) return d->status;
    TRY(queue_launch(d, "attention mass, page by page", mass_tops, op->n_page, THREADS, smem, c));
    TRY(queue_launch(d, "attention mass, merged", mass_merge, op->geom->n_kv_head * c.n_pair,
                     THREADS, 0, c));
    return queue_launch(d, "attention mass", mass_shares, op->n_page, THREADS, smem, c);
}
