/* choose.cuh: what the slots of choosing have in common (private to this folder): lists of lanes on
 * the device, and keys of pages. */
#ifndef SAC_OPS_CUDA_CHOOSE_CUH
#define SAC_OPS_CUDA_CHOOSE_CUH

#include "ops/cuda/mma.cuh"
#include "ops/cuda/place.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/lanes.h"

/* A list of descriptors in the ring; NULL: there is no room, which is remembered. */
template <typename T> static const T *choose_stage(struct cuda_device *d, const T *op, uint32_t n)
{
    return (const T *)stage_put(d, op, n * sizeof *op);
}

static inline uint32_t choose_larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Bits of a page's tokens [begin, end), positions of the sequence. */
static __device__ inline uint32_t choose_bits(uint32_t page, uint32_t begin, uint32_t end)
{
    const uint32_t first = page * PAGE_TOK;
    const uint32_t lo = begin > first ? begin - first : 0;
    const uint32_t hi = end > first ? min(end - first, PAGE_TOK) : 0;
    return lo < hi ? ~0u >> (PAGE_TOK - hi) & ~0u << lo : 0;
}

/* ---- Begins: a launch of scores carries them along ---- */

struct choose_begin {
    const struct op_lane_begin *list; /* [n] on the device */
    uint32_t n, n_page;               /* the most that one of them has */
};

/* Part i of a lane's: the block's threads clear a page each. */
static __device__ inline void choose_clear(const struct op_lane_begin &op, uint32_t i)
{
    const uint32_t p = i * blockDim.x + threadIdx.x;
    if (p < op.n_page) op.mask[p] = 0;
    if (p == 0) *op.result = {};
}

/* The parts that all of them have, for blocks of so many threads. */
static inline uint32_t choose_parts(const struct choose_begin &b, uint32_t n_thread)
{
    return b.n ? (b.n_page + n_thread - 1) / n_thread : 0;
}

/* Takes back the launch before, if it is one; else n is 0. */
struct choose_begin choose_take_begin(struct cuda_device *d);

static __device__ inline float choose_half(uint16_t bits, sac_kv_type type)
{
    return type == SAC_KV_BF16 ? __uint_as_float((uint32_t)bits << 16)
                               : __half2float(__ushort_as_half(bits));
}

/* Channel c of the key of token t of a sealed page, as page_read says. */
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
    return min + step * (float)code; /* the sum is the only rounding, fused or not */
}

/* Channels c .. c + 7 of it; c is a multiple of 8. */
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

#define CHOOSE_HEADS 8u /* whose logits are made together */

struct choose_query {
    const float *q; /* [group, head_dim], at a multiple of 16 bytes */
    uint32_t group;
    float scale, softcap;
};

/* Logits of token t of a page for heads g0 .. g0 + CHOOSE_HEADS - 1, as far as there are such. */
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
