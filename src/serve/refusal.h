/* refusal.h: why a request is refused, in the form of OpenAI's errors: an HTTP status and {"error":
 * {"message", "type", "param", "code"}}. */
#ifndef SAC_SERVE_REFUSAL_H
#define SAC_SERVE_REFUSAL_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

enum refusal_kind {
    REFUSAL_NONE = 0,
    REFUSAL_REQUEST, /* 400: a field is invalid */
    REFUSAL_CONTEXT, /* 400: more tokens than the context holds; counts are included */
    REFUSAL_FRAMING, /* 400; the connection is closed, because the end of the request is unknown */
    REFUSAL_KEY,     /* 401 */
    REFUSAL_FORBIDDEN,   /* 403: another origin or host name */
    REFUSAL_NOT_FOUND,   /* 404 */
    REFUSAL_METHOD,      /* 405 */
    REFUSAL_SLOW,        /* 408 */
    REFUSAL_LARGE,       /* 413 */
    REFUSAL_ENCODING,    /* 415: a compressed body */
    REFUSAL_HEADER,      /* 431 */
    REFUSAL_LEFT,        /* 499: client disconnected; for the log only */
    REFUSAL_BUSY,        /* 429, with Retry-After */
    REFUSAL_SERVER,      /* 500 */
    REFUSAL_UNSUPPORTED, /* 501: known but not supported */
    REFUSAL_UNAVAILABLE, /* 503: loading, draining, out of memory */
    REFUSAL_KINDS,
};

struct refusal {
    enum refusal_kind kind;
    char param[64]; /* the field, or "" */
    char message[640];
    uint64_t n_prompt_tokens, n_ctx; /* for REFUSAL_CONTEXT */
    char allowed[48];                /* for REFUSAL_METHOD: methods of the path, "GET, HEAD" */
};

/* Fills in the refusal and returns SAC_ERR_ARG for use with TRY. `param` may be NULL. */
__attribute__((format(printf, 4, 5))) sac_status
refusal_set(struct refusal *out, enum refusal_kind kind, const char *param, const char *fmt, ...);
/* Translates an error of the engine: bad arguments are the client's fault, the rest the
 * server's. */
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

/* Replaces the field name `from` by `to` in param and message, for APIs that are translated to
 * another API before they are read. */
void refusal_rename(struct refusal *r, const char *from, const char *to);
unsigned refusal_status(const struct refusal *r);
/* Bodies of a 503 response that need no allocation. */
#define REFUSAL_NO_MEMORY                                                                          \
    "{\"error\":{\"message\":\"out of memory\",\"type\":\"unavailable_error\",\"param\":null,"     \
    "\"code\":null}}"
#define REFUSAL_NO_MEMORY_ANTHROPIC                                                                \
    "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"out of memory\"}}"
/* Appends the body, in OpenAI's or Anthropic's format. */
void refusal_print(const struct refusal *r, bool anthropic, struct strbuf *out);

#endif
