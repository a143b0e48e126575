/* models.h: models by name: the folder of downloaded models, and the table of those that the fetch
 * script can download (tools/models.tsv, installed beside it). */
#ifndef SAC_APP_MODELS_H
#define SAC_APP_MODELS_H

#include "eval/strlist.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether it is the name of a fetched model: without '/' and ".gguf", and not a file. */
bool models_is_name(const char *model);

/* The path of a model: `model` itself if it is a file, else the fetched one of that name, written
 * to `buf`. */
const char *models_find(const char *model, char *buf, size_t bytes);

/* Explains why `path` (from models_find for `model`) is missing, and what to do. */
void models_explain(const char *model, const char *path, char *out, size_t bytes);

/* Appends the names of fetched models. */
void models_fetched(struct strlist *out);
/* Whether the text was fetched, which is in the same folder. */
bool models_has_text(const char *name);

#define MODELS_MAX 64u
struct models_entry {
    char kind[8]; /* "model" or "text" */
    char name[64], licence[32];
    uint64_t bytes;
};
/* Entries that can be fetched, at most MODELS_MAX; 0: there is no table. */
size_t models_table(struct models_entry out[MODELS_MAX]);

/* The path of a file next to the fetch script, installed or in the source tree of this build.
 * False: not found. */
bool models_tool(const char *name, char *buf, size_t bytes);

#endif
