/* arkvale.c: pages ranked by the centre and the mean spread of their keys, ArkVale (Chen et al.,
 * NeurIPS 2024): its "cuboid-mean" digest.
 *
 * Decided here: one set per KV head, by softmax shares of the heads (the code has one set per
 * layer, by the mean of raw scores; `reduce=raw` does so per KV head). The tier of evicted pages,
 * which is the paper's subject, belongs to the page pool here and not to the selection. */
#include "methods/box.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens selected, in addition to those always read")              \
    P(CHOICE, reduce, "vote", "vote|raw",                                                          \
      "what is averaged over query heads: softmax shares or raw scores")                           \
    P(COUNT, dense, "2", 0, 1024, "first layers, which use dense attention")                       \
    P(TOKENS, sink, "32", 0, 4096, "first tokens, always read; rounded up to whole pages")         \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "most recent tokens before the query's own page, always read; rounded up to whole pages")
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
    .scratch_bytes = select_scratch_page_bytes,
    .seal = arkvale_seal,
    .note = arkvale_note,
    .choose = arkvale_choose,
};

static const sac_method_deviation deviations[] = {
    {"one set of pages for all heads of a layer, by the mean of raw scores",
     "one set per KV head, by softmax shares; reduce=raw uses raw scores",
     "raw scores of different heads are not comparable", NULL},
    {"pages outside the accelerator's memory are fetched from the host, and all resident pages are "
     "read",
     "all pages are in memory, and only the selected ones are read",
     "selection and page residency are separate here", NULL},
    {"the first page and the most recent ones count towards the number selected",
     "they are read in addition to the budget", "one rule for all methods", NULL},
};

const struct method arkvale_method = {
    METHOD_DECODE(arkvale,
                  "pages ranked by the centre of their keys and the mean distance from it"),
    .paper = "Chen et al., ArkVale: Efficient Generative LLM Inference with Recallable Key-Value "
             "Eviction, NeurIPS 2024",
    .about = "Like Quest, but the bounding box of a page extends from its centre only as far as "
             "its keys deviate from it on average. The score is no longer an upper bound, but it "
             "ranks pages better. All tokens stay in the cache, so a question asked late can still "
             "be answered.",
    METHOD_DEVIATIONS(deviations),
    .facts = {.part = "dense=0", .n_forced = 3 * PAGE_TOK},
    .meets_segments = true,
    .decode = &hooks,
};
