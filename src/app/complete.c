/* complete.c: see the header. The scripts contain no commands and options but ask for them, so they
 * stay correct when those change. */
#include "app/complete.h"

#include "app/app.h"
#include "app/models.h"

#include "saccade.h"

#include <stdio.h>
#include <string.h>

#define COMMAND "completion"

void complete_print(const char *word, const char *help, const char *begun)
{
    if (strncmp(word, begun, strlen(begun)) == 0) printf("%s\t%s\n", word, help);
}

/* ---- Values ---- */

static void print_choices(const char *choices, const char *begun)
{
    while (*choices) {
        char one[64];
        const size_t n = strcspn(choices, "|");
        snprintf(one, sizeof one, "%.*s", (int)strcspn(choices, "|="), choices);
        complete_print(one, "", begun);
        choices += n + (choices[n] == '|');
    }
}

static void print_models(const char *begun)
{
    struct strlist names = {0};
    models_fetched(&names);
    for (size_t i = 0; i < names.n; i++) complete_print(names.item[i], "fetched", begun);
    strlist_deinit(&names);
}

static void print_fetchable(const char *begun)
{
    struct models_entry table[MODELS_MAX];
    const size_t n = models_table(table);
    for (size_t i = 0; i < n; i++) complete_print(table[i].name, table[i].licence, begun);
}

/* "NAME" or "NAME:key=value,key=". `kind` NULL: both kinds. */
static void print_methods(const char *kind, const char *begun)
{
    const char *colon = strchr(begun, ':'), *comma = strrchr(begun, ',');
    const char *key = comma ? comma + 1 : colon ? colon + 1 : begun;
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        if (kind && strcmp(m.kind, kind) != 0) continue;
        if (!colon) {
            complete_print(m.name, m.summary, begun);
            continue;
        }
        if (strlen(m.name) != (size_t)(colon - begun) || memcmp(m.name, begun, strlen(m.name)) != 0)
            continue;
        for (size_t k = 0; k < m.n_param; k++) {
            char word[512];
            snprintf(word, sizeof word, "%.*s%s=", (int)(key - begun), begun, m.param[k].key);
            complete_print(word, m.param[k].help, begun);
        }
    }
}

static bool has_name(const struct option_spec *s, const char *name, size_t n)
{
    for (const char *at = s->names; *at;) {
        const size_t len = strcspn(at, " ");
        if (len == n && memcmp(at, name, n) == 0) return true;
        at += len + strspn(at + len, " ");
    }
    return false;
}

static void print_value(const struct option_spec *s, const char *begun)
{
    if (s->type == OPTION_CHOICE) {
        print_choices(s->choices, begun);
    } else if (has_name(s, "--prefill", 9) || has_name(s, "--decode", 8) ||
               has_name(s, "--context", 9)) {
        print_methods(has_name(s, "--decode", 8)    ? "decode"
                      : has_name(s, "--prefill", 9) ? "prefill"
                                                    : "context",
                      begun);
    } else if (s->arg && (strstr(s->arg, "FILE") || strstr(s->arg, "DIR"))) {
        if (has_name(s, "--model", 7)) print_models(begun);
        printf(":files\n");
    }
}

static void print_operands(const char *what, const char *begun)
{
    if (what && strcmp(what, "@model") == 0) print_models(begun);
    if (what && strcmp(what, "@fetch") == 0) print_fetchable(begun);
    if (what && strcmp(what, "@method") == 0) print_methods(NULL, begun);
    if (what && what[0] != '@') print_choices(what, begun);
    if (!what || strcmp(what, "@model") == 0) printf(":files\n");
}

/* ---- Options ---- */

static const struct option_spec *find(const struct options *o, const char *name, size_t n)
{
    struct option_group group;
    for (size_t g = 0; options_group(o, g, &group); g++)
        for (const struct option_spec *s = group.spec; s->names; s++)
            if (has_name(s, name, n)) return s;
    return NULL;
}

static void print_names(const struct options *o, const char *begun)
{
    struct option_group group;
    complete_print("--help", "all options", begun);
    for (size_t g = 0; options_group(o, g, &group); g++)
        for (const struct option_spec *s = group.spec; s->names; s++)
            for (const char *at = s->names; *at;) {
                char one[64];
                const size_t len = strcspn(at, " ");
                snprintf(one, sizeof one, "%.*s", (int)len, at);
                complete_print(one, s->help, begun);
                at += len + strspn(at + len, " ");
            }
}

void complete_options(const struct options *o, int n, char **words)
{
    const char *begun = n > 0 ? words[n - 1] : "";
    const struct option_spec *before = n > 1 ? find(o, words[n - 2], strlen(words[n - 2])) : NULL;
    if (before && before->type != OPTION_FLAG)
        print_value(before, begun);
    else if (begun[0] == '-')
        print_names(o, begun);
    else if (o->operand_max > 0)
        print_operands(o->operands, begun);
    else
        print_names(o, begun);
}

/* ---- Scripts ---- */

static const char bash_script[] =
    "# bash completion of saccade: the program says what may stand next\n"
    "_saccade() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} line=${COMP_LINE:0:COMP_POINT} words word prefix\n"
    "    read -ra words <<<\"$line\"\n"
    "    [[ $line == *[[:space:]] ]] && words+=(\"\")\n"
    "    # bash parts words at ':' and '=': what stands before the last part stays on the line\n"
    "    [[ $cur == [:=] ]] && cur=\n"
    "    prefix=${words[-1]%\"$cur\"}\n"
    "    COMPREPLY=()\n"
    "    while IFS=$'\\t' read -r word _; do\n"
    "        if [[ $word == :files ]]; then\n"
    "            while IFS= read -r word; do COMPREPLY+=(\"$word\"); done < <(compgen -f -- "
    "\"$cur\")\n"
    "            compopt -o filenames 2>/dev/null\n"
    "        else\n"
    "            COMPREPLY+=(\"${word#\"$prefix\"}\")\n"
    "        fi\n"
    "    done < <(saccade complete \"${words[@]:1}\" 2>/dev/null)\n"
    "    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null\n"
    "    return 0\n"
    "}\n"
    "complete -F _saccade saccade\n";

static const char zsh_script[] =
    "#compdef saccade\n"
    "# zsh completion of saccade: the program says what may stand next\n"
    "_saccade() {\n"
    "    local line\n"
    "    local -a found\n"
    "    for line in ${(f)\"$(saccade complete \"${(@)words[2,CURRENT]}\" 2>/dev/null)\"}; do\n"
    "        if [[ $line == :files ]]; then _files; else found+=(\"${line%%$'\\t'*}\"); fi\n"
    "    done\n"
    "    (( $#found )) && compadd -- $found\n"
    "}\n"
    "_saccade \"$@\"\n";

static const char fish_script[] =
    "# fish completion of saccade: the program says what may stand next\n"
    "function __saccade_complete\n"
    "    set -l words (commandline -opc) (commandline -ct)\n"
    "    for line in (saccade complete $words[2..-1] 2>/dev/null)\n"
    "        if test \"$line\" = :files\n"
    "            __fish_complete_path (commandline -ct)\n"
    "        else\n"
    "            echo $line\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c saccade -f -a '(__saccade_complete)'\n";

int complete_script(int argc, char **argv)
{
    const char *shell = NULL;
    struct options o = {
        .command = COMMAND,
        .usage = "bash|zsh|fish",
        .summary = "Prints a shell script that completes commands, options, models and methods: "
                   "source <(saccade completion bash).",
        .operand = &shell,
        .operand_max = 1,
        .operands = "bash|zsh|fish",
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    const struct {
        const char *name, *script;
    } shells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
    for (size_t i = 0; shell && i < sizeof shells / sizeof shells[0]; i++)
        if (strcmp(shell, shells[i].name) == 0) {
            fputs(shells[i].script, stdout);
            return EXIT_OK;
        }
    return options_usage_error(COMMAND, "%s%s: there are bash, zsh and fish",
                               shell ? "no script for " : "a shell is missing", shell ? shell : "");
}
