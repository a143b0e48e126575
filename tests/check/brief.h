/* brief.h: whether a check is watched by a tool under which a GPU is a hundred times slower
 * (SAC_CHECK_BRIEF, which tools/check_cuda.sh says): fewer steps and repeats then, of the same kinds,
 * so that every kernel runs in each of its forms. */
#ifndef SAC_TESTS_BRIEF_H
#define SAC_TESTS_BRIEF_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool is_brief(void)
{
    return getenv("SAC_CHECK_BRIEF") != NULL;
}

#endif
