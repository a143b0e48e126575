/* visit.cuh: what the two launches of visits share (private to this folder): visit_order.cu sorts
 * the pages and plans the first round, visit.cu visits them.
 *
 * A team is the set of lanes that visit the same pages in one order: one leader and its members. A
 * place is an index in that order. */
#ifndef SAC_OPS_CUDA_VISIT_CUH
#define SAC_OPS_CUDA_VISIT_CUH

#include "ops/cuda/choose.cuh"

#define VISIT_WARPS 8u                /* of a block; a warp has one page at a time */
#define VISIT_MOST  (4 * VISIT_WARPS) /* places of a piece, at most */
#define VISIT_OTHERS                                                                               \
    4u /* blocks that help a team after its first round, as a multiple of its own */

/* The places of a round; the first round also visits the row's own page. */
struct visit_round {
    uint32_t from, end;
};

/* Round i: each is as long as all rounds before it together. */
static __device__ inline struct visit_round round_of(const struct op_lane_visit *op, uint32_t i)
{
    const uint32_t first = op->state->plan;
    const struct visit_round r = {i == 0 ? 0 : min(first << (i - 1), op->n_page),
                                  min(first << i, op->n_page)};
    return r;
}

/* Places of a piece. Small, so that a round keeps all blocks busy: the team's n_block, and after
 * the first round others as well, as most teams end soon. Results do not depend on it. */
static __device__ inline uint32_t piece_of(const struct visit_round &r, uint32_t n_block)
{
    const uint32_t by = n_block * (r.from > 0 ? VISIT_OTHERS : 1) * VISIT_WARPS;
    const uint32_t n = (r.end - r.from + by - 1) / by;
    return min(max(n, 1u) * VISIT_WARPS, VISIT_MOST);
}

/* A round without pages has one piece, for the row's own page. */
static __device__ inline uint32_t count_pieces(const struct visit_round &r, uint32_t n_block)
{
    const uint32_t each = piece_of(r, n_block);
    return max((r.end - r.from + each - 1) / each, 1u);
}

/* n_left holds the number of the round and the number of its unclaimed pieces plus OPEN_NONE.
 * Claims decrement it even when nothing is left, which then shows as OPEN_NONE or less. */
#define OPEN_ROUND (1u << 20)
#define OPEN_NONE  (1u << 19)
#define OPEN_OVER  (~0u / OPEN_ROUND) /* the round number of a team that has finished */

/* Opens round i; what was written before is visible to blocks that claim its pieces. */
static __device__ inline void open_round(const struct op_lane_visit *op, uint32_t i,
                                         uint32_t n_block)
{
    const uint32_t n = i == OPEN_OVER ? 0 : count_pieces(round_of(op, i), n_block);
    op->state->tally = 0;
    __threadfence();
    *(volatile uint32_t *)&op->state->n_left = i * OPEN_ROUND + OPEN_NONE + n;
}

/* A logit from the dot product of a query head and a key. */
static __device__ inline float visit_logit(const struct op_lane_visit &op, float dot)
{
    const float x = dot * op.scale;
    return op.softcap > 0 ? op.softcap * tanhf(x / op.softcap) : x;
}

/* Exclusive scan over a warp, in double. */
static __device__ inline double warp_exclusive_sum(double x)
{
    const uint32_t t = threadIdx.x % 32;
    double up_to = x;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const double other = __shfl_up_sync(~0u, up_to, by);
        if (t >= by) up_to += other;
    }
    return up_to - x;
}

/* Arguments of the sorting of n visits, with n_page pages at most and n_block visiting blocks a
 * team. */
struct visit_order {
    const struct op_lane_visit *list; /* [n] on the device */
    uint32_t n, n_page, n_block;
};

sac_status visit_put_in_order(struct cuda_device *d, const struct visit_order *v,
                              const struct choose_folds &folds, const struct page_geom *geom);

#endif
