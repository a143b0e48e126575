/* status.c: error messages. The only state is the caller's buffer. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* Messages may quote names from hostile files, which must not send control sequences to a
 * terminal. */
static void make_printable(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

sac_status(error_set)(sac_error *err, sac_status code, const char *fmt, ...)
{
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    make_printable(err->msg);
    return code;
}

sac_status(error_prefix)(sac_error *err, sac_status code, const char *fmt, ...)
{
    if (!err) return code;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    const size_t left = sizeof err->msg - 1 - ((size_t)n < sizeof err->msg ? (size_t)n : 0);
    if ((size_t)n + 3 < sizeof err->msg) snprintf(err->msg + n, left, ": %.*s", (int)left - 3, old);
    make_printable(err->msg);
    return code;
}

const char *sac_status_name(sac_status status)
{
    switch (status) {
    case SAC_OK: return "ok";
    case SAC_ERR_ARG: return "invalid argument";
    case SAC_ERR_NOT_FOUND: return "not found";
    case SAC_ERR_FORMAT: return "bad format";
    case SAC_ERR_UNSUPPORTED: return "unsupported";
    case SAC_ERR_IO: return "input or output failed";
    case SAC_ERR_MEMORY: return "out of memory";
    case SAC_ERR_CONTEXT: return "context full";
    case SAC_ERR_CANCELLED: return "cancelled";
    case SAC_ERR_BUSY: return "busy";
    }
    return "unknown status";
}
