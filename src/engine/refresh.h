/* refresh.h: recomputes some tokens of a sequence, layer by layer, in place. */
#ifndef SAC_ENGINE_REFRESH_H
#define SAC_ENGINE_REFRESH_H

#include "engine/engine.h"
#include "methods/context.h"

struct refresh_job {
    uint32_t seq_i; /* its tokens are whole pages, all computed */
    const struct context_view *view;
    struct context_plan *plan;
    const struct method_context *hooks;
    enum context_fusion fusion; /* how new keys and values are mixed with the old ones */
};

struct refresh_done {
    uint64_t n_row;      /* pairs of a token and a layer that were recomputed */
    uint64_t n_page_own; /* pages that have become the sequence's own */
};

/* Recomputes what the plan's masks name. Pages in which something changes become the sequence's
 * own; pages of others are never written. SAC_ERR_CONTEXT if the pool has no page left: the
 * sequence is then unusable. Allocates memory of its own, and uses the batch and scratch of
 * steps. */
sac_status refresh_run(sac_engine *e, const struct refresh_job *job, struct refresh_done *out,
                       sac_error *err);

#endif
