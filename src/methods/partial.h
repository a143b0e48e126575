/* partial.h: attention over pages that a choice has to read anyway: it keeps the sums, and
 * attention need not read the pages again. */
#ifndef SAC_METHODS_PARTIAL_H
#define SAC_METHODS_PARTIAL_H

#include "methods/method.h"

/* Of each query head: the largest logit so far, the sum of exp(logit - most), and the same sum over
 * the values [group, head_dim], which is the pick's memory. */
struct partial {
    float most[METHOD_GROUP_MAX], sum[METHOD_GROUP_MAX];
    float *value;
};

void partial_begin(struct partial *p, const struct method_lane *l, struct method_pick *out);
/* A page's logits [group, PAGE_TOK] and values [PAGE_TOK, head_dim]. */
void partial_add(struct partial *p, const struct method_lane *l, const float *logit,
                 const float *v);
/* The sums become the pick's entry for what is marked. Nothing was added: there is none. */
void partial_end(const struct partial *p, const struct method_lane *l, struct method_pick *out);

#endif
