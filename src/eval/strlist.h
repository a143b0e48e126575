/* strlist.h: a growing list of owned strings. Like strbuf, an append that finds no memory sets
 * `failed` and makes the later ones do nothing: check once at the end. */
#ifndef SAC_EVAL_STRLIST_H
#define SAC_EVAL_STRLIST_H

#include <stdbool.h>
#include <stddef.h>

struct strlist {
    char **item; /* [n], each owned and NUL terminated */
    size_t n, room;
    bool failed;
};

void strlist_add(struct strlist *l, const char *s);
void strlist_addn(struct strlist *l, const char *s, size_t n_bytes);
__attribute__((format(printf, 2, 3))) void strlist_addf(struct strlist *l, const char *fmt, ...);
bool strlist_has(const struct strlist *l, const char *s);
void strlist_deinit(struct strlist *l);

#endif
