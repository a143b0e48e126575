/* jinja_eval.c: runs the tree.
 *
 * Scopes are a chain: a name is looked up from the innermost out, then among the functions; it is
 * set in the innermost. Loops, macros and captured blocks open a scope, conditions do not; that is
 * why templates carry values out of loops in namespaces. A macro sees the variables of the place
 * where it was defined as they are when it runs. Text goes to `j->out`; what captures text notes
 * where it began and cuts it out afterwards. */
#include "model/jinja.h"

#include <assert.h>

static sac_status eval(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                       struct jinja_value *out);
static sac_status run(struct jinja *j, const struct jinja_node *first, struct jinja_scope *s);

/* ---- Names ---- */

static sac_status eval_name(struct jinja *j, struct jinja_value name, const struct jinja_scope *s,
                            struct jinja_value *out)
{
    for (; s; s = s->parent) {
        struct jinja_value *found;
        TRY(jinja_dict_get(j, &s->vars, name, &found));
        if (!found) continue;
        *out = *found;
        return SAC_OK;
    }
    const struct jinja_builtin *function = jinja_function_find(name);
    *out = jinja_undefined(name.s, name.n);
    if (function) *out = (struct jinja_value){.kind = JINJA_BUILTIN, .builtin = function};
    return SAC_OK;
}

/* Sets a name, the names of a tuple, or a namespace's attribute. */
static sac_status assign(struct jinja *j, const struct jinja_node *target, struct jinja_scope *s,
                         struct jinja_value v)
{
    j->line = target->line;
    if (target->kind == JINJA_NODE_NAME) return jinja_dict_set(j, &s->vars, target->value, v);
    if (target->kind == JINJA_NODE_ATTR) {
        struct jinja_value ns;
        TRY(eval(j, target->a, s, &ns));
        if (ns.kind != JINJA_NAMESPACE)
            return jinja_fail(j, "attributes of a %s cannot be set", jinja_kind_name(ns));
        return jinja_dict_set(j, ns.dict, target->value, v);
    }
    if (target->kind != JINJA_NODE_TUPLE) return jinja_fail(j, "this cannot be set");
    const struct jinja_list *list;
    uint32_t i = 0;
    TRY(jinja_members(j, v, &list));
    for (const struct jinja_node *t = target->list; t; t = t->next, i++) {
        if (i == list->n) return jinja_fail(j, "%u values are too few to unpack", list->n);
        TRY(assign(j, t, s, list->items[i]));
    }
    return i == list->n ? SAC_OK : jinja_fail(j, "%u values are too many to unpack", list->n);
}

/* ---- Calls ---- */

/* All members of `*a` and all pairs of `**a` count as arguments. */
static sac_status add_spread(struct jinja *j, uint32_t op, struct jinja_value v,
                             struct jinja_list *pos, struct jinja_dict *kw)
{
    const struct jinja_list *members;
    if (op == '*') {
        TRY(jinja_members(j, v, &members));
        for (uint32_t i = 0; i < members->n; i++) TRY(jinja_list_push(j, pos, members->items[i]));
        return SAC_OK;
    }
    if (v.kind != JINJA_DICT) return jinja_fail(j, "** of a value of type %s", jinja_kind_name(v));
    for (uint32_t i = 0; i < v.dict->n; i++) {
        if (v.dict->pairs[i].key.kind != JINJA_STRING)
            return jinja_fail(j, "** of a dict whose keys are not all strings");
        TRY(jinja_dict_set(j, kw, v.dict->pairs[i].key, v.dict->pairs[i].value));
    }
    return SAC_OK;
}

static sac_status eval_args(struct jinja *j, const struct jinja_node *list, struct jinja_scope *s,
                            struct jinja_args *out)
{
    struct jinja_value pos, kw;
    *out = (struct jinja_args){0};
    if (!list) return SAC_OK;
    TRY(jinja_list_new(j, &pos, JINJA_LIST));
    TRY(jinja_dict_new(j, &kw));
    for (const struct jinja_node *a = list; a; a = a->next) {
        struct jinja_value v;
        const bool keyword = a->kind == JINJA_NODE_KEYWORD, spread = a->kind == JINJA_NODE_SPREAD;
        TRY(eval(j, keyword || spread ? a->a : a, s, &v));
        if (spread)
            TRY(add_spread(j, a->op, v, pos.list, kw.dict));
        else if (keyword)
            TRY(jinja_dict_set(j, kw.dict, a->value, v));
        else
            TRY(jinja_list_push(j, pos.list, v));
    }
    *out = (struct jinja_args){pos.list->items, pos.list->n, kw.dict->n ? kw.dict : NULL};
    return SAC_OK;
}

static sac_status bind_macro(struct jinja *j, const struct jinja_macro *m,
                             const struct jinja_args *args, struct jinja_scope *s)
{
    uint32_t i = 0, n_kw = 0;
    for (const struct jinja_node *p = m->node->list; p; p = p->next, i++) {
        struct jinja_value v = jinja_undefined(p->value.s, p->value.n), *kw = NULL;
        if (args->kw) TRY(jinja_dict_get(j, args->kw, p->value, &kw));
        if (kw && i < args->n_pos)
            return jinja_fail(j, "argument '%.*s' is given twice", (int)p->value.n, p->value.s);
        n_kw += kw != NULL;
        if (i < args->n_pos)
            v = args->pos[i];
        else if (kw)
            v = *kw;
        else if (p->a)
            TRY(eval(j, p->a, s, &v));
        TRY(jinja_dict_set(j, &s->vars, p->value, v));
    }
    if (i < args->n_pos || (args->kw && n_kw < args->kw->n))
        return jinja_fail(j, "macro '%.*s' has no such argument", (int)m->node->value.n,
                          m->node->value.s);
    return SAC_OK;
}

/* `caller` is the macro that a call block passes, or NULL. */
static sac_status call_macro(struct jinja *j, const struct jinja_macro *m,
                             const struct jinja_args *args, const struct jinja_value *caller,
                             struct jinja_value *out)
{
    struct jinja_scope *s = jinja_alloc(j, sizeof *s); /* macros defined in it may outlive it */
    if (!s) return jinja_no_memory(j);
    *s = (struct jinja_scope){.parent = m->scope};
    if (j->calls == TEMPLATE_DEPTH_MAX)
        return jinja_fail(j, "macros call each other deeper than %u", TEMPLATE_DEPTH_MAX);
    j->calls++;
    TRY(bind_macro(j, m, args, s));
    if (caller) TRY(jinja_dict_set(j, &s->vars, jinja_strz("caller"), *caller));
    const size_t begin = jinja_text_begin(j);
    TRY(run(j, m->node->body, s));
    assert(j->flow == JINJA_FLOW_NEXT);
    j->calls--;
    return jinja_text_end(j, begin, out);
}

static sac_status eval_call(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                            struct jinja_value *out)
{
    struct jinja_value f;
    struct jinja_args args;
    TRY(eval(j, n->a, s, &f));
    TRY(eval_args(j, n->list, s, &args));
    j->line = n->line;
    switch ((enum jinja_kind)f.kind) {
    case JINJA_MACRO: return call_macro(j, f.macro, &args, NULL, out);
    case JINJA_BUILTIN: return jinja_call_builtin(j, f.builtin, jinja_none(), args, out);
    case JINJA_METHOD: return jinja_call_builtin(j, f.method->builtin, f.method->self, args, out);
    case JINJA_UNDEFINED: return jinja_fail(j, "'%.*s' is undefined", (int)f.n, f.s);
    default: return jinja_fail(j, "a value of type %s cannot be called", jinja_kind_name(f));
    }
}

/* A filter or test, applied. */
static sac_status eval_applied(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                               struct jinja_value *out)
{
    struct jinja_value subject;
    struct jinja_args args;
    if (!n->builtin)
        return jinja_fail(j, "no %s named '%.*s'", n->kind == JINJA_NODE_FILTER ? "filter" : "test",
                          (int)n->value.n, n->value.s);
    TRY(eval(j, n->a, s, &subject));
    TRY(eval_args(j, n->list, s, &args));
    j->line = n->line;
    return jinja_call_builtin(j, n->builtin, subject, args, out);
}

/* ---- Expressions ---- */

static sac_status eval_list(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                            struct jinja_value *out)
{
    TRY(jinja_list_new(j, out, n->kind == JINJA_NODE_TUPLE ? JINJA_TUPLE : JINJA_LIST));
    for (const struct jinja_node *item = n->list; item; item = item->next) {
        struct jinja_value v;
        TRY(eval(j, item, s, &v));
        TRY(jinja_list_push(j, out->list, v));
    }
    return SAC_OK;
}

static sac_status eval_dict(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                            struct jinja_value *out)
{
    TRY(jinja_dict_new(j, out));
    for (const struct jinja_node *item = n->list; item; item = item->next->next) {
        struct jinja_value key, v;
        TRY(eval(j, item, s, &key));
        TRY(eval(j, item->next, s, &v));
        TRY(jinja_dict_set(j, out->dict, key, v));
    }
    return SAC_OK;
}

static sac_status eval_slice(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                             struct jinja_value *out)
{
    struct jinja_value of, part[3];
    const struct jinja_node *item = n->list;
    TRY(eval(j, n->a, s, &of));
    for (int i = 0; i < 3; i++, item = item->next) TRY(eval(j, item, s, &part[i]));
    return jinja_op_slice(j, of, part, out);
}

static sac_status eval_compare(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                               struct jinja_value *out)
{
    struct jinja_value a, b;
    bool holds = true;
    TRY(eval(j, n->a, s, &a));
    for (const struct jinja_node *o = n->list; o && holds; o = o->next) {
        TRY(eval(j, o->a, s, &b));
        j->line = o->line;
        TRY(jinja_op_compare(j, o->op, a, b, &holds));
        a = b;
    }
    *out = jinja_bool(holds);
    return SAC_OK;
}

static sac_status eval_concat(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                              struct jinja_value *out)
{
    const size_t begin = jinja_text_begin(j);
    for (const struct jinja_node *item = n->list; item; item = item->next) {
        struct jinja_value v, text;
        TRY(eval(j, item, s, &v));
        TRY(jinja_text_str(j, v, &text));
        TRY(jinja_text_add(j, text.s, text.n));
    }
    return jinja_text_end(j, begin, out);
}

static sac_status eval_binary(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                              struct jinja_value *out)
{
    struct jinja_value a, b;
    TRY(eval(j, n->a, s, &a));
    TRY(eval(j, n->b, s, &b));
    j->line = n->line;
    return jinja_op_binary(j, n->op, a, b, out);
}

static sac_status eval_sign(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                            struct jinja_value *out)
{
    struct jinja_value v;
    TRY(eval(j, n->a, s, &v));
    return jinja_op_binary(j, n->kind == JINJA_NODE_NEG ? '-' : '+', jinja_int(0), v, out);
}

static sac_status eval_not(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                           struct jinja_value *out)
{
    struct jinja_value v;
    TRY(eval(j, n->a, s, &v));
    *out = jinja_bool(!jinja_truth(v));
    return SAC_OK;
}

static sac_status eval_logic(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                             struct jinja_value *out)
{
    TRY(eval(j, n->a, s, out));
    return jinja_truth(*out) == (n->kind == JINJA_NODE_AND) ? eval(j, n->b, s, out) : SAC_OK;
}

static sac_status eval_cond(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                            struct jinja_value *out)
{
    struct jinja_value test;
    TRY(eval(j, n->a, s, &test));
    if (jinja_truth(test)) return eval(j, n->b, s, out);
    *out = jinja_undefined("else", 4);
    return n->c ? eval(j, n->c, s, out) : SAC_OK;
}

static sac_status eval_member(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                              struct jinja_value *out)
{
    struct jinja_value of, key = n->value;
    TRY(eval(j, n->a, s, &of));
    if (n->kind == JINJA_NODE_ITEM) TRY(eval(j, n->b, s, &key));
    j->line = n->line;
    return n->kind == JINJA_NODE_ITEM ? jinja_op_item(j, of, key, out)
                                      : jinja_op_attr(j, of, key, out);
}

/* The name of the captured text of the current statement; no template can spell it. */
static const struct jinja_value block_name = {.kind = JINJA_STRING, .n = 1, .s = "%"};

static sac_status eval_kind(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                            struct jinja_value *out)
{
    assert(n->kind <= JINJA_NODE_COND);
    switch (n->kind) {
    case JINJA_NODE_CONST: *out = n->value; return SAC_OK;
    case JINJA_NODE_NAME: return eval_name(j, n->value, s, out);
    case JINJA_NODE_BLOCK: return eval_name(j, block_name, s, out);
    case JINJA_NODE_LIST:
    case JINJA_NODE_TUPLE: return eval_list(j, n, s, out);
    case JINJA_NODE_DICT: return eval_dict(j, n, s, out);
    case JINJA_NODE_ATTR:
    case JINJA_NODE_ITEM: return eval_member(j, n, s, out);
    case JINJA_NODE_SLICE: return eval_slice(j, n, s, out);
    case JINJA_NODE_CALL: return eval_call(j, n, s, out);
    case JINJA_NODE_FILTER:
    case JINJA_NODE_TEST: return eval_applied(j, n, s, out);
    case JINJA_NODE_NEG:
    case JINJA_NODE_POS: return eval_sign(j, n, s, out);
    case JINJA_NODE_NOT: return eval_not(j, n, s, out);
    case JINJA_NODE_BINARY: return eval_binary(j, n, s, out);
    case JINJA_NODE_AND:
    case JINJA_NODE_OR: return eval_logic(j, n, s, out);
    case JINJA_NODE_COMPARE: return eval_compare(j, n, s, out);
    case JINJA_NODE_CONCAT: return eval_concat(j, n, s, out);
    case JINJA_NODE_COND: return eval_cond(j, n, s, out);
    default: break;
    }
    return jinja_fail(j, "a statement is no expression");
}

static sac_status enter(struct jinja *j, const struct jinja_node *n)
{
    j->line = n->line;
    if (j->nest == JINJA_NEST_MAX) return jinja_fail(j, "evaluations nest too deep");
    j->nest++;
    return jinja_step(j, 1);
}

static sac_status eval(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                       struct jinja_value *out)
{
    TRY(enter(j, n));
    TRY(eval_kind(j, n, s, out));
    j->nest--;
    return SAC_OK;
}

/* ---- Statements ---- */

static sac_status run_output(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s)
{
    struct jinja_value v, text;
    TRY(eval(j, n->a, s, &v));
    TRY(jinja_text_str(j, v, &text));
    return jinja_text_add(j, text.s, text.n);
}

static sac_status run_if(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s)
{
    for (const struct jinja_node *branch = n->list; branch; branch = branch->next) {
        struct jinja_value test = jinja_bool(true);
        if (branch->a) TRY(eval(j, branch->a, s, &test));
        if (jinja_truth(test)) return run(j, branch->body, s);
    }
    return SAC_OK;
}

/* Empties a scope for the next iteration. */
static void scope_clear(struct jinja_scope *s)
{
    if (s->vars.slots) s->vars = (struct jinja_dict){0};
    s->vars.n = 0;
}

/* The members for which the loop's condition holds. */
static sac_status filter_items(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                               const struct jinja_list **io)
{
    struct jinja_value kept, test;
    TRY(jinja_list_new(j, &kept, JINJA_LIST));
    for (uint32_t i = 0; i < (*io)->n; i++) {
        scope_clear(s);
        TRY(assign(j, n->b, s, (*io)->items[i]));
        TRY(eval(j, n->c, s, &test));
        if (jinja_truth(test)) TRY(jinja_list_push(j, kept.list, (*io)->items[i]));
    }
    *io = kept.list;
    return SAC_OK;
}

static sac_status run_for(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s)
{
    struct jinja_value over;
    const struct jinja_list *items;
    struct jinja_scope *inner = jinja_alloc(j, sizeof *inner);
    struct jinja_loop *loop = jinja_alloc(j, sizeof *loop);
    if (!inner || !loop) return jinja_no_memory(j);
    *inner = (struct jinja_scope){.parent = s};
    TRY(eval(j, n->a, s, &over));
    TRY(jinja_members(j, over, &items));
    if (n->c) TRY(filter_items(j, n, inner, &items));
    if (items->n == 0) return run(j, n->orelse, inner);
    *loop = (struct jinja_loop){.items = items};
    const struct jinja_value v = {.kind = JINJA_LOOP, .loop = loop};
    for (; loop->at < items->n && j->flow != JINJA_FLOW_BREAK; loop->at++) {
        j->flow = JINJA_FLOW_NEXT;
        scope_clear(inner);
        TRY(jinja_dict_set(j, &inner->vars, jinja_strz("loop"), v));
        TRY(assign(j, n->b, inner, items->items[loop->at]));
        TRY(run(j, n->body, inner));
    }
    j->flow = JINJA_FLOW_NEXT;
    return SAC_OK;
}

/* The text of a block, in a scope of its own and through the block's filters. */
static sac_status run_captured(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                               struct jinja_value *out)
{
    struct jinja_scope *inner = jinja_alloc(j, sizeof *inner);
    if (!inner) return jinja_no_memory(j);
    *inner = (struct jinja_scope){.parent = s};
    const size_t begin = jinja_text_begin(j);
    TRY(run(j, n->body, inner));
    TRY(jinja_text_end(j, begin, out));
    if (!n->a) return SAC_OK;
    scope_clear(inner);
    TRY(jinja_dict_set(j, &inner->vars, block_name, *out));
    return eval(j, n->a, inner, out);
}

static sac_status run_filter_block(struct jinja *j, const struct jinja_node *n,
                                   struct jinja_scope *s)
{
    struct jinja_value v, text;
    TRY(run_captured(j, n, s, &v));
    TRY(jinja_text_str(j, v, &text));
    return jinja_text_add(j, text.s, text.n);
}

static sac_status run_set(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s)
{
    struct jinja_value v;
    if (n->kind == JINJA_NODE_SET_BLOCK)
        TRY(run_captured(j, n, s, &v));
    else
        TRY(eval(j, n->a, s, &v));
    return assign(j, n->b, s, v);
}

static sac_status make_macro(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s,
                             struct jinja_value *out)
{
    struct jinja_macro *m = jinja_alloc(j, sizeof *m);
    if (!m) return jinja_no_memory(j);
    *m = (struct jinja_macro){n, s};
    *out = (struct jinja_value){.kind = JINJA_MACRO, .macro = m};
    return SAC_OK;
}

static sac_status run_macro(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s)
{
    struct jinja_value macro;
    TRY(make_macro(j, n, s, &macro));
    return jinja_dict_set(j, &s->vars, n->value, macro);
}

static sac_status run_call_block(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s)
{
    struct jinja_value f, caller, text;
    struct jinja_args args;
    TRY(make_macro(j, n, s, &caller));
    TRY(eval(j, n->a->a, s, &f));
    TRY(eval_args(j, n->a->list, s, &args));
    if (f.kind != JINJA_MACRO) return jinja_fail(j, "a call block for what is no macro");
    TRY(call_macro(j, f.macro, &args, &caller, &text));
    return jinja_text_add(j, text.s, text.n);
}

/* The values of `with` are evaluated in the outer scope. */
static sac_status run_scope(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s)
{
    struct jinja_scope *inner = jinja_alloc(j, sizeof *inner);
    if (!inner) return jinja_no_memory(j);
    *inner = (struct jinja_scope){.parent = s};
    for (const struct jinja_node *set = n->list; set; set = set->next) {
        struct jinja_value v;
        TRY(eval(j, set->a, s, &v));
        TRY(assign(j, set->b, inner, v));
    }
    return run(j, n->body, inner);
}

static sac_status run_one(struct jinja *j, const struct jinja_node *n, struct jinja_scope *s)
{
    assert(n->kind >= JINJA_NODE_DATA);
    switch (n->kind) {
    case JINJA_NODE_DATA: return jinja_text_add(j, n->value.s, n->value.n);
    case JINJA_NODE_OUTPUT: return run_output(j, n, s);
    case JINJA_NODE_IF: return run_if(j, n, s);
    case JINJA_NODE_FOR: return run_for(j, n, s);
    case JINJA_NODE_SET:
    case JINJA_NODE_SET_BLOCK: return run_set(j, n, s);
    case JINJA_NODE_FILTER_BLOCK: return run_filter_block(j, n, s);
    case JINJA_NODE_MACRO: return run_macro(j, n, s);
    case JINJA_NODE_CALL_BLOCK: return run_call_block(j, n, s);
    case JINJA_NODE_SCOPE: return run_scope(j, n, s);
    case JINJA_NODE_BREAK: j->flow = JINJA_FLOW_BREAK; return SAC_OK;
    case JINJA_NODE_CONTINUE: j->flow = JINJA_FLOW_CONTINUE; return SAC_OK;
    default: break;
    }
    return jinja_fail(j, "an expression is no statement");
}

static sac_status run(struct jinja *j, const struct jinja_node *first, struct jinja_scope *s)
{
    for (const struct jinja_node *n = first; n && j->flow == JINJA_FLOW_NEXT; n = n->next) {
        TRY(enter(j, n));
        TRY(run_one(j, n, s));
        j->nest--;
    }
    return SAC_OK;
}

sac_status jinja_eval(struct jinja *j, const struct jinja_node *first, struct jinja_scope *scope)
{
    return run(j, first, scope);
}
