/* jinja_json.c: JSON to values and back.
 *
 * A reader of its own because templates tell 1 from 1.0 and print integers of 64 bits exactly, and
 * because messages and tools come from clients: it allocates from the render's pool, pays steps,
 * and nests at most JINJA_JSON_DEPTH. The writer gives the text of Python's json.dumps, which is
 * what models were trained on: ", " and ": " between, keys in their order, non-ASCII as it is. */
#include "model/jinja.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define INDENT_MAX 1024 /* per level */

/* ---- Reading ---- */

struct reader {
    struct jinja *j;
    const char *s; /* [n] */
    size_t n, at;
    uint32_t depth;
    const char *what;
};

static sac_status bad(const struct reader *r, const char *problem)
{
    return error_set(r->j->err, SAC_ERR_FORMAT, "%s, byte %zu: %s", r->what, r->at, problem);
}

static void skip_space(struct reader *r)
{
    while (r->at < r->n && memchr(" \t\n\r", r->s[r->at], 4)) r->at++;
}

static bool accept(struct reader *r, const char *text)
{
    const size_t n = strlen(text);
    if (n > r->n - r->at || memcmp(r->s + r->at, text, n) != 0) return false;
    r->at += n;
    return true;
}

static bool read_hex4(struct reader *r, uint32_t *out)
{
    uint32_t v = 0;
    if (r->n - r->at < 4) return false;
    for (int i = 0; i < 4; i++) {
        const char c = r->s[r->at + (size_t)i];
        const char *const digits = "0123456789abcdefABCDEF";
        const char *hit = c ? strchr(digits, c) : NULL;
        if (!hit) return false;
        const uint32_t d = (uint32_t)(hit - digits);
        v = v << 4 | (d < 16 ? d : d - 6);
    }
    r->at += 4;
    *out = v;
    return true;
}

/* Parses after `\u`. A surrogate without its other half becomes U+FFFD, because it has no UTF-8. */
static sac_status read_unicode(struct reader *r)
{
    uint32_t cp, low;
    if (!read_hex4(r, &cp)) return bad(r, "\\u needs four hexadecimal digits");
    if (cp >= 0xd800 && cp < 0xe000) {
        const size_t back = r->at;
        if (cp < 0xdc00 && accept(r, "\\u") && read_hex4(r, &low) && low >= 0xdc00 && low < 0xe000)
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        else {
            r->at = back;
            cp = 0xfffd;
        }
    }
    char utf8[4];
    return jinja_text_add(r->j, utf8, jinja_text_encode(cp, utf8));
}

static sac_status read_escape(struct reader *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->n) return bad(r, "the string does not end");
    const char c = r->s[r->at++];
    if (c == 'u') return read_unicode(r);
    const char *hit = c ? strchr(from, c) : NULL;
    if (!hit) return bad(r, "an unknown escape");
    return jinja_text_add(r->j, &to[hit - from], 1);
}

static sac_status read_string(struct reader *r, struct jinja_value *out)
{
    size_t from = r->at;
    bool plain = true;
    const size_t begin = jinja_text_begin(r->j);
    for (;;) {
        size_t at = r->at;
        while (at < r->n && r->s[at] != '"' && r->s[at] != '\\' && (unsigned char)r->s[at] >= 0x20)
            at++;
        TRY(jinja_step_bytes(r->j, at - r->at));
        r->at = at;
        if (at == r->n) return bad(r, "the string does not end");
        if ((unsigned char)r->s[at] < 0x20) return bad(r, "a control character in a string");
        if (r->s[at] == '"' && plain) {
            *out = jinja_str(r->s + from, at - from);
            r->at++;
            return jinja_text_guard(r->j, out);
        }
        TRY(jinja_text_add(r->j, r->s + from, at - from));
        r->at++;
        if (r->s[at] == '"') {
            TRY(jinja_text_end(r->j, begin, out));
            return jinja_text_guard(r->j, out);
        }
        plain = false;
        TRY(read_escape(r));
        from = r->at;
    }
}

static size_t skip_digits(struct reader *r)
{
    const size_t from = r->at;
    while (r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9') r->at++;
    return r->at - from;
}

static sac_status read_number(struct reader *r, struct jinja_value *out)
{
    const size_t from = r->at;
    char text[64];
    bool whole = true;
    accept(r, "-");
    const size_t digit = r->at;
    if (skip_digits(r) == 0) return bad(r, "a value was expected");
    if (r->s[digit] == '0' && r->at - digit > 1) return bad(r, "a number with a leading zero");
    if (accept(r, ".")) {
        whole = false;
        if (skip_digits(r) == 0) return bad(r, "digits were expected");
    }
    if (accept(r, "e") || accept(r, "E")) {
        whole = false;
        if (!accept(r, "-")) accept(r, "+");
        if (skip_digits(r) == 0) return bad(r, "digits were expected");
    }
    if (r->at - from >= sizeof text) return bad(r, "a number of too many digits");
    memcpy(text, r->s + from, r->at - from);
    text[r->at - from] = 0;
    errno = 0;
    *out = whole ? jinja_int(strtoll(text, NULL, 10)) : jinja_float(strtod(text, NULL));
    return whole && errno ? bad(r, "an integer beyond 64 bits") : SAC_OK;
}

static sac_status read_value(struct reader *r, struct jinja_value *out);

static sac_status read_list(struct reader *r, struct jinja_value *out)
{
    TRY(jinja_list_new(r->j, out, JINJA_LIST));
    skip_space(r);
    if (accept(r, "]")) return SAC_OK;
    for (;;) {
        struct jinja_value item;
        TRY(read_value(r, &item));
        TRY(jinja_list_push(r->j, out->list, item));
        skip_space(r);
        if (accept(r, "]")) return SAC_OK;
        if (!accept(r, ",")) return bad(r, "',' or ']' was expected");
    }
}

static sac_status read_dict(struct reader *r, struct jinja_value *out)
{
    TRY(jinja_dict_new(r->j, out));
    skip_space(r);
    if (accept(r, "}")) return SAC_OK;
    for (;;) {
        struct jinja_value key, item;
        skip_space(r);
        if (!accept(r, "\"")) return bad(r, "a key in double quotes was expected");
        TRY(read_string(r, &key));
        skip_space(r);
        if (!accept(r, ":")) return bad(r, "':' was expected");
        TRY(read_value(r, &item));
        TRY(jinja_dict_set(r->j, out->dict, key, item));
        skip_space(r);
        if (accept(r, "}")) return SAC_OK;
        if (!accept(r, ",")) return bad(r, "',' or '}' was expected");
    }
}

static sac_status read_nested(struct reader *r, bool list, struct jinja_value *out)
{
    if (r->depth == JINJA_JSON_DEPTH) return bad(r, "it nests too deep");
    r->depth++;
    TRY(list ? read_list(r, out) : read_dict(r, out));
    r->depth--;
    return SAC_OK;
}

static sac_status read_value(struct reader *r, struct jinja_value *out)
{
    TRY(jinja_step(r->j, 1));
    skip_space(r);
    if (accept(r, "\"")) return read_string(r, out);
    if (accept(r, "[")) return read_nested(r, true, out);
    if (accept(r, "{")) return read_nested(r, false, out);
    *out = jinja_none();
    if (accept(r, "null")) return SAC_OK;
    *out = jinja_bool(true);
    if (accept(r, "true")) return SAC_OK;
    *out = jinja_bool(false);
    if (accept(r, "false")) return SAC_OK;
    return read_number(r, out);
}

sac_status jinja_json_read(struct jinja *j, const char *s, size_t n, const char *what,
                           struct jinja_value *out)
{
    struct reader r = {.j = j, .s = s, .n = n, .what = what};
    TRY(read_value(&r, out));
    skip_space(&r);
    return r.at == n ? SAC_OK : bad(&r, "more text behind the value");
}

/* ---- Writing ---- */

struct writer {
    struct jinja *j;
    const struct jinja_json_style *style;
    int64_t level;
};

static sac_status write_unicode(struct jinja *j, uint32_t cp)
{
    char esc[16];
    if (cp < 0x10000)
        snprintf(esc, sizeof esc, "\\u%04" PRIx32, cp);
    else
        snprintf(esc, sizeof esc, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + ((cp - 0x10000) >> 10),
                 0xdc00 + ((cp - 0x10000) & 0x3ff));
    return jinja_text_adds(j, esc);
}

static sac_status write_string(const struct writer *w, struct jinja_value s)
{
    static const char *const names[128] = {
        ['"'] = "\\\"", ['\\'] = "\\\\", ['\n'] = "\\n", ['\r'] = "\\r",
        ['\t'] = "\\t", ['\b'] = "\\b",  ['\f'] = "\\f"};
    struct jinja *j = w->j;
    TRY(jinja_step_bytes(j, s.n));
    TRY(jinja_text_adds(j, "\""));
    uint32_t from = 0, n;
    for (uint32_t at = 0; at < s.n; at += n) {
        uint32_t cp;
        n = jinja_text_decode(s.s + at, s.n - at, &cp);
        const bool ascii = cp < 0x80;
        if (ascii ? cp >= 0x20 && !names[cp] : !w->style->ascii) continue;
        TRY(jinja_text_add(j, s.s + from, at - from));
        TRY(ascii && names[cp] ? jinja_text_adds(j, names[cp]) : write_unicode(j, cp));
        from = at + n;
    }
    TRY(jinja_text_add(j, s.s + from, s.n - from));
    return jinja_text_adds(j, "\"");
}

static sac_status write_break(const struct writer *w)
{
    if (w->style->indent < 0) return SAC_OK;
    TRY(jinja_text_adds(w->j, "\n"));
    const int64_t n = w->level * w->style->indent;
    TRY(jinja_step_bytes(w->j, (size_t)n));
    for (int64_t i = 0; i < n; i++) TRY(jinja_text_adds(w->j, " "));
    return SAC_OK;
}

static sac_status write_value(struct writer *w, struct jinja_value v);

/* Writes what precedes an item: the separator and, with indentation, a line break. */
static sac_status write_before(const struct writer *w, bool first)
{
    const struct jinja_value sep = w->style->item_sep;
    if (!first) TRY(jinja_text_add(w->j, sep.s, sep.n));
    return write_break(w);
}

static sac_status write_list(struct writer *w, const struct jinja_list *list)
{
    if (list->n == 0) return jinja_text_adds(w->j, "[]");
    TRY(jinja_text_adds(w->j, "["));
    w->level++;
    for (uint32_t i = 0; i < list->n; i++) {
        TRY(write_before(w, i == 0));
        TRY(write_value(w, list->items[i]));
    }
    w->level--;
    TRY(write_break(w));
    return jinja_text_adds(w->j, "]");
}

static sac_status write_key(const struct writer *w, struct jinja_value key)
{
    char text[40] = "null";
    switch ((enum jinja_kind)key.kind) {
    case JINJA_STRING: return write_string(w, key);
    case JINJA_NONE: break;
    case JINJA_BOOL: return write_string(w, jinja_strz(key.b ? "true" : "false"));
    case JINJA_INT: snprintf(text, sizeof text, "%" PRId64, key.i); break;
    case JINJA_FLOAT: jinja_text_float(key.f, text); break;
    default: return jinja_fail(w->j, "a key of type %s in JSON", jinja_kind_name(key));
    }
    return write_string(w, jinja_strz(text));
}

/* The pairs in order of their keys, for sort_keys: insertion into an index. */
static sac_status sorted_pairs(struct jinja *j, const struct jinja_dict *d, uint32_t **out)
{
    uint32_t *order = jinja_alloc(j, d->n * sizeof *order);
    if (!order) return jinja_no_memory(j);
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = i;
        for (; at > 0; at--) {
            int sign;
            TRY(jinja_order(j, d->pairs[order[at - 1]].key, d->pairs[i].key, &sign));
            if (sign <= 0) break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    *out = order;
    return SAC_OK;
}

static sac_status write_dict(struct writer *w, const struct jinja_dict *d)
{
    if (d->n == 0) return jinja_text_adds(w->j, "{}");
    uint32_t *order = NULL;
    if (w->style->sort_keys) TRY(sorted_pairs(w->j, d, &order));
    TRY(jinja_text_adds(w->j, "{"));
    w->level++;
    for (uint32_t i = 0; i < d->n; i++) {
        const struct jinja_pair *p = &d->pairs[order ? order[i] : i];
        TRY(write_before(w, i == 0));
        TRY(write_key(w, p->key));
        TRY(jinja_text_add(w->j, w->style->key_sep.s, w->style->key_sep.n));
        TRY(write_value(w, p->value));
    }
    w->level--;
    TRY(write_break(w));
    return jinja_text_adds(w->j, "}");
}

static sac_status write_value(struct writer *w, struct jinja_value v)
{
    char text[40];
    TRY(jinja_step(w->j, 1));
    switch ((enum jinja_kind)v.kind) {
    case JINJA_NONE: return jinja_text_adds(w->j, "null");
    case JINJA_BOOL: return jinja_text_adds(w->j, v.b ? "true" : "false");
    case JINJA_INT: snprintf(text, sizeof text, "%" PRId64, v.i); break;
    case JINJA_FLOAT:
        if (isnan(v.f)) return jinja_text_adds(w->j, "NaN");
        if (isinf(v.f)) return jinja_text_adds(w->j, v.f > 0 ? "Infinity" : "-Infinity");
        jinja_text_float(v.f, text);
        break;
    case JINJA_STRING: return write_string(w, v);
    case JINJA_LIST:
    case JINJA_TUPLE: return write_list(w, v.list);
    case JINJA_DICT: return write_dict(w, v.dict);
    default: return jinja_fail(w->j, "a value of type %s has no JSON", jinja_kind_name(v));
    }
    return jinja_text_adds(w->j, text);
}

sac_status jinja_json_write(struct jinja *j, struct jinja_value v,
                            const struct jinja_json_style *style, struct jinja_value *out)
{
    struct writer w = {.j = j, .style = style};
    if (style->indent > INDENT_MAX) return jinja_fail(j, "tojson: an indent above %d", INDENT_MAX);
    const size_t begin = jinja_text_begin(j);
    TRY(write_value(&w, v));
    return jinja_text_end(j, begin, out);
}
