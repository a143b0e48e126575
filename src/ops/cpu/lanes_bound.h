/* lanes_bound.h: the slot `bounds` of lanes.h. */
#ifndef SAC_OPS_CPU_LANES_BOUND_H
#define SAC_OPS_CPU_LANES_BOUND_H

#include "ops/lanes.h"

void lanes_bounds(struct workers *pool, const struct ops *ops, const struct op_lane_bounds *op,
                  uint32_t n);

#endif
