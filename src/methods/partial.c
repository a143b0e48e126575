/* partial.c: see the header. The softmax of a part, in the order of the visits, with a maximum that
 * follows: what was summed before is scaled when a larger logit comes. */
#include "methods/partial.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void partial_begin(struct partial *p, const struct method_lane *l, struct method_pick *out)
{
    const uint32_t group = l->shape->group;
    assert(out->rest_value && group <= METHOD_GROUP_MAX);
    p->value = out->rest_value;
    memset(p->value, 0, (size_t)group * l->shape->geom->head_dim * sizeof *p->value);
    for (uint32_t g = 0; g < group; g++) {
        p->most[g] = -INFINITY;
        p->sum[g] = 0;
    }
}

static void scale(float *x, uint32_t n, float by)
{
    for (uint32_t i = 0; i < n; i++) x[i] *= by;
}

void partial_add(struct partial *p, const struct method_lane *l, const float *logit, const float *v)
{
    const uint32_t d = l->shape->geom->head_dim;
    for (uint32_t g = 0; g < l->shape->group; g++, logit += PAGE_TOK) {
        float *value = p->value + (size_t)g * d, most = p->most[g];
        for (uint32_t t = 0; t < PAGE_TOK; t++) most = fmaxf(most, logit[t]);
        if (most > p->most[g]) {
            const float by = expf(p->most[g] - most);
            p->most[g] = most;
            p->sum[g] *= by;
            scale(value, d, by);
        }
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const float weight = expf(logit[t] - most), *row = v + (size_t)t * d;
            p->sum[g] += weight;
            for (uint32_t c = 0; c < d; c++) value[c] += weight * row[c];
        }
    }
}

void partial_end(const struct partial *p, const struct method_lane *l, struct method_pick *out)
{
    const uint32_t d = l->shape->geom->head_dim;
    for (uint32_t g = 0; g < l->shape->group; g++) {
        if (p->sum[g] == 0) continue;
        out->rest_log[g] = p->most[g] + logf(p->sum[g]);
        scale(out->rest_value + (size_t)g * d, d, 1 / p->sum[g]);
    }
    out->attended = true;
}
