/* cacheblend.c: the tokens whose keys change most are recomputed, CacheBlend (Yao et al., EuroSys
 * 2025).
 *
 * Layers 0 and 1 are computed for all tokens. The distance of a token's keys (or values) of layer 1
 * from the document's own says how much it depends on the other documents; the share of tokens with
 * the largest distances is computed in all layers above. With `ratio_end` the share decreases from
 * layer to layer, each selecting again among the remaining tokens. What a row sees is determined by
 * its token's position, never by its place among the computed rows. */
#include "methods/context.h"

enum { BY_K, BY_V };

#define PARAMS(P)                                                                                  \
    P(SHARE, ratio, "0.15",                                                                        \
      "share of the documents' tokens that is recomputed in the layers above the second")          \
    P(SHARE, ratio_end, "1",                                                                       \
      "that share at the last layer, with equal steps between; if not below ratio, the same in "   \
      "all")                                                                                       \
    P(CHOICE, by, "k", "k|v", "what is compared: keys or values")
METHOD_PARAMS(cacheblend, PARAMS)

static bool shrinks(const struct context_view *v)
{
    const struct cacheblend_param *set = v->param;
    return set->ratio_end < set->ratio;
}

static void cacheblend_plan(const struct context_view *v, struct context_plan *p)
{
    for (uint32_t layer = 0; layer < v->n_layer; layer++)
        for (uint32_t i = 0; i < v->n_doc; i++)
            context_mark(v, p, layer, v->doc[i].begin * PAGE_TOK, v->doc[i].end * PAGE_TOK);
}

static bool cacheblend_watches(const struct context_view *v, uint32_t layer)
{
    if (layer == 0 || layer + 1 >= v->n_layer) return false;
    return layer == 1 || shrinks(v);
}

/* Keeps, for the layers above, the share of the document tokens whose keys or values of this layer
 * differ most from the stored ones. */
static void cacheblend_observe(const struct context_view *v, struct context_plan *p, uint32_t layer,
                               const struct context_change *change)
{
    const struct cacheblend_param *set = v->param;
    const double first = set->ratio, last = shrinks(v) ? set->ratio_end : first;
    const double way = v->n_layer > 2 ? (layer - 1.0) / (v->n_layer - 2.0) : 0;
    const double share = first + (last - first) * way;
    uint32_t *word = context_refresh(v, p, layer + 1);
    context_keep_best(v, word, set->by == BY_V ? change->v : change->k,
                      (uint32_t)(share * context_tokens(v)), p->spare);
    for (uint32_t l = layer + 2; l < v->n_layer; l++)
        memcpy(context_refresh(v, p, l), word, v->n_page * sizeof *word);
}

static const struct method_context hooks = {
    .plan = cacheblend_plan, .watches = cacheblend_watches, .observe = cacheblend_observe};

static const sac_method_deviation deviations[] = {
    {"in the authors' code the question's tokens take part in the ranking",
     "the documents' tokens are ranked; the question is always computed",
     "a document's share should not depend on the question's length", NULL},
    {"keys and values of a layer are loaded while the previous one is computed",
     "documents are in memory", "the store reads files", NULL},
};

const struct method cacheblend_method = {
    METHOD_CONTEXT(cacheblend, "the tokens that the other documents change most are recomputed"),
    .paper = "Yao et al., CacheBlend: Fast Large Language Model Serving for RAG with Cached "
             "Knowledge Fusion, arXiv 2405.16444",
    .about = "Computes two layers of all tokens, finds the tokens whose keys have changed most, "
             "and recomputes only those in the other layers. It restores cross-document attention "
             "where it is strongest, whether or not the question asks for it.",
    METHOD_DEVIATIONS(deviations),
    .facts = {.whole = "ratio=1"},
    .context = &hooks,
};
