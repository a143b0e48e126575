/* schema_check.h: the checks of a schema before it is turned into rules. */
#ifndef SAC_GRAMMAR_SCHEMA_CHECK_H
#define SAC_GRAMMAR_SCHEMA_CHECK_H

#include "grammar/schema_writer.h"

/* Types as a set of bits. */
enum {
    SCHEMA_CHECK_NULL = 1,
    SCHEMA_CHECK_BOOLEAN = 2,
    SCHEMA_CHECK_INTEGER = 4,
    SCHEMA_CHECK_NUMBER = 8, /* numbers that are not whole */
    SCHEMA_CHECK_STRING = 16,
    SCHEMA_CHECK_ARRAY = 32,
    SCHEMA_CHECK_OBJECT = 64,
    SCHEMA_CHECK_ANY = 127,
};

/* Parses the text and refuses what JSON readers disagree about: deep nesting, names given twice,
 * zero characters, numbers beyond those that a double holds. */
sac_status schema_check_parse(struct schema_writer *w, const char *json, size_t n);

/* The types that the schema's own keywords leave; 0 with the message set when 'type' is wrong. */
unsigned schema_check_types(struct schema_writer *w, const cJSON *schema);

/* Whether one of its own values is of a type that the schema allows. */
bool schema_check_fits(struct schema_writer *w, const cJSON *schema, const cJSON *value);

/* Refuses, by name, keywords that cannot be expressed. */
sac_status schema_check_keywords(struct schema_writer *w, const cJSON *schema);
/* Whether the keyword only describes, or is where others are kept, or nobody knows it. */
bool schema_check_is_annotation(const char *keyword);
/* Whether the schema has keywords that are neither annotations nor one of `but` (NULL: none). */
bool schema_check_asserts(const cJSON *schema, const char *but);

/* Whether no value can be valid by both; false where that is not certain. */
bool schema_check_disjoint(struct schema_writer *w, const cJSON *a, const cJSON *b, unsigned depth);

/* The target of a $ref within the document, NULL with the message set if there is none. */
const cJSON *schema_check_target(struct schema_writer *w, const char *ref);

#endif
