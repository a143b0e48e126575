/* rng.h: the only random numbers of the evaluation: SplitMix64, so that a sample depends only on
 * its name, length, seed and number, on every machine. */
#ifndef SAC_EVAL_RNG_H
#define SAC_EVAL_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng {
    uint64_t state;
};

/* The stream of sample `index` of a task at a length: each sample has a stream of its own. */
struct rng rng_stream(const char *task, uint64_t length, uint64_t seed, uint64_t index);
uint64_t rng_next(struct rng *r);
/* Uniform from 0 to n-1; n > 0. */
uint64_t rng_below(struct rng *r, uint64_t n);
void rng_shuffle(struct rng *r, uint32_t *item, size_t n);
/* Puts k distinct numbers below n into `out` [k], in the order drawn; k <= n. */
void rng_sample(struct rng *r, uint32_t *out, uint32_t k, uint32_t n);
/* The same, ascending. */
void rng_sample_sorted(struct rng *r, uint32_t *out, uint32_t k, uint32_t n);

/* FNV-1a, for the names of streams and runs. */
uint64_t rng_hash(const void *data, size_t n);

#endif
