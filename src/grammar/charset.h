/* charset.h: sets of Unicode code points, and the UTF-8 byte sequences that spell them.
 *
 * A set is a list of ranges; `charset_normalise` sorts and joins them and removes surrogates, which
 * UTF-8 cannot spell. Functions that read a set expect this form. An append that finds no memory
 * sets `failed`: check once at the end. */
#ifndef SAC_GRAMMAR_CHARSET_H
#define SAC_GRAMMAR_CHARSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHARSET_LAST      0x10ffffu /* the last code point */
#define CHARSET_UTF8_MAX  4u        /* bytes of a code point */
#define CHARSET_SPLIT_MAX 32u       /* maximum byte sequences of one range */

struct charset_range {
    uint32_t lo, hi; /* both inclusive */
};

struct charset {
    struct charset_range *range; /* owned, [n] */
    size_t n, room;
    bool failed;
};

void charset_add(struct charset *set, uint32_t lo, uint32_t hi);
void charset_add_all(struct charset *set, const struct charset *other);
void charset_normalise(struct charset *set);
void charset_invert(struct charset *set); /* the set is normalised before and after */
/* Intersects with `keep`; both are normalised. */
void charset_intersect(struct charset *set, const struct charset *keep);
bool charset_has(const struct charset *set, uint32_t cp);
void charset_deinit(struct charset *set);

/* A set of UTF-8 sequences: one byte range per byte. */
struct charset_bytes {
    uint8_t n, lo[CHARSET_UTF8_MAX], hi[CHARSET_UTF8_MAX];
};
/* Splits a range without surrogates into sequences in ascending order; returns their number. */
size_t charset_split(struct charset_bytes out[CHARSET_SPLIT_MAX], struct charset_range range);

/* Encodes a code point, which must not be a surrogate or too large; returns the number of bytes. */
size_t charset_put(char out[CHARSET_UTF8_MAX], uint32_t cp);
/* Decodes the code point at the start of `s`; returns 0 if it is not valid UTF-8. */
size_t charset_get(const char *s, size_t n, uint32_t *out_cp);

#endif
