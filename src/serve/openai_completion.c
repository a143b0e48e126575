/* openai_completion.c: POST /v1/completions, whole and streamed: raw prompts, as texts or tokens,
 * one or many. */
#include "serve/dialects.h"

#include "base/mem.h"
#include "eval/prompt.h"
#include "serve/structured_output.h"

#include <string.h>

static sac_status add_ids(struct api_request *a, const cJSON *list,
                          const struct api_request_rules *rules, struct api_error *error)
{
    const size_t n = (size_t)cJSON_GetArraySize(list);
    const cJSON *item;
    size_t i = 0;
    int32_t *tok = mem_alloc((n + 1) * sizeof *tok);
    if (!tok) return api_error_no_memory(error);
    cJSON_ArrayForEach(item, list)
    {
        if (!json_index(item, INT32_MAX, &tok[i])) {
            mem_free(tok);
            return api_error_set(error, API_ERROR_REQUEST, "prompt",
                                 "token %zu of the prompt is no token id", i);
        }
        i++;
    }
    TRY(api_request_add_prompt(a, tok, n, rules, error));
    return api_request_find_head(a, NULL, true, rules, error);
}

static sac_status add_text(struct api_request *a, const char *text,
                           const struct api_request_rules *rules, struct api_error *error)
{
    sac_error err = {0};
    int32_t *tok;
    size_t n;
    const sac_status status = prompt_tokens(rules->model, text, strlen(text), &tok, &n, &err);
    if (status != SAC_OK) return api_error_of(error, status, "prompt", err.msg);
    TRY(api_request_add_prompt(a, tok, n, rules, error));
    const struct passages_document whole = {text, strlen(text)};
    TRY(api_request_find_head(a, NULL, true, rules, error));
    TRY(api_request_find_passages(a, &whole, 1, rules, error));
    char **kept = &a->prompt[a->n_prompt - 1].text;
    if (a->echo && !(*kept = mem_strdup(text))) return api_error_no_memory(error);
    return SAC_OK;
}

/* A string, a list of strings, a list of token ids, or a list of such lists. */
static sac_status read_prompts(struct api_request *a, const cJSON *prompt,
                               const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *item;
    if (cJSON_IsString(prompt)) return add_text(a, prompt->valuestring, rules, error);
    if (!cJSON_IsArray(prompt) || !prompt->child)
        return api_error_set(error, API_ERROR_REQUEST, "prompt",
                             "'prompt' is missing, or neither a text nor a list");
    if (cJSON_IsNumber(prompt->child)) return add_ids(a, prompt, rules, error);
    cJSON_ArrayForEach(item, prompt)
    {
        if (cJSON_IsString(item)) {
            TRY(add_text(a, item->valuestring, rules, error));
        } else if (cJSON_IsArray(item)) {
            TRY(add_ids(a, item, rules, error));
        } else {
            return api_error_set(error, API_ERROR_REQUEST, "prompt",
                                 "'prompt' holds something that is neither text nor tokens");
        }
    }
    return SAC_OK;
}

static sac_status read_completion(struct api_request *a, const cJSON *body,
                                  const struct api_request_rules *rules, struct api_error *error)
{
    uint32_t n_top = UINT32_MAX;
    TRY(api_request_read(a, body, rules, error));
    TRY(api_request_u32(body, "logprobs", 0, API_REQUEST_TOP_MAX, &n_top, error));
    a->logprobs = n_top != UINT32_MAX;
    a->n_top = a->logprobs ? n_top : 0;
    TRY(api_request_bool(body, "echo", &a->echo, error));
    TRY(structured_output_read(a, body, rules, error));
    if (a->echo && a->logprobs)
        return api_error_set(error, API_ERROR_UNSUPPORTED, "logprobs",
                             "'logprobs' of the prompt ('echo') are not computed");
    return read_prompts(a, json_get(body, "prompt"), rules, error);
}

/* ---- Writing ---- */

/* OpenAI's older format: one list per field. `list` has one object per token. */
static cJSON *logprobs_json(const cJSON *list)
{
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    cJSON *o = cJSON_CreateObject();
    const cJSON *entry;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cJSON *column = cJSON_AddArrayToObject(o, names[i]);
        cJSON_ArrayForEach(entry, list)
            cJSON_AddItemToArray(column, cJSON_Duplicate(json_get(entry, names[i]), true));
    }
    return o;
}

/* One token's values for these lists. If alternatives have the same text, the likeliest is kept. */
static cJSON *logprob_row(const struct reply *r, const struct answer_piece *p, size_t offset)
{
    cJSON *row = cJSON_CreateObject(), *top = cJSON_CreateObject();
    cJSON_AddItemToObject(row, "tokens", reply_token_text(r, p->tok));
    cJSON_AddNumberToObject(row, "token_logprobs", (double)p->logprob);
    for (uint32_t i = 0; i < p->n_prob && i < r->request->n_top && p->prob[i].tok >= 0; i++) {
        cJSON *name = reply_token_text(r, p->prob[i].tok);
        if (name && !cJSON_GetObjectItemCaseSensitive(top, name->valuestring))
            cJSON_AddNumberToObject(top, name->valuestring, (double)p->prob[i].logprob);
        cJSON_Delete(name);
    }
    cJSON_AddItemToObject(row, "top_logprobs", top);
    cJSON_AddNumberToObject(row, "text_offset", (double)offset);
    return row;
}

static void keep_piece(struct reply *r, const struct answer_piece *p)
{
    struct reply_choice *c = &r->choice[p->choice_i];
    if (p->kind != ANSWER_TOKEN || !r->request->logprobs) return;
    if (!c->logprobs) c->logprobs = cJSON_CreateArray();
    cJSON_AddItemToArray(c->logprobs, logprob_row(r, p, c->text.n - p->n_text));
}

/* Takes ownership of `text`. */
static cJSON *choice_json(uint32_t i, cJSON *text, const char *finish)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "index", i);
    cJSON_AddItemToObject(o, "text", text);
    cJSON_AddNullToObject(o, "logprobs");
    if (finish)
        cJSON_AddStringToObject(o, "finish_reason", finish);
    else
        cJSON_AddNullToObject(o, "finish_reason");
    return o;
}

static void write_chunk(const struct reply *r, cJSON *choice, cJSON *timings, struct strbuf *out)
{
    cJSON *o = reply_object(r, "text_completion");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "choices"), choice);
    if (r->request->include_usage) cJSON_AddNullToObject(o, "usage");
    if (timings) cJSON_AddItemToObject(o, "timings", timings);
    reply_event(out, NULL, o);
}

static const char *echo_of(const struct reply *r, uint32_t choice_i)
{
    const char *text = r->request->prompt[choice_i / r->request->n].text;
    return text ? text : "";
}

static void open_stream(struct reply *r, struct strbuf *out)
{
    for (uint32_t i = 0; i < r->n_choice && r->request->echo; i++)
        write_chunk(r, choice_json(i, cJSON_CreateString(echo_of(r, i)), NULL), NULL, out);
}

static void write_token(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    if (p->n_text == 0 && !r->request->logprobs && !r->request->token_ids) return;
    cJSON *choice = choice_json(p->choice_i, json_text(p->text, p->n_text), NULL);
    if (r->request->logprobs) {
        const size_t offset = r->choice[p->choice_i].text.n - p->n_text;
        cJSON *list = cJSON_CreateArray();
        cJSON_AddItemToArray(list, logprob_row(r, p, offset));
        cJSON_ReplaceItemInObjectCaseSensitive(choice, "logprobs", logprobs_json(list));
        cJSON_Delete(list);
    }
    if (r->request->token_ids)
        cJSON_AddItemToArray(cJSON_AddArrayToObject(choice, "token_ids"),
                             cJSON_CreateNumber(p->tok));
    write_chunk(r, choice, r->request->timings ? reply_timings(&p->timings) : NULL, out);
}

static void write_piece(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    const struct reply_choice *c = &r->choice[p->choice_i];
    if (p->kind == ANSWER_TOKEN) write_token(r, p, out);
    if (p->kind == ANSWER_DONE && r->failed.kind == API_ERROR_NONE) {
        cJSON *choice = choice_json(p->choice_i, json_text(p->text, p->n_text), reply_finish(c));
        reply_add_stop(r, c, choice);
        write_chunk(r, choice, reply_timings(&c->timings), out);
    }
    if (p->kind == ANSWER_PROMPT && r->request->progress) {
        cJSON *o = reply_object(r, "text_completion");
        cJSON_AddArrayToObject(o, "choices");
        cJSON_AddItemToObject(o, "prompt_progress", reply_progress(p));
        reply_event(out, NULL, o);
    }
}

static void close_stream(struct reply *r, struct strbuf *out)
{
    if (r->request->include_usage) {
        cJSON *o = reply_object(r, "text_completion");
        cJSON_AddArrayToObject(o, "choices");
        cJSON_AddItemToObject(o, "usage", reply_usage(r));
        reply_event(out, NULL, o);
    }
    strbuf_adds(out, "data: [DONE]\n\n");
}

static cJSON *whole_choice(const struct reply *r, uint32_t i)
{
    const struct reply_choice *c = &r->choice[i];
    struct strbuf text = {0};
    strbuf_adds(&text, echo_of(r, i));
    strbuf_add(&text, c->text.data, c->text.n);
    cJSON *o = choice_json(i, json_text_of(&text), reply_finish(c));
    strbuf_deinit(&text);
    if (r->request->logprobs)
        cJSON_ReplaceItemInObjectCaseSensitive(o, "logprobs", logprobs_json(c->logprobs));
    if (c->token_ids) cJSON_AddItemToObject(o, "token_ids", cJSON_Duplicate(c->token_ids, true));
    reply_add_stop(r, c, o);
    return o;
}

static void write_whole(struct reply *r, struct strbuf *out)
{
    cJSON *o = reply_object(r, "text_completion"), *choices = cJSON_AddArrayToObject(o, "choices");
    for (uint32_t i = 0; i < r->n_choice; i++) cJSON_AddItemToArray(choices, whole_choice(r, i));
    cJSON_AddItemToObject(o, "usage", reply_usage(r));
    cJSON_AddItemToObject(o, "timings", reply_timings(&r->choice[0].timings));
    json_print(out, o);
}

const struct dialect openai_completion_dialect = {
    .id_prefix = "cmpl-",
    .read = read_completion,
    .keep = keep_piece,
    .open = open_stream,
    .piece = write_piece,
    .close = close_stream,
    .whole = write_whole,
};
