/* seq_params.h: settings of a single sequence that differ from its engine's: the mass or budget of
 * its methods, the shortest context that is sparse, or dense attention. */
#ifndef SAC_ENGINE_SEQ_PARAMS_H
#define SAC_ENGINE_SEQ_PARAMS_H

#include "engine/method_set.h"

#include "saccade.h"

/* A sequence's settings; zeros: all are the engine's. */
struct seq_params {
    bool has_own[METHOD_SET_KINDS];
    struct method_spec
        own[METHOD_SET_KINDS]; /* specifications of the sequence's methods, if has_own */
    uint32_t min_ctx;          /* rows of shorter contexts are dense; 0: the engine's value */
};

/* Whether a sequence with these methods can have these settings. */
sac_status seq_params_check(const sac_engine *e, const uint32_t method_i[METHOD_SET_KINDS],
                            const sac_sparse *sparse, sac_error *err);

/* The specification in force. */
const struct method_spec *seq_params_spec(const sac_engine *e, enum method_set_kind kind,
                                          uint32_t seq_i);
/* Rows of shorter contexts are dense. */
uint32_t seq_params_min_ctx(const sac_engine *e, uint32_t seq_i);

#endif
