/* schema_pattern.h: regular expressions of "pattern" as GBNF within a JSON string. */
#ifndef SAC_GRAMMAR_SCHEMA_PATTERN_H
#define SAC_GRAMMAR_SCHEMA_PATTERN_H

#include "grammar/schema_writer.h"

/* Length of the texts that match a pattern, in characters. */
struct schema_pattern_length {
    double min, max; /* max may be INFINITY */
};

/* Appends a rule for what matches to `body`, without quotes. Supported: characters, classes, \d \w
 * \s \D \W \S, groups, alternatives, * + ? {m,n}, and ^ and $ at the ends of top-level
 * alternatives. Anything else is refused by name. */
sac_status schema_pattern_write(struct schema_writer *w, const char *pattern, struct strbuf *body,
                                struct schema_pattern_length *out_length);

#endif
