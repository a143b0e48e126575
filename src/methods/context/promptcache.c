/* promptcache.c: documents have places that a schema fixes in advance, Prompt Cache (Gim et al.,
 * MLSys 2024).
 *
 * A schema determines the positions of its modules, whichever of them a prompt names: consecutive
 * modules, each in a slot of its own length, or alternatives that share one place, as long as the
 * longest. What a prompt adds follows the whole schema. Nothing is recomputed. Positions therefore
 * have gaps, where a slot is not filled and where documents share a place; the order of documents
 * in the prompt no longer matters. */
#include "methods/context.h"

#define PARAMS(P)                                                                                  \
    P(TOKENS, slot, "0", 0, 1 << 20,                                                               \
      "positions reserved for each document; 0: as many as it has tokens")                         \
    P(FLAG, one_place, "off", "documents are alternatives: all share one place")
METHOD_PARAMS(promptcache, PARAMS)

static void promptcache_place(const struct context_view *v, int32_t *begin, int32_t *end)
{
    const struct promptcache_param *set = v->param;
    int32_t longest = 0, at = begin[0];
    for (uint32_t i = 0; i < v->n_doc; i++) {
        const int32_t own = (int32_t)((v->doc[i].end - v->doc[i].begin) * PAGE_TOK);
        const int32_t length = set->slot ? (int32_t)set->slot : own;
        begin[i] = at;
        longest = length > longest ? length : longest;
        at += set->one_place ? 0 : length;
    }
    *end = set->one_place ? at + longest : at;
}

static const struct method_context hooks = {.place = promptcache_place};

static const sac_method_deviation deviations[] = {
    {"a schema may have parameters: places in a module that a prompt fills in",
     "there are none: what differs between prompts follows the documents",
     "a document is computed before any prompt is known", NULL},
    {"modules that belong together can be computed together (scaffolds)",
     "every document is computed alone", "texts that belong together can be one document", NULL},
};

const struct method promptcache_method = {
    METHOD_CONTEXT(promptcache,
                   "documents stand where a schema puts them, and nothing is recomputed"),
    .paper = "Gim et al., Prompt Cache: Modular Attention Reuse for Low-Latency Inference, "
             "arXiv 2311.04934",
    .about = "Gives each document a place of fixed length, or all of them the same place, and puts "
             "the question after them. Answers then do not depend on the order of documents that "
             "share a place. Without parameters it is the same as reuse.",
    METHOD_DEVIATIONS(deviations),
    .context = &hooks,
};
