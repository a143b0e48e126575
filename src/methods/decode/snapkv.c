/* snapkv.c: the prompt is cut down once, to the tokens that its last rows look at, SnapKV (Li et
 * al., NeurIPS 2024).
 *
 * As in the authors' code: softmax shares of the window's rows over the whole prompt, summed over
 * the rows, pooled along the positions, the best kept with the window; every later token is read.
 * Decided here: the heads of a group have one set, by the mean of their shares (their code expands
 * keys to all query heads; a measured move to KV heads changed six tasks by 0.3 points), and the
 * choice is made at the first decode row, which gives the first answer token the compressed prompt
 * too. */
#include "methods/compress.h"
#include "methods/pick.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens of the prompt that each head keeps, window included")     \
    COMPRESS_POOLED_PARAMS(P)
PARAM_TABLE(snapkv, struct compress_param, PARAMS)

static const struct compress_policy policy = {.vote = compress_pooled};

static const struct method_decode hooks = {
    COMPRESS_WINDOW_HOOKS,
    .family = &policy,
};

static const sac_method_deviation deviations[] = {
    COMPRESS_DEVIATIONS,
};

const struct method snapkv_method = {
    METHOD_DECODE(snapkv, "the tokens of the prompt that its last rows look at, for good"),
    .paper = "Li et al., SnapKV: LLM Knows What You are Looking for Before Generation, "
             "arXiv 2404.14469",
    .about =
        "Drops most of the prompt once, behind its last row, and gives the pages back. Steps cost "
        "what is kept. The choice serves the question that stands at the prompt's end: what a "
        "later question asks for, or a question that stood first, may be gone, and a late needle "
        "is never found.",
    METHOD_DEVIATIONS(deviations),
    COMPRESS_WINDOW_TRAITS,
    .facts = {.budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
