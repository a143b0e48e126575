/* jinja_parse.c: statements of templates. The words that may end a body are passed down; the parser
 * stops at the one that it meets, and the enclosing statement decides what follows. */
#include "model/jinja_parser.h"

#include <assert.h>

static sac_status parse_body(struct parser *p, const char *const *ends, struct jinja_node **out);

/* ---- Statements ---- */

static sac_status end_block(struct parser *p)
{
    if (p->tok->type != JINJA_TOK_BLOCK_END) return fail(p, "'%}' was expected");
    p->tok++;
    return SAC_OK;
}

static sac_status parse_target_item(struct parser *p, struct jinja_node **out)
{
    if (accept_op(p, '(')) {
        TRY(enter(p));
        TRY(jinja_expr_tuple(p, parse_target_item, out));
        p->depth--;
        return expect_op(p, ')');
    }
    TRY(make(p, JINJA_NODE_NAME, out));
    TRY(take_name(p, &(*out)->value));
    return SAC_OK;
}

/* The statements up to one of the `ends`, whose name becomes the current token, then past `%}`. */
static sac_status parse_inner(struct parser *p, const char *const *ends, struct jinja_node **out)
{
    TRY(end_block(p));
    return parse_body(p, ends, out);
}

static sac_status parse_if(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct chain c = {0};
    bool otherwise = false;
    TRY(make(p, JINJA_NODE_IF, out));
    do {
        struct jinja_node *branch;
        TRY(make(p, JINJA_NODE_BRANCH, &branch));
        otherwise = c.first && jinja_is_str(p->tok[-1].value, "else");
        if (!otherwise) TRY(jinja_expr_tuple(p, jinja_expr, &branch->a));
        TRY(parse_inner(p, otherwise ? last : ends, &branch->body));
        chain_add(&c, branch);
    } while (!jinja_is_str(p->tok++->value, "endif"));
    (*out)->list = c.first;
    return end_block(p);
}

static sac_status parse_for(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    struct jinja_node *n;
    TRY(make(p, JINJA_NODE_FOR, &n));
    TRY(jinja_expr_tuple(p, parse_target_item, &n->b));
    if (!accept_name(p, "in")) return fail(p, "'in' was expected");
    TRY(jinja_expr_tuple(p, jinja_expr_or, &n->a));
    if (at_name(p, "recursive")) return fail(p, "recursive loops are not supported");
    if (accept_name(p, "if")) TRY(jinja_expr(p, &n->c));
    p->loops++;
    TRY(parse_inner(p, ends, &n->body));
    p->loops--;
    if (accept_name(p, "else")) TRY(parse_inner(p, last, &n->orelse));
    p->tok++;
    *out = n;
    return end_block(p);
}

/* What filters of a block are applied to, then the filters. */
static sac_status parse_block_filters(struct parser *p, struct jinja_node **out)
{
    TRY(make(p, JINJA_NODE_BLOCK, out));
    TRY(jinja_expr_filter(p, out));
    while (accept_op(p, '|')) TRY(jinja_expr_filter(p, out));
    return SAC_OK;
}

static sac_status parse_set(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"endset", NULL};
    struct jinja_node *n;
    TRY(make(p, JINJA_NODE_SET, &n));
    TRY(jinja_expr_tuple(p, parse_target_item, &n->b));
    if (n->b->kind == JINJA_NODE_NAME && accept_op(p, '.')) TRY(jinja_expr_attr(p, &n->b));
    *out = n;
    if (accept_op(p, '=')) {
        TRY(jinja_expr_tuple(p, jinja_expr, &n->a));
        return end_block(p);
    }
    n->kind = JINJA_NODE_SET_BLOCK;
    if (accept_op(p, '|')) TRY(parse_block_filters(p, &n->a));
    TRY(parse_inner(p, ends, &n->body));
    p->tok++;
    return end_block(p);
}

static sac_status parse_filter_block(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"endfilter", NULL};
    TRY(make(p, JINJA_NODE_FILTER_BLOCK, out));
    TRY(parse_block_filters(p, &(*out)->a));
    TRY(parse_inner(p, ends, &(*out)->body));
    p->tok++;
    return end_block(p);
}

/* Parses after `(`: names, possibly with defaults. */
static sac_status parse_params(struct parser *p, struct jinja_node **out)
{
    struct jinja_node *param;
    struct chain c = {0};
    while (!at_op(p, ')')) {
        TRY(make(p, JINJA_NODE_KEYWORD, &param));
        TRY(take_name(p, &param->value));
        if (accept_op(p, '=')) TRY(jinja_expr(p, &param->a));
        chain_add(&c, param);
        if (!accept_op(p, ',')) break;
    }
    *out = c.first;
    return expect_op(p, ')');
}

/* The body of a macro, which does not count as inside the loops around it. */
static sac_status parse_macro_body(struct parser *p, const char *const *ends,
                                   struct jinja_node **out)
{
    const uint32_t loops = p->loops;
    p->loops = 0;
    TRY(parse_inner(p, ends, out));
    p->loops = loops;
    p->tok++;
    return end_block(p);
}

static sac_status parse_macro(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"endmacro", NULL};
    TRY(make(p, JINJA_NODE_MACRO, out));
    TRY(take_name(p, &(*out)->value));
    TRY(expect_op(p, '('));
    TRY(parse_params(p, &(*out)->list));
    return parse_macro_body(p, ends, &(*out)->body);
}

static sac_status parse_call_block(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"endcall", NULL};
    TRY(make(p, JINJA_NODE_CALL_BLOCK, out));
    (*out)->value = jinja_strz("caller");
    if (accept_op(p, '(')) TRY(parse_params(p, &(*out)->list));
    TRY(jinja_expr_unary(p, false, &(*out)->a));
    if ((*out)->a->kind != JINJA_NODE_CALL) return fail(p, "a macro's call was expected");
    return parse_macro_body(p, ends, &(*out)->body);
}

static sac_status parse_generation(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"endgeneration", NULL};
    TRY(make(p, JINJA_NODE_SCOPE, out));
    TRY(parse_inner(p, ends, &(*out)->body));
    p->tok++;
    return end_block(p);
}

static sac_status parse_with(struct parser *p, struct jinja_node **out)
{
    static const char *const ends[] = {"endwith", NULL};
    struct chain c = {0};
    TRY(make(p, JINJA_NODE_SCOPE, out));
    while (p->tok->type != JINJA_TOK_BLOCK_END) {
        struct jinja_node *set;
        TRY(make(p, JINJA_NODE_SET, &set));
        TRY(parse_target_item(p, &set->b));
        TRY(expect_op(p, '='));
        TRY(jinja_expr(p, &set->a));
        chain_add(&c, set);
        if (!accept_op(p, ',')) break;
    }
    (*out)->list = c.first;
    TRY(parse_inner(p, ends, &(*out)->body));
    p->tok++;
    return end_block(p);
}

static sac_status parse_jump(struct parser *p, enum jinja_node_kind kind, struct jinja_node **out)
{
    if (p->loops == 0) return fail(p, "break or continue outside a loop");
    TRY(make(p, kind, out));
    return end_block(p);
}

/* Parses after `{%`. */
static sac_status parse_statement(struct parser *p, struct jinja_node **out)
{
    if (accept_name(p, "if")) return parse_if(p, out);
    if (accept_name(p, "for")) return parse_for(p, out);
    if (accept_name(p, "set")) return parse_set(p, out);
    if (accept_name(p, "macro")) return parse_macro(p, out);
    if (accept_name(p, "call")) return parse_call_block(p, out);
    if (accept_name(p, "filter")) return parse_filter_block(p, out);
    if (accept_name(p, "generation")) return parse_generation(p, out);
    if (accept_name(p, "with")) return parse_with(p, out);
    if (accept_name(p, "break")) return parse_jump(p, JINJA_NODE_BREAK, out);
    if (accept_name(p, "continue")) return parse_jump(p, JINJA_NODE_CONTINUE, out);
    return fail(p, "a statement that is unknown or not expected here,");
}

static sac_status parse_data(struct parser *p, struct jinja_node **out)
{
    TRY(make(p, JINJA_NODE_DATA, out));
    (*out)->value = p->tok++->value;
    return SAC_OK;
}

static sac_status parse_output(struct parser *p, struct jinja_node **out)
{
    TRY(make(p, JINJA_NODE_OUTPUT, out));
    p->tok++;
    TRY(jinja_expr_tuple(p, jinja_expr, &(*out)->a));
    if (p->tok->type != JINJA_TOK_VAR_END) return fail(p, "'}}' was expected");
    p->tok++;
    return SAC_OK;
}

static bool at_any(const struct parser *p, const char *const *names)
{
    for (; *names; names++)
        if (at_name(p, *names)) return true;
    return false;
}

static sac_status parse_body(struct parser *p, const char *const *ends, struct jinja_node **out)
{
    struct chain c = {0};
    TRY(enter(p));
    for (;;) {
        struct jinja_node *n;
        if (p->tok->type == JINJA_TOK_DATA) {
            TRY(parse_data(p, &n));
        } else if (p->tok->type == JINJA_TOK_VAR_BEGIN) {
            TRY(parse_output(p, &n));
        } else if (p->tok->type == JINJA_TOK_BLOCK_BEGIN) {
            p->tok++;
            if (at_any(p, ends)) break;
            TRY(parse_statement(p, &n));
        } else {
            assert(p->tok->type == JINJA_TOK_END);
            if (*ends) return fail(p, "a block does not end");
            break;
        }
        chain_add(&c, n);
    }
    p->depth--;
    *out = c.first;
    return SAC_OK;
}

sac_status jinja_parse(struct jinja *j, const struct jinja_token *tok, struct jinja_node **out)
{
    static const char *const none[] = {NULL};
    struct parser p = {.j = j, .tok = tok};
    return parse_body(&p, none, out);
}
