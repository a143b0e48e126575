/* api_error.c: see the header. One table gives each kind its status, type and code. */
#include "serve/api_error.h"

#include "serve/json.h"

#include <stdio.h>
#include <string.h>

#undef api_error_set

struct kind {
    unsigned status;
    const char *type, *code; /* code: NULL if the type says enough */
    const char *anthropic;   /* the type in Anthropic's API */
};

static const struct kind kinds[API_ERROR_KINDS] = {
    [API_ERROR_NONE] = {500, "server_error", NULL, "api_error"},
    [API_ERROR_REQUEST] = {400, "invalid_request_error", NULL, "invalid_request_error"},
    [API_ERROR_CONTEXT] = {400, "exceed_context_size_error", "context_length_exceeded",
                           "invalid_request_error"},
    [API_ERROR_FRAMING] = {400, "invalid_request_error", NULL, "invalid_request_error"},
    [API_ERROR_KEY] = {401, "authentication_error", "invalid_api_key", "authentication_error"},
    [API_ERROR_FORBIDDEN] = {403, "permission_error", NULL, "permission_error"},
    [API_ERROR_NOT_FOUND] = {404, "not_found_error", NULL, "not_found_error"},
    [API_ERROR_METHOD] = {405, "invalid_request_error", "method_not_allowed",
                          "invalid_request_error"},
    [API_ERROR_SLOW] = {408, "invalid_request_error", "timeout", "invalid_request_error"},
    [API_ERROR_LARGE] = {413, "invalid_request_error", "request_too_large", "request_too_large"},
    [API_ERROR_ENCODING] = {415, "invalid_request_error", "unsupported_encoding",
                            "invalid_request_error"},
    [API_ERROR_HEADER] = {431, "invalid_request_error", "header_too_large",
                          "invalid_request_error"},
    [API_ERROR_BUSY] = {429, "rate_limit_error", NULL, "rate_limit_error"},
    [API_ERROR_LEFT] = {499, "invalid_request_error", "client_left", "invalid_request_error"},
    [API_ERROR_SERVER] = {500, "server_error", NULL, "api_error"},
    [API_ERROR_UNSUPPORTED] = {400, "not_supported_error", NULL, "invalid_request_error"},
    [API_ERROR_UNAVAILABLE] = {503, "unavailable_error", NULL, "overloaded_error"},
};

sac_status api_error_set(struct api_error *out, enum api_error_kind kind, const char *param,
                         const char *fmt, ...)
{
    va_list ap;
    *out = (struct api_error){.kind = kind};
    snprintf(out->param, sizeof out->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(out->message, sizeof out->message, fmt, ap);
    va_end(ap);
    return SAC_ERR_ARG;
}

sac_status api_error_of(struct api_error *out, sac_status status, const char *param,
                        const char *message)
{
    enum api_error_kind kind = API_ERROR_SERVER;
    if (status == SAC_ERR_ARG || status == SAC_ERR_FORMAT || status == SAC_ERR_UNSUPPORTED ||
        status == SAC_ERR_NOT_FOUND)
        kind = API_ERROR_REQUEST;
    if (status == SAC_ERR_CONTEXT) kind = API_ERROR_CONTEXT;
    if (status == SAC_ERR_MEMORY) kind = API_ERROR_UNAVAILABLE;
    return api_error_set(out, kind, param, "%s", message);
}

void api_error_rename(struct api_error *r, const char *from, const char *to)
{
    const struct api_error was = *r;
    char quoted[64];
    if (strcmp(r->param, from) != 0) return;
    snprintf(r->param, sizeof r->param, "%s", to);
    snprintf(quoted, sizeof quoted, "'%s'", from);
    const char *at = strstr(was.message, quoted);
    if (at)
        snprintf(r->message, sizeof r->message, "%.*s'%s'%s", (int)(at - was.message), was.message,
                 to, at + strlen(quoted));
}

unsigned api_error_status(const struct api_error *r)
{
    return kinds[r->kind].status;
}

static cJSON *openai_error(const struct api_error *r)
{
    const struct kind *k = &kinds[r->kind];
    cJSON *e = cJSON_CreateObject();
    json_add_text(e, "message", r->message, strnlen(r->message, sizeof r->message));
    cJSON_AddStringToObject(e, "type", k->type);
    if (r->param[0])
        json_add_text(e, "param", r->param, strnlen(r->param, sizeof r->param));
    else
        cJSON_AddNullToObject(e, "param");
    if (k->code)
        cJSON_AddStringToObject(e, "code", k->code);
    else
        cJSON_AddNullToObject(e, "code");
    if (r->kind == API_ERROR_CONTEXT) {
        cJSON_AddNumberToObject(e, "n_prompt_tokens", (double)r->n_prompt_tokens);
        cJSON_AddNumberToObject(e, "n_ctx", (double)r->n_ctx);
    }
    return e;
}

static cJSON *anthropic_error(const struct api_error *r)
{
    cJSON *e = cJSON_CreateObject();
    cJSON_AddStringToObject(e, "type", kinds[r->kind].anthropic);
    if (r->kind == API_ERROR_CONTEXT && r->n_prompt_tokens > r->n_ctx) {
        /* Agents compact their conversation if they find these words of Anthropic's API. */
        char text[96];
        snprintf(text, sizeof text, "prompt is too long: %llu tokens > %llu maximum",
                 (unsigned long long)r->n_prompt_tokens, (unsigned long long)r->n_ctx);
        cJSON_AddStringToObject(e, "message", text);
    } else {
        json_add_text(e, "message", r->message, strnlen(r->message, sizeof r->message));
    }
    return e;
}

void api_error_print(const struct api_error *r, bool anthropic, struct strbuf *out)
{
    cJSON *body = cJSON_CreateObject();
    if (anthropic) cJSON_AddStringToObject(body, "type", "error");
    cJSON_AddItemToObject(body, "error", anthropic ? anthropic_error(r) : openai_error(r));
    json_print(out, body);
}
