/* respond.h: HTTP responses with the headers that all of them share. */
#ifndef SAC_SERVE_RESPOND_H
#define SAC_SERVE_RESPOND_H

#include "serve/context.h"

#include <microhttpd.h>

struct respond_to {
    const struct context *context;
    struct MHD_Connection *connection;
    const char *id;      /* of the request */
    const char *allowed; /* of a 405: the methods of the path; else "" */
};

/* Sends the text, which is taken over. */
enum MHD_Result respond_text(const struct respond_to *to, unsigned status, const char *type,
                             struct strbuf *text);
enum MHD_Result respond_refusal(const struct respond_to *to, const struct refusal *r,
                                bool anthropic);
/* 503, without memory of ours. */
enum MHD_Result respond_no_memory(const struct respond_to *to, bool anthropic);
/* Sends what `read` gives, as server-sent events. */
enum MHD_Result respond_stream(const struct respond_to *to, MHD_ContentReaderCallback read,
                               void *user);
/* A file of the page, by its path; false in `*out_found` if there is none. */
enum MHD_Result respond_page(const struct respond_to *to, const char *path, bool *out_found);
/* The answer to a browser's question whether a page of another origin may ask. */
enum MHD_Result respond_preflight(const struct respond_to *to);

#endif
