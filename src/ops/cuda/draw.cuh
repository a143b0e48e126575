/* draw.cuh: what the two launches of a draw have in common (private to this folder): draw_cut.cu
 * finds cuts, draw.cu takes by them. */
#ifndef SAC_OPS_CUDA_DRAW_CUH
#define SAC_OPS_CUDA_DRAW_CUH

#include "ops/cuda/block.cuh"
#include "ops/cuda/choose.cuh"

typedef unsigned long long u64;

#define DRAW_OVER  1.02f /* of what halves add up to, for as many heads as there may be */
#define DRAW_PIECE (2 * OP_DRAW_ITEMS) /* items that a block takes from */

/* What a piece adds up to, in the place of an op_draw_piece: for each draw lane the low word of its
 * sum of chances and, above it, how often that has passed 2^32; the items that are certain are
 * counted with the first lane's. A word says of itself whether it has been prefix. */
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

/* Shares of tokens that are not there: where they come from. */
struct draw_from {
    struct op_lane_shares of;
    float log[OP_GROUP_MAX]; /* choose_make_logs */
};

/* Finds the cuts of n draws of `most` items at most, which goes to their states; with shares,
 * values are those, and their logs go to `lse`. Marks the ends, and clears what pieces tell. */
sac_status draw_find_cuts(struct cuda_device *d, const struct choose_spread &shares,
                          const struct op_lane_draw *list, uint32_t n, uint32_t most,
                          const struct choose_ends &ends);

#endif
