/* models.c: see the header. Everything is found from the environment and from the program's
 * location, so an installed tree may be moved. */
#include "app/models.h"

#include "base/suggest.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".gguf"

/* The folder of fetched models; false: not determined by the environment. */
static bool models_folder(char *buf, size_t bytes)
{
    const char *own = getenv("SACCADE_MODELS"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n = -1;
    if (own && *own)
        n = snprintf(buf, bytes, "%s", own);
    else if (cache && *cache)
        n = snprintf(buf, bytes, "%s/saccade/models", cache);
    else if (home && *home)
        n = snprintf(buf, bytes, "%s/.cache/saccade/models", home);
    return n >= 0 && (size_t)n < bytes;
}

static bool ends_in_suffix(const char *name)
{
    const size_t len = strlen(name), n = strlen(SUFFIX);
    return len > n && strcmp(name + len - n, SUFFIX) == 0;
}

bool models_is_name(const char *model)
{
    return *model && !ends_in_suffix(model) && !strchr(model, '/') && access(model, F_OK) != 0;
}

const char *models_find(const char *model, char *buf, size_t bytes)
{
    char folder[3072];
    if (!models_is_name(model) || !models_folder(folder, sizeof folder)) return model;
    const int n = snprintf(buf, bytes, "%s/%s" SUFFIX, folder, model);
    return n > 0 && (size_t)n < bytes ? buf : model;
}

void models_fetched(struct strlist *out)
{
    char folder[3072];
    DIR *dir = models_folder(folder, sizeof folder) ? opendir(folder) : NULL;
    if (!dir) return;
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (e->d_name[0] != '.' && ends_in_suffix(e->d_name))
            strlist_addn(out, e->d_name, strlen(e->d_name) - strlen(SUFFIX));
    closedir(dir);
}

bool models_has_text(const char *name)
{
    char folder[3072], path[4096];
    if (!models_folder(folder, sizeof folder)) return false;
    const int n = snprintf(path, sizeof path, "%s/texts/%s.txt", folder, name);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

bool models_tool(const char *name, char *buf, size_t bytes)
{
    static const char *const places[] = {"../share/saccade", "../tools"};
    char self[3072];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return false;
    self[n] = 0;
    *strrchr(self, '/') = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int len = snprintf(buf, bytes, "%s/%s/%s", self, places[i], name);
        if (len > 0 && (size_t)len < bytes && access(buf, R_OK) == 0) return true;
    }
    return false;
}

/* Field i of a tab-separated line; "" if it has fewer. */
static void copy_field(char *to, size_t bytes, const char *line, unsigned i)
{
    for (; i > 0; i--) {
        line = strchr(line, '\t');
        if (!line) break;
        line++;
    }
    snprintf(to, bytes, "%.*s", line ? (int)strcspn(line, "\t\n") : 0, line ? line : "");
}

size_t models_table(struct models_entry out[MODELS_MAX])
{
    enum { KIND, NAME, BYTES = 6, LICENCE = 8 }; /* columns of tools/models.tsv */
    char path[4096], line[1024], bytes[32];
    size_t n = 0;
    FILE *f = models_tool("models.tsv", path, sizeof path) ? fopen(path, "r") : NULL;
    if (!f) return 0;
    while (n < MODELS_MAX && fgets(line, sizeof line, f)) {
        struct models_entry *e = &out[n];
        *e = (struct models_entry){0};
        copy_field(e->kind, sizeof e->kind, line, KIND);
        copy_field(e->name, sizeof e->name, line, NAME);
        copy_field(bytes, sizeof bytes, line, BYTES);
        copy_field(e->licence, sizeof e->licence, line, LICENCE);
        e->bytes = strtoull(bytes, NULL, 10);
        n += line[0] != '#' && e->bytes > 0;
    }
    fclose(f);
    return n;
}

void models_explain(const char *model, const char *path, char *out, size_t bytes)
{
    struct models_entry table[MODELS_MAX];
    struct strlist fetched = {0};
    struct suggest near = suggest_begin(model, strlen(model));
    char hint[SUGGEST_HINT_BYTES];
    if (errno != ENOENT || path == model) {
        snprintf(out, bytes, "%s: %s", path, strerror(errno));
        return;
    }
    const size_t n = models_table(table);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(table[i].kind, "model") != 0) continue;
        suggest_try(&near, table[i].name, strlen(table[i].name));
        if (strcmp(table[i].name, model) != 0) continue;
        snprintf(out, bytes,
                 "model '%s' is not fetched (%s is missing): 'saccade fetch %s' gets it, "
                 "%.0f MB",
                 model, path, model, (double)table[i].bytes * 1e-6);
        return;
    }
    models_fetched(&fetched);
    for (size_t i = 0; i < fetched.n; i++)
        suggest_try(&near, fetched.item[i], strlen(fetched.item[i]));
    snprintf(out, bytes, "there is no file '%s' and no fetched model %s%s%s", model, path,
             suggest_hint(&near, hint), n ? " ('saccade fetch' lists what can be fetched)" : "");
    strlist_deinit(&fetched);
}
