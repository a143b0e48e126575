/* models.h: models by name: the folder of downloaded models, and the table of those that the fetch
 * script can download (tools/models.tsv, installed beside it). */
#ifndef SAC_APP_MODELS_H
#define SAC_APP_MODELS_H

#include "eval/strlist.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A name without '/' and ".gguf": a fetched model's, unless a file is called so. */
bool models_is_name(const char *model);

/* The path of a model: `model` itself if it is a file's, else that of the fetched one of that name,
 * in `buf` of the caller. */
const char *models_find(const char *model, char *buf, size_t bytes);

/* Why `path`, which models_find gave for `model`, is not there, and what to do. */
void models_explain(const char *model, const char *path, char *out, size_t bytes);

/* Appends the names of models that are fetched. */
void models_fetched(struct strlist *out);
/* The same folder has the texts that are. */
bool models_has_text(const char *name);

#define MODELS_MAX 64u
struct models_entry {
    char kind[8]; /* "model" or "text" */
    char name[64], licence[32];
    uint64_t bytes;
};
/* What can be fetched, at most MODELS_MAX; 0 where there is no table. */
size_t models_table(struct models_entry out[MODELS_MAX]);

/* The path of a file that stands beside the fetch script: installed, or in the source tree that the
 * program was built in. False: there is none. */
bool models_tool(const char *name, char *buf, size_t bytes);

#endif
