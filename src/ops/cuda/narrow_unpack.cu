/* narrow_unpack.cu: unpacks groups of 16 outputs of a packed weight matrix to f16 (narrow_unpack),
 * for matrix products of prompt rows: out [n * 16, width], each output times its shrink.
 *
 * Grid: groups by parts of the inputs. A warp unpacks UNPACK_BLOCKS blocks of 16 outputs and 32
 * inputs at a time through registers (weights.cuh), with all their loads in flight; the result is
 * written in 8-byte stores. Bound by memory; no shared memory. */
#include "ops/cuda/linear.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/cuda/weights.cuh"

#define WARPS         8u /* of a block */
#define UNPACK_BLOCKS 4u /* weight blocks in flight for a warp that unpacks */

/* Unpacks n blocks of 32 inputs of a group, all in one chunk; by a warp, with all loads in
 * flight. */
template <int type, uint32_t n>
static __device__ __forceinline__ void unpack_blocks(__half *out, const uint8_t *group,
                                                     uint32_t n_block, uint32_t block)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const struct pair_shrink shrink = load_shrink(group, g);
    const struct block_place place = find_block<type>(group, n_block, block);
    const struct chunk_scale k = load_chunk<type>(place.chunk, g, shrink);
    block_w v[n];
#pragma unroll
    for (uint32_t i = 0; i < n; i++) v[i] = unpack_block<type>(place, i, k, g, t, shrink);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++)
#pragma unroll
        for (uint32_t i = 0; i < 2 * n; i++) {
            const size_t row = (size_t)blockIdx.x * WEIGHT_GROUP + 2 * g + r;
            __half *to = out + (row * n_block + block) * LAYOUT_BLOCK + 16 * i + 4 * t;
            *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(v[i / 2].w[r][i % 2]);
        }
}

template <int type>
static __global__ void unpack(__half *out, const uint8_t *w, size_t group_bytes, uint32_t n_block)
{
    kernel_begin();
    static_assert(LAYOUT_BLOCKS % UNPACK_BLOCKS == 0, "a warp's blocks are of one chunk");
    const uint8_t *group = w + (size_t)blockIdx.x * group_bytes;
    uint32_t block = (blockIdx.y * WARPS + threadIdx.x / 32) * UNPACK_BLOCKS;
    if (block + UNPACK_BLOCKS <= n_block)
        unpack_blocks<type, UNPACK_BLOCKS>(out, group, n_block, block);
    else
        for (; block < n_block; block++) unpack_blocks<type, 1>(out, group, n_block, block);
}

template <int type>
static sac_status launch_unpack(struct cuda_device *d, __half *out, const struct weight *w,
                                uint32_t begin, uint32_t n)
{
    constexpr uint32_t step = WARPS * UNPACK_BLOCKS;
    const uint32_t n_block = layout_n_block(w->n_in);
    return queue_launch(d, "unpacking of weights", unpack<type>,
                        dim3(n, (n_block + step - 1) / step), WARPS * 32, 0, out,
                        w->data + begin * w->group_bytes, w->group_bytes, n_block);
}

sac_status narrow_unpack(struct cuda_device *d, __half *out, const struct weight *w, uint32_t begin,
                         uint32_t n)
{
#define CALL(type) return launch_unpack<type>(d, out, w, begin, n)
    WEIGHTS_FOR_TYPE(w->type, CALL)
#undef CALL
    return device_fail(d, SAC_ERR_UNSUPPORTED, "weights of this type");
}
