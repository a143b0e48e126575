/* chat_complete.c: the completions of Tab in a chat: commands, and after them file names, methods,
 * names of settings, documents. */
#include "app/chat.h"

#include "app/setup_sampling.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void offer(struct strlist *out, const char *word, const char *begun)
{
    if (strncasecmp(word, begun, strlen(begun)) == 0 && !strlist_has(out, word))
        strlist_add(out, word);
}

/* Files and folders that begin with `begun`. */
static void offer_files(struct strlist *out, const char *begun)
{
    const char *slash = strrchr(begun, '/');
    const size_t n_folder = slash ? (size_t)(slash - begun) + 1 : 0;
    const char *rest = begun + n_folder;
    struct strbuf typed = {0}, folder = {0};
    strbuf_add(&typed, begun, n_folder);
    chat_files_expand(&folder, n_folder ? typed.data : "./");
    DIR *dir = folder.failed ? NULL : opendir(folder.data);
    for (const struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        struct strbuf path = {0};
        struct stat is;
        if (strncmp(e->d_name, rest, strlen(rest)) != 0) continue;
        if (e->d_name[0] == '.' && rest[0] != '.') continue;
        strbuf_addf(&path, "%s%s", folder.data, e->d_name);
        const bool is_folder = !path.failed && stat(path.data, &is) == 0 && S_ISDIR(is.st_mode);
        strlist_addf(out, "%s%s%s", n_folder ? typed.data : "", e->d_name, is_folder ? "/" : "");
        strbuf_deinit(&path);
    }
    if (dir) closedir(dir);
    strbuf_deinit(&typed);
    strbuf_deinit(&folder);
}

/* "[prefill|decode] NAME:key=...". */
static void offer_methods(struct strlist *out, const char *kind, const char *begun)
{
    const char *colon = strchr(begun, ':'), *comma = strrchr(begun, ',');
    const char *key = comma ? comma + 1 : colon ? colon + 1 : NULL;
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        if (kind && strcmp(m.kind, kind) != 0) continue;
        if (!colon) {
            offer(out, m.name, begun);
            struct strbuf word = {0};
            strbuf_addf(&word, "%s:", m.name);
            if (m.n_param && !word.failed) offer(out, word.data, begun);
            strbuf_deinit(&word);
        } else if (strlen(m.name) == (size_t)(colon - begun) &&
                   memcmp(m.name, begun, strlen(m.name)) == 0) {
            for (size_t k = 0; k < m.n_param; k++) {
                struct strbuf word = {0};
                strbuf_addf(&word, "%.*s%s=", (int)(key - begun), begun, m.param[k].key);
                if (!word.failed) offer(out, word.data, begun);
                strbuf_deinit(&word);
            }
        }
    }
}

static void offer_documents(struct strlist *out, const struct conversation *said, const char *begun)
{
    for (size_t i = 0; i < said->n_turn; i++)
        for (size_t k = 0; k < said->turns[i].n_document; k++)
            offer(out, said->turns[i].document[k].name, begun);
    for (size_t k = 0; k < said->next.n_document; k++)
        offer(out, said->next.document[k].name, begun);
}

static void offer_settings(struct strlist *out, const char *begun)
{
    offer(out, "predict", begun);
    offer(out, "ignore-eos", begun);
    for (const struct option_spec *s = setup_sampling_specs; s->names; s++) {
        char name[64];
        const char *first = strstr(s->names, "--");
        if (!first || s->type == OPTION_LIST) continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(first + 2, " "), first + 2);
        offer(out, name, begun);
    }
}

/* Completes the arguments of a command; `n_command` bytes precede them. */
static void offer_arguments(const struct chat *c, const char *before, size_t n_command,
                            struct strlist *out, size_t *out_n_word)
{
    const char *arg = before + n_command + strspn(before + n_command, " ");
    const char *word = strrchr(arg, ' ') ? strrchr(arg, ' ') + 1 : arg; /* the last word */
#define IS(name) (strncasecmp(before, name " ", n_command + 1) == 0)
    if (IS("/file") || IS("/save") || IS("/load")) {
        offer_files(out, word = arg); /* names may contain blanks */
    } else if (IS("/unfile")) {
        offer_documents(out, &c->s.said, word = arg);
    } else if (IS("/set") && word == arg) {
        offer_settings(out, word);
    } else if (IS("/method")) {
        const char *kind = strncmp(arg, "prefill ", 8) == 0  ? "prefill"
                           : strncmp(arg, "decode ", 7) == 0 ? "decode"
                                                             : NULL;
        if (!kind) offer(out, "prefill", word);
        if (!kind) offer(out, "decode", word);
        offer_methods(out, kind, word);
    }
#undef IS
    *out_n_word = strlen(word);
}

void chat_complete(void *chat, const char *before, struct strlist *out, size_t *out_n_word)
{
    const size_t n_command = strcspn(before, " ");
    if (before[0] != '/') return;
    if (!before[n_command]) {
        for (size_t i = 0; chat_commands_at(i); i++) offer(out, chat_commands_at(i)->name, before);
        *out_n_word = n_command;
    } else {
        offer_arguments(chat, before, n_command, out, out_n_word);
    }
    if (out->n > 1 && !out->failed) qsort(out->item, out->n, sizeof *out->item, by_name);
}
