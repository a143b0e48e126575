/* strbuf.h: a growing byte string for text that is made piece by piece (outside steps).
 * Invariant: `data` is NULL or NUL terminated behind `n` bytes. An append that finds no memory sets
 * `failed`, keeps what was there and makes all later appends do nothing: check once at the end. */
#ifndef SAC_BASE_STRBUF_H
#define SAC_BASE_STRBUF_H

#include <stdbool.h>
#include <stddef.h>

struct strbuf {
    char *data; /* owned, from mem.h */
    size_t n, capacity;
    bool failed;
};

void strbuf_add(struct strbuf *b, const char *s, size_t n);
void strbuf_adds(struct strbuf *b, const char *s);
__attribute__((format(printf, 2, 3))) void strbuf_addf(struct strbuf *b, const char *fmt, ...);
void strbuf_reset(struct strbuf *b);  /* empties the buffer, keeps its memory */
void strbuf_deinit(struct strbuf *b); /* frees the memory */
/* Returns the text, which the caller owns; NULL if an append has failed. The buffer is empty
 * afterwards. */
char *strbuf_detach(struct strbuf *b, size_t *out_n);

#endif
