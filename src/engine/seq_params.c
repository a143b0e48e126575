/* seq_params.c: see the header.
 *
 * A method's memory, and the side data that it stores about shared pages, were planned from the
 * engine's specification. Only `mass` and `budget` can therefore be set, which determine how much
 * is read and not what is stored about a page, and only to values for which the planned memory
 * suffices.
 *
 * Invariant: another setting counts as another method: what was learned under the previous one is
 * discarded, and a sequence that has lost pages stays with its own. */
#include "engine/seq_params.h"

#include "engine/engine.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static bool has_param(const struct method *m, const char *key)
{
    for (uint32_t i = 0; m->params && i < m->params->n; i++)
        if (strcmp(m->params->row[i].key, key) == 0) return true;
    return false;
}

/* Appends "key=value" to the pairs in `text`; the last of several pairs with the same key
 * counts. */
static sac_status append(char text[METHOD_SPEC_BYTES], const char *key, const char *value,
                         sac_error *err)
{
    const size_t n = strlen(text);
    assert(n < METHOD_SPEC_BYTES);
    const char sign = strchr(text, ':') ? ',' : ':';
    const int n_new = snprintf(text + n, METHOD_SPEC_BYTES - n, "%c%s=%s", sign, key, value);
    if (n_new > 0 && n + (size_t)n_new < METHOD_SPEC_BYTES) return SAC_OK;
    return error_set(err, SAC_ERR_ARG, "%s=%.40s: no room behind the specification of the method",
                     key, value);
}

/* Whether the memory that was planned for `m` is enough for its method with the settings `own`. */
static sac_status check_memory(const sac_engine *e, enum method_set_kind kind,
                               const struct method_set_entry *m, const struct method_spec *own,
                               sac_error *err)
{
    const struct method_set_hooks *h = &m->hooks;
    const struct method_decode *d = own->method->decode;
    const uint32_t n_past = d && d->past_rows ? d->past_rows(&e->shape, own->param) : 0;
    if (method_hook_bytes(h->state_bytes, &e->shape, own->param) <= m->state_bytes &&
        method_hook_bytes(h->side_bytes, &e->shape, own->param) == m->side.bytes &&
        method_set_scratch_bytes(e, m, own->param) <= e->method_set[kind].worker_bytes &&
        decode_votes_bytes(e, own) <= e->decode.votes.scratch_bytes && n_past <= e->past.n_slot)
        return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "%s method '%s' needs more memory than the engine planned for '%s'",
                     own->method->kind, own->text, m->spec->text);
}

/* Makes the specification of one kind's method. */
static sac_status make(const sac_engine *e, enum method_set_kind kind, uint32_t method_i,
                       const sac_sparse *sparse, struct seq_params *out, sac_error *err)
{
    const struct method_set_entry *m = &e->method_set[kind].method[method_i];
    const struct method *method = m->spec->method;
    char text[METHOD_SPEC_BYTES], mass[32];
    memcpy(text, m->spec->text, sizeof text);
    snprintf(mass, sizeof mass, "%.9g", (double)sparse->mass);
    if (sparse->mass != 0 && has_param(method, "mass")) TRY(append(text, "mass", mass, err));
    if (sparse->budget && has_param(method, "budget"))
        TRY(append(text, "budget", sparse->budget, err));
    out->has_own[kind] = strcmp(text, m->spec->text) != 0;
    if (!out->has_own[kind]) return SAC_OK;
    TRY(method_spec_parse(&out->own[kind], method->kind, text, err));
    return check_memory(e, kind, m, &out->own[kind], err);
}

static sac_status check_key(const sac_engine *e, const uint32_t method_i[METHOD_SET_KINDS],
                            const char *key, sac_error *err)
{
    const struct method *m[METHOD_SET_KINDS];
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        m[kind] = e->method_set[kind].method[method_i[kind]].spec->method;
    if (has_param(m[METHOD_SET_DECODE], key) || has_param(m[METHOD_SET_PREFILL], key))
        return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "%s: neither decode method '%s' nor prefill method '%s' has such a parameter",
                     key, m[METHOD_SET_DECODE]->name, m[METHOD_SET_PREFILL]->name);
}

static sac_status make_params(const sac_engine *e, const uint32_t method_i[METHOD_SET_KINDS],
                              const sac_sparse *sparse, struct seq_params *out, sac_error *err)
{
    *out = (struct seq_params){.min_ctx = sparse->dense ? UINT32_MAX : sparse->min_ctx};
    if (sparse->budget && strcspn(sparse->budget, ",:") != strlen(sparse->budget))
        return error_set(err, SAC_ERR_ARG, "budget '%.40s' is no number of tokens and no share",
                         sparse->budget);
    if (sparse->mass != 0) TRY(check_key(e, method_i, "mass", err));
    if (sparse->budget) TRY(check_key(e, method_i, "budget", err));
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        TRY(make(e, (enum method_set_kind)kind, method_i[kind], sparse, out, err));
    return SAC_OK;
}

sac_status seq_params_check(const sac_engine *e, const uint32_t method_i[METHOD_SET_KINDS],
                            const sac_sparse *sparse, sac_error *err)
{
    struct seq_params params;
    return make_params(e, method_i, sparse, &params, err);
}

const struct method_spec *seq_params_spec(const sac_engine *e, enum method_set_kind kind,
                                          uint32_t seq_i)
{
    assert(seq_i < e->params.n_seq_max);
    const struct seq_params *d = &e->seqs[seq_i].params;
    return d->has_own[kind] ? &d->own[kind] : method_set_entry(e, kind, seq_i)->spec;
}

uint32_t seq_params_min_ctx(const sac_engine *e, uint32_t seq_i)
{
    const uint32_t own = e->seqs[seq_i].params.min_ctx;
    return own ? own : e->params.sparse_min_ctx;
}

static sac_status use_one(sac_engine *e, sac_seq id, const sac_sparse *sparse, sac_error *err)
{
    struct seq *s = engine_seq(e, id, err);
    struct seq_params params;
    bool differs[METHOD_SET_KINDS];
    if (!s) return SAC_ERR_NOT_FOUND;
    TRY(make_params(e, s->method_i, sparse, &params, err));
    for (int i = 0; i < METHOD_SET_KINDS; i++) {
        const enum method_set_kind kind = (enum method_set_kind)i;
        const struct method_spec *now = seq_params_spec(e, kind, id);
        const struct method_spec *next =
            params.has_own[i] ? &params.own[i] : method_set_entry(e, kind, id)->spec;
        differs[i] = strcmp(now->text, next->text) != 0;
        if (differs[i] && kind == METHOD_SET_DECODE && s->has_gaps && now->method->evicts)
            return error_set(err, SAC_ERR_ARG,
                             "sequence %u cannot change to decode method %s: %s has dropped tokens",
                             id, next->text, now->text);
    }
    s->params = params;
    for (int i = 0; i < METHOD_SET_KINDS; i++)
        if (differs[i]) method_set_forget(e, (enum method_set_kind)i, id);
    return SAC_OK;
}

sac_status sac_seq_use_sparse(sac_engine *e, sac_seq id, const sac_sparse *sparse, sac_error *err)
{
    ahead_forget(e);
    for (uint32_t i = 0; i < e->tp.n; i++) TRY(use_one(e->tp.of[i], id, sparse, err));
    return SAC_OK;
}
