/* schema_pattern.c: see the header. A pattern is searched for, so where it is not anchored any
 * characters may surround it. Characters that a JSON string spells with a backslash are spelled
 * that way. \D \W \S mean printable ASCII only, because regular expression engines disagree about
 * the rest. */
#include "grammar/schema_pattern.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GROUPS_MAX 16u /* nesting of groups */

struct reader {
    struct schema_writer *w;
    const char *s; /* unread part */
    unsigned depth;
};

typedef struct schema_pattern_length length_t;

static sac_status refuse(const struct reader *r, const char *what)
{
    return schema_writer_refuse(r->w, SAC_ERR_UNSUPPORTED, "'pattern': %s, before '%.32s'", what,
                                r->s);
}

/* ---- Characters in JSON strings ---- */

static const char *escape_of(uint32_t cp)
{
    switch (cp) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return NULL;
    }
}

static void write_char(struct strbuf *out, uint32_t cp)
{
    char bytes[8];
    const char *const escape = escape_of(cp);
    size_t n;
    if (escape)
        n = (size_t)snprintf(bytes, sizeof bytes, "%s", escape);
    else if (cp < 0x20)
        n = (size_t)snprintf(bytes, sizeof bytes, "\\u%04x", cp);
    else
        n = charset_put(bytes, cp);
    schema_writer_literal(out, bytes, n);
}

/* Writes one character of a normalised set; sets `*out_any` if the set is not empty. */
static void write_set(struct strbuf *out, const struct charset *set, bool *out_any)
{
    struct charset plain = {0}, keep = {0};
    *out_any = false;
    charset_add_all(&plain, set);
    charset_add(&keep, 0x20, '"' - 1);
    charset_add(&keep, '"' + 1, '\\' - 1);
    charset_add(&keep, '\\' + 1, CHARSET_LAST);
    charset_intersect(&plain, &keep);
    strbuf_adds(out, "(");
    if (plain.n > 0) {
        schema_writer_class(out, &plain);
        *out_any = true;
    }
    for (uint32_t cp = 0; cp <= '\\'; cp++) {
        if ((cp >= 0x20 && !escape_of(cp)) || !charset_has(set, cp)) continue;
        if (*out_any) strbuf_adds(out, "| ");
        write_char(out, cp);
        *out_any = true;
    }
    strbuf_adds(out, ") ");
    out->failed |= plain.failed || keep.failed;
    charset_deinit(&plain);
    charset_deinit(&keep);
}

/* ---- Sets ---- */

static void add_kind(struct charset *set, char kind)
{
    struct charset own = {0}, ascii = {0};
    if (kind == 'd' || kind == 'D' || kind == 'w' || kind == 'W') charset_add(&own, '0', '9');
    if (kind == 'w' || kind == 'W') {
        charset_add(&own, 'A', 'Z');
        charset_add(&own, 'a', 'z');
        charset_add(&own, '_', '_');
    }
    if (kind == 's' || kind == 'S') {
        charset_add(&own, '\t', '\r');
        charset_add(&own, ' ', ' ');
    }
    charset_normalise(&own);
    if (kind == 'D' || kind == 'W' || kind == 'S') {
        charset_invert(&own);
        charset_add(&ascii, 0x20, 0x7e);
        charset_intersect(&own, &ascii);
    }
    charset_add_all(set, &own);
    charset_deinit(&own);
    charset_deinit(&ascii);
}

static sac_status read_hex(struct reader *r, unsigned n_digit, uint32_t *out_cp)
{
    uint32_t cp = 0;
    for (unsigned i = 0; i < n_digit; i++, r->s++) {
        const char c = *r->s;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return refuse(r, "an escape that is not complete");
        cp = cp << 4 | (uint32_t)digit;
    }
    if (cp >= 0xd800 && cp <= 0xdfff) return refuse(r, "half of a surrogate pair");
    *out_cp = cp;
    return SAC_OK;
}

/* An escape after its backslash. A character class goes to `kinds`, with `*out_cp` CHARSET_LAST +
 * 1. */
static sac_status read_escape(struct reader *r, struct charset *kinds, bool in_class,
                              uint32_t *out_cp)
{
    const char c = *r->s;
    if (c == '\0') return refuse(r, "a backslash at the end");
    r->s++;
    *out_cp = CHARSET_LAST + 1;
    if (strchr("dDwWsS", c)) {
        add_kind(kinds, c);
        return SAC_OK;
    }
    switch (c) {
    case 'n': *out_cp = '\n'; return SAC_OK;
    case 'r': *out_cp = '\r'; return SAC_OK;
    case 't': *out_cp = '\t'; return SAC_OK;
    case 'f': *out_cp = '\f'; return SAC_OK;
    case 'v': *out_cp = '\v'; return SAC_OK;
    case 'x': return read_hex(r, 2, out_cp);
    case 'u': return read_hex(r, 4, out_cp);
    default: break;
    }
    if (c == 'b' && in_class) {
        *out_cp = '\b';
        return SAC_OK;
    }
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter || (c >= '0' && c <= '9') || (uint8_t)c >= 0x80)
        return refuse(r, "an escape that is not supported (word boundaries, references back, "
                         "properties of characters)");
    *out_cp = (uint8_t)c;
    return SAC_OK;
}

static sac_status read_plain(struct reader *r, uint32_t *out_cp)
{
    const size_t n = charset_get(r->s, strlen(r->s), out_cp);
    if (n == 0) return refuse(r, "the end is missing");
    r->s += n;
    return SAC_OK;
}

static sac_status read_class_char(struct reader *r, struct charset *set, uint32_t *out_cp)
{
    if (*r->s != '\\') return read_plain(r, out_cp);
    r->s++;
    return read_escape(r, set, true, out_cp);
}

/* A class after its '['. */
static sac_status read_class(struct reader *r, struct charset *set)
{
    const bool inverted = *r->s == '^';
    if (inverted) r->s++;
    while (*r->s != ']') {
        uint32_t lo, hi;
        TRY(read_class_char(r, set, &lo));
        if (lo > CHARSET_LAST) continue;
        hi = lo;
        if (r->s[0] == '-' && r->s[1] != ']' && r->s[1] != '\0') {
            r->s++;
            TRY(read_class_char(r, set, &hi));
            if (hi > CHARSET_LAST || hi < lo) return refuse(r, "a range that is none");
        }
        charset_add(set, lo, hi);
    }
    r->s++;
    charset_normalise(set);
    if (inverted) charset_invert(set);
    return SAC_OK;
}

/* ---- Atoms ---- */

static sac_status write_alternatives(struct reader *r, struct strbuf *out, length_t *length);

static sac_status write_group(struct reader *r, struct strbuf *out, length_t *length)
{
    if (strncmp(r->s, "?:", 2) == 0)
        r->s += 2;
    else if (*r->s == '?')
        return refuse(r, "a group that looks around, or has a name or flags");
    if (r->depth == GROUPS_MAX) return refuse(r, "too many groups within each other");
    r->depth++;
    strbuf_adds(out, "(");
    TRY(write_alternatives(r, out, length));
    strbuf_adds(out, ") ");
    r->depth--;
    if (*r->s != ')') return refuse(r, "a group without its end");
    r->s++;
    return SAC_OK;
}

static sac_status write_class(struct reader *r, struct strbuf *out, char c)
{
    struct charset set = {0};
    uint32_t cp = CHARSET_LAST + 1;
    sac_status status = SAC_OK;
    bool any = true;
    if (c == '[') {
        status = read_class(r, &set);
    } else if (c == '\\') {
        status = read_escape(r, &set, false, &cp);
        charset_normalise(&set);
    } else { /* '.' */
        charset_add(&set, '\n', '\n');
        charset_add(&set, '\r', '\r');
        charset_add(&set, 0x2028, 0x2029);
        charset_normalise(&set);
        charset_invert(&set);
    }
    if (status == SAC_OK && cp <= CHARSET_LAST)
        write_char(out, cp);
    else if (status == SAC_OK)
        write_set(out, &set, &any);
    out->failed |= set.failed;
    charset_deinit(&set);
    if (status == SAC_OK && !any && !out->failed)
        return refuse(r, "a class that no character is in");
    return status;
}

static sac_status write_atom(struct reader *r, struct strbuf *out, length_t *length)
{
    const char c = *r->s;
    uint32_t cp;
    *length = (length_t){1, 1};
    if (strchr("^$", c)) return refuse(r, "an anchor that is not at an end of the pattern");
    if (strchr("*+?{", c)) return refuse(r, "a repetition of nothing");
    if (strchr("([\\.", c)) r->s++;
    if (c == '(') return write_group(r, out, length);
    if (c == '[' || c == '\\' || c == '.') return write_class(r, out, c);
    TRY(read_plain(r, &cp));
    write_char(out, cp);
    return SAC_OK;
}

static bool read_number(struct reader *r, double *out)
{
    const char *const begin = r->s;
    *out = 0;
    for (; *r->s >= '0' && *r->s <= '9' && *out <= SCHEMA_WRITER_REPEAT; r->s++)
        *out = *out * 10 + (*r->s - '0');
    return r->s > begin;
}

/* {m}, {m,} or {m,n} after the '{'. */
static sac_status read_counts(struct reader *r, double *min, double *max)
{
    if (!read_number(r, min)) return refuse(r, "a repetition without a number");
    *max = *min;
    if (*r->s == ',') {
        r->s++;
        if (!read_number(r, max)) *max = SCHEMA_WRITER_UNBOUNDED;
    }
    if (*r->s != '}') return refuse(r, "a repetition without its end");
    r->s++;
    if (*min > SCHEMA_WRITER_REPEAT || *max > SCHEMA_WRITER_REPEAT)
        return refuse(r, "a repetition of more than 65536");
    if (*max != SCHEMA_WRITER_UNBOUNDED && *max < *min)
        return refuse(r, "a repetition that ends before it begins");
    return SAC_OK;
}

static double times(double a, double b)
{
    return a == 0 || b == 0 ? 0 : a * b;
}

static sac_status write_repeated(struct reader *r, struct strbuf *out, length_t *length)
{
    double min = 0, max = SCHEMA_WRITER_UNBOUNDED;
    strbuf_adds(out, "(");
    TRY(write_atom(r, out, length));
    strbuf_adds(out, ")");
    const char c = *r->s;
    if (c == '\0' || !strchr("*+?{", c)) {
        strbuf_adds(out, " ");
        return SAC_OK;
    }
    r->s++;
    if (c == '+') min = 1;
    if (c == '?') max = 1;
    if (c == '{') TRY(read_counts(r, &min, &max));
    schema_writer_repeat(out, min, max);
    length->min = times(length->min, min);
    length->max = times(length->max, max == SCHEMA_WRITER_UNBOUNDED ? INFINITY : max);
    if (*r->s == '?') r->s++; /* laziness does not change which texts match */
    if (*r->s && strchr("*+{", *r->s)) return refuse(r, "a repetition of a repetition");
    return SAC_OK;
}

/* ---- Alternatives ---- */

static void write_around(struct reader *r, struct strbuf *out, length_t *length)
{
    schema_writer_shared(r->w, out, SCHEMA_CHAR);
    strbuf_adds(out, "* ");
    length->max = INFINITY;
}

static sac_status write_sequence(struct reader *r, struct strbuf *out, length_t *length)
{
    const bool outer = r->depth == 0;
    bool ended = false;
    *length = (length_t){0, 0};
    strbuf_adds(out, "\"\" ");
    if (outer && *r->s == '^')
        r->s++;
    else if (outer)
        write_around(r, out, length);
    while (*r->s && *r->s != '|' && *r->s != ')') {
        length_t one;
        if (outer && *r->s == '$' && (r->s[1] == '\0' || r->s[1] == '|')) {
            r->s++;
            ended = true;
            break;
        }
        TRY(write_repeated(r, out, &one));
        length->min += one.min;
        length->max += one.max;
    }
    if (outer && !ended) write_around(r, out, length);
    return SAC_OK;
}

static sac_status write_alternatives(struct reader *r, struct strbuf *out, length_t *length)
{
    *length = (length_t){INFINITY, 0};
    for (;;) {
        length_t one;
        TRY(write_sequence(r, out, &one));
        length->min = fmin(length->min, one.min);
        length->max = fmax(length->max, one.max);
        if (*r->s != '|') return SAC_OK;
        r->s++;
        strbuf_adds(out, "| ");
    }
}

sac_status schema_pattern_write(struct schema_writer *w, const char *pattern, struct strbuf *body,
                                struct schema_pattern_length *out_length)
{
    struct reader r = {.w = w, .s = pattern};
    strbuf_adds(body, "(");
    TRY(write_alternatives(&r, body, out_length));
    strbuf_adds(body, ") ");
    if (*r.s) return refuse(&r, "a ')' too many");
    return SAC_OK;
}
