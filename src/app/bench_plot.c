/* bench_plot.c: `saccade bench plot FILE.csv`: draws a table of measurements. It measures nothing:
 * the README's plots are drawn from tables in docs. */
#include "app/bench.h"

#include "app/app.h"
#include "app/options.h"
#include "app/output.h"
#include "app/setup.h"

#include "base/input.h"
#include "eval/chart.h"

#include <string.h>

#define COMMAND "bench plot"

struct plot_options {
    struct chart chart;
    struct option_list only;
};

#define OPT(names, type, field, arg, help)                                                         \
    {                                                                                              \
        names, type, offsetof(struct plot_options, field), arg, help, .env = NULL                  \
    }

static const struct option_spec specs[] = {
    OPT("-x", OPTION_TEXT, chart.x, "COLUMN", "column of the x axis"),
    OPT("-y", OPTION_TEXT, chart.y, "COLUMN", "column of the y axis"),
    OPT("--by", OPTION_TEXT, chart.by, "COLUMN", "column whose values become separate lines"),
    OPT("--only", OPTION_LIST, only, "COLUMN=VALUE", "only rows with this value; repeatable"),
    OPT("--title", OPTION_TEXT, chart.title, "TEXT",
        "description of the drawing, for those who cannot see it"),
    OPT("--x-label", OPTION_TEXT, chart.x_label, "TEXT",
        "label of the x axis (default: its column)"),
    OPT("--y-label", OPTION_TEXT, chart.y_label, "TEXT",
        "label of the y axis (default: its column)"),
    OPT("--tokens", OPTION_FLAG, chart.x_tokens, NULL, "x counts tokens: 4096 is written 4K"),
    {0},
};

/* Keeps only the rows with this cell; "column=value". */
static sac_status keep_only(struct csv *t, const char *only, sac_error *err)
{
    const char *equals = strchr(only, '=');
    if (!equals) return error_set(err, SAC_ERR_ARG, "--only '%.60s' is not COLUMN=VALUE", only);
    struct strbuf name = {0};
    strbuf_add(&name, only, (size_t)(equals - only));
    size_t column_i;
    const sac_status status = name.failed
                                  ? error_set(err, SAC_ERR_MEMORY, "out of memory")
                                  : csv_column(t, name.data ? name.data : "", &column_i, err);
    strbuf_deinit(&name);
    TRY(status);
    csv_filter(t, column_i, equals + 1);
    if (!t->n_row) return error_set(err, SAC_ERR_NOT_FOUND, "no row has %s", only);
    return SAC_OK;
}

static sac_status draw(struct strbuf *out, const char *path, const struct plot_options *opt,
                       sac_error *err)
{
    struct strbuf text = {0};
    struct csv table = {0};
    sac_status status = input_read(&text, path, err);
    if (status == SAC_OK) status = csv_parse(&table, path, text.data, text.n, err);
    for (size_t i = 0; status == SAC_OK && i < opt->only.n; i++)
        status = keep_only(&table, opt->only.item[i], err);
    if (status == SAC_OK) status = chart_svg(out, &table, &opt->chart, err);
    csv_deinit(&table);
    strbuf_deinit(&text);
    return status;
}

int bench_plot(int argc, char **argv)
{
    struct plot_options opt = {0};
    const struct option_group group = {"Options", specs, &opt};
    const char *operand[1];
    struct options o = {
        .command = COMMAND,
        .usage = "FILE.csv -x COLUMN -y COLUMN --by COLUMN [options]",
        .summary = "Draws two columns of a table of measurements (CSV as from -o csv) and writes "
                   "the SVG to stdout.",
        .group = &group,
        .n_group = 1,
        .operand = operand,
        .operand_max = 1,
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (!o.n_operand) return options_usage_error(COMMAND, "a FILE is missing");
    if (!opt.chart.x || !opt.chart.y || !opt.chart.by)
        return options_usage_error(COMMAND, "-x, -y and --by name columns, all three");
    if (!opt.chart.x_label) opt.chart.x_label = opt.chart.x;
    if (!opt.chart.y_label) opt.chart.y_label = opt.chart.y;
    if (!opt.chart.title) opt.chart.title = opt.chart.y_label;
    struct strbuf out = {0};
    sac_error err = {0};
    const sac_status status = draw(&out, operand[0], &opt, &err);
    if (status == SAC_OK) output_write(out.data, out.n);
    strbuf_deinit(&out);
    return status == SAC_OK ? output_finish(EXIT_OK) : setup_failed(COMMAND, status, err.msg);
}
