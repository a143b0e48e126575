/* lanes_visit.h: the slot `visit` of lanes.h. */
#ifndef SAC_OPS_CPU_LANES_VISIT_H
#define SAC_OPS_CPU_LANES_VISIT_H

#include "ops/lanes.h"

void lanes_visit(struct workers *pool, const struct ops *ops, const struct op_lane_visit *op,
                 uint32_t n);

#endif
