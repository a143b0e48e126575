/* rng.c: see the header. SplitMix64 is Steele, Lea and Flood's (OOPSLA 2014). `below` rejects the
 * uneven rest of the 2^64 values instead of folding it in, so no value is favoured. */
#include "eval/rng.h"

#include <assert.h>
#include <string.h>

#define GOLDEN 0x9E3779B97F4A7C15u

uint64_t rng_next(struct rng *r)
{
    uint64_t z = r->state += GOLDEN;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t rng_hash(const void *data, size_t n)
{
    const unsigned char *byte = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ byte[i]) * 0x100000001b3u;
    return h;
}

struct rng rng_stream(const char *task, uint64_t length, uint64_t seed, uint64_t index)
{
    /* Task, length, seed and index pass the mixer separately, so that streams of adjacent indices
     * or seeds are unrelated. */
    struct rng r = {rng_hash(task, strlen(task)) ^ length * GOLDEN};
    r.state = rng_next(&r) ^ seed;
    r.state = rng_next(&r) ^ index;
    r.state = rng_next(&r);
    return r;
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    assert(n > 0);
    const uint64_t rest = (UINT64_MAX % n + 1) % n; /* 2^64 mod n */
    uint64_t z = rng_next(r);
    while (rest && z > UINT64_MAX - rest) z = rng_next(r);
    return z % n;
}

void rng_shuffle(struct rng *r, uint32_t *item, size_t n)
{
    for (size_t i = n; i-- > 1;) {
        const size_t j = (size_t)rng_below(r, i + 1);
        const uint32_t kept = item[i];
        item[i] = item[j];
        item[j] = kept;
    }
}

void rng_sample(struct rng *r, uint32_t *out, uint32_t k, uint32_t n)
{
    assert(k <= n);
    /* Floyd's algorithm draws without a table of n: draw i is below n-k+i+1, and a number that was
     * drawn before is replaced by the largest possible one. k is small. */
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t top = n - k + i;
        uint32_t draw = (uint32_t)rng_below(r, (uint64_t)top + 1);
        for (uint32_t j = 0; j < i; j++)
            if (out[j] == draw) {
                draw = top;
                break;
            }
        out[i] = draw;
    }
}

void rng_sample_sorted(struct rng *r, uint32_t *out, uint32_t k, uint32_t n)
{
    rng_sample(r, out, k, n);
    for (uint32_t i = 1; i < k; i++) {
        const uint32_t v = out[i];
        uint32_t j = i;
        for (; j > 0 && out[j - 1] > v; j--) out[j] = out[j - 1];
        out[j] = v;
    }
}
