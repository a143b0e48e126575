/* docstore.h: stored documents on disk: an index of names and sizes. The bytes of a document are
 * defined elsewhere (engine/docs.c); here they are a file that is complete or absent.
 *
 * A folder holds `index.mdb`, an LMDB with one record per name, and one file per document, named by
 * the document's id. A name belongs to a scope: a model, a KV type and a tenant, so that the same
 * name can stand for the same text computed by different models. Several names may refer to one
 * document.
 *
 * Any number of processes may use a folder, one store each. A reader that has a file open keeps it
 * when the document is removed. One thread of a store at a time changes it; others may look up
 * records and files meanwhile. */
#ifndef SAC_KV_DOCSTORE_H
#define SAC_KV_DOCSTORE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

#define DOCSTORE_ID_BYTES     32u /* SHA-256 */
#define DOCSTORE_TENANT_BYTES 8u
#define DOCSTORE_NAME_MAX     200u /* bytes of a name, without the NUL */
#define DOCSTORE_PATH_MAX     4096u

struct docstore_scope {
    uint64_t model; /* fingerprint */
    uint8_t type_k, type_v;
    uint8_t tenant[DOCSTORE_TENANT_BYTES]; /* zeros: no particular tenant */
};

/* The record of one name. Times are in seconds since 1970. */
struct docstore_record {
    struct docstore_scope scope;
    char name[DOCSTORE_NAME_MAX + 1];
    uint8_t id[DOCSTORE_ID_BYTES];
    uint32_t n_tok, n_head; /* tokens; n_head of them precede the text: the beginning of a chat */
    uint64_t bytes;         /* size of the file */
    int64_t created, used;
    int64_t expires; /* 0: never */
    bool is_pinned;  /* never removed to make room */
    char model[64], tags[128];
};

struct docstore;

/* Creates the folder if it is missing, unless the store is read-only. A folder that can be read and
 * not written gives a read-only store. */
sac_status docstore_open(struct docstore **out, const char *dir, bool only_reads, sac_error *err);
void docstore_close(struct docstore *s);

/* Valid names: 1 to DOCSTORE_NAME_MAX bytes of UTF-8 without control characters and commas, which
 * separate names on a command line, and without blanks at the ends. */
sac_status docstore_check_name(const char *name, sac_error *err);

bool docstore_writable(const struct docstore *s);

/* SAC_ERR_NOT_FOUND with the name if there is none. */
sac_status docstore_get(struct docstore *s, const struct docstore_scope *scope, const char *name,
                        struct docstore_record *out, sac_error *err);
/* As docstore_get, but expired records are not found either. */
sac_status docstore_find(struct docstore *s, const struct docstore_scope *scope, const char *name,
                         struct docstore_record *out, sac_error *err);
/* All records, in the order of scopes and names; the caller owns `*out` [*out_n] (mem_free). */
sac_status docstore_list(struct docstore *s, struct docstore_record **out, size_t *out_n,
                         sac_error *err);

/* Number of records and their bytes; a file with several names counts several times. */
sac_status docstore_count(struct docstore *s, uint64_t *out_n, uint64_t *out_bytes, sac_error *err);

/* The file of a document, and its size; 0: there is none. */
void docstore_path(const struct docstore *s, const uint8_t id[DOCSTORE_ID_BYTES],
                   char out[DOCSTORE_PATH_MAX]);
uint64_t docstore_file_bytes(const struct docstore *s, const uint8_t id[DOCSTORE_ID_BYTES]);
/* Starts read-ahead of the file and returns, so that a load soon afterwards finds it in memory. */
void docstore_read_ahead(const struct docstore *s, const uint8_t id[DOCSTORE_ID_BYTES]);

/* A file being written. It is invisible before docstore_commit. */
struct docstore_draft {
    FILE *file;
    char path[DOCSTORE_PATH_MAX];
};
sac_status docstore_begin(struct docstore *s, const uint8_t id[DOCSTORE_ID_BYTES],
                          struct docstore_draft *out, sac_error *err);
/* Makes the draft the document's file and stores the record, replacing one of the same scope and
 * name. The draft is consumed even on failure. */
sac_status docstore_commit(struct docstore *s, struct docstore_draft *draft,
                           struct docstore_record *record, sac_error *err);
void docstore_abort(struct docstore_draft *draft);
/* Stores a record of a document whose file exists; also used to change pin, tags and times. */
sac_status docstore_put(struct docstore *s, const struct docstore_record *record, sac_error *err);

/* Marks these names as used now; missing ones are skipped. */
sac_status docstore_touch(struct docstore *s, const struct docstore_scope *scope,
                          const char *const *name, size_t n, sac_error *err);

/* Removes the name, and the file if no other name refers to it. */
sac_status docstore_remove(struct docstore *s, const struct docstore_record *record,
                           sac_error *err);

struct docstore_freed {
    uint32_t n_expired, n_evicted, n_lost; /* names; n_lost: their files were missing */
    uint32_t n_stray;                      /* files without a name */
    uint64_t bytes;
};
/* Removes expired names and what killed processes left behind; then, if the files exceed
 * `bytes_max` (0: no limit), the least recently used names that are not pinned. */
sac_status docstore_collect(struct docstore *s, uint64_t bytes_max, struct docstore_freed *out,
                            sac_error *err);

#endif
