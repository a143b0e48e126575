/* lane.h: one layer and KV head of a run of rows, as methods of both kinds see it. */
#ifndef SAC_ENGINE_LANE_H
#define SAC_ENGINE_LANE_H

#include "engine/engine.h"

/* Positions, queries and keys of a run of the reading. What is a method's own (shape, parameters,
 * side data, past, state, scratch) is left zero, for the caller to fill in. */
struct method_lane lane_view(const sac_engine *e, const struct reading *r, uint32_t run_i,
                             uint32_t kv_head);

#endif
