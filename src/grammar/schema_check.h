/* schema_check.h: the checks of a schema before it is turned into rules. */
#ifndef SAC_GRAMMAR_SCHEMA_CHECK_H
#define SAC_GRAMMAR_SCHEMA_CHECK_H

#include "grammar/schema_writer.h"

/* Types as bits. */
enum {
    SCHEMA_CHECK_NULL = 1,
    SCHEMA_CHECK_BOOLEAN = 2,
    SCHEMA_CHECK_INTEGER = 4,
    SCHEMA_CHECK_NUMBER = 8, /* non-integers */
    SCHEMA_CHECK_STRING = 16,
    SCHEMA_CHECK_ARRAY = 32,
    SCHEMA_CHECK_OBJECT = 64,
    SCHEMA_CHECK_ANY = 127,
};

/* Parses the text and refuses what JSON parsers disagree about: deep nesting, repeated names, NUL
 * characters, numbers beyond a double's range. */
sac_status schema_check_parse(struct schema_writer *w, const char *json, size_t n);

/* The types that the schema's own keywords allow; 0 with the message set: 'type' is invalid. */
unsigned schema_check_types(struct schema_writer *w, const cJSON *schema);

/* Whether a value of its "enum" or "const" has a type that the schema allows. */
bool schema_check_fits(struct schema_writer *w, const cJSON *schema, const cJSON *value);

/* Refuses unsupported keywords, by name. */
sac_status schema_check_keywords(struct schema_writer *w, const cJSON *schema);
/* Whether the keyword only annotates, holds definitions, or is unknown. */
bool schema_check_is_annotation(const char *keyword);
/* Whether the schema has keywords besides annotations and `but` (or NULL). */
bool schema_check_asserts(const cJSON *schema, const char *but);

/* Whether no value can match both; false if unsure. */
bool schema_check_disjoint(struct schema_writer *w, const cJSON *a, const cJSON *b, unsigned depth);

/* The target of a $ref within the document; NULL with the message set: none. */
const cJSON *schema_check_target(struct schema_writer *w, const char *ref);

#endif
