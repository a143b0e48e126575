/* gbnf.c: see the header. One pass: code is emitted while the text is read.
 *
 * Every alternative and every element begins with a jump to the next instruction, a placeholder
 * that becomes a split when a `|` or a repetition follows it. The operand of {m,n} becomes a rule
 * without a name that is called as often as needed, so that the sizes of nested repetitions add up
 * and do not multiply. Recursion in C follows parentheses only, GBNF_DEPTH_MAX deep. */
#include "grammar/gbnf.h"

#include "base/mem.h"
#include "base/strbuf.h"

#include <assert.h>
#include <string.h>

#define UNBOUNDED  UINT32_MAX
#define NAME_SHOWN 64 /* maximum bytes of a name in a message */

const struct gbnf_limits gbnf_limits_given = {
    .text_bytes = 64u << 10, .n_rule = 4096, .repeat = 4096};
const struct gbnf_limits gbnf_limits_made = {
    .text_bytes = 4u << 20, .n_rule = 32768, .repeat = 65536};

struct parser {
    const char *text;
    size_t n, at;
    const struct gbnf_limits *limits;
    struct program *p;
    uint32_t *table; /* owned, [table_n]: hash table of rules by name */
    size_t table_n;  /* a power of two */
    uint32_t n_named;
    uint32_t depth;
    sac_error *err;
};

/* ---- Messages ---- */

static void place_of(const struct parser *s, size_t at, size_t *line, size_t *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < at && i < s->n; i++) {
        if (s->text[i] == '\n') {
            ++*line;
            *column = 1;
        } else if (((uint8_t)s->text[i] & 0xc0u) != 0x80u) {
            ++*column;
        }
    }
}

#define fail_at(s, where, code, ...)                                                               \
    __extension__({                                                                                \
        size_t fail_line_, fail_column_;                                                           \
        place_of((s), (where), &fail_line_, &fail_column_);                                        \
        (void)error_set((s)->err, (code), __VA_ARGS__);                                            \
        error_prefix((s)->err, (code), "grammar, line %zu, column %zu", fail_line_, fail_column_); \
    })

/* ---- Characters ---- */

static bool at_end(const struct parser *s)
{
    return s->at == s->n;
}

static char peek(const struct parser *s)
{
    return at_end(s) ? '\0' : s->text[s->at];
}

static bool take(struct parser *s, char c)
{
    if (at_end(s) || s->text[s->at] != c) return false;
    s->at++;
    return true;
}

/* Skips blanks and comments, and with `lines` also newlines. */
static void skip_space(struct parser *s, bool lines)
{
    while (!at_end(s)) {
        const char c = peek(s);
        if (c == '#')
            while (!at_end(s) && peek(s) != '\n' && peek(s) != '\r') s->at++;
        else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
            s->at++;
        else
            return;
    }
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name_bytes(const struct parser *s)
{
    size_t n = 0;
    while (s->at + n < s->n && is_name_char(s->text[s->at + n])) n++;
    return n;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The digits of an escape; the backslash and the letter have been read. */
static sac_status read_hex(struct parser *s, size_t n_digit, uint32_t *out_cp)
{
    const size_t begin = s->at - 2;
    uint32_t cp = 0;
    for (size_t i = 0; i < n_digit; i++, s->at++) {
        const int digit = at_end(s) ? -1 : hex_value(peek(s));
        if (digit < 0)
            return fail_at(s, begin, SAC_ERR_FORMAT, "an escape wants %zu hexadecimal digits",
                           n_digit);
        cp = cp << 4 | (uint32_t)digit;
    }
    if (cp > CHARSET_LAST || (cp >= 0xd800 && cp <= 0xdfff))
        return fail_at(s, begin, SAC_ERR_FORMAT, "U+%X is not a character", cp);
    *out_cp = cp;
    return SAC_OK;
}

/* A character of a literal or class, with escapes decoded. */
static sac_status read_char(struct parser *s, uint32_t *out_cp)
{
    if (!take(s, '\\')) {
        const size_t n = charset_get(s->text + s->at, s->n - s->at, out_cp);
        assert(n > 0); /* the grammar is valid UTF-8 */
        s->at += n;
        return SAC_OK;
    }
    const size_t begin = s->at - 1;
    const char c = peek(s);
    if (!at_end(s)) s->at++;
    switch (c) {
    case 'x': return read_hex(s, 2, out_cp);
    case 'u': return read_hex(s, 4, out_cp);
    case 'U': return read_hex(s, 8, out_cp);
    case 'n': *out_cp = '\n'; return SAC_OK;
    case 'r': *out_cp = '\r'; return SAC_OK;
    case 't': *out_cp = '\t'; return SAC_OK;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^': *out_cp = (uint32_t)c; return SAC_OK;
    default: break;
    }
    return fail_at(s, begin, SAC_ERR_FORMAT,
                   "unknown escape; there are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH "
                   "\\UHHHHHHHH");
}

/* ---- Rules by name ---- */

static size_t hash_name(const char *name, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)name[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

/* Finds the rule, or creates it when it is first mentioned. */
static sac_status rule_of(struct parser *s, size_t n, uint32_t *out_rule)
{
    const char *const name = s->text + s->at;
    size_t i = hash_name(name, n) & (s->table_n - 1);
    for (; s->table[i] != PROGRAM_NONE; i = (i + 1) & (s->table_n - 1)) {
        const char *const held = s->p->rule[s->table[i]].name;
        if (strncmp(held, name, n) != 0 || held[n] != '\0') continue;
        *out_rule = s->table[i];
        return SAC_OK;
    }
    if (s->n_named++ == s->limits->n_rule)
        return fail_at(s, s->at, SAC_ERR_CONTEXT, "more than %u rules", s->limits->n_rule);
    const uint32_t rule = program_add_rule(s->p, name, n);
    if (s->p->failed || s->p->full) return program_finish(s->p, s->err);
    s->p->rule[rule].where = s->at;
    s->table[i] = *out_rule = rule;
    return SAC_OK;
}

/* ---- Elements ---- */

static uint32_t emit_slot(struct program *p)
{
    return program_emit(p, PROGRAM_JUMP, p->n_code + 1, 0);
}

static void set_code(struct program *p, uint32_t pc, enum program_op op, uint32_t a, uint32_t b)
{
    if (p->failed || p->full) return;
    p->code[pc] = (struct program_code){op, a, b};
}

static sac_status parse_literal(struct parser *s)
{
    const size_t begin = s->at++;
    while (!take(s, '"')) {
        uint32_t cp;
        char bytes[CHARSET_UTF8_MAX];
        if (at_end(s)) return fail_at(s, begin, SAC_ERR_FORMAT, "a literal without its end");
        TRY(read_char(s, &cp));
        program_emit_bytes(s->p, bytes, charset_put(bytes, cp));
    }
    return SAC_OK;
}

static sac_status read_class(struct parser *s, struct charset *set)
{
    const size_t begin = s->at++;
    const bool inverted = take(s, '^');
    while (!take(s, ']')) {
        uint32_t lo, hi;
        const size_t where = s->at;
        if (at_end(s)) return fail_at(s, begin, SAC_ERR_FORMAT, "a class without its ']'");
        TRY(read_char(s, &lo));
        hi = lo;
        if (s->at + 1 < s->n && peek(s) == '-' && s->text[s->at + 1] != ']') {
            s->at++;
            TRY(read_char(s, &hi));
        }
        if (hi < lo) return fail_at(s, where, SAC_ERR_FORMAT, "a range that ends before it begins");
        charset_add(set, lo, hi);
    }
    charset_normalise(set);
    if (inverted) charset_invert(set);
    if (set->n == 0 && !set->failed)
        return fail_at(s, begin, SAC_ERR_FORMAT, "a class that no character is in");
    return SAC_OK;
}

static sac_status parse_class(struct parser *s)
{
    struct charset set = {0};
    const sac_status status = read_class(s, &set);
    if (status == SAC_OK) program_emit_set(s->p, &set);
    charset_deinit(&set);
    return status;
}

static void emit_any(struct parser *s)
{
    struct charset set = {0};
    charset_add(&set, 0, CHARSET_LAST);
    charset_normalise(&set);
    program_emit_set(s->p, &set);
    charset_deinit(&set);
    s->at++;
}

/* Bytes up to the '>' that ends <name>, or the '>>' that ends <<name>>; 0: missing. */
static size_t control_bytes(const char *text, size_t n, bool bare)
{
    for (size_t i = 1; i < n && text[i] != '\n'; i++) {
        if (text[i] != '>') continue;
        if (!bare) return i + 1;
        const bool last = i + 1 == n || text[i + 1] != '>';
        if (last && i > 2 && text[i - 1] == '>') return i + 1;
    }
    return 0;
}

/* <name> is the control token with this name including the brackets; <<name>> the one named by the
 * text inside. */
static sac_status parse_control(struct parser *s)
{
    const char *name = s->text + s->at;
    const char mark = (char)PROGRAM_MARK;
    const bool bare = s->n - s->at > 1 && name[1] == '<';
    size_t n = control_bytes(name, s->n - s->at, bare);
    if (n == 0) return fail_at(s, s->at, SAC_ERR_FORMAT, "a control token without its '>'");
    if (!bare && name[1] == '[')
        return fail_at(s, s->at, SAC_ERR_UNSUPPORTED,
                       "tokens by number are not supported; control tokens go by name, <|end|>");
    s->at += n;
    if (bare) {
        name += 2;
        n -= 4;
    }
    program_add_control(s->p, name, n);
    program_emit_bytes(s->p, &mark, 1);
    program_emit_bytes(s->p, name, n);
    program_emit_bytes(s->p, &mark, 1);
    return SAC_OK;
}

static sac_status parse_alternatives(struct parser *s);

static sac_status parse_group(struct parser *s)
{
    const size_t begin = s->at++;
    if (s->depth == GBNF_DEPTH_MAX)
        return fail_at(s, begin, SAC_ERR_CONTEXT, "parentheses more than %u deep", GBNF_DEPTH_MAX);
    s->depth++;
    skip_space(s, true);
    TRY(parse_alternatives(s));
    s->depth--;
    if (!take(s, ')')) return fail_at(s, begin, SAC_ERR_FORMAT, "a group without its ')'");
    return SAC_OK;
}

/* ---- Repetition ---- */

static sac_status read_count(struct parser *s, uint32_t *out)
{
    const size_t begin = s->at;
    uint32_t n = 0;
    while (peek(s) >= '0' && peek(s) <= '9') {
        n = n * 10 + (uint32_t)(peek(s) - '0');
        s->at++;
        if (n > s->limits->repeat)
            return fail_at(s, begin, SAC_ERR_CONTEXT, "a repetition of more than %u",
                           s->limits->repeat);
    }
    if (s->at == begin) return fail_at(s, begin, SAC_ERR_FORMAT, "a number is missing");
    *out = n;
    return SAC_OK;
}

static sac_status read_counts(struct parser *s, uint32_t *out_min, uint32_t *out_max)
{
    const size_t begin = s->at - 1;
    skip_space(s, s->depth > 0);
    TRY(read_count(s, out_min));
    *out_max = *out_min;
    skip_space(s, s->depth > 0);
    if (take(s, ',')) {
        skip_space(s, s->depth > 0);
        *out_max = UNBOUNDED;
        if (peek(s) != '}') TRY(read_count(s, out_max));
        skip_space(s, s->depth > 0);
    }
    if (!take(s, '}')) return fail_at(s, begin, SAC_ERR_FORMAT, "a repetition without its '}'");
    if (*out_max < *out_min)
        return fail_at(s, begin, SAC_ERR_FORMAT, "{%u,%u}: the most is less than the least",
                       *out_min, *out_max);
    return SAC_OK;
}

/* Moves the element from `slot` on into a rule that is called min to max times. */
static void emit_repeated(struct parser *s, uint32_t slot, uint32_t min, uint32_t max)
{
    struct program *const p = s->p;
    program_emit(p, PROGRAM_RETURN, 0, 0);
    const uint32_t rule = program_add_rule(p, NULL, 0);
    if (p->failed || p->full) return;
    p->rule[rule].entry = slot + 1;
    p->rule[rule].where = s->at;
    set_code(p, slot, PROGRAM_JUMP, p->n_code, 0);
    for (uint32_t i = 0; i < min && !p->full; i++)
        program_emit(p, PROGRAM_CALL, rule, p->n_code + 1);
    if (max == UNBOUNDED) {
        const uint32_t loop = program_emit(p, PROGRAM_SPLIT, p->n_code + 1, p->n_code + 2);
        program_emit(p, PROGRAM_CALL, rule, loop);
        return;
    }
    const uint32_t first = p->n_code, end = first + 2 * (max - min);
    for (uint32_t i = min; i < max && !p->full; i++) {
        program_emit(p, PROGRAM_SPLIT, p->n_code + 1, end);
        program_emit(p, PROGRAM_CALL, rule, p->n_code + 1);
    }
}

static sac_status parse_repetition(struct parser *s, uint32_t slot)
{
    struct program *const p = s->p;
    uint32_t min = 0, max = UNBOUNDED;
    skip_space(s, s->depth > 0);
    const char c = peek(s);
    if (at_end(s) || !strchr("?*+{", c)) return SAC_OK;
    s->at++;
    if (c == '?') max = 1;
    if (c == '+') min = 1;
    if (c == '{') TRY(read_counts(s, &min, &max));
    if (min == 0 && max == 1) {
        set_code(p, slot, PROGRAM_SPLIT, slot + 1, p->n_code);
    } else if (min == 0 && max == UNBOUNDED) {
        program_emit(p, PROGRAM_JUMP, slot, 0);
        set_code(p, slot, PROGRAM_SPLIT, slot + 1, p->n_code);
    } else if (min == 1 && max == UNBOUNDED) {
        program_emit(p, PROGRAM_SPLIT, slot + 1, p->n_code + 1);
    } else {
        emit_repeated(s, slot, min, max);
    }
    skip_space(s, s->depth > 0);
    if (!at_end(s) && strchr("?*+{", peek(s)))
        return fail_at(s, s->at, SAC_ERR_FORMAT,
                       "a repetition of a repetition wants parentheses between them");
    return SAC_OK;
}

/* ---- Sequences, alternatives, rules ---- */

static sac_status parse_element(struct parser *s)
{
    const uint32_t slot = emit_slot(s->p);
    const char c = peek(s);
    if (c == '"') {
        TRY(parse_literal(s));
    } else if (c == '[') {
        TRY(parse_class(s));
    } else if (c == '(') {
        TRY(parse_group(s));
    } else if (c == '<') {
        TRY(parse_control(s));
    } else if (c == '.') {
        emit_any(s);
    } else if (is_name_char(c)) {
        uint32_t rule;
        const size_t n = name_bytes(s);
        TRY(rule_of(s, n, &rule));
        program_emit(s->p, PROGRAM_CALL, rule, s->p->n_code + 1);
        s->at += n;
    } else {
        return fail_at(s, s->at, SAC_ERR_FORMAT,
                       "expected a literal, a class, a group, '.' or the name of a rule");
    }
    return parse_repetition(s, slot);
}

static bool ends_sequence(const struct parser *s)
{
    const char c = peek(s);
    return at_end(s) || c == '|' || (c == ')' && s->depth > 0) || c == '\n' || c == '\r';
}

static sac_status parse_alternatives(struct parser *s)
{
    struct program *const p = s->p;
    uint32_t ends = PROGRAM_NONE; /* jumps to the end, linked through their targets */
    for (;;) {
        const uint32_t slot = emit_slot(p);
        while (!ends_sequence(s)) {
            TRY(parse_element(s));
            if (p->failed || p->full) return program_finish(p, s->err);
        }
        if (!take(s, '|')) break;
        ends = program_emit(p, PROGRAM_JUMP, ends, 0);
        set_code(p, slot, PROGRAM_SPLIT, slot + 1, p->n_code);
        skip_space(s, true);
    }
    while (ends != PROGRAM_NONE && !p->failed && !p->full) {
        const uint32_t next = p->code[ends].a;
        p->code[ends].a = p->n_code;
        ends = next;
    }
    return SAC_OK;
}

static sac_status parse_rule(struct parser *s)
{
    uint32_t rule;
    const size_t begin = s->at, n = name_bytes(s);
    if (n == 0) return fail_at(s, begin, SAC_ERR_FORMAT, "expected the name of a rule");
    TRY(rule_of(s, n, &rule));
    if (s->p->rule[rule].entry != PROGRAM_NONE)
        return fail_at(s, begin, SAC_ERR_FORMAT, "rule '%.*s' is defined twice",
                       n < NAME_SHOWN ? (int)n : NAME_SHOWN, s->text + begin);
    s->at += n;
    skip_space(s, false);
    if (s->n - s->at < 3 || memcmp(s->text + s->at, "::=", 3) != 0)
        return fail_at(s, s->at, SAC_ERR_FORMAT, "expected '::=' behind the name of a rule");
    s->at += 3;
    skip_space(s, true);
    s->p->rule[rule].entry = s->p->n_code;
    TRY(parse_alternatives(s));
    program_emit(s->p, PROGRAM_RETURN, 0, 0);
    assert(s->depth == 0);
    return SAC_OK;
}

static sac_status parse_text(struct parser *s)
{
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        const size_t n = charset_get(s->text + i, s->n - i, &cp);
        if (n == 0) return fail_at(s, i, SAC_ERR_FORMAT, "the text is not valid UTF-8");
        i += n;
    }
    for (skip_space(s, true); !at_end(s); skip_space(s, true)) TRY(parse_rule(s));
    if (s->p->failed || s->p->full) return program_finish(s->p, s->err);
    for (uint32_t r = 0; r < s->p->n_rule; r++) {
        const struct program_rule *const rule = &s->p->rule[r];
        if (rule->entry == PROGRAM_NONE)
            return fail_at(s, rule->where, SAC_ERR_NOT_FOUND, "rule '%.*s' is not defined",
                           NAME_SHOWN, rule->name);
        if (rule->name && strcmp(rule->name, "root") == 0) s->p->root = r;
    }
    if (s->p->root == PROGRAM_NONE)
        return error_set(s->err, SAC_ERR_NOT_FOUND, "grammar: there is no rule 'root'");
    const sac_status status = program_finish(s->p, s->err);
    return status == SAC_OK ? SAC_OK : error_prefix(s->err, status, "grammar");
}

sac_status gbnf_parse(struct program **out, const char *text, size_t n,
                      const struct gbnf_limits *limits, sac_error *err)
{
    struct parser s = {.text = text, .n = n, .limits = limits, .err = err, .table_n = 1};
    sac_status status;
    if (n > limits->text_bytes)
        return error_set(err, SAC_ERR_CONTEXT, "grammar: %zu bytes, at most %zu", n,
                         limits->text_bytes);
    while (s.table_n < 2 * (size_t)limits->n_rule) s.table_n *= 2;
    s.table = mem_alloc(s.table_n * sizeof *s.table);
    s.p = mem_calloc(1, sizeof *s.p);
    if (!s.table || !s.p) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
        goto fail;
    }
    memset(s.table, 0xff, s.table_n * sizeof *s.table); /* PROGRAM_NONE */
    s.p->root = PROGRAM_NONE;
    TRY_FAIL(parse_text(&s));
    mem_free(s.table);
    *out = s.p;
    return SAC_OK;
fail:
    mem_free(s.table);
    program_free(s.p);
    return status;
}
