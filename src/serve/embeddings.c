/* embeddings.c: POST /v1/embeddings as OpenAI has it, /embedding and /embeddings as llama.cpp does.
 * What comes back from the engine is an array of floats, which becomes text here. */
#include "serve/dialects.h"

#include "base/mem.h"
#include "serve/embed.h"

#include <string.h>

#define INPUT_MAX 2048u      /* texts of a request, as in OpenAI's API */
#define VALUE_MAX (1u << 24) /* floats of an answer */
#define NAME      (body_name(body))

/* ---- Reading ---- */

/* llama.cpp accepts both names for the input. */
static const char *body_name(const cJSON *body)
{
    return json_get(body, "input") || !json_get(body, "content") ? "input" : "content";
}

/* Takes ownership of `tok`. */
static sac_status add(struct api_request *a, int32_t *tok, size_t n, const cJSON *body,
                      const struct api_request_rules *rules, struct api_error *error)
{
    const uint32_t n_vocab = sac_model_get_info(rules->model).n_vocab, n_ctx = rules->engine.n_ctx;
    a->input[a->n_input++] = (struct api_request_input){tok, n};
    if (n == 0)
        return api_error_set(error, API_ERROR_REQUEST, NAME, "text %u of '%s' has no tokens",
                             a->n_input - 1, NAME);
    for (size_t i = 0; i < n; i++)
        if ((uint32_t)tok[i] >= n_vocab)
            return api_error_set(error, API_ERROR_REQUEST, NAME,
                                 "'%s' holds token %d: allowed is 0 to %u", NAME, tok[i],
                                 n_vocab - 1);
    if (n <= n_ctx) return SAC_OK;
    (void)api_error_set(error, API_ERROR_CONTEXT, NAME,
                        "This model's maximum context length is %u tokens, text %u of '%s' has %zu",
                        n_ctx, a->n_input - 1, NAME, n);
    error->n_prompt_tokens = n;
    error->n_ctx = n_ctx;
    return SAC_ERR_CONTEXT;
}

static sac_status add_text(struct api_request *a, const char *text, const cJSON *body,
                           const struct api_request_rules *rules, struct api_error *error)
{
    int32_t *tok;
    size_t n;
    sac_error err = {0};
    const sac_status status =
        sac_tokenize(rules->model, text, strlen(text), SAC_TOK_ADD_SPECIAL | SAC_TOK_PARSE_SPECIAL,
                     &tok, &n, &err);
    if (status != SAC_OK) return api_error_of(error, status, NAME, err.msg);
    return add(a, tok, n, body, rules, error);
}

static sac_status add_ids(struct api_request *a, const cJSON *list, const cJSON *body,
                          const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *item;
    int32_t *tok = mem_alloc(((size_t)cJSON_GetArraySize(list) + 1) * sizeof *tok);
    size_t n = 0;
    if (!tok) return api_error_no_memory(error);
    cJSON_ArrayForEach(item, list)
    {
        if (json_index(item, INT32_MAX, &tok[n++])) continue;
        sac_free(tok);
        return api_error_set(error, API_ERROR_REQUEST, NAME,
                             "'%s' holds something that is no token id", NAME);
    }
    return add(a, tok, n, body, rules, error);
}

/* A string, a list of strings, a list of token ids, or a list of such lists. */
static sac_status read_inputs(struct api_request *a, const cJSON *body,
                              const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *input = json_get(body, NAME), *item;
    const bool is_one = cJSON_IsString(input) || (input && cJSON_IsNumber(input->child));
    if (!cJSON_IsString(input) && (!cJSON_IsArray(input) || !input->child))
        return api_error_set(error, API_ERROR_REQUEST, NAME,
                             "'%s' is missing, or neither a text nor a list", NAME);
    const size_t n = is_one ? 1 : (size_t)cJSON_GetArraySize(input);
    if (n > INPUT_MAX)
        return api_error_set(error, API_ERROR_REQUEST, NAME, "'%s' has %zu texts: allowed are %u",
                             NAME, n, INPUT_MAX);
    a->input = mem_calloc(n, sizeof *a->input);
    if (!a->input) return api_error_no_memory(error);
    if (cJSON_IsString(input)) return add_text(a, input->valuestring, body, rules, error);
    if (is_one) return add_ids(a, input, body, rules, error);
    cJSON_ArrayForEach(item, input)
    {
        if (cJSON_IsString(item))
            TRY(add_text(a, item->valuestring, body, rules, error));
        else if (cJSON_IsArray(item))
            TRY(add_ids(a, item, body, rules, error));
        else
            return api_error_set(error, API_ERROR_REQUEST, NAME,
                                 "'%s' holds something that is neither text nor tokens", NAME);
    }
    return SAC_OK;
}

static sac_status read_common(struct api_request *a, const cJSON *body,
                              const struct api_request_rules *rules, struct api_error *error)
{
    if (!rules->pooling)
        return api_error_set(error, API_ERROR_UNSUPPORTED, NULL,
                             "this server makes no embeddings: start it with --embeddings");
    a->work = API_REQUEST_EMBED;
    a->n = 1;
    a->pooling = rules->pooling;
    a->normalised = rules->pooling != API_REQUEST_POOLING_NONE;
    a->n_embd = sac_model_get_info(rules->model).n_embd;
    if (json_get(body, "dimensions"))
        return api_error_set(error, API_ERROR_UNSUPPORTED, "dimensions",
                             "'dimensions' is not supported: vectors have the model's %u",
                             a->n_embd);
    TRY(read_inputs(a, body, rules, error));
    if (embed_count(a) <= VALUE_MAX / a->n_embd) return SAC_OK;
    return api_error_set(
        error, API_ERROR_REQUEST, NAME,
        "'%s' comes to %zu vectors of %u numbers, an answer has %u numbers at most", NAME,
        embed_count(a), a->n_embd, VALUE_MAX);
}

static sac_status read_openai(struct api_request *a, const cJSON *body,
                              const struct api_request_rules *rules, struct api_error *error)
{
    TRY(read_common(a, body, rules, error));
    a->base64 = json_says(body, "encoding_format", "base64");
    if (json_get(body, "encoding_format") && !a->base64 &&
        !json_says(body, "encoding_format", "float"))
        return api_error_set(error, API_ERROR_REQUEST, "encoding_format",
                             "'encoding_format' is neither float nor base64");
    if (a->pooling != API_REQUEST_POOLING_NONE) return SAC_OK;
    return api_error_set(error, API_ERROR_UNSUPPORTED, NULL,
                         "with --pooling none a text has a vector for each token, which this form "
                         "cannot hold: /embedding can");
}

/* "embd_normalize": 2 (length 1, the default) or -1 (no normalisation). */
static sac_status read_llamacpp(struct api_request *a, const cJSON *body,
                                const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *how = json_get(body, "embd_normalize");
    TRY(read_common(a, body, rules, error));
    if (!how || (cJSON_IsNumber(how) && how->valuedouble == 2)) return SAC_OK;
    a->normalised = false;
    if (cJSON_IsNumber(how) && how->valuedouble == -1) return SAC_OK;
    return api_error_set(error, API_ERROR_UNSUPPORTED, "embd_normalize",
                         "'embd_normalize' is neither 2 nor -1");
}

/* ---- Writing ---- */

static void write_floats(struct strbuf *out, const float *x, uint32_t n)
{
    strbuf_adds(out, "[");
    for (uint32_t i = 0; i < n; i++)
        strbuf_addf(out, "%s%.9g", i ? "," : "", (double)x[i]); /* nine digits identify a float */
    strbuf_adds(out, "]");
}

static void write_base64(struct strbuf *out, const void *data, size_t n)
{
    static const char sign[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = data;
    strbuf_adds(out, "\"");
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t b = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
                           (left > 2 ? p[i + 2] : 0);
        const char four[] = {sign[b >> 18], sign[b >> 12 & 63], left > 1 ? sign[b >> 6 & 63] : '=',
                             left > 2 ? sign[b & 63] : '='};
        strbuf_add(out, four, sizeof four);
    }
    strbuf_adds(out, "\"");
}

/* The vectors of all texts, one after the other. The buffer comes from malloc, so it is aligned. */
static const float *vectors(const struct reply *r)
{
    return (const float *)(const void *)r->choice[0].text.data;
}

static void write_openai(struct reply *r, struct strbuf *out)
{
    const struct api_request *a = r->request;
    const float *x = vectors(r);
    size_t n_tok = 0;
    strbuf_adds(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < a->n_input; i++, x += a->n_embd) {
        strbuf_addf(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "",
                    i);
        if (a->base64)
            write_base64(out, x, a->n_embd * sizeof *x);
        else
            write_floats(out, x, a->n_embd);
        strbuf_adds(out, "}");
        n_tok += a->input[i].n;
    }
    strbuf_adds(out, "],\"model\":");
    json_print(out, cJSON_CreateString(r->model_name));
    strbuf_addf(out, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", n_tok, n_tok);
}

static void write_llamacpp(struct reply *r, struct strbuf *out)
{
    const struct api_request *a = r->request;
    const float *x = vectors(r);
    strbuf_adds(out, "[");
    for (uint32_t i = 0; i < a->n_input; i++) {
        const size_t n = a->pooling == API_REQUEST_POOLING_NONE ? a->input[i].n : 1;
        strbuf_addf(out, "%s{\"index\":%u,\"embedding\":[", i ? "," : "", i);
        for (size_t k = 0; k < n; k++, x += a->n_embd) {
            if (k) strbuf_adds(out, ",");
            write_floats(out, x, a->n_embd);
        }
        strbuf_adds(out, "]}");
    }
    strbuf_adds(out, "]");
}

const struct dialect openai_embeddings_dialect = {
    .id_prefix = "embd-", .read = read_openai, .whole = write_openai};
const struct dialect llamacpp_embedding_dialect = {
    .id_prefix = "embd-", .read = read_llamacpp, .whole = write_llamacpp};
