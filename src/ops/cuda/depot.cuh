/* depot.cuh: pages that a choice is about to look at come into frames first (private to this
 * folder). */
#ifndef SAC_OPS_CUDA_DEPOT_CUH
#define SAC_OPS_CUDA_DEPOT_CUH

#include "ops/cuda/device.cuh"

#include "ops/lanes.h"

/* Of what n lanes of one layer visit in their first round, pages that have no frame get one, as far
 * as there are pages which have missed their turns; orders and rounds are the device's. Without a
 * depot nothing is done. */
sac_status depot_fetch_visits(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n);

#endif
