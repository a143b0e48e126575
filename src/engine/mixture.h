/* mixture.h: the feed-forward part of a layer that is a mixture of experts, on a CPU. */
#ifndef SAC_ENGINE_MIXTURE_H
#define SAC_ENGINE_MIXTURE_H

#include "base/mem.h"
#include "ops/experts.h"

/* Scratch of a step. A pair is a row with one of its experts (ops/experts.h). */
struct mixture {
    float *x;     /* [n_row_max, n_embd] the rows, normalised */
    float *logit; /* [n_row_max, n_expert, and one for the shared expert's gate] */
    float *share; /* [n_row_max, n_used], and so: */
    uint32_t *expert, *pair;
    uint32_t *row, *first; /* [n_row_max * n_used], [n_expert + 1] */
    float *hidden, *out;   /* [n_row_max * n_used, expert's n_ff], [..., n_embd] */
    float *shared;         /* [n_row_max, n_embd] of the shared expert */
    void *ops;             /* scratch of experts_multiply */
    size_t ops_bytes;
};

/* Takes e->scratch.mixture. */
void mixture_plan(sac_engine *e, struct arena *a);

/* Adds what the experts of a layer make of the batch's rows to the residual stream. Counts the
 * weights of every expert that a row has chosen, once for the decode rows and once for the prompt's
 * rows. */
void mixture_run(sac_engine *e, uint32_t layer);

#endif
