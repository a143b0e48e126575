/* route.c: the table of routes, and the routes that answer at once: information about the server,
 * its state, text to tokens and back. Bodies are those of OpenAI's and llama.cpp's servers. */
#include "serve/route.h"
#include "serve/dialects.h"
#include "serve/dialogue.h"

#include "base/mem.h"

#include <assert.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAYERS_TOLD 1024u /* layers reported in the metrics; more than any model has */

/* ---- Health ---- */

static sac_status live(const struct route_call *call, struct strbuf *out, struct api_error *error)
{
    (void)call;
    (void)error;
    strbuf_adds(out, "{\"status\":\"ok\"}");
    return SAC_OK;
}

static sac_status health(const struct route_call *call, struct strbuf *out, struct api_error *error)
{
    const int state = atomic_load(&call->context->state);
    if (state == CONTEXT_READY) return live(call, out, error);
    return api_error_set(error, API_ERROR_UNAVAILABLE, NULL,
                         state == CONTEXT_LOADING ? "Loading model"
                                                  : "the server is shutting down");
}

/* ---- Information about the server ---- */

/* OpenAI's fields, and Anthropic's from `type` to `created_at`. */
static cJSON *model_json(const struct context *c)
{
    const sac_model_info i = sac_model_get_info(c->rules.model);
    cJSON *o = cJSON_CreateObject(), *meta;
    const time_t start = (time_t)c->start_s;
    struct tm utc;
    char date[32];
    gmtime_r(&start, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    cJSON_AddStringToObject(o, "id", c->model_name);
    cJSON_AddStringToObject(o, "object", "model");
    cJSON_AddNumberToObject(o, "created", (double)c->start_s);
    cJSON_AddStringToObject(o, "type", "model");
    cJSON_AddStringToObject(o, "display_name", c->model_name);
    cJSON_AddStringToObject(o, "created_at", date);
    cJSON_AddStringToObject(o, "owned_by", "saccade");
    cJSON_AddNumberToObject(o, "max_model_len", c->rules.engine.n_ctx);
    meta = cJSON_AddObjectToObject(o, "meta");
    cJSON_AddNumberToObject(meta, "n_ctx_train", i.n_ctx_train);
    cJSON_AddNumberToObject(meta, "n_vocab", i.n_vocab);
    cJSON_AddNumberToObject(meta, "n_embd", i.n_embd);
    cJSON_AddNumberToObject(meta, "n_params", (double)i.n_params);
    cJSON_AddNumberToObject(meta, "size", (double)i.file_bytes);
    return o;
}

static sac_status models(const struct route_call *call, struct strbuf *out, struct api_error *error)
{
    cJSON *o = cJSON_CreateObject();
    (void)error;
    cJSON_AddStringToObject(o, "object", "list");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "data"), model_json(call->context));
    /* Anthropic's clients ask for another page unless this is false. */
    cJSON_AddFalseToObject(o, "has_more");
    cJSON_AddStringToObject(o, "first_id", call->context->model_name);
    cJSON_AddStringToObject(o, "last_id", call->context->model_name);
    json_print(out, o);
    return SAC_OK;
}

/* Information about the model, if the name is right. */
static sac_status model(const struct route_call *call, struct strbuf *out, struct api_error *error)
{
    char *name = mem_strdup(call->rest);
    if (!name) return api_error_no_memory(error);
    (void)MHD_http_unescape(name);
    const bool is_ours = strcmp(name, call->context->model_name) == 0;
    mem_free(name);
    if (!is_ours)
        return api_error_set(error, API_ERROR_NOT_FOUND, "model", "this server's model is '%.200s'",
                             call->context->model_name);
    json_print(out, model_json(call->context));
    return SAC_OK;
}

static cJSON *methods_json(const char *const *spec, uint32_t n)
{
    cJSON *list = cJSON_CreateArray();
    for (uint32_t i = 0; i < n; i++) cJSON_AddItemToArray(list, cJSON_CreateString(spec[i]));
    return list;
}

/* Prints 0.8f as 0.8 instead of 0.800000011920929. */
static void add_float(cJSON *o, const char *name, float value)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)value);
    cJSON_AddNumberToObject(o, name, strtod(text, NULL));
}

static cJSON *defaults_json(const struct api_request_rules *r)
{
    const sac_sampling *s = &r->sampling;
    cJSON *o = cJSON_CreateObject(), *p = cJSON_AddObjectToObject(o, "params");
    cJSON_AddNumberToObject(o, "n_ctx", r->engine.n_ctx);
    add_float(p, "temperature", s->temp);
    cJSON_AddNumberToObject(p, "top_k", s->top_k);
    add_float(p, "top_p", s->top_p);
    add_float(p, "min_p", s->min_p);
    add_float(p, "repeat_penalty", s->repeat_penalty);
    cJSON_AddNumberToObject(p, "max_tokens", r->n_predict_max);
    return o;
}

/* The document store: the maximum number of documents per prompt and the default method that joins
 * them. null: none, so requests with several documents need `sparse.context`. */
static cJSON *store_json(const struct context *c)
{
    cJSON *o = cJSON_CreateObject(), *methods;
    sac_method_info m;
    cJSON_AddNumberToObject(o, "max", c->rules.n_doc_max);
    if (c->config->context)
        cJSON_AddStringToObject(o, "context", c->config->context);
    else
        cJSON_AddNullToObject(o, "context");
    methods = cJSON_AddArrayToObject(o, "methods");
    for (size_t i = 0; sac_method_at(i, &m); i++)
        if (strcmp(m.kind, "context") == 0)
            cJSON_AddItemToArray(methods, cJSON_CreateString(m.name));
    return o;
}

static sac_status props(const struct route_call *call, struct strbuf *out, struct api_error *error)
{
    const sac_engine_params *e = &call->context->rules.engine;
    cJSON *o = cJSON_CreateObject(), *sparse;
    (void)error;
    cJSON_AddItemToObject(o, "default_generation_settings", defaults_json(&call->context->rules));
    cJSON_AddNumberToObject(o, "total_slots", e->n_seq_max);
    cJSON_AddNumberToObject(o, "kv_tokens", (double)e->n_kv_tok);
    cJSON_AddStringToObject(o, "device", e->device ? e->device : "cpu");
    cJSON_AddStringToObject(o, "kv_device", e->kv_on_host ? "host" : "same");
    cJSON_AddStringToObject(o, "model_alias", call->context->model_name);
    cJSON_AddStringToObject(o, "build_info", sac_version());
    /* Values that `sparse` accepts; the first of each list is the default. */
    sparse = cJSON_AddObjectToObject(o, "sparse");
    cJSON_AddItemToObject(sparse, "prefill", methods_json(e->prefill, e->n_prefill));
    cJSON_AddItemToObject(sparse, "decode", methods_json(e->decode, e->n_decode));
    cJSON_AddNumberToObject(sparse, "min_ctx", e->sparse_min_ctx);
    cJSON_AddItemToObject(o, "documents", store_json(call->context));
    json_print(out, o);
    return SAC_OK;
}

static sac_status slots(const struct route_call *call, struct strbuf *out, struct api_error *error)
{
    const struct engine_loop_view view = engine_loop_view(call->context->loop);
    cJSON *list = cJSON_CreateArray();
    (void)error;
    for (uint32_t i = 0; i < call->context->rules.engine.n_seq_max; i++) {
        cJSON *slot = cJSON_CreateObject();
        cJSON_AddNumberToObject(slot, "id", i);
        cJSON_AddNumberToObject(slot, "n_ctx", call->context->rules.engine.n_ctx);
        cJSON_AddBoolToObject(slot, "is_processing", i < view.n_running);
        cJSON_AddItemToArray(list, slot);
    }
    json_print(out, list);
    return SAC_OK;
}

static sac_status metrics(const struct route_call *call, struct strbuf *out,
                          struct api_error *error)
{
    const struct engine_loop_view view = engine_loop_view(call->context->loop);
    struct loop_layer layer[LAYERS_TOLD];
    const uint32_t n_layer = loop_layers(call->context->loop, layer, LAYERS_TOLD);
    (void)error;
    metrics_print(call->context->metrics, call->context, &view, out);
    metrics_print_layers(layer, n_layer < LAYERS_TOLD ? n_layer : LAYERS_TOLD,
                         call->context->model_name, out);
    return SAC_OK;
}

/* The attention record of an answer, visible to its own key only. */
static sac_status attention(const struct route_call *call, struct strbuf *out,
                            struct api_error *error)
{
    if (readings_get(call->context->readings, call->rest, call->key, out)) return SAC_OK;
    return api_error_set(error, API_ERROR_NOT_FOUND, "id",
                         "no reading is kept of an answer '%.60s': ask for it with "
                         "'return_attention', and soon after",
                         call->rest);
}

/* ---- Text and tokens ---- */

/* "content" in llama.cpp's API, "prompt" in vLLM's. */
static sac_status read_content(const cJSON *body, const char **out, struct api_error *error)
{
    *out = NULL;
    TRY(api_request_text(body, "content", out, error));
    if (!*out) TRY(api_request_text(body, "prompt", out, error));
    if (*out) return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, "content", "'content' is missing");
}

/* Writes tokens one by one: a list of millions would take that many JSON values. */
static void add_token(struct strbuf *out, const sac_model *model, int32_t tok, bool with_piece)
{
    if (!with_piece) {
        strbuf_addf(out, "%d", tok);
        return;
    }
    size_t n;
    const char *piece = sac_token_piece(model, tok, true, &n);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "id", tok);
    cJSON_AddItemToObject(o, "piece", json_text(piece, n));
    json_print(out, o);
}

static sac_status tokenize(const struct route_call *call, struct strbuf *out,
                           struct api_error *error)
{
    const char *text;
    bool bos = false, special = true, pieces = false;
    int32_t *tok;
    size_t n;
    sac_error err = {0};
    TRY(read_content(call->body, &text, error));
    TRY(api_request_bool(call->body, "add_special", &bos, error));
    TRY(api_request_bool(call->body, "add_special_tokens", &bos, error));
    TRY(api_request_bool(call->body, "parse_special", &special, error));
    TRY(api_request_bool(call->body, "with_pieces", &pieces, error));
    const unsigned flags =
        (bos ? SAC_TOK_ADD_SPECIAL : 0u) | (special ? SAC_TOK_PARSE_SPECIAL : 0u);
    const sac_status status =
        sac_tokenize(call->context->rules.model, text, strlen(text), flags, &tok, &n, &err);
    if (status != SAC_OK) return api_error_of(error, status, "content", err.msg);
    strbuf_adds(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) strbuf_adds(out, ",");
        add_token(out, call->context->rules.model, tok[i], pieces);
    }
    strbuf_addf(out, "],\"count\":%zu,\"max_model_len\":%u}", n, call->context->rules.engine.n_ctx);
    sac_free(tok);
    return SAC_OK;
}

static sac_status read_tokens(const cJSON *list, uint32_t n_vocab, int32_t *tok,
                              struct api_error *error)
{
    const cJSON *item;
    size_t n = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (!json_index(item, (int32_t)n_vocab - 1, &tok[n++]))
            return api_error_set(error, API_ERROR_REQUEST, "tokens",
                                 "'tokens' holds something that is no token id from 0 to %u",
                                 n_vocab - 1);
    }
    return SAC_OK;
}

static sac_status detokenize(const struct route_call *call, struct strbuf *out,
                             struct api_error *error)
{
    const cJSON *list = json_get(call->body, "tokens");
    sac_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    if (!cJSON_IsArray(list))
        return api_error_set(error, API_ERROR_REQUEST, "tokens",
                             "'tokens' is missing, or not a list");
    const size_t n = (size_t)cJSON_GetArraySize(list);
    int32_t *tok = mem_calloc(n, sizeof *tok);
    if (!tok) return api_error_no_memory(error);
    const uint32_t n_vocab = sac_model_get_info(call->context->rules.model).n_vocab;
    sac_status status = read_tokens(list, n_vocab, tok, error);
    if (status == SAC_OK) {
        status = sac_detokenize(call->context->rules.model, tok, n, true, &text, &bytes, &err);
        if (status != SAC_OK) status = api_error_of(error, status, "tokens", err.msg);
    }
    mem_free(tok);
    if (status != SAC_OK) return status;
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "content", text, bytes);
    json_add_text(o, "prompt", text, bytes);
    json_print(out, o);
    sac_free(text);
    return SAC_OK;
}

static sac_status apply_template(const struct route_call *call, struct strbuf *out,
                                 struct api_error *error)
{
    struct dialogue d = {0};
    struct api_request a = {0};
    char *text = NULL;
    sac_status status = dialogue_read(&d, call->body, error);
    if (status == SAC_OK) status = dialogue_tools(&d, &a, call->body, &call->context->rules, error);
    if (status == SAC_OK) status = dialogue_render(&d, &call->context->rules, &text, error);
    dialogue_deinit(&d);
    api_request_deinit(&a);
    if (status != SAC_OK) return status;
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "prompt", text, strlen(text));
    json_print(out, o);
    sac_free(text);
    return SAC_OK;
}

/* The number of prompt tokens of a /v1/messages request. */
static sac_status count_tokens(const struct route_call *call, struct strbuf *out,
                               struct api_error *error)
{
    struct api_request a = {0};
    const sac_status status =
        anthropic_messages_dialect.read(&a, call->body, &call->context->rules, error);
    const size_t n = status == SAC_OK ? a.prompt[0].n : 0;
    api_request_deinit(&a);
    if (status != SAC_OK) return status;
    strbuf_addf(out, "{\"input_tokens\":%zu}", n);
    return SAC_OK;
}

static void add_rendered(struct strbuf *out, const struct api_request_prompt *p)
{
    strbuf_adds(out, "{\"token_ids\":[");
    for (size_t i = 0; i < p->n; i++) strbuf_addf(out, i ? ",%d" : "%d", p->tok[i]);
    strbuf_adds(out, "]}");
}

/* vLLM's render routes: the prompt tokens of a request, without computing it. */
static sac_status render_completion(const struct route_call *call, struct strbuf *out,
                                    struct api_error *error)
{
    struct api_request a = {0};
    const sac_status status =
        openai_completion_dialect.read(&a, call->body, &call->context->rules, error);
    for (uint32_t i = 0; i < a.n_prompt && status == SAC_OK; i++) {
        strbuf_adds(out, i ? "," : "[");
        add_rendered(out, &a.prompt[i]);
    }
    if (status == SAC_OK) strbuf_adds(out, "]");
    api_request_deinit(&a);
    return status;
}

static sac_status render_chat(const struct route_call *call, struct strbuf *out,
                              struct api_error *error)
{
    struct api_request a = {0};
    const sac_status status =
        openai_chat_dialect.read(&a, call->body, &call->context->rules, error);
    if (status == SAC_OK) add_rendered(out, &a.prompt[0]);
    api_request_deinit(&a);
    return status;
}

/* ---- Files ---- */

/* The text of a file of any format; pages are separated by form feeds. */
static sac_status extract(const struct route_call *call, struct strbuf *out,
                          struct api_error *error)
{
    static const char *const copied[] = {"name", "format", "encoding", "text"};
    const char *text = json_get(call->body, "text")->valuestring;
    const size_t n_text = strlen(text);
    int32_t *tok;
    size_t n_tok, n_break = 0;
    sac_error err = {0};
    const sac_status status =
        sac_tokenize(call->context->rules.model, text, n_text, 0, &tok, &n_tok, &err);
    if (status != SAC_OK) return api_error_of(error, status, "file", err.msg);
    sac_free(tok);
    for (const char *at = text; (at = strchr(at, '\f')); at++) n_break++;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "text");
    cJSON_AddNumberToObject(o, "tokens", (double)n_tok);
    cJSON_AddNumberToObject(o, "pages", n_break ? (double)n_break + 1 : 0);
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++) {
        const cJSON *item = json_get(call->body, copied[i]);
        if (item) cJSON_AddItemToObject(o, copied[i], cJSON_Duplicate(item, false));
    }
    json_print(out, o);
    return SAC_OK;
}

/* ---- The table ---- */

static const struct route routes[] = {
    {"GET", "/livez", ROUTE_PUBLIC | ROUTE_ALWAYS, NULL, live, NULL},
    {"GET", "/health", ROUTE_PUBLIC | ROUTE_ALWAYS, NULL, health, NULL},
    {"GET", "/v1/health", ROUTE_PUBLIC | ROUTE_ALWAYS, NULL, health, NULL},
    {"GET", "/readyz", ROUTE_PUBLIC | ROUTE_ALWAYS, NULL, health, NULL},
    {"GET", "/v1/models", 0, NULL, models, NULL},
    {"GET", "/v1/models/", ROUTE_REST | ROUTE_SLASHES, NULL, model, NULL},
    {"GET", "/models", 0, NULL, models, NULL},
    {"GET", "/props", 0, NULL, props, NULL},
    {"GET", "/slots", 0, NULL, slots, NULL},
    {"POST", "/slots/", ROUTE_REST | ROUTE_BODY | ROUTE_SLOT, NULL, NULL, &slot_action_dialect},
    {"GET", "/metrics", 0, "text/plain; version=0.0.4", metrics, NULL},
    {"POST", "/v1/chat/completions", ROUTE_BODY, NULL, NULL, &openai_chat_dialect},
    {"POST", "/chat/completions", ROUTE_BODY, NULL, NULL, &openai_chat_dialect},
    {"POST", "/v1/completions", ROUTE_BODY, NULL, NULL, &openai_completion_dialect},
    {"POST", "/completion", ROUTE_BODY, NULL, NULL, &llamacpp_completion_dialect},
    {"POST", "/completions", ROUTE_BODY, NULL, NULL, &openai_completion_dialect},
    {"POST", "/v1/responses", ROUTE_BODY, NULL, NULL, &openai_responses_dialect},
    {"POST", "/responses", ROUTE_BODY, NULL, NULL, &openai_responses_dialect},
    {"POST", "/v1/messages", ROUTE_BODY, NULL, NULL, &anthropic_messages_dialect},
    {"POST", "/v1/messages/count_tokens", ROUTE_BODY, NULL, count_tokens, NULL},
    {"GET", "/v1/attention/", ROUTE_REST, NULL, attention, NULL},
    {"POST", "/v1/documents", ROUTE_BODY | ROUTE_FILE, NULL, NULL, &document_add_dialect},
    {"GET", "/v1/documents", 0, NULL, NULL, &document_list_dialect},
    {"DELETE", "/v1/documents/", ROUTE_REST, NULL, NULL, &document_remove_dialect},
    {"POST", "/extract", ROUTE_FILE, NULL, extract, NULL},
    {"POST", "/v1/embeddings", ROUTE_BODY, NULL, NULL, &openai_embeddings_dialect},
    {"POST", "/embeddings", ROUTE_BODY, NULL, NULL, &llamacpp_embedding_dialect},
    {"POST", "/embedding", ROUTE_BODY, NULL, NULL, &llamacpp_embedding_dialect},
    {"POST", "/tokenize", ROUTE_BODY, NULL, tokenize, NULL},
    {"POST", "/detokenize", ROUTE_BODY, NULL, detokenize, NULL},
    {"POST", "/apply-template", ROUTE_BODY, NULL, apply_template, NULL},
    {"POST", "/v1/completions/render", ROUTE_BODY, NULL, render_completion, NULL},
    {"POST", "/v1/chat/completions/render", ROUTE_BODY, NULL, render_chat, NULL},
};

static bool matches(const struct route *r, const char *path)
{
    const size_t n = strlen(r->path);
    if (!(r->flags & ROUTE_REST)) return strcmp(r->path, path) == 0;
    if (strncmp(r->path, path, n) != 0 || !path[n]) return false;
    return r->flags & ROUTE_SLASHES || !strchr(path + n, '/');
}

const struct route *route_find(const char *method, const char *path,
                               char out_allowed[ROUTE_ALLOWED_BYTES])
{
    size_t n = 0;
    *out_allowed = 0;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (!matches(&routes[i], path)) continue;
        if (strcmp(routes[i].method, method) == 0) return &routes[i];
        assert(n + strlen(routes[i].method) + sizeof ", GET, HEAD" < ROUTE_ALLOWED_BYTES);
        n += (size_t)snprintf(out_allowed + n, ROUTE_ALLOWED_BYTES - n, "%s%s%s", n ? ", " : "",
                              routes[i].method,
                              strcmp(routes[i].method, "GET") == 0 ? ", HEAD" : "");
    }
    return NULL;
}
