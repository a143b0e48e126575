/* device.h: engines whose rows, or whose last layers, are computed by one or several GPUs: what is
 * refused, which device gets which layers, and copies of the weights. */
#ifndef SAC_ENGINE_DEVICE_H
#define SAC_ENGINE_DEVICE_H

#include "engine/engine.h"

/* Whether GPUs can compute layers of such a model; otherwise an error that names what they
 * cannot. */
sac_status device_check_model(const sac_model *m, sac_error *err);
/* Opens the places of params.device. A parameter that a GPU does not support is an error that names
 * it. */
sac_status device_open(sac_engine *e, sac_error *err);
/* Each place's weights: the model's own if the backend is the host, otherwise a copy on the
 * device. */
sac_status device_load_weights(sac_engine *e, sac_error *err);
/* Whether the device, if it attends, has kernels for the model's head size and the pool's page
 * type. */
sac_status device_check(sac_engine *e, sac_error *err);
/* params.tier of a device: an unsupported parameter is an error that names it. */
sac_status device_check_tier(const sac_engine *e, sac_error *err);
/* With params.tier: divides the device's frames, before memory is planned. */
sac_status device_divide(sac_engine *e, const struct page_geom *geom, uint32_t n_page,
                         sac_error *err);
/* Allocates host memory for all pages, if the device's does not hold them. */
sac_status device_take_offload_pages(sac_engine *e, sac_error *err);
sac_tier_stats device_tier_stats(const sac_engine *e);
/* Adds a layer's counters for this engine's heads. */
void device_tier_layer(const sac_engine *e, uint32_t layer, uint64_t *out_hit, uint64_t *out_fetch);
/* Called before memory is planned for the first time, and before the second: allocates on each
 * device the size that the first has measured, if there is as much. */
void device_measure(sac_engine *e);
sac_status device_take_blocks(sac_engine *e, sac_error *err);
/* Unpacks the first layers' matrices to f16, as many as fit into the remaining memory. This makes
 * prefill faster and gives the same bits. */
void device_unpack_weights(sac_engine *e);
/* Total planned memory of all devices so far. */
size_t device_planned(const sac_engine *e);
void device_deinit(sac_engine *e);

#endif
