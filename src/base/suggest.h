/* suggest.h: "did you mean": the known name nearest to an unknown word. */
#ifndef SAC_BASE_SUGGEST_H
#define SAC_BASE_SUGGEST_H

#include <stddef.h>

#define SUGGEST_MAX 48u /* maximum bytes; longer names are not compared */

struct suggest {
    char word[SUGGEST_MAX], best[SUGGEST_MAX];
    size_t far; /* distance of `best`; too large: `best` is empty */
};

struct suggest suggest_begin(const char *word, size_t n);
/* Considers a name; the first of several equally near ones wins. */
void suggest_try(struct suggest *s, const char *name, size_t n);
/* " (did you mean 'NAME'?)" or "". `buf` belongs to the caller. */
#define SUGGEST_HINT_BYTES (SUGGEST_MAX + 24u)
const char *suggest_hint(const struct suggest *s, char buf[SUGGEST_HINT_BYTES]);

#endif
