/* topk.c: the tokens, or pages, that exact scores choose: the accuracy ceiling of all methods that
 * select, and of no use for speed, since it reads every key to choose.
 *
 * One set for a KV head: a token's value is its softmax share, each query head with its own sum
 * over all tokens, mean over the heads of the group. A page's value is that of its tokens. */
#include "methods/pick.h"
#include "methods/rule.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens that are chosen, beside those always read")               \
    P(CHOICE, unit, "token", "token|page", "what is chosen")                                       \
    P(TOKENS, sink, "4", 0, 4096, "first tokens that are always read (unit=token)")                \
    P(TOKENS, recent, "32", 0, 4096, "newest tokens that are always read (unit=token)")
METHOD_PARAMS(topk, PARAMS)

static void choose_pages(const struct method_lane *l, const struct room *r, uint32_t budget,
                         struct method_pick *out)
{
    const uint32_t n_page = pick_page_count(l);
    for (uint32_t p = 0; p < n_page; p++) {
        float sum = 0;
        for (uint32_t t = 0; t < PAGE_TOK; t++) sum += r->vote[p * PAGE_TOK + t];
        r->score[p] = sum;
    }
    rule_pages(out, l, r->score, budget);
}

static void topk_select(const struct method_lane *l, struct method_pick *out)
{
    const struct topk_param *set = l->param;
    const uint32_t budget = rule_budget(out, l, set->budget, 0);
    struct room r;
    if (budget == 0) return;
    room_make(&r, l->shape, true, l->scratch);
    pick_all_logits(r.score, r.stride, l, r.k);
    if (!rule_shares(out, l, &r, pick_page_count(l) * PAGE_TOK)) return;
    if (set->unit > 0)
        choose_pages(l, &r, budget, out);
    else
        rule_tokens(out, l, &r, budget, set->sink, set->recent);
}

static const struct method_decode hooks = {
    .scratch_bytes = room_token_bytes,
    .select = topk_select,
};

const struct method topk_method = {
    .kind = "decode",
    .name = "topk",
    .summary = "the tokens with the highest exact scores: the ceiling, not a speed-up",
    .about =
        "Scores every key exactly and reads the best tokens (or pages, unit=page). No method that "
        "selects as many can keep more of the attention's mass, so it tells how much of a loss is "
        "the budget's and how much the choice's. It reads all keys at every step.",
    .params = &topk_params,
    .chooses = true,
    .token_grain = true,
    .facts = {.n_forced = 4 + 31},
    .meets_segments = true,
    .decode = &hooks,
};
