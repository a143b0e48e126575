/* topk.c: the tokens, or pages, with the best exact scores: the upper bound on accuracy of all
 * methods that select, and useless for speed, since it reads every key to select.
 *
 * One set per KV head: a token's value is its softmax share, each query head with its own sum over
 * all tokens, mean over the heads of the group. A page's value is that of its tokens. */
#include "methods/batch.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens selected, in addition to those always read")              \
    P(CHOICE, unit, "token", "token|page", "what is selected")                                     \
    P(TOKENS, sink, "4", 0, 4096, "first tokens, always read (unit=token)")                        \
    P(TOKENS, recent, "32", 0, 4096, "most recent tokens, always read (unit=token)")
METHOD_PARAMS(topk, PARAMS)

static void topk_choose(const struct method_batch *b)
{
    const struct topk_param *set = b->lane[0].param;
    batch_budgets(b, 0);
    batch_logits(b);
    batch_vote(b, BATCH_TOKEN);
    if (set->unit > 0) {
        batch_sum_pages(b);
        batch_take(b, &(struct batch_ends){.item = BATCH_PAGE}, BATCH_BY_SCORE);
    } else {
        batch_take(b, &(struct batch_ends){set->sink, set->recent, BATCH_TOKEN}, BATCH_BY_VOTE);
    }
}

const struct method topk_method = {
    METHOD_DECODE(
        topk, "tokens with the highest exact scores: an upper bound for selection, not a speed-up"),
    .about =
        "Scores every key exactly and reads the best tokens (or pages, unit=page). No method that "
        "selects as many can keep more of the attention mass, so it separates the loss due to the "
        "budget from the loss due to the selection. It reads all keys at every step.",
    .token_grain = true,
    .facts = {.n_forced = 4 + 31},
    .meets_segments = true,
    .decode = &(const struct method_decode){.scratch_bytes = select_scratch_token_bytes,
                                            .choose = topk_choose},
};
