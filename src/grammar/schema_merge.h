/* schema_merge.h: schemas that must hold together, as one. */
#ifndef SAC_GRAMMAR_SCHEMA_MERGE_H
#define SAC_GRAMMAR_SCHEMA_MERGE_H

#include "grammar/schema_writer.h"

/* The conjunction of `schema` (or NULL) without its keyword `without` (or NULL) and `other` (or
 * NULL), as a schema without $ref and allOf at the top. Owned by the writer. */
sac_status schema_merge(struct schema_writer *w, const cJSON *schema, const char *without,
                        const cJSON *other, const cJSON **out);

#endif
