/* jinja_parser.h: what the parser of statements (jinja_parse.c) and that of expressions
 * (jinja_expr.c) share. A function parses from the current token on and leaves the parser after
 * what it took. */
#ifndef SAC_MODEL_JINJA_PARSER_H
#define SAC_MODEL_JINJA_PARSER_H

#include "model/jinja.h"

struct parser {
    struct jinja *j;
    const struct jinja_token *tok; /* the current one */
    uint32_t depth;
    uint32_t loops; /* enclosing loops, within the innermost macro */
};

/* Appends to a list of nodes in constant time. */
struct chain {
    struct jinja_node *first, **end;
};

static inline sac_status fail(const struct parser *p, const char *problem)
{
    p->j->line = p->tok->line;
    if (p->tok->type == JINJA_TOK_NAME)
        return jinja_fail(p->j, "%s at '%.*s'", problem, (int)p->tok->value.n, p->tok->value.s);
    return jinja_fail(p->j, "%s", problem);
}

static inline sac_status enter(struct parser *p)
{
    if (p->depth == TEMPLATE_DEPTH_MAX) return fail(p, "it nests too deep");
    p->depth++;
    return SAC_OK;
}

static inline sac_status make(struct parser *p, enum jinja_node_kind kind, struct jinja_node **out)
{
    struct jinja_node *n = jinja_alloc(p->j, sizeof *n);
    if (!n) return jinja_no_memory(p->j);
    *n = (struct jinja_node){.kind = kind, .line = p->tok->line};
    *out = n;
    return SAC_OK;
}

static inline void chain_add(struct chain *c, struct jinja_node *n)
{
    *(c->end ? c->end : &c->first) = n;
    c->end = &n->next;
}

static inline bool at_op(const struct parser *p, uint32_t op)
{
    return p->tok->type == JINJA_TOK_OP && p->tok->op == op;
}

static inline bool at_name(const struct parser *p, const char *name)
{
    return p->tok->type == JINJA_TOK_NAME && jinja_is_str(p->tok->value, name);
}

static inline bool accept_op(struct parser *p, uint32_t op)
{
    if (!at_op(p, op)) return false;
    p->tok++;
    return true;
}

static inline bool accept_name(struct parser *p, const char *name)
{
    if (!at_name(p, name)) return false;
    p->tok++;
    return true;
}

static inline sac_status expect_op(struct parser *p, char op)
{
    const char problem[] = {'\'', op,  '\'', ' ', 'w', 'a', 's', ' ', 'e',
                            'x',  'p', 'e',  'c', 't', 'e', 'd', 0};
    return accept_op(p, (uint32_t)op) ? SAC_OK : fail(p, problem);
}

static inline sac_status take_name(struct parser *p, struct jinja_value *out)
{
    if (p->tok->type != JINJA_TOK_NAME) return fail(p, "a name was expected");
    *out = p->tok++->value;
    return SAC_OK;
}

/* An expression; without `if`; without operators and, unless `filters`, without filters. */
sac_status jinja_expr(struct parser *p, struct jinja_node **out);
sac_status jinja_expr_or(struct parser *p, struct jinja_node **out);
sac_status jinja_expr_unary(struct parser *p, bool filters, struct jinja_node **out);
/* After `|`: applies the filter to `*io`. After `.`: takes the attribute. */
sac_status jinja_expr_filter(struct parser *p, struct jinja_node **io);
sac_status jinja_expr_attr(struct parser *p, struct jinja_node **io);
/* `a` or `a, b`, where `item` parses one; it ends before anything but a comma. */
sac_status jinja_expr_tuple(struct parser *p,
                            sac_status (*item)(struct parser *, struct jinja_node **),
                            struct jinja_node **out);

#endif
