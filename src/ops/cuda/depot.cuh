/* depot.cuh: fetching of the pages that a selection is about to read (private to this folder). */
#ifndef SAC_OPS_CUDA_DEPOT_CUH
#define SAC_OPS_CUDA_DEPOT_CUH

#include "ops/cuda/device.cuh"

#include "ops/lanes.h"

/* Fetches pages from the depot for the first visit round of n lanes of one layer, into frames whose
 * pages were not read in their layer's last turn; pages for which there is none stay in the depot
 * and are read there. The orders and lengths of the rounds are on the device. Does nothing without
 * a depot. */
sac_status depot_fetch_visits(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n);

#endif
