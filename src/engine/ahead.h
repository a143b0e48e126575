/* ahead.h: the next step, described while a GPU computes the one at hand. When all rows of a step
 * are decode rows that want their logits, the next one most likely has a row more of each of the
 * same sequences: all of it is known but the tokens. So it is queued behind this one and kept back
 * (backend_ahead_begin); when it is that step that is asked for, the tokens' embeddings go up and
 * it begins. Else nobody has seen it: nothing of it has been computed, and what it would have
 * counted has not been. Anything else that is queued in between makes the device forget it, so a
 * step that begins is described as it would be now.
 *
 * A step that completes pages is described with those that it would get now, which go back
 * meanwhile; it is the same step if it gets the same ones. Engines describe none but those that
 * have all layers on one GPU, or a share of each on several, and whose decode methods keep nothing
 * from step to step. */
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
    struct batch *batch;           /* the rows; n_row is 0: there is no such step */
    float *embed;                  /* [n_row, n_embd] where the rows' embeddings go */
    struct decode_choices choices; /* what is chosen in it, if a method may choose */
    page_id *page; /* [n_row, n_lane] those that rows complete, of each layer and KV head */
    struct ahead_counts counts; /* what the step adds to the counters */
    bool is_noted;              /* it is being described */
    bool is_taken;              /* it is the one at hand */
};

/* What the rows of a sequence read is set otherwise. */
void ahead_forget(sac_engine *e);
/* Part of plan_memory, behind the batch. */
void ahead_plan(sac_engine *e, struct arena *a);
/* In a step whose rows and their logits have been queued: begins it, and describes the next one. */
void ahead_describe(sac_engine *e);
/* Whether e->batch is the step that was described, and `on_row` hears of it: then it has begun,
 * logits and all. */
bool ahead_take(sac_engine *e, sac_row_fn on_row);

#endif
