/* jinja_lex.c: template source to tokens, with jinja2's rules for white space.
 *
 * Text outside tags is one DATA token, already trimmed: `-` at a tag eats all space on its side;
 * trim_blocks eats one newline after a block or comment; lstrip_blocks eats the spaces between the
 * start of a line and a block or comment; `+` switches both off for its side. Newlines become \n
 * and one at the end of the source is dropped. Inside a tag, its end is not looked for while a
 * bracket is open, so `{{ {'a': {}} }}` is one tag. */
#include "model/jinja.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct lexer {
    struct jinja *j;
    const char *s; /* [n], newlines normalised */
    size_t n, at;
    uint32_t line;
    struct jinja_token *tok; /* [n_tok] */
    uint32_t n_tok, capacity;
    bool line_start;               /* the last tag ended with a newline */
    char open[TEMPLATE_DEPTH_MAX]; /* brackets that are open */
    uint32_t n_open;
};

static sac_status fail(const struct lexer *l, const char *problem)
{
    l->j->line = l->line;
    return jinja_fail(l->j, "%s", problem);
}

static sac_status push(struct lexer *l, enum jinja_token_type type, struct jinja_value value,
                       uint32_t op)
{
    if (l->n_tok == l->capacity) {
        const uint32_t want = l->capacity ? l->capacity * 2 : 64;
        struct jinja_token *tok = jinja_alloc(l->j, want * sizeof *tok);
        if (!tok) return jinja_no_memory(l->j);
        if (l->n_tok) memcpy(tok, l->tok, l->n_tok * sizeof *tok);
        l->tok = tok;
        l->capacity = want;
    }
    l->tok[l->n_tok++] = (struct jinja_token){type, l->line, op, value};
    return SAC_OK;
}

static bool looking_at(const struct lexer *l, size_t at, const char *text)
{
    const size_t n = strlen(text);
    return at <= l->n && n <= l->n - at && memcmp(l->s + at, text, n) == 0;
}

/* Moves to `at` and counts the lines in between. */
static void advance(struct lexer *l, size_t at)
{
    assert(at >= l->at && at <= l->n);
    for (; l->at < at; l->at++) l->line += l->s[l->at] == '\n';
    if (at > 0) l->line_start = l->s[at - 1] == '\n';
}

static size_t behind_space(const struct lexer *l, size_t at)
{
    size_t n;
    while (at < l->n && (n = jinja_text_space(l->s + at, l->n - at)) > 0) at += n;
    return at;
}

/* ---- Text between tags ---- */

static sac_status normalise(struct lexer *l, const char *source, size_t n)
{
    char *s = jinja_chars(l->j, n + 1);
    if (!s) return jinja_no_memory(l->j);
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        s[to++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (to > 0 && s[to - 1] == '\n') to--;
    l->s = s;
    l->n = to;
    return SAC_OK;
}

/* The next `{{`, `{%` or `{#`, or the end. */
static size_t find_tag(const struct lexer *l)
{
    for (size_t at = l->at; at + 1 < l->n; at++) {
        const char *brace = memchr(l->s + at, '{', l->n - 1 - at);
        if (!brace) break;
        at = (size_t)(brace - l->s);
        if (memchr("{%#", l->s[at + 1], 3)) return at;
    }
    return l->n;
}

/* Adds the text from here to the tag at `tag`, whose first byte after the opening is `sign`. */
static sac_status push_data(struct lexer *l, size_t tag, char sign, bool lstrip)
{
    const char *text = l->s + l->at;
    size_t n = tag - l->at, space;
    if (sign == '-') {
        while ((space = jinja_text_space_last(text, n)) > 0) n -= space;
    } else if (sign != '+' && lstrip) {
        size_t blank = n;
        while (blank > 0 && text[blank - 1] != '\n' &&
               (space = jinja_text_space_last(text, blank)) > 0)
            blank -= space;
        const bool starts_line = blank > 0 ? text[blank - 1] == '\n' : l->line_start;
        if (starts_line) n = blank;
    }
    return n ? push(l, JINJA_TOK_DATA, jinja_str(text, n), 0) : SAC_OK;
}

/* The position after a block or comment whose `%}` or `#}` is at `end`, trimmed as `sign` says. */
static size_t behind_block(const struct lexer *l, size_t end, char sign)
{
    if (sign == '-') return behind_space(l, end);
    return sign != '+' && looking_at(l, end, "\n") ? end + 1 : end;
}

static sac_status skip_comment(struct lexer *l, size_t from)
{
    const char *end = jinja_text_find(l->s + from, l->n - from, "#}", 2);
    if (!end) return fail(l, "a comment does not end");
    const size_t at = (size_t)(end - l->s);
    advance(l, behind_block(l, at + 2, at > from ? l->s[at - 1] : 0));
    return SAC_OK;
}

/* The end of `{% name %}` whose inside starts at `at`; 0 if it is another tag. */
static size_t match_word_tag(const struct lexer *l, size_t at, const char *name, char *out_sign)
{
    at = behind_space(l, at);
    if (!looking_at(l, at, name)) return 0;
    at = behind_space(l, at + strlen(name));
    *out_sign = 0;
    if (looking_at(l, at, "-%}") || looking_at(l, at, "+%}")) *out_sign = l->s[at++];
    return looking_at(l, at, "%}") ? at + 2 : 0;
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

/* Everything up to `{% endraw %}` is text. */
static sac_status lex_raw(struct lexer *l)
{
    for (size_t at = l->at; at + 1 < l->n; at++) {
        if (!looking_at(l, at, "{%")) continue;
        const char sign = sign_at(l, at + 2);
        char end_sign;
        const size_t end = match_word_tag(l, at + 2 + (sign != 0), "endraw", &end_sign);
        if (!end) continue;
        TRY(push_data(l, at, sign, true));
        advance(l, behind_block(l, end, end_sign));
        return SAC_OK;
    }
    return fail(l, "{% raw %} does not end");
}

/* ---- Inside tags ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (unsigned char)c >= 0x80;
}

/* Digits with single underscores between them, copied to `text` without these. */
static size_t copy_digits(const struct lexer *l, size_t at, char text[64], size_t *n)
{
    while (at < l->n && *n < 62) {
        if (is_digit(l->s[at]))
            text[(*n)++] = l->s[at++];
        else if (l->s[at] == '_' && at + 1 < l->n && is_digit(l->s[at + 1]))
            at++;
        else
            break;
    }
    return at;
}

static sac_status lex_number(struct lexer *l)
{
    char text[64];
    size_t n = 0, at = copy_digits(l, l->at, text, &n);
    bool whole = true;
    const bool after_dot =
        l->n_tok > 0 && l->tok[l->n_tok - 1].type == JINJA_TOK_OP && l->tok[l->n_tok - 1].op == '.';
    if (!after_dot && looking_at(l, at, ".") && at + 1 < l->n && is_digit(l->s[at + 1])) {
        whole = false;
        text[n++] = '.';
        at = copy_digits(l, at + 1, text, &n);
    }
    if (!after_dot && (looking_at(l, at, "e") || looking_at(l, at, "E"))) {
        const size_t digits = at + 1 + (sign_at(l, at + 1) != 0);
        if (digits < l->n && is_digit(l->s[digits]) && n < 50) {
            whole = false;
            text[n++] = 'e';
            if (digits > at + 1) text[n++] = l->s[at + 1];
            at = copy_digits(l, digits, text, &n);
        }
    }
    if (n >= 62) return fail(l, "a number of too many digits");
    text[n] = 0;
    errno = 0;
    const struct jinja_value v =
        whole ? jinja_int(strtoll(text, NULL, 10)) : jinja_float(strtod(text, NULL));
    if (whole && errno) return fail(l, "an integer beyond 64 bits");
    TRY(push(l, JINJA_TOK_CONST, v, 0));
    advance(l, at);
    return SAC_OK;
}

static int hex_value(char c)
{
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* `\x41`, `\u1234`, `\U00012345`: reads the digits after the letter at `at`. */
static sac_status unescape_hex(struct lexer *l, size_t *at, size_t n_digit)
{
    uint32_t cp = 0;
    for (size_t i = 1; i <= n_digit; i++) {
        const int d = *at + i < l->n ? hex_value(l->s[*at + i]) : -1;
        if (d < 0 || cp > 0x0fffffff) return fail(l, "a broken escape in a string");
        cp = cp << 4 | (uint32_t)d;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return fail(l, "an escape is no character");
    char utf8[4];
    *at += n_digit + 1;
    return jinja_text_add(l->j, utf8, jinja_text_encode(cp, utf8));
}

static sac_status unescape_octal(struct lexer *l, size_t *at)
{
    uint32_t cp = 0;
    for (int i = 0; i < 3 && *at < l->n && l->s[*at] >= '0' && l->s[*at] <= '7'; i++)
        cp = cp << 3 | (uint32_t)(l->s[(*at)++] - '0');
    char utf8[4];
    return jinja_text_add(l->j, utf8, jinja_text_encode(cp, utf8));
}

/* One escape; `*at` is after the backslash. An unknown escape keeps its backslash, as in Python. */
static sac_status unescape(struct lexer *l, size_t *at)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = l->s[*at];
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        (*at)++;
        return jinja_text_add(l->j, &to[simple - from], 1);
    }
    if (c == 'x') return unescape_hex(l, at, 2);
    if (c == 'u') return unescape_hex(l, at, 4);
    if (c == 'U') return unescape_hex(l, at, 8);
    if (c >= '0' && c <= '7') return unescape_octal(l, at);
    (*at)++;
    if (c == '\n') return SAC_OK; /* a joined line */
    return jinja_text_add(l->j, l->s + *at - 2, 2);
}

static sac_status lex_string(struct lexer *l)
{
    const char quote = l->s[l->at];
    const size_t begin = jinja_text_begin(l->j), first = l->at + 1;
    size_t at = first, from = first;
    bool plain = true;
    for (; at < l->n && l->s[at] != quote;) {
        if (l->s[at] != '\\') {
            at++;
            continue;
        }
        plain = false;
        TRY(jinja_text_add(l->j, l->s + from, at - from));
        if (++at == l->n) break;
        TRY(unescape(l, &at));
        from = at;
    }
    if (at >= l->n) return fail(l, "a string does not end");
    struct jinja_value v = jinja_str(l->s + first, at - first);
    if (!plain) {
        TRY(jinja_text_add(l->j, l->s + from, at - from));
        TRY(jinja_text_end(l->j, begin, &v));
    }
    TRY(push(l, JINJA_TOK_CONST, v, 0));
    advance(l, at + 1);
    return SAC_OK;
}

static sac_status track_bracket(struct lexer *l, char c)
{
    const char *const opening = "([{", *const closing = ")]}";
    const char *hit = strchr(opening, c);
    if (hit) {
        if (l->n_open == TEMPLATE_DEPTH_MAX) return fail(l, "brackets nest too deep");
        l->open[l->n_open++] = closing[hit - opening];
    } else if (strchr(closing, c)) {
        if (l->n_open == 0 || l->open[l->n_open - 1] != c)
            return fail(l, "a bracket has no partner");
        l->n_open--;
    }
    return SAC_OK;
}

static sac_status lex_operator(struct lexer *l)
{
    static const char *const doubles[] = {"**", "//", "==", "!=", "<=", ">="};
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        if (!looking_at(l, l->at, doubles[i])) continue;
        TRY(push(l, JINJA_TOK_OP, jinja_none(), JINJA_OP2(doubles[i][0], doubles[i][1])));
        advance(l, l->at + 2);
        return SAC_OK;
    }
    const char c = l->s[l->at];
    if (!c || !strchr("+-*/%~=<>()[]{}.,:|;", c)) return fail(l, "a character that has no meaning");
    TRY(track_bracket(l, c));
    TRY(push(l, JINJA_TOK_OP, jinja_none(), (uint32_t)c));
    advance(l, l->at + 1);
    return SAC_OK;
}

static sac_status lex_name(struct lexer *l)
{
    size_t at = l->at;
    while (at < l->n && is_name(l->s[at])) at++;
    TRY(push(l, JINJA_TOK_NAME, jinja_str(l->s + l->at, at - l->at), 0));
    advance(l, at);
    return SAC_OK;
}

/* The position after the tag's end if it ends here; otherwise 0. */
static size_t match_end(const struct lexer *l, bool block)
{
    const char sign = sign_at(l, l->at);
    if (l->n_open) return 0;
    if (!block) {
        if (looking_at(l, l->at, "-}}")) return behind_space(l, l->at + 3);
        return looking_at(l, l->at, "}}") ? l->at + 2 : 0;
    }
    const size_t end = l->at + (sign != 0);
    return looking_at(l, end, "%}") ? behind_block(l, end + 2, sign) : 0;
}

static sac_status lex_inside(struct lexer *l, bool block)
{
    const uint32_t first = l->line;
    TRY(push(l, block ? JINJA_TOK_BLOCK_BEGIN : JINJA_TOK_VAR_BEGIN, jinja_none(), 0));
    for (;;) {
        advance(l, behind_space(l, l->at));
        const size_t end = match_end(l, block);
        if (end) {
            TRY(push(l, block ? JINJA_TOK_BLOCK_END : JINJA_TOK_VAR_END, jinja_none(), 0));
            advance(l, end);
            return SAC_OK;
        }
        if (l->at >= l->n) {
            l->line = first;
            return fail(l, "a tag does not end");
        }
        const char c = l->s[l->at];
        if (is_digit(c))
            TRY(lex_number(l));
        else if (is_name(c))
            TRY(lex_name(l));
        else if (c == '"' || c == '\'')
            TRY(lex_string(l));
        else
            TRY(lex_operator(l));
    }
}

static sac_status lex_tag(struct lexer *l, size_t tag)
{
    const char kind = l->s[tag + 1], sign = sign_at(l, tag + 2);
    const size_t inside = tag + 2 + (sign != 0);
    TRY(push_data(l, tag, sign, kind != '{'));
    advance(l, tag);
    if (kind == '#') return skip_comment(l, inside);
    char end_sign;
    const size_t raw = kind == '%' ? match_word_tag(l, inside, "raw", &end_sign) : 0;
    if (raw) {
        advance(l, end_sign == '-' ? behind_space(l, raw) : raw);
        return lex_raw(l);
    }
    advance(l, inside);
    return lex_inside(l, kind == '%');
}

sac_status jinja_lex(struct jinja *j, const char *source, size_t n, struct jinja_token **out_tok)
{
    struct lexer l = {.j = j, .line = 1, .line_start = true};
    TRY(normalise(&l, source, n));
    while (l.at < l.n) {
        const size_t tag = find_tag(&l);
        if (tag < l.n) {
            TRY(lex_tag(&l, tag));
        } else {
            TRY(push(&l, JINJA_TOK_DATA, jinja_str(l.s + l.at, l.n - l.at), 0));
            advance(&l, l.n);
        }
    }
    TRY(push(&l, JINJA_TOK_END, jinja_none(), 0));
    *out_tok = l.tok;
    return SAC_OK;
}
