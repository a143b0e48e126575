/* rule.c: see the header. */
#include "methods/rule.h"

#include "methods/method_spec.h"
#include "methods/pick.h"

#include <assert.h>

uint32_t rule_budget(struct method_pick *out, const struct method_lane *l,
                     struct param_budget budget, uint32_t n_dense)
{
    const uint32_t n = method_spec_budget(budget, l->pos + 1);
    assert(n > 0);
    if (n <= l->pos && l->layer >= n_dense) return n;
    pick_dense(out);
    return 0;
}

bool rule_shares(struct method_pick *out, const struct method_lane *l,
                 const struct select_scratch *r, uint32_t n)
{
    assert(n <= r->stride);
    if (select_scratch_vote(r, l, n)) return true;
    pick_not_finite(out);
    return false;
}

void rule_tokens(struct method_pick *out, const struct method_lane *l,
                 const struct select_scratch *r, uint32_t budget, uint32_t sink, uint32_t recent)
{
    pick_ends(out, l, sink, recent);
    pick_tokens(out, l, r->vote, (uint32_t *)r->score, budget);
}
