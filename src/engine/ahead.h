/* ahead.h: the next step, described while a GPU computes the current one. When all rows of a step
 * are decode rows that need their logits, the next step most likely has one more row of each of the
 * same sequences: everything about it is known except the tokens. It is therefore queued after the
 * current step and held back (backend_ahead_begin). If that step is then requested, the tokens'
 * embeddings are uploaded and it starts. Otherwise nothing of it has been computed or counted.
 * Anything else that is queued in between makes the device discard it, so a step that starts is
 * described as it would be now.
 *
 * A step that completes pages is described with those that it would get now, which are returned
 * meanwhile; it is the same step if it gets the same ones. Only engines with all layers on one GPU,
 * or a share of each on several, and whose decode methods keep no state between steps, describe
 * steps ahead. */
#ifndef SAC_ENGINE_AHEAD_H
#define SAC_ENGINE_AHEAD_H

#include "base/mem.h"
#include "engine/decode.h"
#include "kv/pool.h"

#include "saccade.h"

struct batch;

struct ahead_counts {
    uint64_t weight_bytes, n_logit, n_logit_computed;
};

struct ahead {
    struct batch *batch;           /* its rows; n_row is 0: there is no such step */
    float *embed;                  /* [n_row, n_embd] where the rows' embeddings are uploaded */
    struct decode_choices choices; /* the lanes for which a method may select in it */
    page_id *page; /* [n_row, n_lane] pages that rows complete, for each layer and KV head */
    struct ahead_counts counts; /* what the step adds to the counters */
    bool is_noted;              /* the next step is being described */
    bool is_taken;              /* the current step is the one that was described */
};

/* Discards the described step, because settings of what its rows read have changed. */
void ahead_forget(sac_engine *e);
/* Part of plan_memory, after the batch. */
void ahead_plan(sac_engine *e, struct arena *a);
/* In a step whose rows and their logits have been queued: starts it, and describes the next one. */
void ahead_describe(sac_engine *e);
/* Whether e->batch is the step that was described, with `on_row` as receiver: then it has started,
 * including logits. */
bool ahead_take(sac_engine *e, sac_row_fn on_row);

#endif
