/* trace.cuh: what the files of op_trace share (private to this folder): the call as kernels get it,
 * and attention in fixed point.
 *
 * A line is a column (one key for all rows) or a diagonal, called slash (one distance from the
 * row). Line x of a kind is key x or distance x. */
#ifndef SAC_OPS_CUDA_TRACE_CUH
#define SAC_OPS_CUDA_TRACE_CUH

#include "ops/cuda/block.cuh"
#include "ops/cuda/list.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/plans.h"

enum trace_kind { TRACE_COLUMN, TRACE_SLASH, TRACE_KINDS };

/* Attention in fixed point, in units of 1 / TRACE_ONE: sums of it do not depend on their order. */
typedef unsigned long long trace_sum;
#define TRACE_ONE 0x1p40f

struct trace_rows { /* on the device */
    uint32_t n;
    const uint32_t *at;
};

struct trace_call {
    struct op_trace op; /* geom is not valid; rows and sizes are on the device */
    struct rows_pages pages;
    uint32_t group, n; /* n: positions before the run's end */
    uint32_t n_span, n_row16;
    size_t stride;       /* tokens of a row of the buffers */
    trace_sum *sum;      /* [n_head][kinds][stride] over the judging rows */
    trace_sum *held;     /* [n_size][n_head], what the lines of a pattern hold */
    struct exp_sum *top; /* [n_head][n_span][n_row16] */
    float *lse;          /* [n_head][n_row16], base 2 */
    float *rank;         /* [n_head][kinds][stride], sums over the choosing rows */
    uint32_t *line;      /* [n_head][stride], lines of a round */
    uint32_t *taken;     /* [n_size][n_head][kinds][stride / 32], bits */
    uint16_t *weight;    /* [n_head][rows][stride], bf16; 0 beyond the row's position */
};

static __device__ inline uint16_t *trace_weight(const struct trace_call &c, uint32_t head,
                                                uint32_t n_row, uint32_t row)
{
    return c.weight + ((size_t)head * n_row + row) * c.stride;
}

static __device__ inline trace_sum *trace_sums(const struct trace_call &c, uint32_t head,
                                               uint32_t kind)
{
    return c.sum + ((size_t)head * TRACE_KINDS + kind) * c.stride;
}

static __device__ inline uint32_t *trace_taken(const struct trace_call &c, uint32_t size,
                                               uint32_t head, uint32_t kind)
{
    const size_t at = ((size_t)size * c.op.rows.n_head + head) * TRACE_KINDS + kind;
    return c.taken + at * (c.stride / 32);
}

static __device__ inline trace_sum trace_whole(uint16_t bf16)
{
    return (trace_sum)(__uint_as_float((uint32_t)bf16 << 16) * TRACE_ONE);
}

static __device__ inline bool trace_failed(const struct trace_call &c, uint32_t head)
{
    return list_failed(c.op.lists, head / c.group);
}

static __device__ inline bool trace_has(const uint32_t *bits, uint32_t i)
{
    return bits[i / 32] >> i % 32 & 1;
}

/* What `held` holds for a head of the greedy rule: attention held by its lines, cells of these, all
 * attention, and whether the goal was reached. */
enum trace_result_kind { TRACE_HELD, TRACE_CELLS, TRACE_WHOLE, TRACE_REACHED };

static __device__ inline trace_sum *trace_result(const struct trace_call &c,
                                                 enum trace_result_kind what, uint32_t head)
{
    return c.held + (size_t)what * c.op.rows.n_head + head;
}

/* In greedy.cu: sums of the attention of heads that share lines, and the greedy rule. */
sac_status trace_join(struct cuda_device *d, const struct trace_call *c,
                      const struct trace_rows *rows);
sac_status trace_greedy(struct cuda_device *d, const struct trace_call *c,
                        const struct trace_rows *rows);

/* In pooled.cu: whole blocks, by lines or by pooled scores, and their lists. */
sac_status trace_pooled(struct cuda_device *d, const struct trace_call *c,
                        const struct page_geom *geom);

#endif
