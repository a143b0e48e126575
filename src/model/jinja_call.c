/* jinja_call.c: binds the arguments of a call to the named parameters of a built-in. */
#include "model/jinja.h"

#include <assert.h>

static bool is_optional(const char *param)
{
    return param[strlen(param) - 1] == '?';
}

/* The index of the parameter `name`, or JINJA_ARG_MAX. */
static uint32_t find_param(const struct jinja_builtin *b, struct jinja_value name)
{
    for (uint32_t i = 0; i < JINJA_ARG_MAX && b->params[i]; i++) {
        const size_t n = strlen(b->params[i]) - is_optional(b->params[i]);
        if (jinja_text_same(b->params[i], n, name.s, name.n)) return i;
    }
    return JINJA_ARG_MAX;
}

static sac_status bind(struct jinja *j, struct jinja_call *c)
{
    const struct jinja_builtin *b = c->builtin;
    for (uint32_t i = 0; i < c->args.n_pos; i++) {
        if (i == JINJA_ARG_MAX || !b->params[i])
            return jinja_fail(j, "%s takes no more than %u arguments", b->name, i);
        c->arg[i] = c->args.pos[i];
    }
    for (uint32_t k = 0; c->args.kw && k < c->args.kw->n; k++) {
        const struct jinja_pair *p = &c->args.kw->pairs[k];
        const uint32_t i = find_param(b, p->key);
        if (i == JINJA_ARG_MAX || c->arg[i].kind != JINJA_MISSING)
            return jinja_fail(j, "%s has no argument '%.*s' to set", b->name, (int)p->key.n,
                              p->key.s);
        c->arg[i] = p->value;
    }
    for (uint32_t i = 0; i < JINJA_ARG_MAX && b->params[i]; i++)
        if (c->arg[i].kind == JINJA_MISSING && !is_optional(b->params[i]))
            return jinja_fail(j, "%s needs the argument '%s'", b->name, b->params[i]);
    return SAC_OK;
}

sac_status jinja_call_builtin(struct jinja *j, const struct jinja_builtin *builtin,
                              struct jinja_value self, struct jinja_args args,
                              struct jinja_value *out)
{
    struct jinja_call c = {.builtin = builtin, .self = self, .args = args};
    assert(builtin->fn && (args.n_pos == 0 || args.pos));
    TRY(jinja_step(j, 1));
    if (!builtin->variadic) TRY(bind(j, &c));
    return builtin->fn(j, &c, out);
}

static sac_status bad_argument(struct jinja *j, const struct jinja_call *c, uint32_t i)
{
    return jinja_fail(j, "%s: argument %u is of type %s", c->builtin->name, i + 1,
                      jinja_kind_name(c->arg[i]));
}

sac_status jinja_call_int(struct jinja *j, const struct jinja_call *c, uint32_t i,
                          int64_t otherwise, int64_t *out)
{
    const struct jinja_value v = c->arg[i];
    *out = otherwise;
    if (v.kind == JINJA_MISSING || v.kind == JINJA_NONE) return SAC_OK;
    if (v.kind != JINJA_INT && v.kind != JINJA_BOOL) return bad_argument(j, c, i);
    *out = v.kind == JINJA_INT ? v.i : v.b;
    return SAC_OK;
}

sac_status jinja_call_text(struct jinja *j, const struct jinja_call *c, uint32_t i,
                           const char *otherwise, struct jinja_value *out)
{
    *out = jinja_strz(otherwise);
    if (c->arg[i].kind == JINJA_MISSING) return SAC_OK;
    if (c->arg[i].kind != JINJA_STRING) return bad_argument(j, c, i);
    *out = c->arg[i];
    return SAC_OK;
}

bool jinja_call_flag(const struct jinja_call *c, uint32_t i, bool otherwise)
{
    return c->arg[i].kind == JINJA_MISSING ? otherwise : jinja_truth(c->arg[i]);
}

const struct jinja_builtin *jinja_call_find(const struct jinja_builtin *table,
                                            struct jinja_value name)
{
    for (; table->name; table++)
        if (jinja_is_str(name, table->name)) return table;
    return NULL;
}
