/* main.c: the program `saccade`: finds the sub-command in one table and runs it.
 *
 * For all commands, SIGPIPE and SIGXFSZ are ignored, so that a closed pipe or a file size limit is
 * a write error and not a silent death, and stdout is checked at the end, so that a full disk is
 * reported. */
#include "app/app.h"
#include "app/complete.h"
#include "app/output.h"
#include "base/suggest.h"

#include "saccade_machine.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"chat", app_chat, "chat with a model in the terminal"},
    {"run", app_run, "answer one prompt, for pipes and scripts"},
    {"serve", app_serve, "serve OpenAI clients over HTTP, with a chat page"},
    {"docs", app_docs, "compute documents once, for use in any number of prompts"},
    {"text", app_text, "print the text of a document (PDF, HTML, DOCX, ...) as the model sees it"},
    {"tokenize", app_tokenize, "print the token ids of a text"},
    {"perplexity", app_perplexity, "compute perplexity, or compare two settings token by token"},
    {"eval", app_eval, "measure the accuracy of attention methods"},
    {"bench", app_bench, "measure speed as a share of the machine's limits"},
    {"gguf", app_gguf, "inspect a model file, or check it"},
    {"methods", app_methods, "list the built-in attention methods"},
    {"fetch", app_fetch, "download a model or a text by name, or list them"},
    {"completion", complete_script, "print a shell completion script"},
};

#define N_COMMAND (sizeof commands / sizeof commands[0])

static void print_help(void)
{
    printf("Usage: saccade COMMAND [options]\n\n"
           "Long-context inference of GGUF models.\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMAND; i++)
        printf("  %-12s%s\n", commands[i].name, commands[i].summary);
    printf("\n'saccade help COMMAND' shows a command's options; 'saccade version' the "
           "version.\nExit codes: %d success, %d a file, memory, the context or the output failed, "
           "%d wrong usage,\n%d interrupted.\n",
           EXIT_OK, EXIT_RUNTIME, EXIT_USAGE, EXIT_INTERRUPTED);
}

static bool is_one_of(const char *s, const char *a, const char *b)
{
    return strcmp(s, a) == 0 || strcmp(s, b) == 0;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMAND; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    struct suggest near = suggest_begin(name, strlen(name));
    char hint[SUGGEST_HINT_BYTES];
    for (size_t i = 0; i < N_COMMAND; i++)
        suggest_try(&near, commands[i].name, strlen(commands[i].name));
    fprintf(stderr, "saccade: unknown %s '%s'%s; see 'saccade --help'\n",
            name[0] == '-' ? "option" : "command", name, suggest_hint(&near, hint));
    return EXIT_USAGE;
}

/* "help run", "help eval needle": as "run --help". */
static int run_command_help(int argc, char **argv)
{
    char flag[] = "--help", *args[] = {argv[2], argc > 3 ? argv[3] : flag, flag, NULL};
    const struct command *c = find_command(argv[2]);
    return c ? c->run(argc > 3 ? 3 : 2, args) : unknown_command(argv[2]);
}

/* "complete WORD...": completions of the last word, called by the scripts of `completion`. */
static int complete_command(int argc, char **argv)
{
    char sentinel[] = COMPLETE_WORDS, *args[64];
    const char *name = argc > 2 ? argv[2] : "";
    const struct command *c = argc > 3 ? find_command(name) : NULL;
    int n = 0;
    if (argc <= 3 || strcmp(name, "help") == 0) {
        for (size_t i = 0; i < N_COMMAND; i++)
            complete_print(commands[i].name, commands[i].summary, argc > 2 ? argv[argc - 1] : "");
        return EXIT_OK;
    }
    if (!c || argc > 60) return EXIT_OK;
    args[n++] = argv[2];
    int i = 3;
    if (c->run == app_eval && argc > 4) args[n++] = argv[i++];
    args[n++] = sentinel;
    while (i < argc) args[n++] = argv[i++];
    args[n] = NULL;
    return c->run(n, args);
}

/* Includes the devices, or the reason why there is no GPU. */
static void print_version(void)
{
    char name[160];
    sac_error err;
    uint32_t n = 0;
    printf("saccade %s\n", sac_version());
    while (sac_device_name(name, n, &err) == SAC_OK) {
        printf("%s\n", name);
        n++;
    }
    if (n < 2) printf("no GPU: %s\n", err.msg);
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "saccade: a command is missing; see 'saccade --help'\n");
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    const bool is_help = is_one_of(name, "-h", "help") || strcmp(name, "--help") == 0;
    if (is_help && argc > 2) return run_command_help(argc, argv);
    if (is_help) {
        print_help();
        return EXIT_OK;
    }
    if (is_one_of(name, "--version", "version") || strcmp(name, "-V") == 0) {
        print_version();
        return EXIT_OK;
    }
    if (strcmp(name, "complete") == 0) return complete_command(argc, argv);
    const struct command *c = find_command(name);
    return c ? c->run(argc - 1, argv + 1) : unknown_command(name);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return output_finish(run_command(argc, argv));
}
