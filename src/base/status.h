/* status.h: how functions fail. There are three kinds of failure: a programmer's error is an
 * assert; bad input or a bad environment is a status and a line that names the value; out of memory
 * happens only at start. Functions that can fail return `sac_status` and take `struct sac_error
 * *err` last; `err` may be NULL. */
#ifndef SAC_BASE_STATUS_H
#define SAC_BASE_STATUS_H

#include "saccade.h"

#include <stdarg.h>

/* Writes the message (cut to its buffer, control characters replaced by '?': it may quote a hostile
 * file) and returns `code`. */
__attribute__((format(printf, 3, 4))) sac_status error_set(sac_error *err, sac_status code,
                                                           const char *fmt, ...);

/* Puts `fmt...: ` before the message that `err` holds and returns `code`. */
__attribute__((format(printf, 3, 4))) sac_status error_prefix(sac_error *err, sac_status code,
                                                              const char *fmt, ...);

/* Calls of both show the compiler the code that they return: it can see that an error path never
 * ends as SAC_OK, and that outputs are set where it does. */
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

/* Leaves the function with the status of `expr` unless it is SAC_OK. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        const sac_status try_status_ = (expr);                                                     \
        if (try_status_ != SAC_OK) return try_status_;                                             \
    } while (0)

/* The same for functions that clean up behind a `fail:` label and hold `sac_status status`. */
#define TRY_FAIL(expr)                                                                             \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != SAC_OK) goto fail;                                                           \
    } while (0)

#endif
