/* stop.h: filters the text of an answer: only whole UTF-8 characters come out, and nothing that is,
 * or may still become, a stop string. */
#ifndef SAC_ENGINE_STOP_H
#define SAC_ENGINE_STOP_H

#include "base/status.h"
#include "model/tokenizer.h"

#include <stddef.h>

struct stop_text {
    char *s; /* owned, NUL terminated */
    size_t n;
};

struct stop {
    struct stop_text *text; /* owned, [n_text] */
    size_t n_text;
    struct utf8_stream utf8;
    char *held; /* owned, [room]: characters that were not passed on yet */
    size_t n_held, room;
    bool passes;     /* stop strings that end within what is pushed now are text */
    size_t n_passed; /* bytes at the front of `held` that are such text */
};

/* `text` [n] is copied; an empty string is SAC_ERR_ARG. A push has at most `push_max` bytes. */
sac_status stop_init(struct stop *s, const char *const *text, size_t n, size_t push_max,
                     sac_error *err);
void stop_deinit(struct stop *s);

/* Adds the bytes of a token. Returns how many bytes at the front of `held` are certain. If a stop
 * string is complete, `*out_match` points to it (otherwise NULL), and the text before it is
 * certain. */
size_t stop_push(struct stop *s, const char *bytes, size_t n, const char **out_match);
/* The answer has ended: everything that is held is certain, an incomplete character as U+FFFD. */
size_t stop_flush(struct stop *s);
/* Drops the first `n` bytes of `held`. */
void stop_consume(struct stop *s, size_t n);

#endif
