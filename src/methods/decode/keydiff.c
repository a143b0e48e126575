/* keydiff.c: the prompt is reduced once, to the tokens whose keys are least similar to the others,
 * KeyDiff (Park et al., NeurIPS 2025).
 *
 * The anchor is the mean of the keys' directions; the tokens with the smallest cosine to it are
 * kept. No query is used. Keys are taken as stored in the cache, after RoPE, as in the authors'
 * text. */
#include "methods/compress.h"
#include "methods/pick.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "prompt tokens kept per head, window included")                   \
    P(COUNT, window, "0", 0, 1024, "most recent prompt tokens, always kept")
PARAM_TABLE(keydiff, struct compress_param, PARAMS)

static float dot(const float *a, const float *b, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* 1 / |k|, or 0 for a zero key. */
static float one_over_length(const float *k, uint32_t d)
{
    const float square = dot(k, k, d);
    return square > 0 ? 1 / sqrtf(square) : 0;
}

/* The anchor up to a factor, which cosines do not depend on: the sum of the normalized keys 0 .. n
 * - 1. */
static void find_anchor(float *anchor, float *k, const struct method_lane *l, uint32_t n)
{
    const uint32_t d = l->shape->geom->head_dim;
    memset(anchor, 0, d * sizeof *anchor);
    for (uint32_t p = 0; p * PAGE_TOK < n; p++) {
        const uint32_t n_tok = min_u32(compress_page(k, NULL, l, p), n - p * PAGE_TOK);
        for (uint32_t t = 0; t < n_tok; t++) {
            const float scale = one_over_length(k + t * d, d);
            for (uint32_t c = 0; c < d; c++) anchor[c] += k[t * d + c] * scale;
        }
    }
}

/* Votes: 1 - cosine of key and anchor, not negative. False: not finite. */
static bool by_difference(const struct method_lane *l, float *vote, uint32_t n)
{
    const uint32_t d = l->shape->geom->head_dim;
    float *k = l->scratch, *anchor = k + PAGE_TOK * d;
    find_anchor(anchor, k, l, n);
    const float unit = one_over_length(anchor, d);
    for (uint32_t p = 0; p * PAGE_TOK < n; p++) {
        const uint32_t n_tok = min_u32(compress_page(k, NULL, l, p), n - p * PAGE_TOK);
        for (uint32_t t = 0; t < n_tok; t++) {
            const float *key = k + t * d;
            const float cosine = dot(key, anchor, d) * unit * one_over_length(key, d);
            if (!isfinite(cosine)) return false;
            vote[p * PAGE_TOK + t] = fmaxf(1 - cosine, 0);
        }
    }
    return true;
}

static const struct compress_policy policy = {.mute = true, .vote = by_difference};

static const struct method_decode hooks = {
    COMPRESS_HOOKS,
    .family = &policy,
};

static const sac_method_deviation deviations[] = {
    {"the cache is reduced to the budget after every block of the prompt",
     "once, after the whole prompt", "the prompt is computed before decode methods run",
     "memory for the whole prompt until its end"},
    {"and while the answer grows", "all tokens of the answer are kept",
     "like the other methods of this kind", NULL},
    {"one prompt", "after a further prompt, tokens are selected again among those still kept",
     "conversations have several", NULL},
};

const struct method keydiff_method = {
    METHOD_DECODE(keydiff,
                  "prompt tokens whose keys are least similar to the others; the rest is evicted"),
    .paper = "Park et al., KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM "
             "Inference in Resource-Constrained Environments, arXiv 2504.15364",
    .about =
        "Selects by keys alone and needs no query, so every question is served equally: a key that "
        "points where few others point is kept. It reads the keys twice after the prompt.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .evicts = true,
    .facts = {.part = "window=32", .budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .meets_segments = true,
    .decode = &hooks,
};
