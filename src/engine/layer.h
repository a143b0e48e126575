/* layer.h: the transformer over one batch. Tensors, no policy. */
#ifndef SAC_ENGINE_LAYER_H
#define SAC_ENGINE_LAYER_H

#include "engine/engine.h"

/* Computes e->batch: writes its keys and values into the pages that sched_pick reserved and into
 * the tails, and leaves the residual stream of the last layer in e->scratch.x; on a CPU that
 * computes layers before those of a device, after place_wait. Allocates nothing. */
void layer_run(sac_engine *e);

/* Parts of layer_run, for rows of e->batch that are not computed layer by layer. */

/* Puts the embeddings of the rows' tokens into e->scratch.x. */
void layer_embed(sac_engine *e);
/* The same into memory of the host, [n_row, n_embd]. */
void layer_embed_to(const sac_engine *e, float *to);
/* Computes the rotation angles of the rows' positions. */
void layer_angles(sac_engine *e);
/* Copies the angles to the computing device: a part of layer_angles, which is called alone where
 * rows move between places (place.h). */
void layer_send_angles(sac_engine *e);
/* Puts the rows' queries, keys and values, rotated, into e->scratch.qkv. Called in the place that
 * computes the layer's linear part; afterwards the engine is in the one that has its pages. */
void layer_qkv(sac_engine *e, uint32_t layer);
/* Adds the output projection of e->scratch.attn and the feed-forward network to the residual
 * stream, for all engines that have a share of the layer. Afterwards the engine is back in the
 * place of the linear part. */
void layer_out(sac_engine *e, uint32_t layer);

/* Copies the rows' queries, keys and values to e->scratch.qkv_seen; on a host they are already
 * there. */
sac_status layer_look(const sac_engine *e, sac_error *err);

/* Runs a linear op with the engine's scratch, and counts the bytes that it reads. */
void layer_linear(sac_engine *e, struct op_linear *op);
/* The same for the whole batch: decode rows with narrow kernels, prompt rows with wide ones. */
void layer_linear_batch(sac_engine *e, struct op_linear op);
/* Runs an RMS norm for all rows of the batch, with the model's epsilon. */
void layer_rmsnorm_batch(sac_engine *e, struct op_rmsnorm op);

/* Bytes of op scratch that the largest step needs. */
void layer_scratch_bytes(const sac_engine *e, size_t *out_linear, size_t *out_attn);

#endif
