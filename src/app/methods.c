/* methods.c: `saccade methods` prints the built-in attention methods, or one of them with its
 * parameters. All its information comes from the library's list. */
#include "app/app.h"
#include "app/options.h"
#include "app/output.h"

#include "base/suggest.h"
#include "saccade.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#define COMMAND "methods"

enum format { FORMAT_TEXT, FORMAT_JSON };

struct methods_options {
    int format;
};

static const struct option_spec specs[] = {
    {"-o --output", OPTION_CHOICE, offsetof(struct methods_options, format), .choices = "text|json",
     .help = "format; json is a list of objects with kind, name, summary, paper, about, param, "
             "deviation, runs_on and, by kind, needs_question or any_chunk"},
    {0},
};

static const char *type_name(sac_param_type type)
{
    static const char *const names[] = {"int",  "float",  "budget", "choice",
                                        "file", "tokens", "share",  "flag"};
    return names[type];
}

static cJSON *param_json(const sac_method_param *p)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "key", p->key);
    cJSON_AddStringToObject(o, "type", type_name(p->type));
    cJSON_AddStringToObject(o, "default", p->value);
    if (p->choices) {
        cJSON_AddStringToObject(o, "choices", p->choices);
    } else if (p->type != SAC_PARAM_FILE) {
        cJSON_AddNumberToObject(o, "min", p->min);
        cJSON_AddNumberToObject(o, "max", p->max);
    }
    cJSON_AddStringToObject(o, "help", p->help);
    return o;
}

static cJSON *deviation_json(const sac_method_deviation *d)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "paper", d->paper);
    cJSON_AddStringToObject(o, "here", d->here);
    cJSON_AddStringToObject(o, "why", d->why);
    if (d->effect)
        cJSON_AddStringToObject(o, "effect", d->effect);
    else
        cJSON_AddNullToObject(o, "effect");
    return o;
}

/* Which devices the method runs on. */
static const char *runs_on(const sac_method_info *m)
{
    return m->any_backend ? "any" : "cpu";
}

static int print_json(const char *name)
{
    cJSON *list = cJSON_CreateArray();
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        if (name && strcmp(m.name, name) != 0) continue;
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "kind", m.kind);
        cJSON_AddStringToObject(row, "name", m.name);
        cJSON_AddStringToObject(row, "summary", m.summary);
        if (m.paper) cJSON_AddStringToObject(row, "paper", m.paper);
        if (m.about) cJSON_AddStringToObject(row, "about", m.about);
        cJSON_AddStringToObject(row, "runs_on", runs_on(&m));
        if (strcmp(m.kind, "decode") == 0)
            cJSON_AddBoolToObject(row, "needs_question", m.needs_question);
        else if (strcmp(m.kind, "prefill") == 0)
            cJSON_AddBoolToObject(row, "any_chunk", m.any_chunk);
        cJSON *params = cJSON_AddArrayToObject(row, "param");
        for (size_t j = 0; j < m.n_param; j++)
            cJSON_AddItemToArray(params, param_json(&m.param[j]));
        cJSON *deviations = cJSON_AddArrayToObject(row, "deviation");
        for (size_t j = 0; j < m.n_deviation; j++)
            cJSON_AddItemToArray(deviations, deviation_json(&m.deviation[j]));
        cJSON_AddItemToArray(list, row);
    }
    return output_json(list);
}

/* Wraps a paragraph at `width`. */
static void print_wrapped(const char *text, size_t width)
{
    size_t column = 0;
    while (*text) {
        const size_t n = strcspn(text, " ");
        if (column > 0 && column + 1 + n > width) {
            putchar('\n');
            column = 0;
        }
        column += (size_t)printf("%s%.*s", column ? " " : "", (int)n, text);
        text += n + strspn(text + n, " ");
    }
    putchar('\n');
}

static void print_deviations(const sac_method_info *m)
{
    if (m->n_deviation) printf("\nDifferences from the paper\n");
    for (size_t i = 0; i < m->n_deviation; i++) {
        const sac_method_deviation *d = &m->deviation[i];
        printf("  paper   %s\n  here    %s\n  why     %s\n  effect  %s\n%s", d->paper, d->here,
               d->why, d->effect ? d->effect : "not measured", i + 1 < m->n_deviation ? "\n" : "");
    }
}

static void print_method(const sac_method_info *m)
{
    printf("%s method '%s': %s\n", m->kind, m->name, m->summary);
    if (m->paper) printf("%s\n", m->paper);
    if (m->about) {
        putchar('\n');
        print_wrapped(m->about, 96);
    }
    if (m->needs_question && strcmp(m->kind, "decode") == 0) {
        putchar('\n');
        print_wrapped("It takes the end of the prompt as the question: only the last token of a "
                      "question is a decode row (--decode-rows).",
                      96);
    }
    printf("\nRuns on: %s\n", m->any_backend ? "CPUs and GPUs" : "the CPU only");
    if (m->n_param) printf("\nParameters (--%s %s:key=value,...)\n", m->kind, m->name);
    for (size_t i = 0; i < m->n_param; i++) {
        const sac_method_param *p = &m->param[i];
        printf("  %-12s %s", p->key, p->help);
        if (p->choices)
            printf(" (%s; default %s)\n", p->choices, p->value);
        else if (p->type == SAC_PARAM_FILE)
            printf(" (file; default none)\n");
        else
            printf(" (%s, %.15g to %.15g%s; default %s)\n", type_name(p->type), p->min, p->max,
                   p->type == SAC_PARAM_BUDGET ? " tokens or N%" : "", p->value);
    }
    print_deviations(m);
}

static int print_text(const char *name)
{
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++)
        if (!name)
            printf("%-8s  %-12s  %-3s  %s\n", m.kind, m.name, runs_on(&m), m.summary);
        else if (strcmp(m.name, name) == 0)
            print_method(&m);
    return EXIT_OK;
}

/* Whether there is such a method; otherwise `hint` suggests a similar name. */
static bool is_known(const char *name, char hint[SUGGEST_HINT_BYTES])
{
    struct suggest near = suggest_begin(name, strlen(name));
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        if (strcmp(m.name, name) == 0) return true;
        suggest_try(&near, m.name, strlen(m.name));
    }
    suggest_hint(&near, hint);
    return false;
}

int app_methods(int argc, char **argv)
{
    struct methods_options opt = {.format = FORMAT_TEXT};
    const struct option_group group = {"Options", specs, &opt};
    const char *name = NULL;
    char hint[SUGGEST_HINT_BYTES];
    struct options o = {
        .command = COMMAND,
        .usage = "[NAME] [options]",
        .summary =
            "Lists the built-in attention methods, or explains one of them and its parameters.",
        .group = &group,
        .n_group = 1,
        .operand = &name,
        .operand_max = 1,
        .operands = "@method",
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (name && !is_known(name, hint))
        return options_usage_error(
            COMMAND, "there is no method '%.60s'%s; 'saccade methods' lists them", name, hint);
    return opt.format == FORMAT_JSON ? print_json(name) : print_text(name);
}
