/* eval_tasks.c: the commands of `saccade eval` whose tasks are generated: their options in addition
 * to the common ones, and the cells that they plan. The tasks themselves are in src/eval. */
#include "app/eval.h"

#include "app/app.h"
#include "app/eval_run.h"

#include "eval/needle.h"
#include "eval/ruler.h"
#include "eval/strlist.h"
#include "eval/turns.h"

#include <stdio.h>
#include <string.h>

#define N(list) (sizeof(list) / sizeof(list)[0])

/* Parses argv with the command's group first, and refuses operands. */
static int parse(struct eval_run *r, const struct option_group *group, size_t n_group,
                 const char *summary, int argc, char **argv)
{
    struct options o = {
        .command = r->command,
        .usage = "-m MODEL [options]",
        .summary = summary,
        .group = group,
        .n_group = n_group,
        .need = eval_run_needs,
    };
    return options_parse(&o, argc, argv);
}

/* ---- Needle ---- */

struct needle_options {
    const char *depths, *needle, *question, *expect;
    uint32_t n_needle;
    int kind;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct needle_options, field), arg, help, __VA_ARGS__                \
    }

static const struct option_spec needle_specs[] = {
    OPT("--depths", OPTION_TEXT, depths, "LIST",
        "depths of the needle, in percent of the text, comma-separated", .env = NULL),
    OPT("--kind", OPTION_CHOICE, kind, NULL, "what is hidden: a number, or a sentence",
        .choices = "number|sentence", .without = "--needle"),
    OPT("--needles", OPTION_U32, n_needle, "N",
        "hide N needles, the first at the depth, the others evenly spaced after it, and ask for "
        "all",
        .min = 1, .max = 12),
    OPT("--needle", OPTION_TEXT, needle, "TEXT", "needle of your own; requires --question",
        .env = NULL),
    OPT("--question", OPTION_TEXT, question, "TEXT", "question to ask", .env = NULL),
    OPT("--expect", OPTION_TEXT, expect, "LIST",
        "words that a right answer contains, comma-separated", .env = NULL),
    {0},
};
#undef OPT

static const struct option_spec depth_specs[] = {
    {"--depths", OPTION_TEXT, offsetof(struct needle_options, depths), "LIST",
     "depths of the number, in percent of the text, comma-separated", .env = NULL},
    {0},
};

/* One cell per context and depth. */
static int plan_grid(struct eval_run *r, const char *task, const char *depths)
{
    struct task_cell cell = {0};
    uint32_t ctx[EVAL_CTX_MAX], n_ctx, n_depth;
    double depth[EVAL_CTX_MAX];
    int code = eval_run_contexts(r, "4k", ctx, &n_ctx);
    if (code == OPTIONS_GO_ON) code = eval_run_depths(r, depths, depth, &n_depth);
    snprintf(cell.task, sizeof cell.task, "%s", task);
    for (uint32_t c = 0; code == OPTIONS_GO_ON && c < n_ctx; c++)
        for (uint32_t d = 0; code == OPTIONS_GO_ON && d < n_depth; d++) {
            cell.ctx = ctx[c];
            cell.depth = depth[d];
            code = eval_run_plan(r, &cell);
        }
    return code;
}

/* The user's own needle: all three strings or none. */
static int given_needle(struct needle_args *a, struct strlist *expected, struct eval_run *r,
                        const struct needle_options *opt)
{
    char word[256];
    const char *at = opt->expect;
    if (!opt->needle && !opt->question && !opt->expect) return OPTIONS_GO_ON;
    if (!opt->needle || !opt->question || !opt->expect)
        return options_usage_error(r->command, "--needle, --question and --expect go together");
    if (opt->n_needle > 1)
        return options_usage_error(r->command,
                                   "--needles cannot be combined with a needle of your own");
    while (eval_run_word(&at, word, sizeof word)) {
        if (!*word) return options_usage_error(r->command, "option '--expect': an empty word");
        strlist_add(expected, word);
    }
    a->kind = NEEDLE_GIVEN;
    a->needle = opt->needle;
    a->question = opt->question;
    a->expected = expected;
    strbuf_addf(&r->identity, "needle %s\n%s\n%s\n", opt->needle, opt->question, opt->expect);
    return OPTIONS_GO_ON;
}

int eval_cmd_needle(int argc, char **argv)
{
    struct eval_run r = eval_run_default("eval needle");
    struct needle_options opt = {.depths = "10,30,50,70,90", .n_needle = 1};
    struct strlist expected = {0};
    const struct option_group groups[] = {
        {"Needle", needle_specs, &opt},
        {"Haystack", eval_run_haystack_specs, &r},
        {"Evaluation", eval_run_specs, &r},
        {"Model", setup_specs, &r.setup},
    };
    int code = parse(&r, groups, N(groups),
                     "Hides a fact in a text, at every depth of every context, and asks for it. "
                     "The score is the share of the expected words that the answer contains.",
                     argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    struct needle_args args = {
        .seed = (uint64_t)r.seed,
        .kind = opt.kind == 0 ? NEEDLE_NUMBER : NEEDLE_SENTENCE,
        .n_needle = opt.n_needle,
    };
    char task[TASK_NAME_MAX];
    code = given_needle(&args, &expected, &r, &opt);
    snprintf(task, sizeof task, opt.n_needle > 1 ? "needle_%s_%u" : "needle_%s",
             args.kind == NEEDLE_NUMBER     ? "number"
             : args.kind == NEEDLE_SENTENCE ? "sentence"
                                            : "given",
             opt.n_needle);
    if (code == OPTIONS_GO_ON) code = eval_run_haystack(&r);
    if (code == OPTIONS_GO_ON) code = plan_grid(&r, task, opt.depths);
    args.haystack = &r.haystack;
    const struct eval_maker maker = {needle_make, &args, .single_turn = true};
    if (code == OPTIONS_GO_ON) code = eval_run_all(&r, &maker);
    strlist_deinit(&expected);
    eval_run_deinit(&r);
    return code;
}

/* ---- Passkey ---- */

int eval_cmd_passkey(int argc, char **argv)
{
    struct eval_run r = eval_run_default("eval passkey");
    struct needle_options opt = {.depths = "10,30,50,70,90"};
    const struct option_group groups[] = {
        {"Passkey", depth_specs, &opt},
        {"Evaluation", eval_run_specs, &r},
        {"Model", setup_specs, &r.setup},
    };
    int code = parse(&r, groups, N(groups),
                     "Hides a five-digit number among lines of noise and asks for it.", argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    const uint64_t seed = (uint64_t)r.seed;
    const struct eval_maker maker = {needle_make_passkey, &seed, .single_turn = true};
    code = plan_grid(&r, "passkey", opt.depths);
    if (code == OPTIONS_GO_ON) code = eval_run_all(&r, &maker);
    eval_run_deinit(&r);
    return code;
}

/* ---- Tasks by name ---- */

struct task_options {
    const char *tasks;
};

/* How a command names its tasks and places the questions or answers. */
struct task_table {
    const char *(*name)(uint32_t i);
    const char *(*place)(uint32_t i);      /* or NULL */
    uint32_t (*own_ctx)(const char *name); /* or NULL; returns 0: none */
    uint32_t n_default;                    /* tasks run by default; 0: all */
    const char *ctx;                       /* default contexts */
};

static int plan_places(struct eval_run *r, struct task_cell *cell, const struct task_table *t)
{
    if (!t->place) return eval_run_plan(r, cell);
    int code = OPTIONS_GO_ON;
    for (uint32_t i = 0; code == OPTIONS_GO_ON && t->place(i); i++) {
        snprintf(cell->place, sizeof cell->place, "%s", t->place(i));
        code = eval_run_plan(r, cell);
    }
    return code;
}

/* A task at every context of --ctx, or at its own length by default. */
static int plan_task(struct eval_run *r, const char *name, const struct task_table *t)
{
    struct task_cell cell = {.depth = -1};
    uint32_t ctx[EVAL_CTX_MAX], n_ctx;
    int code = eval_run_contexts(r, t->ctx, ctx, &n_ctx);
    if (code == OPTIONS_GO_ON && !r->ctx && t->own_ctx && t->own_ctx(name)) {
        ctx[0] = t->own_ctx(name);
        n_ctx = 1;
    }
    snprintf(cell.task, sizeof cell.task, "%s", name);
    for (uint32_t c = 0; code == OPTIONS_GO_ON && c < n_ctx; c++) {
        cell.ctx = ctx[c];
        code = plan_places(r, &cell, t);
    }
    return code;
}

static int unknown_task(const struct eval_run *r, const char *name, const struct task_table *t)
{
    struct strbuf names = {0};
    for (uint32_t i = 0; t->name(i); i++) strbuf_addf(&names, "%s%s", i ? ", " : "", t->name(i));
    const int code = options_usage_error(r->command, "option '--tasks': no task '%s': there are %s",
                                         name, names.data ? names.data : "");
    strbuf_deinit(&names);
    return code;
}

static int plan_tasks(struct eval_run *r, const char *tasks, const struct task_table *t)
{
    char name[TASK_NAME_MAX];
    int code = OPTIONS_GO_ON;
    for (uint32_t i = 0; !tasks && code == OPTIONS_GO_ON && t->name(i); i++)
        if (!t->n_default || i < t->n_default) code = plan_task(r, t->name(i), t);
    while (code == OPTIONS_GO_ON && eval_run_word(&tasks, name, sizeof name)) {
        uint32_t i = 0;
        while (t->name(i) && strcmp(t->name(i), name) != 0) i++;
        code = t->name(i) ? plan_task(r, name, t) : unknown_task(r, name, t);
    }
    return code;
}

int eval_cmd_ruler(int argc, char **argv)
{
    struct eval_run r = eval_run_default("eval ruler");
    struct task_options opt = {0};
    static const struct option_spec specs[] = {
        {"--tasks", OPTION_TEXT, offsetof(struct task_options, tasks), "LIST",
         "niah_single_1 to _3, niah_multikey_1 to _3, niah_multivalue, niah_multiquery, vt, cwe, "
         "fwe, qa_1, qa_2, comma-separated; default: all",
         .env = NULL},
        {0},
    };
    const struct option_group groups[] = {
        {"Tasks", specs, &opt},
        {"Haystack", eval_run_haystack_specs, &r},
        {"Evaluation", eval_run_specs, &r},
        {"Model", setup_specs, &r.setup},
    };
    int code = parse(&r, groups, N(groups),
                     "The tasks of RULER (arXiv:2404.06654), generated to fit each context. The "
                     "score is the share of the expected strings that the answer contains; for "
                     "qa_1 and qa_2 whether it contains one.",
                     argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    code = eval_run_haystack(&r);
    const struct task_table table = {.name = ruler_name, .ctx = "4k"};
    if (code == OPTIONS_GO_ON) code = plan_tasks(&r, opt.tasks, &table);
    const struct ruler_args args = {.haystack = &r.haystack, .seed = (uint64_t)r.seed};
    const struct eval_maker maker = {ruler_make, &args, .single_turn = true};
    if (code == OPTIONS_GO_ON) code = eval_run_all(&r, &maker);
    eval_run_deinit(&r);
    return code;
}

/* ---- Turns ---- */

int eval_cmd_turns(int argc, char **argv)
{
    struct eval_run r = eval_run_default("eval turns");
    struct task_options opt = {0};
    static const struct option_spec specs[] = {
        {"--tasks", OPTION_TEXT, offsetof(struct task_options, tasks), "LIST",
         "facts, hop, collect, update, rule, summary, comma-separated; default: these six. "
         "like_NAME has the turns and length of a set of the benchmark: narrativeqa, qasper, "
         "multifieldqa_en, hotpotqa, 2wikimqa, musique, multinews, govreport, qmsum, trec, samsum",
         .env = NULL},
        {0},
    };
    const struct option_group groups[] = {
        {"Tasks", specs, &opt},
        {"Evaluation", eval_run_specs, &r},
        {"Model", setup_specs, &r.setup},
    };
    int code =
        parse(&r, groups, N(groups),
              "Conversations over long texts, after LoopServe's multi-turn benchmark "
              "(arXiv:2507.13681): each turn adds text and a question that this turn's or an "
              "earlier text answers. Every sample is asked with the question at the start, in the "
              "middle and at the end of its turn. Context lengths count all turns.",
              argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    const struct task_table table = {turns_name, turns_place, turns_ctx, 6, "4k"};
    const struct turns_args args = {.seed = (uint64_t)r.seed};
    const struct eval_maker maker = {turns_make, &args, .single_turn = false};
    code = plan_tasks(&r, opt.tasks, &table);
    if (code == OPTIONS_GO_ON) code = eval_run_all(&r, &maker);
    eval_run_deinit(&r);
    return code;
}
