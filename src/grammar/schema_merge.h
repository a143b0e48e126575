/* schema_merge.h: schemas that must hold together, as one. */
#ifndef SAC_GRAMMAR_SCHEMA_MERGE_H
#define SAC_GRAMMAR_SCHEMA_MERGE_H

#include "grammar/schema_writer.h"

/* A schema without $ref and allOf of its own that says what `schema` (NULL: nothing), without its
 * keyword `without` (NULL: all), and `other` (NULL: nothing) say together. It belongs to the
 * writer. */
sac_status schema_merge(struct schema_writer *w, const cJSON *schema, const char *without,
                        const cJSON *other, const cJSON **out);

#endif
