/* jinja_test.c: the tests of templates, which follow `is`. */
#include "model/jinja.h"

#define TEST(name, expr)                                                                           \
    static sac_status test_##name(struct jinja *j, const struct jinja_call *c,                     \
                                  struct jinja_value *out)                                         \
    {                                                                                              \
        (void)j;                                                                                   \
        const struct jinja_value v = c->self;                                                      \
        *out = jinja_bool(expr);                                                                   \
        return SAC_OK;                                                                             \
    }

static bool is_callable(struct jinja_value v)
{
    return v.kind == JINJA_MACRO || v.kind == JINJA_BUILTIN || v.kind == JINJA_METHOD;
}

static bool has_length(struct jinja_value v)
{
    return v.kind == JINJA_STRING || v.kind == JINJA_UNDEFINED || v.kind == JINJA_DICT ||
           jinja_is_list(v);
}

/* Letters, all of the one case asked for, and at least one. */
static bool is_cased(struct jinja_value v, bool upper)
{
    bool any = false;
    for (uint32_t i = 0; v.kind == JINJA_STRING && i < v.n; i++) {
        const char c = v.s[i];
        const bool is_upper = c >= 'A' && c <= 'Z', is_lower = c >= 'a' && c <= 'z';
        if (upper ? is_lower : is_upper) return false;
        any = any || is_upper || is_lower;
    }
    return any;
}

TEST(defined, v.kind != JINJA_UNDEFINED)
TEST(undefined, v.kind == JINJA_UNDEFINED)
TEST(none, v.kind == JINJA_NONE)
TEST(boolean, v.kind == JINJA_BOOL)
TEST(true, v.kind == JINJA_BOOL && v.b)
TEST(false, v.kind == JINJA_BOOL && !v.b)
TEST(integer, v.kind == JINJA_INT)
TEST(float, v.kind == JINJA_FLOAT)
TEST(number, jinja_is_number(v))
TEST(string, v.kind == JINJA_STRING)
TEST(mapping, v.kind == JINJA_DICT)
TEST(sequence, has_length(v))
TEST(iterable, has_length(v))
TEST(callable, is_callable(v))
TEST(escaped, v.kind == JINJA_STRING && v.markup)
TEST(upper, is_cased(v, true))
TEST(lower, is_cased(v, false))

static sac_status remainder_is(struct jinja *j, struct jinja_value a, struct jinja_value by,
                               int64_t want, struct jinja_value *out)
{
    struct jinja_value r;
    bool same;
    TRY(jinja_op_binary(j, '%', a, by, &r));
    TRY(jinja_equal(j, r, jinja_int(want), &same));
    *out = jinja_bool(same);
    return SAC_OK;
}

static sac_status test_odd(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return remainder_is(j, c->self, jinja_int(2), 1, out);
}

static sac_status test_even(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    return remainder_is(j, c->self, jinja_int(2), 0, out);
}

static sac_status test_divisibleby(struct jinja *j, const struct jinja_call *c,
                                   struct jinja_value *out)
{
    return remainder_is(j, c->self, c->arg[0], 0, out);
}

static sac_status test_sameas(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    bool same = c->self.kind == c->arg[0].kind;
    if (same) TRY(jinja_equal(j, c->self, c->arg[0], &same));
    *out = jinja_bool(same);
    return SAC_OK;
}

static sac_status test_filter(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    (void)j;
    *out = jinja_bool(jinja_filter_find(c->self) != NULL);
    return SAC_OK;
}

static sac_status test_test(struct jinja *j, const struct jinja_call *c, struct jinja_value *out)
{
    (void)j;
    *out = jinja_bool(jinja_test_find(c->self) != NULL);
    return SAC_OK;
}

static sac_status compare(struct jinja *j, const struct jinja_call *c, uint32_t op,
                          struct jinja_value *out)
{
    bool holds;
    TRY(jinja_op_compare(j, op, c->self, c->arg[0], &holds));
    *out = jinja_bool(holds);
    return SAC_OK;
}

#define COMPARE(name, op)                                                                          \
    static sac_status test_##name(struct jinja *j, const struct jinja_call *c,                     \
                                  struct jinja_value *out)                                         \
    {                                                                                              \
        return compare(j, c, op, out);                                                             \
    }

COMPARE(in, 'i')
COMPARE(eq, JINJA_OP2('=', '='))
COMPARE(ne, JINJA_OP2('!', '='))
COMPARE(lt, '<')
COMPARE(le, JINJA_OP2('<', '='))
COMPARE(gt, '>')
COMPARE(ge, JINJA_OP2('>', '='))

static const struct jinja_builtin tests[] = {
    {"defined", test_defined, {NULL}, false},   {"undefined", test_undefined, {NULL}, false},
    {"none", test_none, {NULL}, false},         {"boolean", test_boolean, {NULL}, false},
    {"true", test_true, {NULL}, false},         {"false", test_false, {NULL}, false},
    {"integer", test_integer, {NULL}, false},   {"float", test_float, {NULL}, false},
    {"number", test_number, {NULL}, false},     {"string", test_string, {NULL}, false},
    {"mapping", test_mapping, {NULL}, false},   {"sequence", test_sequence, {NULL}, false},
    {"iterable", test_iterable, {NULL}, false}, {"callable", test_callable, {NULL}, false},
    {"escaped", test_escaped, {NULL}, false},   {"upper", test_upper, {NULL}, false},
    {"lower", test_lower, {NULL}, false},       {"odd", test_odd, {NULL}, false},
    {"even", test_even, {NULL}, false},         {"divisibleby", test_divisibleby, {"num"}, false},
    {"sameas", test_sameas, {"other"}, false},  {"filter", test_filter, {NULL}, false},
    {"test", test_test, {NULL}, false},         {"in", test_in, {"seq"}, false},
    {"eq", test_eq, {"other"}, false},          {"==", test_eq, {"other"}, false},
    {"equalto", test_eq, {"other"}, false},     {"ne", test_ne, {"other"}, false},
    {"!=", test_ne, {"other"}, false},          {"lt", test_lt, {"other"}, false},
    {"<", test_lt, {"other"}, false},           {"lessthan", test_lt, {"other"}, false},
    {"le", test_le, {"other"}, false},          {"<=", test_le, {"other"}, false},
    {"gt", test_gt, {"other"}, false},          {">", test_gt, {"other"}, false},
    {"greaterthan", test_gt, {"other"}, false}, {"ge", test_ge, {"other"}, false},
    {">=", test_ge, {"other"}, false},          {NULL, NULL, {NULL}, false},
};

const struct jinja_builtin *jinja_test_find(struct jinja_value name)
{
    return jinja_call_find(tests, name);
}
