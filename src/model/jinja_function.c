/* jinja_function.c: the global functions of templates. */
#include "model/jinja.h"

#include <inttypes.h>
#include <time.h>

static sac_status function_range(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    int64_t start, stop, step;
    const bool one = c->arg[1].kind == JINJA_MISSING;
    TRY(jinja_call_int(j, c, 0, 0, &start));
    TRY(jinja_call_int(j, c, 1, 0, &stop));
    TRY(jinja_call_int(j, c, 2, 1, &step));
    if (one) {
        stop = start;
        start = 0;
    }
    if (step == 0) return jinja_fail(j, "range with step 0");
    /* Unsigned: the distance of any two integers fits. */
    const uint64_t span = step > 0 ? (stop > start ? (uint64_t)stop - (uint64_t)start : 0)
                                   : (start > stop ? (uint64_t)start - (uint64_t)stop : 0);
    const uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    const uint64_t n = span / stride + (span % stride != 0);
    if (n > JINJA_RANGE_MAX) return jinja_fail(j, "range of more than %d numbers", JINJA_RANGE_MAX);
    TRY(jinja_list_new(j, out, JINJA_LIST));
    for (uint64_t i = 0; i < n; i++)
        TRY(jinja_list_push(j, out->list,
                            jinja_int((int64_t)((uint64_t)start + i * (uint64_t)step))));
    return SAC_OK;
}

static sac_status set_all(struct jinja *j, struct jinja_dict *d, const struct jinja_dict *from)
{
    for (uint32_t i = 0; from && i < from->n; i++)
        TRY(jinja_dict_set(j, d, from->pairs[i].key, from->pairs[i].value));
    return SAC_OK;
}

/* A dict of the pairs of a dict, or of (key, value) members, and of the keyword arguments. */
static sac_status function_dict(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    TRY(jinja_dict_new(j, out));
    if (c->args.n_pos > 1) return jinja_fail(j, "dict takes one value");
    if (c->args.n_pos && c->args.pos[0].kind == JINJA_DICT) {
        TRY(set_all(j, out->dict, c->args.pos[0].dict));
    } else if (c->args.n_pos) {
        const struct jinja_list *list;
        TRY(jinja_members(j, c->args.pos[0], &list));
        for (uint32_t i = 0; i < list->n; i++) {
            const struct jinja_value pair = list->items[i];
            if (!jinja_is_list(pair) || pair.list->n != 2)
                return jinja_fail(j, "dict: item %u is no pair", i);
            TRY(jinja_dict_set(j, out->dict, pair.list->items[0], pair.list->items[1]));
        }
    }
    return set_all(j, out->dict, c->args.kw);
}

static sac_status function_namespace(struct jinja *j, const struct jinja_call *c,
                                     struct jinja_value *out)
{
    TRY(function_dict(j, c, out));
    out->kind = JINJA_NAMESPACE;
    return SAC_OK;
}

static sac_status function_raise_exception(struct jinja *j, const struct jinja_call *c,
                                           struct jinja_value *out)
{
    TRY(jinja_text_str(j, c->arg[0], out));
    return error_set(j->err, SAC_ERR_ARG, "chat template, line %u: %.*s", j->line, (int)out->n,
                     out->s);
}

/* Directives are one letter, optionally after '-': a width could ask for gigabytes. */
static bool is_time_format(struct jinja_value f)
{
    for (uint32_t i = 0; i < f.n; i++) {
        if (f.s[i] != '%') continue;
        if (++i < f.n && f.s[i] == '-') i++;
        if (i >= f.n || !f.s[i] || !strchr("aAwdbBmyYHIMpSfzZjUWcxXGuVeDFTRhnt%", f.s[i]))
            return false;
    }
    return true;
}

static sac_status function_strftime_now(struct jinja *j, const struct jinja_call *c,
                                        struct jinja_value *out)
{
    struct jinja_value format;
    char pattern[256], text[1024];
    const time_t now = (time_t)j->now;
    struct tm tm;
    TRY(jinja_call_text(j, c, 0, "", &format));
    if (format.n >= sizeof pattern || memchr(format.s, 0, format.n) || !is_time_format(format))
        return jinja_fail(j, "strftime_now: an unknown format");
    if (!localtime_r(&now, &tm)) return jinja_fail(j, "strftime_now: no such time");
    memcpy(pattern, format.s, format.n);
    pattern[format.n] = 0;
    const size_t begin = jinja_text_begin(j);
    TRY(jinja_text_add(j, text, strftime(text, sizeof text, pattern, &tm)));
    return jinja_text_end(j, begin, out);
}

static const struct jinja_builtin functions[] = {
    {"range", function_range, {"start", "stop?", "step?"}, false},
    {"dict", function_dict, {NULL}, true},
    {"namespace", function_namespace, {NULL}, true},
    {"raise_exception", function_raise_exception, {"message"}, false},
    {"strftime_now", function_strftime_now, {"format"}, false},
    {NULL, NULL, {NULL}, false},
};

const struct jinja_builtin *jinja_function_find(struct jinja_value name)
{
    return jinja_call_find(functions, name);
}
