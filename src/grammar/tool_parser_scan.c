/* tool_parser_scan.c: see the header. The scan follows only brackets and strings; the JSON is
 * validated when it is complete. Python values are read by a walk with a stack of open brackets,
 * PYTHON_DEPTH_MAX deep, which writes JSON as it goes. */
#include "grammar/tool_parser_scan.h"

#include <cjson/cJSON.h>
#include <string.h>

#define JSON_DEPTH_MAX   128u
#define PYTHON_DEPTH_MAX 32u

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* ---- JSON ---- */

/* A string at the outermost level has ended. */
static void end_text(struct tool_parser_scan *s, const char *text)
{
    const size_t n = s->at - s->begin - 1;
    if (s->in_value) return;
    s->key[0] = '\0';
    if (n < sizeof s->key) {
        memcpy(s->key, text + s->begin + 1, n);
        s->key[n] = '\0';
    }
}

static void end_value(struct tool_parser_scan *s)
{
    if (strcmp(s->key, "name") == 0 && s->name_end == 0) {
        s->name = s->begin;
        s->name_end = s->at;
    }
    if (s->args && s->args_end == 0) s->args_end = s->at;
    s->in_value = false;
    s->begin = 0;
}

static void begin_value(struct tool_parser_scan *s)
{
    s->begin = s->at;
    if (!s->in_value || s->args) return;
    if (strcmp(s->key, "arguments") == 0 || strcmp(s->key, "parameters") == 0) s->args = s->at;
}

static void step_quoted(struct tool_parser_scan *s, const char *text, char c)
{
    if (s->escaped) {
        s->escaped = false;
    } else if (c == '\\') {
        s->escaped = true;
    } else if (c == '"') {
        s->quoted = false;
        if (s->depth == 1) end_text(s, text);
    }
}

/* Processes one byte outside of strings. */
static void step(struct tool_parser_scan *s, char c)
{
    const bool outer = s->depth == 1;
    if (outer && s->begin == 0 && !is_blank(c) && c != ',' && c != '}' && c != ':') begin_value(s);
    if (c == '"') {
        s->quoted = true;
    } else if (c == '{' || c == '[') {
        if (++s->depth > JSON_DEPTH_MAX) s->state = TOOL_PARSER_SCAN_BAD;
    } else if (c == '}' || c == ']') {
        if (outer && s->in_value) end_value(s);
        if (--s->depth == 0) s->state = TOOL_PARSER_SCAN_DONE;
    } else if (outer && c == ':' && !s->in_value) {
        s->in_value = true;
        s->begin = 0;
    } else if (outer && c == ',') {
        end_value(s);
        s->key[0] = '\0';
    }
}

void tool_parser_scan_json(struct tool_parser_scan *s, const char *text, size_t n)
{
    if (s->at == 0 && n > 0) {
        s->state = text[0] == '{' ? TOOL_PARSER_SCAN_MORE : TOOL_PARSER_SCAN_BAD;
        s->depth = 1;
        s->at = 1;
    }
    for (; s->state == TOOL_PARSER_SCAN_MORE && s->at < n; s->at++) {
        if (s->quoted)
            step_quoted(s, text, text[s->at]);
        else
            step(s, text[s->at]);
    }
}

bool tool_parser_scan_name(char *out, size_t room, const char *json, size_t n)
{
    cJSON *const value = cJSON_ParseWithLength(json, n);
    const char *const name = cJSON_GetStringValue(value);
    const bool fits = name && name[0] && strlen(name) < room;
    if (fits) memcpy(out, name, strlen(name) + 1);
    cJSON_Delete(value);
    return fits;
}

/* ---- Python ---- */

struct python {
    const char *s;
    size_t n, at;
    struct strbuf *out;
    char closing[PYTHON_DEPTH_MAX];
    unsigned depth;
};

static void skip_blanks(struct python *p)
{
    while (p->at < p->n && is_blank(p->s[p->at])) p->at++;
}

static bool is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static size_t word_bytes(const struct python *p)
{
    size_t n = 0;
    while (p->at + n < p->n && is_word_char(p->s[p->at + n])) n++;
    return n;
}

static void add_json_char(struct strbuf *out, char c)
{
    if (c == '"' || c == '\\')
        strbuf_addf(out, "\\%c", c);
    else if ((unsigned char)c < 0x20)
        strbuf_addf(out, "\\u%04x", (unsigned)c);
    else
        strbuf_add(out, &c, 1);
}

static enum tool_parser_scan_state read_text(struct python *p)
{
    const char quote = p->s[p->at++];
    strbuf_adds(p->out, "\"");
    for (; p->at < p->n; p->at++) {
        char c = p->s[p->at];
        if (c == quote) {
            p->at++;
            strbuf_adds(p->out, "\"");
            return TOOL_PARSER_SCAN_DONE;
        }
        if (c == '\\' && p->at + 1 < p->n) {
            c = p->s[++p->at];
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        }
        add_json_char(p->out, c);
    }
    return TOOL_PARSER_SCAN_MORE;
}

/* A number, or a Python constant. A word at the end of the text may continue. */
static enum tool_parser_scan_state read_word(struct python *p)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const size_t begin = p->at;
    while (p->at < p->n && (is_word_char(p->s[p->at]) || strchr("+-.", p->s[p->at]))) p->at++;
    const size_t n = p->at - begin;
    if (p->at == p->n) return TOOL_PARSER_SCAN_MORE;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i][0]) != n || memcmp(words[i][0], p->s + begin, n) != 0) continue;
        strbuf_adds(p->out, words[i][1]);
        return TOOL_PARSER_SCAN_DONE;
    }
    cJSON *const number = cJSON_ParseWithLength(p->s + begin, n);
    const bool is_number = n > 0 && cJSON_IsNumber(number);
    cJSON_Delete(number);
    if (!is_number) return TOOL_PARSER_SCAN_BAD;
    strbuf_add(p->out, p->s + begin, n);
    return TOOL_PARSER_SCAN_DONE;
}

static enum tool_parser_scan_state read_value(struct python *p)
{
    for (;;) {
        skip_blanks(p);
        if (p->at == p->n) return TOOL_PARSER_SCAN_MORE;
        const char c = p->s[p->at];
        enum tool_parser_scan_state state = TOOL_PARSER_SCAN_DONE;
        if (c == '[' || c == '{') {
            if (p->depth == PYTHON_DEPTH_MAX) return TOOL_PARSER_SCAN_BAD;
            p->closing[p->depth++] = c == '[' ? ']' : '}';
            strbuf_add(p->out, &c, 1);
            p->at++;
        } else if (p->depth > 0 && c == p->closing[p->depth - 1]) {
            strbuf_add(p->out, &c, 1);
            p->depth--;
            p->at++;
        } else if (p->depth > 0 && (c == ',' || c == ':')) {
            strbuf_add(p->out, &c, 1);
            p->at++;
        } else {
            state = c == '"' || c == '\'' ? read_text(p) : read_word(p);
        }
        if (state != TOOL_PARSER_SCAN_DONE || p->depth == 0) return state;
    }
}

/* key=value */
static enum tool_parser_scan_state read_argument(struct python *p, bool first)
{
    const size_t n = word_bytes(p);
    if (p->at + n == p->n) return TOOL_PARSER_SCAN_MORE;
    if (n == 0) return TOOL_PARSER_SCAN_BAD;
    strbuf_addf(p->out, "%s\"%.*s\": ", first ? "" : ", ", (int)n, p->s + p->at);
    p->at += n;
    skip_blanks(p);
    if (p->at == p->n) return TOOL_PARSER_SCAN_MORE;
    if (p->s[p->at++] != '=') return TOOL_PARSER_SCAN_BAD;
    return read_value(p);
}

static enum tool_parser_scan_state read_arguments(struct python *p)
{
    strbuf_adds(p->out, "{");
    for (bool first = true;; first = false) {
        skip_blanks(p);
        if (p->at == p->n) return TOOL_PARSER_SCAN_MORE;
        if (p->s[p->at] == ')') break;
        if (!first && p->s[p->at++] != ',') return TOOL_PARSER_SCAN_BAD;
        skip_blanks(p);
        const enum tool_parser_scan_state state = read_argument(p, first);
        if (state != TOOL_PARSER_SCAN_DONE) return state;
    }
    p->at++;
    strbuf_adds(p->out, "}");
    return TOOL_PARSER_SCAN_DONE;
}

enum tool_parser_scan_state tool_parser_scan_python(const char *text, size_t n, char *name,
                                                    size_t room, struct strbuf *out_args,
                                                    size_t *out_used)
{
    struct python p = {.s = text, .n = n, .out = out_args};
    size_t bytes = word_bytes(&p);
    strbuf_reset(out_args);
    while (bytes < n && (text[bytes] == '.' || text[bytes] == '-' || is_word_char(text[bytes])))
        bytes++;
    if (bytes == n) return bytes < room ? TOOL_PARSER_SCAN_MORE : TOOL_PARSER_SCAN_BAD;
    if (bytes == 0 || bytes >= room || text[bytes] != '(') return TOOL_PARSER_SCAN_BAD;
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    p.at = bytes + 1;
    const enum tool_parser_scan_state state = read_arguments(&p);
    *out_used = p.at;
    return state;
}
