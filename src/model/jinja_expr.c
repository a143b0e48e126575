/* jinja_expr.c: expressions of templates, by recursive descent with jinja2's precedences:
 *
 *   if < or < and < not < comparison, in < + - < ~ < * / // % < ** < unary < postfix < filter, is
 *
 * What nests (brackets, signs, conditions) is bounded by TEMPLATE_DEPTH_MAX; what chains (a + b +
 * c, a.b.c) loops here and makes trees that lean left, whose evaluation is bounded at run time.
 * Names of filters and tests are looked up here, but an unknown one is an error only when reached:
 * templates guard such uses by conditions. */
#include "model/jinja_parser.h"

/* ---- Literals, brackets, arguments ---- */

/* Expressions up to the closing bracket; `*out_comma`: whether there was a comma. */
static sac_status parse_items(struct parser *p, char close, struct chain *c, bool *out_comma)
{
    *out_comma = false;
    while (!at_op(p, (uint32_t)close)) {
        struct jinja_node *n;
        TRY(jinja_expr(p, &n));
        chain_add(c, n);
        if (!accept_op(p, ',')) break;
        *out_comma = true;
    }
    return expect_op(p, close);
}

static sac_status parse_paren(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *tuple;
    struct chain c = {0};
    bool comma;
    TRY(make(p, JINJA_NODE_TUPLE, &tuple));
    TRY(parse_items(p, ')', &c, &comma));
    tuple->list = c.first;
    *out = c.first && !comma ? c.first : tuple;
    return SAC_OK;
}

static sac_status parse_list(struct parser *p, struct jinja_node **out)
{
    struct chain c = {0};
    bool comma;
    TRY(make(p, JINJA_NODE_LIST, out));
    TRY(parse_items(p, ']', &c, &comma));
    (*out)->list = c.first;
    return SAC_OK;
}

static sac_status parse_dict(struct parser *p, struct jinja_node **out)
{
    struct chain c = {0};
    TRY(make(p, JINJA_NODE_DICT, out));
    while (!at_op(p, '}')) {
        struct jinja_node *n;
        TRY(jinja_expr(p, &n));
        chain_add(&c, n);
        TRY(expect_op(p, ':'));
        TRY(jinja_expr(p, &n));
        chain_add(&c, n);
        if (!accept_op(p, ',')) break;
    }
    (*out)->list = c.first;
    return expect_op(p, '}');
}

/* A constant; adjacent strings are joined. */
static sac_status parse_const(struct parser *p, struct jinja_node **out)
{
    TRY(make(p, JINJA_NODE_CONST, out));
    struct jinja_value *v = &(*out)->value;
    *v = p->tok++->value;
    while (v->kind == JINJA_STRING && p->tok->type == JINJA_TOK_CONST &&
           p->tok->value.kind == JINJA_STRING) {
        TRY(jinja_text_concat(p->j, *v, p->tok->value, v));
        p->tok++;
    }
    return SAC_OK;
}

static sac_status parse_name(struct parser *p, struct jinja_node **out)
{
    static const struct {
        const char *name;
        struct jinja_value value;
    } constants[] = {
        {"true", {.kind = JINJA_BOOL, .b = true}},
        {"True", {.kind = JINJA_BOOL, .b = true}},
        {"false", {.kind = JINJA_BOOL, .b = false}},
        {"False", {.kind = JINJA_BOOL, .b = false}},
        {"none", {.kind = JINJA_NONE}},
        {"None", {.kind = JINJA_NONE}},
    };
    TRY(make(p, JINJA_NODE_NAME, out));
    (*out)->value = p->tok++->value;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (!jinja_is_str((*out)->value, constants[i].name)) continue;
        (*out)->kind = JINJA_NODE_CONST;
        (*out)->value = constants[i].value;
        break;
    }
    return SAC_OK;
}

static sac_status parse_primary(struct parser *p, struct jinja_node **out)
{
    if (p->tok->type == JINJA_TOK_CONST) return parse_const(p, out);
    if (p->tok->type == JINJA_TOK_NAME) return parse_name(p, out);
    if (accept_op(p, '('))
        TRY(parse_paren(p, out));
    else if (accept_op(p, '['))
        TRY(parse_list(p, out));
    else if (accept_op(p, '{'))
        TRY(parse_dict(p, out));
    else
        return fail(p, "an expression was expected");
    return SAC_OK;
}

/* Parses after `(`. `name=value` becomes a KEYWORD node. */
static sac_status parse_args(struct parser *p, struct jinja_node **out)
{
    struct chain c = {0};
    while (!at_op(p, ')')) {
        struct jinja_node *n, *value;
        const bool keyword =
            p->tok->type == JINJA_TOK_NAME && p->tok[1].type == JINJA_TOK_OP && p->tok[1].op == '=';
        if (at_op(p, '*') || at_op(p, JINJA_OP2('*', '*'))) {
            TRY(make(p, JINJA_NODE_SPREAD, &n));
            n->op = p->tok++->op;
            TRY(jinja_expr(p, &n->a));
        } else if (keyword) {
            TRY(make(p, JINJA_NODE_KEYWORD, &n));
            n->value = p->tok->value;
            p->tok += 2;
            TRY(jinja_expr(p, &value));
            n->a = value;
        } else {
            TRY(jinja_expr(p, &n));
        }
        chain_add(&c, n);
        if (!accept_op(p, ',')) break;
    }
    *out = c.first;
    return expect_op(p, ')');
}

/* ---- Postfix ---- */

static sac_status parse_slice_part(struct parser *p, struct chain *c)
{
    struct jinja_node *n;
    if (at_op(p, ':') || at_op(p, ']')) {
        TRY(make(p, JINJA_NODE_CONST, &n));
        n->value = jinja_none();
    } else {
        TRY(jinja_expr(p, &n));
    }
    chain_add(c, n);
    return SAC_OK;
}

/* Parses after `[`. */
static sac_status parse_subscript(struct parser *p, struct jinja_node *of, struct jinja_node **out)
{
    struct jinja_node *n;
    struct chain c = {0};
    TRY(make(p, JINJA_NODE_ITEM, &n));
    n->a = of;
    TRY(parse_slice_part(p, &c));
    if (at_op(p, ':')) {
        n->kind = JINJA_NODE_SLICE;
        n->list = c.first;
        for (int part = 1; part < 3; part++) {
            if (!accept_op(p, ':') && !at_op(p, ']')) return expect_op(p, ']');
            TRY(parse_slice_part(p, &c));
        }
    } else {
        if (p->tok[-1].type == JINJA_TOK_OP && p->tok[-1].op == '[')
            return fail(p, "a subscript was expected");
        n->b = c.first;
    }
    *out = n;
    return expect_op(p, ']');
}

sac_status jinja_expr_attr(struct parser *p, struct jinja_node **io)
{
    struct jinja_node *n;
    TRY(make(p, JINJA_NODE_ATTR, &n));
    n->a = *io;
    if (p->tok->type == JINJA_TOK_CONST && p->tok->value.kind == JINJA_INT) {
        n->kind = JINJA_NODE_ITEM; /* x.0 is x[0] */
        TRY(parse_const(p, &n->b));
    } else {
        TRY(take_name(p, &n->value));
    }
    *io = n;
    return SAC_OK;
}

static sac_status parse_call(struct parser *p, struct jinja_node *of, struct jinja_node **out)
{
    struct jinja_node *n;
    TRY(make(p, JINJA_NODE_CALL, &n));
    n->a = of;
    TRY(parse_args(p, &n->list));
    *out = n;
    return SAC_OK;
}

static sac_status parse_postfix(struct parser *p, struct jinja_node **io)
{
    for (;;) {
        if (accept_op(p, '.'))
            TRY(jinja_expr_attr(p, io));
        else if (accept_op(p, '['))
            TRY(parse_subscript(p, *io, io));
        else if (accept_op(p, '('))
            TRY(parse_call(p, *io, io));
        else
            return SAC_OK;
    }
}

sac_status jinja_expr_filter(struct parser *p, struct jinja_node **io)
{
    struct jinja_node *n;
    TRY(make(p, JINJA_NODE_FILTER, &n));
    TRY(take_name(p, &n->value));
    n->builtin = jinja_filter_find(n->value);
    n->a = *io;
    if (accept_op(p, '(')) TRY(parse_args(p, &n->list));
    *io = n;
    return SAC_OK;
}

/* Whether a test's single argument can start here without brackets. */
static bool at_test_argument(const struct parser *p)
{
    static const char *const words[] = {"else", "or", "and", "if", "is", "not", "in"};
    if (p->tok->type == JINJA_TOK_CONST) return true;
    if (p->tok->type == JINJA_TOK_OP) return at_op(p, '[') || at_op(p, '{');
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (at_name(p, words[i])) return false;
    return p->tok->type == JINJA_TOK_NAME;
}

/* Parses after `is`. */
static sac_status parse_test(struct parser *p, struct jinja_node **io)
{
    struct jinja_node *n, *negation;
    const bool negated = accept_name(p, "not");
    TRY(make(p, JINJA_NODE_TEST, &n));
    TRY(take_name(p, &n->value));
    n->builtin = jinja_test_find(n->value);
    n->a = *io;
    if (accept_op(p, '(')) {
        TRY(parse_args(p, &n->list));
    } else if (at_test_argument(p)) {
        TRY(parse_primary(p, &n->list));
        TRY(parse_postfix(p, &n->list));
    }
    *io = n;
    if (!negated) return SAC_OK;
    TRY(make(p, JINJA_NODE_NOT, &negation));
    negation->a = n;
    *io = negation;
    return SAC_OK;
}

static sac_status parse_filters(struct parser *p, struct jinja_node **io)
{
    for (;;) {
        if (accept_op(p, '|'))
            TRY(jinja_expr_filter(p, io));
        else if (accept_name(p, "is"))
            TRY(parse_test(p, io));
        else if (accept_op(p, '('))
            TRY(parse_call(p, *io, io));
        else
            return SAC_OK;
    }
}

/* ---- Operators ---- */

sac_status jinja_expr_unary(struct parser *p, bool filters, struct jinja_node **out)
{
    const bool minus = at_op(p, '-');
    if (minus || at_op(p, '+')) {
        struct jinja_node *n;
        TRY(enter(p));
        TRY(make(p, minus ? JINJA_NODE_NEG : JINJA_NODE_POS, &n));
        p->tok++;
        TRY(jinja_expr_unary(p, false, &n->a));
        p->depth--;
        *out = n;
    } else {
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    return filters ? parse_filters(p, out) : SAC_OK;
}

enum { LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_POWER, LEVEL_UNARY };

static bool at_level(const struct parser *p, int level)
{
    switch (level) {
    case LEVEL_SUM: return at_op(p, '+') || at_op(p, '-');
    case LEVEL_CONCAT: return at_op(p, '~');
    case LEVEL_PRODUCT:
        return at_op(p, '*') || at_op(p, '/') || at_op(p, '%') || at_op(p, JINJA_OP2('/', '/'));
    default: return at_op(p, JINJA_OP2('*', '*'));
    }
}

/* Binary operators from `level` up; all of them associate to the left. */
static sac_status parse_binary(struct parser *p, int level, struct jinja_node **out)
{
    if (level == LEVEL_UNARY) return jinja_expr_unary(p, true, out);
    TRY(parse_binary(p, level + 1, out));
    struct chain c = {0};
    while (at_level(p, level)) {
        struct jinja_node *n;
        if (level == LEVEL_CONCAT && c.first) { /* a ~ b ~ c is one node */
            p->tok++;
            TRY(parse_binary(p, level + 1, &n));
            chain_add(&c, n);
            continue;
        }
        TRY(make(p, level == LEVEL_CONCAT ? JINJA_NODE_CONCAT : JINJA_NODE_BINARY, &n));
        n->op = p->tok++->op;
        n->a = *out;
        TRY(parse_binary(p, level + 1, &n->b));
        if (level == LEVEL_CONCAT) {
            chain_add(&c, n->a);
            chain_add(&c, n->b);
            n->list = c.first;
        }
        *out = n;
    }
    return SAC_OK;
}

/* The comparison operator here, or 0. `in` is 'i', `not in` 'n'. */
static uint32_t take_comparison(struct parser *p)
{
    static const uint32_t ops[] = {JINJA_OP2('=', '='),
                                   JINJA_OP2('!', '='),
                                   JINJA_OP2('<', '='),
                                   JINJA_OP2('>', '='),
                                   '<',
                                   '>'};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (accept_op(p, ops[i])) return ops[i];
    if (accept_name(p, "in")) return 'i';
    if (at_name(p, "not") && p->tok[1].type == JINJA_TOK_NAME &&
        jinja_is_str(p->tok[1].value, "in")) {
        p->tok += 2;
        return 'n';
    }
    return 0;
}

static sac_status parse_comparison(struct parser *p, struct jinja_node **out)
{
    struct chain c = {0};
    uint32_t op;
    TRY(parse_binary(p, LEVEL_SUM, out));
    while ((op = take_comparison(p)) != 0) {
        struct jinja_node *n;
        TRY(make(p, JINJA_NODE_OPERAND, &n));
        n->op = op;
        TRY(parse_binary(p, LEVEL_SUM, &n->a));
        if (!c.first) {
            struct jinja_node *compare;
            TRY(make(p, JINJA_NODE_COMPARE, &compare));
            compare->a = *out;
            compare->list = n;
            *out = compare;
        }
        chain_add(&c, n);
    }
    return SAC_OK;
}

static sac_status parse_not(struct parser *p, struct jinja_node **out)
{
    if (!at_name(p, "not")) return parse_comparison(p, out);
    TRY(enter(p));
    TRY(make(p, JINJA_NODE_NOT, out));
    p->tok++;
    TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return SAC_OK;
}

static sac_status parse_and(struct parser *p, struct jinja_node **out)
{
    TRY(parse_not(p, out));
    while (accept_name(p, "and")) {
        struct jinja_node *n;
        TRY(make(p, JINJA_NODE_AND, &n));
        n->a = *out;
        TRY(parse_not(p, &n->b));
        *out = n;
    }
    return SAC_OK;
}

sac_status jinja_expr_or(struct parser *p, struct jinja_node **out)
{
    TRY(parse_and(p, out));
    while (accept_name(p, "or")) {
        struct jinja_node *n;
        TRY(make(p, JINJA_NODE_OR, &n));
        n->a = *out;
        TRY(parse_and(p, &n->b));
        *out = n;
    }
    return SAC_OK;
}

sac_status jinja_expr(struct parser *p, struct jinja_node **out)
{
    TRY(enter(p));
    TRY(jinja_expr_or(p, out));
    while (accept_name(p, "if")) {
        struct jinja_node *n;
        TRY(make(p, JINJA_NODE_COND, &n));
        n->b = *out;
        TRY(jinja_expr_or(p, &n->a));
        if (accept_name(p, "else")) TRY(jinja_expr(p, &n->c));
        *out = n;
    }
    p->depth--;
    return SAC_OK;
}

sac_status jinja_expr_tuple(struct parser *p,
                            sac_status (*item)(struct parser *, struct jinja_node **),
                            struct jinja_node **out)
{
    TRY(item(p, out));
    if (!at_op(p, ',')) return SAC_OK;
    struct jinja_node *tuple;
    struct chain c = {0};
    TRY(make(p, JINJA_NODE_TUPLE, &tuple));
    chain_add(&c, *out);
    while (accept_op(p, ',') && p->tok->type != JINJA_TOK_BLOCK_END) {
        struct jinja_node *n;
        TRY(item(p, &n));
        chain_add(&c, n);
    }
    tuple->list = c.first;
    *out = tuple;
    return SAC_OK;
}
