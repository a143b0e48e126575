/* jinja_filter.c: the filters of templates, which follow `|`.
 *
 * Where jinja2 returns a generator (map, select, unique ...), a list is returned here: it can be
 * printed and counted, which a generator cannot, and iterates the same. Comparisons of strings in
 * sort, unique, min and max ignore case unless told otherwise, as in jinja2. */
#include "model/jinja.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Strings ---- */

/* The subject as a string, for filters that convert it. */
static sac_status subject(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return jinja_text_str(j, c->self, out);
}

/* Calls the string method of the same name and arguments on the subject as a string. */
static sac_status by_method(struct jinja *j, const struct jinja_call *c, const char *name,
                            struct jinja_value *out)
{
    struct jinja_value s;
    TRY(subject(j, c, &s));
    const struct jinja_builtin *method = jinja_method_find(s, jinja_strz(name));
    return jinja_call_builtin(j, method, s, c->args, out);
}

static sac_status filter_trim(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_value s;
    TRY(subject(j, c, &s));
    TRY(jinja_step_bytes(j, s.n));
    *out = jinja_text_strip(s, c->arg[0], 3);
    return SAC_OK;
}

static sac_status filter_upper(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return by_method(j, c, "upper", out);
}

static sac_status filter_lower(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return by_method(j, c, "lower", out);
}

static sac_status filter_capitalize(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    return by_method(j, c, "capitalize", out);
}

/* Unlike in the method, words start only after spaces, hyphens and opening brackets. */
static sac_status filter_title(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    TRY(by_method(j, c, "lower", out));
    char *s = jinja_chars(j, out->n);
    if (!s) return jinja_no_memory(j);
    bool inside = false;
    for (uint32_t i = 0; i < out->n; i++) {
        const char ch = out->s[i];
        s[i] = !inside && ch >= 'a' && ch <= 'z' ? (char)(ch ^ 0x20) : ch;
        inside = !jinja_text_space(&ch, 1) && !(ch && strchr("-({[<", ch));
    }
    out->s = s;
    return SAC_OK;
}

static sac_status filter_replace(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    struct jinja_value s, from, to;
    int64_t count;
    TRY(subject(j, c, &s));
    TRY(jinja_text_str(j, c->arg[0], &from));
    TRY(jinja_text_str(j, c->arg[1], &to));
    TRY(jinja_call_int(j, c, 2, -1, &count));
    return jinja_text_replace(j, s, from, to, count, out);
}

static sac_status filter_string(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return subject(j, c, out);
}

static sac_status filter_safe(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    TRY(subject(j, c, out));
    out->markup = true;
    return SAC_OK;
}

static sac_status filter_escape(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    TRY(subject(j, c, out));
    return jinja_text_escape(j, *out, out);
}

/* Puts `width` spaces before each line except the first; before blank lines and the first one on
 * request. */
static sac_status filter_indent(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    struct jinja_value s, by = c->arg[0];
    int64_t width = 0;
    TRY(subject(j, c, &s));
    if (by.kind != JINJA_STRING) {
        TRY(jinja_call_int(j, c, 0, 4, &width));
        TRY(jinja_op_binary(j, '*', jinja_strz(" "), jinja_int(width), &by));
    }
    const bool first = jinja_call_flag(c, 1, false), blank = jinja_call_flag(c, 2, false);
    const size_t begin = jinja_text_begin(j);
    TRY(jinja_step_bytes(j, s.n));
    for (uint32_t at = 0; at <= s.n;) {
        const char *newline = at < s.n ? memchr(s.s + at, '\n', s.n - at) : NULL;
        const uint32_t end = newline ? (uint32_t)(newline - s.s) : s.n;
        TRY(jinja_step(j, 1));
        if (at == 0 ? first : blank || end > at) TRY(jinja_text_add(j, by.s, by.n));
        TRY(jinja_text_add(j, s.s + at, end - at));
        if (newline) TRY(jinja_text_adds(j, "\n"));
        at = end + 1;
    }
    return jinja_text_end(j, begin, out);
}

static sac_status filter_format(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    struct jinja_value s, args;
    TRY(subject(j, c, &s));
    TRY(jinja_list_new(j, &args, JINJA_TUPLE));
    for (uint32_t i = 0; i < c->args.n_pos; i++) TRY(jinja_list_push(j, args.list, c->args.pos[i]));
    if (c->args.kw)
        args = (struct jinja_value){.kind = JINJA_DICT, .dict = (struct jinja_dict *)c->args.kw};
    return jinja_op_binary(j, '%', s, args, out);
}

static sac_status filter_wordcount(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    struct jinja_value words;
    TRY(by_method(j, c, "split", &words));
    *out = jinja_int(words.list->n);
    return SAC_OK;
}

static sac_status filter_tojson(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    struct jinja_json_style style = {.ascii = jinja_call_flag(c, 0, false),
                                     .sort_keys = jinja_call_flag(c, 3, false)};
    TRY(jinja_call_int(j, c, 1, -1, &style.indent));
    style.item_sep = jinja_strz(style.indent < 0 ? ", " : ",");
    style.key_sep = jinja_strz(": ");
    const struct jinja_value seps = c->arg[2];
    if (jinja_is_list(seps) && seps.list->n == 2) {
        style.item_sep = seps.list->items[0];
        style.key_sep = seps.list->items[1];
    } else if (seps.kind != JINJA_MISSING && seps.kind != JINJA_NONE) {
        return jinja_fail(j, "tojson: separators must be a pair of strings");
    }
    if (style.item_sep.kind != JINJA_STRING || style.key_sep.kind != JINJA_STRING)
        return jinja_fail(j, "tojson: separators must be a pair of strings");
    return jinja_json_write(j, c->self, &style, out);
}

/* ---- Numbers ---- */

static double as_float(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.f : v.kind == JINJA_BOOL ? (double)v.b : (double)v.i;
}

/* Reads a string that is one number, apart from spaces around it. */
static bool read_number(struct jinja_value s, int base, struct jinja_value *out)
{
    char text[64], *end;
    s = jinja_text_strip(s, (struct jinja_value){.kind = JINJA_MISSING}, 3);
    if (s.n == 0 || s.n >= sizeof text) return false;
    memcpy(text, s.s, s.n);
    text[s.n] = 0;
    if (memchr(text, 0, s.n) || strpbrk(text, "xX(")) return false; /* C's own notations */
    *out = base ? jinja_int(strtoll(text, &end, base)) : jinja_float(strtod(text, &end));
    return end == text + s.n;
}

static sac_status filter_int(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_value v = c->self;
    struct jinja_value number = jinja_int(0);
    int64_t base;
    TRY(jinja_call_int(j, c, 1, 10, &base));
    if (base < 2 || base > 36) return jinja_fail(j, "int: base %" PRId64, base);
    *out = c->arg[0].kind == JINJA_MISSING ? jinja_int(0) : c->arg[0];
    if (v.kind == JINJA_INT || v.kind == JINJA_BOOL) {
        *out = jinja_int(v.kind == JINJA_INT ? v.i : v.b);
        return SAC_OK;
    }
    if (v.kind == JINJA_STRING && read_number(v, (int)base, &number)) {
        *out = number;
        return SAC_OK;
    }
    if (v.kind == JINJA_FLOAT)
        number = v;
    else if (v.kind != JINJA_STRING || !read_number(v, 0, &number))
        return SAC_OK;
    if (fabs(number.f) < 9e18) *out = jinja_int((int64_t)number.f);
    return SAC_OK;
}

static sac_status filter_float(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    (void)j;
    *out = c->arg[0].kind == JINJA_MISSING ? jinja_float(0) : c->arg[0];
    if (jinja_is_number(c->self))
        *out = jinja_float(as_float(c->self));
    else if (c->self.kind == JINJA_STRING) {
        struct jinja_value number;
        if (read_number(c->self, 0, &number)) *out = number;
    }
    return SAC_OK;
}

static sac_status need_number(struct jinja *j, const struct jinja_call *c)
{
    if (jinja_is_number(c->self)) return SAC_OK;
    return jinja_fail(j, "%s of a value of type %s", c->builtin->name, jinja_kind_name(c->self));
}

static sac_status filter_abs(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    TRY(need_number(j, c));
    const bool negative = as_float(c->self) < 0;
    return jinja_op_binary(j, '*', c->self, jinja_int(negative ? -1 : 1), out);
}

static sac_status filter_round(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_value method;
    int64_t digits;
    TRY(need_number(j, c));
    TRY(jinja_call_int(j, c, 0, 0, &digits));
    TRY(jinja_call_text(j, c, 1, "common", &method));
    if (digits < -300 || digits > 300) return jinja_fail(j, "round to %" PRId64 " digits", digits);
    const double x = as_float(c->self), scale = pow(10, (double)digits);
    if (jinja_is_str(method, "ceil"))
        *out = jinja_float(ceil(x * scale) / scale);
    else if (jinja_is_str(method, "floor"))
        *out = jinja_float(floor(x * scale) / scale);
    else if (!jinja_is_str(method, "common"))
        return jinja_fail(j, "round: unknown method");
    else if (c->self.kind != JINJA_FLOAT && digits >= 0) {
        *out = jinja_int(c->self.kind == JINJA_INT ? c->self.i : c->self.b);
    } else if (digits >= 0) { /* printf rounds halves of the exact value to even, as Python does */
        char text[700];
        snprintf(text, sizeof text, "%.*f", (int)digits, x);
        *out = jinja_float(strtod(text, NULL));
    } else {
        *out = jinja_float(rint(x * scale) / scale);
        if (c->self.kind != JINJA_FLOAT) *out = jinja_int((int64_t)out->f);
    }
    return SAC_OK;
}

/* ---- Members of a sequence ---- */

static sac_status filter_default(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    (void)j;
    const bool absent =
        c->self.kind == JINJA_UNDEFINED || (jinja_call_flag(c, 1, false) && !jinja_truth(c->self));
    *out = !absent ? c->self : c->arg[0].kind == JINJA_MISSING ? jinja_strz("") : c->arg[0];
    return SAC_OK;
}

static sac_status filter_length(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    const struct jinja_value v = c->self;
    if (v.kind == JINJA_STRING) {
        TRY(jinja_step_bytes(j, v.n));
        *out = jinja_int((int64_t)jinja_text_length(v.s, v.n));
    } else if (jinja_is_list(v))
        *out = jinja_int(v.list->n);
    else if (v.kind == JINJA_DICT)
        *out = jinja_int(v.dict->n);
    else if (v.kind == JINJA_UNDEFINED)
        *out = jinja_int(0);
    else
        return jinja_fail(j, "a value of type %s has no length", jinja_kind_name(v));
    return SAC_OK;
}

static sac_status end_item(struct jinja *j, const struct jinja_call *c, bool last,
                           struct jinja_value *out)
{
    const struct jinja_list *list;
    TRY(jinja_members(j, c->self, &list));
    *out = jinja_undefined("item of an empty sequence", 25);
    if (list->n) *out = list->items[last ? list->n - 1 : 0];
    return SAC_OK;
}

static sac_status filter_first(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return end_item(j, c, false, out);
}

static sac_status filter_last(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return end_item(j, c, true, out);
}

static sac_status filter_list(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_list *list;
    TRY(jinja_members(j, c->self, &list));
    TRY(jinja_list_new(j, out, JINJA_LIST));
    for (uint32_t i = 0; i < list->n; i++) TRY(jinja_list_push(j, out->list, list->items[i]));
    return SAC_OK;
}

static sac_status filter_reverse(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    const struct jinja_value by[3] = {jinja_none(), jinja_none(), jinja_int(-1)};
    struct jinja_value v = c->self;
    if (v.kind != JINJA_STRING) TRY(filter_list(j, c, &v));
    return jinja_op_slice(j, v, by, out);
}

static sac_status filter_items(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    TRY(jinja_list_new(j, out, JINJA_LIST));
    if (c->self.kind == JINJA_UNDEFINED) return SAC_OK;
    if (c->self.kind != JINJA_DICT)
        return jinja_fail(j, "items of a value of type %s", jinja_kind_name(c->self));
    for (uint32_t i = 0; i < c->self.dict->n; i++) {
        struct jinja_value pair;
        TRY(jinja_list_new(j, &pair, JINJA_TUPLE));
        TRY(jinja_list_push(j, pair.list, c->self.dict->pairs[i].key));
        TRY(jinja_list_push(j, pair.list, c->self.dict->pairs[i].value));
        TRY(jinja_list_push(j, out->list, pair));
    }
    return SAC_OK;
}

/* The member at a path like "function.name" or "0". */
static sac_status get_path(struct jinja *j, struct jinja_value v, struct jinja_value path,
                           struct jinja_value *out)
{
    *out = v;
    if (path.kind == JINJA_MISSING || path.kind == JINJA_NONE) return SAC_OK;
    if (path.kind == JINJA_INT) return jinja_op_item(j, v, path, out);
    if (path.kind != JINJA_STRING)
        return jinja_fail(j, "an attribute of type %s", jinja_kind_name(path));
    for (uint32_t at = 0; at <= path.n;) {
        const char *dot = at < path.n ? memchr(path.s + at, '.', path.n - at) : NULL;
        const uint32_t end = dot ? (uint32_t)(dot - path.s) : path.n;
        struct jinja_value key = jinja_str(path.s + at, end - at), index;
        if (end > at && path.s[at] >= '0' && path.s[at] <= '9' && read_number(key, 10, &index))
            key = index;
        TRY(jinja_op_item(j, *out, key, out));
        at = end + 1;
    }
    return SAC_OK;
}

static sac_status filter_attr(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_value name;
    TRY(jinja_call_text(j, c, 0, "", &name));
    *out = jinja_undefined(name.s, name.n);
    if (c->self.kind == JINJA_DICT) return SAC_OK; /* attributes only, not members */
    return jinja_op_attr(j, c->self, name, out);
}

static sac_status filter_join(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_list *list;
    struct jinja_value sep = jinja_strz("");
    if (c->arg[0].kind != JINJA_MISSING) TRY(jinja_text_str(j, c->arg[0], &sep));
    TRY(jinja_members(j, c->self, &list));
    const size_t begin = jinja_text_begin(j);
    for (uint32_t i = 0; i < list->n; i++) {
        struct jinja_value v, text;
        TRY(jinja_step(j, 1));
        TRY(get_path(j, list->items[i], c->arg[1], &v));
        TRY(jinja_text_str(j, v, &text));
        if (i) TRY(jinja_text_add(j, sep.s, sep.n));
        TRY(jinja_text_add(j, text.s, text.n));
    }
    return jinja_text_end(j, begin, out);
}

static sac_status filter_sum(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_list *list;
    TRY(jinja_members(j, c->self, &list));
    struct jinja_value total = c->arg[1].kind == JINJA_MISSING ? jinja_int(0) : c->arg[1];
    for (uint32_t i = 0; i < list->n; i++) {
        struct jinja_value v;
        TRY(get_path(j, list->items[i], c->arg[0], &v));
        TRY(jinja_op_binary(j, '+', total, v, &total));
    }
    *out = total;
    return SAC_OK;
}

/* Lists of `n` members; the last one is filled up if a filler is given. */
static sac_status filter_batch(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_list *list;
    int64_t n;
    TRY(jinja_call_int(j, c, 0, 0, &n));
    if (n < 1) return jinja_fail(j, "batch by %" PRId64, n);
    TRY(jinja_members(j, c->self, &list));
    TRY(jinja_list_new(j, out, JINJA_LIST));
    for (uint32_t at = 0; at < list->n;) {
        struct jinja_value batch;
        TRY(jinja_list_new(j, &batch, JINJA_LIST));
        int64_t k = 0;
        for (; k < n && at < list->n; k++) TRY(jinja_list_push(j, batch.list, list->items[at++]));
        for (; k < n && c->arg[1].kind != JINJA_MISSING && c->arg[1].kind != JINJA_NONE; k++)
            TRY(jinja_list_push(j, batch.list, c->arg[1]));
        TRY(jinja_list_push(j, out->list, batch));
    }
    return SAC_OK;
}

/* ---- Order ---- */

struct sort_item {
    struct jinja_value key, value;
};

/* The value to compare: the member at `path`, in lower case unless case counts. */
static sac_status sort_key(struct jinja *j, struct jinja_value v, struct jinja_value path,
                           bool cased, struct jinja_value *out)
{
    TRY(get_path(j, v, path, out));
    return out->kind == JINJA_STRING && !cased ? jinja_text_case(j, *out, false, out) : SAC_OK;
}

/* Merges [0, half) and [half, n) of `from` into `to`; equal keys keep their order. */
static sac_status merge(struct jinja *j, const struct sort_item *from, uint32_t half, uint32_t n,
                        int sign, struct sort_item *to)
{
    uint32_t a = 0, b = half;
    for (uint32_t i = 0; i < n; i++) {
        int order = 0;
        if (a < half && b < n) TRY(jinja_order(j, from[a].key, from[b].key, &order));
        const bool left = b == n || (a < half && order * sign <= 0);
        to[i] = from[left ? a++ : b++];
    }
    return SAC_OK;
}

/* Sorts bottom up; the result is in `*io`, with `scratch` of the same size. */
static sac_status sort_items(struct jinja *j, struct sort_item **io, struct sort_item *scratch,
                             uint32_t n, bool reverse)
{
    struct sort_item *from = *io, *to = scratch;
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t at = 0; at < n; at += 2 * width) {
            const uint64_t left = n - at;
            const uint32_t whole = (uint32_t)(left < 2 * width ? left : 2 * width);
            const uint32_t half = (uint32_t)(left < width ? left : width);
            TRY(merge(j, from + at, half, whole, reverse ? -1 : 1, to + at));
        }
        struct sort_item *const swap = from;
        from = to;
        to = swap;
    }
    *io = from;
    return SAC_OK;
}

struct sort_by {
    struct jinja_value path;
    bool cased, reverse;
};

static sac_status sort_list(struct jinja *j, const struct jinja_list *list, struct sort_by by,
                            struct jinja_value *out)
{
    struct sort_item *items = jinja_alloc(j, list->n * sizeof *items);
    struct sort_item *scratch = items ? jinja_alloc(j, list->n * sizeof *scratch) : NULL;
    if (!scratch) return jinja_no_memory(j);
    for (uint32_t i = 0; i < list->n; i++) {
        items[i].value = list->items[i];
        TRY(sort_key(j, list->items[i], by.path, by.cased, &items[i].key));
    }
    TRY(sort_items(j, &items, scratch, list->n, by.reverse));
    TRY(jinja_list_new(j, out, JINJA_LIST));
    for (uint32_t i = 0; i < list->n; i++) TRY(jinja_list_push(j, out->list, items[i].value));
    return SAC_OK;
}

static sac_status filter_sort(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_list *list;
    TRY(jinja_members(j, c->self, &list));
    const struct sort_by by = {.path = c->arg[2],
                               .cased = jinja_call_flag(c, 1, false),
                               .reverse = jinja_call_flag(c, 0, false)};
    return sort_list(j, list, by, out);
}

static sac_status filter_dictsort(struct jinja *j, const struct jinja_call *c,
                                  struct jinja_value *out)
{
    struct jinja_value by, items;
    TRY(jinja_call_text(j, c, 1, "key", &by));
    if (!jinja_is_str(by, "key") && !jinja_is_str(by, "value"))
        return jinja_fail(j, "dictsort by what is neither key nor value");
    TRY(filter_items(j, c, &items));
    const struct sort_by order = {.path = jinja_int(jinja_is_str(by, "value")),
                                  .cased = jinja_call_flag(c, 0, false),
                                  .reverse = jinja_call_flag(c, 2, false)};
    return sort_list(j, items.list, order, out);
}

static sac_status filter_unique(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    const struct jinja_list *list;
    struct jinja_value seen, key, *found;
    TRY(jinja_members(j, c->self, &list));
    TRY(jinja_list_new(j, out, JINJA_LIST));
    TRY(jinja_dict_new(j, &seen));
    for (uint32_t i = 0; i < list->n; i++) {
        TRY(sort_key(j, list->items[i], c->arg[1], jinja_call_flag(c, 0, false), &key));
        TRY(jinja_dict_get(j, seen.dict, key, &found));
        if (found) continue;
        TRY(jinja_dict_set(j, seen.dict, key, jinja_none()));
        TRY(jinja_list_push(j, out->list, list->items[i]));
    }
    return SAC_OK;
}

static sac_status extreme(struct jinja *j, const struct jinja_call *c, int sign,
                          struct jinja_value *out)
{
    const struct jinja_list *list;
    struct jinja_value best = jinja_none(), key;
    const bool cased = jinja_call_flag(c, 0, false);
    TRY(jinja_members(j, c->self, &list));
    *out = jinja_undefined("item of an empty sequence", 25);
    for (uint32_t i = 0; i < list->n; i++) {
        int order = -sign;
        TRY(sort_key(j, list->items[i], c->arg[1], cased, &key));
        if (i) TRY(jinja_order(j, best, key, &order));
        if (order != -sign) continue;
        best = key;
        *out = list->items[i];
    }
    return SAC_OK;
}

static sac_status filter_min(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return extreme(j, c, -1, out);
}

static sac_status filter_max(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return extreme(j, c, 1, out);
}

/* ---- Filters that apply filters and tests ---- */

static sac_status filter_map(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_list *list;
    struct jinja_value *path = NULL, *otherwise = NULL;
    const struct jinja_builtin *filter = NULL;
    if (c->args.kw) TRY(jinja_dict_get(j, c->args.kw, jinja_strz("attribute"), &path));
    if (c->args.kw) TRY(jinja_dict_get(j, c->args.kw, jinja_strz("default"), &otherwise));
    if (!path) {
        if (c->args.n_pos == 0 || c->args.pos[0].kind != JINJA_STRING)
            return jinja_fail(j, "map needs a filter's name or attribute=");
        filter = jinja_filter_find(c->args.pos[0]);
        if (!filter)
            return jinja_fail(j, "no filter named '%.*s'", (int)c->args.pos[0].n, c->args.pos[0].s);
    }
    TRY(jinja_members(j, c->self, &list));
    TRY(jinja_list_new(j, out, JINJA_LIST));
    struct jinja_args args = c->args;
    if (filter) { /* its arguments come after its name */
        args.pos++;
        args.n_pos--;
    }
    for (uint32_t i = 0; i < list->n; i++) {
        struct jinja_value v;
        if (path)
            TRY(get_path(j, list->items[i], *path, &v));
        else
            TRY(jinja_call_builtin(j, filter, list->items[i], args, &v));
        if (v.kind == JINJA_UNDEFINED && otherwise) v = *otherwise;
        TRY(jinja_list_push(j, out->list, v));
    }
    return SAC_OK;
}

/* Selects the members for which the test holds or does not; without a test, those that are true or
 * false. There are n_attr arguments before the test's name: none, or the attribute to test. */
static sac_status select_by(struct jinja *j, const struct jinja_call *c, bool keep, uint32_t n_attr,
                            struct jinja_value *out)
{
    const struct jinja_list *list;
    const struct jinja_builtin *test = NULL;
    if (c->args.n_pos < n_attr) return jinja_fail(j, "%s needs an attribute", c->builtin->name);
    if (c->args.n_pos > n_attr) {
        const struct jinja_value name = c->args.pos[n_attr];
        test = name.kind == JINJA_STRING ? jinja_test_find(name) : NULL;
        if (!test) return jinja_fail(j, "%s by an unknown test", c->builtin->name);
    }
    TRY(jinja_members(j, c->self, &list));
    TRY(jinja_list_new(j, out, JINJA_LIST));
    struct jinja_args args = c->args;
    if (test) {
        args.pos += n_attr + 1;
        args.n_pos -= n_attr + 1;
    }
    for (uint32_t i = 0; i < list->n; i++) {
        struct jinja_value v = list->items[i];
        if (n_attr) TRY(get_path(j, v, c->args.pos[0], &v));
        if (test) TRY(jinja_call_builtin(j, test, v, args, &v));
        TRY(jinja_step(j, 1));
        if (jinja_truth(v) == keep) TRY(jinja_list_push(j, out->list, list->items[i]));
    }
    return SAC_OK;
}

static sac_status filter_select(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return select_by(j, c, true, 0, out);
}

static sac_status filter_reject(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return select_by(j, c, false, 0, out);
}

static sac_status filter_selectattr(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    return select_by(j, c, true, 1, out);
}

static sac_status filter_rejectattr(struct jinja *j, const struct jinja_call *c,
                                    struct jinja_value *out)
{
    return select_by(j, c, false, 1, out);
}

static const struct jinja_builtin filters[] = {
    {"abs", filter_abs, {NULL}, false},
    {"attr", filter_attr, {"name"}, false},
    {"batch", filter_batch, {"linecount", "fill_with?"}, false},
    {"capitalize", filter_capitalize, {NULL}, false},
    {"count", filter_length, {NULL}, false},
    {"d", filter_default, {"default_value?", "boolean?"}, false},
    {"default", filter_default, {"default_value?", "boolean?"}, false},
    {"dictsort", filter_dictsort, {"case_sensitive?", "by?", "reverse?"}, false},
    {"e", filter_escape, {NULL}, false},
    {"escape", filter_escape, {NULL}, false},
    {"first", filter_first, {NULL}, false},
    {"float", filter_float, {"default?"}, false},
    {"format", filter_format, {NULL}, true},
    {"indent", filter_indent, {"width?", "first?", "blank?"}, false},
    {"int", filter_int, {"default?", "base?"}, false},
    {"items", filter_items, {NULL}, false},
    {"join", filter_join, {"d?", "attribute?"}, false},
    {"last", filter_last, {NULL}, false},
    {"length", filter_length, {NULL}, false},
    {"list", filter_list, {NULL}, false},
    {"lower", filter_lower, {NULL}, false},
    {"map", filter_map, {NULL}, true},
    {"max", filter_max, {"case_sensitive?", "attribute?"}, false},
    {"min", filter_min, {"case_sensitive?", "attribute?"}, false},
    {"reject", filter_reject, {NULL}, true},
    {"rejectattr", filter_rejectattr, {NULL}, true},
    {"replace", filter_replace, {"old", "new", "count?"}, false},
    {"reverse", filter_reverse, {NULL}, false},
    {"round", filter_round, {"precision?", "method?"}, false},
    {"safe", filter_safe, {NULL}, false},
    {"select", filter_select, {NULL}, true},
    {"selectattr", filter_selectattr, {NULL}, true},
    {"sort", filter_sort, {"reverse?", "case_sensitive?", "attribute?"}, false},
    {"string", filter_string, {NULL}, false},
    {"sum", filter_sum, {"attribute?", "start?"}, false},
    {"title", filter_title, {NULL}, false},
    {"tojson", filter_tojson, {"ensure_ascii?", "indent?", "separators?", "sort_keys?"}, false},
    {"trim", filter_trim, {"chars?"}, false},
    {"unique", filter_unique, {"case_sensitive?", "attribute?"}, false},
    {"upper", filter_upper, {NULL}, false},
    {"wordcount", filter_wordcount, {NULL}, false},
    {NULL, NULL, {NULL}, false},
};

const struct jinja_builtin *jinja_filter_find(struct jinja_value name)
{
    return jinja_call_find(filters, name);
}
