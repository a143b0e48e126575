/* sparq.c: tokens scored by the query's largest channels alone, SparQ (Ribar et al., ICML 2024).
 *
 * The r channels with the largest sum over the group of |q| score all keys. Their softmax has the
 * temperature sqrt(d * |q_r| / |q|) instead of sqrt(d), so that it is as sharp as the full one on
 * average. Tokens are taken by the mean of the heads' shares, after the most recent ones. Not here:
 * the paper's mean value for the tokens left out, whose weight depends on the softmax denominator
 * of the tokens read, and its second copy of the keys by channel: whole keys are read, and counted
 * so. */
#include "methods/pick.h"
#include "methods/rule.h"

#include <assert.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens selected, in addition to those always read")              \
    P(COUNT, rank, "16", 1, 512, "channels used for scoring")                                      \
    P(TOKENS, recent, "64", 0, 4096, "most recent tokens, always read")
METHOD_PARAMS(sparq, PARAMS)

/* Puts into r->qa the queries' `rank` channels with the largest sum of |q| over the group, and 0
 * for the others, divided by the square root of the share of each query's 1-norm that they hold. */
static void choose_channels(const struct select_scratch *r, const struct method_lane *l,
                            uint32_t rank)
{
    const uint32_t d = l->shape->geom->head_dim, group = l->shape->group;
    float weight[HEAD_DIM_MAX];
    for (uint32_t c = 0; c < d; c++) {
        weight[c] = 0;
        for (uint32_t g = 0; g < group; g++) weight[c] += fabsf(l->q[(size_t)g * d + c]);
    }
    struct pick_cut cut = pick_best(weight, d, rank);
    for (size_t i = 0; i < (size_t)group * d; i++) r->qa[i] = 0;
    for (uint32_t c = 0; c < d; c++)
        if (pick_takes(&cut, weight[c]))
            for (uint32_t g = 0; g < group; g++) r->qa[(size_t)g * d + c] = l->q[(size_t)g * d + c];
    for (uint32_t g = 0; g < group; g++) {
        float kept = 0, all = 0;
        for (uint32_t c = 0; c < d; c++) {
            kept += fabsf(r->qa[(size_t)g * d + c]);
            all += fabsf(l->q[(size_t)g * d + c]);
        }
        const float sharpen = kept > 0 ? sqrtf(all / kept) : 1;
        for (uint32_t c = 0; c < d; c++) r->qa[(size_t)g * d + c] *= sharpen;
    }
}

static void sparq_select(const struct method_lane *l, struct method_pick *out)
{
    const struct sparq_param *set = l->param;
    const uint32_t budget = rule_budget(out, l, set->budget, 0), d = l->shape->geom->head_dim;
    const uint32_t rank = min_u32(set->rank, d);
    struct method_lane narrow = *l;
    struct select_scratch r;
    assert(d > 0);
    if (budget == 0) return;
    select_scratch_make(&r, l->shape, true, l->scratch);
    choose_channels(&r, l, rank);
    narrow.q = r.qa;
    pick_all_logits(r.score, r.stride, &narrow);
    if (!rule_shares(out, l, &r, pick_page_count(l) * PAGE_TOK)) return;
    rule_tokens(out, l, &r, budget, 0, set->recent);
}

static const struct method_decode hooks = {
    .scratch_bytes = select_scratch_token_bytes,
    .select = sparq_select,
};

static const sac_method_deviation deviations[] = {
    {"unread tokens count as their mean value, with the mass that the scores predict",
     "they do not count", "not implemented so far", NULL},
    {"a second copy of the keys, stored by channel, so that only the selected channels are read",
     "whole keys are read for scoring", "the copy would take half of the cache's memory again",
     "no faster than exact scores"},
};

const struct method sparq_method = {
    METHOD_DECODE(sparq, "tokens scored by the largest channels of the query"),
    .paper = "Ribar et al., SparQ Attention: Bandwidth-Efficient LLM Inference, arXiv 2312.04985",
    .about = "Scores all keys by the few channels in which the query is largest, then reads the "
             "best tokens in full. All tokens stay in the cache, so a question asked late can "
             "still be answered. In the paper the scan reads a part of every key at every step; "
             "here it reads whole keys, so it is no faster than an exact scan.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.part = "recent=16", .n_forced = 15},
    .meets_segments = true,
    .decode = &hooks,
};
