/* docs.h: stores of documents as commands see them: which folder, and what a document says of
 * itself. */
#ifndef SAC_APP_DOCS_H
#define SAC_APP_DOCS_H

#include "app/options.h"
#include "app/setup.h"
#include "base/status.h"

#define DOCS_STORE_HELP                                                                            \
    "folder of stored documents (default: $SACCADE_DOCS, or saccade/docs in the user's cache)"

struct docs_options {
    const char *store, *salt; /* NULL: docs_folder, none */
    const char *name, *tags, *ttl, *max_bytes;
    const char *system, *template_name, *template_file;
    bool raw, pin;
    int format; /* enum docs_format */
};

enum docs_format { DOCS_TEXT, DOCS_JSON };

/* The folder that --store, SACCADE_DOCS or the user's cache names. */
sac_status docs_folder(const char *store, char *buf, size_t bytes, sac_error *err);

/* Opens the store for a command that changes it, or reads it only. */
sac_status docs_open(sac_docs **out, const char *store, const char *salt, bool only_read,
                     sac_error *err);

/* Drops what the system keeps in memory of a document's file, so that the next one to load it reads
 * the disk. */
sac_status docs_cool(const char *store, const sac_doc *doc, sac_error *err);

/* "90", "90s", "15m", "12h", "30d": seconds. "10G", "512M", "4096": bytes. 0 for NULL. */
sac_status docs_parse_time(int64_t *out, const char *text, sac_error *err);
sac_status docs_parse_bytes(uint64_t *out, const char *text, sac_error *err);

struct cJSON *docs_json(const sac_doc *doc);

/* `docs add`: computes and stores the files. Returns the exit code. */
int docs_add(const struct docs_options *opt, struct setup *setup, const char *const *file,
             size_t n_file);

#endif
