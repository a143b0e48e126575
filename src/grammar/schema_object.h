/* schema_object.h: objects and arrays of a schema as rules. */
#ifndef SAC_GRAMMAR_SCHEMA_OBJECT_H
#define SAC_GRAMMAR_SCHEMA_OBJECT_H

#include "grammar/schema_writer.h"

/* Append the alternative to `body`. */
sac_status schema_object_write(struct schema_writer *w, const cJSON *schema, struct strbuf *body);
sac_status schema_object_write_array(struct schema_writer *w, const cJSON *schema,
                                     struct strbuf *body);

#endif
