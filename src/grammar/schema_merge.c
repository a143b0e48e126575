/* schema_merge.c: see the header. References and allOf are followed first; then the keywords of all
 * members are joined one by one: the narrower of two bounds, the types that both have, all required
 * names, members of objects by name. Two patterns, or two lists of alternatives, cannot be joined
 * and are refused.
 *
 * "additionalProperties" looks at the properties beside it and at no others, so it decides about
 * the properties of the other members, too. */
#include "grammar/schema_merge.h"

#include "grammar/schema.h"
#include "grammar/schema_check.h"

#include <string.h>

#define MEMBERS_MAX 128u

struct member {
    const cJSON *schema;
    const char *without; /* a keyword to ignore */
};

struct members {
    struct member item[MEMBERS_MAX];
    uint32_t n;
};

static sac_status flatten(struct schema_writer *w, struct members *all, const cJSON *schema,
                          const char *without, unsigned depth)
{
    const cJSON *item;
    if (cJSON_IsTrue(schema)) return SAC_OK;
    if (cJSON_IsFalse(schema))
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "a schema that allows nothing");
    if (!cJSON_IsObject(schema))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "a schema is an object, true or false");
    if (depth > SCHEMA_DEPTH_MAX || all->n == MEMBERS_MAX)
        return schema_writer_refuse(w, SAC_ERR_CONTEXT,
                                    "the schema refers to itself, or more than %u schemas must "
                                    "hold together",
                                    MEMBERS_MAX);
    TRY(schema_check_keywords(w, schema));
    all->item[all->n++] = (struct member){schema, without};
    const cJSON *const ref = schema_writer_get(schema, "$ref");
    if (ref) {
        const cJSON *const target = schema_check_target(w, cJSON_GetStringValue(ref));
        if (!target) return SAC_ERR_UNSUPPORTED;
        TRY(flatten(w, all, target, NULL, depth + 1));
    }
    cJSON_ArrayForEach(item, schema_writer_get(schema, "allOf"))
    {
        TRY(flatten(w, all, item, NULL, depth + 1));
    }
    return SAC_OK;
}

/* ---- Keywords ---- */

static bool add(struct schema_writer *w, cJSON *to, const char *key, cJSON *item)
{
    (void)w;
    if (item && cJSON_AddItemToObject(to, key, item)) return true;
    cJSON_Delete(item);
    return false;
}

static sac_status copy(struct schema_writer *w, cJSON *to, const char *key, const cJSON *item)
{
    return add(w, to, key, cJSON_Duplicate(item, true)) ? SAC_OK : schema_writer_no_memory(w);
}

/* Replaces the member by a schema that requires both. */
static sac_status both(struct schema_writer *w, cJSON *to, const char *key, const cJSON *item)
{
    cJSON *const schema = cJSON_CreateObject(), *const list =
                                                    cJSON_AddArrayToObject(schema, "allOf");
    cJSON *const had = cJSON_Duplicate(schema_writer_get(to, key), true);
    cJSON *const one = cJSON_Duplicate(item, true);
    if (!list || !had || !one) {
        cJSON_Delete(schema);
        cJSON_Delete(had);
        cJSON_Delete(one);
        return schema_writer_no_memory(w);
    }
    cJSON_AddItemToArray(list, had);
    cJSON_AddItemToArray(list, one);
    if (cJSON_ReplaceItemInObjectCaseSensitive(to, key, schema)) return SAC_OK;
    cJSON_Delete(schema);
    return schema_writer_no_memory(w);
}

static sac_status join_types(struct schema_writer *w, cJSON *to, const cJSON *type)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"null", SCHEMA_CHECK_NULL},
                 {"boolean", SCHEMA_CHECK_BOOLEAN},
                 {"number", SCHEMA_CHECK_INTEGER | SCHEMA_CHECK_NUMBER},
                 {"integer", SCHEMA_CHECK_INTEGER},
                 {"string", SCHEMA_CHECK_STRING},
                 {"array", SCHEMA_CHECK_ARRAY},
                 {"object", SCHEMA_CHECK_OBJECT}};
    const cJSON one = {.type = cJSON_Object, .child = (cJSON *)(uintptr_t)type};
    cJSON *const had = cJSON_DetachItemFromObjectCaseSensitive(to, "type");
    const cJSON two = {.type = cJSON_Object, .child = had};
    const unsigned a = schema_check_types(w, &one), b = schema_check_types(w, &two);
    cJSON_Delete(had);
    if (a == 0 || b == 0) return SAC_ERR_FORMAT;
    unsigned left = a & b;
    if (left == 0)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                    "the 'type's of schemas that must hold "
                                    "together exclude each other");
    cJSON *const list = cJSON_AddArrayToObject(to, "type");
    for (size_t i = 0; list && i < sizeof names / sizeof names[0]; i++) {
        if ((left & names[i].type) != names[i].type) continue;
        left &= ~names[i].type;
        if (!cJSON_AddItemToArray(list, cJSON_CreateString(names[i].name)))
            return schema_writer_no_memory(w);
    }
    return list ? SAC_OK : schema_writer_no_memory(w);
}

static sac_status join_enums(struct schema_writer *w, cJSON *to, const cJSON *list)
{
    cJSON *const had =
        schema_writer_get(to, "enum") ? cJSON_GetObjectItemCaseSensitive(to, "enum") : NULL;
    for (int i = cJSON_GetArraySize(had); had && i-- > 0;) {
        bool in_both = false;
        const cJSON *item;
        cJSON_ArrayForEach(item, list)
        {
            in_both = in_both || cJSON_Compare(item, cJSON_GetArrayItem(had, i), true);
        }
        if (!in_both) cJSON_DeleteItemFromArray(had, i);
    }
    if (had && had->child) return SAC_OK;
    return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                "the 'enum's of schemas that must hold together have nothing in "
                                "common");
}

static sac_status join_required(struct schema_writer *w, cJSON *to, const cJSON *list)
{
    cJSON *const had = cJSON_GetObjectItemCaseSensitive(to, "required");
    const cJSON *item, *held;
    cJSON_ArrayForEach(item, list)
    {
        bool known = false;
        cJSON_ArrayForEach(held, had)
        {
            known = known || cJSON_Compare(held, item, true);
        }
        if (!known && !cJSON_AddItemToArray(had, cJSON_Duplicate(item, true)))
            return schema_writer_no_memory(w);
    }
    return SAC_OK;
}

static sac_status join_properties(struct schema_writer *w, cJSON *to, const cJSON *properties)
{
    cJSON *const had = cJSON_GetObjectItemCaseSensitive(to, "properties");
    const cJSON *p;
    cJSON_ArrayForEach(p, properties)
    {
        if (schema_writer_get(had, p->string))
            TRY(both(w, had, p->string, p));
        else
            TRY(copy(w, had, p->string, p));
    }
    return SAC_OK;
}

static bool is_one_of(const char *key, const char *list)
{
    const size_t n = strlen(key);
    if (n == 0) return false;
    for (const char *at = list; (at = strstr(at, key)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

static sac_status join_bound(struct schema_writer *w, cJSON *to, const cJSON *item)
{
    const bool lower = is_one_of(item->string, "minimum exclusiveMinimum minLength minItems "
                                               "minProperties");
    cJSON *const had = cJSON_GetObjectItemCaseSensitive(to, item->string);
    if (!cJSON_IsNumber(had) || !cJSON_IsNumber(item))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'%s' is not a number", item->string);
    if (lower ? item->valuedouble > had->valuedouble : item->valuedouble < had->valuedouble)
        cJSON_SetNumberValue(had, item->valuedouble);
    return SAC_OK;
}

/* Merges a keyword that `to` has, too. */
static sac_status join(struct schema_writer *w, cJSON *to, const cJSON *item)
{
    const char *const key = item->string;
    const cJSON *const had = schema_writer_get(to, key);
    if (strcmp(key, "type") == 0) return join_types(w, to, item);
    if (strcmp(key, "enum") == 0) return join_enums(w, to, item);
    if (strcmp(key, "required") == 0) return join_required(w, to, item);
    if (strcmp(key, "properties") == 0) return join_properties(w, to, item);
    if (strcmp(key, "items") == 0) return both(w, to, key, item);
    if (is_one_of(key, "minimum maximum exclusiveMinimum exclusiveMaximum minLength maxLength "
                       "minItems maxItems minProperties maxProperties"))
        return join_bound(w, to, item);
    if (cJSON_Compare(had, item, true)) return SAC_OK;
    return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                "'%s' in two schemas that must hold together", key);
}

/* ---- Members of objects ---- */

/* Applies one schema's "additionalProperties" to the properties that only other schemas name. */
static sac_status restrict_others(struct schema_writer *w, cJSON *to, const cJSON *schema)
{
    const cJSON *const rest = schema_writer_get(schema, "additionalProperties");
    const cJSON *const own = schema_writer_get(schema, "properties");
    cJSON *const all = cJSON_GetObjectItemCaseSensitive(to, "properties");
    if (!rest || cJSON_IsTrue(rest) || !all) return SAC_OK;
    for (cJSON *p = all->child, *next; p; p = next) {
        next = p->next; /* p may be replaced or removed */
        if (schema_writer_get(own, p->string)) continue;
        if (!cJSON_IsFalse(rest)) {
            TRY(both(w, all, p->string, rest));
            continue;
        }
        const cJSON *item;
        cJSON_ArrayForEach(item, schema_writer_get(to, "required"))
        {
            if (cJSON_IsString(item) && strcmp(item->valuestring, p->string) == 0)
                return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                            "'%.64s' is required, and 'additionalProperties' of "
                                            "another schema that must hold forbids it",
                                            p->string);
        }
        cJSON_Delete(cJSON_DetachItemViaPointer(all, p));
    }
    return SAC_OK;
}

/* The stricter of two: false, then a schema, then true. */
static sac_status join_additional(struct schema_writer *w, cJSON *to, const cJSON *rest)
{
    const char key[] = "additionalProperties";
    const cJSON *const had = schema_writer_get(to, key);
    if (!had) return copy(w, to, key, rest);
    if (cJSON_IsFalse(had) || cJSON_IsTrue(rest)) return SAC_OK;
    if (!cJSON_IsFalse(rest) && !cJSON_IsTrue(had)) return both(w, to, key, rest);
    cJSON_DeleteItemFromObjectCaseSensitive(to, key);
    return copy(w, to, key, rest);
}

static sac_status join_member(struct schema_writer *w, cJSON *to, const struct member *m)
{
    for (const cJSON *k = m->schema->child; k; k = k->next) {
        if (schema_check_is_annotation(k->string) || is_one_of(k->string, "$ref allOf")) continue;
        if (m->without && strcmp(k->string, m->without) == 0) continue;
        if (strcmp(k->string, "additionalProperties") == 0)
            TRY(join_additional(w, to, k));
        else if (schema_writer_get(to, k->string))
            TRY(join(w, to, k));
        else
            TRY(copy(w, to, k->string, k));
    }
    return SAC_OK;
}

sac_status schema_merge(struct schema_writer *w, const cJSON *schema, const char *without,
                        const cJSON *other, const cJSON **out)
{
    struct members all = {.n = 0};
    if (schema) TRY(flatten(w, &all, schema, without, 0));
    if (other) TRY(flatten(w, &all, other, NULL, 0));
    if (w->n_made++ == SCHEMA_WRITER_MADE_MAX)
        return schema_writer_refuse(w, SAC_ERR_CONTEXT,
                                    "the schema is too large: more than %u joined schemas",
                                    SCHEMA_WRITER_MADE_MAX);
    cJSON *const made = cJSON_CreateObject();
    if (!made || !cJSON_AddItemToArray(w->made, made)) {
        cJSON_Delete(made);
        return schema_writer_no_memory(w);
    }
    for (uint32_t i = 0; i < all.n; i++) TRY(join_member(w, made, &all.item[i]));
    for (uint32_t i = 0; i < all.n; i++) TRY(restrict_others(w, made, all.item[i].schema));
    *out = made;
    return SAC_OK;
}
