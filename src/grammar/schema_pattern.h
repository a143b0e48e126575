/* schema_pattern.h: regular expressions of "pattern" as GBNF within a JSON string. */
#ifndef SAC_GRAMMAR_SCHEMA_PATTERN_H
#define SAC_GRAMMAR_SCHEMA_PATTERN_H

#include "grammar/schema_writer.h"

/* Characters of the texts that a pattern allows. */
struct schema_pattern_length {
    double min, max; /* max may be INFINITY */
};

/* Appends what matches to `body`, without the quotes. Characters, classes, \d \w \s \D \W \S,
 * groups, alternatives, * + ? {m,n}, ^ and $ at the ends of the outermost alternatives; anything
 * else is refused by name. */
sac_status schema_pattern_write(struct schema_writer *w, const char *pattern, struct strbuf *body,
                                struct schema_pattern_length *out_length);

#endif
