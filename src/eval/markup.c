/* markup.c: see the header. One walk over characters serves all formats: each format defines what a
 * character becomes, and the walk ensures that only whole, valid characters arrive. Reports quote
 * prompts, answers and names of methods, any of which may contain a closing script tag. */
#include "eval/markup.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

size_t markup_utf8(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    if (n == 0) return 0;
    if (u[0] < 0x80) return 1;
    const size_t len = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    /* The second byte shows overlong forms, surrogates, and code points beyond U+10FFFF. */
    if (u[0] == 0xe0 && u[1] < 0xa0) return 0;
    if (u[0] == 0xed && u[1] > 0x9f) return 0;
    if (u[0] == 0xf0 && u[1] < 0x90) return 0;
    if (u[0] == 0xf4 && u[1] > 0x8f) return 0;
    return len;
}

/* How one character is written; NULL: unchanged. `buf` is room for results that are composed. */
typedef const char *(*escape_fn)(const char *c, size_t len, char buf[8]);

static void escape(struct strbuf *out, const char *s, size_t n, escape_fn form)
{
    assert(s || n == 0);
    char buf[8];
    for (size_t i = 0; i < n;) {
        const size_t len = markup_utf8(s + i, n - i);
        const char *other = len == 0 ? REPLACEMENT : form(s + i, len, buf);
        if (other)
            strbuf_adds(out, other);
        else
            strbuf_add(out, s + i, len);
        i += len ? len : 1;
    }
}

static bool is_control(char c)
{
    return ((unsigned char)c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
}

static const char *html_form(const char *c, size_t len, char buf[8])
{
    (void)len;
    (void)buf;
    switch (*c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    case '\f': return "\n"; /* form feeds separate pages */
    default: return is_control(*c) ? REPLACEMENT : NULL;
    }
}

static const char *json_form(const char *c, size_t len, char buf[8])
{
    static const char digits[] = "0123456789abcdef";
    /* U+2028 and U+2029 end a line in old versions of JavaScript. */
    if (len == 3 && memcmp(c, "\xe2\x80\xa8", 3) == 0) return "\\u2028";
    if (len == 3 && memcmp(c, "\xe2\x80\xa9", 3) == 0) return "\\u2029";
    if (*c == '"') return "\\\"";
    if (*c == '\\') return "\\\\";
    if (*c == '\n') return "\\n";
    const unsigned char u = (unsigned char)*c;
    if (u >= 0x20 && u != 0x7f && !strchr("<>&", *c)) return NULL;
    memcpy(buf, "\\u00", 4);
    buf[4] = digits[u >> 4];
    buf[5] = digits[u & 15];
    buf[6] = 0;
    return buf;
}

static const char *csv_form(const char *c, size_t len, char buf[8])
{
    (void)len;
    (void)buf;
    if (*c == '"') return "\"\"";
    return is_control(*c) && *c != '\r' ? REPLACEMENT : NULL;
}

void markup_html(struct strbuf *out, const char *s, size_t n)
{
    escape(out, s, n, html_form);
}

void markup_json(struct strbuf *out, const char *s, size_t n)
{
    strbuf_adds(out, "\"");
    escape(out, s, n, json_form);
    strbuf_adds(out, "\"");
}

void markup_csv(struct strbuf *out, const char *s, size_t n)
{
    bool quote = n > 0 && (s[0] == ' ' || s[n - 1] == ' ');
    for (size_t i = 0; i < n; i++) quote |= s[i] && strchr(",\"\r\n", s[i]) != NULL;
    if (quote) strbuf_adds(out, "\"");
    escape(out, s, n, csv_form);
    if (quote) strbuf_adds(out, "\"");
}
