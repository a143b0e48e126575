/* anthropic_messages.c: POST /v1/messages, whole and streamed. A request is translated to a chat
 * completion and read as one. */
#include "serve/dialects.h"
#include "serve/dialogue.h"

#include <string.h>

/* ---- Reading ---- */

static sac_status wrong_block(struct api_error *error, const cJSON *type)
{
    return api_error_set(error, API_ERROR_UNSUPPORTED, "messages",
                         "a block of content is '%.40s': this server reads text, tool_use and "
                         "tool_result",
                         cJSON_IsString(type) ? type->valuestring : "?");
}

/* A tool result becomes a message of its own, before the text of the same turn. */
static void add_result(cJSON *out, const cJSON *block)
{
    cJSON *m = dialogue_add_message(out, "tool");
    json_copy(m, "tool_call_id", block, "tool_use_id");
    json_copy(m, "content", block, "content");
    if (!json_get(m, "content")) cJSON_AddStringToObject(m, "content", "");
}

static void add_call(cJSON *calls, const cJSON *block)
{
    cJSON *call = cJSON_CreateObject(), *function;
    const cJSON *given = json_get(block, "input");
    struct strbuf input = {0};
    json_copy(call, "id", block, "id");
    cJSON_AddStringToObject(call, "type", "function");
    function = cJSON_AddObjectToObject(call, "function");
    json_copy(function, "name", block, "name");
    if (given)
        json_print(&input, cJSON_Duplicate(given, true));
    else
        strbuf_adds(&input, "{}");
    cJSON_AddItemToObject(function, "arguments", json_text_of(&input));
    strbuf_deinit(&input);
    cJSON_AddItemToArray(calls, call);
}

static sac_status read_blocks(cJSON *out, const char *role, const cJSON *blocks,
                              struct api_error *error)
{
    const cJSON *block;
    cJSON *parts = cJSON_CreateArray(), *calls = cJSON_CreateArray();
    sac_status status = SAC_OK;
    cJSON_ArrayForEach(block, blocks)
    {
        if (json_says(block, "type", "text"))
            cJSON_AddItemToArray(parts, cJSON_Duplicate(block, true));
        else if (json_says(block, "type", "tool_result"))
            add_result(out, block);
        else if (json_says(block, "type", "tool_use"))
            add_call(calls, block);
        else if (!json_says(block, "type", "thinking") &&
                 !json_says(block, "type", "redacted_thinking"))
            status = wrong_block(error, json_get(block, "type"));
    }
    const bool empty = !parts->child && !calls->child;
    cJSON *m = empty ? NULL : dialogue_add_message(out, role);
    if (m && parts->child)
        cJSON_AddItemToObject(m, "content", parts);
    else
        cJSON_Delete(parts);
    if (m && calls->child)
        cJSON_AddItemToObject(m, "tool_calls", calls);
    else
        cJSON_Delete(calls);
    return status;
}

static sac_status read_messages(cJSON *out, const cJSON *body, struct api_error *error)
{
    const cJSON *messages = json_get(body, "messages"), *m;
    const cJSON *system = json_get(body, "system");
    if (system && !cJSON_IsString(system) && !cJSON_IsArray(system))
        return api_error_set(error, API_ERROR_REQUEST, "system",
                             "'system' is neither a text nor a list of texts");
    if (!cJSON_IsArray(messages))
        return api_error_set(error, API_ERROR_REQUEST, "messages",
                             "'messages' is missing, or not a list of messages");
    if (system) json_copy(dialogue_add_message(out, "system"), "content", body, "system");
    cJSON_ArrayForEach(m, messages)
    {
        const cJSON *role = json_get(m, "role"), *content = json_get(m, "content");
        if (!cJSON_IsObject(m))
            return api_error_set(error, API_ERROR_REQUEST, "messages",
                                 "'messages' holds something that is not an object");
        const char *name = cJSON_IsString(role) ? role->valuestring : "";
        if (strcmp(name, "user") != 0 && strcmp(name, "assistant") != 0)
            return api_error_set(error, API_ERROR_REQUEST, "messages",
                                 "the role of a message is '%.40s': allowed are user and assistant",
                                 name);
        if (cJSON_IsArray(content))
            TRY(read_blocks(out, name, content, error));
        else
            json_copy(dialogue_add_message(out, name), "content", m, "content");
    }
    return SAC_OK;
}

/* In this API a final message of the assistant is a prefill: the answer continues it. */
static void read_begin(cJSON *chat, const cJSON *messages)
{
    const int n = cJSON_GetArraySize(messages);
    const cJSON *last = n ? cJSON_GetArrayItem(messages, n - 1) : NULL;
    const cJSON *content = json_get(last, "content"), *part = content ? content->child : NULL;
    if (!json_says(last, "role", "assistant") || json_get(last, "tool_calls")) return;
    while (part && json_says(part, "text", "")) part = part->next;
    if (part || (cJSON_IsString(content) && *content->valuestring))
        cJSON_AddTrueToObject(chat, "continue_final_message");
}

/* Only client tools ("custom", or without a type) are supported. Anthropic's own tools have other
 * types: they run on Anthropic's servers, or rely on models trained for them. */
static sac_status read_tools(cJSON *out, const cJSON *body, struct api_error *error)
{
    const cJSON *tools = json_get(body, "tools"), *tool;
    if (!cJSON_IsArray(tools)) {
        json_copy(out, "tools", body, "tools"); /* so that it is refused */
        return SAC_OK;
    }
    cJSON *list = cJSON_AddArrayToObject(out, "tools");
    cJSON_ArrayForEach(tool, tools)
    {
        const cJSON *type = json_get(tool, "type");
        if (type && !json_says(tool, "type", "custom"))
            return api_error_set(error, API_ERROR_UNSUPPORTED, "tools",
                                 "one of the 'tools' is '%.40s': this server knows 'custom' ones",
                                 cJSON_IsString(type) ? type->valuestring : "?");
        cJSON *o = cJSON_CreateObject(), *function;
        cJSON_AddStringToObject(o, "type", "function");
        function = cJSON_AddObjectToObject(o, "function");
        json_copy(function, "name", tool, "name");
        json_copy(function, "description", tool, "description");
        json_copy(function, "parameters", tool, "input_schema");
        cJSON_AddItemToArray(list, o);
    }
    return SAC_OK;
}

/* {"type": "auto"|"any"|"tool"|"none"} */
static void read_choice(cJSON *out, const cJSON *body)
{
    const cJSON *choice = json_get(body, "tool_choice");
    if (!choice) return;
    if (json_says(choice, "type", "tool")) {
        cJSON *o = cJSON_AddObjectToObject(out, "tool_choice");
        cJSON_AddStringToObject(o, "type", "function");
        json_copy(cJSON_AddObjectToObject(o, "function"), "name", choice, "name");
    } else if (json_says(choice, "type", "any")) {
        cJSON_AddStringToObject(out, "tool_choice", "required");
    } else if (cJSON_IsObject(choice)) {
        json_copy(out, "tool_choice", choice, "type");
    } else {
        json_copy(out, "tool_choice", body, "tool_choice"); /* so that it is refused */
    }
}

/* Refuses requests for tools that the server would have to run. Empty lists and objects are
 * accepted. */
static sac_status refuse_remote(const cJSON *body, struct api_error *error)
{
    static const char *const names[] = {"mcp_servers", "container"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const cJSON *item = json_get(body, names[i]);
        if (item && !((cJSON_IsArray(item) || cJSON_IsObject(item)) && !item->child))
            return api_error_set(error, API_ERROR_UNSUPPORTED, names[i],
                                 "'%s': this server runs no tools, the client does", names[i]);
    }
    return SAC_OK;
}

static sac_status read_request(struct api_request *a, const cJSON *body,
                               const struct api_request_rules *rules, struct api_error *error)
{
    static const char *const same[] = {
        "stream", "temperature", "top_p", "top_k",      "max_tokens", "seed",
        "min_p",  "sparse",      "n",     "cache_salt", "documents",  "return_attention"};
    cJSON *chat = cJSON_CreateObject(), *messages = cJSON_AddArrayToObject(chat, "messages");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        json_copy(chat, same[i], body, same[i]);
    json_copy(chat, "stop", body, "stop_sequences");
    read_choice(chat, body);
    sac_status status = refuse_remote(body, error);
    if (status == SAC_OK) status = read_tools(chat, body, error);
    if (status == SAC_OK) status = read_messages(messages, body, error);
    read_begin(chat, messages);
    if (status == SAC_OK) status = openai_chat_dialect.read(a, chat, rules, error);
    if (status == SAC_OK && a->n != 1)
        status =
            api_error_set(error, API_ERROR_REQUEST, "n", "'n' is %u: one answer is given", a->n);
    api_error_rename(error, "stop", "stop_sequences");
    cJSON_Delete(chat);
    return status;
}

/* ---- Writing ---- */

static const char *stop_reason(const struct reply_choice *c)
{
    if (c->finish == SAC_FINISH_LENGTH) return "max_tokens";
    if (c->n_call) return "tool_use";
    return c->stop_i >= 0 ? "stop_sequence" : "end_turn";
}

static cJSON *usage_json(const struct reply *r)
{
    const struct reply_count n = reply_counts(r);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "input_tokens", n.prompt - n.cached);
    cJSON_AddNumberToObject(o, "cache_read_input_tokens", n.cached);
    cJSON_AddNumberToObject(o, "cache_creation_input_tokens", 0);
    cJSON_AddNumberToObject(o, "output_tokens", n.predicted);
    cJSON_AddItemToObject(o, "sparse", reply_sparse(r));
    return o;
}

static void add_stop(cJSON *o, const struct reply *r, bool known)
{
    const struct reply_choice *c = &r->choice[0];
    if (known)
        cJSON_AddStringToObject(o, "stop_reason", stop_reason(c));
    else
        cJSON_AddNullToObject(o, "stop_reason");
    if (known && c->stop_i >= 0)
        cJSON_AddStringToObject(o, "stop_sequence", r->request->stop[c->stop_i]);
    else
        cJSON_AddNullToObject(o, "stop_sequence");
}

/* Wraps `content`, which it takes over, in a message. */
static cJSON *message_json(const struct reply *r, cJSON *content, bool known)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", r->id);
    cJSON_AddStringToObject(o, "type", "message");
    cJSON_AddStringToObject(o, "role", "assistant");
    cJSON_AddStringToObject(o, "model", r->model_name);
    cJSON_AddItemToObject(o, "content", content);
    add_stop(o, r, known);
    cJSON_AddItemToObject(o, "usage", usage_json(r));
    return o;
}

static cJSON *text_block(const char *text, size_t n)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "type", "text");
    json_add_text(o, "text", text, n);
    return o;
}

/* `input` NULL: the empty object with which a streamed block begins. */
static cJSON *call_block(const struct reply_call *call, const char *input)
{
    cJSON *o = cJSON_CreateObject(), *parsed = input ? cJSON_Parse(input) : NULL;
    cJSON_AddStringToObject(o, "type", "tool_use");
    cJSON_AddStringToObject(o, "id", call->id);
    cJSON_AddStringToObject(o, "name", call->name);
    cJSON_AddItemToObject(o, "input", parsed ? parsed : cJSON_CreateObject());
    return o;
}

static void write_whole(struct reply *r, struct strbuf *out)
{
    const struct reply_choice *c = &r->choice[0];
    cJSON *content = cJSON_CreateArray();
    if (c->text.n || !c->n_call)
        cJSON_AddItemToArray(content, text_block(c->text.data ? c->text.data : "", c->text.n));
    for (size_t i = 0; i < c->n_call; i++)
        cJSON_AddItemToArray(content, call_block(&c->call[i], c->call[i].args.data));
    json_print(out, message_json(r, content, true));
}

static void write_event(struct strbuf *out, const char *type, cJSON *event)
{
    cJSON_AddStringToObject(event, "type", type);
    reply_event(out, type, event);
}

/* Takes ownership of `block`. */
static void start_block(struct reply *r, cJSON *block, struct strbuf *out)
{
    cJSON *event = cJSON_CreateObject();
    cJSON_AddNumberToObject(event, "index", r->n_event);
    cJSON_AddItemToObject(event, "content_block", block);
    write_event(out, "content_block_start", event);
}

static void write_delta(struct reply *r, const char *type, const char *field, cJSON *value,
                        struct strbuf *out)
{
    cJSON *event = cJSON_CreateObject(), *delta;
    cJSON_AddNumberToObject(event, "index", r->n_event);
    delta = cJSON_AddObjectToObject(event, "delta");
    cJSON_AddStringToObject(delta, "type", type);
    cJSON_AddItemToObject(delta, field, value);
    write_event(out, "content_block_delta", event);
}

static void stop_block(struct reply *r, struct strbuf *out)
{
    cJSON *event = cJSON_CreateObject();
    cJSON_AddNumberToObject(event, "index", r->n_event++);
    write_event(out, "content_block_stop", event);
}

static void open_stream(struct reply *r, struct strbuf *out)
{
    cJSON *event = cJSON_CreateObject();
    cJSON_AddItemToObject(event, "message", message_json(r, cJSON_CreateArray(), false));
    write_event(out, "message_start", event);
}

static void write_piece(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    const struct reply_choice *c = &r->choice[0];
    const char *text;
    size_t n;
    if (p->kind == ANSWER_PROMPT || r->failed.kind != API_ERROR_NONE) return;
    reply_next(r, 0, &text, &n);
    /* The text block starts with the first text: the answer may consist of tool calls only. */
    if (c->n_shown == n && (n || (c->done && !c->n_call))) start_block(r, text_block("", 0), out);
    if (n) write_delta(r, "text_delta", "text", json_text(text, n), out);
    if (!c->done) return;
    if (c->n_shown || !c->n_call) stop_block(r, out);
    for (size_t i = 0; i < c->n_call; i++) {
        start_block(r, call_block(&c->call[i], NULL), out);
        write_delta(r, "input_json_delta", "partial_json", json_text_of(&c->call[i].args), out);
        stop_block(r, out);
    }
}

static void close_stream(struct reply *r, struct strbuf *out)
{
    cJSON *event = cJSON_CreateObject();
    add_stop(cJSON_AddObjectToObject(event, "delta"), r, true);
    cJSON_AddItemToObject(event, "usage", usage_json(r));
    write_event(out, "message_delta", event);
    write_event(out, "message_stop", cJSON_CreateObject());
}

const struct dialect anthropic_messages_dialect = {
    .id_prefix = "msg_",
    .anthropic = true,
    .read = read_request,
    .open = open_stream,
    .piece = write_piece,
    .close = close_stream,
    .whole = write_whole,
};
