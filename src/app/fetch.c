/* fetch.c: `saccade fetch`: downloads models and texts by name. The program itself opens no
 * connection: it runs the script that `make model` uses, which is installed with it, with
 * Python. */
#include "app/app.h"
#include "app/models.h"
#include "app/options.h"
#include "base/suggest.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COMMAND   "fetch"
#define NAMES_MAX 16u

static int list(const struct models_entry *table, size_t n)
{
    struct strlist fetched = {0};
    models_fetched(&fetched);
    for (size_t i = 0; i < n; i++) {
        const bool is_there = strcmp(table[i].kind, "model") == 0
                                  ? strlist_has(&fetched, table[i].name)
                                  : models_has_text(table[i].name);
        printf("%-5s  %-22s %6.0f MB  %-14s %s\n", table[i].kind, table[i].name,
               (double)table[i].bytes * 1e-6, table[i].licence, is_there ? "fetched" : "-");
    }
    strlist_deinit(&fetched);
    return EXIT_OK;
}

static const struct models_entry *find(const struct models_entry *table, size_t n, const char *name)
{
    struct suggest near = suggest_begin(name, strlen(name));
    char hint[SUGGEST_HINT_BYTES];
    for (size_t i = 0; i < n; i++) {
        if (strcmp(table[i].name, name) == 0) return &table[i];
        suggest_try(&near, table[i].name, strlen(table[i].name));
    }
    fprintf(stderr, "saccade " COMMAND ": nothing is called '%s'%s; 'saccade fetch' lists all\n",
            name, suggest_hint(&near, hint));
    return NULL;
}

static int run_script(const char *script, const struct models_entry *e)
{
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_DFL);
        execlp("python3", "python3", script, e->kind, e->name, (char *)NULL);
        fprintf(stderr, "saccade " COMMAND ": python3 cannot be started: %s\n", strerror(errno));
        _exit(EXIT_RUNTIME);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (child < 0) fprintf(stderr, "saccade " COMMAND ": no process: %s\n", strerror(errno));
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? EXIT_OK : EXIT_RUNTIME;
}

int app_fetch(int argc, char **argv)
{
    const char *names[NAMES_MAX];
    struct models_entry table[MODELS_MAX];
    char script[4096];
    struct options o = {
        .command = COMMAND,
        .usage = "[NAME]...",
        .summary = "Downloads models and texts by name, checked by SHA-256, into the folder where "
                   "-m looks; without a NAME lists them. Uses a Python script, with pip.",
        .operand = names,
        .operand_max = NAMES_MAX,
        .operands = "@fetch",
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    const size_t n = models_table(table);
    if (n == 0 || !models_tool("fetch.py", script, sizeof script)) {
        fprintf(stderr, "saccade " COMMAND ": share/saccade/fetch.py and models.tsv are not "
                        "installed beside this program\n");
        return EXIT_RUNTIME;
    }
    if (o.n_operand == 0) return list(table, n);
    for (size_t i = 0; i < o.n_operand; i++)
        if (!find(table, n, names[i])) return EXIT_USAGE;
    code = EXIT_OK;
    for (size_t i = 0; code == EXIT_OK && i < o.n_operand; i++)
        code = run_script(script, find(table, n, names[i]));
    return code;
}
