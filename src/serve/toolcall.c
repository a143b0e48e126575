/* toolcall.c: see the header. */
#include "serve/toolcall.h"

#include "base/mem.h"
#include "serve/reply.h"

#include <string.h>

#define OPEN_TAG  "<tool_call>"
#define CLOSE_TAG "</tool_call>"

/* Where a text that is nothing but calls may begin, and what may stand before them. */
static const char *const openings[] = {"<|python_tag|>", "[TOOL_CALLS]", "```json",
                                       "```tool_call",   "```tool_code", "```"};

static const char *skip_space(const char *s, const char *end)
{
    while (s < end && (*s == ' ' || *s == '\n' || *s == '\r' || *s == '\t')) s++;
    return s;
}

static const char *find(const char *s, const char *end, const char *what)
{
    return s < end ? memmem(s, (size_t)(end - s), what, strlen(what)) : NULL;
}

void toolcall_deinit(struct toolcall_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        mem_free(list->call[i].name);
        mem_free(list->call[i].arguments);
    }
    *list = (struct toolcall_list){0};
}

/* ---- One call ---- */

static bool is_tool(const char *want, char *const *name, size_t n_name)
{
    for (size_t i = 0; i < n_name; i++)
        if (strcmp(want, name[i]) == 0) return true;
    return false;
}

/* Arguments as the API has them: the text of an object, also where the model wrote that text. */
static char *arguments_text(const cJSON *call)
{
    const cJSON *arguments = json_get(call, "arguments");
    if (!arguments) arguments = json_get(call, "parameters");
    if (cJSON_IsString(arguments)) return mem_strdup(arguments->valuestring);
    if (arguments && !cJSON_IsObject(arguments)) return NULL;
    struct strbuf text = {0};
    json_print(&text, arguments ? cJSON_Duplicate(arguments, true) : cJSON_CreateObject());
    return strbuf_detach(&text, NULL);
}

/* False: not a call of one of the tools. */
static bool add_call(struct toolcall_list *out, const cJSON *call, char *const *name, size_t n_name)
{
    const cJSON *inner = json_get(call, "function");
    if (cJSON_IsObject(inner)) call = inner;
    const cJSON *said = json_get(call, "name");
    if (!cJSON_IsString(said) || !is_tool(said->valuestring, name, n_name) ||
        out->n == TOOLCALL_MAX)
        return false;
    struct toolcall *c = &out->call[out->n];
    char id[48];
    reply_random_id(id, "call_");
    *c =
        (struct toolcall){.name = mem_strdup(said->valuestring), .arguments = arguments_text(call)};
    memcpy(c->id, id, sizeof c->id - 1);
    if (!c->name || !c->arguments) {
        mem_free(c->name);
        mem_free(c->arguments);
        return false;
    }
    out->n++;
    return true;
}

/* A value from `*at` on; `*at` moves behind it. */
static cJSON *read_value(const char **at, const char *end)
{
    const struct json_limits limits = json_limits_default();
    const char *stop = NULL;
    cJSON *value = NULL, *probe = cJSON_ParseWithLengthOpts(*at, (size_t)(end - *at), &stop, false);
    if (!probe) return NULL;
    cJSON_Delete(probe);
    if (json_parse(&value, *at, (size_t)(stop - *at), &limits, NULL) != SAC_OK) return NULL;
    *at = stop;
    return value;
}

static bool add_value(struct toolcall_list *out, const cJSON *value, char *const *name,
                      size_t n_name)
{
    const cJSON *item;
    if (!cJSON_IsArray(value)) return add_call(out, value, name, n_name);
    cJSON_ArrayForEach(item, value) if (!add_call(out, item, name, n_name)) return false;
    return value->child != NULL;
}

/* ---- A text of calls ---- */

/* Nothing but values from `at` to the end, with ';' or ',' between them. */
static bool parse_values(struct toolcall_list *out, const char *at, const char *end,
                         char *const *name, size_t n_name)
{
    bool all = true;
    while (all && (at = skip_space(at, end)) < end) {
        if (find(at, end, "```") == at) { /* the end of a fence */
            at += 3;
            continue;
        }
        if (out->n && (*at == ';' || *at == ',')) {
            at++;
            continue;
        }
        cJSON *value = *at == '{' || *at == '[' ? read_value(&at, end) : NULL;
        all = value && add_value(out, value, name, n_name);
        cJSON_Delete(value);
    }
    return all && out->n > 0;
}

/* Each tagged call; a last one may lack its end, for models stop there. */
static bool parse_tagged(struct toolcall_list *out, const char *at, const char *end,
                         char *const *name, size_t n_name)
{
    bool all = true;
    while (all && (at = find(at, end, OPEN_TAG))) {
        at = skip_space(at + strlen(OPEN_TAG), end);
        cJSON *value = read_value(&at, end);
        all = value && add_value(out, value, name, n_name);
        cJSON_Delete(value);
    }
    return all && out->n > 0;
}

static const char *skip_openings(const char *at, const char *end)
{
    at = skip_space(at, end);
    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++)
        if (find(at, end, openings[i]) == at) return skip_space(at + strlen(openings[i]), end);
    return at;
}

void toolcall_parse(struct toolcall_list *out, const char *text, size_t n, char *const *name,
                    size_t n_name)
{
    const char *end = text + n, *tag = find(text, end, OPEN_TAG);
    *out = (struct toolcall_list){0};
    const bool found = tag ? parse_tagged(out, tag, end, name, n_name)
                           : parse_values(out, skip_openings(text, end), end, name, n_name);
    if (!found) toolcall_deinit(out);
    out->n_content = found ? (tag ? (size_t)(tag - text) : 0) : n;
    /* The newline between a sentence and the calls belongs to neither. */
    while (found && out->n_content && strchr(" \n", text[out->n_content - 1])) out->n_content--;
}

/* ---- A text that grows ---- */

/* May the whole of it become a value, or what stands before one? */
static bool may_be_values(const char *text, const char *end)
{
    const char *at = skip_space(text, end);
    if (at == end || *at == '{' || *at == '[') return true;
    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++) {
        const size_t len = strlen(openings[i]), left = (size_t)(end - at);
        if (memcmp(at, openings[i], left < len ? left : len) == 0) return true;
    }
    return false;
}

size_t toolcall_certain(const char *text, size_t n)
{
    const char *end = text + n, *tag = find(text, end, OPEN_TAG);
    size_t certain = tag ? (size_t)(tag - text) : n;
    if (!tag && may_be_values(text, end)) return 0;
    /* The end may be the begin of a tag. */
    for (size_t len = strlen(OPEN_TAG) - 1; !tag && len > 0; len--)
        if (len <= n && memcmp(end - len, OPEN_TAG, len) == 0) {
            certain = n - len;
            break;
        }
    while (certain && strchr(" \n", text[certain - 1])) certain--;
    return certain;
}
