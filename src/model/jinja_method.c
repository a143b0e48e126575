/* jinja_method.c: methods of strings, lists, dicts and loops.
 *
 * Methods that would change their object exist by name only and fail when called, as in the
 * immutable sandbox: templates use namespaces for what changes. */
#include "model/jinja.h"

#include "model/jinja_format.h"

#include <math.h>

/* ---- Strings ---- */

static sac_status strip(struct jinja *j, const struct jinja_call *c, unsigned ends,
                        struct jinja_value *out)
{
    struct jinja_value chars = c->arg[0];
    if (chars.kind != JINJA_MISSING && chars.kind != JINJA_NONE)
        TRY(jinja_call_text(j, c, 0, "", &chars));
    TRY(jinja_step_bytes(j, c->self.n));
    *out = jinja_text_strip(c->self, chars, ends);
    return SAC_OK;
}

static sac_status str_strip(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return strip(j, c, 3, out);
}

static sac_status str_lstrip(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return strip(j, c, 1, out);
}

static sac_status str_rstrip(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return strip(j, c, 2, out);
}

static sac_status push_part(struct jinja *j, struct jinja_value list, const char *s, size_t n)
{
    return jinja_list_push(j, list.list, jinja_str(s, n));
}

static sac_status split_spaces(struct jinja *j, struct jinja_value s, int64_t max,
                               struct jinja_value out)
{
    const struct jinja_value any = {.kind = JINJA_MISSING};
    s = jinja_text_strip(s, any, 1);
    for (int64_t done = 0; s.n; done++) {
        uint32_t at = done == max ? s.n : 0; /* the rest is not split */
        while (at < s.n && !jinja_text_space(s.s + at, s.n - at)) at++;
        TRY(jinja_step_bytes(j, at));
        TRY(push_part(j, out, s.s, at));
        s = jinja_text_strip(jinja_str(s.s + at, s.n - at), any, 1);
    }
    return SAC_OK;
}

static sac_status split_at(struct jinja *j, struct jinja_value s, struct jinja_value sep,
                           int64_t max, struct jinja_value out)
{
    for (int64_t done = 0; done != max; done++) {
        const char *hit = jinja_text_find(s.s, s.n, sep.s, sep.n);
        if (!hit) break;
        TRY(push_part(j, out, s.s, (size_t)(hit - s.s)));
        s = jinja_str(hit + sep.n, s.n - sep.n - (size_t)(hit - s.s));
    }
    return push_part(j, out, s.s, s.n);
}

/* The last place of `what` in `s`, or NULL. */
static sac_status find_last(struct jinja *j, struct jinja_value s, struct jinja_value what,
                            const char **out)
{
    *out = NULL;
    TRY(jinja_step(j, 1 + s.n / JINJA_STEP_BYTES + (uint64_t)s.n * what.n / 4096));
    for (size_t at = (size_t)s.n + 1; at-- > 0 && !*out;)
        if (at + what.n <= s.n && jinja_text_same(s.s + at, what.n, what.s, what.n))
            *out = s.s + at;
    return SAC_OK;
}

/* Found backwards from the right, so the parts are collected in reverse and then reversed. */
static sac_status rsplit_at(struct jinja *j, struct jinja_value s, struct jinja_value sep,
                            int64_t max, struct jinja_value out)
{
    for (int64_t done = 0; done != max; done++) {
        const char *hit;
        TRY(find_last(j, s, sep, &hit));
        if (!hit) break;
        const size_t behind = (size_t)(hit - s.s) + sep.n;
        TRY(push_part(j, out, s.s + behind, s.n - behind));
        s.n = (uint32_t)(hit - s.s);
    }
    TRY(push_part(j, out, s.s, s.n));
    struct jinja_list *list = out.list;
    for (uint32_t i = 0; i < list->n / 2; i++) {
        const struct jinja_value swap = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swap;
    }
    return SAC_OK;
}

static sac_status split(struct jinja *j, const struct jinja_call *c, bool right,
                        struct jinja_value *out)
{
    struct jinja_value sep = c->arg[0];
    int64_t max;
    TRY(jinja_call_int(j, c, 1, -1, &max));
    TRY(jinja_list_new(j, out, JINJA_LIST));
    TRY(jinja_step_bytes(j, c->self.n));
    const bool spaces = sep.kind == JINJA_MISSING || sep.kind == JINJA_NONE;
    if (spaces && right && max >= 0)
        return jinja_fail(j, "rsplit by spaces with a limit is not supported");
    if (spaces) return split_spaces(j, c->self, max < 0 ? -1 : max, *out);
    TRY(jinja_call_text(j, c, 0, "", &sep));
    if (sep.n == 0) return jinja_fail(j, "split by an empty string");
    return (right ? rsplit_at : split_at)(j, c->self, sep, max < 0 ? -1 : max, *out);
}

static sac_status str_split(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return split(j, c, false, out);
}

static sac_status str_rsplit(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return split(j, c, true, out);
}

static sac_status str_splitlines(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    const bool keep = jinja_call_flag(c, 0, false);
    const struct jinja_value s = c->self;
    TRY(jinja_step_bytes(j, s.n));
    TRY(jinja_list_new(j, out, JINJA_LIST));
    uint32_t from = 0;
    for (uint32_t at = 0; at < s.n; at++) {
        if (s.s[at] != '\n' && s.s[at] != '\r') continue;
        const uint32_t end = at;
        if (s.s[at] == '\r' && at + 1 < s.n && s.s[at + 1] == '\n') at++;
        TRY(push_part(j, *out, s.s + from, (keep ? at + 1 : end) - from));
        from = at + 1;
    }
    return from < s.n ? push_part(j, *out, s.s + from, s.n - from) : SAC_OK;
}

static bool has_affix(struct jinja_value s, struct jinja_value affix, bool at_end)
{
    return affix.kind == JINJA_STRING && affix.n <= s.n &&
           jinja_text_same(at_end ? s.s + s.n - affix.n : s.s, affix.n, affix.s, affix.n);
}

static sac_status affix(struct jinja *j, const struct jinja_call *c, bool at_end,
                        struct jinja_value *out)
{
    struct jinja_value what = c->arg[0];
    bool found = false;
    if (what.kind == JINJA_TUPLE) {
        TRY(jinja_step(j, what.list->n));
        for (uint32_t i = 0; i < what.list->n && !found; i++)
            found = has_affix(c->self, what.list->items[i], at_end);
    } else {
        TRY(jinja_call_text(j, c, 0, "", &what));
        found = has_affix(c->self, what, at_end);
    }
    *out = jinja_bool(found);
    return SAC_OK;
}

static sac_status str_startswith(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    return affix(j, c, false, out);
}

static sac_status str_endswith(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return affix(j, c, true, out);
}

static sac_status str_removeprefix(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    struct jinja_value what;
    TRY(jinja_call_text(j, c, 0, "", &what));
    *out = c->self;
    if (has_affix(c->self, what, false)) *out = jinja_str(out->s + what.n, out->n - what.n);
    return SAC_OK;
}

static sac_status str_removesuffix(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    struct jinja_value what;
    TRY(jinja_call_text(j, c, 0, "", &what));
    *out = c->self;
    if (has_affix(c->self, what, true)) out->n -= what.n;
    return SAC_OK;
}

static sac_status str_upper(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return jinja_text_case(j, c->self, true, out);
}

static sac_status str_lower(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return jinja_text_case(j, c->self, false, out);
}

static bool is_letter(char ch)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (unsigned char)ch >= 0x80;
}

/* Lower case, then upper case for the first letter, or that of every word. */
static sac_status str_capital(struct jinja *j, const struct jinja_call *c, bool every,
                              struct jinja_value *out)
{
    TRY(jinja_text_case(j, c->self, false, out));
    char *s = jinja_chars(j, out->n);
    if (!s) return jinja_no_memory(j);
    bool inside = false;
    for (uint32_t i = 0; i < out->n; i++) {
        const char ch = out->s[i];
        const bool first = every ? !inside : i == 0;
        s[i] = first && ch >= 'a' && ch <= 'z' ? (char)(ch ^ 0x20) : ch;
        inside = is_letter(ch);
    }
    out->s = s;
    return SAC_OK;
}

static sac_status str_title(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return str_capital(j, c, true, out);
}

static sac_status str_capitalize(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    return str_capital(j, c, false, out);
}

static sac_status str_replace(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_value from, to;
    int64_t count;
    TRY(jinja_call_text(j, c, 0, "", &from));
    TRY(jinja_call_text(j, c, 1, "", &to));
    TRY(jinja_call_int(j, c, 2, -1, &count));
    return jinja_text_replace(j, c->self, from, to, count, out);
}

static sac_status find(struct jinja *j, const struct jinja_call *c, bool last, bool must,
                       struct jinja_value *out)
{
    struct jinja_value what;
    const struct jinja_value s = c->self;
    TRY(jinja_call_text(j, c, 0, "", &what));
    TRY(jinja_step_bytes(j, s.n));
    const char *hit = jinja_text_find(s.s, s.n, what.s, what.n);
    if (last) TRY(find_last(j, s, what, &hit));
    if (!hit && must) return jinja_fail(j, "index: the substring is not there");
    *out = jinja_int(hit ? (int64_t)jinja_text_length(s.s, (size_t)(hit - s.s)) : -1);
    return SAC_OK;
}

static sac_status str_find(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return find(j, c, false, false, out);
}

static sac_status str_rfind(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return find(j, c, true, false, out);
}

static sac_status str_index(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return find(j, c, false, true, out);
}

static sac_status str_count(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_value what, s = c->self;
    TRY(jinja_call_text(j, c, 0, "", &what));
    TRY(jinja_step_bytes(j, s.n));
    int64_t count = what.n ? 0 : (int64_t)jinja_text_length(s.s, s.n) + 1;
    const char *hit;
    while (what.n && (hit = jinja_text_find(s.s, s.n, what.s, what.n))) {
        TRY(jinja_step(j, 1));
        count++;
        s = jinja_str(hit + what.n, s.n - what.n - (size_t)(hit - s.s));
    }
    *out = jinja_int(count);
    return SAC_OK;
}

static sac_status str_join(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_list *list;
    const size_t begin = jinja_text_begin(j);
    TRY(jinja_members(j, c->arg[0], &list));
    for (uint32_t i = 0; i < list->n; i++) {
        const struct jinja_value v = list->items[i];
        TRY(jinja_step(j, 1));
        if (v.kind != JINJA_STRING)
            return jinja_fail(j, "join: item %u is of type %s", i, jinja_kind_name(v));
        if (i) TRY(jinja_text_add(j, c->self.s, c->self.n));
        TRY(jinja_text_add(j, v.s, v.n));
    }
    return jinja_text_end(j, begin, out);
}

static sac_status partition(struct jinja *j, const struct jinja_call *c, bool last,
                            struct jinja_value *out)
{
    struct jinja_value sep;
    const struct jinja_value s = c->self;
    TRY(jinja_call_text(j, c, 0, "", &sep));
    if (sep.n == 0) return jinja_fail(j, "partition by an empty string");
    TRY(jinja_step_bytes(j, s.n));
    TRY(jinja_list_new(j, out, JINJA_TUPLE));
    const char *hit = jinja_text_find(s.s, s.n, sep.s, sep.n);
    if (last) TRY(find_last(j, s, sep, &hit));
    const size_t at = hit ? (size_t)(hit - s.s) : last ? 0 : s.n;
    const size_t behind = hit ? at + sep.n : at;
    TRY(push_part(j, *out, s.s, at));
    TRY(push_part(j, *out, s.s + at, behind - at));
    return push_part(j, *out, s.s + behind, s.n - behind);
}

static sac_status str_partition(struct jinja *j, const struct jinja_call *c,
                                struct jinja_value *out)
{
    return partition(j, c, false, out);
}

static sac_status str_rpartition(struct jinja *j, const struct jinja_call *c,
                                 struct jinja_value *out)
{
    return partition(j, c, true, out);
}

/* Whether there is a character and all are in one of the classes. */
static sac_status all_in(struct jinja *j, struct jinja_value s, bool digit, bool letter, bool space,
                         struct jinja_value *out)
{
    TRY(jinja_step_bytes(j, s.n));
    bool all = s.n > 0;
    for (uint32_t i = 0; i < s.n && all; i++) {
        const char ch = s.s[i];
        all = (digit && ch >= '0' && ch <= '9') || (letter && is_letter(ch)) ||
              (space && jinja_text_space(&ch, 1));
    }
    *out = jinja_bool(all);
    return SAC_OK;
}

static sac_status str_isdigit(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return all_in(j, c->self, true, false, false, out);
}

static sac_status str_isalpha(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return all_in(j, c->self, false, true, false, out);
}

static sac_status str_isalnum(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return all_in(j, c->self, true, true, false, out);
}

static sac_status str_isspace(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return all_in(j, c->self, false, false, true, out);
}

static sac_status str_isupper(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return jinja_call_builtin(j, jinja_test_find(jinja_strz("upper")), c->self,
                              (struct jinja_args){0}, out);
}

static sac_status str_islower(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return jinja_call_builtin(j, jinja_test_find(jinja_strz("lower")), c->self,
                              (struct jinja_args){0}, out);
}

/* ---- Lists, dicts, loops ---- */

static sac_status list_count(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < c->self.list->n; i++) {
        bool same;
        TRY(jinja_equal(j, c->self.list->items[i], c->arg[0], &same));
        count += same;
    }
    *out = jinja_int(count);
    return SAC_OK;
}

static sac_status list_index(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    for (uint32_t i = 0; i < c->self.list->n; i++) {
        bool same;
        TRY(jinja_equal(j, c->self.list->items[i], c->arg[0], &same));
        *out = jinja_int(i);
        if (same) return SAC_OK;
    }
    return jinja_fail(j, "index: the value is not in the list");
}

static sac_status copy(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    (void)j;
    *out = c->self; /* values are immutable, so a copy is the same */
    return SAC_OK;
}

static sac_status dict_get(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    struct jinja_value *found;
    TRY(jinja_dict_get(j, c->self.dict, c->arg[0], &found));
    if (found)
        *out = *found;
    else
        *out = c->arg[1].kind == JINJA_MISSING ? jinja_none() : c->arg[1];
    return SAC_OK;
}

static sac_status dict_keys(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_dict *d = c->self.dict;
    TRY(jinja_list_new(j, out, JINJA_LIST));
    for (uint32_t i = 0; i < d->n; i++) TRY(jinja_list_push(j, out->list, d->pairs[i].key));
    return SAC_OK;
}

static sac_status dict_values(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_dict *d = c->self.dict;
    TRY(jinja_list_new(j, out, JINJA_LIST));
    for (uint32_t i = 0; i < d->n; i++) TRY(jinja_list_push(j, out->list, d->pairs[i].value));
    return SAC_OK;
}

static sac_status dict_items(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    const struct jinja_builtin *filter = jinja_filter_find(jinja_strz("items"));
    return jinja_call_builtin(j, filter, c->self, (struct jinja_args){0}, out);
}

static sac_status changes(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    *out = jinja_none();
    return jinja_fail(j, "%s would change a value, which templates may not", c->builtin->name);
}

static sac_status loop_cycle(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    if (c->args.n_pos == 0) return jinja_fail(j, "cycle needs a value");
    *out = c->args.pos[c->self.loop->at % c->args.n_pos];
    return SAC_OK;
}

static sac_status float_is_integer(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    (void)j;
    *out = jinja_bool(isfinite(c->self.f) && c->self.f == floor(c->self.f));
    return SAC_OK;
}

static const struct jinja_builtin string_methods[] = {
    {"strip", str_strip, {"chars?"}, false},
    {"lstrip", str_lstrip, {"chars?"}, false},
    {"rstrip", str_rstrip, {"chars?"}, false},
    {"split", str_split, {"sep?", "maxsplit?"}, false},
    {"rsplit", str_rsplit, {"sep?", "maxsplit?"}, false},
    {"splitlines", str_splitlines, {"keepends?"}, false},
    {"startswith", str_startswith, {"prefix"}, false},
    {"endswith", str_endswith, {"suffix"}, false},
    {"removeprefix", str_removeprefix, {"prefix"}, false},
    {"removesuffix", str_removesuffix, {"suffix"}, false},
    {"upper", str_upper, {NULL}, false},
    {"lower", str_lower, {NULL}, false},
    {"title", str_title, {NULL}, false},
    {"capitalize", str_capitalize, {NULL}, false},
    {"replace", str_replace, {"old", "new", "count?"}, false},
    {"find", str_find, {"sub"}, false},
    {"rfind", str_rfind, {"sub"}, false},
    {"index", str_index, {"sub"}, false},
    {"count", str_count, {"sub"}, false},
    {"join", str_join, {"iterable"}, false},
    {"partition", str_partition, {"sep"}, false},
    {"rpartition", str_rpartition, {"sep"}, false},
    {"isdigit", str_isdigit, {NULL}, false},
    {"isnumeric", str_isdigit, {NULL}, false},
    {"isdecimal", str_isdigit, {NULL}, false},
    {"isalpha", str_isalpha, {NULL}, false},
    {"isalnum", str_isalnum, {NULL}, false},
    {"isspace", str_isspace, {NULL}, false},
    {"isupper", str_isupper, {NULL}, false},
    {"islower", str_islower, {NULL}, false},
    {"format", jinja_format_braces, {NULL}, true},
    {NULL, NULL, {NULL}, false},
};

static const struct jinja_builtin list_methods[] = {
    {"count", list_count, {"value"}, false}, {"index", list_index, {"value"}, false},
    {"copy", copy, {NULL}, false},           {"append", changes, {NULL}, true},
    {"extend", changes, {NULL}, true},       {"insert", changes, {NULL}, true},
    {"pop", changes, {NULL}, true},          {"remove", changes, {NULL}, true},
    {"reverse", changes, {NULL}, true},      {"sort", changes, {NULL}, true},
    {"clear", changes, {NULL}, true},        {NULL, NULL, {NULL}, false},
};

static const struct jinja_builtin dict_methods[] = {
    {"get", dict_get, {"key", "default?"}, false},
    {"keys", dict_keys, {NULL}, false},
    {"values", dict_values, {NULL}, false},
    {"items", dict_items, {NULL}, false},
    {"copy", copy, {NULL}, false},
    {"update", changes, {NULL}, true},
    {"pop", changes, {NULL}, true},
    {"popitem", changes, {NULL}, true},
    {"setdefault", changes, {NULL}, true},
    {"clear", changes, {NULL}, true},
    {NULL, NULL, {NULL}, false},
};

static const struct jinja_builtin loop_methods[] = {
    {"cycle", loop_cycle, {NULL}, true},
    {NULL, NULL, {NULL}, false},
};

static const struct jinja_builtin float_methods[] = {
    {"is_integer", float_is_integer, {NULL}, false},
    {NULL, NULL, {NULL}, false},
};

const struct jinja_builtin *jinja_method_find(struct jinja_value self, struct jinja_value name)
{
    switch ((enum jinja_kind)self.kind) {
    case JINJA_STRING: return jinja_call_find(string_methods, name);
    case JINJA_LIST:
    case JINJA_TUPLE: return jinja_call_find(list_methods, name);
    case JINJA_DICT: return jinja_call_find(dict_methods, name);
    case JINJA_LOOP: return jinja_call_find(loop_methods, name);
    case JINJA_FLOAT: return jinja_call_find(float_methods, name);
    default: return NULL;
    }
}
