/* strbuf.c: see the header. Growth doubles, so n appends cost O(n). */
#include "base/strbuf.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool reserve(struct strbuf *b, size_t more)
{
    if (b->failed) return false;
    if (more < b->capacity - b->n) return true; /* one byte is reserved for the NUL */
    size_t want = b->capacity ? b->capacity : 64;
    while (want - b->n <= more && want <= (size_t)-1 / 4) want *= 2;
    char *grown = want - b->n > more ? mem_realloc(b->data, want) : NULL;
    if (!grown) {
        b->failed = true;
        return false;
    }
    b->data = grown;
    b->capacity = want;
    return true;
}

void strbuf_add(struct strbuf *b, const char *s, size_t n)
{
    if (!reserve(b, n)) return;
    if (n) memcpy(b->data + b->n, s, n);
    b->n += n;
    b->data[b->n] = 0;
}

void strbuf_adds(struct strbuf *b, const char *s)
{
    strbuf_add(b, s, strlen(s));
}

void strbuf_addf(struct strbuf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0 && reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void strbuf_reset(struct strbuf *b)
{
    b->n = 0;
    b->failed = false;
    if (b->data) b->data[0] = 0;
}

void strbuf_deinit(struct strbuf *b)
{
    mem_free(b->data);
    *b = (struct strbuf){0};
}

char *strbuf_detach(struct strbuf *b, size_t *out_n)
{
    strbuf_add(b, "", 0); /* an empty buffer becomes "" */
    if (b->failed) {
        strbuf_deinit(b);
        return NULL;
    }
    char *text = b->data;
    if (out_n) *out_n = b->n;
    *b = (struct strbuf){0};
    return text;
}
