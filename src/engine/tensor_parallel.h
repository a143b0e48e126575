/* tensor_parallel.h: layers that several GPUs compute together (params.device_rows; tensor
 * parallelism). Each GPU has a share of every layer's heads and channels (model/weights_shard.h),
 * and its own engine over it: to that engine it is a model with fewer heads, so pages, methods and
 * the pages below a GPU's memory are its own. One of the engines leads: it is the one that the
 * program sees, and it has the output. The others receive each call that changes a sequence, select
 * the same rows by the same rules, and go through a step together with it, stage by stage. What
 * attention and the feed-forward network add to the residual stream are sums over all shares, in
 * their order, so every GPU has the same bits.
 *
 * Any other engine has one share, its own: everything. */
#ifndef SAC_ENGINE_TENSOR_PARALLEL_H
#define SAC_ENGINE_TENSOR_PARALLEL_H

#include "engine/model.h"
#include "model/weights_shard.h"

#define TENSOR_PARALLEL_MAX 16

struct tensor_parallel {
    sac_engine
        *of[TENSOR_PARALLEL_MAX]; /* [n] engines that follow this one's calls, this one first */
    uint32_t n;
    uint32_t i, n_all; /* number of its share, and of shares; a follower's n is 1 */
    bool joined;       /* each GPU writes to the others' memory */
    /* Of the share, unless it is all; its weights until they are uploaded */
    struct sac_model model;
};

void tensor_parallel_begin(sac_engine *e);
/* Creates the engines of all shares by the leader's parameters. */
sac_status tensor_parallel_create(sac_engine *e, sac_error *err);
/* Destroys the engines of the other shares. */
void tensor_parallel_deinit(sac_engine *e);

/* An error that names `what` ("saving of a sequence") if this is one of several shares. */
sac_status tensor_parallel_refuse(const sac_engine *e, const char *what, sac_error *err);

/* sched_pick for all engines. */
sac_status tensor_parallel_pick(sac_engine *e, sac_error *err);
/* What share i adds to the rows' residual stream is in its scratch.tmp, at tensor_parallel_part(e,
 * i). The sum of all parts is added to every stream or, if a norm follows a branch of a layer, put
 * into tensor_parallel_part(e, 0). With one share nothing remains to be added. */
float *tensor_parallel_part(const sac_engine *e, uint32_t i);
void tensor_parallel_sum(sac_engine *e);
/* Words of an inbox: maximum values of a sum that GPUs exchange within the operation. */
size_t tensor_parallel_inbox_words(const sac_engine *e);

/* Adds the other shares' counters of their heads to the leader's. */
void tensor_parallel_collect(sac_engine *e);
/* Adds the other shares' totals to the leader's. */
void tensor_parallel_add_stats(const sac_engine *e, sac_engine_stats *stats);

#endif
