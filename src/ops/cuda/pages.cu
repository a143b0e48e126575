/* pages.cu: sealing of full tail pages into q8 (op_seal), bit for bit as attn_ref.c, and unsealing
 * into 16-bit rows (op_unseal), as page.c.
 *
 * Keys: for each channel over the page's 32 tokens, min and step = (max - min) / 255, and codes
 * round((x - min) / step), stored as bit planes of 2, 2 and 4 bits. Values: blocks of PAGE_VBLOCK
 * channels of a token with scale amax / 127 and signed codes. Other page types are copied. A block
 * of threads has one page; a thread has a channel of K, a warp a block of V; the codes of K
 * [PAGE_TOK, d] pass through shared memory, because planes mix channels. */
#include "ops/cuda/choose.cuh"

#include <math_constants.h>

#define F16_NAN 0x7e00u
#define THREADS 128u

/* ---- Sealing ---- */

struct seal_call {
    struct page_geom geom;
    const uint8_t *const *tail; /* on the device */
    uint8_t *const *sealed;
};

/* The smallest f16 that is not below f, for finite f >= 0 within the range of f16. */
__device__ __forceinline__ uint16_t f16_not_below(float f)
{
    const __half near = __float2half_rn(f);
    return (uint16_t)(__half_as_ushort(near) + (__half2float(near) < f ? 1 : 0));
}

__device__ __forceinline__ uint32_t round_code(float x, uint32_t max)
{
    const float r = rintf(x);
    return r < (float)max ? (uint32_t)r : max;
}

/* Channel c of K: its minimum and step go to the page, its codes to code [PAGE_TOK][d]. */
__device__ void seal_channel(const struct page_geom *g, const uint16_t *k, uint8_t *page,
                             uint8_t *code, uint32_t c)
{
    const uint32_t d = g->head_dim;
    float min = CUDART_INF_F, max = -CUDART_INF_F;
    bool finite = true;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        const uint16_t h = k[t * d + c];
        const float x = __half2float(__ushort_as_half(h));
        finite &= (h & 0x7c00u) != 0x7c00u;
        min = x < min ? x : min;
        max = x > max ? x : max;
    }
    /* Adding 0 turns a minimum of -0 into +0: which zero came first must not show. */
    const uint16_t low = __half_as_ushort(__float2half_rn(min + 0.0f));
    const uint16_t by = finite ? f16_not_below((max - min) * (1.0f / 255.0f)) : 0;
    ((uint16_t *)(page + g->k_min))[c] = finite ? low : F16_NAN;
    ((uint16_t *)(page + g->k_step))[c] = by;
    const float step = __half2float(__ushort_as_half(by)), inv = step > 0 ? 1.0f / step : 0;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        const float x = __half2float(__ushort_as_half(k[t * d + c]));
        code[t * d + c] = finite ? (uint8_t)round_code((x - min) * inv, 255) : 0;
    }
}

/* Packs the codes into planes; a thread makes byte i of hi2 and mid2, then of lo4. */
__device__ void seal_planes(const struct page_geom *g, const uint8_t *code, uint8_t *page)
{
    const uint32_t d = g->head_dim, quarter = d / 4, half = d / 2;
    for (uint32_t i = threadIdx.x; i < PAGE_TOK * quarter; i += THREADS) {
        const uint32_t t = i / quarter, j = i % quarter;
        uint32_t hi = 0, mid = 0;
        for (uint32_t s = 0; s < 4; s++) {
            const uint32_t x = code[t * d + s * quarter + j];
            hi |= x >> 6 << 2 * s;
            mid |= (x >> 4 & 3) << 2 * s;
        }
        page[g->k_hi2 + i] = (uint8_t)hi;
        page[g->k_low + t * (quarter + half) + j] = (uint8_t)mid;
    }
    for (uint32_t i = threadIdx.x; i < PAGE_TOK * half; i += THREADS) {
        const uint32_t t = i / half, j = i % half;
        const uint32_t x = code[t * d + j] & 15, y = code[t * d + half + j] & 15;
        page[g->k_low + t * (quarter + half) + quarter + j] = (uint8_t)(x | y << 4);
    }
}

/* Quantizes V; a warp has a block of PAGE_VBLOCK channels of a token. */
__device__ void seal_values(const struct page_geom *g, const uint16_t *v, uint8_t *page)
{
    const uint32_t lane = threadIdx.x % 32, n = PAGE_TOK * g->head_dim / PAGE_VBLOCK;
    for (uint32_t b = threadIdx.x / 32; b < n; b += THREADS / 32) {
        const uint16_t h = v[b * PAGE_VBLOCK + lane];
        const float x = __half2float(__ushort_as_half(h));
        const bool finite = __all_sync(~0u, (h & 0x7c00u) != 0x7c00u);
        float amax = fabsf(x);
        for (int i = 16; i; i /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, i));
        const uint16_t by = finite ? f16_not_below(amax * (1.0f / 127.0f)) : F16_NAN;
        const float scale = __half2float(__ushort_as_half(by));
        const float inv = scale > 0 ? 1.0f / scale : 0;
        const int mag = finite ? (int)round_code(fabsf(x) * inv, 127) : 0;
        if (lane == 0) ((uint16_t *)(page + g->v_scale))[b] = by;
        ((int8_t *)(page + g->v))[b * PAGE_VBLOCK + lane] = (int8_t)(x < 0 ? -mag : mag);
    }
}

/* One block seals one page. Dynamic shared memory: codes of K [PAGE_TOK, d]. */
__global__ void __launch_bounds__(THREADS) seal_kernel(const struct seal_call c)
{
    kernel_begin();
    uint8_t *const code = kernel_shared();
    const struct page_geom *g = &c.geom;
    const uint8_t *tail = c.tail[blockIdx.x];
    uint8_t *page = c.sealed[blockIdx.x];
    if (g->type_k != SAC_KV_Q8) {
        const uint32_t n = (uint32_t)(g->tail_v / 16);
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            ((uint4 *)(page + g->k))[i] = ((const uint4 *)tail)[i];
            ((uint4 *)(page + g->v))[i] = ((const uint4 *)(tail + g->tail_v))[i];
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < g->head_dim; i += THREADS)
        seal_channel(g, (const uint16_t *)tail, page, code, i);
    __syncthreads();
    seal_planes(g, code, page);
    seal_values(g, (const uint16_t *)(tail + g->tail_v), page);
}

sac_status cuda_seal(struct cuda_device *d, const struct op_seal *op)
{
    if (op->n_page == 0) return SAC_OK;
    const size_t bytes = op->n_page * sizeof(uint8_t *);
    if (stage_reserve(d, 2 * (bytes + STAGE_ALIGN)) != SAC_OK) return d->status;
    struct seal_call c;
    c.geom = *op->geom;
    c.tail = (const uint8_t *const *)stage_put(d, op->tail, bytes);
    c.sealed = (uint8_t *const *)stage_put(d, op->sealed, bytes);
    if (!c.tail || !c.sealed) return d->status;
    const size_t smem = c.geom.type_k == SAC_KV_Q8 ? PAGE_TOK * c.geom.head_dim : 0;
    return queue_launch(d, "sealing of pages", seal_kernel, op->n_page, THREADS, smem, c);
}

/* ---- Unsealing ---- */

struct unseal_call {
    struct page_geom geom;
    const uint8_t *const *sealed; /* on the device */
    uint8_t *const *tail;
};

static __device__ inline uint16_t half_bits(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

/* One block unseals one page. */
__global__ void __launch_bounds__(THREADS) unseal_kernel(const struct unseal_call c)
{
    kernel_begin();
    const struct page_geom *g = &c.geom;
    const uint8_t *page = c.sealed[blockIdx.x];
    uint8_t *tail = c.tail[blockIdx.x];
    const uint32_t d = g->head_dim;
    if (g->type_k != SAC_KV_Q8) {
        for (uint32_t i = threadIdx.x; i < g->tail_v / 16; i += THREADS) {
            ((uint4 *)tail)[i] = ((const uint4 *)(page + g->k))[i];
            ((uint4 *)(tail + g->tail_v))[i] = ((const uint4 *)(page + g->v))[i];
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < PAGE_TOK * d; i += THREADS) {
        const uint16_t by = ((const uint16_t *)(page + g->v_scale))[i / PAGE_VBLOCK];
        const float v = choose_half(by, SAC_KV_F16) * (float)((const int8_t *)(page + g->v))[i];
        ((uint16_t *)tail)[i] = half_bits(choose_key(*g, page, i / d, i % d));
        ((uint16_t *)(tail + g->tail_v))[i] = half_bits(v);
    }
}

sac_status cuda_unseal(struct cuda_device *d, const struct op_unseal *op)
{
    if (op->n_page == 0) return SAC_OK;
    const size_t bytes = op->n_page * sizeof(uint8_t *);
    if (stage_reserve(d, 2 * (bytes + STAGE_ALIGN)) != SAC_OK) return d->status;
    struct unseal_call c;
    c.geom = *op->geom;
    c.sealed = (const uint8_t *const *)stage_put(d, op->sealed, bytes);
    c.tail = (uint8_t *const *)stage_put(d, op->tail, bytes);
    if (!c.sealed || !c.tail) return d->status;
    return queue_launch(d, "opening of pages", unseal_kernel, op->n_page, THREADS, 0, c);
}
