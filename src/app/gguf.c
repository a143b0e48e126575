/* gguf.c: `saccade gguf FILE` shows what a model file contains, `saccade gguf check FILE` reports
 * what is wrong with it. The library does both; this file has the arguments, the output and the
 * exit code. */
#include "app/app.h"
#include "app/models.h"
#include "app/options.h"
#include "app/output.h"
#include "app/setup.h"

#include "saccade.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

enum format { FORMAT_TEXT, FORMAT_JSON };

struct gguf_options {
    int format;
    bool full;
};

static const struct option_spec specs[] = {
    {"-o --output", OPTION_CHOICE, offsetof(struct gguf_options, format), .choices = "text|json",
     .help = "format; json is one object with keys and tensors, or with ok and error for check"},
    {"--full", OPTION_FLAG, offsetof(struct gguf_options, full),
     .help = "do not shorten long arrays and strings"},
    {0},
};

/* Findings of a check belong to its output; a file that cannot be described is an error. */
static int report_failure(const char *message, bool is_check, bool json)
{
    if (!is_check || !json) {
        fprintf(stderr, "saccade gguf: %s\n", message);
        return EXIT_RUNTIME;
    }
    cJSON *found = cJSON_CreateObject();
    cJSON_AddBoolToObject(found, "ok", false);
    cJSON_AddStringToObject(found, "error", message);
    output_json(found);
    return EXIT_RUNTIME;
}

int app_gguf(int argc, char **argv)
{
    struct gguf_options opt = {.format = FORMAT_TEXT};
    const struct option_group group = {"Options", specs, &opt};
    const char *operand[2];
    struct options o = {
        .command = "gguf",
        .usage = "[check] MODEL [options]",
        .summary = "Shows keys and tensors of a GGUF file and of all parts of a split one. With "
                   "'check', reads all of it and reports what is wrong, or 'ok' with counts.",
        .group = &group,
        .n_group = 1,
        .operand = operand,
        .operand_max = 2,
        .operands = "@model",
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    const bool is_check = o.n_operand > 0 && strcmp(operand[0], "check") == 0;
    if (o.n_operand == (is_check ? 1 : 0))
        return options_usage_error(o.command, "a FILE is missing");
    if (o.n_operand == 2 && !is_check)
        return options_usage_error(o.command, "unexpected argument '%s'", operand[1]);

    const bool json = opt.format == FORMAT_JSON;
    const unsigned flags = (json ? SAC_FILE_JSON : 0u) | (opt.full ? SAC_FILE_FULL : 0u);
    char buf[4096];
    const char *name = operand[o.n_operand - 1], *path = models_find(name, buf, sizeof buf);
    if (path != name && setup_check_model(o.command, name) != OPTIONS_GO_ON) return EXIT_RUNTIME;
    char *text = NULL;
    sac_error err = {0};
    const sac_status status = is_check ? sac_file_check(path, flags, &text, &err)
                                       : sac_file_describe(path, flags, &text, &err);
    if (status != SAC_OK) return report_failure(err.msg, is_check, json);
    output_write(text, strlen(text));
    sac_free(text);
    return EXIT_OK;
}
