/* epic.c: the first tokens of each document are recomputed, EPIC's LegoLink (Hu et al., ICML 2025).
 *
 * Tokens at the start of a text that was computed alone act as attention sinks; after other texts
 * they must not. The first document has nothing missing before it, so it is left as it is. The
 * paper's prompt has a BOS for every document; here documents are computed after the head of the
 * prompt, which occurs once. */
#include "methods/context.h"

#define PARAMS(P)                                                                                  \
    P(TOKENS, k, "16", 0, 1 << 24,                                                                 \
      "tokens recomputed at the start of each document but the first")                             \
    P(TOKENS, k_tail, "0", 0, 1 << 24, "tokens recomputed at their end, in addition")
METHOD_PARAMS(epic, PARAMS)

static uint32_t at_most(uint32_t n, uint32_t most)
{
    return n < most ? n : most;
}

static void epic_plan(const struct context_view *v, struct context_plan *p)
{
    const struct epic_param *set = v->param;
    for (uint32_t layer = 0; layer < v->n_layer; layer++)
        for (uint32_t i = 1; i < v->n_doc; i++) {
            const uint32_t begin = v->doc[i].begin * PAGE_TOK, end = v->doc[i].end * PAGE_TOK;
            context_mark(v, p, layer, begin, begin + at_most(set->k, end - begin));
            context_mark(v, p, layer, end - at_most(set->k_tail, end - begin), end);
        }
}

static const struct method_context hooks = {.plan = epic_plan};

static const sac_method_deviation deviations[] = {
    {"every document keeps a BOS of its own in the prompt",
     "documents are computed after the prompt's head, which occurs in the prompt once",
     "a prompt reads the same however it was computed", NULL},
    {"long texts are split into chunks of 512 tokens at ends of sentences",
     "a document is one chunk", "what belongs together is for the user to say", NULL},
};

const struct method epic_method = {
    METHOD_CONTEXT(epic, "the first tokens of each document are recomputed"),
    .paper = "Hu et al., EPIC: Efficient Position-Independent Caching for Serving Large Language "
             "Models, arXiv 2410.15332",
    .about = "Recomputes a fixed number of tokens at the start of each document, which then attend "
             "to everything before them; the rest of a document stays as it was computed. The cost "
             "does not depend on the length of documents. Facts that are spread over documents are "
             "found only as far as the question's own rows can join them.",
    METHOD_DEVIATIONS(deviations),
    .facts = {.whole = "k=16777216"},
    .context = &hooks,
};
