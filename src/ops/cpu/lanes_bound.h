/* lanes_bound.h: the slot `bounds` of lanes.h, and arithmetic that it shares with `visit`. */
#ifndef SAC_OPS_CPU_LANES_BOUND_H
#define SAC_OPS_CPU_LANES_BOUND_H

#include "ops/lanes.h"

#include <math.h>

/* ln(exp(a) + exp(b)); -infinity is the log of an empty sum, and NaN is propagated. */
static inline double lanes_log_add(double a, double b)
{
    const double hi = a > b ? a : b, lo = a > b ? b : a;
    return lo == -INFINITY ? hi : hi + log1p(exp(lo - hi));
}

void lanes_bounds(struct workers *pool, const struct ops *ops, const struct op_lane_bounds *op,
                  uint32_t n);

#endif
