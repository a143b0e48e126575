/* habits.h: options of llama.cpp and vLLM that users type out of habit and that do not exist
 * here. */
#ifndef SAC_APP_HABITS_H
#define SAC_APP_HABITS_H

#include <stdbool.h>
#include <stddef.h>

enum habit_kind {
    HABIT_SO,     /* already the default: accepted silently */
    HABIT_PASSED, /* has no meaning here: a note explains why, and the command continues */
    HABIT_WRONG,  /* not supported: a usage error */
};

struct habit {
    const char *names; /* separated by blanks */
    enum habit_kind kind;
    const char *value; /* possible values, separated by blanks; "": any; NULL: no value */
    const char *why;   /* NULL for HABIT_SO */
};

/* NULL: not a known option of another program. */
const struct habit *habits_find(const char *name, size_t n);
/* Whether the next word is the option's value. */
bool habits_takes(const struct habit *h, const char *word);

#endif
