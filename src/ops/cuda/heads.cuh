/* heads.cuh: RoPE of single channels, and rows whose RoPE and KV write attention does itself
 * (private to this folder). */
#ifndef SAC_OPS_CUDA_HEADS_CUH
#define SAC_OPS_CUDA_HEADS_CUH

#include "ops/cuda/device.cuh"

/* Rows whose queries and keys are not rotated yet and whose keys and values are in no page yet. */
struct heads_pending {
    const float *k, *v; /* row r: [n_kv_head, head_dim] at k + r * stride; NULL: none */
    size_t stride;
    const float *cos, *sin; /* [n_row, n_rot / 2] */
    uint32_t n_rot;         /* the first n_rot channels are rotated; 0: none */
    bool interleaved;
};

/* If the last recorded launch writes the keys and values of exactly op's rows, drops it and returns
 * true: attention then does what *out describes. */
bool heads_absorb(struct cuda_device *d, const struct op_attn *op, struct heads_pending *out);

/* Rotates one channel: `other` is the second channel of its pair, and the first of a pair passes
 * -sine. Each product is rounded before the sum, so that no compiler fuses them and all callers get
 * the same bits. */
static __device__ __forceinline__ float rope_rotate(float x, float other, float cosine, float sine)
{
    return __fadd_rn(__fmul_rn(x, cosine), __fmul_rn(other, sine));
}

/* Channel c of head x of a row, rotated. No divergent branch comes before the loads. */
static __device__ __forceinline__ float heads_channel(const struct heads_pending &n, const float *x,
                                                      uint32_t row, uint32_t c)
{
    const uint32_t half = n.n_rot / 2;
    const bool turns = c < n.n_rot, second = n.interleaved ? c & 1 : c >= half;
    if (n.n_rot == 0) return x[c];
    const uint32_t pair = n.interleaved ? c / 2 : second ? c - half : c;
    const uint32_t other = n.interleaved ? c ^ 1 : second ? c - half : c + half;
    const size_t at = (size_t)row * half + (turns ? pair : 0);
    const float mine = x[c], its = x[turns ? other : c], sine = n.sin[at];
    return turns ? rope_rotate(mine, its, n.cos[at], second ? sine : -sine) : mine;
}

#endif
