/* device.h: an engine whose rows a GPU computes, or several, or their last layers: what it refuses,
 * who gets which layers, and the weights' copies there. */
#ifndef SAC_ENGINE_DEVICE_H
#define SAC_ENGINE_DEVICE_H

#include "engine/engine.h"

/* Opens the places of params.device. What the parameters ask for and a GPU cannot do is an error
 * that names it. */
sac_status device_open(sac_engine *e, sac_error *err);
/* Each place's weights: the model's own where the backend is the host, else a copy on the device.
 */
sac_status device_load_weights(sac_engine *e, sac_error *err);
/* Whether the device, if it attends, has kernels for the model's heads and the pool's pages. */
sac_status device_check(sac_engine *e, sac_error *err);
/* params.tier of a device: what it cannot do is an error that names it. */
sac_status device_check_tier(const sac_engine *e, sac_error *err);
/* With params.tier: deals the device's frames out, before memory is planned. */
sac_status device_divide(sac_engine *e, const struct page_geom *geom, uint32_t n_page,
                         sac_error *err);
/* Takes the machine's memory for all pages, where the device's does not hold them. */
sac_status device_take_depot(sac_engine *e, sac_error *err);
sac_tier_stats device_tier_stats(const sac_engine *e);
/* Adds a layer's counters, of this engine's heads. */
void device_tier_layer(const sac_engine *e, uint32_t layer, uint64_t *out_hit, uint64_t *out_fetch);
/* Before memory is planned for the first time, and for the second: takes of each device what the
 * first has come to, if it has as much to give. */
void device_measure(sac_engine *e);
sac_status device_take_blocks(sac_engine *e, sac_error *err);
/* Behind that: the first layers' matrices in f16, as many as there is memory left for. Prompts are
 * read sooner by these, with the same bits. */
void device_unpack_weights(sac_engine *e);
/* What has been planned of all devices' memory so far. */
size_t device_planned(const sac_engine *e);
void device_deinit(sac_engine *e);

#endif
