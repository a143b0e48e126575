/* http_request.h: one HTTP request, from its head to the last byte of its response. For HTTP
 * threads only; at most one at a time works on a request. */
#ifndef SAC_SERVE_HTTP_REQUEST_H
#define SAC_SERVE_HTTP_REQUEST_H

#include "serve/context.h"

#include <microhttpd.h>

struct http_request;

/* Totals over all requests, kept by http.c. */
struct http_request_totals {
    _Atomic uint64_t body_bytes;   /* request bodies in memory */
    _Atomic uint64_t answer_bytes; /* long answers being sent */
    _Atomic uint32_t n_call;       /* requests that have begun and not ended */
};

struct http_request_head {
    struct context *context; /* borrowed, like all members */
    struct http_request_totals *totals;
    struct MHD_Connection *connection;
    const char *method, *path;
};

/* NULL: out of memory, which has been answered. A request with a long body may be refused here,
 * before the body is read. */
struct http_request *http_request_begin(const struct http_request_head *head,
                                        enum MHD_Result *out_result);
/* Receives a part of the body. */
enum MHD_Result http_request_body(struct http_request *req, const char *data, size_t n);
/* Called when the body is complete, and when the connection is resumed. */
enum MHD_Result http_request_go_on(struct http_request *req);
/* Seconds that the client has to read the queued answer; 0: no limit. */
uint32_t http_request_read_s(const struct http_request *req);
/* Ends the request; `sent`: the whole answer was sent. */
void http_request_end(struct http_request *req, bool sent);

#endif
