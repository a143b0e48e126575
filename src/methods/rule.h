/* rule.h: what methods with a budget share: a budget that covers the whole context means dense
 * attention, and so do the first layers if a method wants it; scores become softmax shares; a score
 * that is NaN or infinite makes its head dense; sinks and recent tokens are read and not counted;
 * then the best of the rest are taken, the earlier of two equal ones first (pick.h). */
#ifndef SAC_METHODS_RULE_H
#define SAC_METHODS_RULE_H

#include "methods/select_scratch.h"

/* The budget in tokens; 0: the lane is dense, because the budget covers the whole context, or the
 * layer is one of the first n_dense. */
uint32_t rule_budget(struct method_pick *out, const struct method_lane *l,
                     struct param_budget budget, uint32_t n_dense);
/* Turns the first n scores of each query head, r->score, into softmax shares, mean over the heads,
 * in r->vote. False: a score is not finite, and the lane is dense. */
bool rule_shares(struct method_pick *out, const struct method_lane *l,
                 const struct select_scratch *r, uint32_t n);
/* Marks sinks and recent tokens, and of the others those with the largest shares in r->vote.
 * Overwrites r->score. */
void rule_tokens(struct method_pick *out, const struct method_lane *l,
                 const struct select_scratch *r, uint32_t budget, uint32_t sink, uint32_t recent);

#endif
