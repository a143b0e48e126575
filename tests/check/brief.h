/* brief.h: whether a check is watched by a tool under which a GPU is a hundred times slower
 * (SAC_CHECK_BRIEF, which tools/check_cuda.sh says): fewer steps and repeats then, of the same
 * kinds, so that every kernel runs in each of its forms. */
#ifndef SAC_TESTS_BRIEF_H
#define SAC_TESTS_BRIEF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline bool is_brief(void)
{
    return getenv("SAC_CHECK_BRIEF") != NULL;
}

/* What a loop over cases that are much alike adds: 1, or n to take every n-th of them. */
static inline uint32_t brief_by(uint32_t n)
{
    return is_brief() ? n : 1;
}

#endif
