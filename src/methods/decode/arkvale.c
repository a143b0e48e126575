/* arkvale.c: pages by the middle and the mean spread of their keys, ArkVale (Chen et al., NeurIPS
 * 2024): its "cuboid-mean" digest.
 *
 * Decided here: one set for a KV head, by softmax shares of the heads (the code has one set a
 * layer, by the mean of raw scores: `reduce=raw` for a KV head); the tier of evicted pages that the
 * paper is about belongs to the page pool and not to the choice. */
#include "methods/box.h"
#include "methods/spec.h"

enum { BUDGET, REDUCE, DENSE, SINK, RECENT };

static const sac_method_param params[] = {
    {"budget", SAC_PARAM_BUDGET, "1024", 1, 1 << 24, NULL,
     "tokens that are chosen, beside those always read"},
    {"reduce", SAC_PARAM_CHOICE, "vote", 0, 0, "vote|raw",
     "how query heads agree: shares or raw means"},
    {"dense", SAC_PARAM_INT, "2", 0, 1024, NULL, "first layers that read everything"},
    {"sink", SAC_PARAM_INT, "1", 0, 128, NULL, "first pages that are always read"},
    {"recent", SAC_PARAM_INT, "2", 0, 128, NULL, "newest full pages that are always read"},
};

static size_t arkvale_side_bytes(const struct method_shape *s, const double *param)
{
    (void)param;
    return box_bytes(s, BOX_MEAN);
}

static void arkvale_seal(uint8_t *side, const struct method_shape *s, const double *param,
                         const float *k)
{
    (void)param;
    box_seal(side, s, BOX_MEAN, k);
}

static void arkvale_select(const struct method_lane *l, struct method_pick *out)
{
    box_choose(l, out,
               &(struct box_choice){.kind = BOX_MEAN,
                                    .budget = spec_budget(l->param[BUDGET], l->pos + 1),
                                    .dense = (uint32_t)l->param[DENSE],
                                    .sink = (uint32_t)l->param[SINK],
                                    .recent = (uint32_t)l->param[RECENT],
                                    .raw = l->param[REDUCE] > 0});
}

static const struct method_decode hooks = {
    .side_bytes = arkvale_side_bytes,
    .scratch_bytes = room_page_bytes,
    .seal = arkvale_seal,
    .select = arkvale_select,
};

static const sac_method_deviation deviations[] = {
    {"one set of pages for all heads of a layer, by the mean of raw scores",
     "a set for each KV head, by softmax shares; reduce=raw takes raw scores",
     "raw scores of different heads cannot be compared", NULL},
    {"pages that are not in the accelerator's memory are fetched from the host, and all pages that "
     "are there are read",
     "every page is in memory, and only the chosen ones are read",
     "choosing and keeping pages are apart here", NULL},
    {"the first page and the newest ones are taken from the number of chosen ones",
     "they are read beside the budget", "one rule for all methods", NULL},
};

const struct method arkvale_method = {
    .kind = "decode",
    .name = "arkvale",
    .summary = "pages by the middle of their keys and their mean distance from it",
    .paper = "Chen et al., ArkVale: Efficient Generative LLM Inference with Recallable Key-Value "
             "Eviction, NeurIPS 2024",
    .about = "As quest, but the box is as wide as keys are on average away from its middle. The "
             "score is "
             "no bound any more and orders pages better. It finds late what it is asked for late.",
    .param = params,
    .n_param = sizeof params / sizeof params[0],
    .deviation = deviations,
    .n_deviation = sizeof deviations / sizeof deviations[0],
    .chooses = true,
    .facts = {.part = "dense=0", .n_forced = 3 * PAGE_TOK},
    .meets_segments = true,
    .decode = &hooks,
};
