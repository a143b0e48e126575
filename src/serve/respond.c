/* respond.c: see the header. */
#include "serve/respond.h"

#include "base/mem.h"
#include "serve/access_control.h"
#include "serve/page.h"

#include <string.h>

#define STREAM_BLOCK_BYTES 16384u

static void add(struct MHD_Response *response, const char *name, const char *value)
{
    /* Fails without memory, or if the value has control characters; the response is sent without
     * it. */
    (void)!MHD_add_response_header(response, name, value);
}

static enum MHD_Result send_response(const struct respond_to *to, unsigned status, const char *type,
                                     struct MHD_Response *response)
{
    if (!response) return MHD_NO;
    const char *origin = access_control_cors_origin(to->context, to->connection);
    if (type) add(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    add(response, "X-Request-Id", to->id);
    add(response, "X-Content-Type-Options", "nosniff");
    if (origin) {
        add(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        add(response, MHD_HTTP_HEADER_VARY, "Origin");
    }
    if (status == 401) add(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == 405) add(response, MHD_HTTP_HEADER_ALLOW, to->allowed);
    if (status == 429) add(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (status == 503) add(response, MHD_HTTP_HEADER_RETRY_AFTER, "5");
    const enum MHD_Result result = MHD_queue_response(to->connection, status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result respond_no_memory(const struct respond_to *to, bool anthropic)
{
    const char *text = anthropic ? API_ERROR_NO_MEMORY_ANTHROPIC : API_ERROR_NO_MEMORY;
    return send_response(to, 503, "application/json",
                         MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
                                                         MHD_RESPMEM_PERSISTENT));
}

enum MHD_Result respond_text(const struct respond_to *to, unsigned status, const char *type,
                             struct strbuf *text)
{
    size_t n = 0;
    char *data = strbuf_detach(text, &n);
    if (!data) return respond_no_memory(to, false);
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(n, data, mem_free);
    if (!response) mem_free(data);
    if (response) add(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    return send_response(to, status, type ? type : "application/json", response);
}

enum MHD_Result respond_error(const struct respond_to *to, const struct api_error *r,
                              bool anthropic)
{
    struct strbuf text = {0};
    api_error_print(r, anthropic, &text);
    if (text.failed) {
        strbuf_deinit(&text);
        return respond_no_memory(to, anthropic);
    }
    return respond_text(to, api_error_status(r), NULL, &text);
}

enum MHD_Result respond_stream(const struct respond_to *to, MHD_ContentReaderCallback read,
                               void *user)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read, user, NULL);
    if (!response) return MHD_NO;
    add(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    add(response, "X-Accel-Buffering", "no"); /* tells proxies not to buffer events */
    return send_response(to, 200, "text/event-stream; charset=utf-8", response);
}

enum MHD_Result respond_page(const struct respond_to *to, const char *path, bool *out_found)
{
    const struct page_file *file = page_find(path);
    *out_found = file != NULL;
    if (!file) return MHD_NO;
    struct MHD_Response *response = MHD_create_response_from_buffer(
        file->n, (void *)(uintptr_t)file->data, MHD_RESPMEM_PERSISTENT);
    if (!response) return MHD_NO;
    add(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    add(response, "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
        "'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; trusted-types dompurify; "
        "require-trusted-types-for 'script'");
    add(response, "Referrer-Policy", "no-referrer");
    return send_response(to, 200, file->type, response);
}

enum MHD_Result respond_preflight(const struct respond_to *to)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!response) return MHD_NO;
    const char *headers = MHD_lookup_connection_value(to->connection, MHD_HEADER_KIND,
                                                      "Access-Control-Request-Headers");
    if (access_control_cors_origin(to->context, to->connection)) {
        add(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE");
        if (headers) add(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS, headers);
        add(response, MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, "600");
    }
    return send_response(to, 204, NULL, response);
}
