/* status.h: how functions fail. There are three kinds of failure: a programmer's error is an
 * assert; bad input or a bad environment is a status and a line that names the value; out of memory
 * happens only at start. Functions that can fail return `sac_status` and take `struct sac_error
 * *err` last; `err` may be NULL. */
#ifndef SAC_BASE_STATUS_H
#define SAC_BASE_STATUS_H

#include "saccade.h"

#include <stdarg.h>

/* Formats the message and returns `code`. The message is truncated to its buffer; control
 * characters become '?', because it may quote a hostile file. */
__attribute__((format(printf, 3, 4))) sac_status error_set(sac_error *err, sac_status code,
                                                           const char *fmt, ...);

/* Puts `fmt...: ` before the message in `err` and returns `code`. */
__attribute__((format(printf, 3, 4))) sac_status error_prefix(sac_error *err, sac_status code,
                                                              const char *fmt, ...);

/* These macros show the returned code to the compiler's analysis: error paths never return SAC_OK,
 * so outputs are set where a caller continues. */
#define error_set(err, code, ...)                                                                  \
    __extension__({                                                                                \
        const sac_status error_code_ = (code);                                                     \
        (void)error_set((err), error_code_, __VA_ARGS__);                                          \
        error_code_;                                                                               \
    })
#define error_prefix(err, code, ...)                                                               \
    __extension__({                                                                                \
        const sac_status error_code_ = (code);                                                     \
        (void)error_prefix((err), error_code_, __VA_ARGS__);                                       \
        error_code_;                                                                               \
    })

/* Returns the status of `expr` unless it is SAC_OK. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        const sac_status try_status_ = (expr);                                                     \
        if (try_status_ != SAC_OK) return try_status_;                                             \
    } while (0)

/* The same for functions that clean up after a `fail:` label and have a variable `sac_status
 * status`. */
#define TRY_FAIL(expr)                                                                             \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != SAC_OK) goto fail;                                                           \
    } while (0)

#endif
