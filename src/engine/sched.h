/* sched.h: which pending rows the next step computes. All policy, no tensors. */
#ifndef SAC_ENGINE_SCHED_H
#define SAC_ENGINE_SCHED_H

#include "engine/engine.h"

/* Fills e->batch and reserves the pages that its rows will seal. n_row is 0 when nothing pends.
 * SAC_ERR_CONTEXT when rows pend but the pool has no page for any. */
sac_status sched_pick(sac_engine *e, sac_error *err);

/* Marks the batch's rows as done. */
void sched_commit(sac_engine *e);

#endif
