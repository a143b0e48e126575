/* schema_object.c: see the header.
 *
 * Members come in the order of "properties". Commas are determined by two chains of rules, one for
 * the state before the first member and one for the state after it: rule i of a chain stands before
 * member i, and continues at rule i + 1 with the member or, if it is not required, without it.
 *
 * Names of additional members differ from all names in "properties": a tree of characters excludes
 * exactly these. They contain no escapes, so a name has only one spelling. */
#include "grammar/schema_object.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES_MAX 512u  /* of a property's name, if there are additional properties */
#define ITEMS_MAX      1024u /* in prefixItems, and in arrays that are counted item by item */

struct property {
    const char *name;
    const cJSON *schema; /* NULL: any value */
    bool required;
    uint32_t rule; /* matches name, colon and value */
};

struct object {
    struct property *property; /* owned, [n] */
    size_t n;
    bool open;                /* additional members are allowed */
    const cJSON *rest_schema; /* for those; NULL: any value */
    uint32_t rest;            /* matches an additional member */
};

/* ---- Names of additional members ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorted names that share their first `at` bytes. */
struct names {
    const char *const *name;
    size_t n, at;
};

/* How many names continue with the same character as the first. */
static size_t same_character(const struct names *s, uint32_t *out_cp, size_t *out_bytes)
{
    const char *const first = s->name[0] + s->at;
    *out_bytes = charset_get(first, strlen(first), out_cp);
    assert(*out_bytes > 0);
    size_t n = 1;
    while (n < s->n && strncmp(s->name[n] + s->at, first, *out_bytes) == 0) n++;
    return n;
}

/* A rule for the continuations that complete none of the names. Recursion is as deep as names are
 * long. */
static sac_status write_other_name(struct schema_writer *w, struct names s, uint32_t *out_rule)
{
    struct strbuf body = {0};
    struct charset set = {0};
    sac_status status = schema_writer_rule(w, out_rule);
    bool is_name = false;
    for (; s.n > 0 && s.name[0][s.at] == '\0'; s.name++, s.n--) is_name = true;
    charset_add(&set, 0, 0x1f);
    charset_add(&set, '"', '"');
    charset_add(&set, '\\', '\\');
    while (s.n > 0 && status == SAC_OK) {
        uint32_t cp, rule;
        size_t bytes;
        const size_t n = same_character(&s, &cp, &bytes);
        charset_add(&set, cp, cp);
        status = write_other_name(w, (struct names){s.name, n, s.at + bytes}, &rule);
        schema_writer_literal(&body, s.name[0] + s.at, bytes);
        if (status == SAC_OK) schema_writer_name(w, &body, rule);
        strbuf_adds(&body, "| ");
        s.name += n;
        s.n -= n;
    }
    charset_normalise(&set);
    charset_invert(&set);
    if (set.failed) status = schema_writer_no_memory(w);
    if (status == SAC_OK) {
        schema_writer_class(&body, &set);
        strbuf_add(&body, "", 0);
        schema_writer_begin(w, *out_rule);
        strbuf_addf(w->out, "(%s[^\"\\\\\\x00-\\x1f]*)%s\n", body.data ? body.data : "",
                    is_name ? "" : "?");
        w->out->failed |= body.failed;
    }
    charset_deinit(&set);
    strbuf_deinit(&body);
    return status;
}

static sac_status write_rest_name(struct schema_writer *w, const struct object *o,
                                  uint32_t *out_rule)
{
    const char **const name = mem_calloc(o->n + 1, sizeof *name);
    if (!name) return schema_writer_no_memory(w);
    sac_status status = SAC_OK;
    for (size_t i = 0; i < o->n; i++) {
        name[i] = o->property[i].name;
        if (strlen(name[i]) > NAME_BYTES_MAX)
            status = schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                          "a name of more than %u bytes beside "
                                          "'additionalProperties'",
                                          NAME_BYTES_MAX);
    }
    qsort(name, o->n, sizeof *name, compare_names);
    if (status == SAC_OK) status = write_other_name(w, (struct names){name, o->n, 0}, out_rule);
    mem_free(name);
    return status;
}

/* ---- Members ---- */

static sac_status write_value(struct schema_writer *w, const cJSON *schema, struct strbuf *body)
{
    uint32_t rule;
    if (!schema) {
        schema_writer_shared(w, body, SCHEMA_VALUE);
        return SAC_OK;
    }
    TRY(schema_writer_write(w, schema, &rule));
    schema_writer_name(w, body, rule);
    return SAC_OK;
}

/* Writes a complete body as a new rule. */
static sac_status write_rule(struct schema_writer *w, struct strbuf *body, uint32_t *out_rule)
{
    const sac_status status = schema_writer_rule(w, out_rule);
    if (status == SAC_OK) {
        strbuf_add(body, "", 0);
        schema_writer_begin(w, *out_rule);
        strbuf_addf(w->out, "%s\n", body->data ? body->data : "");
        w->out->failed |= body->failed;
    }
    strbuf_deinit(body);
    return status;
}

static sac_status write_member(struct schema_writer *w, struct property *p)
{
    struct strbuf body = {0};
    const cJSON name = {.type = cJSON_String, .valuestring = (char *)(uintptr_t)p->name};
    const size_t was = schema_writer_enter(w, "properties", p->name);
    sac_status status = schema_writer_value(w, &body, &name);
    strbuf_adds(&body, "\":\" ");
    schema_writer_shared(w, &body, SCHEMA_WS);
    if (status == SAC_OK) status = write_value(w, p->schema, &body);
    schema_writer_leave(w, was);
    if (status == SAC_OK) return write_rule(w, &body, &p->rule);
    strbuf_deinit(&body);
    return status;
}

static sac_status write_rest(struct schema_writer *w, struct object *o)
{
    struct strbuf body = {0};
    uint32_t name;
    TRY(write_rest_name(w, o, &name));
    strbuf_adds(&body, "\"\\\"\" ");
    schema_writer_name(w, &body, name);
    strbuf_adds(&body, "\"\\\":\" ");
    schema_writer_shared(w, &body, SCHEMA_WS);
    const size_t was = schema_writer_enter(w, "additionalProperties", NULL);
    const sac_status status = write_value(w, o->rest_schema, &body);
    schema_writer_leave(w, was);
    if (status == SAC_OK) return write_rule(w, &body, &o->rest);
    strbuf_deinit(&body);
    return status;
}

/* What may follow member n - 1: nothing, or additional members. */
static sac_status write_chain_end(struct schema_writer *w, const struct object *o, bool behind,
                                  uint32_t *out_rule)
{
    struct strbuf body = {0};
    if (!o->open) {
        strbuf_adds(&body, "\"\"");
        return write_rule(w, &body, out_rule);
    }
    if (!behind) {
        strbuf_adds(&body, "(");
        schema_writer_name(w, &body, o->rest);
    }
    strbuf_adds(&body, "(\",\" ");
    schema_writer_shared(w, &body, SCHEMA_WS);
    schema_writer_name(w, &body, o->rest);
    strbuf_adds(&body, behind ? ")*" : ")*)?");
    return write_rule(w, &body, out_rule);
}

/* Writes both chains from their ends; `*out_rule` matches all members. */
static sac_status write_chains(struct schema_writer *w, const struct object *o, uint32_t *out_rule)
{
    uint32_t behind, before;
    TRY(write_chain_end(w, o, true, &behind));
    TRY(write_chain_end(w, o, false, &before));
    for (size_t i = o->n; i-- > 0;) {
        const struct property *const p = &o->property[i];
        struct strbuf first = {0}, next = {0};
        schema_writer_name(w, &first, p->rule);
        schema_writer_name(w, &first, behind);
        if (!p->required) {
            strbuf_adds(&first, "| ");
            schema_writer_name(w, &first, before);
        }
        strbuf_adds(&next, "\",\" ");
        schema_writer_shared(w, &next, SCHEMA_WS);
        schema_writer_name(w, &next, p->rule);
        schema_writer_name(w, &next, behind);
        if (!p->required) {
            strbuf_adds(&next, "| ");
            schema_writer_name(w, &next, behind);
        }
        const sac_status status = write_rule(w, &first, &before);
        if (status != SAC_OK) strbuf_deinit(&next);
        TRY(status);
        TRY(write_rule(w, &next, &behind));
    }
    *out_rule = before;
    return SAC_OK;
}

/* ---- Objects ---- */

static struct property *find_property(const struct object *o, const char *name)
{
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->property[i].name, name) == 0) return &o->property[i];
    return NULL;
}

static sac_status read_rest(struct schema_writer *w, const cJSON *schema, struct object *o)
{
    const cJSON *const rest = schema_writer_get(schema, "additionalProperties");
    /* By the specification any member would be valid without the keyword, but a schema that names
     * properties is meant as a complete list. */
    o->open = rest ? !cJSON_IsFalse(rest) : o->n == 0;
    if (rest && !cJSON_IsBool(rest)) o->rest_schema = rest;
    if (rest && !cJSON_IsBool(rest) && !cJSON_IsObject(rest))
        return schema_writer_refuse(w, SAC_ERR_FORMAT,
                                    "'additionalProperties' is a schema, true or false");
    return SAC_OK;
}

static sac_status read_required(struct schema_writer *w, const cJSON *list, struct object *o)
{
    const cJSON *item;
    const size_t n_named = o->n;
    if (list && !cJSON_IsArray(list))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'required' is a list of names");
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            return schema_writer_refuse(w, SAC_ERR_FORMAT, "'required' is a list of names");
        struct property *p = find_property(o, item->valuestring);
        if (!p && !o->open && n_named > 0)
            return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                        "'%.64s' is required and not among the 'properties'",
                                        item->valuestring);
        if (!p) {
            p = &o->property[o->n++];
            *p = (struct property){.name = item->valuestring, .schema = o->rest_schema};
        }
        if (cJSON_IsFalse(p->schema))
            return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                        "'%.64s' is required and not allowed", item->valuestring);
        p->required = true;
    }
    return SAC_OK;
}

/* Properties that are not allowed are left out, and their names are not names of additional members
 * either. */
static sac_status read_object(struct schema_writer *w, const cJSON *schema, struct object *o)
{
    const cJSON *const properties = schema_writer_get(schema, "properties"), *p;
    const cJSON *const required = schema_writer_get(schema, "required");
    const int n = cJSON_GetArraySize(properties) + cJSON_GetArraySize(required);
    if (properties && !cJSON_IsObject(properties))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'properties' is an object");
    o->property = mem_calloc((size_t)n + 1, sizeof *o->property);
    if (!o->property) return schema_writer_no_memory(w);
    cJSON_ArrayForEach(p, properties)
    {
        o->property[o->n++] = (struct property){.name = p->string, .schema = p};
    }
    TRY(read_rest(w, schema, o));
    return read_required(w, required, o);
}

/* Counts of members that the other keywords do not guarantee. */
static sac_status check_counts(struct schema_writer *w, const cJSON *schema, const struct object *o)
{
    double min, max;
    size_t n_required = 0;
    for (size_t i = 0; i < o->n; i++) n_required += o->property[i].required;
    TRY(schema_writer_count(w, schema, "minProperties", 0, &min));
    TRY(schema_writer_count(w, schema, "maxProperties", SCHEMA_WRITER_REPEAT, &max));
    if (min > (double)n_required)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                    "'minProperties' above the number of required properties");
    if (schema_writer_get(schema, "maxProperties") && (o->open || max < (double)o->n))
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                    "'maxProperties' below the number of possible properties");
    return SAC_OK;
}

static sac_status write_members(struct schema_writer *w, struct object *o, struct strbuf *body)
{
    uint32_t rule;
    size_t n = 0;
    if (o->open) TRY(write_rest(w, o));
    for (size_t i = 0; i < o->n; i++)
        if (!cJSON_IsFalse(o->property[i].schema)) o->property[n++] = o->property[i];
    o->n = n;
    for (size_t i = 0; i < o->n; i++) TRY(write_member(w, &o->property[i]));
    TRY(write_chains(w, o, &rule));
    strbuf_adds(body, "\"{\" ");
    schema_writer_shared(w, body, SCHEMA_WS);
    schema_writer_name(w, body, rule);
    schema_writer_shared(w, body, SCHEMA_WS);
    strbuf_adds(body, "\"}\" ");
    return SAC_OK;
}

sac_status schema_object_write(struct schema_writer *w, const cJSON *schema, struct strbuf *body)
{
    struct object o = {0};
    sac_status status = read_object(w, schema, &o);
    if (status == SAC_OK) status = check_counts(w, schema, &o);
    if (status == SAC_OK && o.n == 0 && o.open && !o.rest_schema)
        schema_writer_shared(w, body, SCHEMA_OBJECT);
    else if (status == SAC_OK)
        status = write_members(w, &o, body);
    mem_free(o.property);
    return status;
}

/* ---- Arrays ---- */

struct array {
    const cJSON *prefix; /* list of schemas; NULL: none */
    const cJSON *items;  /* schema of the items after those; NULL: any value */
    double min, max;     /* max may be SCHEMA_WRITER_UNBOUNDED */
    double n_prefix;
};

static sac_status read_array(struct schema_writer *w, const cJSON *schema, struct array *a)
{
    a->prefix = schema_writer_get(schema, "prefixItems");
    a->items = schema_writer_get(schema, "items");
    a->n_prefix = cJSON_GetArraySize(a->prefix);
    TRY(schema_writer_count(w, schema, "minItems", 0, &a->min));
    TRY(schema_writer_count(w, schema, "maxItems", SCHEMA_WRITER_UNBOUNDED, &a->max));
    if (cJSON_IsArray(a->items))
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                    "'items' as a list is not supported: use 'prefixItems'");
    if (a->prefix && !cJSON_IsArray(a->prefix))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'prefixItems' is a list of schemas");
    if (a->n_prefix > ITEMS_MAX)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "more than %u 'prefixItems'",
                                    ITEMS_MAX);
    if (cJSON_IsFalse(a->items) && (a->max == SCHEMA_WRITER_UNBOUNDED || a->max > a->n_prefix))
        a->max = a->n_prefix;
    if (cJSON_IsTrue(a->items)) a->items = NULL;
    if (a->max != SCHEMA_WRITER_UNBOUNDED && a->min > a->max)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "fewer items are allowed than wanted");
    return SAC_OK;
}

/* "(, item){m,n}" for items after the first. */
static void write_more(struct schema_writer *w, struct strbuf *body, uint32_t item, double min,
                       double max)
{
    strbuf_adds(body, "(\",\" ");
    schema_writer_shared(w, body, SCHEMA_WS);
    schema_writer_name(w, body, item);
    strbuf_adds(body, ")");
    schema_writer_repeat(body, min, max);
}

static double less(double n, double by)
{
    if (n == SCHEMA_WRITER_UNBOUNDED) return n;
    return n > by ? n - by : 0;
}

/* One item. */
static sac_status write_item(struct schema_writer *w, const cJSON *schema, uint32_t *out_rule)
{
    struct strbuf body = {0};
    const sac_status status = write_value(w, schema, &body);
    if (status == SAC_OK) return write_rule(w, &body, out_rule);
    strbuf_deinit(&body);
    return status;
}

static sac_status write_alike(struct schema_writer *w, const struct array *a, struct strbuf *body)
{
    uint32_t item;
    const size_t was = schema_writer_enter(w, "items", NULL);
    TRY(write_item(w, a->items, &item));
    schema_writer_leave(w, was);
    strbuf_adds(body, "(");
    schema_writer_name(w, body, item);
    write_more(w, body, item, less(a->min, 1), less(a->max, 1));
    strbuf_adds(body, a->min > 0 ? ") " : ")? ");
    return SAC_OK;
}

/* Rule i of a chain: the array ends before item i, if it has enough items, or continues with it. */
static sac_status write_prefix(struct schema_writer *w, const struct array *a, struct strbuf *body)
{
    uint32_t rule, item;
    struct strbuf part = {0};
    const bool goes_on = a->max == SCHEMA_WRITER_UNBOUNDED || a->max > a->n_prefix;
    if (goes_on) {
        TRY(write_item(w, a->items, &item));
        write_more(w, &part, item, less(a->min, a->n_prefix), less(a->max, a->n_prefix));
    } else {
        strbuf_adds(&part, "\"\"");
    }
    TRY(write_rule(w, &part, &rule));
    const double n = goes_on || a->max > a->n_prefix ? a->n_prefix : a->max;
    for (int i = (int)n; i-- > 0;) {
        TRY(write_item(w, cJSON_GetArrayItem(a->prefix, i), &item));
        if (i > 0) {
            strbuf_adds(&part, "\",\" ");
            schema_writer_shared(w, &part, SCHEMA_WS);
        }
        schema_writer_name(w, &part, item);
        schema_writer_name(w, &part, rule);
        if (i >= a->min) strbuf_adds(&part, "| \"\"");
        TRY(write_rule(w, &part, &rule));
    }
    schema_writer_name(w, body, rule);
    return SAC_OK;
}

sac_status schema_object_write_array(struct schema_writer *w, const cJSON *schema,
                                     struct strbuf *body)
{
    struct array a;
    TRY(read_array(w, schema, &a));
    if (!a.items && !a.prefix && a.min == 0 && a.max == SCHEMA_WRITER_UNBOUNDED) {
        schema_writer_shared(w, body, SCHEMA_ARRAY);
        return SAC_OK;
    }
    strbuf_adds(body, "\"[\" ");
    schema_writer_shared(w, body, SCHEMA_WS);
    if (a.n_prefix > 0)
        TRY(write_prefix(w, &a, body));
    else if (a.max != 0)
        TRY(write_alike(w, &a, body));
    schema_writer_shared(w, body, SCHEMA_WS);
    strbuf_adds(body, "\"]\" ");
    return SAC_OK;
}
