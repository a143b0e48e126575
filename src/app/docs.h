/* docs.h: stores of documents as commands see them: which folder, and the description of a
 * document. */
#ifndef SAC_APP_DOCS_H
#define SAC_APP_DOCS_H

#include "app/options.h"
#include "app/setup.h"
#include "base/status.h"

#define DOCS_STORE_HELP                                                                            \
    "folder of stored documents (default: $SACCADE_DOCS, or saccade/docs in the user's cache)"

struct docs_options {
    const char *store, *salt; /* NULL: the default folder, none */
    const char *name, *tags, *ttl, *max_bytes;
    const char *system, *template_name, *template_file;
    bool raw, pin, quiet;
    int format;         /* enum docs_format */
    int64_t seconds;    /* parsed `ttl`; 0: unlimited */
    uint64_t bytes_max; /* parsed `max_bytes`; 0: no limit */
};

enum docs_format { DOCS_TEXT, DOCS_JSON };

/* The folder: --store, SACCADE_DOCS, or the default in the user's cache. */
sac_status docs_folder(const char *store, char *buf, size_t bytes, sac_error *err);

/* How a command uses a store. Only DOCS_ADD creates a missing folder, so that others report a
 * misspelled one. */
enum docs_use { DOCS_READ, DOCS_CHANGE, DOCS_ADD };

sac_status docs_open(sac_docs **out, const char *store, const char *salt, enum docs_use use,
                     sac_error *err);

/* Drops a document's file from the page cache, so that the next load reads the disk. */
sac_status docs_cool(const char *store, const sac_doc *doc, sac_error *err);

struct cJSON *docs_json(const sac_doc *doc);

/* `docs add`: computes and stores the files. Returns the exit code. */
int docs_add(const struct docs_options *opt, struct setup *setup, const char *const *file,
             size_t n_file);

#endif
