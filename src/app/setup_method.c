/* setup_method.c: see the header. */
#include "app/setup_method.h"

#include <stdio.h>
#include <string.h>

bool setup_method_find(const char *kind, const char *spec, sac_method_info *out)
{
    const size_t n_name = strcspn(spec, ":");
    for (size_t i = 0; sac_method_at(i, out); i++)
        if (strcmp(out->kind, kind) == 0 && strlen(out->name) == n_name &&
            memcmp(out->name, spec, n_name) == 0)
            return true;
    return false;
}

static bool has_param(const char *kind, const char *spec, const char *key)
{
    sac_method_info m;
    if (!setup_method_find(kind, spec, &m)) return false;
    for (size_t p = 0; p < m.n_param; p++)
        if (strcmp(m.param[p].key, key) == 0) return true;
    return false;
}

int setup_method_spec(const struct setup *s, const char *kind, const char *method, char out[256])
{
    char budget[64] = "", mass[64] = "";
    bool with_param = strchr(method, ':') != NULL;
    if (s->budget && has_param(kind, method, "budget")) {
        snprintf(budget, sizeof budget, "%cbudget=%.40s", with_param ? ',' : ':', s->budget);
        with_param = true;
    }
    if (s->mass > 0 && has_param(kind, method, "mass"))
        snprintf(mass, sizeof mass, "%cmass=%g", with_param ? ',' : ':', (double)s->mass);
    const int n = snprintf(out, 256, "%s%s%s", method, budget, mass);
    if (n < 0 || n >= 256)
        return options_usage_error(s->command, "option '--%s': longer than 255 bytes", kind);
    sac_error err = {0};
    if (sac_method_check(kind, out, &err) != SAC_OK)
        return options_usage_error(s->command, "option '--%s': %s", kind, err.msg);
    return OPTIONS_GO_ON;
}

/* --budget and --mass apply to any named method; at least one must have the parameter. */
static int check_dial(const struct setup *s, const char *key)
{
    if (!s->decode && !s->prefill && !s->context)
        return options_usage_error(
            s->command, "--%s is for a method: --prefill NAME or --decode NAME is missing", key);
    if ((s->decode && has_param("decode", s->decode, key)) ||
        (s->prefill && has_param("prefill", s->prefill, key)) ||
        (s->context && has_param("context", s->context, key)))
        return OPTIONS_GO_ON;
    return options_usage_error(s->command, "--%s: %s has no parameter '%s'", key,
                               s->decode    ? s->decode
                               : s->prefill ? s->prefill
                                            : s->context,
                               key);
}

int setup_method_context(struct setup *s, const char *method)
{
    sac_method_info m;
    s->context = method;
    if (method && !s->decode && setup_method_find("context", method, &m)) s->decode = m.decode;
    return method ? setup_method_spec(s, "context", method, s->context_spec) : OPTIONS_GO_ON;
}

int setup_method_specs(struct setup *s)
{
    int code = OPTIONS_GO_ON;
    if (s->budget) code = check_dial(s, "budget");
    if (code == OPTIONS_GO_ON && s->mass > 0) code = check_dial(s, "mass");
    if (code == OPTIONS_GO_ON && s->prefill)
        code = setup_method_spec(s, "prefill", s->prefill, s->prefill_spec);
    if (code == OPTIONS_GO_ON && s->decode)
        code = setup_method_spec(s, "decode", s->decode, s->decode_spec);
    s->prefill_list[0] = s->prefill_spec;
    s->decode_list[0] = s->decode_spec;
    return code;
}
