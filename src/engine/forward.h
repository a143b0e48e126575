/* forward.h: the transformer over one batch. Tensors, no policy. */
#ifndef SAC_ENGINE_FORWARD_H
#define SAC_ENGINE_FORWARD_H

#include "engine/engine.h"

/* Computes e->batch: writes its keys and values into the pages that sched_pick reserved and into
 * the tails, and leaves the residual stream of the last layer in e->scratch.x. Allocates nothing.
 */
void forward_run(sac_engine *e);

/* One linear op in the engine's scratch; counts the bytes that it reads. */
void forward_linear(sac_engine *e, struct op_linear *op);

/* Bytes of op scratch that the largest step needs. */
void forward_scratch_bytes(const sac_engine *e, size_t *out_linear, size_t *out_attn);

#endif
