/* blend_ref.c: attention over one page under given logits, in plain C. */
#include "ops/ops.h"

#include <math.h>

static void blend_ref(const struct op_blend *op)
{
    const uint32_t d = op->geom->head_dim;
    float v[PAGE_TOK * 512];
    if (op->page) page_read(NULL, v, op->geom, op->page, PAGE_SEALED, PAGE_TOK);
    for (uint32_t g = 0; g < op->group; g++) {
        const float *logit = op->logit + (size_t)g * PAGE_TOK;
        float *value = op->value + (size_t)g * d, most = -INFINITY, sum = 0;
        for (uint32_t t = 0; t < op->n_tok; t++) most = fmaxf(most, logit[t]);
        for (uint32_t c = 0; c < d && op->page; c++) value[c] = 0;
        for (uint32_t t = 0; t < op->n_tok; t++) {
            const float weight = expf(logit[t] - (most == -INFINITY ? 0 : most));
            sum += weight;
            for (uint32_t c = 0; c < d && op->page; c++) value[c] += weight * v[(size_t)t * d + c];
        }
        op->most[g] = most;
        op->sum[g] = sum;
    }
}

void ops_fill_ref_blend(struct ops *o)
{
    o->blend = blend_ref;
}
