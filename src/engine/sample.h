/* sample.h: what the engine's other files ask of a sampler beyond the public calls. */
#ifndef SAC_ENGINE_SAMPLE_H
#define SAC_ENGINE_SAMPLE_H

#include "saccade.h"

/* Log-probability by the model of the token that the last sac_sampler_sample chose; only after a
 * call with n_probs > 0, else -INFINITY. */
float sample_last_logprob(const sac_sampler *s);

/* As sac_sampler_sample_row, of the tokens whose bit is set in `mask` (sac_guide); NULL: of all. */
int32_t sample_row(sac_sampler *s, const sac_row *row, const uint64_t *mask, sac_prob *out_probs,
                   uint32_t n_probs);

/* How many of the largest logits (all ties with the last included) decide what the sampler chooses,
 * so that the others may be -INFINITY; 0: all of them. */
uint32_t sample_n_top(const sac_sampler *s);

#endif
