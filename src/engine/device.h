/* device.h: an engine whose rows, or whose last layers, are computed by one or several GPUs: what
 * it refuses, which device gets which layers, and the weights' copies there. */
#ifndef SAC_ENGINE_DEVICE_H
#define SAC_ENGINE_DEVICE_H

#include "engine/engine.h"

/* Whether GPUs compute layers of such a model at all; otherwise an error that names what they do
 * not compute. */
sac_status device_check_model(const sac_model *m, sac_error *err);
/* Opens the places of params.device. A parameter that a GPU does not support is an error that names
 * it. */
sac_status device_open(sac_engine *e, sac_error *err);
/* Each place's weights: the model's own if the backend is the host, otherwise a copy on the
 * device. */
sac_status device_load_weights(sac_engine *e, sac_error *err);
/* Whether the device, if it attends, has kernels for the model's heads and the pool's pages. */
sac_status device_check(sac_engine *e, sac_error *err);
/* params.tier of a device: an unsupported parameter is an error that names it. */
sac_status device_check_tier(const sac_engine *e, sac_error *err);
/* With params.tier: divides the device's frames, before memory is planned. */
sac_status device_divide(sac_engine *e, const struct page_geom *geom, uint32_t n_page,
                         sac_error *err);
/* Allocates host memory for all pages, if the device's does not hold them. */
sac_status device_take_depot(sac_engine *e, sac_error *err);
sac_tier_stats device_tier_stats(const sac_engine *e);
/* Adds a layer's counters, of this engine's heads. */
void device_tier_layer(const sac_engine *e, uint32_t layer, uint64_t *out_hit, uint64_t *out_fetch);
/* Before memory is planned for the first time, and for the second: allocates on each device the
 * size found by the first, if it has as much. */
void device_measure(sac_engine *e);
sac_status device_take_blocks(sac_engine *e, sac_error *err);
/* After that: the first layers' matrices in f16, as many as the remaining memory holds. They make
 * prefill faster, with the same bits. */
void device_unpack_weights(sac_engine *e);
/* Total planned memory of all devices so far. */
size_t device_planned(const sac_engine *e);
void device_deinit(sac_engine *e);

#endif
