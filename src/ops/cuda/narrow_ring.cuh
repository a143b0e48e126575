/* narrow_ring.cuh: the sizes of a warp's cp.async pipeline of weights in shared memory: units of
 * one, two or four weight blocks, as large and as many as fit (private to narrow.cu). */
#ifndef SAC_OPS_CUDA_NARROW_RING_CUH
#define SAC_OPS_CUDA_NARROW_RING_CUH

#include "ops/cuda/narrow_unit.cuh"

#define WARPS      8u     /* of a block */
#define STAGES_MAX 4u     /* pipeline stages of a warp */
#define RING_MAX   73728u /* bytes of all stages of a block, for two stages */
#define RING_GOOD  49152u /* and for more than two */

/* A warp's pipeline for n_mat matrices. A unit holds its blocks and their scales; what the blocks
 * of a chunk share is loaded whole with every unit. */
template <int type, uint32_t n_tile, uint32_t n_mat> struct narrow_ring {
    static constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    static constexpr bool is_float = layout_is_float(l);
    static constexpr bool own_scales = l.scale == SCALE_D || l.scale == SCALE_DM;
    static constexpr uint32_t own = own_scales ? layout_scale_bytes(l, 1) : 0;
    static constexpr uint32_t common = own_scales ? 0 : layout_scale_bytes(l, LAYOUT_BLOCKS);
    static constexpr uint32_t block = layout_block_bytes(l);
    static constexpr uint32_t bytes(uint32_t n)
    {
        return common + n * (own + block);
    }
    static constexpr uint32_t stages_of(uint32_t most, uint32_t n)
    {
        return most / WARPS / n_mat / bytes(n);
    }
    static constexpr uint32_t unit = stages_of(RING_MAX, 4) >= 2   ? UNIT_MAX
                                     : stages_of(RING_MAX, 2) >= 2 ? 2
                                                                   : 1;
    static constexpr uint32_t scales = common + unit * own;
    static constexpr uint32_t mat = bytes(unit), weights = n_mat * mat;
    static constexpr uint32_t good = stages_of(RING_GOOD, unit);
    static constexpr uint32_t stages = n_tile > 1 || good < 2 ? 2
                                       : good < STAGES_MAX    ? good
                                                              : STAGES_MAX;
    static constexpr uint32_t stride = WARPS * unit; /* from a unit of a warp to its next */
    static_assert(stride % LAYOUT_BLOCKS == 0, "both lie in the same place of a chunk");
    static_assert(is_float || unit == UNIT_MAX, "a strip's sums are those of a unit of codes");
};

#endif
