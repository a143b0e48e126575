/* sample.h: the engine's interface to a sampler, beyond the public calls. */
#ifndef SAC_ENGINE_SAMPLE_H
#define SAC_ENGINE_SAMPLE_H

#include "saccade.h"

/* The model's log-probability of the token that the last sac_sampler_sample selected; -INFINITY
 * unless that call had n_probs > 0. */
float sample_last_logprob(const sac_sampler *s);

/* As sac_sampler_sample_row, among the tokens whose bit is set in `mask` (sac_guide); NULL: among
 * all. */
int32_t sample_row(sac_sampler *s, const sac_row *row, const uint64_t *mask, sac_prob *out_probs,
                   uint32_t n_probs);

/* How many of the largest logits (with all ties of the last) determine what the sampler selects, so
 * that the others may be -INFINITY; 0: all of them. */
uint32_t sample_n_top(const sac_sampler *s);

#endif
