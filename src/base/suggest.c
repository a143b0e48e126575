/* suggest.c: see the header. An edit is a letter inserted, deleted or changed, or two neighbours
 * swapped. A name is near a word of 3 to 6 letters if one edit separates them, of 7 to 10 letters
 * if at most two do, and of more if at most three do. */
#include "base/suggest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edit distance with transpositions; `older` is two rows above `now` in the table. */
static size_t edits(const char *a, const char *b)
{
    const size_t n_a = strlen(a), n_b = strlen(b);
    size_t row[3][SUGGEST_MAX] = {{0}};
    size_t *older = row[0], *old = row[1], *now = row[2];
    for (size_t j = 0; j <= n_b; j++) old[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            const size_t change = a[i - 1] != b[j - 1];
            now[j] = smaller(smaller(old[j], now[j - 1]) + 1, old[j - 1] + change);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = smaller(now[j], older[j - 2] + 1);
        }
        size_t *spare = older;
        older = old;
        old = now;
        now = spare;
    }
    return old[n_b];
}

/* Ignores case and the difference between '_' and '-'. */
static void copy_folded(char to[SUGGEST_MAX], const char *s, size_t n)
{
    if (n >= SUGGEST_MAX) n = 0;
    for (size_t i = 0; i < n; i++) to[i] = s[i] == '_' ? '-' : (char)tolower((unsigned char)s[i]);
    to[n] = 0;
}

struct suggest suggest_begin(const char *word, size_t n)
{
    struct suggest s = {0};
    copy_folded(s.word, word, n);
    const size_t len = strlen(s.word);
    s.far = len < 3 ? 1 : len < 7 ? 2 : len < 11 ? 3 : 4; /* one more than the allowed distance */
    return s;
}

void suggest_try(struct suggest *s, const char *name, size_t n)
{
    char folded[SUGGEST_MAX];
    copy_folded(folded, name, n);
    if (!s->word[0] || !folded[0]) return;
    const size_t far = edits(s->word, folded);
    if (far >= s->far) return;
    s->far = far;
    snprintf(s->best, sizeof s->best, "%.*s", (int)n, name);
}

const char *suggest_hint(const struct suggest *s, char buf[SUGGEST_HINT_BYTES])
{
    buf[0] = 0;
    if (s->best[0]) snprintf(buf, SUGGEST_HINT_BYTES, " (did you mean '%s'?)", s->best);
    return buf;
}
