/* eval_jsonl.c: `saccade eval jsonl FILE`: the questions of a public suite's data file. */
#include "app/eval.h"

#include "app/app.h"
#include "app/eval_run.h"
#include "base/input.h"

#include "eval/jsonl.h"
#include "eval/rng.h"

#include <stdio.h>
#include <string.h>

struct jsonl_options {
    int format;
    const char *task, *templates;
    float depth;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct jsonl_options, field), arg, help, __VA_ARGS__                 \
    }

static const struct option_spec specs[] = {
    OPT("--format", OPTION_CHOICE, format, NULL, "format of the file", .env = NULL,
        .choices = "longbench|ruler|loopserve|needle"),
    OPT("--task", OPTION_TEXT, task, "NAME", "RULER: task; default: the name of the file's folder",
        .env = NULL),
    OPT("--templates", OPTION_TEXT, templates, "FILE",
        "LongBench: JSON object of prompt templates by data set, with {context} and {input}",
        .env = NULL),
    OPT("--depth", OPTION_F32, depth, "P", "needle: depths at which it is hidden, in percent",
        .max = 100),
    {0},
};

struct texts {
    struct strbuf file, templates;
};

static sac_status open_file(struct jsonl **out, struct texts *t, struct eval_run *r,
                            const struct jsonl_options *opt, const char *path, sac_error *err)
{
    struct jsonl_params params = {
        .format = (enum jsonl_format)opt->format, .path = path, .task = opt->task};
    TRY(input_read(&t->file, path, err));
    if (opt->templates) TRY(input_read(&t->templates, opt->templates, err));
    params.text = t->file.data;
    params.n_bytes = t->file.n;
    params.templates = t->templates.data;
    strbuf_addf(&r->identity, "file %llx %d %s %g ",
                (unsigned long long)rng_hash(t->file.data, t->file.n), opt->format,
                opt->task ? opt->task : "", (double)opt->depth);
    strbuf_add(&r->identity, t->templates.data ? t->templates.data : "", t->templates.n);
    return jsonl_open(out, &params, err);
}

static int plan(struct eval_run *r, const struct jsonl *j, const struct jsonl_options *opt)
{
    uint32_t ctx[EVAL_CTX_MAX], n_ctx;
    int code = eval_run_contexts(r, "8k", ctx, &n_ctx);
    for (uint32_t c = 0; code == OPTIONS_GO_ON && c < n_ctx; c++)
        for (size_t i = 0; code == OPTIONS_GO_ON && i < jsonl_count(j); i++) {
            struct task_cell cell;
            if (r->n_sample && i >= r->n_sample) break;
            jsonl_cell(j, i, &cell);
            cell.ctx = ctx[c];
            if (opt->format == JSONL_NEEDLE) cell.depth = (double)opt->depth;
            code = eval_run_plan_one(r, &cell);
        }
    return code;
}

static int run(struct eval_run *r, const struct jsonl_options *opt, const char *path)
{
    struct texts texts = {0};
    struct jsonl *j = NULL;
    sac_error err = {0};
    const sac_status status = open_file(&j, &texts, r, opt, path, &err);
    int code = status == SAC_OK ? OPTIONS_GO_ON : setup_failed(r->command, status, err.msg);
    if (code == OPTIONS_GO_ON && opt->format == JSONL_NEEDLE) code = eval_run_haystack(r);
    if (code == OPTIONS_GO_ON) code = plan(r, j, opt);
    const struct jsonl_args args = {
        .jsonl = j, .haystack = &r->haystack, .seed = (uint64_t)r->seed};
    const struct eval_maker maker = {jsonl_make, &args,
                                     .single_turn = opt->format != JSONL_LOOPSERVE};
    if (code == OPTIONS_GO_ON) code = eval_run_all(r, &maker);
    jsonl_close(j);
    strbuf_deinit(&texts.file);
    strbuf_deinit(&texts.templates);
    return code;
}

int eval_cmd_jsonl(int argc, char **argv)
{
    struct eval_run r = eval_run_default("eval jsonl");
    struct jsonl_options opt = {.depth = 50};
    const char *path = NULL;
    r.n_sample = 0; /* the whole file */
    const struct option_group groups[] = {
        {"File", specs, &opt},
        {"Haystack", eval_run_haystack_specs, &r},
        {"Evaluation", eval_run_specs, &r},
        {"Model", setup_specs, &r.setup},
    };
    struct options o = {
        .command = r.command,
        .usage = "FILE --format NAME -m MODEL [options]",
        .summary = "Asks the questions of a public suite's file, one JSON object per line, and "
                   "scores the answers as the suite does. The whole file is checked first.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
        .need = eval_run_needs,
        .operand = &path,
        .operand_max = 1,
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (!path) return options_usage_error(r.command, "a FILE is missing");
    code = run(&r, &opt, path);
    eval_run_deinit(&r);
    return code;
}
