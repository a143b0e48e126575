/* main.c: the program `saccade`: finds the sub-command in one table and runs it.
 *
 * What happens here for all commands: SIGPIPE is ignored, so that a closed pipe is an error of a
 * write and not a silent death, and stdout is checked at the end, so that a full disk is told. */
#include "app/app.h"
#include "app/output.h"

#include "saccade.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"chat", app_chat, "talk with a model in the terminal"},
    {"run", app_run, "answer one prompt, for pipes and scripts"},
    {"tokenize", app_tokenize, "print the token ids of a text"},
    {"perplexity", app_perplexity, "score a text, or compare two settings token by token"},
    {"eval", app_eval, "measure what methods read and whether their answers are right"},
    {"bench", app_bench, "measure speed, and its share of what the machine can do"},
    {"gguf", app_gguf, "show what a model file holds, or check it"},
    {"methods", app_methods, "list the attention methods that are built in"},
};

#define N_COMMAND (sizeof commands / sizeof commands[0])

static void print_help(void)
{
    printf("Usage: saccade COMMAND [options]\n\n"
           "Long-context inference of GGUF models.\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMAND; i++)
        printf("  %-12s%s\n", commands[i].name, commands[i].summary);
    printf(
        "\n'saccade COMMAND --help' shows a command's options; 'saccade --version' the version.\n"
        "Exit codes: %d done, %d a file, memory, the context or the output failed, "
        "%d wrong usage,\n%d interrupted.\n",
        EXIT_OK, EXIT_RUNTIME, EXIT_USAGE, EXIT_INTERRUPTED);
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "saccade: a command is missing; see 'saccade --help'\n");
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        return EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("saccade %s\n", sac_version());
        return EXIT_OK;
    }
    for (size_t i = 0; i < N_COMMAND; i++)
        if (strcmp(commands[i].name, name) == 0) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "saccade: unknown %s '%s'; see 'saccade --help'\n",
            name[0] == '-' ? "option" : "command", name);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    return output_finish(run_command(argc, argv));
}
