/* moe.h: the feed-forward part of a layer that is a mixture of experts (MoE), on a CPU. */
#ifndef SAC_ENGINE_MOE_H
#define SAC_ENGINE_MOE_H

#include "base/mem.h"
#include "ops/experts.h"

/* Scratch of a step. A pair is a row and one of its experts (ops/experts.h). */
struct moe {
    float *x;     /* [n_row_max, n_embd] normalised rows */
    float *logit; /* [n_row_max, n_expert, and the shared expert's gate] */
    float *share; /* [n_row_max, n_used] weights of a row's experts */
    uint32_t *expert, *pair;
    uint32_t *row, *first; /* [n_row_max * n_used], [n_expert + 1] */
    float *hidden, *out;   /* [n_row_max * n_used, expert's n_ff], [..., n_embd] */
    float *shared;         /* [n_row_max, n_embd] of the shared expert */
    void *ops;             /* scratch of experts_multiply */
    size_t ops_bytes;
};

/* Lays out e->scratch.moe. */
void moe_plan(sac_engine *e, struct arena *a);

/* Adds the output of a layer's experts for the batch's rows to the residual stream. Counts the
 * weights of every expert that has a row, once for decode rows and once for prompt rows. */
void moe_run(sac_engine *e, uint32_t layer);

#endif
