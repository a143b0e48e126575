/* ashape.c: the first tokens and a band along the diagonal, for all rows or for all except the last
 * of a chunk: A-shape (the prompt side of StreamingLLM, Xiao et al., ICLR 2024), Tri-shape
 * (SCBench, Li et al., ICLR 2025) and TriangleMix (He et al., 2025), which is Tri-shape in the deep
 * layers and dense in the others.
 *
 * A tile reads the union of its rows' bands, up to tile_tok - 1 columns more than the definition,
 * and is entirely dense if one of its rows is. */
#include "methods/plan.h"

#include <math.h>

/* The arguments are the defaults of sinks and window. */
#define BAND(P, sinks, tokens)                                                                     \
    P(TOKENS, sink, sinks, 1, 1 << 24, "first tokens, read by every row")                          \
    P(TOKENS, window, tokens, 1, 1 << 24, "window of tokens that a row reads up to itself")
#define TRIANGLE(P)                                                                                \
    P(COUNT, last, "128", 1, 1 << 24, "last prompt tokens, which use dense attention")
#define ASHAPE_PARAMS(P)   BAND(P, "128", "3968")
#define TRISHAPE_PARAMS(P) BAND(P, "128", "3968") TRIANGLE(P)
#define MIX_PARAMS(P)                                                                              \
    BAND(P, "8", "512")                                                                            \
    TRIANGLE(P)                                                                                    \
    P(SHARE, layer, "0.5", "share of the layers, the first ones, that use dense attention")

PARAM_STRUCT(shape, MIX_PARAMS)
PARAM_TABLE(ashape, struct shape_param, ASHAPE_PARAMS)
PARAM_TABLE(trishape, struct shape_param, TRISHAPE_PARAMS)
PARAM_TABLE(trianglemix, struct shape_param, MIX_PARAMS)

/* Plans a lane: the last n_last rows of the prompt are dense, the others read sinks and a
 * window. */
static void plan_shape(const struct method_lane *l, struct plan *p, uint32_t n_last)
{
    const struct shape_param *set = l->param;
    const uint32_t n_left = p->n_after < n_last ? n_last - p->n_after : 0; /* in this chunk */
    for (uint32_t i = 0; i < p->n_tile; i++) {
        if (plan_row_end(p, i) + n_left > l->n_row)
            plan_tile_dense(p, i, 0, PLAN_LAYER);
        else
            plan_ends(p, i, 0, set->sink, set->window);
    }
}

static void ashape_plan(const struct method_lane *l, struct plan *p)
{
    plan_shape(l, p, 0);
}

static void trishape_plan(const struct method_lane *l, struct plan *p)
{
    const struct shape_param *set = l->param;
    plan_shape(l, p, set->last);
}

static void mix_plan(const struct method_lane *l, struct plan *p)
{
    const struct shape_param *set = l->param;
    const double first = set->layer * l->shape->geom->n_layer;
    if (l->layer < (uint32_t)ceil(first))
        plan_dense(p, PLAN_LAYER);
    else
        plan_shape(l, p, set->last);
}

static const sac_method_deviation ashape_deviations[] = {
    {"exact for each row", "a tile of rows reads the union of its rows' bands",
     "kernels read whole tiles", "up to 63 more columns per row"},
};

const struct method ashape_method = {
    .kind = "prefill",
    .name = "a-shape",
    .summary = "attention sinks and a sliding window",
    .paper =
        "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453",
    .about = "Every row reads the attention sinks and the tokens just before it, so the cost of a "
             "prompt grows linearly with its length, not quadratically. All keys are kept: a "
             "decode method may still read them. What a row should have combined from distant "
             "tokens is lost. It is a baseline.",
    .params = &ashape_params,
    METHOD_DEVIATIONS(ashape_deviations),
    .facts = {.part = "sink=4,window=64", .whole = "window=4096", .blind = true},
    .prefill =
        &(const struct method_prefill){.any_chunk = true, .by_place = true, .plan = ashape_plan},
};

static const sac_method_deviation trishape_deviations[] = {
    {"exact for each row",
     "a tile of rows reads the union of its rows' bands, and is dense as a whole if one of its "
     "rows is",
     "kernels read whole tiles", NULL},
};

const struct method trishape_method = {
    .kind = "prefill",
    .name = "tri-shape",
    .summary = "a-shape with dense attention for the last prompt tokens",
    .paper = "Li et al., SCBench: A KV Cache-Centric Analysis of Long-Context Methods, "
             "arXiv 2412.10319",
    .about =
        "Sinks and a recent window for most rows, dense attention for the last ones, where a "
        "question about the text usually stands. A question in front of the text gains nothing.",
    .params = &trishape_params,
    METHOD_DEVIATIONS(trishape_deviations),
    .facts = {.part = "sink=4,window=64,last=32", .whole = "last=4096", .blind = true},
    .prefill =
        &(const struct method_prefill){.any_chunk = true, .by_place = true, .plan = trishape_plan},
};

static const sac_method_deviation mix_deviations[] = {
    {"the first sparse layer is found for each model from gradients",
     "layer= sets it, half of the layers by default", "nothing is calibrated offline",
     "KL of middle rows 0.305 at 16K of essays on a 0.5B model with half of the layers sparse, "
     "0.086 with a quarter"},
    {"exact for each row",
     "a tile of rows reads the union of its rows' bands, and is dense as a whole if one of its "
     "rows is",
     "kernels read whole tiles", NULL},
};

const struct method trianglemix_method = {
    METHOD_PREFILL(trianglemix, "dense in the first layers, tri-shape in the others"),
    .paper = "He et al., TriangleMix: A Lossless and Efficient Attention Pattern for Long Context "
             "Prefilling, arXiv 2507.21526",
    .about = "Deep layers hardly use the middle of the text, except for the last rows. They use "
             "tri-shape, and the layers before them are dense. The share of dense layers limits "
             "the gain.",
    METHOD_DEVIATIONS(mix_deviations),
    .facts = {.part = "sink=4,window=64,last=32,layer=0.2", .whole = "layer=1", .blind = true},
    .prefill =
        &(const struct method_prefill){.any_chunk = true, .by_place = true, .plan = mix_plan},
};
