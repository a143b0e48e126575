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

#define SCHEMA_BYTES_MAX (256u << 10) /* of the schema as text */
#define SCHEMA_DEPTH_MAX 64u          /* nesting of JSON and of schemas */

/* Any JSON object; the schema `{}` is treated the same. */
#define SCHEMA_ANY_OBJECT "{\"type\":\"object\"}"

/* Appends the rule `root` and those that it uses, whose names begin with `root`. */
sac_status schema_gbnf(struct strbuf *out, const char *root, const char *json, size_t n,
                       sac_error *err);

#endif
