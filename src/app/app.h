/* app.h: what the sub-commands of `saccade` share: exit codes and their entry functions.
 *
 * A command is `int app_NAME(int argc, char **argv)` in a file of its own; argv[0] is its name. It
 * returns the exit code. main.c holds the one table of commands. */
#ifndef SAC_APP_APP_H
#define SAC_APP_APP_H

enum app_exit {
    EXIT_OK = 0,
    EXIT_RUNTIME = 1,       /* I/O, memory, context length or output */
    EXIT_USAGE = 2,         /* invalid command line */
    EXIT_INTERRUPTED = 130, /* Ctrl-C, as in shells */
};

int app_chat(int argc, char **argv);
int app_run(int argc, char **argv);
int app_text(int argc, char **argv);
int app_serve(int argc, char **argv);
int app_tokenize(int argc, char **argv);
int app_gguf(int argc, char **argv);
int app_perplexity(int argc, char **argv);
int app_bench(int argc, char **argv);
int app_eval(int argc, char **argv);
int app_methods(int argc, char **argv);
int app_fetch(int argc, char **argv);
int app_docs(int argc, char **argv);

#endif
