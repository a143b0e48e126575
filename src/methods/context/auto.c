/* auto.c: the tokens that the question reads are computed again.
 *
 * CacheBlend computes again what the other documents have changed most, and most of that nobody
 * reads. Here the question's rows are computed once over the documents as they are, and the tokens
 * to which they give most attention, over all layers and heads, are computed again: so that what is
 * read is right. The first document has all before it and is left as it is. */
#include "methods/context.h"

#define PARAMS(P) P(SHARE, share, "0.05", "share of the documents' tokens that is computed again")
METHOD_PARAMS(auto_context, PARAMS)

static void auto_plan(const struct context_view *v, struct context_plan *p)
{
    const struct auto_context_param *set = v->param;
    uint32_t *word = context_refresh(v, p, 0);
    for (uint32_t i = 1; i < v->n_doc; i++)
        context_mark(v, p, 0, v->doc[i].begin * PAGE_TOK, v->doc[i].end * PAGE_TOK);
    context_keep_best(v, word, v->mass, (uint32_t)(set->share * context_tokens(v)), p->spare);
    for (uint32_t layer = 1; layer < v->n_layer; layer++)
        memcpy(context_refresh(v, p, layer), word, v->n_page * sizeof *word);
}

static const struct method_context hooks = {.plan = auto_plan, .wants_mass = true};

const struct method auto_context_method = {
    .kind = "context",
    .name = "auto",
    .summary = "the tokens that the question reads are computed again",
    .about =
        "Reads the documents as they were computed with the question, and computes those tokens "
        "again to which its rows give most attention. A share of a few percent goes where an "
        "answer comes from, whatever else the documents would say of each other. It needs the "
        "question before the documents are joined.",
    .params = &auto_context_params,
    .context = &hooks,
};
