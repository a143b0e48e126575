/* llamacpp_completion.c: POST /completion, whole and streamed, as in llama.cpp's server. A request
 * is read like one of /v1/completions with one prompt and one answer. */
#include "serve/dialects.h"

#include <string.h>

static sac_status read_request(struct api_request *a, const cJSON *body,
                               const struct api_request_rules *rules, struct api_error *error)
{
    bool tokens = false;
    TRY(openai_completion_dialect.read(a, body, rules, error));
    TRY(api_request_bool(body, "return_tokens", &tokens, error));
    a->token_ids |= tokens || a->stream;
    if (a->n_prompt > 1 || a->n > 1)
        return api_error_set(
            error, API_ERROR_REQUEST, a->n > 1 ? "n" : "prompt",
            "one answer to one 'prompt' is given here: '/v1/completions' gives more");
    if (a->logprobs || a->echo)
        return api_error_set(error, API_ERROR_UNSUPPORTED, a->echo ? "echo" : "logprobs",
                             "'%s' is told by '/v1/completions'", a->echo ? "echo" : "logprobs");
    return SAC_OK;
}

/* ---- Writing ---- */

/* Members that all objects share; takes ownership of `tokens` (NULL: none). */
static cJSON *piece_json(const struct reply *r, const char *text, size_t n, cJSON *tokens)
{
    const struct reply_choice *c = &r->choice[0];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "index", 0);
    json_add_text(o, "content", text, n);
    cJSON_AddItemToObject(o, "tokens", tokens ? tokens : cJSON_CreateArray());
    cJSON_AddBoolToObject(o, "stop", c->done);
    cJSON_AddNumberToObject(o, "id_slot", r->answer->slot);
    cJSON_AddNumberToObject(o, "tokens_predicted", c->n_tok);
    cJSON_AddNumberToObject(o, "tokens_evaluated", c->n_prompt);
    return o;
}

static const char *stop_type(const struct reply_choice *c)
{
    if (c->finish == SAC_FINISH_LENGTH) return "limit";
    return c->stop_i >= 0 ? "word" : "eos";
}

/* Adds the reason of the end and the usage. */
static void add_end(const struct reply *r, cJSON *o)
{
    const struct reply_choice *c = &r->choice[0];
    cJSON_AddStringToObject(o, "model", r->model_name);
    cJSON_AddBoolToObject(o, "has_new_line", c->text.n && memchr(c->text.data, '\n', c->text.n));
    cJSON_AddBoolToObject(o, "truncated", r->request->is_cut);
    cJSON_AddStringToObject(o, "stop_type", stop_type(c));
    cJSON_AddStringToObject(o, "stopping_word", c->stop_i >= 0 ? r->request->stop[c->stop_i] : "");
    cJSON_AddNumberToObject(o, "tokens_cached", c->timings.n_cached);
    cJSON_AddItemToObject(o, "usage", reply_usage(r));
    cJSON_AddItemToObject(o, "timings", reply_timings(&c->timings));
}

static void write_piece(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    cJSON *tokens = NULL;
    if (r->failed.kind != API_ERROR_NONE || (p->kind == ANSWER_PROMPT && !r->request->progress))
        return;
    if (p->kind == ANSWER_TOKEN) {
        tokens = cJSON_CreateArray();
        cJSON_AddItemToArray(tokens, cJSON_CreateNumber(p->tok));
    }
    cJSON *o = piece_json(r, p->text, p->n_text, tokens);
    if (p->kind == ANSWER_PROMPT) cJSON_AddItemToObject(o, "prompt_progress", reply_progress(p));
    if (p->kind == ANSWER_TOKEN && r->request->timings)
        cJSON_AddItemToObject(o, "timings", reply_timings(&p->timings));
    if (p->kind == ANSWER_DONE) add_end(r, o);
    reply_event(out, NULL, o);
}

static void write_whole(struct reply *r, struct strbuf *out)
{
    struct reply_choice *c = &r->choice[0];
    cJSON *o = piece_json(r, c->text.data, c->text.n, c->token_ids);
    c->token_ids = NULL;
    add_end(r, o);
    json_print(out, o);
}

const struct dialect llamacpp_completion_dialect = {
    .id_prefix = "cmpl-",
    .read = read_request,
    .piece = write_piece,
    .whole = write_whole,
};
