/* eval_report.c: `saccade eval report DIR...`: one page from what an evaluation left in a
 * directory, or from several of them side by side. */
#include "app/eval.h"

#include "app/app.h"
#include "app/options.h"
#include "app/setup.h"
#include "eval/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COMMAND "eval report"
#define DIR_MAX 16u

struct report_options {
    const char *out;
    int32_t sample, layer, head; /* -1: any */
    bool quiet;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct report_options, field), arg, help, __VA_ARGS__                \
    }

static const struct option_spec specs[] = {
    OPT("--out", OPTION_TEXT, out, "DIR",
        "folder for the page that compares several evaluations (default: compared)", .env = NULL),
    OPT("--map-sample", OPTION_I32, sample, "N",
        "block map of this sample of the recording; -1: of its first prompt", .min = -1,
        .max = INT32_MAX),
    OPT("--map-layer", OPTION_I32, layer, "N", "block map of this layer; -1: of four layers",
        .min = -1, .max = 65535),
    OPT("--map-head", OPTION_I32, head, "N", "block map of this KV head; -1: mean of all heads",
        .min = -1, .max = 65535),
    OPT("-q --quiet", OPTION_FLAG, quiet, NULL, "do not report on stderr what was left out",
        .env = NULL),
    {0},
};

static uint32_t any_or(int32_t i)
{
    return i < 0 ? REPORT_READING_ANY : (uint32_t)i;
}

static sac_status write_page(const struct report_options *opt, const char *const *dir, size_t n_dir,
                             struct report_result *result, sac_error *err)
{
    const struct report_map map = {any_or(opt->sample), any_or(opt->layer), any_or(opt->head)};
    for (size_t i = 0; i < n_dir; i++)
        if (access(dir[i], F_OK) != 0)
            return error_set(err, SAC_ERR_NOT_FOUND, "cannot open %s: %s", dir[i], strerror(errno));
    return n_dir == 1 ? report_write(dir[0], &map, result, err)
                      : report_compare(opt->out, dir, n_dir, result, err);
}

int eval_cmd_report(int argc, char **argv)
{
    struct report_options opt = {.out = "compared", .sample = -1, .layer = -1, .head = -1};
    const char *dir[DIR_MAX] = {0};
    const struct option_group groups[] = {{"Report", specs, &opt}};
    struct options o = {
        .command = COMMAND,
        .usage = "DIR... [options]",
        .summary =
            "Reads samples.jsonl, run.json, summary.json, fidelity.json, docs.jsonl and "
            "reading.sacr of DIR, where present, and writes DIR/report.html, a self-contained "
            "page, and a CSV file for each of its plots. Several folders are compared on one page.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
        .operand = dir,
        .operand_max = DIR_MAX,
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (o.n_operand == 0)
        return options_usage_error(COMMAND, "the directory of an evaluation is missing");
    sac_error err = {0};
    struct report_result result = {0};
    const sac_status status = write_page(&opt, dir, o.n_operand, &result, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    if (!opt.quiet && result.missing.n) fprintf(stderr, "left out:\n%s", result.missing.data);
    printf("%s/report.html: %zu plots\n", o.n_operand == 1 ? dir[0] : opt.out, result.n_plot);
    strbuf_deinit(&result.missing);
    return EXIT_OK;
}
