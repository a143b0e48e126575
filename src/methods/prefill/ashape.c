/* ashape.c: first tokens and a band, for all rows or for all but the last of a chunk: A-shape (the
 * prompt side of StreamingLLM, Xiao et al., ICLR 2024), Tri-shape (SCBench, Li et al., ICLR 2025)
 * and TriangleMix (He et al., 2025), which is Tri-shape in the deep layers and dense in the others.
 *
 * A tile reads the union of its rows' bands, up to tile_tok - 1 columns more than the definition,
 * and is dense as a whole if one of its rows is. */
#include "methods/plan.h"

#include <math.h>

enum { SINK, WINDOW, LAST, LAYER };

/* The last n_last rows of the prompt read everything. */
static void plan_shape(const struct method_lane *l, struct plan *p, uint32_t n_last)
{
    const uint32_t n_left = p->n_after < n_last ? n_last - p->n_after : 0; /* of them, here */
    for (uint32_t i = 0; i < p->n_tile; i++) {
        if (plan_row_end(p, i) + n_left > l->n_row)
            plan_tile_dense(p, i, 0, PLAN_LAYER);
        else
            plan_ends(p, i, 0, (uint32_t)l->param[SINK], (uint32_t)l->param[WINDOW]);
    }
}

static void ashape_plan(const struct method_lane *l, struct plan *p)
{
    plan_shape(l, p, 0);
}

static void trishape_plan(const struct method_lane *l, struct plan *p)
{
    plan_shape(l, p, (uint32_t)l->param[LAST]);
}

static void mix_plan(const struct method_lane *l, struct plan *p)
{
    const double first = l->param[LAYER] * l->shape->geom->n_layer;
    if (l->layer < (uint32_t)ceil(first))
        plan_dense(p, PLAN_LAYER);
    else
        plan_shape(l, p, (uint32_t)l->param[LAST]);
}

#define SINK_PARAM(value)                                                                          \
    {                                                                                              \
        "sink", SAC_PARAM_INT, value, 1, 1 << 24, NULL, "first tokens that every row reads"        \
    }
#define WINDOW_PARAM(value)                                                                        \
    {                                                                                              \
        "window", SAC_PARAM_INT, value, 1, 1 << 24, NULL, "tokens that a row reads up to itself"   \
    }
#define LAST_PARAM(value)                                                                          \
    {                                                                                              \
        "last", SAC_PARAM_INT, value, 1, 1 << 24, NULL,                                            \
            "last rows of the prompt, which read everything"                                       \
    }

static const sac_method_param ashape_params[] = {SINK_PARAM("128"), WINDOW_PARAM("3968")};
static const sac_method_param trishape_params[] = {SINK_PARAM("128"), WINDOW_PARAM("3968"),
                                                   LAST_PARAM("128")};
static const sac_method_param mix_params[] = {
    SINK_PARAM("8"),
    WINDOW_PARAM("512"),
    LAST_PARAM("128"),
    {"layer", SAC_PARAM_FLOAT, "0.5", 0, 1, NULL,
     "share of the layers, the first ones, left dense"},
};

static const struct method_prefill ashape_hooks = {.any_chunk = true, .plan = ashape_plan};
static const struct method_prefill trishape_hooks = {.any_chunk = true, .plan = trishape_plan};
static const struct method_prefill mix_hooks = {.any_chunk = true, .plan = mix_plan};

static const sac_method_deviation ashape_deviations[] = {
    {"exact for each row", "a tile of rows reads the union of its rows' bands",
     "kernels read whole tiles", "up to 63 columns more a row"},
};

const struct method ashape_method = {
    .kind = "prefill",
    .name = "a-shape",
    .summary = "the first tokens and a recent window",
    .paper =
        "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453",
    .about =
        "Every row reads the attention sinks and the tokens just before it, so the cost of a "
        "prompt grows with its length and not with the square. Keys are kept: a decode method may "
        "still read them all. What a row should have combined from afar is lost, so a baseline.",
    .param = ashape_params,
    .n_param = sizeof ashape_params / sizeof ashape_params[0],
    .deviation = ashape_deviations,
    .n_deviation = sizeof ashape_deviations / sizeof ashape_deviations[0],
    .facts = {.part = "sink=4,window=64", .whole = "window=4096", .blind = true},
    .prefill = &ashape_hooks,
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
    .summary = "a-shape, but the last rows read everything",
    .paper = "Li et al., SCBench: A KV Cache-Centric Analysis of Long-Context Methods, "
             "arXiv 2412.10319",
    .about =
        "Sinks and a recent window for most rows, everything for the last ones, where a question "
        "about the text usually stands. A question in front of the text gains nothing.",
    .param = trishape_params,
    .n_param = sizeof trishape_params / sizeof trishape_params[0],
    .deviation = trishape_deviations,
    .n_deviation = sizeof trishape_deviations / sizeof trishape_deviations[0],
    .facts = {.part = "sink=4,window=64,last=32", .whole = "last=4096", .blind = true},
    .prefill = &trishape_hooks,
};

static const sac_method_deviation mix_deviations[] = {
    {"the layer from which on it is sparse is found for each model by gradients",
     "layer=, half of the layers unless it says otherwise", "nothing is measured beforehand", NULL},
    {"exact for each row",
     "a tile of rows reads the union of its rows' bands, and is dense as a whole if one of its "
     "rows is",
     "kernels read whole tiles", NULL},
};

const struct method trianglemix_method = {
    .kind = "prefill",
    .name = "trianglemix",
    .summary = "dense in the first layers, tri-shape in the others",
    .paper = "He et al., TriangleMix: A Lossless and Efficient Attention Pattern for Long Context "
             "Prefilling, arXiv 2507.21526",
    .about =
        "Deep layers hardly use the middle of the text for rows that are not the last ones: they "
        "get tri-shape, the layers before are dense. The share of dense layers bounds the gain.",
    .param = mix_params,
    .n_param = sizeof mix_params / sizeof mix_params[0],
    .deviation = mix_deviations,
    .n_deviation = sizeof mix_deviations / sizeof mix_deviations[0],
    .facts = {.part = "sink=4,window=64,last=32,layer=0.2", .whole = "layer=1", .blind = true},
    .prefill = &mix_hooks,
};
