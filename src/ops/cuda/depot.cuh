/* depot.cuh: pages that a choice is about to look at come into frames first (private to this
 * folder). */
#ifndef SAC_OPS_CUDA_DEPOT_CUH
#define SAC_OPS_CUDA_DEPOT_CUH

#include "ops/cuda/device.cuh"

#include "ops/lanes.h"

struct depot_visits {
    uint32_t n;       /* lanes, of one layer */
    uint32_t n_first; /* pages of each that come, those that are first in its order */
};

/* Of what the lanes [v->n] visit first, pages that have no frame get one, as far as there are pages
 * which have missed their turns; the orders are the device's. Without a depot nothing is done. */
sac_status depot_bring_visits(struct cuda_device *d, const struct op_lane_visit *op,
                              const struct depot_visits *v);

#endif
