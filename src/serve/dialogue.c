/* dialogue.c: see the header. Fields of a message other than role and content are passed to the
 * template unchanged, except for the arguments of tool calls: the API has them as JSON text,
 * templates expect the object. */
#include "serve/dialogue.h"

#include "base/mem.h"

#include <string.h>

#define MESSAGES_MAX 4096u

static void message_deinit(sac_message *m)
{
    mem_free((char *)(uintptr_t)m->role);
    mem_free((char *)(uintptr_t)m->content);
    mem_free((char *)(uintptr_t)m->extra_json);
}

void dialogue_deinit(struct dialogue *d)
{
    for (size_t i = 0; i < d->n; i++) message_deinit(&d->msg[i]);
    mem_free(d->msg);
    mem_free(d->tools);
    mem_free(d->vars);
    *d = (struct dialogue){0};
}

sac_status dialogue_add(struct dialogue *d, const char *role, const char *content,
                        const char *extra_json, struct api_error *error)
{
    if (d->n == MESSAGES_MAX)
        return api_error_set(error, API_ERROR_REQUEST, "messages", "more than %u messages",
                             MESSAGES_MAX);
    if (d->n == d->room) {
        const size_t room = d->room ? 2 * d->room : 16;
        sac_message *grown = mem_realloc(d->msg, room * sizeof *grown);
        if (!grown) return api_error_no_memory(error);
        d->msg = grown;
        d->room = room;
    }
    sac_message *m = &d->msg[d->n++];
    *m = (sac_message){.role = mem_strdup(role)};
    if (content) m->content = mem_strdup(content);
    if (extra_json) m->extra_json = mem_strdup(extra_json);
    if (!m->role || (content && !m->content) || (extra_json && !m->extra_json))
        return api_error_no_memory(error);
    return SAC_OK;
}

/* Refuses a content part that is not text. */
static sac_status add_other(const cJSON *type, struct api_error *error)
{
    const char *name = cJSON_IsString(type) ? type->valuestring : "text";
    if (strcmp(name, "text") == 0)
        return api_error_set(error, API_ERROR_REQUEST, "messages",
                             "a part of a message has no 'text'");
    return api_error_set(error, API_ERROR_UNSUPPORTED, "messages",
                         "a part of a message is '%.40s': this server reads text", name);
}

static sac_status add_part(struct strbuf *out, const cJSON *part, struct api_error *error)
{
    const cJSON *type = json_get(part, "type"), *text = json_get(part, "text");
    if (cJSON_IsString(part)) text = part;
    if (!cJSON_IsString(text)) return add_other(type, error);
    if (out->n) strbuf_add(out, "\n", 1);
    strbuf_adds(out, text->valuestring);
    return SAC_OK;
}

sac_status dialogue_content(struct strbuf *out, const cJSON *content, struct api_error *error)
{
    const cJSON *part;
    if (cJSON_IsString(content)) {
        strbuf_adds(out, content->valuestring);
    } else if (cJSON_IsArray(content)) {
        cJSON_ArrayForEach(part, content) TRY(add_part(out, part, error));
    } else if (content) {
        return api_error_set(error, API_ERROR_REQUEST, "messages",
                             "the content of a message is neither a text nor a list of parts");
    }
    strbuf_add(out, "", 0);
    return out->failed ? api_error_no_memory(error) : SAC_OK;
}

/* Replaces the arguments of tool calls, which are JSON text in the API, by the objects that
 * templates expect. Anything else stays a string. */
static void open_arguments(cJSON *calls)
{
    cJSON *call;
    cJSON_ArrayForEach(call, calls)
    {
        cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
        const cJSON *text = json_get(function, "arguments");
        const struct json_limits limits = json_limits_default();
        cJSON *value = NULL;
        if (!cJSON_IsString(text) || json_parse(&value, text->valuestring,
                                                strlen(text->valuestring), &limits, NULL) != SAC_OK)
            continue;
        if (cJSON_IsObject(value))
            cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", value);
        else
            cJSON_Delete(value);
    }
}

/* Serialises the message's other fields; `*out` is NULL if there are none. */
static sac_status extra_fields(char **out, const cJSON *message, struct api_error *error)
{
    struct strbuf text = {0};
    cJSON *extra = cJSON_Duplicate(message, true);
    *out = NULL;
    if (!extra) return api_error_no_memory(error);
    cJSON_DeleteItemFromObjectCaseSensitive(extra, "role");
    cJSON_DeleteItemFromObjectCaseSensitive(extra, "content");
    for (cJSON *field = extra->child; field;) {
        cJSON *next = field->next;
        if (cJSON_IsNull(field)) cJSON_Delete(cJSON_DetachItemViaPointer(extra, field));
        field = next;
    }
    open_arguments(cJSON_GetObjectItemCaseSensitive(extra, "tool_calls"));
    if (!extra->child) {
        cJSON_Delete(extra);
        return SAC_OK;
    }
    json_print(&text, extra);
    *out = strbuf_detach(&text, NULL);
    return *out ? SAC_OK : api_error_no_memory(error);
}

/* Returns the role as a constant, NULL if it is unknown. */
static const char *find_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(role, roles[i]) == 0) return roles[i];
    return NULL;
}

static sac_status check_role(const char *role, struct api_error *error)
{
    if (find_role(role)) return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, "messages",
                         "the role of a message is '%.40s': allowed are system, developer, user, "
                         "assistant and tool",
                         role);
}

/* Checks the tool calls of an earlier turn, on whose form templates and dialogue_tools.c rely. */
static sac_status check_calls(const cJSON *message, struct api_error *error)
{
    const cJSON *calls = json_get(message, "tool_calls"), *call;
    bool well = !calls || cJSON_IsArray(calls);
    cJSON_ArrayForEach(call, calls) well =
        well && cJSON_IsString(json_get(json_get(call, "function"), "name"));
    if (well) return SAC_OK;
    return api_error_set(
        error, API_ERROR_REQUEST, "messages",
        "the 'tool_calls' of a message are not a list of objects with a 'function' "
        "that has a 'name'");
}

static sac_status read_message(struct dialogue *d, const cJSON *message, struct api_error *error)
{
    struct strbuf content = {0};
    char *extra = NULL;
    const char *role = NULL;
    if (!cJSON_IsObject(message))
        return api_error_set(error, API_ERROR_REQUEST, "messages", "a message is not an object");
    TRY(api_request_text(message, "role", &role, error));
    if (!role)
        return api_error_set(error, API_ERROR_REQUEST, "messages", "a message has no 'role'");
    TRY(check_role(role, error));
    /* OpenAI's new name for the system role, which templates do not know. */
    if (strcmp(role, "developer") == 0) role = "system";
    const cJSON *said = json_get(message, "content");
    if (!said && strcmp(role, "assistant") != 0)
        return api_error_set(error, API_ERROR_REQUEST, "messages",
                             "a message of the role '%s' has no "
                             "'content'",
                             role);
    TRY(check_calls(message, error));
    sac_status status = dialogue_content(&content, said, error);
    if (status == SAC_OK) status = extra_fields(&extra, message, error);
    /* The content of a message with only tool calls is "", not NULL: templates concatenate it. */
    if (status == SAC_OK) status = dialogue_add(d, role, content.data, extra, error);
    strbuf_deinit(&content);
    mem_free(extra);
    return status;
}

/* Variables for the template: "chat_template_kwargs" and fields that newer APIs have outside it. */
static sac_status read_vars(struct dialogue *d, const cJSON *body, struct api_error *error)
{
    static const char *const also[] = {"reasoning_effort", "parallel_tool_calls"};
    const cJSON *given = json_get(body, "chat_template_kwargs");
    struct strbuf text = {0};
    if (given && !cJSON_IsObject(given))
        return api_error_set(error, API_ERROR_REQUEST, "chat_template_kwargs",
                             "'chat_template_kwargs' is not an object");
    cJSON *vars = given ? cJSON_Duplicate(given, true) : cJSON_CreateObject();
    for (size_t i = 0; i < sizeof also / sizeof also[0]; i++) {
        const cJSON *item = json_get(body, also[i]);
        if (item && !json_get(vars, also[i]))
            cJSON_AddItemToObject(vars, also[i], cJSON_Duplicate(item, true));
    }
    json_print(&text, vars);
    d->vars = strbuf_detach(&text, NULL);
    return d->vars ? SAC_OK : api_error_no_memory(error);
}

/* Reads how the prompt ends: "add_generation_prompt" and "continue_final_message". */
static sac_status read_end(struct dialogue *d, const cJSON *body, struct api_error *error)
{
    static const char name[] = "continue_final_message";
    const sac_message *last = &d->msg[d->n - 1];
    bool opens = true;
    TRY(api_request_bool(body, "add_generation_prompt", &opens, error));
    TRY(api_request_bool(body, name, &d->goes_on, error));
    d->open_end = !opens;
    if (!d->goes_on) return SAC_OK;
    if (opens && json_get(body, "add_generation_prompt"))
        return api_error_set(error, API_ERROR_REQUEST, name,
                             "'%s' goes on with the last turn, 'add_generation_prompt' begins "
                             "another: only one can be true",
                             name);
    if (strcmp(last->role, "assistant") == 0 && *last->content && !dialogue_has_calls(last))
        return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, name,
                         "'%s' needs a last message of the assistant, with text and without calls",
                         name);
}

bool dialogue_has_calls(const sac_message *m)
{
    return m->extra_json && strstr(m->extra_json, "\"tool_calls\"");
}

cJSON *dialogue_add_message(cJSON *list, const char *role)
{
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", role);
    cJSON_AddItemToArray(list, m);
    return m;
}

sac_status dialogue_read(struct dialogue *d, const cJSON *body, struct api_error *error)
{
    const cJSON *messages = json_get(body, "messages"), *message;
    if (!cJSON_IsArray(messages) || !messages->child)
        return api_error_set(error, API_ERROR_REQUEST, "messages",
                             "'messages' is missing, or not a list of messages");
    cJSON_ArrayForEach(message, messages) TRY(read_message(d, message, error));
    TRY(read_end(d, body, error));
    return read_vars(d, body, error);
}

static sac_chat_params params_of(const struct dialogue *d, const struct api_request_rules *rules)
{
    return (sac_chat_params){.chat_template = rules->chat_template,
                             .tools_json = d->tools,
                             .vars_json = d->vars,
                             .add_generation_prompt = !d->open_end,
                             .continue_last = d->goes_on};
}

/* Locates the messages in the prompt, for the record of attention. */
static sac_status find_messages(const struct dialogue *d, struct api_request *a,
                                const struct api_request_rules *rules, struct api_error *error)
{
    const size_t n = d->n - d->n_lead;
    struct passages_document *text = mem_calloc(n, sizeof *text);
    a->role = mem_calloc(n, sizeof *a->role);
    if (!text || !a->role) {
        mem_free(text);
        return api_error_no_memory(error);
    }
    for (size_t i = 0; i < n; i++) {
        const sac_message *m = &d->msg[d->n_lead + i];
        text[i].text = m->content ? m->content : "";
        text[i].n = strlen(text[i].text);
        a->role[a->n_role++] = find_role(m->role);
    }
    a->n_before = d->n_lead == 0 && strcmp(d->msg[0].role, "system") == 0;
    const sac_status status = api_request_find_passages(a, text, n, rules, error);
    mem_free(text);
    return status;
}

sac_status dialogue_to_prompt(const struct dialogue *d, struct api_request *a,
                              const struct api_request_rules *rules, struct api_error *error)
{
    const sac_chat_params params = params_of(d, rules);
    sac_error err = {0};
    int32_t *tok;
    size_t n;
    const sac_status status = sac_chat_tokens(rules->model, d->msg, d->n, &params, &tok, &n, &err);
    if (status != SAC_OK) return api_error_of(error, status, "messages", err.msg);
    TRY(api_request_add_prompt(a, tok, n, rules, error));
    const bool has_system = strcmp(d->msg[0].role, "system") == 0;
    TRY(api_request_find_head(a, has_system ? d->msg[0].content : NULL, false, rules, error));
    return a->attention ? find_messages(d, a, rules, error) : SAC_OK;
}

sac_status dialogue_render(const struct dialogue *d, const struct api_request_rules *rules,
                           char **out_text, struct api_error *error)
{
    const sac_chat_params params = params_of(d, rules);
    sac_error err = {0};
    const sac_status status = sac_chat_apply(rules->model, d->msg, d->n, &params, out_text, &err);
    return status == SAC_OK ? SAC_OK : api_error_of(error, status, "messages", err.msg);
}
