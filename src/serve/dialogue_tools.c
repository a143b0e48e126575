/* dialogue_tools.c: tools that an answer may call: read from a request, and added to its prompt.
 *
 * Most templates write tools themselves. Whether this one does is determined by rendering with and
 * without them. If that makes no difference, the tools are written into the system message instead,
 * calls of earlier turns into the assistant's text and results into the user's, in the format on
 * which Hermes was trained and which other models follow when instructed to. */
#include "serve/dialogue.h"
#include "serve/structured_output.h"

#include "base/mem.h"
#include "grammar/tool_grammar.h"

#include <string.h>

static const char tools_begin[] =
    "You may call functions. Their signatures, one JSON object each:\n<tools>\n";
static const char tools_end[] =
    "\n</tools>\nTo call one, answer with nothing but a JSON object in these tags, and repeat them "
    "for each further call:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {...}}\n</tool_call>";

/* ---- Reading ---- */

static sac_status add_tool(struct api_request *a, const cJSON *tool, struct api_error *error)
{
    const cJSON *type = json_get(tool, "type");
    const cJSON *name = json_get(json_get(tool, "function"), "name");
    if (type && !(cJSON_IsString(type) && strcmp(type->valuestring, "function") == 0))
        return api_error_set(error, API_ERROR_UNSUPPORTED, "tools",
                             "a tool is not of type 'function'");
    if (!cJSON_IsString(name) || !*name->valuestring || strlen(name->valuestring) > 128)
        return api_error_set(error, API_ERROR_REQUEST, "tools",
                             "a tool has no function with a name of 1 to 128 bytes");
    if (!(a->tool[a->n_tool] = mem_strdup(name->valuestring))) return api_error_no_memory(error);
    a->n_tool++;
    return SAC_OK;
}

static sac_status read_list(struct dialogue *d, struct api_request *a, const cJSON *tools,
                            struct api_error *error)
{
    const cJSON *tool;
    struct strbuf text = {0};
    const int n = cJSON_GetArraySize(tools);
    if (!cJSON_IsArray(tools) || n > (int)TOOL_GRAMMAR_TOOLS_MAX)
        return api_error_set(error, API_ERROR_REQUEST, "tools",
                             "'tools' is not a list of at most %u tools", TOOL_GRAMMAR_TOOLS_MAX);
    if (n == 0) return SAC_OK;
    a->tool = mem_calloc((size_t)n, sizeof *a->tool);
    if (!a->tool) return api_error_no_memory(error);
    cJSON_ArrayForEach(tool, tools) TRY(add_tool(a, tool, error));
    json_print(&text, cJSON_Duplicate(tools, true));
    d->tools = strbuf_detach(&text, NULL);
    return d->tools ? SAC_OK : api_error_no_memory(error);
}

/* "none", "auto", "required", or {"type": "function", "function": {"name": ...}}. */
struct choice {
    bool none, must;
    const char *name; /* the tool that must be called; NULL: any */
};

static sac_status read_choice(const cJSON *body, struct choice *out, struct api_error *error)
{
    const cJSON *choice = json_get(body, "tool_choice");
    const cJSON *name = json_get(json_get(choice, "function"), "name");
    *out = (struct choice){.none = json_says(body, "tool_choice", "none"),
                           .must = json_says(body, "tool_choice", "required")};
    if (cJSON_IsObject(choice) && cJSON_IsString(name)) {
        out->must = true;
        out->name = name->valuestring;
    }
    if (!choice || out->none || out->must || json_says(body, "tool_choice", "auto")) return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, "tool_choice",
                         "'tool_choice' is not none, auto, required or a function");
}

/* ---- Templates without support for tools ---- */

/* A template that rejects the conversation (because of its tool messages, say) does not support
 * tools either. */
static sac_status knows_tools(struct dialogue *d, const struct api_request_rules *rules, bool *out,
                              struct api_error *error)
{
    char *with = NULL, *without = NULL, *tools = d->tools;
    struct api_error why = {0};
    *out = dialogue_render(d, rules, &with, &why) == SAC_OK;
    d->tools = NULL;
    if (*out && dialogue_render(d, rules, &without, &why) == SAC_OK)
        *out = strcmp(with, without) != 0;
    d->tools = tools;
    sac_free(with);
    sac_free(without);
    return why.kind == API_ERROR_UNAVAILABLE ? api_error_no_memory(error) : SAC_OK;
}

/* Replaces a message's contents by `written`, which it takes over. */
static sac_status rewrite(sac_message *m, const char *role, struct strbuf *written,
                          struct api_error *error)
{
    char *content = strbuf_detach(written, NULL), *copy = mem_strdup(role);
    if (!content || !copy) {
        mem_free(content);
        mem_free(copy);
        return api_error_no_memory(error);
    }
    mem_free((char *)(uintptr_t)m->role);
    mem_free((char *)(uintptr_t)m->content);
    mem_free((char *)(uintptr_t)m->extra_json);
    *m = (sac_message){.role = copy, .content = content};
    return SAC_OK;
}

/* Appends the assistant's tool calls to its text. */
static sac_status calls_to_text(sac_message *m, struct api_error *error)
{
    struct strbuf text = {0};
    cJSON *extra = cJSON_Parse(m->extra_json);
    const cJSON *calls = json_get(extra, "tool_calls"), *call;
    strbuf_adds(&text, m->content ? m->content : "");
    cJSON_ArrayForEach(call, calls)
    {
        const cJSON *function = json_get(call, "function");
        strbuf_adds(&text, text.n ? "\n<tool_call>\n" : "<tool_call>\n");
        json_print(&text, cJSON_Duplicate(function, true));
        strbuf_adds(&text, "\n</tool_call>");
    }
    cJSON_Delete(extra);
    return rewrite(m, "assistant", &text, error);
}

static sac_status result_to_text(sac_message *m, struct api_error *error)
{
    struct strbuf text = {0};
    strbuf_addf(&text, "<tool_response>\n%s\n</tool_response>", m->content ? m->content : "");
    return rewrite(m, "user", &text, error);
}

/* Inserts an empty system message if there is none. */
static sac_status add_system(struct dialogue *d, struct api_error *error)
{
    if (d->n > 0 && strcmp(d->msg[0].role, "system") == 0) return SAC_OK;
    TRY(dialogue_add(d, "system", NULL, NULL, error));
    const sac_message last = d->msg[d->n - 1];
    memmove(d->msg + 1, d->msg, (d->n - 1) * sizeof *d->msg);
    d->msg[0] = last;
    d->n_lead = 1;
    return SAC_OK;
}

/* Describes the tools in the system message, and writes calls and results as text. */
static sac_status describe_tools(struct dialogue *d, struct api_error *error)
{
    struct strbuf text = {0};
    TRY(add_system(d, error));
    if (d->msg[0].content) strbuf_addf(&text, "%s\n\n", d->msg[0].content);
    strbuf_adds(&text, tools_begin);
    cJSON *tools = cJSON_Parse(d->tools);
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools)
    {
        if (tool != tools->child) strbuf_add(&text, "\n", 1);
        json_print(&text, cJSON_Duplicate(tool, true));
    }
    cJSON_Delete(tools);
    strbuf_adds(&text, tools_end);
    TRY(rewrite(&d->msg[0], "system", &text, error));
    for (size_t i = 0; i < d->n; i++) {
        if (dialogue_has_calls(&d->msg[i])) TRY(calls_to_text(&d->msg[i], error));
        if (strcmp(d->msg[i].role, "tool") == 0) TRY(result_to_text(&d->msg[i], error));
    }
    mem_free(d->tools);
    d->tools = NULL;
    return SAC_OK;
}

sac_status dialogue_tools(struct dialogue *d, struct api_request *a, const cJSON *body,
                          const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *tools = json_get(body, "tools");
    struct choice choice;
    TRY(read_choice(body, &choice, error));
    if (choice.must && !tools)
        return api_error_set(error, API_ERROR_REQUEST, "tool_choice",
                             "'tool_choice' needs 'tools'");
    if (!tools || choice.none) return SAC_OK;
    TRY(read_list(d, a, tools, error));
    if (choice.must && !d->tools)
        return api_error_set(error, API_ERROR_REQUEST, "tool_choice",
                             "'tool_choice' names no tool of 'tools'");
    if (!d->tools) return SAC_OK;
    bool known = false;
    TRY(knows_tools(d, rules, &known, error));
    /* The description asks for Hermes' format whatever the model. */
    a->tool_family = known ? tool_parser_of_vocabulary(rules->trie) : TOOL_PARSER_HERMES;
    if (choice.must) TRY(structured_output_force_call(a, d->tools, choice.name, rules, error));
    return known ? SAC_OK : describe_tools(d, error);
}
