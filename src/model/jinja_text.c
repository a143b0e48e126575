/* jinja_text.c: strings of templates: code points, spaces, search, text of values.
 *
 * Text is built after what `j->out` holds and moved to the pool when done, so that one buffer
 * serves the output and everything on the way. Bytes that are not UTF-8 count as one character each
 * and pass through unchanged. Letters outside ASCII have no case here: templates change the case of
 * role names, not of prose. */
#include "model/jinja.h"
#include "model/tokenizer.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Code points ---- */

uint32_t jinja_text_decode(const char *s, size_t n, uint32_t *out_cp)
{
    const unsigned char *u = (const unsigned char *)s;
    assert(n > 0);
    const uint32_t len = u[0] < 0x80 ? 1 : u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
    *out_cp = u[0];
    if (len < 2 || len > n || u[0] > 0xf4) return 1;
    uint32_t cp = u[0] & (0x7fu >> len);
    for (uint32_t i = 1; i < len; i++) {
        if ((u[i] & 0xc0u) != 0x80u) return 1;
        cp = cp << 6 | (u[i] & 0x3fu);
    }
    *out_cp = cp;
    return len;
}

uint32_t jinja_text_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    const uint32_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (uint32_t i = len - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80u | (cp & 0x3fu));
    out[0] = (char)((0xf00u >> len & 0xffu) | cp);
    return len;
}

size_t jinja_text_length(const char *s, size_t n)
{
    size_t count = 0;
    uint32_t cp;
    for (size_t at = 0; at < n; count++) at += jinja_text_decode(s + at, n - at, &cp);
    return count;
}

size_t jinja_text_offset(const char *s, size_t n, size_t cp_i)
{
    size_t at = 0;
    uint32_t cp;
    for (; cp_i > 0 && at < n; cp_i--) at += jinja_text_decode(s + at, n - at, &cp);
    return at;
}

/* ---- Spaces and search ---- */

static bool is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

size_t jinja_text_space(const char *s, size_t n)
{
    if (n == 0) return 0;
    uint32_t cp;
    const uint32_t len = jinja_text_decode(s, n, &cp);
    /* A stray byte 0x85 or 0xa0 is not a character, so not a space. */
    return is_space(cp) && (len > 1 || cp < 0x80) ? len : 0;
}

/* Bytes of the last character. */
static size_t last_length(const char *s, size_t n)
{
    size_t len = 1;
    while (len < 4 && len < n && ((unsigned char)s[n - len] & 0xc0u) == 0x80u) len++;
    uint32_t cp;
    return jinja_text_decode(s + n - len, len, &cp) == len ? len : 1;
}

size_t jinja_text_space_last(const char *s, size_t n)
{
    if (n == 0) return 0;
    const size_t len = last_length(s, n);
    return jinja_text_space(s + n - len, len);
}

bool jinja_text_same(const char *a, size_t n_a, const char *b, size_t n_b)
{
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a) == 0);
}

const char *jinja_text_find(const char *s, size_t n, const char *what, size_t n_what)
{
    if (n_what == 0) return s;
    return n < n_what ? NULL : memmem(s, n, what, n_what);
}

static size_t strip_length(const char *s, size_t n, struct jinja_value chars, bool last)
{
    if (n == 0) return 0;
    if (chars.kind != JINJA_STRING)
        return last ? jinja_text_space_last(s, n) : jinja_text_space(s, n);
    uint32_t cp;
    const size_t len = last ? last_length(s, n) : jinja_text_decode(s, n, &cp);
    const char *at = last ? s + n - len : s;
    return jinja_text_find(chars.s, chars.n, at, len) ? len : 0;
}

struct jinja_value jinja_text_strip(struct jinja_value s, struct jinja_value chars, unsigned ends)
{
    size_t n = s.n, len;
    const char *p = s.s;
    while ((ends & 1u) && (len = strip_length(p, n, chars, false)) > 0) {
        p += len;
        n -= len;
    }
    while ((ends & 2u) && (len = strip_length(p, n, chars, true)) > 0) n -= len;
    s.s = p;
    s.n = (uint32_t)n;
    return s;
}

/* ---- Building text ---- */

size_t jinja_text_begin(const struct jinja *j)
{
    return j->out.n;
}

sac_status jinja_text_add(struct jinja *j, const char *s, size_t n)
{
    if (n > j->out_max - (j->out.n < j->out_max ? j->out.n : j->out_max))
        return jinja_fail(j, "its text is longer than %zu bytes", j->out_max);
    TRY(jinja_step(j, n / JINJA_STEP_BYTES));
    strbuf_add(&j->out, s, n);
    return j->out.failed ? jinja_no_memory(j) : SAC_OK;
}

sac_status jinja_text_end(struct jinja *j, size_t begin, struct jinja_value *out)
{
    assert(begin <= j->out.n);
    const size_t n = j->out.n - begin;
    char *s = jinja_chars(j, n);
    if (!s) return jinja_no_memory(j);
    if (n) memcpy(s, j->out.data + begin, n);
    j->out.n = begin;
    *out = jinja_str(s, n);
    return SAC_OK;
}

/* ---- New strings from existing ones ---- */

sac_status jinja_text_replace(struct jinja *j, struct jinja_value s, struct jinja_value from,
                              struct jinja_value to, int64_t count, struct jinja_value *out)
{
    const size_t begin = jinja_text_begin(j);
    size_t at = 0;
    TRY(jinja_step_bytes(j, s.n));
    for (int64_t done = 0; count < 0 || done < count; done++) {
        TRY(jinja_step(j, 1));
        const char *hit = jinja_text_find(s.s + at, s.n - at, from.s, from.n);
        if (!hit) break;
        /* An empty `from` matches before each character and at the end. */
        size_t next = (size_t)(hit - s.s) + from.n;
        TRY(jinja_text_add(j, s.s + at, (size_t)(hit - s.s) - at));
        TRY(jinja_text_add(j, to.s, to.n));
        if (from.n == 0) {
            if (at == s.n) break;
            uint32_t cp;
            next = at + jinja_text_decode(s.s + at, s.n - at, &cp);
            TRY(jinja_text_add(j, s.s + at, next - at));
        }
        at = next;
    }
    TRY(jinja_text_add(j, s.s + at, s.n - at));
    TRY(jinja_text_end(j, begin, out));
    out->markup = s.markup;
    return SAC_OK;
}

sac_status jinja_text_guard(struct jinja *j, struct jinja_value *s)
{
    if (!j->guard) return SAC_OK;
    TRY(jinja_step_bytes(j, s->n));
    const size_t n = tokenizer_guard(j->guard, s->s, s->n, NULL);
    if (n == s->n) return SAC_OK;
    char *guarded = jinja_chars(j, n);
    if (!guarded) return jinja_no_memory(j);
    *s = jinja_str(guarded, tokenizer_guard(j->guard, s->s, s->n, guarded));
    return SAC_OK;
}

sac_status jinja_text_concat(struct jinja *j, struct jinja_value a, struct jinja_value b,
                             struct jinja_value *out)
{
    TRY(jinja_step_bytes(j, b.n));
    const size_t n = (size_t)a.n + b.n;
    char *behind = jinja_extend(j, a.s, a.n, b.n);
    /* The left string is the newest: text that is built from left to right is moved once */
    if (behind) {
        if (b.n) memcpy(behind, b.s, b.n);
        *out = jinja_str(a.s, n);
        return SAC_OK;
    }
    TRY(jinja_step_bytes(j, a.n));
    char *s = jinja_chars(j, n);
    if (!s) return jinja_no_memory(j);
    if (a.n) memcpy(s, a.s, a.n);
    if (b.n) memcpy(s + a.n, b.s, b.n);
    *out = jinja_str(s, n);
    return SAC_OK;
}

sac_status jinja_text_escape(struct jinja *j, struct jinja_value s, struct jinja_value *out)
{
    static const char *const names[256] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['\''] = "&#39;", ['"'] = "&#34;"};
    *out = s;
    if (!s.markup) {
        const size_t begin = jinja_text_begin(j);
        TRY(jinja_step_bytes(j, s.n));
        uint32_t from = 0;
        for (uint32_t i = 0; i < s.n; i++) {
            const char *name = names[(unsigned char)s.s[i]];
            if (!name) continue;
            TRY(jinja_text_add(j, s.s + from, i - from));
            TRY(jinja_text_adds(j, name));
            from = i + 1;
        }
        TRY(jinja_text_add(j, s.s + from, s.n - from));
        TRY(jinja_text_end(j, begin, out));
    }
    out->markup = true;
    return SAC_OK;
}

sac_status jinja_text_case(struct jinja *j, struct jinja_value s, bool upper,
                           struct jinja_value *out)
{
    TRY(jinja_step_bytes(j, s.n));
    char *p = jinja_chars(j, s.n);
    if (!p) return jinja_no_memory(j);
    const char first = upper ? 'a' : 'A', last = upper ? 'z' : 'Z';
    for (uint32_t i = 0; i < s.n; i++)
        p[i] = s.s[i] >= first && s.s[i] <= last ? (char)(s.s[i] ^ 0x20) : s.s[i];
    *out = jinja_str(p, s.n);
    out->markup = s.markup;
    return SAC_OK;
}

/* ---- Text of values ---- */

void jinja_text_float(double f, char out[40])
{
    if (isnan(f) || isinf(f)) {
        snprintf(out, 40, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    char e[32];
    int digits = 0;
    do { /* the shortest digits that are read back as the same number */
        snprintf(e, sizeof e, "%.*e", digits, f);
    } while (strtod(e, NULL) != f && ++digits < 17);
    const int exp = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    if (exp < -4 ||
        exp >= 16) { /* Python drops the zeros of "1.0e+16" but keeps two digits of exp */
        snprintf(out, 40, "%s", e);
        return;
    }
    snprintf(out, 40, "%.*f", digits > exp ? digits - exp : 1, f);
}

/* Whether repr() prints a character unescaped: not controls, separators, formats, and private or
 * unassigned ranges. */
static bool is_printable(uint32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    if (cp < 0x100) return cp > 0xa0 && cp != 0xad;
    return !is_space(cp) && !(cp >= 0x200b && cp <= 0x200f) && !(cp >= 0x202a && cp <= 0x202e) &&
           !(cp >= 0x2060 && cp <= 0x206f) && !(cp >= 0xd800 && cp <= 0xf8ff) && cp != 0xfeff &&
           !(cp >= 0xfff0 && cp <= 0xfffb) && cp < 0xe0000;
}

static sac_status add_repr_char(struct jinja *j, const char *s, uint32_t n, uint32_t cp, char quote)
{
    char esc[16];
    if (cp == (unsigned char)quote || cp == '\\')
        snprintf(esc, sizeof esc, "\\%c", (char)cp);
    else if (cp == '\n')
        return jinja_text_adds(j, "\\n");
    else if (cp == '\r')
        return jinja_text_adds(j, "\\r");
    else if (cp == '\t')
        return jinja_text_adds(j, "\\t");
    else if (is_printable(cp))
        return jinja_text_add(j, s, n);
    else if (cp < 0x100)
        snprintf(esc, sizeof esc, "\\x%02" PRIx32, cp);
    else
        snprintf(esc, sizeof esc, cp < 0x10000 ? "\\u%04" PRIx32 : "\\U%08" PRIx32, cp);
    return jinja_text_adds(j, esc);
}

static sac_status add_quoted(struct jinja *j, struct jinja_value v)
{
    const bool has_single = v.n && memchr(v.s, '\'', v.n),
               has_double = v.n && memchr(v.s, '"', v.n);
    const char quote = has_single && !has_double ? '"' : '\'';
    if (v.markup) TRY(jinja_text_adds(j, "Markup("));
    TRY(jinja_text_add(j, &quote, 1));
    TRY(jinja_step_bytes(j, v.n));
    for (uint32_t at = 0; at < v.n;) {
        uint32_t cp;
        const uint32_t n = jinja_text_decode(v.s + at, v.n - at, &cp);
        TRY(add_repr_char(j, v.s + at, n, cp, quote));
        at += n;
    }
    TRY(jinja_text_add(j, &quote, 1));
    return v.markup ? jinja_text_adds(j, ")") : SAC_OK;
}

static sac_status add_repr(struct jinja *j, struct jinja_value v);

static sac_status add_list(struct jinja *j, struct jinja_value v)
{
    const bool tuple = v.kind == JINJA_TUPLE;
    TRY(jinja_text_adds(j, tuple ? "(" : "["));
    for (uint32_t i = 0; i < v.list->n; i++) {
        if (i) TRY(jinja_text_adds(j, ", "));
        TRY(add_repr(j, v.list->items[i]));
    }
    if (tuple && v.list->n == 1) TRY(jinja_text_adds(j, ","));
    return jinja_text_adds(j, tuple ? ")" : "]");
}

static sac_status add_dict(struct jinja *j, const struct jinja_dict *d)
{
    TRY(jinja_text_adds(j, "{"));
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) TRY(jinja_text_adds(j, ", "));
        TRY(add_repr(j, d->pairs[i].key));
        TRY(jinja_text_adds(j, ": "));
        TRY(add_repr(j, d->pairs[i].value));
    }
    return jinja_text_adds(j, "}");
}

static sac_status add_repr(struct jinja *j, struct jinja_value v)
{
    char text[40];
    TRY(jinja_step(j, 1));
    switch ((enum jinja_kind)v.kind) {
    case JINJA_UNDEFINED: return jinja_text_adds(j, "Undefined");
    case JINJA_NONE: return jinja_text_adds(j, "None");
    case JINJA_BOOL: return jinja_text_adds(j, v.b ? "True" : "False");
    case JINJA_INT: snprintf(text, sizeof text, "%" PRId64, v.i); return jinja_text_adds(j, text);
    case JINJA_FLOAT: jinja_text_float(v.f, text); return jinja_text_adds(j, text);
    case JINJA_STRING: return add_quoted(j, v);
    case JINJA_LIST:
    case JINJA_TUPLE: return add_list(j, v);
    case JINJA_DICT: return add_dict(j, v.dict);
    default: return jinja_fail(j, "a %s has no text", jinja_kind_name(v));
    }
}

sac_status jinja_text_repr(struct jinja *j, struct jinja_value v, struct jinja_value *out)
{
    const size_t begin = jinja_text_begin(j);
    TRY(add_repr(j, v));
    return jinja_text_end(j, begin, out);
}

sac_status jinja_text_str(struct jinja *j, struct jinja_value v, struct jinja_value *out)
{
    *out = v;
    if (v.kind == JINJA_STRING) return SAC_OK;
    if (v.kind != JINJA_UNDEFINED) return jinja_text_repr(j, v, out);
    *out = jinja_str("", 0);
    return SAC_OK;
}
