/* reuse.c: documents stand behind each other as they were computed, and nothing is computed again.
 * The question's rows read all of them; no document has read another. */
#include "methods/context.h"

#define PARAMS(P)                                                                                  \
    P(FLAG, align, "on",                                                                           \
      "keys get the positions at which their documents stand; off: they keep those at which they " \
      "were computed, so all documents stand in one place")
METHOD_PARAMS(reuse, PARAMS)

static bool reuse_aligns(const void *param)
{
    const struct reuse_param *set = param;
    return set->align;
}

static const struct method_context hooks = {.aligns = reuse_aligns};

const struct method reuse_method = {
    .kind = "context",
    .name = "reuse",
    .summary = "documents as they were computed, one behind the other",
    .about = "Joins the pages of the documents and computes nothing but the question: the fastest "
             "way to an answer. What one document says of another is lost, and every document "
             "begins as if it were the first. The first document has lost nothing.",
    .params = &reuse_params,
    .context = &hooks,
};
