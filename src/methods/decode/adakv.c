/* adakv.c: SnapKV with more tokens for heads whose votes are spread, AdaKV (Feng et al., 2024).
 *
 * The heads of a layer compete for their common budget: the best votes of all heads together are
 * counted, head h gets c_h of them and keeps (1 - alpha) c_h + alpha b, so that every head keeps
 * some. Decided here: the authors' code rounds each head separately and loses tokens (2, 5, 1 of
 * 9); here the largest remainders are rounded up and the layer keeps exactly its budget. */
#include "methods/compress.h"
#include "methods/pick.h"

#include <assert.h>

#define HEAD_MAX 256u

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1,                                                                   \
      "prompt tokens kept per head on average, observation window included")                       \
    COMPRESS_POOLED_PARAMS(P)                                                                      \
    P(SHARE, alpha, "0.2", "part of the budget that is shared equally among heads")
PARAM_TABLE(adakv, struct compress_param, PARAMS)

/* c_h: how many of the b n_head largest votes of the layer are head h's. */
static void count_in_top(uint32_t *n_top, const struct compress_votes *v, uint32_t n_head)
{
    struct pick_cut cut = pick_best(v->all, n_head * v->n_tok, n_head * v->n_keep);
    for (uint32_t h = 0; h < n_head; h++) {
        n_top[h] = 0;
        for (uint32_t t = 0; t < v->n_tok; t++)
            n_top[h] += pick_takes(&cut, v->all[(size_t)h * v->n_tok + t]);
    }
}

/* The lane's part of the layer's budget, by the method of largest remainders; at least 1. */
static uint32_t share_budget(const struct compress_votes *v)
{
    const struct method_lane *l = v->lane;
    const struct compress_param *set = l->param;
    const uint32_t n_head = l->shape->geom->n_kv_head, me = l->kv_head;
    uint32_t n_top[HEAD_MAX], left = n_head * v->n_keep, n_before = 0;
    double share[HEAD_MAX] = {0};
    assert(n_head <= HEAD_MAX && me < n_head);
    count_in_top(n_top, v, n_head);
    for (uint32_t h = 0; h < n_head; h++) {
        share[h] = (1 - set->alpha) * n_top[h] + set->alpha * v->n_keep;
        left -= (uint32_t)share[h];
    }
    const double rest = share[me] - floor(share[me]);
    for (uint32_t h = 0; h < n_head; h++) {
        const double other = share[h] - floor(share[h]);
        n_before += other > rest || (other == rest && h < me);
    }
    const uint32_t keep = (uint32_t)share[me] + (n_before < left);
    return keep > 0 ? keep : 1;
}

static const struct compress_policy policy = {
    .every_head = true, .vote = compress_pooled, .keep = share_budget};

static const struct method_decode hooks = {
    COMPRESS_WINDOW_HOOKS,
    .family = &policy,
};

static const sac_method_deviation deviations[] = {
    {"each head's share is rounded independently", "shares are rounded by largest remainder",
     "a layer then keeps exactly its budget", "one of nine tokens in a small example"},
    COMPRESS_DEVIATIONS,
};

const struct method adakv_method = {
    METHOD_DECODE(adakv, "SnapKV with a layer's budget divided among its heads by their votes"),
    .paper = "Feng et al., Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for "
             "Efficient LLM Inference, arXiv 2407.11550",
    .about = "A head that attends to few tokens gives up part of its budget to heads of the same "
             "layer that attend to many. It has SnapKV's limits: tokens are selected once, for the "
             "question at the end of the prompt.",
    METHOD_DEVIATIONS(deviations),
    COMPRESS_WINDOW_TRAITS,
    .facts = {.budget = METHOD_BUDGET_LAYER, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
