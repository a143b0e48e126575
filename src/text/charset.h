/* charset.h: plain text in any encoding to UTF-8. A byte order mark decides; otherwise valid UTF-8
 * is UTF-8; otherwise zero bytes indicate UTF-16; otherwise uchardet guesses. */
#ifndef SAC_TEXT_CHARSET_H
#define SAC_TEXT_CHARSET_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

struct charset_found {
    char name[40];    /* as iconv calls it */
    size_t skip;      /* bytes of the mark at the begin */
    bool guessed;     /* by statistics: it may be wrong */
    size_t n_replace; /* bytes of an almost UTF-8 text that are none, each to become U+FFFD */
};

/* Which encoding the bytes have; `declared` is what the document says of itself, or NULL.
 * SAC_ERR_FORMAT if they are no text in any. */
sac_status charset_find(struct charset_found *out, const char *s, size_t n, const char *declared,
                        sac_error *err);
/* Appends the text as UTF-8. */
sac_status charset_convert(struct strbuf *out, const char *s, size_t n,
                           const struct charset_found *from, sac_error *err);

#endif
