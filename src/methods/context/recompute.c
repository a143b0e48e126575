/* recompute.c: the documents' tokens are computed together, like any prompt: the reference for all
 * other context methods. */
#include "methods/context.h"

static const struct method_context hooks = {.computes_all = true};

const struct method recompute_method = {
    .kind = "context",
    .name = "recompute",
    .summary = "everything is recomputed: the reference",
    .about = "Takes only the documents' tokens from the store and computes them together as one "
             "prompt. Exact, and as slow as without a store.",
    .context = &hooks,
};
