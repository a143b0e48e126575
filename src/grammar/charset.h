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
#define CHARSET_SPLIT_MAX 32u       /* sequences that one range needs, at most */

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
void charset_invert(struct charset *set); /* normalised before and after */
/* Keeps what `keep` has, too; both normalised. */
void charset_intersect(struct charset *set, const struct charset *keep);
bool charset_has(const struct charset *set, uint32_t cp);
void charset_deinit(struct charset *set);

/* Byte ranges, one for each byte of a sequence, that spell a part of a range. */
struct charset_bytes {
    uint8_t n, lo[CHARSET_UTF8_MAX], hi[CHARSET_UTF8_MAX];
};
/* Sequences of one range without surrogates, in rising order; returns their number. */
size_t charset_split(struct charset_bytes out[CHARSET_SPLIT_MAX], struct charset_range range);

/* One code point to UTF-8, the bytes written; surrogates and larger numbers are the caller's
 * error. */
size_t charset_put(char out[CHARSET_UTF8_MAX], uint32_t cp);
/* The code point at the start of `s`; 0 bytes when that is not strictly valid UTF-8. */
size_t charset_get(const char *s, size_t n, uint32_t *out_cp);

#endif
