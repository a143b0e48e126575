/* access_control.h: access control: keys, pages of other sites, names of other hosts, and the size
 * of headers. Only a request's head is checked, before its body is read. */
#ifndef SAC_SERVE_ACCESS_CONTROL_H
#define SAC_SERVE_ACCESS_CONTROL_H

#include "serve/route.h"

#include <microhttpd.h>

/* `*out_key` is the id of the request's API key, 0 if it has none. */
sac_status access_control_check(const struct context *c, struct MHD_Connection *connection,
                                const struct route *route, uint64_t *out_key,
                                struct api_error *error);
/* The request's Origin if pages of that origin may read responses, else NULL. */
const char *access_control_cors_origin(const struct context *c, struct MHD_Connection *connection);

#endif
