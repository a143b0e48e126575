/* utf8.h: the little UTF-8 that the engine needs. The streaming decoder is declared in tokenizer.h.
 *
 * Strict means what Unicode calls well formed: no overlong forms, no surrogates, nothing above
 * U+10FFFF. */
#ifndef SAC_MODEL_UTF8_H
#define SAC_MODEL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes at the start of `s` that are strictly valid, whole characters; n if all are. */
size_t utf8_valid_prefix(const char *s, size_t n);

/* Writes one code point below 0x200000 in its shortest form, surrogates as they come; returns the
 * bytes written. */
size_t utf8_put(char out[4], uint32_t cp);

/* Decodes by the form of lead and continuation bytes alone: overlong forms and surrogates give
 * their value. Returns the bytes read; 0 if the form is broken or incomplete. */
size_t utf8_get_loose(const char *s, size_t n, uint32_t *out_cp);

/* Bytes that a lead byte announces, 1 for bytes that cannot lead: how SentencePiece-style text is
 * cut into symbols. */
static inline size_t utf8_lead_bytes(char lead)
{
    const uint8_t b = (uint8_t)lead;
    return b < 0xc0 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

#endif
