/* logprob.h: log-probabilities and comparisons of a row of logits. */
#ifndef SAC_EVAL_LOGPROB_H
#define SAC_EVAL_LOGPROB_H

#include <stdint.h>

/* Converts logits [n] to natural log-probabilities in place; returns the index of the largest, the
 * first of equal ones. The sum is taken in a fixed number of lanes, so the result depends on the
 * row alone. */
uint32_t logprob_from_logits(float *row, uint32_t n);

/* The Kullback-Leibler divergence, sum(p * (log p - log q)), of two rows of log-probabilities. */
double logprob_kl(const float *log_p, const float *log_q, uint32_t n);

#endif
