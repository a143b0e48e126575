/* schema_writer.c: see the header. */
#include "grammar/schema_writer.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

sac_status schema_writer_refuse(const struct schema_writer *w, sac_status code, const char *fmt,
                                ...)
{
    char text[384];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return error_set(w->err, code, "schema, #%s: %s", w->path, text);
}

sac_status schema_writer_no_memory(const struct schema_writer *w)
{
    return error_set(w->err, SAC_ERR_MEMORY, "out of memory for a schema");
}

size_t schema_writer_enter(struct schema_writer *w, const char *what, const char *key)
{
    const size_t was = w->path_n, room = sizeof w->path - was;
    const int n = snprintf(w->path + was, room, "/%s%s%.64s", what, key ? "/" : "", key ? key : "");
    w->path_n = n < 0 || (size_t)n >= room ? sizeof w->path - 1 : was + (size_t)n;
    return was;
}

void schema_writer_leave(struct schema_writer *w, size_t was)
{
    w->path_n = was;
    w->path[was] = '\0';
}

sac_status schema_writer_rule(struct schema_writer *w, uint32_t *out_rule)
{
    if (w->n_rule == SCHEMA_WRITER_RULES_MAX)
        return schema_writer_refuse(w, SAC_ERR_CONTEXT,
                                    "the schema is too large: it needs more "
                                    "than %u rules",
                                    SCHEMA_WRITER_RULES_MAX);
    *out_rule = w->n_rule++;
    return SAC_OK;
}

void schema_writer_name(const struct schema_writer *w, struct strbuf *out, uint32_t rule)
{
    if (rule == 0)
        strbuf_addf(out, "%s ", w->root);
    else
        strbuf_addf(out, "%s-%u ", w->root, rule);
}

void schema_writer_begin(struct schema_writer *w, uint32_t rule)
{
    schema_writer_name(w, w->out, rule);
    strbuf_adds(w->out, "::= ");
}

static const char *const shared_name[SCHEMA_SHARED_N] = {
    "ws", "char", "string", "integer", "number", "boolean", "null", "object", "array", "value"};

void schema_writer_shared(struct schema_writer *w, struct strbuf *out, enum schema_shared which)
{
    w->shared[which] = true;
    strbuf_addf(out, "%s-%s ", w->root, shared_name[which]);
}

void schema_writer_literal(struct strbuf *out, const char *bytes, size_t n)
{
    strbuf_adds(out, "\"");
    for (size_t i = 0; i < n; i++) {
        const uint8_t c = (uint8_t)bytes[i];
        if (c < 0x20 || c == 0x7f)
            strbuf_addf(out, "\\x%02x", c);
        else if (c == '"' || c == '\\')
            strbuf_addf(out, "\\%c", c);
        else
            strbuf_add(out, bytes + i, 1);
    }
    strbuf_adds(out, "\" ");
}

void schema_writer_class(struct strbuf *out, const struct charset *set)
{
    strbuf_adds(out, "[");
    for (size_t i = 0; i < set->n; i++)
        strbuf_addf(out, "\\U%08x-\\U%08x", set->range[i].lo, set->range[i].hi);
    strbuf_adds(out, "] ");
}

sac_status schema_writer_value(struct schema_writer *w, struct strbuf *out, const cJSON *value)
{
    char *const text = cJSON_PrintUnformatted(value);
    if (!text) return schema_writer_no_memory(w);
    schema_writer_literal(out, text, strlen(text));
    cJSON_free(text);
    return SAC_OK;
}

void schema_writer_repeat(struct strbuf *out, double min, double max)
{
    if (max == SCHEMA_WRITER_UNBOUNDED)
        strbuf_addf(out, "{%.0f,} ", min);
    else
        strbuf_addf(out, "{%.0f,%.0f} ", min, max);
}

const cJSON *schema_writer_get(const cJSON *schema, const char *keyword)
{
    return cJSON_GetObjectItemCaseSensitive(schema, keyword);
}

sac_status schema_writer_count(struct schema_writer *w, const cJSON *schema, const char *keyword,
                               double otherwise, double *out)
{
    const cJSON *const item = schema_writer_get(schema, keyword);
    *out = otherwise;
    if (!item) return SAC_OK;
    const double x = cJSON_GetNumberValue(item);
    if (!(x >= 0) || x != floor(x))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'%s' is not a whole number from 0 on",
                                    keyword);
    if (x > SCHEMA_WRITER_REPEAT)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "'%s' is more than %.0f", keyword,
                                    SCHEMA_WRITER_REPEAT);
    *out = x;
    return SAC_OK;
}
