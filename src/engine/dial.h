/* dial.h: what one sequence reads where that is not as its engine was created: the mass or budget
 * of its methods, the shortest context that is sparse, or everything. */
#ifndef SAC_ENGINE_DIAL_H
#define SAC_ENGINE_DIAL_H

#include "engine/chooser.h"

#include "saccade.h"

/* Of a sequence; zeros: all as in the engine. */
struct dial {
    bool has_own[CHOOSER_KINDS];
    struct spec own[CHOOSER_KINDS]; /* of the method that the sequence uses, where has_own */
    uint32_t min_ctx;               /* rows of shorter contexts read everything; 0: the engine's */
};

/* Whether a sequence with these methods can be set so. */
sac_status dial_check(const sac_engine *e, const uint32_t method_i[CHOOSER_KINDS],
                      const sac_sparse *sparse, sac_error *err);

/* The specification in force. */
const struct spec *dial_spec(const sac_engine *e, enum chooser_kind kind, uint32_t seq_i);
/* Rows of shorter contexts read everything. */
uint32_t dial_min_ctx(const sac_engine *e, uint32_t seq_i);

#endif
