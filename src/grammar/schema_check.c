/* schema_check.c: see the header. */
#include "grammar/schema_check.h"

#include "base/mem.h"
#include "grammar/schema.h"

#include <math.h>
#include <string.h>

#define MEMBERS_MAX 2000u /* of one object: names are compared pairwise */

/* ---- The text ---- */

static sac_status check_text(const struct schema_writer *w, const char *json, size_t n)
{
    unsigned depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t bytes = charset_get(json + i, n - i, &cp);
        if (bytes == 0 || cp == 0)
            return error_set(w->err, SAC_ERR_FORMAT, "schema: byte %zu is not UTF-8 text", i);
        if (quoted && cp == '\\') {
            if (n - i >= 6 && memcmp(json + i, "\\u0000", 6) == 0)
                return error_set(w->err, SAC_ERR_UNSUPPORTED,
                                 "schema: the character \\u0000 is not supported");
            i += 2;
            continue;
        }
        if (cp == '"') quoted = !quoted;
        if (!quoted && (cp == '{' || cp == '[') && ++depth > SCHEMA_DEPTH_MAX)
            return error_set(w->err, SAC_ERR_CONTEXT, "schema: nested more than %u deep",
                             SCHEMA_DEPTH_MAX);
        if (!quoted && (cp == '}' || cp == ']') && depth > 0) depth--;
        i += bytes;
    }
    return SAC_OK;
}

static sac_status check_members(const struct schema_writer *w, const cJSON *object)
{
    unsigned n = 0;
    for (const cJSON *a = object->child; a; a = a->next) {
        if (++n > MEMBERS_MAX)
            return error_set(w->err, SAC_ERR_CONTEXT, "schema: an object of more than %u members",
                             MEMBERS_MAX);
        for (const cJSON *b = object->child; b != a; b = b->next)
            if (strcmp(a->string, b->string) == 0)
                return error_set(w->err, SAC_ERR_FORMAT,
                                 "schema: '%.64s' stands twice in an object", a->string);
    }
    return SAC_OK;
}

/* Recursion is bounded by the nesting of the text, SCHEMA_DEPTH_MAX. */
static sac_status check_values(const struct schema_writer *w, const cJSON *value)
{
    if (cJSON_IsNumber(value) && !isfinite(value->valuedouble))
        return error_set(w->err, SAC_ERR_FORMAT, "schema: a number is too large");
    if (cJSON_IsObject(value)) TRY(check_members(w, value));
    for (const cJSON *item = value->child; item; item = item->next) TRY(check_values(w, item));
    return SAC_OK;
}

sac_status schema_check_parse(struct schema_writer *w, const char *json, size_t n)
{
    if (n > SCHEMA_BYTES_MAX)
        return error_set(w->err, SAC_ERR_CONTEXT, "schema: %zu bytes, at most %u", n,
                         SCHEMA_BYTES_MAX);
    TRY(check_text(w, json, n));
    char *const text = mem_strndup(json, n);
    if (!text) return schema_writer_no_memory(w);
    const char *end = text;
    w->document = cJSON_ParseWithOpts(text, &end, true);
    const size_t at = (size_t)(end - text);
    mem_free(text);
    if (!w->document) return error_set(w->err, SAC_ERR_FORMAT, "schema: not JSON, at byte %zu", at);
    return check_values(w, w->document);
}

/* ---- Types ---- */

static unsigned type_of_name(const char *name)
{
    static const struct {
        const char *name;
        unsigned types;
    } types[] = {
        {"null", SCHEMA_CHECK_NULL},       {"boolean", SCHEMA_CHECK_BOOLEAN},
        {"integer", SCHEMA_CHECK_INTEGER}, {"number", SCHEMA_CHECK_INTEGER | SCHEMA_CHECK_NUMBER},
        {"string", SCHEMA_CHECK_STRING},   {"array", SCHEMA_CHECK_ARRAY},
        {"object", SCHEMA_CHECK_OBJECT}};
    for (size_t i = 0; name && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(name, types[i].name) == 0) return types[i].types;
    return 0;
}

static unsigned type_of_value(const cJSON *value)
{
    if (cJSON_IsNull(value)) return SCHEMA_CHECK_NULL;
    if (cJSON_IsBool(value)) return SCHEMA_CHECK_BOOLEAN;
    if (cJSON_IsString(value)) return SCHEMA_CHECK_STRING;
    if (cJSON_IsArray(value)) return SCHEMA_CHECK_ARRAY;
    if (cJSON_IsObject(value)) return SCHEMA_CHECK_OBJECT;
    return value->valuedouble == floor(value->valuedouble) ? SCHEMA_CHECK_INTEGER
                                                           : SCHEMA_CHECK_NUMBER;
}

static unsigned types_of_values(const cJSON *schema)
{
    const cJSON *const list = schema_writer_get(schema, "enum");
    const cJSON *const constant = schema_writer_get(schema, "const"), *item;
    unsigned types = list ? 0 : SCHEMA_CHECK_ANY;
    if (list) cJSON_ArrayForEach(item, list) types |= type_of_value(item);
    return constant ? types & type_of_value(constant) : types;
}

unsigned schema_check_types(struct schema_writer *w, const cJSON *schema)
{
    const cJSON *const type = schema_writer_get(schema, "type"), *item;
    unsigned types = 0;
    if (!type) return types_of_values(schema);
    if (cJSON_IsString(type)) types = type_of_name(type->valuestring);
    if (cJSON_IsArray(type)) {
        cJSON_ArrayForEach(item, type)
        {
            const unsigned one = type_of_name(cJSON_GetStringValue(item));
            if (one == 0) return schema_writer_refuse(w, SAC_ERR_FORMAT, "an unknown 'type'"), 0u;
            types |= one;
        }
    }
    if (types == 0) return schema_writer_refuse(w, SAC_ERR_FORMAT, "an unknown 'type'"), 0u;
    /* Values are numbers without regard to "integer": 'type' is checked separately. */
    return types & types_of_values(schema);
}

bool schema_check_fits(struct schema_writer *w, const cJSON *schema, const cJSON *value)
{
    return (schema_check_types(w, schema) & type_of_value(value)) != 0;
}

/* ---- Keywords ---- */

static bool is_among(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

static const char *const expressed[] = {"type",
                                        "enum",
                                        "const",
                                        "properties",
                                        "required",
                                        "items",
                                        "prefixItems",
                                        "minItems",
                                        "maxItems",
                                        "additionalProperties",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        "pattern",
                                        "format",
                                        "minLength",
                                        "maxLength",
                                        "minimum",
                                        "maximum",
                                        "minProperties",
                                        "maxProperties",
                                        "multipleOf",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        NULL};

static const char *const refused[] = {"not",
                                      "if",
                                      "then",
                                      "else",
                                      "dependencies",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "patternProperties",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "propertyNames",
                                      "uniqueItems",
                                      "unevaluatedItems",
                                      "unevaluatedProperties",
                                      "additionalItems",
                                      "$dynamicRef",
                                      "$recursiveRef",
                                      "nullable",
                                      NULL};

/* Unknown keywords are annotations, according to the specification. */
bool schema_check_is_annotation(const char *keyword)
{
    return !is_among(keyword, expressed) && !is_among(keyword, refused);
}

bool schema_check_asserts(const cJSON *schema, const char *but)
{
    for (const cJSON *k = schema->child; k; k = k->next)
        if (!schema_check_is_annotation(k->string) && !(but && strcmp(k->string, but) == 0))
            return true;
    return false;
}

/* Keywords that do not restrict anything with this value. */
static bool is_idle(const cJSON *k)
{
    const char *const name = k->string;
    if (strcmp(name, "uniqueItems") == 0 || strcmp(name, "nullable") == 0) return cJSON_IsFalse(k);
    if (strncmp(name, "unevaluated", 11) == 0) return cJSON_IsTrue(k);
    if (strcmp(name, "patternProperties") == 0 || strncmp(name, "depend", 6) == 0)
        return cJSON_IsObject(k) && !k->child;
    return false;
}

sac_status schema_check_keywords(struct schema_writer *w, const cJSON *schema)
{
    for (const cJSON *k = schema->child; k; k = k->next) {
        if (!is_among(k->string, refused) || is_idle(k)) continue;
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "'%s' is not supported", k->string);
    }
    return SAC_OK;
}

/* ---- References ---- */

static int hex_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes one step of a JSON pointer into `out`; returns the bytes consumed. */
static size_t read_step(struct strbuf *out, const char *s)
{
    size_t i = 0;
    strbuf_reset(out);
    strbuf_add(out, "", 0);
    for (; s[i] && s[i] != '/'; i++) {
        char c = s[i];
        if (c == '~' && (s[i + 1] == '0' || s[i + 1] == '1')) {
            c = s[++i] == '0' ? '~' : '/';
        } else if (c == '%' && hex_of(s[i + 1]) >= 0 && hex_of(s[i + 2]) >= 0) {
            c = (char)(hex_of(s[i + 1]) << 4 | hex_of(s[i + 2]));
            i += 2;
        }
        strbuf_add(out, &c, 1);
    }
    return i;
}

static const cJSON *step_into(const cJSON *at, const char *step)
{
    if (cJSON_IsObject(at)) return schema_writer_get(at, step);
    if (!cJSON_IsArray(at)) return NULL;
    int i = 0;
    for (const char *s = step; *s; s++) {
        if (*s < '0' || *s > '9' || i > 100000) return NULL;
        i = i * 10 + (*s - '0');
    }
    return cJSON_GetArrayItem(at, i);
}

const cJSON *schema_check_target(struct schema_writer *w, const char *ref)
{
    const cJSON *at = w->document;
    struct strbuf step = {0};
    if (!ref || ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        (void)schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                   "'$ref' %.64s: only '#' and '#/...' are supported",
                                   ref ? ref : "is not a text");
        return NULL;
    }
    for (const char *s = ref + 1; *s && at;) {
        s += 1 + read_step(&step, s + 1);
        at = step.failed ? NULL : step_into(at, step.data);
    }
    strbuf_deinit(&step);
    if (!at) (void)schema_writer_refuse(w, SAC_ERR_NOT_FOUND, "'$ref' %.64s leads nowhere", ref);
    return at;
}

/* ---- Disjoint alternatives ---- */

static bool requires(const cJSON *schema, const char *name)
{
    const cJSON *item, *const required = schema_writer_get(schema, "required");
    cJSON_ArrayForEach(item, required)
    {
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0) return true;
    }
    return false;
}

static bool holds_value(const cJSON *schema, const cJSON *value)
{
    const cJSON *item, *const list = schema_writer_get(schema, "enum");
    const cJSON *const constant = schema_writer_get(schema, "const");
    if (constant) return cJSON_Compare(constant, value, true);
    cJSON_ArrayForEach(item, list)
    {
        if (cJSON_Compare(item, value, true)) return true;
    }
    return false;
}

static bool has_values(const cJSON *schema)
{
    return schema_writer_get(schema, "enum") || schema_writer_get(schema, "const");
}

static bool values_disjoint(const cJSON *a, const cJSON *b)
{
    const cJSON *item, *const constant = schema_writer_get(a, "const");
    if (!has_values(a) || !has_values(b)) return false;
    if (constant) return !holds_value(b, constant);
    cJSON_ArrayForEach(item, schema_writer_get(a, "enum"))
    {
        if (holds_value(b, item)) return false;
    }
    return true;
}

/* Whether one of them requires a member that the other does not allow. */
static bool member_excluded(const cJSON *a, const cJSON *b)
{
    const cJSON *item, *const allowed = schema_writer_get(b, "properties");
    if (!cJSON_IsFalse(schema_writer_get(b, "additionalProperties"))) return false;
    cJSON_ArrayForEach(item, schema_writer_get(a, "required"))
    {
        if (cJSON_IsString(item) && !schema_writer_get(allowed, item->valuestring)) return true;
    }
    return false;
}

static bool objects_disjoint(struct schema_writer *w, const cJSON *a, const cJSON *b,
                             unsigned depth)
{
    const cJSON *const in_b = schema_writer_get(b, "properties");
    const cJSON *p;
    cJSON_ArrayForEach(p, schema_writer_get(a, "properties"))
    {
        const cJSON *const other = schema_writer_get(in_b, p->string);
        if (other && requires(a, p->string) && requires(b, p->string) &&
            schema_check_disjoint(w, p, other, depth))
            return true;
    }
    return member_excluded(a, b) || member_excluded(b, a);
}

static const cJSON *resolve(struct schema_writer *w, const cJSON *schema)
{
    for (unsigned i = 0; i < 8 && cJSON_IsObject(schema); i++) {
        const cJSON *const ref = schema_writer_get(schema, "$ref");
        if (!ref) return schema;
        schema = schema_check_target(w, cJSON_GetStringValue(ref));
    }
    return NULL;
}

bool schema_check_disjoint(struct schema_writer *w, const cJSON *a, const cJSON *b, unsigned depth)
{
    if (depth == 0) return false;
    a = resolve(w, a);
    b = resolve(w, b);
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b)) return false;
    const unsigned types = schema_check_types(w, a) & schema_check_types(w, b);
    if (types == 0 || values_disjoint(a, b)) return true;
    return types == SCHEMA_CHECK_OBJECT && objects_disjoint(w, a, b, depth - 1);
}
