/* snapkv.c: the prompt is reduced once, to the tokens that its last rows attend to, SnapKV (Li et
 * al., NeurIPS 2024).
 *
 * As in the authors' code: softmax shares of the window's rows over the whole prompt, summed over
 * the rows, pooled along the positions, the best kept with the window; every later token is read.
 * Decided here: the heads of a group have one set, by the mean of their shares (their code expands
 * keys to all query heads; a measured move to KV heads changed six tasks by 0.3 points), and the
 * selection is made at the first decode row, so the first answer token sees the compressed prompt,
 * too. */
#include "methods/compress.h"
#include "methods/pick.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "prompt tokens kept per head, observation window included")       \
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
    METHOD_DECODE(snapkv,
                  "prompt tokens that the last prompt tokens attend to; the rest is evicted"),
    .paper = "Li et al., SnapKV: LLM Knows What You are Looking for Before Generation, "
             "arXiv 2404.14469",
    .about = "Evicts most of the prompt once, after its last token, and frees the pages. A decode "
             "step costs only what is kept. The selection serves the question at the end of the "
             "prompt. What a later question asks for, or a question at the start of the prompt, "
             "may have been evicted and cannot be read again.",
    METHOD_DEVIATIONS(deviations),
    COMPRESS_WINDOW_TRAITS,
    .facts = {.budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
