/* respond.h: HTTP responses with the headers that all of them share. */
#ifndef SAC_SERVE_RESPOND_H
#define SAC_SERVE_RESPOND_H

#include "serve/context.h"

#include <microhttpd.h>

struct respond_to {
    const struct context *context;
    struct MHD_Connection *connection;
    const char *id;      /* the request's id */
    const char *allowed; /* for 405: methods of the path; otherwise "" */
};

/* Sends the text and takes ownership of it. */
enum MHD_Result respond_text(const struct respond_to *to, unsigned status, const char *type,
                             struct strbuf *text);
enum MHD_Result respond_error(const struct respond_to *to, const struct api_error *r,
                              bool anthropic);
/* Sends 503 without allocating in this program. */
enum MHD_Result respond_no_memory(const struct respond_to *to, bool anthropic);
/* Sends the bytes that `read` returns as server-sent events. */
enum MHD_Result respond_stream(const struct respond_to *to, MHD_ContentReaderCallback read,
                               void *user);
/* Sends a file of the web page; `*out_found` is false if there is none at the path. */
enum MHD_Result respond_page(const struct respond_to *to, const char *path, bool *out_found);
/* Answers a CORS preflight request. */
enum MHD_Result respond_preflight(const struct respond_to *to);

#endif
