/* visit.cuh: what the two launches of visits have in common (private to this folder):
 * visit_order.cu puts pages in order and begins the first round, visit.cu visits them. */
#ifndef SAC_OPS_CUDA_VISIT_CUH
#define SAC_OPS_CUDA_VISIT_CUH

#include "ops/cuda/choose.cuh"

#define VISIT_WARPS  8u                /* of a block that visits, each of which takes a page */
#define VISIT_MOST   (4 * VISIT_WARPS) /* places that it takes together, at most */
#define VISIT_OTHERS 4u                /* times as many blocks as those of a team */

/* What is visited at places from .. end - 1, and the own page before all. */
struct visit_round {
    uint32_t from, end;
};

/* Round i. */
static __device__ inline struct visit_round round_of(const struct op_lane_visit *op, uint32_t i)
{
    const uint32_t first = op->state->plan;
    const struct visit_round r = {i == 0 ? 0 : min(first << (i - 1), op->n_page),
                                  min(first << i, op->n_page)};
    return r;
}

/* Places of a piece: few, so that a round keeps all blocks busy, n_block of the team and, as most
 * teams are over soon, behind the first one others; and else many. No result depends on it. */
static __device__ inline uint32_t piece_of(const struct visit_round &r, uint32_t n_block)
{
    const uint32_t by = n_block * (r.from > 0 ? VISIT_OTHERS : 1) * VISIT_WARPS;
    const uint32_t n = (r.end - r.from + by - 1) / by;
    return min(max(n, 1u) * VISIT_WARPS, VISIT_MOST);
}

/* A round of a team without pages has one, for its own. */
static __device__ inline uint32_t count_pieces(const struct visit_round &r, uint32_t n_block)
{
    const uint32_t each = piece_of(r, n_block);
    return max((r.end - r.from + each - 1) / each, 1u);
}

/* n_left of a team has its round, and how many pieces of that nobody has taken: more than OPEN_NONE
 * if there are any, which taking makes fewer, whether there are or not. */
#define OPEN_ROUND (1u << 20)
#define OPEN_NONE  (1u << 19)
#define OPEN_OVER  (~0u / OPEN_ROUND) /* a round that does not come */

/* Others see what was written before. */
static __device__ inline void open_round(const struct op_lane_visit *op, uint32_t i,
                                         uint32_t n_block)
{
    const uint32_t n = i == OPEN_OVER ? 0 : count_pieces(round_of(op, i), n_block);
    op->state->tally = 0;
    __threadfence();
    *(volatile uint32_t *)&op->state->n_left = i * OPEN_ROUND + OPEN_NONE + n;
}

/* Of a query head and key. */
static __device__ inline float visit_logit(const struct op_lane_visit &op, float dot)
{
    const float x = dot * op.scale;
    return op.softcap > 0 ? op.softcap * tanhf(x / op.softcap) : x;
}

/* The sum of x of the threads of a warp before this one. */
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

/* What puts pages of n visits in order, of n_page at most, for n_block blocks of each team. */
struct visit_order {
    const struct op_lane_visit *list; /* [n] on the device */
    uint32_t n, n_page, n_block;
};

sac_status visit_put_in_order(struct cuda_device *d, const struct visit_order *v,
                              const struct choose_folds &folds, const struct page_geom *geom);

#endif
