/* schema_number.h: integers and numbers between bounds, as their digits. */
#ifndef SAC_GRAMMAR_SCHEMA_NUMBER_H
#define SAC_GRAMMAR_SCHEMA_NUMBER_H

#include "grammar/schema_writer.h"

/* Append the alternative to `body`. */
sac_status schema_number_write_integer(struct schema_writer *w, const cJSON *schema,
                                       struct strbuf *body);
sac_status schema_number_write(struct schema_writer *w, const cJSON *schema, struct strbuf *body);

#endif
