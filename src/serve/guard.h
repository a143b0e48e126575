/* guard.h: who may come in: keys, the pages of other sites, names of other hosts, headers of a
 * size. Looks at a request's head alone, before any of its body is read. */
#ifndef SAC_SERVE_GUARD_H
#define SAC_SERVE_GUARD_H

#include "serve/route.h"

#include <microhttpd.h>

/* `*out_key` gets the number of the key that came with the request, 0 for none. */
sac_status guard_check(const struct context *c, struct MHD_Connection *connection,
                       const struct route *route, uint64_t *out_key, struct refusal *ref);
/* The Origin of the request if pages from there may read answers, else NULL. */
const char *guard_cors_origin(const struct context *c, struct MHD_Connection *connection);

#endif
