/* jinja_op.c: operators, attributes, subscripts and slices, with Python's rules for each kind.
 *
 * Integers have 64 bits: what does not fit is an error, never a wrapped number. An undefined value
 * can be tested, printed and iterated, and fails in everything else. */
#include "model/jinja.h"

#include "model/jinja_format.h"

#include <math.h>

/* ---- Arithmetic ---- */

static int64_t as_int(struct jinja_value v)
{
    return v.kind == JINJA_BOOL ? v.b : v.i;
}

static double as_float(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.f : (double)as_int(v);
}

static sac_status check_defined(struct jinja *j, struct jinja_value v)
{
    if (v.kind != JINJA_UNDEFINED) return SAC_OK;
    return jinja_fail(j, "'%.*s' is undefined", (int)v.n, v.s);
}

static sac_status bad_operands(struct jinja *j, uint32_t op, struct jinja_value a,
                               struct jinja_value b)
{
    TRY(check_defined(j, a));
    TRY(check_defined(j, b));
    const char name[3] = {(char)op, (char)(op >> 8), 0};
    return jinja_fail(j, "'%s' between %s and %s", name, jinja_kind_name(a), jinja_kind_name(b));
}

/* Division rounds down and the remainder has the divisor's sign. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static bool int_power(int64_t base, int64_t exp, int64_t *out)
{
    int64_t r = 1;
    bool over = false, base_over = false;
    for (; exp > 0 && !over; exp >>= 1) {
        if (exp & 1) over = base_over || __builtin_mul_overflow(r, base, &r);
        base_over = base_over || __builtin_mul_overflow(base, base, &base);
    }
    *out = r;
    return over;
}

static sac_status int_op(struct jinja *j, uint32_t op, int64_t a, int64_t b,
                         struct jinja_value *out)
{
    int64_t r = 0;
    bool over = false;
    if (op == '+')
        over = __builtin_add_overflow(a, b, &r);
    else if (op == '-')
        over = __builtin_sub_overflow(a, b, &r);
    else if (op == '*')
        over = __builtin_mul_overflow(a, b, &r);
    else if (op == JINJA_OP2('*', '*'))
        over = int_power(a, b, &r);
    else if (b == -1)
        over = op != '%' && __builtin_sub_overflow(0, a, &r); /* INT64_MIN / -1 */
    else if (op == '%')
        r = a - floor_div(a, b) * b;
    else
        r = floor_div(a, b);
    if (over) return jinja_fail(j, "an integer beyond 64 bits");
    *out = jinja_int(r);
    return SAC_OK;
}

static sac_status number_op(struct jinja *j, uint32_t op, struct jinja_value a,
                            struct jinja_value b, struct jinja_value *out)
{
    const bool divides = op == '/' || op == '%' || op == JINJA_OP2('/', '/');
    const double x = as_float(a), y = as_float(b);
    if (divides && y == 0) return jinja_fail(j, "division by zero");
    const bool power = op == JINJA_OP2('*', '*');
    if (a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT && op != '/' && !(power && y < 0))
        return int_op(j, op, as_int(a), as_int(b), out);
    double r = 0;
    if (op == '+')
        r = x + y;
    else if (op == '-')
        r = x - y;
    else if (op == '*')
        r = x * y;
    else if (op == '/')
        r = x / y;
    else if (power)
        r = pow(x, y);
    else if (op == '%') {
        r = fmod(x, y);
        if (r != 0 && (r < 0) != (y < 0)) r += y;
    } else
        r = floor(x / y);
    *out = jinja_float(r);
    return SAC_OK;
}

/* A string or list repeated `n` times. */
static sac_status repeat(struct jinja *j, struct jinja_value v, int64_t n, struct jinja_value *out)
{
    if (v.kind != JINJA_STRING) {
        TRY(jinja_list_new(j, out, v.kind));
        for (int64_t i = 0; i < n && v.list->n; i++)
            for (uint32_t k = 0; k < v.list->n; k++)
                TRY(jinja_list_push(j, out->list, v.list->items[k]));
        return SAC_OK;
    }
    const size_t begin = jinja_text_begin(j);
    for (int64_t i = 0; i < n && v.n; i++) {
        TRY(jinja_step(j, 1));
        TRY(jinja_text_add(j, v.s, v.n));
    }
    TRY(jinja_text_end(j, begin, out));
    out->markup = v.markup;
    return SAC_OK;
}

static sac_status join_lists(struct jinja *j, struct jinja_value a, struct jinja_value b,
                             struct jinja_value *out)
{
    TRY(jinja_list_new(j, out, a.kind));
    for (uint32_t i = 0; i < a.list->n; i++) TRY(jinja_list_push(j, out->list, a.list->items[i]));
    for (uint32_t i = 0; i < b.list->n; i++) TRY(jinja_list_push(j, out->list, b.list->items[i]));
    return SAC_OK;
}

/* Joins strings; if one of them is marked safe, the other is escaped. */
static sac_status join_strings(struct jinja *j, struct jinja_value a, struct jinja_value b,
                               struct jinja_value *out)
{
    const bool markup = a.markup || b.markup;
    if (markup) {
        TRY(jinja_text_escape(j, a, &a));
        TRY(jinja_text_escape(j, b, &b));
    }
    TRY(jinja_text_concat(j, a, b, out));
    out->markup = markup;
    return SAC_OK;
}

static bool is_sequence(struct jinja_value v)
{
    return v.kind == JINJA_STRING || jinja_is_list(v);
}

static bool is_whole(struct jinja_value v)
{
    return v.kind == JINJA_INT || v.kind == JINJA_BOOL;
}

sac_status jinja_op_binary(struct jinja *j, uint32_t op, struct jinja_value a, struct jinja_value b,
                           struct jinja_value *out)
{
    if (jinja_is_number(a) && jinja_is_number(b)) return number_op(j, op, a, b, out);
    if (op == '+' && a.kind == JINJA_STRING && b.kind == JINJA_STRING)
        return join_strings(j, a, b, out);
    if (op == '+' && jinja_is_list(a) && a.kind == b.kind) return join_lists(j, a, b, out);
    if (op == '*' && is_sequence(a) && is_whole(b)) return repeat(j, a, as_int(b), out);
    if (op == '*' && is_whole(a) && is_sequence(b)) return repeat(j, b, as_int(a), out);
    if (op == '%' && a.kind == JINJA_STRING) return jinja_format_percent(j, a, b, out);
    return bad_operands(j, op, a, b);
}

/* ---- Comparison and membership ---- */

static sac_status contains(struct jinja *j, struct jinja_value in, struct jinja_value what,
                           bool *out)
{
    *out = false;
    if (in.kind == JINJA_STRING) {
        if (what.kind != JINJA_STRING) return bad_operands(j, JINJA_OP2('i', 'n'), what, in);
        TRY(jinja_step_bytes(j, in.n));
        *out = jinja_text_find(in.s, in.n, what.s, what.n) != NULL;
    } else if (in.kind == JINJA_DICT) {
        struct jinja_value *found;
        TRY(jinja_dict_get(j, in.dict, what, &found));
        *out = found != NULL;
    } else if (jinja_is_list(in)) {
        for (uint32_t i = 0; i < in.list->n && !*out; i++)
            TRY(jinja_equal(j, in.list->items[i], what, out));
    } else if (in.kind != JINJA_UNDEFINED) {
        return bad_operands(j, JINJA_OP2('i', 'n'), what, in);
    }
    return SAC_OK;
}

sac_status jinja_op_compare(struct jinja *j, uint32_t op, struct jinja_value a,
                            struct jinja_value b, bool *out)
{
    int order;
    switch (op) {
    case 'i': return contains(j, b, a, out);
    case 'n':
        TRY(contains(j, b, a, out));
        *out = !*out;
        return SAC_OK;
    case JINJA_OP2('=', '='): return jinja_equal(j, a, b, out);
    case JINJA_OP2('!', '='):
        TRY(jinja_equal(j, a, b, out));
        *out = !*out;
        return SAC_OK;
    default: break;
    }
    TRY(check_defined(j, a));
    TRY(check_defined(j, b));
    TRY(jinja_order(j, a, b, &order));
    if (op == '<')
        *out = order < 0;
    else if (op == '>')
        *out = order > 0;
    else if (op == JINJA_OP2('<', '='))
        *out = order <= 0;
    else
        *out = order >= 0;
    return SAC_OK;
}

/* ---- Attributes and subscripts ---- */

static struct jinja_value loop_attr(const struct jinja_loop *loop, struct jinja_value name)
{
    const uint32_t at = loop->at, n = loop->items->n;
    const struct {
        const char *name;
        struct jinja_value value;
    } attrs[] = {
        {"index0", jinja_int(at)},
        {"index", jinja_int((int64_t)at + 1)},
        {"revindex0", jinja_int((int64_t)n - at - 1)},
        {"revindex", jinja_int((int64_t)n - at)},
        {"first", jinja_bool(at == 0)},
        {"last", jinja_bool(at + 1 == n)},
        {"length", jinja_int(n)},
        {"depth0", jinja_int(0)}, /* of recursion, which is not supported */
        {"depth", jinja_int(1)},
        {"previtem", at > 0 ? loop->items->items[at - 1] : jinja_undefined(name.s, name.n)},
        {"nextitem", at + 1 < n ? loop->items->items[at + 1] : jinja_undefined(name.s, name.n)},
    };
    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++)
        if (jinja_is_str(name, attrs[i].name)) return attrs[i].value;
    return jinja_undefined(name.s, name.n);
}

/* A method of that name, bound to `a`; undefined if there is none. */
static sac_status bind_method(struct jinja *j, struct jinja_value a, struct jinja_value name,
                              struct jinja_value *out)
{
    const struct jinja_builtin *builtin = jinja_method_find(a, name);
    *out = jinja_undefined(name.s, name.n);
    if (!builtin) return SAC_OK;
    struct jinja_method *m = jinja_alloc(j, sizeof *m);
    if (!m) return jinja_no_memory(j);
    *m = (struct jinja_method){a, builtin};
    *out = (struct jinja_value){.kind = JINJA_METHOD, .method = m};
    return SAC_OK;
}

static bool is_hashable(struct jinja_value v)
{
    return v.kind != JINJA_LIST && v.kind != JINJA_DICT;
}

/* A member by subscript alone; undefined if there is none. */
static sac_status get_member(struct jinja *j, struct jinja_value a, struct jinja_value key,
                             struct jinja_value *out)
{
    *out = key.kind == JINJA_STRING ? jinja_undefined(key.s, key.n) : jinja_undefined("item", 4);
    if (a.kind == JINJA_DICT || a.kind == JINJA_NAMESPACE) {
        struct jinja_value *found = NULL;
        if (is_hashable(key)) TRY(jinja_dict_get(j, a.dict, key, &found));
        if (found) *out = *found;
    } else if (is_sequence(a) && is_whole(key)) {
        const size_t n = jinja_is_list(a) ? a.list->n : jinja_text_length(a.s, a.n);
        TRY(jinja_step_bytes(j, a.kind == JINJA_STRING ? a.n : 0));
        const int64_t i = as_int(key) < 0 ? as_int(key) + (int64_t)n : as_int(key);
        if (i < 0 || i >= (int64_t)n) return SAC_OK;
        if (jinja_is_list(a)) {
            *out = a.list->items[i];
        } else {
            const size_t at = jinja_text_offset(a.s, a.n, (size_t)i);
            uint32_t cp;
            *out = jinja_str(a.s + at, jinja_text_decode(a.s + at, a.n - at, &cp));
        }
    }
    return SAC_OK;
}

sac_status jinja_op_attr(struct jinja *j, struct jinja_value a, struct jinja_value name,
                         struct jinja_value *out)
{
    TRY(check_defined(j, a));
    TRY(bind_method(j, a, name, out)); /* d.items is the method even if d has such a key */
    if (out->kind != JINJA_UNDEFINED) return SAC_OK;
    if (a.kind == JINJA_LOOP) {
        *out = loop_attr(a.loop, name);
        return SAC_OK;
    }
    return get_member(j, a, name, out);
}

sac_status jinja_op_item(struct jinja *j, struct jinja_value a, struct jinja_value key,
                         struct jinja_value *out)
{
    TRY(check_defined(j, a));
    TRY(get_member(j, a, key, out));
    if (out->kind != JINJA_UNDEFINED || key.kind != JINJA_STRING) return SAC_OK;
    return jinja_op_attr(j, a, key, out);
}

/* ---- Slices ---- */

struct range {
    int64_t start, step, n;
};

/* The bound `v`, counted from the end if negative and clamped to [low, high]; `otherwise` if it is
 * none. */
static int64_t clamp(struct jinja_value v, int64_t otherwise, int64_t n, int64_t low, int64_t high)
{
    if (v.kind == JINJA_NONE) return otherwise;
    int64_t i = as_int(v);
    if (i < 0) i += n;
    return i < low ? low : i > high ? high : i;
}

static sac_status slice_range(struct jinja *j, const struct jinja_value part[3], int64_t n,
                              struct range *out)
{
    for (int i = 0; i < 3; i++)
        if (part[i].kind != JINJA_NONE && !is_whole(part[i]))
            return jinja_fail(j, "a slice by %s", jinja_kind_name(part[i]));
    int64_t step = part[2].kind == JINJA_NONE ? 1 : as_int(part[2]);
    if (step == 0) return jinja_fail(j, "a slice with step 0");
    if (step > n) step = n + 1; /* selects the same members without overflow below */
    if (step < -n) step = -n - 1;
    const bool up = step > 0;
    const int64_t low = up ? 0 : -1, high = up ? n : n - 1;
    const int64_t start = clamp(part[0], up ? low : high, n, low, high);
    const int64_t stop = clamp(part[1], up ? high : low, n, low, high);
    const int64_t span = up ? stop - start : start - stop, stride = up ? step : -step;
    *out = (struct range){start, step, span > 0 ? (span + stride - 1) / stride : 0};
    return SAC_OK;
}

static sac_status slice_string(struct jinja *j, struct jinja_value s,
                               const struct jinja_value part[3], struct jinja_value *out)
{
    struct range r;
    TRY(jinja_step_bytes(j, s.n));
    TRY(slice_range(j, part, (int64_t)jinja_text_length(s.s, s.n), &r));
    size_t at = jinja_text_offset(s.s, s.n, (size_t)(r.n ? r.start : 0));
    if (r.step == 1) {
        *out = jinja_str(s.s + at, jinja_text_offset(s.s + at, s.n - at, (size_t)r.n));
    } else {
        /* Characters by index, for random access in either direction. */
        const struct jinja_list *chars;
        const size_t begin = jinja_text_begin(j);
        TRY(jinja_members(j, s, &chars));
        for (int64_t i = 0; i < r.n; i++) {
            const struct jinja_value c = chars->items[r.start + i * r.step];
            TRY(jinja_text_add(j, c.s, c.n));
        }
        TRY(jinja_text_end(j, begin, out));
    }
    out->markup = s.markup;
    return SAC_OK;
}

sac_status jinja_op_slice(struct jinja *j, struct jinja_value a, const struct jinja_value part[3],
                          struct jinja_value *out)
{
    TRY(check_defined(j, a));
    if (a.kind == JINJA_STRING) return slice_string(j, a, part, out);
    if (!jinja_is_list(a)) { /* as a[x] of what has no such member */
        *out = jinja_undefined("slice", 5);
        return SAC_OK;
    }
    struct range r;
    TRY(slice_range(j, part, a.list->n, &r));
    TRY(jinja_list_new(j, out, a.kind));
    for (int64_t i = 0; i < r.n; i++)
        TRY(jinja_list_push(j, out->list, a.list->items[r.start + i * r.step]));
    return SAC_OK;
}
