/* schema.c: see the header. Schemas become rules, one rule for each schema, the shared ones at the
 * end.
 *
 * A nested schema is written before the enclosing one is complete, so recursion in C follows the
 * nesting of the text, and that of joined schemas, up to SCHEMA_DEPTH_MAX. Targets of $ref are
 * written one after the other from a list, so schemas may refer to themselves. */
#include "grammar/schema.h"

#include "base/mem.h"
#include "grammar/schema_check.h"
#include "grammar/schema_merge.h"
#include "grammar/schema_number.h"
#include "grammar/schema_object.h"
#include "grammar/schema_string.h"
#include "grammar/schema_values.h"
#include "grammar/schema_writer.h"

#include <string.h>

#define DISJOINT_DEPTH 8u /* depth of members compared to tell alternatives apart */

/* ---- References ---- */

/* The rule of a $ref's target, which is written later. */
static sac_status rule_of_target(struct schema_writer *w, const cJSON *target, uint32_t *out_rule)
{
    for (uint32_t i = 0; i < w->n_ref; i++) {
        if (w->ref[i].target != target) continue;
        *out_rule = w->ref[i].rule;
        return SAC_OK;
    }
    if (w->n_ref == SCHEMA_WRITER_REFS_MAX)
        return schema_writer_refuse(w, SAC_ERR_CONTEXT, "more than %u targets of '$ref'",
                                    SCHEMA_WRITER_REFS_MAX);
    TRY(schema_writer_rule(w, out_rule));
    w->ref[w->n_ref++] = (struct schema_ref){target, *out_rule};
    return SAC_OK;
}

static sac_status write_reference(struct schema_writer *w, const cJSON *ref, struct strbuf *body)
{
    uint32_t rule;
    const cJSON *const target = schema_check_target(w, cJSON_GetStringValue(ref));
    if (!target) return SAC_ERR_NOT_FOUND;
    TRY(rule_of_target(w, target, &rule));
    schema_writer_name(w, body, rule);
    return SAC_OK;
}

/* ---- Alternatives and values ---- */

/* The alternatives of oneOf must be disjoint: a grammar cannot reject values that match two of
 * them. */
static sac_status check_one_of(struct schema_writer *w, const cJSON *list)
{
    int i = 0, k;
    for (const cJSON *a = list->child; a; a = a->next, i++) {
        k = i + 1;
        for (const cJSON *b = a->next; b; b = b->next, k++)
            if (!schema_check_disjoint(w, a, b, DISJOINT_DEPTH))
                return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                            "'oneOf': alternatives %d and %d may both be valid; "
                                            "use 'anyOf', or give them a required member with "
                                            "different constants",
                                            i, k);
    }
    return SAC_OK;
}

static sac_status write_alternatives(struct schema_writer *w, const cJSON *schema,
                                     const char *keyword, struct strbuf *body)
{
    const cJSON *const list = schema_writer_get(schema, keyword);
    const bool alone = !schema_check_asserts(schema, keyword);
    const cJSON *item;
    if (!cJSON_IsArray(list) || !list->child)
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'%s' is a list of schemas", keyword);
    if (strcmp(keyword, "oneOf") == 0) TRY(check_one_of(w, list));
    cJSON_ArrayForEach(item, list)
    {
        uint32_t rule;
        const cJSON *one = item;
        const size_t was = schema_writer_enter(w, keyword, NULL);
        if (!alone) TRY(schema_merge(w, schema, keyword, item, &one));
        TRY(schema_writer_write(w, one, &rule));
        schema_writer_leave(w, was);
        if (item->prev && item != list->child) strbuf_adds(body, "| ");
        schema_writer_name(w, body, rule);
    }
    return SAC_OK;
}

/* ---- Types ---- */

/* Without "type", the keywords imply the types. */
static unsigned types_meant(const cJSON *schema)
{
    static const struct {
        const char *keyword;
        unsigned types;
    } kinds[] = {{"properties", SCHEMA_CHECK_OBJECT},
                 {"required", SCHEMA_CHECK_OBJECT},
                 {"additionalProperties", SCHEMA_CHECK_OBJECT},
                 {"minProperties", SCHEMA_CHECK_OBJECT},
                 {"maxProperties", SCHEMA_CHECK_OBJECT},
                 {"items", SCHEMA_CHECK_ARRAY},
                 {"prefixItems", SCHEMA_CHECK_ARRAY},
                 {"minItems", SCHEMA_CHECK_ARRAY},
                 {"maxItems", SCHEMA_CHECK_ARRAY},
                 {"pattern", SCHEMA_CHECK_STRING},
                 {"format", SCHEMA_CHECK_STRING},
                 {"minLength", SCHEMA_CHECK_STRING},
                 {"maxLength", SCHEMA_CHECK_STRING},
                 {"minimum", SCHEMA_CHECK_INTEGER | SCHEMA_CHECK_NUMBER},
                 {"maximum", SCHEMA_CHECK_INTEGER | SCHEMA_CHECK_NUMBER},
                 {"exclusiveMinimum", SCHEMA_CHECK_INTEGER | SCHEMA_CHECK_NUMBER},
                 {"exclusiveMaximum", SCHEMA_CHECK_INTEGER | SCHEMA_CHECK_NUMBER},
                 {"multipleOf", SCHEMA_CHECK_INTEGER}};
    unsigned types = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (schema_writer_get(schema, kinds[i].keyword)) types |= kinds[i].types;
    return types ? types : SCHEMA_CHECK_ANY;
}

static sac_status write_type(struct schema_writer *w, const cJSON *schema, unsigned type,
                             struct strbuf *body)
{
    switch (type) {
    case SCHEMA_CHECK_NULL: schema_writer_shared(w, body, SCHEMA_NULL); return SAC_OK;
    case SCHEMA_CHECK_BOOLEAN: schema_writer_shared(w, body, SCHEMA_BOOLEAN); return SAC_OK;
    case SCHEMA_CHECK_INTEGER: return schema_number_write_integer(w, schema, body);
    case SCHEMA_CHECK_STRING: return schema_string_write(w, schema, body);
    case SCHEMA_CHECK_ARRAY: return schema_object_write_array(w, schema, body);
    case SCHEMA_CHECK_OBJECT: return schema_object_write(w, schema, body);
    default: return schema_number_write(w, schema, body);
    }
}

static sac_status write_types(struct schema_writer *w, const cJSON *schema, struct strbuf *body)
{
    unsigned left = schema_check_types(w, schema);
    if (left == 0) return SAC_ERR_FORMAT;
    if (!schema_writer_get(schema, "type")) left &= types_meant(schema);
    if (left == SCHEMA_CHECK_ANY) {
        schema_writer_shared(w, body, SCHEMA_VALUE);
        return SAC_OK;
    }
    /* Integers are numbers. */
    if (left & SCHEMA_CHECK_NUMBER) left &= ~(unsigned)SCHEMA_CHECK_INTEGER;
    for (unsigned type = 1; left; type <<= 1) {
        if (!(left & type)) continue;
        TRY(write_type(w, schema, type, body));
        left &= ~type;
        if (left) strbuf_adds(body, "| ");
    }
    return SAC_OK;
}

/* ---- Schemas ---- */

static sac_status write_body(struct schema_writer *w, const cJSON *schema, struct strbuf *body)
{
    const cJSON *merged;
    if (cJSON_IsTrue(schema)) {
        schema_writer_shared(w, body, SCHEMA_VALUE);
        return SAC_OK;
    }
    if (cJSON_IsFalse(schema))
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "a schema that allows nothing");
    if (!cJSON_IsObject(schema))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "a schema is an object, true or false");
    TRY(schema_check_keywords(w, schema));
    const cJSON *const ref = schema_writer_get(schema, "$ref");
    if (ref && !schema_check_asserts(schema, "$ref")) return write_reference(w, ref, body);
    if (ref || schema_writer_get(schema, "allOf")) {
        TRY(schema_merge(w, schema, NULL, NULL, &merged));
        return write_body(w, merged, body);
    }
    if (schema_writer_get(schema, "anyOf")) return write_alternatives(w, schema, "anyOf", body);
    if (schema_writer_get(schema, "oneOf")) return write_alternatives(w, schema, "oneOf", body);
    if (schema_writer_get(schema, "enum") || schema_writer_get(schema, "const"))
        return schema_values_write(w, schema, body);
    return write_types(w, schema, body);
}

static sac_status write_as(struct schema_writer *w, const cJSON *schema, uint32_t rule)
{
    struct strbuf body = {0};
    if (w->depth == SCHEMA_DEPTH_MAX)
        return schema_writer_refuse(w, SAC_ERR_CONTEXT, "schemas more than %u deep",
                                    SCHEMA_DEPTH_MAX);
    w->depth++;
    const sac_status status = write_body(w, schema, &body);
    w->depth--;
    if (status == SAC_OK) {
        strbuf_add(&body, "", 0);
        schema_writer_begin(w, rule);
        strbuf_addf(w->out, "%s\n", body.data ? body.data : "");
        w->out->failed |= body.failed;
    }
    strbuf_deinit(&body);
    return status;
}

sac_status schema_writer_write(struct schema_writer *w, const cJSON *schema, uint32_t *out_rule)
{
    TRY(schema_writer_rule(w, out_rule));
    return write_as(w, schema, *out_rule);
}

/* ---- Shared rules ---- */

#define CHARACTER                                                                                  \
    "[^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | "                                           \
    "\"u\" ([0-9a-cA-Ce-fE-F] [0-9a-fA-F] | [dD] [0-7]) [0-9a-fA-F]{2})"
#define INTEGER "\"-\"? (\"0\" | [1-9] [0-9]{0,15})"

/* Names of shared rules are between two '@'; a rule that others use comes after them. */
static const char *const shared_rule[SCHEMA_SHARED_N] = {
    /* A blank, or a newline with indentation. Bounded, because a model may otherwise produce white
     * space without end. */
    [SCHEMA_WS] = "\" \"? | \"\\n\" (\" \"{0,40} | \"\\t\"{1,20})",
    [SCHEMA_CHAR] = CHARACTER,
    [SCHEMA_STRING] = "\"\\\"\" @char@* \"\\\"\"",
    [SCHEMA_INTEGER] = INTEGER,
    [SCHEMA_NUMBER] = INTEGER " (\".\" [0-9]{1,16})? ([eE] [+-]? [0-9]{1,2})?",
    [SCHEMA_BOOLEAN] = "\"true\" | \"false\"",
    [SCHEMA_NULL] = "\"null\"",
    [SCHEMA_OBJECT] =
        "\"{\" @ws@ (@string@ \":\" @ws@ @value@ (\",\" @ws@ @string@ \":\" @ws@ @value@)* "
        "@ws@)? \"}\"",
    [SCHEMA_ARRAY] = "\"[\" @ws@ (@value@ (\",\" @ws@ @value@)* @ws@)? \"]\"",
    [SCHEMA_VALUE] = "@object@ | @array@ | @string@ | @number@ | @boolean@ | @null@",
};

static const unsigned shared_needs[SCHEMA_SHARED_N] = {
    [SCHEMA_STRING] = 1u << SCHEMA_CHAR,
    [SCHEMA_OBJECT] = 1u << SCHEMA_WS | 1u << SCHEMA_STRING | 1u << SCHEMA_VALUE,
    [SCHEMA_ARRAY] = 1u << SCHEMA_WS | 1u << SCHEMA_VALUE,
    [SCHEMA_VALUE] = 1u << SCHEMA_OBJECT | 1u << SCHEMA_ARRAY | 1u << SCHEMA_STRING |
                     1u << SCHEMA_NUMBER | 1u << SCHEMA_BOOLEAN | 1u << SCHEMA_NULL,
};

static void write_shared_rule(struct schema_writer *w, enum schema_shared which)
{
    schema_writer_shared(w, w->out, which);
    strbuf_adds(w->out, "::= ");
    for (const char *s = shared_rule[which]; *s;) {
        const char *const at = strchr(s, '@'), *const end = at ? strchr(at + 1, '@') : NULL;
        if (!end) {
            strbuf_adds(w->out, s);
            break;
        }
        strbuf_add(w->out, s, (size_t)(at - s));
        strbuf_addf(w->out, "%s-%.*s", w->root, (int)(end - at - 1), at + 1);
        s = end + 1;
    }
    strbuf_adds(w->out, "\n");
}

static void write_shared(struct schema_writer *w)
{
    /* Each pass writes the rules that those of the previous one use. */
    for (unsigned pass = 0; pass < SCHEMA_SHARED_N; pass++)
        for (unsigned i = 0; i < SCHEMA_SHARED_N; i++)
            for (unsigned k = 0; w->shared[i] && k < SCHEMA_SHARED_N; k++)
                if (shared_needs[i] & 1u << k) w->shared[k] = true;
    for (unsigned i = 0; i < SCHEMA_SHARED_N; i++)
        if (w->shared[i]) write_shared_rule(w, (enum schema_shared)i);
}

/* ---- Entry point ---- */

static sac_status write_document(struct schema_writer *w)
{
    uint32_t rule;
    const cJSON *schema = w->document;
    cJSON any = {.type = cJSON_Object}, kind = {.type = cJSON_String,
                                                .string = (char[]){"type"},
                                                .valuestring = (char[]){"object"}};
    if (cJSON_IsObject(schema) && !schema->child) {
        any.child = &kind; /* SCHEMA_ANY_OBJECT */
        schema = &any;
    }
    w->made = cJSON_CreateArray();
    w->ref = mem_calloc(SCHEMA_WRITER_REFS_MAX, sizeof *w->ref);
    if (!w->made || !w->ref) return schema_writer_no_memory(w);
    TRY(schema_writer_rule(w, &rule)); /* 0: the root's name */
    w->ref[w->n_ref++] = (struct schema_ref){w->document, rule};
    TRY(write_as(w, schema, rule));
    for (w->n_ref_done = 1; w->n_ref_done < w->n_ref; w->n_ref_done++) {
        const struct schema_ref ref = w->ref[w->n_ref_done];
        const size_t was = schema_writer_enter(w, "$ref", ref.target->string);
        TRY(write_as(w, ref.target, ref.rule));
        schema_writer_leave(w, was);
    }
    write_shared(w);
    return w->out->failed ? schema_writer_no_memory(w) : SAC_OK;
}

sac_status schema_gbnf(struct strbuf *out, const char *root, const char *json, size_t n,
                       sac_error *err)
{
    struct schema_writer w = {.out = out, .root = root, .err = err};
    sac_status status = schema_check_parse(&w, json, n);
    if (status == SAC_OK) status = write_document(&w);
    cJSON_Delete(w.document);
    cJSON_Delete(w.made);
    mem_free(w.ref);
    return status;
}
