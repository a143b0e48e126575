/* jinja_format.c: see the header. Widths and precisions have at most three digits: templates align
 * numbers, and nothing wider is worth its memory. */
#include "model/jinja_format.h"

#include <math.h>
#include <stdio.h>

struct source {
    struct jinja_value arg;
    uint32_t used; /* of a tuple, or 1 when the single value was taken */
};

/* One `%...` of a format, from after the '%' to the letter. */
struct spec {
    char flags[8];
    size_t n_flag;
    int width, precision; /* precision -1: none */
    char letter;
};

static sac_status next_value(struct jinja *j, struct source *src, struct jinja_value *out)
{
    const bool tuple = src->arg.kind == JINJA_TUPLE;
    if (src->used >= (tuple ? src->arg.list->n : 1u))
        return jinja_fail(j, "a format string wants more values");
    *out = tuple ? src->arg.list->items[src->used] : src->arg;
    src->used++;
    return SAC_OK;
}

static int read_digits(const char **at, const char *end)
{
    int n = 0;
    for (int i = 0; i < 3 && *at < end && **at >= '0' && **at <= '9'; i++)
        n = n * 10 + (*(*at)++ - '0');
    return n;
}

static sac_status parse_spec(struct jinja *j, const char **at, const char *end, struct spec *out)
{
    *out = (struct spec){.precision = -1};
    while (*at < end && memchr("-+ 0#", **at, 5) && out->n_flag + 1 < sizeof out->flags)
        out->flags[out->n_flag++] = *(*at)++;
    out->width = read_digits(at, end);
    if (*at < end && **at == '.') {
        (*at)++;
        out->precision = read_digits(at, end);
    }
    if (*at == end || !memchr("sdirfegxXoc%", **at, 12)) return jinja_fail(j, "a broken format");
    out->letter = *(*at)++;
    return SAC_OK;
}

static sac_status add_padded(struct jinja *j, const struct spec *spec, struct jinja_value text)
{
    if (spec->precision >= 0)
        text.n = (uint32_t)jinja_text_offset(text.s, text.n, (size_t)spec->precision);
    const size_t length = jinja_text_length(text.s, text.n);
    const size_t pad = (size_t)spec->width > length ? (size_t)spec->width - length : 0;
    const bool left = memchr(spec->flags, '-', spec->n_flag) != NULL;
    TRY(jinja_step_bytes(j, text.n + pad));
    if (left) TRY(jinja_text_add(j, text.s, text.n));
    for (size_t i = 0; i < pad; i++) TRY(jinja_text_adds(j, " "));
    return left ? SAC_OK : jinja_text_add(j, text.s, text.n);
}

static sac_status add_number(struct jinja *j, const struct spec *spec, struct jinja_value v)
{
    char format[24], text[1400]; /* 3 digits of width, or 309 + 999 of a float */
    if (!jinja_is_number(v) || (v.kind == JINJA_FLOAT && !(fabs(v.f) < 9e18)))
        return jinja_fail(j, "a format wants a number, not %s", jinja_kind_name(v));
    const bool real = strchr("feg", spec->letter) != NULL;
    const char letter = spec->letter == 'i' ? 'd' : spec->letter;
    snprintf(format, sizeof format, "%%%.*s*.*%s%c", (int)spec->n_flag, spec->flags,
             real ? "" : "j", letter);
    const intmax_t i = v.kind == JINJA_FLOAT ? (intmax_t)v.f : v.kind == JINJA_BOOL ? v.b : v.i;
    const double f = v.kind == JINJA_FLOAT ? v.f : (double)i;
    /* A negative precision counts as none. */
    if (real)
        snprintf(text, sizeof text, format, spec->width, spec->precision, f);
    else
        snprintf(text, sizeof text, format, spec->width, spec->precision, i);
    return jinja_text_adds(j, text);
}

/* `%(name)s`: the value of that key. `*at` is on the '('. */
static sac_status named_value(struct jinja *j, struct source *src, const char **at, const char *end,
                              struct jinja_value *out)
{
    const char *close = memchr(*at, ')', (size_t)(end - *at));
    if (!close || src->arg.kind != JINJA_DICT) return jinja_fail(j, "a broken format");
    struct jinja_value *found;
    TRY(jinja_dict_get(j, src->arg.dict, jinja_str(*at + 1, (size_t)(close - *at - 1)), &found));
    if (!found) return jinja_fail(j, "a format names a key that is not there");
    *out = *found;
    src->used = 1;
    *at = close + 1;
    return SAC_OK;
}

static sac_status add_spec(struct jinja *j, struct source *src, const char **at, const char *end)
{
    struct jinja_value v = jinja_none(), text;
    struct spec spec;
    const bool named = *at < end && **at == '(';
    if (named) TRY(named_value(j, src, at, end, &v));
    TRY(parse_spec(j, at, end, &spec));
    if (spec.letter == '%') return jinja_text_adds(j, "%");
    if (!named) TRY(next_value(j, src, &v));
    if (spec.letter == 's' || spec.letter == 'c') {
        TRY(jinja_text_str(j, v, &text));
        return add_padded(j, &spec, text);
    }
    if (spec.letter != 'r') return add_number(j, &spec, v);
    TRY(jinja_text_repr(j, v, &text));
    return add_padded(j, &spec, text);
}

sac_status jinja_format_percent(struct jinja *j, struct jinja_value format, struct jinja_value arg,
                                struct jinja_value *out)
{
    struct source src = {.arg = arg};
    const char *at = format.s, *const end = format.s + format.n;
    const size_t begin = jinja_text_begin(j);
    while (at < end) {
        const char *percent = memchr(at, '%', (size_t)(end - at));
        if (!percent) percent = end;
        TRY(jinja_step_bytes(j, (size_t)(percent - at)));
        TRY(jinja_text_add(j, at, (size_t)(percent - at)));
        at = percent;
        if (at++ < end) TRY(add_spec(j, &src, &at, end));
    }
    const bool several = arg.kind == JINJA_TUPLE;
    if (arg.kind != JINJA_DICT && src.used < (several ? arg.list->n : 1u))
        return jinja_fail(j, "a format string leaves values over");
    TRY(jinja_text_end(j, begin, out));
    out->markup = format.markup;
    return SAC_OK;
}

/* The value of one {field}: empty or a number by position, or a name. */
static sac_status field_value(struct jinja *j, const struct jinja_call *c, struct jinja_value field,
                              uint32_t *next, struct jinja_value *out)
{
    uint32_t i = 0;
    bool number = true;
    for (uint32_t k = 0; k < field.n; k++) {
        number = number && field.s[k] >= '0' && field.s[k] <= '9' && field.n < 6;
        i = i * 10 + (uint32_t)(field.s[k] - '0');
    }
    if (field.n == 0) i = (*next)++;
    if (number) {
        if (i >= c->args.n_pos) return jinja_fail(j, "a format string wants more values");
        *out = c->args.pos[i];
        return SAC_OK;
    }
    struct jinja_value *found = NULL;
    if (c->args.kw) TRY(jinja_dict_get(j, c->args.kw, field, &found));
    if (!found) return jinja_fail(j, "no value for the field {%.*s}", (int)field.n, field.s);
    *out = *found;
    return SAC_OK;
}

sac_status jinja_format_braces(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_value f = c->self;
    const size_t begin = jinja_text_begin(j);
    uint32_t next = 0;
    for (uint32_t at = 0; at < f.n; at++) {
        const char ch = f.s[at];
        TRY(jinja_step(j, 1));
        if (ch != '{' && ch != '}') {
            TRY(jinja_text_add(j, &ch, 1));
        } else if (at + 1 < f.n && f.s[at + 1] == ch) {
            TRY(jinja_text_add(j, &ch, 1));
            at++;
        } else {
            const char *close = ch == '{' ? memchr(f.s + at, '}', f.n - at) : NULL;
            if (!close) return jinja_fail(j, "a lone brace in a format string");
            const struct jinja_value field =
                jinja_str(f.s + at + 1, (size_t)(close - f.s) - at - 1);
            struct jinja_value v, text;
            TRY(field_value(j, c, field, &next, &v));
            TRY(jinja_text_str(j, v, &text));
            TRY(jinja_text_add(j, text.s, text.n));
            at = (uint32_t)(close - f.s);
        }
    }
    return jinja_text_end(j, begin, out);
}
