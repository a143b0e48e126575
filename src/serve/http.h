/* http.h: the port: connections, their limits and deadlines. */
#ifndef SAC_SERVE_HTTP_H
#define SAC_SERVE_HTTP_H

#include "serve/context.h"

struct http;

sac_status http_start(struct http **out, struct context *context, sac_error *err);
/* "http://127.0.0.1:8080" */
const char *http_url(const struct http *h);
/* Closes connections that are past their deadlines; to be called every second or so. */
void http_tick(struct http *h);
/* Requests that have begun and not ended. */
uint32_t http_n_call(struct http *h);
void http_stop(struct http *h);

#endif
