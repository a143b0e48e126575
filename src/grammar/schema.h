/* schema.h: compiles a JSON schema to GBNF, so that every text of the grammar validates against the
 * schema.
 *
 * The grammar may allow less than the schema (object members come in the schema's order, numbers
 * have at most 16 digits, additional names contain no escapes), but never more: a keyword that
 * cannot be expressed is refused by name and place, SAC_ERR_UNSUPPORTED. Schemas are hostile
 * input. */
#ifndef SAC_GRAMMAR_SCHEMA_H
#define SAC_GRAMMAR_SCHEMA_H

#include "base/status.h"
#include "base/strbuf.h"

#define SCHEMA_BYTES_MAX (256u << 10) /* of a schema's text */
#define SCHEMA_DEPTH_MAX 64u          /* JSON within JSON, and schemas within each other */

/* Any JSON object; `{}` alone as a schema means the same. */
#define SCHEMA_ANY_OBJECT "{\"type\":\"object\"}"

/* Appends the rule `root` and those that it needs, whose names begin with `root`. */
sac_status schema_gbnf(struct strbuf *out, const char *root, const char *json, size_t n,
                       sac_error *err);

#endif
