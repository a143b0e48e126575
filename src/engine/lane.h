/* lane.h: one layer and KV head of a run of rows, as methods of both kinds see it. */
#ifndef SAC_ENGINE_LANE_H
#define SAC_ENGINE_LANE_H

#include "engine/engine.h"

struct lane_at {
    enum method_set_kind kind; /* of the method for which the lane is made */
    uint32_t run_i, kv_head;
    uint32_t room_i; /* number of the scratch: a worker's, or a lane's if these are fewer */
};

/* The positions, queries and keys of a run of the reading, and the parameters, side data, state and
 * scratch of its sequence's method. */
struct method_lane lane_make(const sac_engine *e, const struct reading *r, struct lane_at at);

#endif
