/* schema_string.h: strings of a schema: lengths, patterns, formats. */
#ifndef SAC_GRAMMAR_SCHEMA_STRING_H
#define SAC_GRAMMAR_SCHEMA_STRING_H

#include "grammar/schema_writer.h"

/* Appends the alternative to `body`. */
sac_status schema_string_write(struct schema_writer *w, const cJSON *schema, struct strbuf *body);

#endif
