/* rule.h: a method is a score and a rule. This header has what the rules of methods with a budget
 * share: a budget that covers the whole context reads everything, and so do the first layers if a
 * method wants it; scores become softmax shares; a score that is NaN or infinite makes its head
 * dense; the first and recent tokens are read first and not counted; then the best of the rest are
 * taken, the earlier of two equal ones first (pick.h). */
#ifndef SAC_METHODS_RULE_H
#define SAC_METHODS_RULE_H

#include "methods/room.h"

/* Tokens that fit the budget; 0: everything is read, because it covers the whole context, or the
 * layer is one of the first n_dense. */
uint32_t rule_budget(struct method_pick *out, const struct method_lane *l,
                     struct param_budget budget, uint32_t n_dense);
/* The first n scores of each query head, r->score, as shares of a softmax, mean over the heads, in
 * r->vote. False: one is not finite, and everything is read. */
bool rule_shares(struct method_pick *out, const struct method_lane *l, const struct room *r,
                 uint32_t n);
/* By the tokens' shares in r->vote: the ends, and the best of the others. Uses r->score. */
void rule_tokens(struct method_pick *out, const struct method_lane *l, const struct room *r,
                 uint32_t budget, uint32_t sink, uint32_t recent);

#endif
