/* blend_ref.c: weights of a page's tokens from given logits, and the weighted sums of its values,
 * in plain C. */
#include "ops/ops.h"

#include <math.h>

static void raise_ref(const struct op_raise *op)
{
    for (uint32_t g = 0; g < op->group; g++) {
        const float *logit = op->logit + (size_t)g * PAGE_TOK;
        float *weight = op->weight + (size_t)g * PAGE_TOK, most = -INFINITY, sum = 0;
        for (uint32_t t = 0; t < op->n_tok; t++) most = fmaxf(most, logit[t]);
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            weight[t] = t < op->n_tok ? expf(logit[t] - (most == -INFINITY ? 0 : most)) : 0;
            sum += weight[t];
        }
        op->most[g] = most;
        op->sum[g] = sum;
    }
}

static void blend_ref(const struct op_blend *op)
{
    const uint32_t d = op->geom->head_dim;
    float v[PAGE_TOK * HEAD_DIM_MAX];
    page_read(NULL, v, op->geom, op->page, PAGE_SEALED, PAGE_TOK);
    for (uint32_t g = 0; g < op->group; g++) {
        float *value = op->value + (size_t)g * d;
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const float weight = op->weight[(size_t)g * PAGE_TOK + t] * op->by[g];
            for (uint32_t c = 0; c < d; c++) value[c] += weight * v[(size_t)t * d + c];
        }
    }
}

void ops_fill_ref_blend(struct ops *o)
{
    o->raise = raise_ref;
    o->blend = blend_ref;
}
