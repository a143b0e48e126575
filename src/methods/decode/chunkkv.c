/* chunkkv.c: SnapKV that keeps whole chunks of neighbouring tokens, ChunkKV (Liu et al., 2025).
 *
 * A chunk's vote is the sum of its tokens' softmax shares by the window's rows, and each of its
 * tokens has that vote. The last chunk before the window may be short, and one chunk on the cut may
 * be kept in part, its first tokens, so that a head keeps exactly its budget. */
#include "methods/compress.h"
#include "methods/pick.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "prompt tokens kept per head, observation window included")       \
    COMPRESS_WINDOW_PARAMS(P)                                                                      \
    P(COUNT, chunk, "10", 1, 1024, "tokens kept or evicted together")
PARAM_TABLE(chunkkv, struct compress_param, PARAMS)

/* Replaces each token's vote by the sum over its chunk. */
static void sum_chunks(float *vote, uint32_t n, uint32_t chunk)
{
    for (uint32_t begin = 0; begin < n; begin += chunk) {
        const uint32_t end = min_u32(begin + chunk, n);
        float sum = 0;
        for (uint32_t t = begin; t < end; t++) sum += vote[t];
        for (uint32_t t = begin; t < end; t++) vote[t] = sum;
    }
}

static bool vote_by_chunk(const struct method_lane *l, float *vote, uint32_t n)
{
    const struct compress_param *set = l->param;
    if (!compress_shares(l, vote, n)) return false;
    sum_chunks(vote, n, set->chunk);
    return true;
}

static const struct compress_policy policy = {.vote = vote_by_chunk};

static const struct method_decode hooks = {
    COMPRESS_WINDOW_HOOKS,
    .family = &policy,
};

static const sac_method_deviation deviations[] = {
    {"neighbouring layers may share one selection", "each layer selects for itself",
     "a method sees one layer at a time", "the paper shares to save time"},
    COMPRESS_DEVIATIONS,
};

const struct method chunkkv_method = {
    METHOD_DECODE(chunkkv, "SnapKV applied to chunks of neighbouring tokens"),
    .paper = "Liu et al., ChunkKV: Semantic-Preserving KV Cache Compression for Efficient "
             "Long-Context LLM Inference, arXiv 2502.00299",
    .about = "Keeps phrases where SnapKV keeps single words: a token with little weight stays if "
             "its neighbours are attended to. It has SnapKV's limits: tokens are selected once, "
             "for the question at the end of the prompt.",
    METHOD_DEVIATIONS(deviations),
    COMPRESS_WINDOW_TRAITS,
    .facts = {.budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
