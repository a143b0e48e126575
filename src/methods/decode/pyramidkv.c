/* pyramidkv.c: SnapKV with more tokens for low layers than for high ones, PyramidKV (Cai et al.,
 * 2024).
 *
 * Follows the authors' code and not the paper's formula: budgets decrease along a line from hi to
 * lo = b / beta, hi = 2 b - lo, both moved when the prompt is shorter than hi. Decided here: the
 * code rounds the line's step to whole tokens, which loses 13 of 992 at 32 layers; here the sums of
 * the line are rounded, so that all layers together keep exactly what snapkv does. */
#include "methods/compress.h"
#include "methods/pick.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1,                                                                   \
      "prompt tokens kept per head in the average layer, observation window included")             \
    COMPRESS_POOLED_PARAMS(P)                                                                      \
    P(COUNT, beta, "20", 1, 1000, "the last layer keeps the mean budget divided by this")
PARAM_TABLE(pyramidkv, struct compress_param, PARAMS)

/* The sum of the budgets of layers 0 .. n - 1, which fall linearly from hi to lo over n_layer
 * layers. */
static double line_sum(double hi, double lo, uint32_t n, uint32_t n_layer)
{
    const double step = n_layer > 1 ? (hi - lo) / (n_layer - 1) : 0;
    return n * hi - step * n * (n - 1.0) / 2;
}

/* The lane's budget: the difference of two sums, each rounded down, so that the layers' budgets add
 * up to the total. */
static uint32_t linear_budget(const struct compress_votes *v)
{
    const struct method_lane *l = v->lane;
    const struct compress_param *set = l->param;
    const uint32_t n_layer = l->shape->geom->n_layer;
    double lo = floor((double)v->n_keep / set->beta), hi = 2.0 * v->n_keep - lo;
    if (n_layer == 1) return v->n_keep;
    if (hi > v->n_tok) {
        hi = v->n_tok;
        lo = 2.0 * v->n_keep - hi;
    }
    const double keep =
        floor(line_sum(hi, lo, l->layer + 1, n_layer)) - floor(line_sum(hi, lo, l->layer, n_layer));
    return keep > 1 ? (uint32_t)keep : 1;
}

static const struct compress_policy policy = {.vote = compress_pooled, .keep = linear_budget};

static const struct method_decode hooks = {
    COMPRESS_WINDOW_HOOKS,
    .family = &policy,
};

static const sac_method_deviation deviations[] = {
    {"budgets follow the paper's formula",
     "they follow the authors' code: a line from twice the mean minus the last to the last",
     "paper and code differ", NULL},
    {"the slope of the line is rounded to whole tokens", "its sums are rounded",
     "all layers together keep exactly the budget", "13 of 992 tokens at 32 layers"},
    COMPRESS_DEVIATIONS,
};

const struct method pyramidkv_method = {
    METHOD_DECODE(pyramidkv, "SnapKV with budgets that decrease from the first layer to the last"),
    .paper = "Cai et al., PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information "
             "Funneling, arXiv 2406.02069",
    .about = "Low layers spread their attention and keep much of the prompt; high ones attend to "
             "few tokens and keep few. All together keep as many as with SnapKV. It has SnapKV's "
             "limits: tokens are selected once, for the question at the end of the prompt.",
    METHOD_DEVIATIONS(deviations),
    COMPRESS_WINDOW_TRAITS,
    .facts = {.budget = METHOD_BUDGET_MODEL, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
