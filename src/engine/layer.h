/* layer.h: the transformer over one batch. Tensors, no policy. */
#ifndef SAC_ENGINE_LAYER_H
#define SAC_ENGINE_LAYER_H

#include "engine/engine.h"

/* Computes e->batch: writes its keys and values into the pages that sched_pick reserved and into
 * the tails, and leaves the residual stream of the last layer in e->scratch.x; on a CPU that
 * computes layers before those of a device, after place_wait. Allocates nothing. */
void layer_run(sac_engine *e);

/* Its parts, for rows that are not computed one layer after the other. They work on the rows of
 * e->batch: the tokens' embeddings into e->scratch.x; angles of their positions; queries, keys and
 * values into e->scratch.qkv, rotated; e->scratch.attn into the residual stream, and the
 * feed-forward network. The last two begin and end in the place that computes the layer's linear
 * part; between them the engine is in the one that has its pages. The last one is for all that have
 * a share of the layer. */
void layer_embed(sac_engine *e);
/* The same into memory of the host, [n_row, n_embd]. */
void layer_embed_to(const sac_engine *e, float *to);
void layer_angles(sac_engine *e);
/* The angles go to the computing device: a part of layer_angles, and called alone where rows move
 * between places (place.h). */
void layer_send_angles(sac_engine *e);
void layer_qkv(sac_engine *e, uint32_t layer);
void layer_out(sac_engine *e, uint32_t layer);

/* The rows' queries, keys and values are copied to e->scratch.qkv_seen; on a host they are already
 * there. */
sac_status layer_look(const sac_engine *e, sac_error *err);

/* One linear op in the engine's scratch; counts the bytes that it reads. */
void layer_linear(sac_engine *e, struct op_linear *op);
/* `op` as for the whole batch: its decode rows narrow, and its prompt rows wide. */
void layer_linear_batch(sac_engine *e, struct op_linear op);
/* For all rows of the batch, with the model's epsilon. */
void layer_rmsnorm_batch(sac_engine *e, struct op_rmsnorm op);

/* Bytes of op scratch that the largest step needs. */
void layer_scratch_bytes(const sac_engine *e, size_t *out_linear, size_t *out_attn);

#endif
