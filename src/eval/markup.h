/* markup.h: puts foreign text into HTML, SVG, JSON and CSV so that it stays text.
 *
 * Contract: `s` is any bytes, [n]. Invalid UTF-8 becomes U+FFFD, so the output is always valid;
 * control characters that no format can hold become U+FFFD as well. */
#ifndef SAC_EVAL_MARKUP_H
#define SAC_EVAL_MARKUP_H

#include "base/strbuf.h"

#include <stddef.h>

/* For text of an element, and for attribute values in either kind of quotes. */
void markup_html(struct strbuf *out, const char *s, size_t n);

/* A JSON string with its quotes. `<`, `>` and `&` are escaped, so nothing in it can end the script
 * element that contains it. */
void markup_json(struct strbuf *out, const char *s, size_t n);

/* One CSV field (RFC 4180), quoted if necessary. */
void markup_csv(struct strbuf *out, const char *s, size_t n);

/* The number of bytes of the valid UTF-8 character at `s`; 0 if there is none. */
size_t markup_utf8(const char *s, size_t n);

#endif
