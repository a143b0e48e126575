/* refusal.h: why a request is refused, in the form of OpenAI's errors: an HTTP status and {"error":
 * {"message", "type", "param", "code"}}. */
#ifndef SAC_SERVE_REFUSAL_H
#define SAC_SERVE_REFUSAL_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

enum refusal_kind {
    REFUSAL_NONE = 0,
    REFUSAL_REQUEST,     /* 400: a field is wrong */
    REFUSAL_CONTEXT,     /* 400: more tokens than the context holds; counts are given */
    REFUSAL_FRAMING,     /* 400, and the connection ends: what follows may be anything */
    REFUSAL_KEY,         /* 401 */
    REFUSAL_FORBIDDEN,   /* 403: another site's page, or another host's name */
    REFUSAL_NOT_FOUND,   /* 404 */
    REFUSAL_METHOD,      /* 405 */
    REFUSAL_SLOW,        /* 408 */
    REFUSAL_LARGE,       /* 413 */
    REFUSAL_ENCODING,    /* 415: a compressed body */
    REFUSAL_HEADER,      /* 431 */
    REFUSAL_LEFT,        /* 499: nobody reads it, but the log */
    REFUSAL_BUSY,        /* 429, with Retry-After */
    REFUSAL_SERVER,      /* 500 */
    REFUSAL_UNSUPPORTED, /* 501: known, and not built in */
    REFUSAL_UNAVAILABLE, /* 503: loading, draining, out of memory */
    REFUSAL_KINDS,
};

struct refusal {
    enum refusal_kind kind;
    char param[64]; /* the field, "" if none is to blame */
    char message[640];
    uint64_t n_prompt_tokens, n_ctx; /* REFUSAL_CONTEXT */
    char allowed[48];                /* REFUSAL_METHOD: methods of the path, "GET, HEAD" */
};

/* Fills the refusal and returns SAC_ERR_ARG, so that callers can pass it on with TRY. `param` may
 * be NULL. */
__attribute__((format(printf, 4, 5))) sac_status
refusal_set(struct refusal *out, enum refusal_kind kind, const char *param, const char *fmt, ...);
/* What the engine's library said: bad arguments are the client's, the rest is the server's. */
sac_status refusal_of(struct refusal *out, sac_status status, const char *param,
                      const char *message);

#define refusal_set(out, kind, param, ...)                                                         \
    __extension__({                                                                                \
        (void)refusal_set((out), (kind), (param), __VA_ARGS__);                                    \
        SAC_ERR_ARG;                                                                               \
    })

static inline sac_status refusal_no_memory(struct refusal *out)
{
    return refusal_set(out, REFUSAL_UNAVAILABLE, NULL, "out of memory");
}

/* One of an API whose fields have other names than those it was read by: param and message name the
 * field `from` as `to`. */
void refusal_rename(struct refusal *r, const char *from, const char *to);
unsigned refusal_status(const struct refusal *r);
/* The body of a 503 that needs no memory, in either shape. */
#define REFUSAL_NO_MEMORY                                                                          \
    "{\"error\":{\"message\":\"out of memory\",\"type\":\"unavailable_error\",\"param\":null,"     \
    "\"code\":null}}"
#define REFUSAL_NO_MEMORY_ANTHROPIC                                                                \
    "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"out of memory\"}}"
/* Appends the body. `anthropic`: in the shape of that API. */
void refusal_print(const struct refusal *r, bool anthropic, struct strbuf *out);

#endif
