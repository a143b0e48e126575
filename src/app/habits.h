/* habits.h: options of llama.cpp and vLLM that users type out of habit and that do not exist
 * here. */
#ifndef SAC_APP_HABITS_H
#define SAC_APP_HABITS_H

#include <stdbool.h>
#include <stddef.h>

enum habit_kind {
    HABIT_SO,     /* it is always so: nothing is said */
    HABIT_PASSED, /* it means nothing here: one line says why, and the work goes on */
    HABIT_WRONG,  /* what is asked for cannot be had so: wrong usage */
};

struct habit {
    const char *names; /* separated by blanks */
    enum habit_kind kind;
    const char *value; /* what may follow, separated by blanks; "" any word; NULL: nothing */
    const char *why;   /* NULL where it is always so */
};

/* NULL: no such habit. */
const struct habit *habits_find(const char *name, size_t n);
/* Is the word behind it its value? */
bool habits_takes(const struct habit *h, const char *word);

#endif
