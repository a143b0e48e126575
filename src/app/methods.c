/* methods.c: `saccade methods` prints the attention methods that are built in. All it knows comes
 * from the library's list. */
#include "app/app.h"
#include "app/options.h"
#include "app/output.h"

#include "saccade.h"

#include <cjson/cJSON.h>
#include <stdio.h>

enum format { FORMAT_TEXT, FORMAT_JSON };

struct methods_options {
    int format;
};

static const struct option_spec specs[] = {
    {"-o --output", OPTION_CHOICE, offsetof(struct methods_options, format), .choices = "text|json",
     .help = "format; json is a list of objects with kind, name, summary and paper"},
    {0},
};

static int print_json(void)
{
    cJSON *list = cJSON_CreateArray();
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "kind", m.kind);
        cJSON_AddStringToObject(row, "name", m.name);
        cJSON_AddStringToObject(row, "summary", m.summary);
        if (m.paper) cJSON_AddStringToObject(row, "paper", m.paper);
        cJSON_AddItemToArray(list, row);
    }
    return output_json(list);
}

int app_methods(int argc, char **argv)
{
    struct methods_options opt = {.format = FORMAT_TEXT};
    const struct option_group group = {"Options", specs, &opt};
    struct options o = {
        .command = "methods",
        .usage = "[options]",
        .summary = "Lists the attention methods that are built in.",
        .group = &group,
        .n_group = 1,
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (opt.format == FORMAT_JSON) return print_json();
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++)
        printf("%-8s  %-12s  %s\n", m.kind, m.name, m.summary);
    return EXIT_OK;
}
