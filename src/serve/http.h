/* http.h: the port: connections, their limits and deadlines. */
#ifndef SAC_SERVE_HTTP_H
#define SAC_SERVE_HTTP_H

#include "serve/context.h"

struct http;

sac_status http_start(struct http **out, struct context *context, sac_error *err);
/* "http://127.0.0.1:8080" */
const char *http_url(const struct http *h);
/* Closes connections whose deadline has passed; call it about once a second. */
void http_tick(struct http *h);
/* Number of requests in progress. */
uint32_t http_n_call(struct http *h);
void http_stop(struct http *h);

#endif
