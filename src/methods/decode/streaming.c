/* streaming.c: attention sinks and a sliding window, StreamingLLM (Xiao et al., ICLR 2024).
 *
 * The paper drops the other tokens and renumbers the kept ones; here the others are only not read,
 * and every key keeps its original position, as in most ports: the answer is the same while the
 * text fits the trained context. */
#include "methods/batch.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens read, sinks included")                                    \
    P(TOKENS, sink, "4", 0, 4096, "first tokens, always read")
METHOD_PARAMS(streaming, PARAMS)

static void streaming_choose(const struct method_batch *b)
{
    batch_budgets(b, 0);
    batch_window(b, ((const struct streaming_param *)b->lane[0].param)->sink);
}

static const sac_method_deviation deviations[] = {
    {"kept tokens are renumbered as if they were contiguous",
     "every key keeps its original position",
     "the answer is the same while the text fits the trained context, and other methods keep "
     "positions too",
     NULL},
    {"the tokens between sinks and window are dropped", "they stay in the cache but are not read",
     "a sequence can change its method", "none on answers, and no memory is freed"},
    {"four sinks and a window of 512 to 2,000", "the window is what the budget leaves",
     "budgets are compared across methods", NULL},
};

const struct method streaming_method = {
    METHOD_DECODE(streaming, "attention sinks and a sliding window"),
    .paper =
        "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453",
    .about =
        "Reads the attention sinks, on which heads put the mass that they have no use for, and the "
        "most recent tokens. The cost of a step is constant. Nothing between sinks and window can "
        "be found. It is a baseline, and sufficient only for heads with local attention.",
    METHOD_DEVIATIONS(deviations),
    .fixed = true,
    .token_grain = true,
    .facts = {.budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER, .blind = true},
    .meets_segments = true,
    .decode = &(const struct method_decode){.choose = streaming_choose},
};
