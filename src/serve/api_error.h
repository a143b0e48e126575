/* api_error.h: why a request is refused, in the form of OpenAI's errors: an HTTP status and
 * {"error":
 * {"message", "type", "param", "code"}}. */
#ifndef SAC_SERVE_API_ERROR_H
#define SAC_SERVE_API_ERROR_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

enum api_error_kind {
    API_ERROR_NONE = 0,
    API_ERROR_REQUEST,   /* 400: a field is invalid */
    API_ERROR_CONTEXT,   /* 400: more tokens than the context holds; counts are included */
    API_ERROR_FRAMING,   /* 400; the connection is closed, because the end of the request is unknown
                          */
    API_ERROR_KEY,       /* 401 */
    API_ERROR_FORBIDDEN, /* 403: another origin or host name */
    API_ERROR_NOT_FOUND, /* 404 */
    API_ERROR_METHOD,    /* 405 */
    API_ERROR_SLOW,      /* 408 */
    API_ERROR_LARGE,     /* 413 */
    API_ERROR_ENCODING,  /* 415: a compressed body */
    API_ERROR_HEADER,    /* 431 */
    API_ERROR_LEFT,      /* 499: client disconnected; for the log only */
    API_ERROR_BUSY,      /* 429, with Retry-After */
    API_ERROR_SERVER,    /* 500 */
    API_ERROR_UNSUPPORTED, /* 400: known but not supported; clients would retry a 5xx in vain */
    API_ERROR_UNAVAILABLE, /* 503: loading, draining, out of memory */
    API_ERROR_KINDS,
};

struct api_error {
    enum api_error_kind kind;
    char param[64]; /* the field, or "" */
    char message[640];
    uint64_t n_prompt_tokens, n_ctx; /* for API_ERROR_CONTEXT */
    char allowed[48];                /* for API_ERROR_METHOD: methods of the path, "GET, HEAD" */
};

/* Fills in the error and returns SAC_ERR_ARG for use with TRY. `param` may be NULL. */
__attribute__((format(printf, 4, 5))) sac_status api_error_set(struct api_error *out,
                                                               enum api_error_kind kind,
                                                               const char *param, const char *fmt,
                                                               ...);
/* Translates an error of the engine: bad arguments are the client's fault, the rest the
 * server's. */
sac_status api_error_of(struct api_error *out, sac_status status, const char *param,
                        const char *message);

#define api_error_set(out, kind, param, ...)                                                       \
    __extension__({                                                                                \
        (void)api_error_set((out), (kind), (param), __VA_ARGS__);                                  \
        SAC_ERR_ARG;                                                                               \
    })

static inline sac_status api_error_no_memory(struct api_error *out)
{
    return api_error_set(out, API_ERROR_UNAVAILABLE, NULL, "out of memory");
}

/* Replaces the field name `from` by `to` in param and message, for APIs that are translated to
 * another API before they are read. */
void api_error_rename(struct api_error *r, const char *from, const char *to);
unsigned api_error_status(const struct api_error *r);
/* Bodies of a 503 response that need no allocation. */
#define API_ERROR_NO_MEMORY                                                                        \
    "{\"error\":{\"message\":\"out of memory\",\"type\":\"unavailable_error\",\"param\":null,"     \
    "\"code\":null}}"
#define API_ERROR_NO_MEMORY_ANTHROPIC                                                              \
    "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"out of memory\"}}"
/* Appends the body, in OpenAI's or Anthropic's format. */
void api_error_print(const struct api_error *r, bool anthropic, struct strbuf *out);

#endif
