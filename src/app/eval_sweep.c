/* eval_sweep.c: `saccade eval sweep`: methods with several parameter values, on one text, and the
 * resulting curves: divergence against bytes and against time. eval_fidelity.c measures,
 * eval/report.h makes the page. */
#include "app/app.h"
#include "app/eval.h"
#include "app/eval_fidelity.h"
#include "app/eval_run.h"
#include "app/setup.h"
#include "eval/report.h"
#include "eval/subjects.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define COMMAND   "eval sweep"
#define VALUE_MAX 16u
#define METHODS   "full,auto,quest,arkvale,sparq,topk"
#define OPT(names, type, field, arg, help)                                                         \
    {                                                                                              \
        names, type, offsetof(struct eval_sweep, field), arg, help, .env = NULL                    \
    }

const struct option_spec eval_sweep_specs[] = {
    OPT("--budgets", OPTION_TEXT, budgets, "LIST",
        "values of `budget`, for methods without `mass` (default: 1%,2%,5%,10%)"),
    OPT("--masses", OPTION_TEXT, masses, "LIST",
        "values of `mass`, for methods that have it (default: 0.8,0.9,0.95,0.99)"),
    {0},
};

static bool has_param(const sac_method_info *m, const char *key)
{
    for (size_t i = 0; i < m->n_param; i++)
        if (strcmp(m->param[i].key, key) == 0) return true;
    return false;
}

/* The decode part of "PREFILL+DECODE", or all of it: it gets the values. */
static const char *decode_part(const char *spec)
{
    const char *plus = strchr(spec, '+');
    return plus ? plus + 1 : spec;
}

/* Adds one method with each value of its parameter. */
static void add_values(struct strbuf *out, const char *spec, const struct eval_sweep *sweep)
{
    const char *decode = decode_part(spec);
    char value[SUBJECT_NAME_MAX];
    sac_method_info m = {0};
    const bool known = subjects_method(&m, "decode", decode);
    const char *key = known && has_param(&m, "mass")     ? "mass"
                      : known && has_param(&m, "budget") ? "budget"
                                                         : NULL;
    if (!key || strstr(decode, key)) {
        strbuf_addf(out, "%s%s", out->n ? "," : "", spec);
        return;
    }
    const char join = strchr(decode, ':') ? ',' : ':';
    const char *at = key[0] == 'm' ? sweep->masses : sweep->budgets;
    while (eval_run_word(&at, value, sizeof value))
        strbuf_addf(out, "%s%s%c%s=%s", out->n ? "," : "", spec, join, key, value);
}

sac_status eval_sweep_list(struct strbuf *out, const char *methods, const struct eval_sweep *sweep,
                           sac_error *err)
{
    struct subjects plain;
    const sac_status status = subjects_parse(&plain, methods, err);
    for (uint32_t i = 0; status == SAC_OK && i < plain.n; i++)
        add_values(out, plain.item[i].name, sweep);
    subjects_deinit(&plain);
    if (status != SAC_OK) return status;
    return out->failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for a list of methods")
                       : SAC_OK;
}

int eval_cmd_sweep(int argc, char **argv)
{
    struct eval_sweep sweep = {.budgets = "1%,2%,5%,10%", .masses = "0.8,0.9,0.95,0.99"};
    struct eval_fidelity f = {
        .command = COMMAND,
        .summary = "Compares decode methods at several budgets or masses with dense attention on a "
                   "text, times their steps without recording, and writes DIR/report.html with "
                   "curves of the divergence over bytes read and over time.",
        .methods = METHODS,
        .sweep = &sweep,
    };
    const int code = eval_fidelity_main(&f, argc, argv);
    if (code != EXIT_OK || !f.out) return code;
    const struct report_map map = {REPORT_READING_ANY, REPORT_READING_ANY, REPORT_READING_ANY};
    sac_error err = {0};
    struct report_result result = {0};
    const sac_status status = report_write(f.out, &map, &result, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    fprintf(stderr, "%s/report.html: %zu plots\n", f.out, result.n_plot);
    strbuf_deinit(&result.missing);
    return EXIT_OK;
}
