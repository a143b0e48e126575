/* share.h: layers that several GPUs compute together (params.device_rows; tensor parallel). Each
 * has a share of every layer's heads and channels (model/weights_cut.h), and an engine of its own
 * over it: to that it is a model of fewer heads, so pages, methods and what lies below a GPU's
 * memory are its own. One of the engines leads. It is the one that the program sees, and has the
 * output; the others hear of each call that changes a sequence, choose the same rows by the same
 * rules, and go through a step beside it, stage by stage. What attention and the feed-forward
 * network add to the residual stream are sums over all shares, in their order, so every GPU has the
 * same bits of it.
 *
 * Any other engine has one share, its own: all. */
#ifndef SAC_ENGINE_SHARE_H
#define SAC_ENGINE_SHARE_H

#include "engine/model.h"
#include "model/weights_cut.h"

#define SHARES_MAX 16

struct shares {
    sac_engine *of[SHARES_MAX]; /* [n] engines that do what this one is asked for, itself first */
    uint32_t n;
    uint32_t i, n_all;      /* its share, of so many; a follower's n is 1 */
    bool joined;            /* each writes to the others' memory */
    struct sac_model model; /* of the share, if not all; its weights, until they are up */
};

void share_begin(sac_engine *e);
/* Creates the engines of all shares by the leader's parameters. */
sac_status share_create(sac_engine *e, sac_error *err);
/* The others end. */
void share_deinit(sac_engine *e);

/* An error that names `what` ("saving of a sequence") if this is one of several shares. */
sac_status share_refuse(const sac_engine *e, const char *what, sac_error *err);

/* sched_pick of all. */
sac_status share_pick(sac_engine *e, sac_error *err);
/* What share i adds to the rows' residual stream is in its scratch.tmp, at share_part(e, i). Then
 * all add up all parts: into their streams; or, where a norm stands behind a branch of a layer, the
 * sum alone, into share_part(e, 0). Of one share nothing is left to add. */
float *share_part(const sac_engine *e, uint32_t i);
void share_sum(sac_engine *e);
/* Values that a sum has at most, if the parts go from GPU to GPU within it. */
size_t share_inbox_words(const sac_engine *e);

/* Counters of what others have read of their heads go to the leader. */
void share_collect(sac_engine *e);
/* What the others have and have done, beside the leader's own. */
void share_add_stats(const sac_engine *e, sac_engine_stats *stats);

#endif
