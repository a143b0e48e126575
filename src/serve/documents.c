/* documents.c: /v1/documents: texts that are computed once and named in many prompts. A text
 * arrives as JSON, or as a file (upload.c) whose text has been extracted; either way it is the JSON
 * {"name", "text"} here. */
#include "serve/dialects.h"

#include "base/mem.h"
#include "eval/prompt.h"

#include <string.h>

#define NAME_BYTES 200u
#define TAGS_BYTES 127u

static sac_status check_store(const struct api_request_rules *rules, struct api_error *error)
{
    if (rules->n_doc_max) return SAC_OK;
    return api_error_set(error, API_ERROR_UNSUPPORTED, NULL,
                         "this server has no store of documents (--store)");
}

/* Reads an optional string of limited length; `*out` is a copy or NULL. */
static sac_status read_short(const cJSON *body, const char *name, size_t n_max, char **out,
                             struct api_error *error)
{
    const char *text = NULL;
    TRY(api_request_text(body, name, &text, error));
    if (!text) return SAC_OK;
    if (strlen(text) > n_max)
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' has more than %zu bytes", name,
                             n_max);
    *out = mem_strdup(text);
    return *out ? SAC_OK : api_error_no_memory(error);
}

static sac_status read_name(struct api_request *a, const cJSON *body, struct api_error *error)
{
    TRY(read_short(body, "name", NAME_BYTES, &a->document.name, error));
    if (a->document.name && *a->document.name) return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, "name", "'name' is missing, or empty");
}

/* The text that precedes documents in prompts: the chat template's beginning with the same system
 * message, or nothing with `raw`. A document is computed after it. */
static sac_status read_head(struct api_request_document *d, const cJSON *body,
                            const struct api_request_rules *rules, struct api_error *error)
{
    struct prompt_form form = {.chat_template = rules->chat_template};
    sac_error err = {0};
    TRY(api_request_text(body, "system", &form.system, error));
    TRY(api_request_bool(body, "raw", &form.raw, error));
    if (form.raw && form.system)
        return api_error_set(error, API_ERROR_REQUEST, "system",
                             "'system' cannot be combined with 'raw'");
    const sac_status status = prompt_head(rules->model, &form, &d->head, &d->n_head, &err);
    return status == SAC_OK ? SAC_OK : api_error_of(error, status, "system", err.msg);
}

/* The text is followed by a blank line, to separate it from what comes next. Special tokens in it
 * are not parsed. */
static sac_status read_text(struct api_request_document *d, const cJSON *body,
                            const struct api_request_rules *rules, struct api_error *error)
{
    struct strbuf text = {0};
    sac_error err = {0};
    const char *given = NULL;
    TRY(api_request_text(body, "text", &given, error));
    if (!given || !*given)
        return api_error_set(error, API_ERROR_REQUEST, "text", "'text' is missing, or empty");
    strbuf_addf(&text, "%s\n\n", given);
    const sac_status status =
        text.failed ? error_set(&err, SAC_ERR_MEMORY, "out of memory")
                    : sac_tokenize(rules->model, text.data, text.n, 0, &d->tok, &d->n_tok, &err);
    strbuf_deinit(&text);
    return status == SAC_OK ? SAC_OK : api_error_of(error, status, "text", err.msg);
}

static sac_status read_add(struct api_request *a, const cJSON *body,
                           const struct api_request_rules *rules, struct api_error *error)
{
    struct api_request_document *d = &a->document;
    a->work = API_REQUEST_DOC_ADD;
    a->n = 1;
    TRY(check_store(rules, error));
    TRY(read_name(a, body, error));
    TRY(read_short(body, "tags", TAGS_BYTES, &d->tags, error));
    TRY(api_request_u32(body, "seconds", 0, INT32_MAX, &d->seconds, error));
    TRY(api_request_bool(body, "pin", &d->pin, error));
    TRY(api_request_bool(body, "stream", &a->stream, error));
    TRY(read_head(d, body, rules, error));
    TRY(read_text(d, body, rules, error));
    if (d->n_head + d->n_tok <= rules->engine.n_ctx) return SAC_OK;
    (void)api_error_set(error, API_ERROR_CONTEXT, "text",
                        "This model's maximum context length is %u tokens, the document has %zu",
                        rules->engine.n_ctx, d->n_tok);
    error->n_prompt_tokens = d->n_tok;
    error->n_ctx = rules->engine.n_ctx;
    return SAC_ERR_CONTEXT;
}

static sac_status read_list(struct api_request *a, const cJSON *body,
                            const struct api_request_rules *rules, struct api_error *error)
{
    (void)body;
    a->work = API_REQUEST_DOC_LIST;
    a->n = 1;
    return check_store(rules, error);
}

static sac_status read_remove(struct api_request *a, const cJSON *body,
                              const struct api_request_rules *rules, struct api_error *error)
{
    a->work = API_REQUEST_DOC_REMOVE;
    a->n = 1;
    TRY(check_store(rules, error));
    return read_name(a, body, error);
}

/* ---- Writing ---- */

static void write_whole(struct reply *r, struct strbuf *out)
{
    strbuf_add(out, r->choice[0].text.data, r->choice[0].text.n);
}

static void write_piece(struct reply *r, const struct answer_piece *p, struct strbuf *out)
{
    (void)r;
    if (p->kind != ANSWER_PROMPT) return;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "document.progress");
    cJSON_AddItemToObject(o, "prompt_progress", reply_progress(p));
    reply_event(out, NULL, o);
}

static void close_stream(struct reply *r, struct strbuf *out)
{
    strbuf_adds(out, "data: ");
    write_whole(r, out);
    strbuf_adds(out, "\n\ndata: [DONE]\n\n");
}

#define WRITING                                                                                    \
    .id_prefix = "doc-", .piece = write_piece, .close = close_stream, .whole = write_whole

const struct dialect document_add_dialect = {.read = read_add, WRITING};
const struct dialect document_list_dialect = {.read = read_list, WRITING};
const struct dialect document_remove_dialect = {.read = read_remove, WRITING};
