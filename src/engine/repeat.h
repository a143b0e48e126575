/* repeat.h: sequences whose decode method has the model repeat them before it chooses: an
 * instruction and a piece of the text as prompt rows behind the sequence, which its method looks at
 * and which are gone afterwards.
 *
 * That is done before the sequence's next decode row, within the step that would compute it, and
 * nothing of it shows but the time, and the rows in the counters. Other sequences wait. */
#ifndef SAC_ENGINE_REPEAT_H
#define SAC_ENGINE_REPEAT_H

#include "methods/method.h"

#include "saccade.h"

struct repeat {
    uint32_t n_room;  /* tokens of a piece with its instruction, at most; 0: no method asks */
    int32_t *text[2]; /* owned: before the first piece, before others */
    size_t n_text[2];
    uint8_t *tails;             /* of one sequence, all layers and KV heads */
    uint32_t seq_i;             /* which repeats, */
    struct method_repeated now; /* and what; n_tok is 0: nobody does */
};

/* Makes the context of an engine as much longer as its methods need. Behind chooser_init. */
sac_status repeat_init(sac_engine *e, sac_error *err);
void repeat_deinit(sac_engine *e);
/* Part of plan_memory. */
void repeat_plan(sac_engine *e, struct arena *a);
/* The context that sequences have for their own. */
uint32_t repeat_context(const sac_engine *e);
/* What the pool has more for it, in tokens. */
uint64_t repeat_pool_tokens(const sac_engine *e);
/* Whether a sequence must be repeated before its next row, a decode row. */
bool repeat_is_due(const sac_engine *e, uint32_t seq_i);
/* Has all sequences repeated for which that is due, as far as there are pages: the others wait. */
sac_status repeat_run(sac_engine *e, sac_error *err);
/* What the rows of a sequence repeat at this moment; NULL: nothing. */
static inline const struct method_repeated *repeat_of(const struct repeat *r, uint32_t seq_i)
{
    return r->now.n_tok > 0 && r->seq_i == seq_i ? &r->now : NULL;
}

#endif
