/* survey.h: what the survey slots of all backends agree on: which pages enter the sum of a query,
 * and which keys are taken for a given mass. Everything is integers or a few exact operations, so
 * two kernels differ only where their masses do.
 *
 * The mass m of a key is the root mean square of its softmax shares over the queries of a part; M
 * is the sum of squares from which it is computed. How far m is below `least` is measured in steps,
 * by the difference of the bit patterns of the two squares: an octave of m, which is two octaves of
 * M, has OP_SURVEY_OCTAVE steps, and within an octave of M they are linear in the mantissa. A key
 * at step c >= 0 is taken if c < the limit of its place (survey_limits). A place has such a limit
 * with probability 2^(-c / OP_SURVEY_OCTAVE), which is the inverse of the weight, whatever m is
 * exactly. */
#ifndef SAC_OPS_SURVEY_H
#define SAC_OPS_SURVEY_H

#include "ops/ops.h"

#include <math.h>

#define SURVEY_PERIOD 256u /* number of places: a power of two */
#define SURVEY_SHIFT  21u  /* shift from a square's bits to steps: 23 bits of mantissa, 4 steps */

#ifdef __CUDACC__
#define SURVEY_ANYWHERE __host__ __device__ /* CUDA kernels call it, too */
#else
#define SURVEY_ANYWHERE
#endif

/* Weight of page i in the sum of a set that sees n_page pages: 0 if it is not summed. */
static inline float survey_page_weight(uint32_t n_page, uint32_t i)
{
    const uint32_t near = n_page > OP_SURVEY_NEAR ? n_page - OP_SURVEY_NEAR : 0;
    const uint32_t stride = near < OP_SURVEY_FAR ? OP_SURVEY_STRIDE : 2 * OP_SURVEY_STRIDE;
    const uint32_t phase = stride / 2;
    if (i == 0 || i >= near || near <= stride) return 1;
    if (i % stride != phase) return 0;
    return (float)(near - 1) / (float)((near - 1 - phase) / stride + 1);
}

/* The square of a mass of `least`, in the units of M. */
static inline float survey_least(const struct op_survey *op)
{
    return op->least * op->least * (float)op->n_query;
}

/* Limits of the places; those of the first page are repeated at the end, so that a page's are one
 * load. Neighbouring places are far apart in the order of limits (by the golden section of the
 * period): where masses change slowly, the number of selected keys is exact within one. */
static inline void survey_limits(int32_t limit[SURVEY_PERIOD + PAGE_TOK])
{
    for (uint32_t i = 0; i < SURVEY_PERIOD + PAGE_TOK; i++) {
        const uint32_t rank = 159 * i % SURVEY_PERIOD;
        const float u = ((float)rank + 0.5f) / SURVEY_PERIOD;
        limit[i] = (int32_t)ceilf(-(float)OP_SURVEY_OCTAVE * log2f(u));
    }
}

/* Seed of a part of a set; independent of how sets are split into calls. */
static inline uint32_t survey_seed(const struct op_survey *op, uint32_t set, uint32_t part)
{
    uint32_t x = op->seed ^ (op->n_page[set] * 0x9e3779b9u + part * 0x85ebca6bu);
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return x ^ x >> 15;
}

/* First place of a page. Successive periods are shifted against each other. */
static SURVEY_ANYWHERE inline uint32_t survey_place(uint32_t seed, uint32_t page)
{
    return (seed + page * PAGE_TOK + page / (SURVEY_PERIOD / PAGE_TOK) * 97) % SURVEY_PERIOD;
}

#endif
