/* charset.h: plain text in any encoding to UTF-8. A byte order mark decides; otherwise valid UTF-8
 * is UTF-8; otherwise zero bytes indicate UTF-16; otherwise uchardet guesses. */
#ifndef SAC_TEXT_CHARSET_H
#define SAC_TEXT_CHARSET_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

struct charset_found {
    char name[40];    /* in iconv's notation */
    size_t skip;      /* bytes of the byte order mark */
    bool guessed;     /* determined by statistics, so possibly wrong */
    size_t n_replace; /* bytes that are not UTF-8 and become U+FFFD */
};

/* Determines the encoding; `declared` is what the document itself declares, or NULL.
 * SAC_ERR_FORMAT: not a text in any encoding. */
sac_status charset_find(struct charset_found *out, const char *s, size_t n, const char *declared,
                        sac_error *err);
/* Appends the text as UTF-8. */
sac_status charset_convert(struct strbuf *out, const char *s, size_t n,
                           const struct charset_found *from, sac_error *err);

#endif
