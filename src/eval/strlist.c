/* strlist.c: see the header. Lists are short (answers, classes, keys) or searched once (sentences),
 * so a search walks the list. */
#include "eval/strlist.h"

#include "base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void strlist_addn(struct strlist *l, const char *s, size_t n_bytes)
{
    if (l->failed) return;
    if (l->n == l->room) {
        const size_t room = l->room ? 2 * l->room : 8;
        char **grown = mem_realloc(l->item, room * sizeof *grown);
        if (!grown) {
            l->failed = true;
            return;
        }
        l->item = grown;
        l->room = room;
    }
    l->item[l->n] = mem_strndup(s, n_bytes);
    if (l->item[l->n])
        l->n++;
    else
        l->failed = true;
}

void strlist_add(struct strlist *l, const char *s)
{
    strlist_addn(l, s, strlen(s));
}

void strlist_addf(struct strlist *l, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    assert(n >= 0 && (size_t)n < sizeof text); /* lines of generated tasks, not texts of users */
    strlist_add(l, text);
}

bool strlist_has(const struct strlist *l, const char *s)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->item[i], s) == 0) return true;
    return false;
}

void strlist_deinit(struct strlist *l)
{
    for (size_t i = 0; i < l->n; i++) mem_free(l->item[i]);
    mem_free(l->item);
    *l = (struct strlist){0};
}
