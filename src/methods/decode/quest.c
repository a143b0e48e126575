/* quest.c: pages by an upper bound of their best score, Quest (Tang et al., ICML 2024).
 *
 * The bound of a page is the sum over channels of max(q min, q max). As in the paper pages have 16
 * tokens, half of a page of the cache, and the first two layers are dense; page=32 uses whole
 * pages, whose box a q8 page already contains. The paper's models have a KV head for each query
 * head, which selects for itself. With grouped-query attention the query heads of a KV head select
 * together, by the mean of their softmax shares over the bounds (box_vote), so that the budget is
 * what is read. With heads=query each still selects for itself, and all of them read what any has
 * selected: up to as many times the budget. */
#include "methods/box.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens selected, in addition to those always read")              \
    P(CHOICE, page, "16", "16|32", "tokens selected together")                                     \
    P(CHOICE, heads, "group", "group|query",                                                       \
      "query heads of a KV head select together, or each spends the budget for itself")            \
    P(COUNT, dense, "2", 0, 1024, "first layers, which use dense attention")                       \
    P(TOKENS, sink, "32", 0, 4096, "first tokens, always read; rounded up to whole pages")         \
    P(TOKENS, recent, "32", 0, 4096,                                                               \
      "most recent tokens before the query's own page, always read; rounded up to whole pages")
PARAM_TABLE(quest, struct box_param, PARAMS)

static enum box kind_of(const void *param)
{
    return ((const struct box_param *)param)->page > 0 ? BOX_BOUND : BOX_HALVES;
}

static size_t quest_side_bytes(const struct method_shape *s, const void *param)
{
    return box_bytes(s, kind_of(param));
}

static size_t quest_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct select_scratch r;
    return select_scratch_make(&r, s, kind_of(param) == BOX_HALVES, NULL);
}

static void quest_seal(uint8_t *side, const struct method_shape *s, const void *param,
                       const float *k)
{
    box_seal(side, s, kind_of(param), k);
}

static enum op_note_kind quest_note(const struct method_shape *s, const void *param)
{
    (void)s;
    return box_note(kind_of(param));
}

static void quest_choose(const struct method_batch *b)
{
    box_choose(b, kind_of(b->lane[0].param));
}

static const struct method_decode hooks = {
    .side_bytes = quest_side_bytes,
    .scratch_bytes = quest_scratch_bytes,
    .seal = quest_seal,
    .note = quest_note,
    .choose = quest_choose,
};

static const sac_method_deviation deviations[] = {
    {"models have a KV head for each query head, which selects for itself",
     "query heads of a KV head select together, by the mean of their softmax shares; heads=query "
     "lets each select",
     "the budget is then what is read", NULL},
    {"the budget includes the most recent page", "the budget counts selected pages only",
     "one rule for all methods", NULL},
    {"the most recent page, which is not full, is always read",
     "so are the first page and the most recent full one; sink=0,recent=0 leaves them to their "
     "scores",
     "other papers' methods have them", NULL},
};

const struct method quest_method = {
    METHOD_DECODE(quest, "pages with the highest upper bounds on their attention scores"),
    .paper = "Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, "
             "arXiv 2406.10774",
    .about =
        "Stores the minimum and maximum of each channel over a page's keys. They give an upper "
        "bound on the scores in the page, and the pages with the highest bounds are read. All "
        "tokens stay in the cache, so a question asked late can still be answered. The bound is "
        "loose, so it needs a larger budget than an exact selection. With page=32 and a q8 cache "
        "the minima and maxima are part of the page and cost no memory.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true, /* halves of pages */
    .facts = {.part = "dense=0", .n_forced = 2 * PAGE_TOK},
    .meets_segments = true,
    .decode = &hooks,
};
