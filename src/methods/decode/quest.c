/* quest.c: pages by an upper bound of their best score, Quest (Tang et al., ICML 2024).
 *
 * The bound of a page is the sum over channels of max(q min, q max). The paper chooses for each
 * query head and lets the budget count the newest page; here one set serves the heads of a KV head,
 * which read the same bytes: each head's softmax over the bounds, then the mean (box_vote). As
 * in the paper the first two layers are dense. Pages have 32 tokens, the paper's 16. */
#include "methods/box.h"
#include "methods/spec.h"

enum { BUDGET, DENSE, SINK, RECENT };

static const sac_method_param params[] = {
    {"budget", SAC_PARAM_BUDGET, "1024", 1, 1 << 24, NULL,
     "tokens that are chosen, beside those always read"},
    {"dense", SAC_PARAM_INT, "2", 0, 1024, NULL, "first layers that read everything"},
    {"sink", SAC_PARAM_INT, "1", 0, 128, NULL, "first pages that are always read"},
    {"recent", SAC_PARAM_INT, "1", 0, 128, NULL, "newest full pages that are always read"},
};

static size_t quest_side_bytes(const struct method_shape *s, const double *param)
{
    (void)param;
    return box_bytes(s, BOX_BOUND);
}

static void quest_seal(uint8_t *side, const struct method_shape *s, const double *param,
                       const float *k)
{
    (void)param;
    box_seal(side, s, BOX_BOUND, k);
}

static void quest_select(const struct method_lane *l, struct method_pick *out)
{
    box_choose(l, out,
               &(struct box_choice){.kind = BOX_BOUND,
                                    .budget = spec_budget(l->param[BUDGET], l->pos + 1),
                                    .dense = (uint32_t)l->param[DENSE],
                                    .sink = (uint32_t)l->param[SINK],
                                    .recent = (uint32_t)l->param[RECENT]});
}

static const struct method_decode hooks = {
    .side_bytes = quest_side_bytes,
    .scratch_bytes = room_page_bytes,
    .seal = quest_seal,
    .select = quest_select,
};

const struct method quest_method = {
    .kind = "decode",
    .name = "quest",
    .summary = "pages whose keys' box promises the highest scores",
    .paper = "Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, "
             "arXiv 2406.10774",
    .about =
        "Keeps the minimum and maximum of each channel over a page's keys and reads the pages "
        "whose "
        "box holds the highest possible score. It finds what it is asked for at any step, however "
        "late. The bound is loose, so it needs a larger budget than an exact choice. With a q8 "
        "cache the box is part of the page and costs no memory.",
    .param = params,
    .n_param = sizeof params / sizeof params[0],
    .chooses = true,
    .decode = &hooks,
};
