/* sched.h: selects the pending rows of the next step. All policy, no tensors. */
#ifndef SAC_ENGINE_SCHED_H
#define SAC_ENGINE_SCHED_H

#include "engine/engine.h"

/* Fills e->batch and reserves the pages that its rows will seal. n_row is 0 if nothing is pending.
 * SAC_ERR_CONTEXT if rows are pending but the pool has no page for any. */
sac_status sched_pick(sac_engine *e, sac_error *err);

/* Marks the batch's rows as done. */
void sched_commit(sac_engine *e);

#endif
