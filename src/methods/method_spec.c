/* method_spec.c: the parser of method specifications. The tables of the methods are the only
 * description of a parameter: parsing, ranges, help and docs all read them. */
#include "methods/method_spec.h"

#include "base/strbuf.h"
#include "base/suggest.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A word of a text that is not NUL terminated. */
struct word {
    const char *s;
    size_t n;
};

static bool word_is(struct word w, const char *s)
{
    return strlen(s) == w.n && memcmp(w.s, s, w.n) == 0;
}

static sac_status unknown_method(const char *kind, struct word name, sac_error *err)
{
    struct strbuf list = {0};
    struct suggest near = suggest_begin(name.s, name.n);
    const char *other = NULL;
    char hint[SUGGEST_HINT_BYTES];
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        if (strcmp(m->kind, kind) != 0 && word_is(name, m->name)) other = m->kind;
        if (strcmp(m->kind, kind) != 0) continue;
        strbuf_addf(&list, "%s%s", list.n ? ", " : "", m->name);
        suggest_try(&near, m->name, strlen(m->name));
    }
    suggest_hint(&near, hint);
    if (other) snprintf(hint, sizeof hint, " (it is a %s method)", other);
    const sac_status status =
        error_set(err, SAC_ERR_ARG, "unknown %s method '%.*s'%s: there are %s", kind,
                  (int)(name.n < 40 ? name.n : 40), name.s, hint, list.data ? list.data : "none");
    strbuf_deinit(&list);
    return status;
}

static sac_status unknown_key(const struct method *m, struct word key, sac_error *err)
{
    struct strbuf list = {0};
    struct suggest near = suggest_begin(key.s, key.n);
    char hint[SUGGEST_HINT_BYTES];
    for (uint32_t i = 0; m->params && i < m->params->n; i++) {
        const char *known = m->params->row[i].key;
        strbuf_addf(&list, "%s%s", i ? ", " : "", known);
        suggest_try(&near, known, strlen(known));
    }
    suggest_hint(&near, hint);
    const sac_status status = error_set(
        err, SAC_ERR_ARG, "%s method '%s' has no parameter '%.*s'%s: it has %s", m->kind, m->name,
        (int)(key.n < 40 ? key.n : 40), key.s, hint, list.data ? list.data : "none");
    strbuf_deinit(&list);
    return status;
}

static bool parse_choice(double *out, const char *choices, struct word value)
{
    uint32_t i = 0;
    for (const char *w = choices;; i++) {
        const size_t n = strcspn(w, "|");
        if (n == value.n && memcmp(w, value.s, n) == 0) {
            *out = i;
            return true;
        }
        if (!w[n]) return false;
        w += n + 1;
    }
}

/* A finite number, optionally followed by a percent sign. */
static bool parse_number(double *out, bool *out_percent, struct word value)
{
    char text[32], *end;
    if (value.n == 0 || value.n >= sizeof text) return false;
    memcpy(text, value.s, value.n);
    text[value.n] = 0;
    if (!strchr("+-.0123456789", text[0])) return false;
    errno = 0;
    *out = strtod(text, &end);
    *out_percent = *end == '%';
    return end != text && end[*out_percent] == 0 && errno == 0 && isfinite(*out);
}

/* A parsed value: a number, the index of a choice, or whether there is a file; a budget's share is
 * a negative number. */
static bool parse_value(double *out, const sac_method_param *p, struct word value)
{
    bool percent;
    double x;
    if (p->choices) return parse_choice(out, p->choices, value);
    if (p->type == SAC_PARAM_FILE) { /* the path itself is struct method_spec.file */
        *out = value.n > 0;
        return true;
    }
    if (!parse_number(&x, &percent, value)) return false;
    if (percent) {
        if (p->type != SAC_PARAM_BUDGET || x <= 0 || x > 100) return false;
        *out = -x / 100;
        return true;
    }
    const bool is_real = p->type == SAC_PARAM_FLOAT || p->type == SAC_PARAM_SHARE;
    if (!is_real && x != floor(x)) return false;
    *out = x;
    return x >= p->min && x <= p->max;
}

/* Stores a parsed value in its member of the method's struct. */
static void store_value(struct method_spec *out, uint32_t i, double x)
{
    const struct method_params *params = out->method->params;
    const struct param_budget budget = {x < 0 ? 0 : (uint32_t)x, x < 0 ? -x : 0};
    const uint32_t n = x < 0 ? 0 : (uint32_t)x;
    const bool flag = x > 0;
    uint8_t *at = out->param + params->at[i];
    switch (params->row[i].type) {
    case SAC_PARAM_INT:
    case SAC_PARAM_TOKENS:
    case SAC_PARAM_CHOICE: memcpy(at, &n, sizeof n); break;
    case SAC_PARAM_FLAG:
    case SAC_PARAM_FILE: memcpy(at, &flag, sizeof flag); break;
    case SAC_PARAM_BUDGET: memcpy(at, &budget, sizeof budget); break;
    case SAC_PARAM_FLOAT:
    case SAC_PARAM_SHARE: memcpy(at, &x, sizeof x); break;
    }
}

static sac_status bad_value(const struct method *m, const sac_method_param *p, struct word value,
                            sac_error *err)
{
    const int n = (int)(value.n < 40 ? value.n : 40);
    switch (p->type) {
    case SAC_PARAM_CHOICE:
    case SAC_PARAM_FLAG:
        return error_set(err, SAC_ERR_ARG, "%s method '%s': %s=%.*s is not one of %s", m->kind,
                         m->name, p->key, n, value.s, p->choices);
    case SAC_PARAM_BUDGET:
        return error_set(err, SAC_ERR_ARG,
                         "%s method '%s': %s=%.*s must be %.15g to %.15g tokens, or up to 100%%",
                         m->kind, m->name, p->key, n, value.s, p->min, p->max);
    case SAC_PARAM_INT:
    case SAC_PARAM_TOKENS:
    case SAC_PARAM_FLOAT:
    case SAC_PARAM_SHARE:
    case SAC_PARAM_FILE: break; /* any path will do */
    }
    const bool is_real = p->type == SAC_PARAM_FLOAT || p->type == SAC_PARAM_SHARE;
    return error_set(err, SAC_ERR_ARG, "%s method '%s': %s=%.*s must be %s from %.15g to %.15g",
                     m->kind, m->name, p->key, n, value.s, is_real ? "a number" : "a whole number",
                     p->min, p->max);
}

static sac_status set_param(struct method_spec *out, struct word pair, sac_error *err)
{
    const struct method *m = out->method;
    const char *eq = memchr(pair.s, '=', pair.n);
    const struct word key = {pair.s, eq ? (size_t)(eq - pair.s) : pair.n};
    if (!eq || key.n == 0)
        return error_set(err, SAC_ERR_ARG, "%s method '%s': '%.*s' is not of the form key=value",
                         m->kind, m->name, (int)(pair.n < 40 ? pair.n : 40), pair.s);
    const struct word value = {eq + 1, pair.n - key.n - 1};
    for (uint32_t i = 0; m->params && i < m->params->n; i++) {
        const sac_method_param *row = &m->params->row[i];
        double x;
        if (!word_is(key, row->key)) continue;
        if (!parse_value(&x, row, value)) return bad_value(m, row, value, err);
        store_value(out, i, x);
        if (row->type == SAC_PARAM_FILE) {
            memcpy(out->file, value.s, value.n);
            out->file[value.n] = 0;
        }
        return SAC_OK;
    }
    return unknown_key(m, key, err);
}

sac_status method_spec_parse(struct method_spec *out, const char *kind, const char *text,
                             sac_error *err)
{
    struct method_spec s = {0};
    const size_t n_text = strlen(text);
    if (n_text >= METHOD_SPEC_BYTES)
        return error_set(err, SAC_ERR_ARG, "a method's specification has %zu bytes, at most %u",
                         n_text, METHOD_SPEC_BYTES - 1);
    memcpy(s.text, text, n_text + 1);
    const struct word name = {text, strcspn(text, ":")};
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++)
        if (strcmp(m->kind, kind) == 0 && word_is(name, m->name)) s.method = m;
    if (!s.method) return unknown_method(kind, name, err);
    m = s.method;
    for (uint32_t i = 0; m->params && i < m->params->n; i++) {
        const sac_method_param *row = &m->params->row[i];
        double x = 0;
        const bool is_good = parse_value(&x, row, (struct word){row->value, strlen(row->value)});
        assert(is_good); /* a default obeys its own table: tests/unit/test_method.c */
        (void)is_good;
        store_value(&s, i, x);
    }
    const char *p = text + name.n;
    while (*p) { /* ':' and ',' must be followed by a pair */
        p++;
        const size_t n = strcspn(p, ",");
        TRY(set_param(&s, (struct word){p, n}, err));
        p += n;
    }
    *out = s;
    return SAC_OK;
}

sac_status method_spec_list_parse(struct method_spec_list *out, const char *kind,
                                  const char *const *text, uint32_t n, sac_error *err)
{
    if (n == 0 || n > SAC_METHODS_MAX)
        return error_set(err, SAC_ERR_ARG, "%u %s methods: must be 1 to %u", n, kind,
                         SAC_METHODS_MAX);
    out->n = n;
    out->is_dense = true;
    for (uint32_t i = 0; i < n; i++) {
        struct method_spec *s = &out->spec[i];
        TRY(method_spec_parse(s, kind, text[i], err));
        out->text[i] = s->text;
        out->is_dense = out->is_dense && !s->method->decode && !s->method->prefill;
    }
    return SAC_OK;
}

uint32_t method_spec_budget(struct param_budget budget, uint32_t n)
{
    const double tok = budget.n_tok ? budget.n_tok : ceil(budget.share * n);
    return tok < 1 ? 1 : tok < UINT32_MAX ? (uint32_t)tok : UINT32_MAX;
}

sac_status sac_method_check(const char *kind, const char *spec, sac_error *err)
{
    struct method_spec s;
    return method_spec_parse(&s, kind, spec, err);
}
