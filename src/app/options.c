/* options.c: see the header. The tables are the only description of an option: parsing, ranges,
 * environment and help all read them, so they cannot disagree.
 *
 * Not getopt or argp, because users in this field type `-ctk q8` and `-sys TEXT`, which both would
 * parse as bundled letters.
 *
 * Not here: whether the values of options fit together, which the command checks. */
#include "app/options.h"

#include "app/app.h"
#include "app/complete.h"
#include "app/foreign_options.h"
#include "app/optfile.h"
#include "app/units.h"
#include "base/suggest.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENV_PREFIX   "SACCADE_ARG_"
#define HELP_COLUMN  28
#define HELP_COLUMNS 96 /* of the help, as wide as man pages */

struct found {
    const struct option_spec *spec;
    void *field;
    const void *target; /* of its group */
    size_t at;          /* in options.given */
};

static const char elsewhere[] = ""; /* in options.given: by the environment or the file */

/* Options of every command; their target is struct options. The file of options has no variable,
 * since most commands would not know all its options. */
static const struct option_spec common_specs[] = {
    {.names = OPTIONS_CONFIG,
     .type = OPTION_TEXT,
     .offset = offsetof(struct options, config),
     .arg = "FILE",
     .help = "file of options, one 'name = value' per line; the environment and arguments take "
             "precedence"},
    {0},
};

bool options_group(const struct options *o, size_t i, struct option_group *out)
{
    *out = i < o->n_group ? o->group[i] : o->common;
    return i < o->n_group || (i == o->n_group && o->common.spec);
}

int options_usage_error(const char *command, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "saccade %s: ", command);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "; see 'saccade %s --help'\n", command);
    va_end(ap);
    return EXIT_USAGE;
}

/* ---- Words of a table text ---- */

/* The next word of `list`, separated by any of `cuts`; NULL: none. */
static const char *next_word(const char *list, const char *cuts, size_t *out_n)
{
    list += strspn(list, cuts);
    *out_n = strcspn(list, cuts);
    return *out_n ? list : NULL;
}

static bool has_word(const char *list, const char *cuts, const char *word, size_t n_word)
{
    size_t n;
    for (const char *w = next_word(list, cuts, &n); w; w = next_word(w + n, cuts, &n))
        if (n == n_word && memcmp(w, word, n) == 0) return true;
    return false;
}

static int find_choice(const char *choices, const char *value)
{
    size_t n;
    int i = 0;
    for (const char *w = next_word(choices, "|", &n); w; w = next_word(w + n, "|", &n), i++) {
        char one[64];
        snprintf(one, sizeof one, "%.*s", (int)n, w);
        if (has_word(one, "=", value, strlen(value))) return i;
    }
    return -1;
}

/* The spelling of choice `i` ("f16|bf16" and 1: "bf16"), in the caller's buffer. */
static const char *choice_name(const char *choices, int i, char *buf, size_t bytes)
{
    size_t n;
    const char *w = next_word(choices, "|", &n);
    for (; w && i > 0; i--) w = next_word(w + n, "|", &n);
    assert(w && i == 0);
    const size_t n_first = w ? strcspn(w, "|=") : 0;
    snprintf(buf, bytes, "%.*s", (int)n_first, w ? w : "");
    return buf;
}

/* "f16|bf16|q8": without alternative spellings. */
static void format_choices(const char *choices, char *buf, size_t bytes)
{
    size_t n, at = 0;
    for (const char *w = next_word(choices, "|", &n); w; w = next_word(w + n, "|", &n)) {
        at += (size_t)snprintf(buf + at, bytes - at, "%s%.*s", at ? "|" : "", (int)strcspn(w, "|="),
                               w);
        assert(at < bytes);
    }
}

/* ---- Values ---- */

/* The error goes to `why`; the caller adds the option's name. */
static bool parse_integer(const struct option_spec *s, const char *text, void *field, char why[128])
{
    const bool wide = s->type == OPTION_I64;
    const bool any = s->min == 0 && s->max == 0;
    const double lo = !any ? s->min : s->type == OPTION_U32 ? 0 : wide ? -0x1p63 : INT32_MIN;
    const double hi = !any                    ? s->max
                      : s->type == OPTION_U32 ? UINT32_MAX
                      : wide                  ? 0x1p63
                                              : INT32_MAX;
    char *end;
    uint64_t n_tok, n_bytes;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    const bool is_tokens = s->tokens && units_tokens(text, &n_tok);
    const bool is_size = s->unit_bytes && *end && units_bytes(text, &n_bytes);
    if (is_tokens) v = (long long)n_tok;
    if (is_size) v = (long long)((n_bytes + s->unit_bytes - 1) / s->unit_bytes);
    if (!is_tokens && !is_size && (end == text || *end)) {
        snprintf(why, 128, "is not a whole number%s%s", s->tokens ? ", such as 4096 or 32k" : "",
                 s->unit_bytes ? ", nor a size such as 512M" : "");
        return false;
    }
    if (errno || (double)v < lo || (double)v > hi) {
        snprintf(why, 128, "is out of range %.0f to %.0f", lo, hi);
        return false;
    }
    if (s->type == OPTION_I32) *(int32_t *)field = (int32_t)v;
    if (s->type == OPTION_U32) *(uint32_t *)field = (uint32_t)v;
    if (s->type == OPTION_I64) *(int64_t *)field = v;
    return true;
}

static bool parse_float(const struct option_spec *s, const char *text, void *field, char why[128])
{
    char *end;
    const float v = strtof(text, &end);
    if (end == text || *end || !isfinite(v)) {
        snprintf(why, 128, "is not a number");
        return false;
    }
    if ((s->min != 0 || s->max != 0) && ((double)v < s->min || (double)v > s->max)) {
        snprintf(why, 128, "is out of range %g to %g", s->min, s->max);
        return false;
    }
    *(float *)field = v;
    return true;
}

static bool parse_flag(const char *text, void *field, char why[128])
{
    const bool on = has_word("1 on true yes", " ", text, strlen(text));
    if (!on && !has_word("0 off false no", " ", text, strlen(text))) {
        snprintf(why, 128, "is neither on nor off");
        return false;
    }
    *(bool *)field = on;
    return true;
}

static bool parse_value(const struct option_spec *s, const char *text, void *field, char why[128])
{
    switch (s->type) {
    case OPTION_FLAG: return parse_flag(text, field, why);
    case OPTION_TEXT: *(const char **)field = text; return true;
    case OPTION_LIST: {
        struct option_list *list = field;
        if (list->n == OPTION_LIST_MAX) {
            snprintf(why, 128, "is more than the %u that are possible", OPTION_LIST_MAX);
            return false;
        }
        list->item[list->n++] = text;
        return true;
    }
    case OPTION_CHOICE: {
        const int i = find_choice(s->choices, text);
        char all[96];
        format_choices(s->choices, all, sizeof all);
        if (i >= 0)
            *(int *)field = i;
        else
            snprintf(why, 128, "is none of %s", all);
        return i >= 0;
    }
    case OPTION_I32:
    case OPTION_U32:
    case OPTION_I64: return parse_integer(s, text, field, why);
    case OPTION_F32: return parse_float(s, text, field, why);
    }
    return false;
}

static bool read_environment(struct options *o, char why[256])
{
    struct option_group group;
    size_t at = 0;
    for (size_t g = 0; options_group(o, g, &group); g++)
        for (const struct option_spec *s = group.spec; s->names; s++, at++) {
            char name[64], bad[128];
            snprintf(name, sizeof name, ENV_PREFIX "%s", s->env ? s->env : "");
            const char *text = s->env ? getenv(name) : NULL;
            if (!text || !*text) continue;
            if (!parse_value(s, text, (char *)group.target + s->offset, bad)) {
                snprintf(why, 256, "%s: '%.60s' %s", name, text, bad);
                return false;
            }
            assert(at < OPTIONS_MAX);
            o->given[at] = elsewhere;
        }
    return true;
}

/* ---- Help ---- */

static void print_wrapped(const char *text, size_t indent, size_t column)
{
    size_t n;
    for (const char *w = next_word(text, " ", &n); w; w = next_word(w + n, " ", &n)) {
        if (column > indent && column + 1 + n > HELP_COLUMNS) {
            printf("\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            putchar(' ');
            column++;
        }
        fwrite(w, 1, n, stdout);
        column += n;
    }
    putchar('\n');
}

/* The default as shown by the help; "" if zero means that something else decides. */
static void format_default(const struct option_spec *s, const void *field, char buf[96])
{
    char name[32];
    buf[0] = 0;
    switch (s->type) {
    case OPTION_CHOICE:
        if (*(const int *)field >= 0)
            snprintf(buf, 96, " (default: %s)",
                     choice_name(s->choices, *(const int *)field, name, sizeof name));
        break;
    case OPTION_I32:
        if (*(const int32_t *)field) snprintf(buf, 96, " (default: %d)", *(const int32_t *)field);
        break;
    case OPTION_U32:
        if (*(const uint32_t *)field) snprintf(buf, 96, " (default: %u)", *(const uint32_t *)field);
        break;
    case OPTION_I64:
        if (*(const int64_t *)field)
            snprintf(buf, 96, " (default: %lld)", (long long)*(const int64_t *)field);
        break;
    case OPTION_F32:
        if (*(const float *)field != 0)
            snprintf(buf, 96, " (default: %g)", (double)*(const float *)field);
        break;
    case OPTION_FLAG:
    case OPTION_TEXT:
    case OPTION_LIST: break;
    }
}

static void print_option(const struct option_spec *s, const void *field)
{
    char left[160], shown[96], text[640];
    size_t at = 0, n;
    for (const char *w = next_word(s->names, " ", &n); w; w = next_word(w + n, " ", &n))
        at += (size_t)snprintf(left + at, sizeof left - at, "%s%.*s", at ? ", " : "  ", (int)n, w);
    if (s->type == OPTION_CHOICE) {
        left[at++] = ' ';
        format_choices(s->choices, left + at, sizeof left - at);
        at = strlen(left);
    } else if (s->type != OPTION_FLAG) {
        at += (size_t)snprintf(left + at, sizeof left - at, " %s", s->arg);
    }
    assert(at < sizeof left);
    format_default(s, field, shown);
    n = (size_t)snprintf(text, sizeof text, "%s%s", s->help, shown);
    if (s->env) snprintf(text + n, sizeof text - n, " [" ENV_PREFIX "%s]", s->env);
    fputs(left, stdout);
    if (at + 2 > HELP_COLUMN)
        printf("\n%*s", HELP_COLUMN, "");
    else
        printf("%*s", (int)(HELP_COLUMN - at), "");
    print_wrapped(text, HELP_COLUMN, HELP_COLUMN);
}

static void print_help(const struct options *o)
{
    printf("Usage: saccade %s %s\n\n", o->command, o->usage);
    print_wrapped(o->summary, 0, 0);
    if (o->commands) printf("\nCommands:\n%s", o->commands);
    struct option_group group;
    for (size_t g = 0; options_group(o, g, &group); g++) {
        printf("\n%s:\n", group.title);
        for (const struct option_spec *s = group.spec; s->names; s++)
            print_option(s, (const char *)group.target + s->offset);
    }
    printf("\n  -h, --help                This text\n");
}

/* ---- Arguments ---- */

static struct found find_option(const struct options *o, const char *arg, size_t n)
{
    struct option_group group;
    size_t at = 0;
    for (size_t g = 0; options_group(o, g, &group); g++)
        for (const struct option_spec *s = group.spec; s->names; s++, at++)
            if (has_word(s->names, " ", arg, n))
                return (struct found){s, (char *)group.target + s->offset, group.target, at};
    return (struct found){0};
}

bool options_is_flag(const struct options *o, const char *name)
{
    const struct found f = find_option(o, name, strlen(name));
    return f.spec && f.spec->type == OPTION_FLAG;
}

/* Whether help is requested, outside of option values. Checked first, so that nothing is
 * changed. */
static bool wants_help(const struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) return false;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
        const struct found f = find_option(o, argv[i], strlen(argv[i]));
        if (f.spec && f.spec->type != OPTION_FLAG) i++;
    }
    return false;
}

static void find_near(const struct options *o, const char *name, size_t n_name,
                      char hint[SUGGEST_HINT_BYTES])
{
    struct suggest near = suggest_begin(name, n_name);
    struct option_group group;
    size_t n;
    for (size_t g = 0; options_group(o, g, &group); g++)
        for (const struct option_spec *s = group.spec; s->names; s++)
            for (const char *w = next_word(s->names, " ", &n); w; w = next_word(w + n, " ", &n))
                suggest_try(&near, w, n);
    suggest_hint(&near, hint);
}

bool options_set(struct options *o, const char *name, size_t n_name, const char *value,
                 char why[256])
{
    const struct found f = find_option(o, name, n_name);
    char bad[128];
    if (!f.spec) {
        char hint[SUGGEST_HINT_BYTES];
        find_near(o, name, n_name, hint);
        snprintf(why, 256, "unknown option '%.*s'%s", (int)(n_name < 100 ? n_name : 100), name,
                 hint);
        return false;
    }
    if (!value) {
        snprintf(why, 256, "option '%.*s' needs a value", (int)n_name, name);
        return false;
    }
    if (!parse_value(f.spec, value, f.field, bad)) {
        snprintf(why, 256, "option '%.*s': '%.60s' %s", (int)n_name, name, value, bad);
        return false;
    }
    assert(f.at < OPTIONS_MAX);
    o->given[f.at] = elsewhere;
    return true;
}

/* Handles an option of another program; false if it is unknown, or not possible here (`why` is
 * set). */
static bool pass_foreign(const struct options *o, int argc, char **argv, int *i, char why[256])
{
    const char *arg = argv[*i];
    const size_t n = strcspn(arg, "=");
    const struct foreign_option *h =
        find_option(o, arg, n).spec ? NULL : foreign_options_find(arg, n);
    why[0] = 0;
    if (!h) return false;
    if (h->kind == FOREIGN_OPTIONS_ERROR) {
        snprintf(why, 256, "option '%.*s': %s", (int)n, arg, h->why);
        return false;
    }
    if (h->kind == FOREIGN_OPTIONS_NOTED)
        fprintf(stderr, "saccade %s: %.*s is passed over: %s\n", o->command, (int)n, arg, h->why);
    if (!arg[n] && *i + 1 < argc && foreign_options_takes(h, argv[*i + 1])) ++*i;
    return true;
}

/* Parses the option at argv[*i] and advances *i to its last word. */
static bool read_option(struct options *o, int argc, char **argv, int *i, char why[256])
{
    const char *arg = argv[*i], *equals = strchr(arg, '=');
    const size_t n_name = equals ? (size_t)(equals - arg) : strlen(arg);
    const struct found f = find_option(o, arg, n_name);
    const char *value = equals ? equals + 1 : NULL;
    if (f.spec && f.target == o->watch) o->watched = arg;
    if (f.spec && !value) {
        if (f.spec->type == OPTION_FLAG)
            value = "on";
        else if (*i + 1 < argc)
            value = argv[++*i];
    }
    if (!options_set(o, arg, n_name, value, why)) return false;
    o->given[f.at] = arg;
    return true;
}

/* Reports an unexpected operand, possibly a misspelled sub-command. */
static int unexpected(const struct options *o, const char *word)
{
    struct suggest near = suggest_begin(word, strlen(word));
    char hint[SUGGEST_HINT_BYTES];
    for (const char *line = o->commands ? o->commands : ""; *line;) {
        line += strspn(line, " \n");
        suggest_try(&near, line, strcspn(line, " \n"));
        line += strcspn(line, "\n");
    }
    return options_usage_error(o->command, "unexpected argument '%s'%s", word,
                               suggest_hint(&near, hint));
}

/* The last file of options in the arguments; NULL: none. It is determined before any option is
 * applied, and values of options are skipped. */
static const char *find_config(const struct options *o, int argc, char **argv)
{
    const char *path = NULL;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const size_t n = strcspn(argv[i], "=");
        const bool it = has_word(OPTIONS_CONFIG, " ", argv[i], n);
        const struct found f = find_option(o, argv[i], n);
        if (it && argv[i][n]) path = argv[i] + n + 1;
        if (argv[i][n] || !f.spec || f.spec->type == OPTION_FLAG || ++i == argc) continue;
        if (it) path = argv[i];
    }
    return path;
}

/* Returns OPTIONS_GO_ON or the exit code. */
static int read_config(struct options *o, const char *path)
{
    sac_error err;
    const sac_status status = path ? optfile_read(o, path, &err) : SAC_OK;
    if (status == SAC_OK) return OPTIONS_GO_ON;
    if (status == SAC_ERR_ARG) return options_usage_error(o->command, "%s", err.msg);
    fprintf(stderr, "saccade %s: %s\n", o->command, err.msg);
    return EXIT_RUNTIME;
}

/* ---- Options that need others, or exclude them ---- */

/* Fields of such options: all types but lists. */
static size_t field_bytes(const struct option_spec *s)
{
    static const size_t bytes[] = {
        [OPTION_FLAG] = sizeof(bool),    [OPTION_TEXT] = sizeof(char *),
        [OPTION_CHOICE] = sizeof(int),   [OPTION_I32] = sizeof(int32_t),
        [OPTION_U32] = sizeof(uint32_t), [OPTION_I64] = sizeof(int64_t),
        [OPTION_F32] = sizeof(float),
    };
    assert(s->type != OPTION_LIST);
    return bytes[s->type];
}

static const char *needs_of(const struct options *o, const struct option_spec *s, bool *told)
{
    *told = s->told;
    for (const struct option_need *n = o->need; n && n->option; n++)
        if (has_word(s->names, " ", n->option, strlen(n->option))) {
            *told = true;
            return n->needs;
        }
    return s->needs;
}

/* Whether any of "--docs|--store" is given, and no flag that is off. */
static bool is_given(const struct options *o, const char *names)
{
    size_t n;
    for (const char *w = next_word(names, "|", &n); w; w = next_word(w + n, "|", &n)) {
        const struct found f = find_option(o, w, n);
        if (f.spec && o->given[f.at] && (f.spec->type != OPTION_FLAG || *(bool *)f.field))
            return true;
    }
    return false;
}

/* "--docs NAME,NAME or --store DIR", of the options that the command has. */
static void format_needs(const struct options *o, const char *names, char *buf, size_t bytes)
{
    size_t n, at = 0;
    for (const char *w = next_word(names, "|", &n); w; w = next_word(w + n, "|", &n)) {
        const struct found f = find_option(o, w, n);
        if (!f.spec) continue;
        at += (size_t)snprintf(buf + at, bytes - at, "%s%.*s%s%s", at ? " or " : "", (int)n, w,
                               f.spec->arg ? " " : "", f.spec->arg ? f.spec->arg : "");
        assert(at < bytes);
    }
}

/* Notes the defaults, [OPTIONS_MAX], for drop_idle. */
static void note_defaults(const struct options *o, uint64_t *was)
{
    struct option_group group;
    size_t at = 0;
    bool told;
    for (size_t g = 0; options_group(o, g, &group); g++)
        for (const struct option_spec *s = group.spec; s->names; s++, at++)
            if (needs_of(o, s, &told) || s->without)
                memcpy(&was[at], (const char *)group.target + s->offset, field_bytes(s));
}

/* Returns options without an effect to their defaults; one that is an argument is an error. In the
 * order of the tables, so that what needs such an option must follow it there. */
static int drop_idle(struct options *o, const uint64_t *was)
{
    struct option_group group;
    size_t at = 0;
    for (size_t g = 0; options_group(o, g, &group); g++)
        for (const struct option_spec *s = group.spec; s->names; s++, at++) {
            bool told;
            const char *needs = needs_of(o, s, &told), *given = o->given[at];
            const bool lacks = needs && !is_given(o, needs);
            if (!given || (!lacks && !(s->without && is_given(o, s->without)))) continue;
            const int n = (int)strcspn(given, "=");
            char text[160];
            if (*given && told) continue;
            if (*given && lacks) {
                format_needs(o, needs, text, sizeof text);
                return options_usage_error(o->command, "%.*s needs %s", n, given, text);
            }
            if (*given)
                return options_usage_error(o->command, "%.*s cannot be combined with %s", n, given,
                                           s->without);
            memcpy((char *)group.target + s->offset, &was[at], field_bytes(s));
            o->given[at] = NULL;
        }
    return OPTIONS_GO_ON;
}

int options_parse(struct options *o, int argc, char **argv)
{
    char why[256];
    uint64_t was[OPTIONS_MAX];
    bool only_operands = false;
    o->common = (struct option_group){"Options", common_specs, o};
    o->n_operand = 0;
    note_defaults(o, was);
    if (argc > 1 && strcmp(argv[1], COMPLETE_WORDS) == 0) {
        complete_options(o, argc - 2, argv + 2);
        return EXIT_OK;
    }
    if (wants_help(o, argc, argv)) {
        print_help(o);
        return EXIT_OK;
    }
    const int code = read_config(o, find_config(o, argc, argv));
    if (code != OPTIONS_GO_ON) return code;
    if (!read_environment(o, why)) return options_usage_error(o->command, "%s", why);
    for (int i = 1; i < argc; i++) {
        if (!only_operands && strcmp(argv[i], "--") == 0) {
            only_operands = true;
        } else if (only_operands || argv[i][0] != '-' || argv[i][1] == 0) {
            if (o->n_operand == o->operand_max) return unexpected(o, argv[i]);
            o->operand[o->n_operand++] = argv[i];
        } else if (!pass_foreign(o, argc, argv, &i, why) &&
                   (why[0] || !read_option(o, argc, argv, &i, why))) {
            return options_usage_error(o->command, "%s", why);
        }
    }
    return drop_idle(o, was);
}
