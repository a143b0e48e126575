/* schema_values.h: the values of 'enum' and 'const' as a rule's body. */
#ifndef SAC_GRAMMAR_SCHEMA_VALUES_H
#define SAC_GRAMMAR_SCHEMA_VALUES_H

#include "grammar/schema_writer.h"

/* Appends the values of an allowed type as alternatives. Other keywords beside them are refused. */
sac_status schema_values_write(struct schema_writer *w, const cJSON *schema, struct strbuf *body);

#endif
