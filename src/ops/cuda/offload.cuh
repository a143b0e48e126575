/* offload.cuh: fetching of the pages that a selection is about to read (private to this folder). */
#ifndef SAC_OPS_CUDA_OFFLOAD_CUH
#define SAC_OPS_CUDA_OFFLOAD_CUH

#include "ops/cuda/device.cuh"

#include "ops/lanes.h"

/* Fetches offloaded pages for the first visit round of n lanes of one layer, into frames whose
 * pages were not read in their layer's last turn; pages left without a frame are read in host
 * memory. Orders and lengths of the rounds are on the device. Does nothing without offloading. */
sac_status offload_fetch_visits(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n);

#endif
