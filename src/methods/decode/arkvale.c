/* arkvale.c: pages by the middle and the mean spread of their keys, ArkVale (Chen et al., NeurIPS
 * 2024): its "cuboid-mean" digest.
 *
 * Decided here: one set for a KV head, by softmax shares of the heads (the code has one set a
 * layer, by the mean of raw scores: `reduce=raw` for a KV head); the tier of evicted pages that the
 * paper is about belongs to the page pool and not to the choice. */
#include "methods/box.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens that are chosen, beside those always read")               \
    P(CHOICE, reduce, "vote", "vote|raw", "how query heads agree: shares or raw means")            \
    P(COUNT, dense, "2", 0, 1024, "first layers that read everything")                             \
    P(TOKENS, sink, "32", 0, 4096, "first tokens that are always read, up to whole pages")         \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "newest tokens before the row's own page that are always read, up to whole pages")
PARAM_TABLE(arkvale, struct box_param, PARAMS)

static size_t arkvale_side_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return box_bytes(s, BOX_MEAN);
}

static void arkvale_seal(uint8_t *side, const struct method_shape *s, const void *param,
                         const float *k)
{
    (void)param;
    box_seal(side, s, BOX_MEAN, k);
}

static enum op_note_kind arkvale_note(const struct method_shape *s, const void *param)
{
    (void)s, (void)param;
    return box_note(BOX_MEAN);
}

static void arkvale_choose(const struct method_batch *b)
{
    box_choose(b, BOX_MEAN);
}

static const struct method_decode hooks = {
    .side_bytes = arkvale_side_bytes,
    .scratch_bytes = room_page_bytes,
    .seal = arkvale_seal,
    .note = arkvale_note,
    .choose = arkvale_choose,
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
    METHOD_DECODE(arkvale, "pages by the middle of their keys and their mean distance from it"),
    .paper = "Chen et al., ArkVale: Efficient Generative LLM Inference with Recallable Key-Value "
             "Eviction, NeurIPS 2024",
    .about = "As quest, but the box is as wide as keys are on average away from its middle. The "
             "score is "
             "no bound any more and orders pages better. It finds late what it is asked for late.",
    METHOD_DEVIATIONS(deviations),
    .facts = {.part = "dense=0", .n_forced = 3 * PAGE_TOK},
    .meets_segments = true,
    .decode = &hooks,
};
