/* experts.h: mixtures of experts on the host: which experts a row goes through, their products, and
 * the sum of them.
 *
 * A row's experts are the `n_used` with the largest router logits; of equal ones the first, and NaN
 * is below all. They are kept in ascending order, in which their results are added up. A row with
 * one of its experts is a pair. Pairs are numbered by expert, then by row, so that an expert's rows
 * lie together and its weights are read once for all of them.
 *
 * As for the table of operations (ops.h): work is split over `pool`, nothing is allocated, and a
 * row's bits depend on the row and its kind alone. */
#ifndef SAC_OPS_EXPERTS_H
#define SAC_OPS_EXPERTS_H

#include "ops/ops.h"

/* A share is exp(logit) / the sum of exp over all logits, then divided by the sum of the shares of
 * the row's experts if `norm`, then times `scale`. A NaN among a row's logits makes all its shares
 * NaN. */
struct experts_route {
    const float *logit; /* [n_row, n_expert], stride logit_stride */
    size_t logit_stride;
    uint32_t n_row, n_expert, n_used;
    bool norm;
    float scale;
    uint32_t *expert; /* [n_row, n_used] out, ascending */
    float *share;     /* [n_row, n_used] out: shares of these experts */
    uint32_t *pair;   /* [n_row, n_used] out: pair numbers */
    uint32_t *row;    /* [n_row * n_used] out: row of each pair */
    uint32_t *first;  /* [n_expert + 1] out: pairs of expert i are first[i] .. first[i + 1] - 1 */
};
void experts_route(struct workers *pool, const struct experts_route *op);

/* out[pair] = down (glu(gate x, up x)) of the pair's expert and row. */
struct experts_multiply {
    const struct ops *ops; /* the table that provides the linear layers */
    const float *x;        /* [n_row, n_embd], stride n_embd */
    uint32_t n_row, n_embd, n_ff, n_expert, n_used;
    enum row_kind kind;
    enum linear_epilogue glu;
    const struct weight *gate, *up; /* [n_expert * n_ff, n_embd]; n_ff a multiple of 16 */
    const struct weight *down;      /* [n_expert * n_embd, n_ff]; n_embd likewise */
    const uint32_t *row, *first;    /* of experts_route */
    float *hidden;                  /* [n_row * n_used, n_ff] scratch */
    float *out;                     /* [n_row * n_used, n_embd] */
    void *scratch;                  /* aligned to 64 */
    size_t scratch_bytes;
};
void experts_multiply(struct workers *pool, const struct experts_multiply *op);
/* Bytes of scratch for calls with at most op->n_row rows. */
size_t experts_scratch(const struct ops *ops, uint32_t n_worker, const struct experts_multiply *op);

/* y += share[0] * out[pair[0]] + share[1] * out[pair[1]] + ..., in this order, then + sigmoid(gate)
 * * shared, if there is a shared expert. */
struct experts_mix {
    float *y; /* [n_row, n_embd] */
    uint32_t n_row, n_embd, n_used;
    const float *share;   /* [n_row, n_used] */
    const uint32_t *pair; /* [n_row, n_used] */
    const float *out;     /* [n_row * n_used, n_embd] */
    const float *shared;  /* [n_row, n_embd] or NULL */
    const float *gate;    /* [n_row], stride gate_stride; with `shared` */
    size_t gate_stride;
};
void experts_mix(struct workers *pool, const struct experts_mix *op);

#endif
