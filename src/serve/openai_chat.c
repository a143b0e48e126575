/* openai_chat.c: POST /v1/chat/completions, whole and streamed. */
#include "serve/dialects.h"
#include "serve/dialogue.h"
#include "serve/structured_output.h"

#include <string.h>

/* "logprobs": true, "top_logprobs": n. */
static sac_status read_logprobs(struct api_request *a, const cJSON *body, struct api_error *error)
{
    TRY(api_request_bool(body, "logprobs", &a->logprobs, error));
    TRY(api_request_u32(body, "top_logprobs", 0, API_REQUEST_TOP_MAX, &a->n_top, error));
    if (a->n_top && !a->logprobs)
        return api_error_set(error, API_ERROR_REQUEST, "top_logprobs",
                             "'top_logprobs' needs \"logprobs\": true");
    return SAC_OK;
}

static sac_status read_chat(struct api_request *a, const cJSON *body,
                            const struct api_request_rules *rules, struct api_error *error)
{
    struct dialogue d = {0};
    TRY(api_request_read(a, body, rules, error));
    TRY(read_logprobs(a, body, error));
    sac_status status = dialogue_read(&d, body, error);
    if (status == SAC_OK) status = dialogue_tools(&d, a, body, rules, error);
    if (status == SAC_OK) status = structured_output_read(a, body, rules, error);
    if (status == SAC_OK) status = dialogue_to_prompt(&d, a, rules, error);
    dialogue_deinit(&d);
    return status;
}

/* ---- Writing ---- */

static cJSON *token_json(const struct reply *r, int32_t tok, float logprob)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(o, "token", reply_token_text(r, tok));
    cJSON_AddNumberToObject(o, "logprob", (double)logprob);
    cJSON_AddItemToObject(o, "bytes", reply_token_bytes(r, tok));
    return o;
}

static cJSON *logprob_json(const struct reply *r, const struct answer_piece *p)
{
    cJSON *o = token_json(r, p->tok, p->logprob);
    cJSON *top = cJSON_AddArrayToObject(o, "top_logprobs");
    for (uint32_t i = 0; i < p->n_prob && i < r->request->n_top && p->prob[i].tok >= 0; i++)
        cJSON_AddItemToArray(top, token_json(r, p->prob[i].tok, p->prob[i].logprob));
    return o;
}

/* A chunk with one choice; takes ownership of `delta`. */
static cJSON *chunk_json(const struct reply *r, uint32_t choice_i, cJSON *delta, const char *finish)
{
    cJSON *o = reply_object(r, "chat.completion.chunk");
    cJSON *choices = cJSON_AddArrayToObject(o, "choices"), *choice = cJSON_CreateObject();
    cJSON_AddItemToArray(choices, choice);
    cJSON_AddNumberToObject(choice, "index", choice_i);
    cJSON_AddItemToObject(choice, "delta", delta);
    cJSON_AddNullToObject(choice, "logprobs");
    if (finish)
        cJSON_AddStringToObject(choice, "finish_reason", finish);
    else
        cJSON_AddNullToObject(choice, "finish_reason");
    if (r->request->include_usage) cJSON_AddNullToObject(o, "usage");
    return o;
}

static cJSON *choice_of(cJSON *chunk)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(chunk, "choices"), 0);
}

static void open_stream(struct reply *r, struct strbuf *out)
{
    for (uint32_t i = 0; i < r->n_choice; i++) {
        cJSON *delta = cJSON_CreateObject();
        cJSON_AddStringToObject(delta, "role", "assistant");
        cJSON_AddStringToObject(delta, "content", "");
        reply_event(out, NULL, chunk_json(r, i, delta, NULL));
    }
}

static void write_token(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    const char *text;
    size_t n;
    reply_next(r, p->choice_i, &text, &n);
    /* A token that completes no character has no text. It is sent only if the request asks for
     * per-token data. */
    cJSON *calls = reply_next_calls(r, p->choice_i);
    if (n == 0 && !calls && !r->request->logprobs && !r->request->token_ids) return;
    cJSON *delta = cJSON_CreateObject();
    if (n || !calls) json_add_text(delta, "content", text, n);
    if (calls) cJSON_AddItemToObject(delta, "tool_calls", calls);
    cJSON *chunk = chunk_json(r, p->choice_i, delta, NULL), *choice = choice_of(chunk);
    if (r->request->logprobs) {
        cJSON *logprobs = cJSON_CreateObject();
        cJSON_AddItemToArray(cJSON_AddArrayToObject(logprobs, "content"), logprob_json(r, p));
        cJSON_ReplaceItemInObjectCaseSensitive(choice, "logprobs", logprobs);
    }
    if (r->request->token_ids)
        cJSON_AddItemToArray(cJSON_AddArrayToObject(choice, "token_ids"),
                             cJSON_CreateNumber(p->tok));
    if (r->request->timings) cJSON_AddItemToObject(chunk, "timings", reply_timings(&p->timings));
    reply_event(out, NULL, chunk);
}

static void write_end(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    const struct reply_choice *c = &r->choice[p->choice_i];
    const char *text;
    size_t n;
    cJSON *delta = cJSON_CreateObject(), *calls = reply_next_calls(r, p->choice_i);
    reply_next(r, p->choice_i, &text, &n);
    if (n) json_add_text(delta, "content", text, n);
    if (calls) cJSON_AddItemToObject(delta, "tool_calls", calls);
    cJSON *chunk = chunk_json(r, p->choice_i, delta, reply_finish(c));
    reply_add_stop(r, c, choice_of(chunk));
    cJSON_AddItemToObject(chunk, "timings", reply_timings(&c->timings));
    reply_event(out, NULL, chunk);
}

static void write_piece(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    if (p->kind == ANSWER_TOKEN) write_token(r, p, out);
    if (p->kind == ANSWER_DONE && r->failed.kind == API_ERROR_NONE) write_end(r, p, out);
    if (p->kind == ANSWER_PROMPT && r->request->progress) {
        cJSON *chunk = chunk_json(r, p->choice_i, cJSON_CreateObject(), NULL);
        cJSON_AddItemToObject(chunk, "prompt_progress", reply_progress(p));
        reply_event(out, NULL, chunk);
    }
}

static void close_stream(struct reply *r, struct strbuf *out)
{
    if (r->request->include_usage) {
        cJSON *o = reply_object(r, "chat.completion.chunk");
        cJSON_AddArrayToObject(o, "choices");
        cJSON_AddItemToObject(o, "usage", reply_usage(r));
        reply_event(out, NULL, o);
    }
    strbuf_adds(out, "data: [DONE]\n\n");
}

static cJSON *whole_choice(const struct reply *r, uint32_t i)
{
    struct reply_choice *c = &r->choice[i];
    cJSON *o = cJSON_CreateObject(), *message = cJSON_AddObjectToObject(o, "message");
    cJSON_AddNumberToObject(o, "index", i);
    cJSON_AddStringToObject(message, "role", "assistant");
    if (c->n_call && c->text.n == 0)
        cJSON_AddNullToObject(message, "content");
    else
        json_add_text(message, "content", c->text.data, c->text.n);
    if (c->n_call) cJSON_AddItemToObject(message, "tool_calls", reply_calls(c));
    cJSON_AddNullToObject(message, "refusal");
    if (c->logprobs) {
        cJSON_AddItemToObject(cJSON_AddObjectToObject(o, "logprobs"), "content", c->logprobs);
        c->logprobs = NULL;
    } else {
        cJSON_AddNullToObject(o, "logprobs");
    }
    if (c->token_ids) cJSON_AddItemToObject(o, "token_ids", cJSON_Duplicate(c->token_ids, true));
    cJSON_AddStringToObject(o, "finish_reason", reply_finish(c));
    reply_add_stop(r, c, o);
    return o;
}

static void write_whole(struct reply *r, struct strbuf *out)
{
    cJSON *o = reply_object(r, "chat.completion"), *choices = cJSON_AddArrayToObject(o, "choices");
    for (uint32_t i = 0; i < r->n_choice; i++) cJSON_AddItemToArray(choices, whole_choice(r, i));
    cJSON_AddItemToObject(o, "usage", reply_usage(r));
    cJSON_AddItemToObject(o, "timings", reply_timings(&r->choice[0].timings));
    json_print(out, o);
}

static void keep_piece(struct reply *r, const struct answer_piece *p)
{
    struct reply_choice *c = &r->choice[p->choice_i];
    if (p->kind != ANSWER_TOKEN || !r->request->logprobs) return;
    if (!c->logprobs) c->logprobs = cJSON_CreateArray();
    cJSON_AddItemToArray(c->logprobs, logprob_json(r, p));
}

const struct dialect openai_chat_dialect = {
    .id_prefix = "chatcmpl-",
    .read = read_chat,
    .keep = keep_piece,
    .open = open_stream,
    .piece = write_piece,
    .close = close_stream,
    .whole = write_whole,
};
