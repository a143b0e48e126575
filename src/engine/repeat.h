/* repeat.h: sequences whose decode method has the model repeat them before it selects: an
 * instruction and a piece of the text as prompt rows after the sequence, which its method observes
 * and which are then removed.
 *
 * This happens before the sequence's next decode row, within the step that would compute it; only
 * the time and the rows in the counters show it. Other sequences wait. */
#ifndef SAC_ENGINE_REPEAT_H
#define SAC_ENGINE_REPEAT_H

#include "methods/method.h"

#include "saccade.h"

struct repeat {
    uint32_t n_room;  /* maximum tokens of a piece with its instruction; 0: no method repeats */
    int32_t *text[2]; /* owned: before the first piece, before the others */
    size_t n_text[2];
    uint8_t *tails;             /* tails of one sequence, of all layers and KV heads */
    uint32_t seq_i;             /* the sequence that is being repeated */
    struct method_repeated now; /* its current piece; n_tok is 0: there is none */
};

/* Extends the context of an engine by what its methods need. After method_set_init. */
sac_status repeat_init(sac_engine *e, sac_error *err);
void repeat_deinit(sac_engine *e);
/* Part of plan_memory. */
void repeat_plan(sac_engine *e, struct arena *a);
/* The context length that sequences may use. */
uint32_t repeat_context(const sac_engine *e);
/* Tokens that the pool needs in addition. */
uint64_t repeat_pool_tokens(const sac_engine *e);
/* Whether a sequence must be repeated before its next row, a decode row. */
bool repeat_is_due(const sac_engine *e, uint32_t seq_i);
/* Repeats all sequences for which that is due, as far as there are pages; the others wait. */
sac_status repeat_run(sac_engine *e, sac_error *err);
/* What the rows of a sequence are repeating at the moment; NULL: nothing. */
static inline const struct method_repeated *repeat_of(const struct repeat *r, uint32_t seq_i)
{
    return r->now.n_tok > 0 && r->seq_i == seq_i ? &r->now : NULL;
}

#endif
