/* knorm.c: the prompt is reduced once, to the tokens with the smallest key norms, KNorm (Devoto et
 * al., EMNLP 2024).
 *
 * Their finding: keys with small norms receive much attention. No query is used, so the selection
 * is the same for any question, and costs one pass over the keys. */
#include "methods/compress.h"
#include "methods/pick.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "prompt tokens kept per head, window included")                   \
    P(COUNT, window, "0", 0, 1024, "most recent prompt tokens, always kept")                       \
    P(COUNT, dense, "2", 0, 1024, "first layers, which use dense attention")
PARAM_TABLE(knorm, struct compress_param, PARAMS)

/* Votes: 1 / (1 + |k|), which falls with the norm and is positive. False: not finite. */
static bool by_length(const struct method_lane *l, float *vote, uint32_t n)
{
    const uint32_t d = l->shape->geom->head_dim;
    float *k = l->scratch;
    for (uint32_t p = 0; p * PAGE_TOK < n; p++) {
        const uint32_t n_tok = min_u32(compress_page(k, NULL, l, p), n - p * PAGE_TOK);
        for (uint32_t t = 0; t < n_tok; t++) {
            float square = 0;
            for (uint32_t c = 0; c < d; c++) square += k[t * d + c] * k[t * d + c];
            if (!isfinite(square)) return false;
            vote[p * PAGE_TOK + t] = 1 / (1 + sqrtf(square));
        }
    }
    return true;
}

static const struct compress_policy policy = {.mute = true, .vote = by_length};

static const struct method_decode hooks = {
    COMPRESS_HOOKS,
    .family = &policy,
};

static const sac_method_deviation deviations[] = {
    {"the cache is reduced to the budget again while the answer grows",
     "once, after the prompt: all tokens of the answer are kept",
     "like the other methods of this kind", NULL},
    {"one prompt", "after a further prompt, tokens are selected again among those still kept",
     "conversations have several", NULL},
};

const struct method knorm_method = {
    METHOD_DECODE(knorm, "prompt tokens with the smallest key norms; the rest is evicted"),
    .paper = "Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache "
             "Compression, arXiv 2406.11430",
    .about = "The cheapest way to evict most of a prompt: it selects by key norms alone, needs no "
             "queries and serves every question equally. A needle is found only if its keys happen "
             "to have small norms. The first layers, for which the paper's observation does not "
             "hold, evict nothing.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .evicts = true,
    .facts = {.part = "dense=0,window=32", .budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .meets_segments = true,
    .decode = &hooks,
};
