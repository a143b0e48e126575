/* hadamard.h: a fixed random rotation of d channels, cheaper than a matrix product: rounds of
 * random signs and Hadamard transforms. The signs of the rotated channels serve as well as the
 * signs along random directions, except that these directions are orthogonal and not independent.
 */
#ifndef SAC_METHODS_HADAMARD_H
#define SAC_METHODS_HADAMARD_H

#include <math.h>
#include <stdint.h>

static inline void hadamard_transform(float *x, uint32_t n)
{
    for (uint32_t half = 1; half < n; half *= 2)
        for (uint32_t i = 0; i < n; i += 2 * half)
            for (uint32_t j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    const float unit = 1 / sqrtf((float)n);
    for (uint32_t i = 0; i < n; i++) x[i] *= unit;
}

/* Rotates x [d] in place; another seed is another rotation. */
static inline void hadamard_rotate(float *x, uint32_t d, uint64_t seed)
{
    seed = seed * 0x9e3779b97f4a7c15u + 0x7f4a7c15u;
    for (int round = 0; round < 3; round++) {
        for (uint32_t c = 0; c < d; c++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            if (seed >> 63) x[c] = -x[c];
        }
        /* Blocks of powers of two from the other end every second round, so that all mix. */
        for (uint32_t done = 0, n; done < d; done += n) {
            n = 1u << (31 - __builtin_clz(d - done));
            hadamard_transform(round % 2 == 0 ? x + done : x + (d - done - n), n);
        }
    }
}

#endif
