/* eval_report.c: `saccade eval report DIR`: one page from what an evaluation left in a directory.
 */
#include "app/eval.h"

#include "app/app.h"
#include "app/options.h"
#include "app/setup.h"
#include "eval/report.h"

#include <stdio.h>

#define COMMAND "eval report"

struct report_options {
    bool quiet;
};

static const struct option_spec specs[] = {
    {"-q --quiet", OPTION_FLAG, offsetof(struct report_options, quiet), NULL,
     "do not tell on stderr what was left out", .env = NULL},
    {0},
};

int eval_cmd_report(int argc, char **argv)
{
    struct report_options opt = {0};
    const char *dir = NULL;
    const struct option_group groups[] = {{"Report", specs, &opt}};
    struct options o = {
        .command = COMMAND,
        .usage = "DIR [options]",
        .summary =
            "Reads samples.jsonl, summary.json, fidelity.json and reading.sacr of DIR, as far "
            "as they are there, and writes DIR/report.html, a page that needs nothing else, "
            "and a CSV file for each of its plots.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
        .operand = &dir,
        .operand_max = 1,
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (!dir) return options_usage_error(COMMAND, "the directory of an evaluation is missing");
    sac_error err = {0};
    struct report_result result = {0};
    const sac_status status = report_write(dir, &result, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    if (!opt.quiet && result.missing.n) fprintf(stderr, "left out:\n%s", result.missing.data);
    printf("%s/report.html: %zu plots\n", dir, result.n_plot);
    strbuf_deinit(&result.missing);
    return EXIT_OK;
}
