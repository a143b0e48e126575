/* openai_responses.c: POST /v1/responses, whole and streamed. A request is translated to a chat
 * completion and read as one. Nothing is stored: `previous_response_id` is refused. */
#include "serve/dialects.h"
#include "serve/dialogue.h"

#include <stdio.h>
#include <string.h>

/* ---- Reading ---- */

/* A tool call of an earlier turn; consecutive calls form one message. */
static void add_call(cJSON *out, const cJSON *item)
{
    /* cJSON links the first item back to the last. Walking the list instead would take quadratic
     * time. */
    const cJSON *last = out && out->child ? out->child->prev : NULL;
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(last, "tool_calls");
    cJSON *call = cJSON_CreateObject(), *function;
    if (!calls)
        calls = cJSON_AddArrayToObject(dialogue_add_message(out, "assistant"), "tool_calls");
    json_copy(call, "id", item, "call_id");
    cJSON_AddStringToObject(call, "type", "function");
    function = cJSON_AddObjectToObject(call, "function");
    json_copy(function, "name", item, "name");
    json_copy(function, "arguments", item, "arguments");
    cJSON_AddItemToArray(calls, call);
}

static sac_status read_item(cJSON *out, const cJSON *item, struct api_error *error)
{
    const cJSON *type = json_get(item, "type"), *role = json_get(item, "role");
    if (json_says(item, "type", "function_call")) {
        add_call(out, item);
    } else if (json_says(item, "type", "function_call_output")) {
        cJSON *m = dialogue_add_message(out, "tool");
        json_copy(m, "tool_call_id", item, "call_id");
        json_copy(m, "content", item, "output");
    } else if ((!type || json_says(item, "type", "message")) && cJSON_IsString(role)) {
        json_copy(dialogue_add_message(out, role->valuestring), "content", item, "content");
    } else if (!json_says(item, "type", "reasoning")) {
        return api_error_set(error, API_ERROR_UNSUPPORTED, "input", "an item of 'input' is '%.40s'",
                             cJSON_IsString(type) ? type->valuestring : "?");
    }
    return SAC_OK;
}

static sac_status read_input(cJSON *out, const cJSON *body, struct api_error *error)
{
    const cJSON *input = json_get(body, "input"), *item;
    const char *instructions = NULL;
    TRY(api_request_text(body, "instructions", &instructions, error));
    if (instructions)
        json_copy(dialogue_add_message(out, "system"), "content", body, "instructions");
    if (cJSON_IsString(input)) {
        json_copy(dialogue_add_message(out, "user"), "content", body, "input");
    } else if (cJSON_IsArray(input)) {
        cJSON_ArrayForEach(item, input) TRY(read_item(out, item, error));
    } else {
        return api_error_set(error, API_ERROR_REQUEST, "input",
                             "'input' is missing, or neither a text nor a list");
    }
    return SAC_OK;
}

static sac_status read_tools(cJSON *out, const cJSON *body, struct api_error *error)
{
    const cJSON *tools = json_get(body, "tools"), *tool, *choice = json_get(body, "tool_choice");
    if (cJSON_IsArray(tools)) {
        cJSON *list = cJSON_AddArrayToObject(out, "tools");
        cJSON_ArrayForEach(tool, tools)
        {
            if (!json_says(tool, "type", "function"))
                return api_error_set(error, API_ERROR_UNSUPPORTED, "tools",
                                     "a tool is not of type 'function'");
            cJSON *o = cJSON_CreateObject();
            cJSON_AddStringToObject(o, "type", "function");
            cJSON_AddItemToObject(o, "function", cJSON_Duplicate(tool, true));
            cJSON_AddItemToArray(list, o);
        }
    } else {
        json_copy(out, "tools", body, "tools"); /* so that it is refused */
    }
    if (cJSON_IsObject(choice)) {
        cJSON *o = cJSON_AddObjectToObject(out, "tool_choice");
        cJSON_AddStringToObject(o, "type", "function");
        json_copy(cJSON_AddObjectToObject(o, "function"), "name", choice, "name");
    } else {
        json_copy(out, "tool_choice", body, "tool_choice");
    }
    return SAC_OK;
}

/* text.format is response_format of a chat completion, one level flatter. */
static sac_status read_format(cJSON *out, const cJSON *body, struct api_error *error)
{
    const cJSON *text = json_get(body, "text"), *format = json_get(text, "format");
    if ((text && !cJSON_IsObject(text)) || (format && !cJSON_IsObject(format)))
        return api_error_set(error, API_ERROR_REQUEST, "text",
                             "'text' is not an object whose 'format' is one");
    if (!format) return SAC_OK;
    cJSON *o = cJSON_AddObjectToObject(out, "response_format");
    json_copy(o, "type", format, "type");
    if (json_says(format, "type", "json_schema"))
        cJSON_AddItemToObject(o, "json_schema", cJSON_Duplicate(format, true));
    return SAC_OK;
}

/* "auto" drops the oldest tokens of a conversation that is too long, as in vLLM. */
static sac_status read_truncation(cJSON *out, const cJSON *body, struct api_error *error)
{
    if (!json_get(body, "truncation") || json_says(body, "truncation", "disabled")) return SAC_OK;
    if (!json_says(body, "truncation", "auto"))
        return api_error_set(error, API_ERROR_REQUEST, "truncation",
                             "'truncation' is neither auto nor disabled");
    cJSON_AddNumberToObject(out, "truncate_prompt_tokens", -1);
    return SAC_OK;
}

static sac_status read_request(struct api_request *a, const cJSON *body,
                               const struct api_request_rules *rules, struct api_error *error)
{
    static const char *const same[] = {"stream",    "temperature",     "top_p",  "top_k",
                                       "seed",      "min_p",           "sparse", "cache_salt",
                                       "documents", "return_attention"};
    static const struct {
        const char *chat, *here;
    } names[] = {{"max_tokens", "max_output_tokens"},
                 {"messages", "input"},
                 {"truncate_prompt_tokens", "truncation"},
                 {"response_format", "text.format"}};
    static const char *const stored[] = {"previous_response_id", "conversation", "prompt",
                                         "background"};
    for (size_t i = 0; i < sizeof stored / sizeof stored[0]; i++)
        if (json_get(body, stored[i]) && !cJSON_IsFalse(json_get(body, stored[i])))
            return api_error_set(error, API_ERROR_UNSUPPORTED, stored[i],
                                 "'%s': this server stores no responses, send the conversation in "
                                 "'input'",
                                 stored[i]);
    cJSON *chat = cJSON_CreateObject(), *messages = cJSON_AddArrayToObject(chat, "messages");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        json_copy(chat, same[i], body, same[i]);
    json_copy(chat, "max_tokens", body, "max_output_tokens");
    sac_status status = read_format(chat, body, error);
    if (status == SAC_OK) status = read_truncation(chat, body, error);
    if (status == SAC_OK) status = read_input(messages, body, error);
    if (status == SAC_OK) status = read_tools(chat, body, error);
    if (status == SAC_OK) status = openai_chat_dialect.read(a, chat, rules, error);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        api_error_rename(error, names[i].chat, names[i].here);
    cJSON_Delete(chat);
    return status;
}

/* ---- Writing ---- */

static cJSON *usage_json(const struct reply *r)
{
    const struct reply_count n = reply_counts(r);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "input_tokens", n.prompt);
    cJSON *details = cJSON_AddObjectToObject(o, "input_tokens_details");
    cJSON_AddNumberToObject(details, "cached_tokens", n.cached);
    cJSON_AddNumberToObject(details, "disk_tokens", n.disk);
    cJSON_AddNumberToObject(o, "output_tokens", n.predicted);
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(o, "output_tokens_details"), "reasoning_tokens",
                            0);
    cJSON_AddNumberToObject(o, "total_tokens", (double)n.prompt + n.predicted);
    cJSON_AddItemToObject(o, "sparse", reply_sparse(r));
    return o;
}

/* Item ids are the response's id with another prefix. */
static void item_id(const struct reply *r, const char *prefix, size_t i, char out[64])
{
    snprintf(out, 64, "%s%s_%zu", prefix, r->id + strlen("resp_"), i);
}

static cJSON *part_json(const char *text, size_t n)
{
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", "output_text");
    json_add_text(part, "text", text, n);
    cJSON_AddArrayToObject(part, "annotations");
    cJSON_AddArrayToObject(part, "logprobs");
    return part;
}

/* The first `n` bytes of the answer as an item; an open item has no content. An answer cut by its
 * limit is "incomplete". */
static cJSON *message_item(const struct reply *r, size_t n, bool done)
{
    const struct reply_choice *c = &r->choice[0];
    cJSON *o = cJSON_CreateObject(), *content;
    const bool cut = c->finish == SAC_FINISH_LENGTH && !c->n_call;
    char id[64];
    item_id(r, "msg_", 0, id);
    cJSON_AddStringToObject(o, "type", "message");
    cJSON_AddStringToObject(o, "id", id);
    cJSON_AddStringToObject(o, "status", !done ? "in_progress" : cut ? "incomplete" : "completed");
    cJSON_AddStringToObject(o, "role", "assistant");
    content = cJSON_AddArrayToObject(o, "content");
    if (done) cJSON_AddItemToArray(content, part_json(c->text.data ? c->text.data : "", n));
    return o;
}

static cJSON *call_item(const struct reply *r, size_t i, bool done)
{
    const struct reply_call *call = &r->choice[0].call[i];
    cJSON *o = cJSON_CreateObject();
    char id[64];
    item_id(r, "fc_", i, id);
    cJSON_AddStringToObject(o, "type", "function_call");
    cJSON_AddStringToObject(o, "id", id);
    cJSON_AddStringToObject(o, "call_id", call->id);
    cJSON_AddStringToObject(o, "name", call->name);
    json_add_text(o, "arguments", call->args.data, done ? call->args.n : 0);
    cJSON_AddStringToObject(o, "status", done ? "completed" : "in_progress");
    return o;
}

static bool has_message(const struct reply_choice *c)
{
    return c->text.n || !c->n_call;
}

static cJSON *response_json(const struct reply *r, bool done)
{
    const struct reply_choice *c = &r->choice[0];
    const bool cut = done && c->finish == SAC_FINISH_LENGTH;
    cJSON *o = cJSON_CreateObject(), *output;
    cJSON_AddStringToObject(o, "id", r->id);
    cJSON_AddStringToObject(o, "object", "response");
    cJSON_AddNumberToObject(o, "created_at", (double)r->created);
    cJSON_AddStringToObject(o, "status", !done ? "in_progress" : cut ? "incomplete" : "completed");
    cJSON_AddNullToObject(o, "error");
    if (cut)
        cJSON_AddStringToObject(cJSON_AddObjectToObject(o, "incomplete_details"), "reason",
                                "max_output_tokens");
    else
        cJSON_AddNullToObject(o, "incomplete_details");
    cJSON_AddStringToObject(o, "model", r->model_name);
    output = cJSON_AddArrayToObject(o, "output");
    if (done && has_message(c)) cJSON_AddItemToArray(output, message_item(r, c->text.n, true));
    for (size_t i = 0; done && i < c->n_call; i++)
        cJSON_AddItemToArray(output, call_item(r, i, true));
    cJSON_AddBoolToObject(o, "parallel_tool_calls", true);
    cJSON_AddStringToObject(o, "tool_choice", "auto");
    cJSON_AddArrayToObject(o, "tools");
    cJSON_AddNumberToObject(o, "temperature", (double)r->request->sampling.temp);
    cJSON_AddNumberToObject(o, "top_p", (double)r->request->sampling.top_p);
    if (done)
        cJSON_AddItemToObject(o, "usage", usage_json(r));
    else
        cJSON_AddNullToObject(o, "usage");
    return o;
}

static void write_whole(struct reply *r, struct strbuf *out)
{
    json_print(out, response_json(r, true));
}

static void write_event(struct reply *r, const char *type, cJSON *event, struct strbuf *out)
{
    cJSON_AddStringToObject(event, "type", type);
    cJSON_AddNumberToObject(event, "sequence_number", r->n_event++);
    reply_event(out, type, event);
}

static void write_response(struct reply *r, const char *type, bool done, struct strbuf *out)
{
    cJSON *event = cJSON_CreateObject();
    cJSON_AddItemToObject(event, "response", response_json(r, done));
    write_event(r, type, event, out);
}

/* Takes ownership of `item`. */
static void write_item(struct reply *r, const char *type, size_t index, cJSON *item,
                       struct strbuf *out)
{
    cJSON *event = cJSON_CreateObject();
    cJSON_AddNumberToObject(event, "output_index", (double)index);
    cJSON_AddItemToObject(event, "item", item);
    write_event(r, type, event, out);
}

/* An event about the message's only part; takes ownership of `value`. */
static void write_part(struct reply *r, const char *type, const char *field, cJSON *value,
                       struct strbuf *out)
{
    cJSON *event = cJSON_CreateObject();
    char id[64];
    item_id(r, "msg_", 0, id);
    cJSON_AddStringToObject(event, "item_id", id);
    cJSON_AddNumberToObject(event, "output_index", 0);
    cJSON_AddNumberToObject(event, "content_index", 0);
    cJSON_AddItemToObject(event, field, value);
    if (strstr(type, "output_text")) cJSON_AddArrayToObject(event, "logprobs");
    write_event(r, type, event, out);
}

static void open_stream(struct reply *r, struct strbuf *out)
{
    write_response(r, "response.created", false, out);
    write_response(r, "response.in_progress", false, out);
}

static void open_message(struct reply *r, struct strbuf *out)
{
    write_item(r, "response.output_item.added", 0, message_item(r, 0, false), out);
    write_part(r, "response.content_part.added", "part", part_json("", 0), out);
}

static void end_message(struct reply *r, struct strbuf *out)
{
    const struct reply_choice *c = &r->choice[0];
    const char *text = c->text.data ? c->text.data : "";
    const size_t n = c->n_shown;
    write_part(r, "response.output_text.done", "text", json_text(text, n), out);
    write_part(r, "response.content_part.done", "part", part_json(text, n), out);
    write_item(r, "response.output_item.done", 0, message_item(r, n, true), out);
}

static void write_call(struct reply *r, size_t index, size_t i, struct strbuf *out)
{
    static const char *const types[] = {"response.function_call_arguments.delta",
                                        "response.function_call_arguments.done"};
    static const char *const fields[] = {"delta", "arguments"};
    char id[64];
    item_id(r, "fc_", i, id);
    write_item(r, "response.output_item.added", index, call_item(r, i, false), out);
    for (int k = 0; k < 2; k++) {
        cJSON *event = cJSON_CreateObject();
        cJSON_AddStringToObject(event, "item_id", id);
        cJSON_AddNumberToObject(event, "output_index", (double)index);
        json_add_text(event, fields[k], r->choice[0].call[i].args.data,
                      r->choice[0].call[i].args.n);
        write_event(r, types[k], event, out);
    }
    write_item(r, "response.output_item.done", index, call_item(r, i, true), out);
}

static void write_piece(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    const struct reply_choice *c = &r->choice[0];
    const char *text;
    size_t n;
    if (p->kind == ANSWER_PROMPT || r->failed.kind != API_ERROR_NONE) return;
    reply_next(r, 0, &text, &n);
    if (c->n_shown == n && (n || (c->done && !c->n_call))) open_message(r, out);
    if (n) write_part(r, "response.output_text.delta", "delta", json_text(text, n), out);
    if (!c->done) return;
    const bool message = c->n_shown || !c->n_call;
    if (message) end_message(r, out);
    for (size_t i = 0; i < c->n_call; i++) write_call(r, i + message, i, out);
}

static void close_stream(struct reply *r, struct strbuf *out)
{
    const struct reply_choice *c = &r->choice[0];
    const bool cut = c->finish == SAC_FINISH_LENGTH;
    write_response(r, cut ? "response.incomplete" : "response.completed", true, out);
}

const struct dialect openai_responses_dialect = {
    .id_prefix = "resp_",
    .read = read_request,
    .open = open_stream,
    .piece = write_piece,
    .close = close_stream,
    .whole = write_whole,
};
