/* sample_mirostat.h: Mirostat (Basu et al., "Mirostat: A Neural Text Decoding Algorithm that
 * Directly Controls Perplexity", 2021): the surprise of the chosen tokens, in bits, is steered
 * towards a target by a bound `mu` that each choice moves. Version 1 keeps the k likeliest tokens,
 * k from an estimate of Zipf's exponent; version 2 keeps those that surprise by at most mu. */
#ifndef SAC_ENGINE_SAMPLE_MIROSTAT_H
#define SAC_ENGINE_SAMPLE_MIROSTAT_H

#include <stddef.h>

#define SAMPLE_MIROSTAT_M 100u /* tokens from which the exponent is estimated, as in the paper */

/* Version 1: how many tokens to keep, at least 1. `p` [n] are the largest probabilities,
 * descending; n is at most SAMPLE_MIROSTAT_M. */
double sample_mirostat_k(const double *p, size_t n, double n_vocab, double mu);

#endif
