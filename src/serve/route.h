/* route.h: maps paths to functions. */
#ifndef SAC_SERVE_ROUTE_H
#define SAC_SERVE_ROUTE_H

#include "serve/context.h"
#include "serve/reply.h"

enum {
    ROUTE_PUBLIC = 1,   /* needs no API key */
    ROUTE_ALWAYS = 2,   /* also available while the model is loading */
    ROUTE_BODY = 4,     /* takes a JSON object */
    ROUTE_REST = 8,     /* `path` is a prefix; a name without a slash follows */
    ROUTE_FILE = 16,    /* takes a file (upload.h); with ROUTE_BODY, a file or JSON */
    ROUTE_SLASHES = 32, /* with ROUTE_REST: the name may contain slashes */
    ROUTE_SLOT = 64,    /* with both: the body is optional; name and query are added to it */
};

#define ROUTE_ALLOWED_BYTES 48u

/* Input of a route that answers at once; all borrowed. */
struct route_call {
    struct context *context;
    uint64_t key;      /* id of the client's key, api_keys.h */
    const char *rest;  /* rest of the path, for ROUTE_REST */
    const cJSON *body; /* for ROUTE_BODY */
};

struct route {
    const char *method, *path;
    unsigned flags;
    const char *type; /* content type of `reply`; NULL: JSON */
    /* Exactly one is set: a function that answers at once, or the dialect of a generating route. */
    sac_status (*reply)(const struct route_call *call, struct strbuf *out, struct api_error *error);
    const struct dialect *dialect;
};

/* NULL: there is no such path (`out_allowed` is ""), or not with this method (`out_allowed` lists
 * the path's methods, "GET, HEAD, POST"). HEAD is treated as GET. */
const struct route *route_find(const char *method, const char *path,
                               char out_allowed[ROUTE_ALLOWED_BYTES]);

#endif
