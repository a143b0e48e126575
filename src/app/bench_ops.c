/* bench_ops.c: `saccade bench ops`: a roofline of every operation in the shapes of a few models.
 * The library has the list and measures; this file has the filters, the machine's limits and the
 * table. */
#include "app/bench.h"

#include "app/app.h"
#include "app/interrupt.h"
#include "app/options.h"
#include "app/progress.h"
#include "app/setup.h"
#include "app/table_printer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COMMAND "bench ops"

struct ops_options {
    const char *ops, *shape;
    uint32_t n_threads, ms;
    int format;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct ops_options, field), arg, help, __VA_ARGS__                   \
    }

static const struct option_spec specs[] = {
    OPT("--ops", OPTION_TEXT, ops, "OP[,OP]",
        "only these operations: linear, attn, rmsnorm, rope, kv_write, seal; linear-wide or "
        "attn-narrow for one kernel",
        .env = NULL),
    OPT("--shape", OPTION_TEXT, shape, "TEXT", "only models whose name contains TEXT", .env = NULL),
    OPT("-t --threads", OPTION_U32, n_threads, "N", "threads; 0: one per available CPU",
        .env = "THREADS", .max = 4096),
    OPT("--ms", OPTION_U32, ms, "N", "milliseconds of measurement per row", .env = NULL, .min = 1,
        .max = 60000),
    OPT("-o --output", OPTION_CHOICE, format, NULL, "format of the table", .env = NULL,
        .choices = TABLE_PRINTER_FORMATS),
    {0},
};

/* Whether the list names the operation, "linear" or "linear-wide". */
static bool list_names(const char *list, const sac_op *op)
{
    char full[32];
    snprintf(full, sizeof full, "%s-%s", op->op, op->mode);
    for (const char *word = list; *word; word += strcspn(word, ","), word += *word == ',') {
        const size_t n = strcspn(word, ",");
        if ((n == strlen(op->op) && memcmp(word, op->op, n) == 0) ||
            (n == strlen(full) && memcmp(word, full, n) == 0))
            return true;
    }
    return false;
}

static bool is_wanted(const struct ops_options *opt, const sac_op *op)
{
    return (!opt->ops || list_names(opt->ops, op)) &&
           (!opt->shape || strstr(op->shape, opt->shape));
}

/* "linear, attn, ...": each name once, of which no other is a part. */
static void name_ops(char *buf, size_t bytes)
{
    sac_op op;
    size_t at = 0;
    *buf = 0;
    for (size_t i = 0; at < bytes && sac_op_at(i, &op); i++)
        if (!strstr(buf, op.op))
            at += (size_t)snprintf(buf + at, bytes - at, "%s%s", at ? ", " : "", op.op);
}

/* Refuses words that name no operation, and filters that select nothing. */
static int check_filters(const struct ops_options *opt, size_t *out_n)
{
    sac_op op;
    *out_n = 0;
    for (const char *word = opt->ops; word && *word;
         word += strcspn(word, ","), word += *word == ',') {
        char one[32];
        bool known = false;
        snprintf(one, sizeof one, "%.*s", (int)strcspn(word, ","), word);
        for (size_t i = 0; !known && sac_op_at(i, &op); i++) known = list_names(one, &op);
        if (known) continue;
        char all[256];
        name_ops(all, sizeof all);
        return options_usage_error(COMMAND, "option '--ops': '%s' is no operation: there are %s",
                                   one, all);
    }
    for (size_t i = 0; sac_op_at(i, &op); i++) *out_n += is_wanted(opt, &op);
    if (*out_n == 0 && opt->shape)
        return options_usage_error(COMMAND, "option '--shape': no row of '%.60s'", opt->shape);
    if (*out_n == 0) return options_usage_error(COMMAND, "option '--ops': the list is empty");
    return OPTIONS_GO_ON;
}

static void print_op(struct table_printer *printer, const sac_op *op, const char *isa,
                     const sac_machine *m)
{
    char name[32];
    snprintf(name, sizeof name, "%s%s%s", op->op, *op->mode ? " " : "", op->mode);
    const double share = op->seconds_limit / op->seconds;
    const double share_best = op->seconds_limit / op->seconds_best;
    const struct table_printer_cell cells[] = {
        {NULL, "op", .text = name},
        {"op", NULL, .text = op->op},
        {"mode", NULL, .text = op->mode},
        {"shape", "shape", .text = op->shape},
        {"what", "what", .text = op->what},
        {NULL, "us", 1, .number = op->seconds * 1e6},
        {"gb_s", "GB/s", 1, .number = op->bytes / op->seconds * 1e-9},
        {"gflop_s", "GFLOP/s", 1, .number = op->flop / op->seconds * 1e-9},
        {"limit", "limit", .text = op->limit},
        {NULL, "% of it", 1, .number = share * 100},
        {NULL, "best %", 1, .number = share_best * 100},
        {"share", .number = share},
        {"share_best", .number = share_best},
        {"seconds", .number = op->seconds},
        {"seconds_best", .number = op->seconds_best},
        {"seconds_limit", .number = op->seconds_limit},
        {"flop", .number = op->flop},
        {"bytes", .number = op->bytes},
        {"isa", .text = isa},
        {"n_threads", .number = m->n_threads},
        {"read_gb_s", .number = m->read_gb_s},
    };
    table_printer_row(printer, cells, sizeof cells / sizeof cells[0]);
}

static sac_status measure_all(const struct ops_options *opt, size_t n_wanted, sac_op_bench *bench,
                              const sac_machine *machine, sac_error *err)
{
    sac_status status = SAC_OK;
    struct progress bar;
    struct table_printer printer =
        table_printer_begin((enum table_printer_format)opt->format, "bench_ops");
    sac_op op;
    size_t n_done = 0;
    if (opt->format == TABLE_PRINTER_MD) {
        char limits[256];
        bench_describe_machine(limits, sizeof limits, machine);
        printf("%s, %u thread%s; limits: %s\n\n", sac_op_bench_isa(bench), machine->n_threads,
               machine->n_threads == 1 ? "" : "s", limits);
    }
    progress_begin(&bar, "ops");
    bar.on = bar.on && !isatty(STDOUT_FILENO); /* the growing table shows it */
    for (size_t i = 0; status == SAC_OK && sac_op_at(i, &op); i++) {
        if (!is_wanted(opt, &op)) continue;
        if (interrupt_pending()) status = SAC_ERR_CANCELLED;
        if (status == SAC_OK) status = sac_op_measure(bench, i, opt->ms * 1e-3, &op, err);
        if (status == SAC_OK) print_op(&printer, &op, sac_op_bench_isa(bench), machine);
        progress_update(&bar, (double)++n_done / (double)n_wanted);
    }
    progress_end(&bar);
    table_printer_end(&printer);
    return status;
}

int bench_ops(int argc, char **argv)
{
    struct ops_options opt = {.ms = 80};
    const struct option_group group = {"Options", specs, &opt};
    struct options o = {
        .command = COMMAND,
        .usage = "[options]",
        .summary = "Measures each operation alone, on random data in the shapes of a few models, "
                   "against this machine's limits measured in the same run.",
        .group = &group,
        .n_group = 1,
    };
    size_t n_wanted;
    int code = options_parse(&o, argc, argv);
    if (code == OPTIONS_GO_ON) code = check_filters(&opt, &n_wanted);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    sac_error err = {0};
    sac_machine machine;
    sac_op_bench *bench = NULL;
    sac_status status = sac_measure_machine(&machine, opt.n_threads, &err);
    if (status == SAC_OK) status = sac_op_bench_create(&bench, &machine, &err);
    if (status == SAC_OK) status = measure_all(&opt, n_wanted, bench, &machine, &err);
    sac_op_bench_free(bench);
    if (status == SAC_OK) bench_check_idle(COMMAND, &machine);
    return status == SAC_OK ? EXIT_OK : setup_failed(COMMAND, status, err.msg);
}
