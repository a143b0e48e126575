/* reuse.c: documents follow each other as they were computed, and nothing is recomputed. The
 * question's rows read all of them; no document has attended to another. */
#include "methods/context.h"

enum { QUERY_FULL, QUERY_LAST };

#define PARAMS(P)                                                                                  \
    P(FLAG, align, "on",                                                                           \
      "keys move to the positions of their documents in the prompt; off: they keep those at "      \
      "which they were computed, so all documents stand in one place")                             \
    P(CHOICE, query, "full", "full|last",                                                          \
      "full: the whole question reads the documents; last: only its last token does, and the "     \
      "others are computed as if they were a document")
METHOD_PARAMS(reuse, PARAMS)

static void reuse_place(const struct context_view *v, int32_t *begin, int32_t *end)
{
    const struct reuse_param *set = v->param;
    (void)end;
    for (uint32_t i = 1; i < v->n_doc && !set->align; i++) begin[i] = begin[0];
}

static enum context_question reuse_question(const void *param)
{
    const struct reuse_param *set = param;
    return set->query == QUERY_LAST ? CONTEXT_QUESTION_APART : CONTEXT_QUESTION_NONE;
}

static const struct method_context hooks = {.place = reuse_place, .question = reuse_question};

const struct method reuse_method = {
    METHOD_CONTEXT(reuse, "documents as they were computed, one after the other"),
    .about = "Joins the pages of the documents and computes only the question: the fastest way to "
             "an answer. Attention between documents is lost, and every document begins as if it "
             "were the first. The first document loses nothing.",
    .context = &hooks,
};
