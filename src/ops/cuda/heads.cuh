/* heads.cuh: heads of rows ahead of attention (private to this folder): how a channel turns, and rows
 * that attention itself turns and writes. */
#ifndef SAC_OPS_CUDA_HEADS_CUH
#define SAC_OPS_CUDA_HEADS_CUH

#include "ops/cuda/device.cuh"

/* Rows whose queries and keys have not turned, and whose keys and values are in no page yet. */
struct heads_pending {
    const float *k, *v; /* row r: [n_kv_head, head_dim] at k + r * stride; NULL: all is done */
    size_t stride;
    const float *cos, *sin; /* [n_row, n_rot / 2] */
    uint32_t n_rot;         /* the first n_rot channels turn; 0: none */
    bool interleaved;
};

/* If the last launch noted writes the keys and values of all of `op`'s rows, and of no others, it is
 * taken back, and they are what attention has to do. */
bool heads_absorb(struct cuda_device *d, const struct op_attn *op, struct heads_pending *out);

/* A channel and the other of its pair; the first of them turns by -sine. Products are rounded before
 * they are added, wherever this is compiled into. */
static __device__ __forceinline__ float rope_rotate(float x, float other, float cosine, float sine)
{
    return __fadd_rn(__fmul_rn(x, cosine), __fmul_rn(other, sine));
}

/* Channel c of a head x of a row. No branch that differs among threads stands before its loads. */
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
