/* eval.c: `saccade eval COMMAND`: finds the sub-command in one table and runs it.
 *
 * An evaluation answers two questions about a method: what was read, and whether the answer was
 * right. Each sub-command asks in a different way. Computations are in src/eval, options and output
 * in src/app/eval_*.c; this file has only the table. */
#include "app/eval.h"

#include "app/app.h"
#include "app/complete.h"
#include "base/suggest.h"

#include <stdio.h>
#include <string.h>

struct eval_command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct eval_command commands[] = {
    {"needle", eval_cmd_needle, "find a fact in a long text: a grid of contexts and depths"},
    {"ruler", eval_cmd_ruler, "the 13 tasks of RULER: retrieval, tracking, counting, questions"},
    {"passkey", eval_cmd_passkey, "find a number among lines of noise"},
    {"turns", eval_cmd_turns, "conversations over long texts, after LoopServe's benchmark"},
    {"docs", eval_cmd_docs, "questions over documents computed apart, by how they are joined"},
    {"jsonl", eval_cmd_jsonl, "the data files of LongBench, RULER, LoopServe, needle sets"},
    {"report", eval_cmd_report, "one page of plots from the results in a directory"},
    {"sweep", eval_cmd_sweep,
     "fidelity at several budgets and masses, with curves over bytes and time"},
    {"fidelity", eval_cmd_fidelity, "distance to dense f16 attention on a text, token by token"},
    {"read", eval_cmd_read, "convert a recording of attention to CSV"},
    {"patterns", eval_cmd_patterns, "find the pattern of each head, for a prefill method"},
    {0},
};

static void print_help(void)
{
    printf("Usage: saccade eval COMMAND [options]\n\nMeasures what attention methods read and "
           "whether their answers are right.\n\nCommands:\n");
    for (const struct eval_command *c = commands; c->name; c++)
        printf("  %-12s%s\n", c->name, c->summary);
    printf("\n'saccade eval COMMAND --help' shows a command's options.\n");
}

int app_eval(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "saccade eval: a command is missing; see 'saccade eval --help'\n");
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, COMPLETE_WORDS) == 0) {
        for (const struct eval_command *c = commands; c->name; c++)
            complete_print(c->name, c->summary, argc > 2 ? argv[2] : "");
        return EXIT_OK;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help();
        return EXIT_OK;
    }
    struct suggest near = suggest_begin(name, strlen(name));
    char hint[SUGGEST_HINT_BYTES];
    for (const struct eval_command *c = commands; c->name; c++) {
        if (strcmp(c->name, name) == 0) return c->run(argc - 1, argv + 1);
        suggest_try(&near, c->name, strlen(c->name));
    }
    fprintf(stderr, "saccade eval: unknown %s '%s'%s; see 'saccade eval --help'\n",
            name[0] == '-' ? "option" : "command", name, suggest_hint(&near, hint));
    return EXIT_USAGE;
}
