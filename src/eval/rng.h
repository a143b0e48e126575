/* rng.h: the only random numbers of the evaluation: SplitMix64, so that a sample depends only on
 * its name, length, seed and number, on every machine. */
#ifndef SAC_EVAL_RNG_H
#define SAC_EVAL_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng {
    uint64_t state;
};

/* The stream of sample `index` of a task at a length: each sample draws from a stream of its
 * own. */
struct rng rng_stream(const char *task, uint64_t length, uint64_t seed, uint64_t index);
uint64_t rng_next(struct rng *r);
/* 0 to n-1, every value equally likely; n > 0. */
uint64_t rng_below(struct rng *r, uint64_t n);
void rng_shuffle(struct rng *r, uint32_t *item, size_t n);
/* `out` [k] gets k different numbers below n, in the order drawn; k <= n. */
void rng_sample(struct rng *r, uint32_t *out, uint32_t k, uint32_t n);
/* The same, in rising order. */
void rng_sample_sorted(struct rng *r, uint32_t *out, uint32_t k, uint32_t n);

/* FNV-1a, for names of streams and of runs. */
uint64_t rng_hash(const void *data, size_t n);

#endif
