/* lane.h: one layer and KV head of a run of rows, as methods of both kinds see it. */
#ifndef SAC_ENGINE_LANE_H
#define SAC_ENGINE_LANE_H

#include "engine/engine.h"

struct lane_at {
    enum chooser_kind kind; /* of the method that looks */
    uint32_t run_i, kv_head;
    uint32_t room_i; /* scratch: the number of a worker, or of a lane where these are fewer */
};

/* Positions, queries and keys of a run of the reading, and what the method of its sequence has: its
 * parameters, side data, state, scratch. */
struct method_lane lane_make(const sac_engine *e, const struct reading *r, struct lane_at at);

#endif
