/* draw.cuh: what the two launches of a draw share (private to this folder): draw_cut.cu finds the
 * cuts, draw.cu samples tokens by them. */
#ifndef SAC_OPS_CUDA_DRAW_CUH
#define SAC_OPS_CUDA_DRAW_CUH

#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

typedef unsigned long long u64;

#define DRAW_OVER  1.02f /* bound of the rounding of f16 sums, for any number of heads */
#define DRAW_PIECE (2 * OP_DRAW_ITEMS) /* items that one block samples from */

/* The sum of a piece's chances, stored where the CPU has an op_draw_piece: for each draw lane the
 * low word of its sum, and above it the number of overflows of 2^32; tokens that are certain are
 * counted with lane 0. A word with DRAW_READY set has been published. */
struct draw_prefix {
    uint64_t word[OP_DRAW_LANES];
};
#define DRAW_READY ((uint64_t)1 << 63)
static_assert(sizeof(struct draw_prefix) <= sizeof(struct op_draw_piece), "there is room");

static __device__ __forceinline__ struct draw_prefix *draw_prefix_of(const struct op_lane_draw &op)
{
    return (struct draw_prefix *)op.piece;
}

static __device__ __forceinline__ uint32_t draw_pieces(const struct op_lane_draw &op)
{
    return (op.at.n + DRAW_PIECE - 1) / DRAW_PIECE;
}

/* Where shares come from that are computed on the fly. */
struct draw_from {
    struct op_lane_shares of;
    float log[OP_GROUP_MAX]; /* by choose_make_logs */
};

/* Finds the cuts of n draws of `most` items at most and stores them in their states. With `shares`
 * the values are computed from exponentials, and the heads' logs go to `lse`. Also marks the ends,
 * and clears the pieces' sums for the sampling. */
sac_status draw_find_cuts(struct cuda_device *d, const struct choose_spread &shares,
                          const struct op_lane_draw *list, uint32_t n, uint32_t most,
                          const struct choose_ends &ends);

#endif
