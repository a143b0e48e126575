/* route.h: maps paths to functions. */
#ifndef SAC_SERVE_ROUTE_H
#define SAC_SERVE_ROUTE_H

#include "serve/context.h"
#include "serve/reply.h"

enum {
    ROUTE_PUBLIC = 1,   /* no key is asked for */
    ROUTE_ALWAYS = 2,   /* answers while the model is loaded, too */
    ROUTE_BODY = 4,     /* takes a JSON object */
    ROUTE_REST = 8,     /* `path` is how paths begin; a name without a slash follows */
    ROUTE_FILE = 16,    /* takes a file (upload.h); with ROUTE_BODY that or JSON */
    ROUTE_SLASHES = 32, /* with ROUTE_REST: the name may hold slashes */
    ROUTE_SLOT = 64,    /* with both: may have no body; the name and the query join it */
};

#define ROUTE_ALLOWED_BYTES 48u

/* What a route that answers at once is asked; all borrowed. */
struct route_call {
    struct context *context;
    uint64_t key;      /* of the client, keys.h */
    const char *rest;  /* of the path, ROUTE_REST */
    const cJSON *body; /* ROUTE_BODY */
};

struct route {
    const char *method, *path;
    unsigned flags;
    const char *type; /* of what `reply` writes; NULL: JSON */
    /* One of the two: an answer at once, or generated tokens in an API's words. */
    sac_status (*reply)(const struct route_call *call, struct strbuf *out, struct refusal *ref);
    const struct dialect *dialect;
};

/* NULL: no such path, or not with this method; then `out_allowed` lists the path's methods, "GET,
 * HEAD, POST" say, and is "" of a path that is not there. HEAD is GET without a body. */
const struct route *route_find(const char *method, const char *path,
                               char out_allowed[ROUTE_ALLOWED_BYTES]);

#endif
