/* reading.h: storage for what attention read: a bounded ring of records, and the file
 * `reading.sacr` (docs/reading_format.md) to which it is written and from which it is read.
 *
 * Writing: open, pass reading_put to sac_engine_set_recorder, flush between steps, close. Records
 * wait in the ring; in a full ring a new record replaces the oldest, so to keep only the last
 * records of a long run, do not flush. Reading: load or parse, then call reading_next until it
 * reports the end. Files are untrusted: every field is checked before it is used, and
 * SAC_ERR_FORMAT names the file, the byte and the field. */
#ifndef SAC_EVAL_READING_H
#define SAC_EVAL_READING_H

#include "base/status.h"

#include <stdio.h>

#define READING_METHODS_MAX 64u
#define READING_NAME_MAX    4096u /* bytes of one name */

/* What all records of a file have in common. */
struct reading_shape {
    uint32_t n_layer, n_head, n_kv_head, head_dim, page_tok;
};

/* ---- Writing ---- */

struct reading_names {
    const char *model;
    const char *const *method; /* [n_method] as the command line names them */
    uint32_t n_method;
};

struct reading_ring {
    uint8_t *data; /* owned */
    size_t capacity, first, used;
    uint64_t n_dropped; /* records lost because the ring was full */
};

struct reading_writer {
    uint32_t method_i, sample_i; /* of the records that follow; set by the user */
    FILE *file;                  /* owned */
    char *path;                  /* owned */
    struct reading_ring ring;
};

/* Creates or truncates the file. `ring_bytes` bounds the memory: a record takes 80 bytes and 2.125
 * for each page. */
sac_status reading_open(struct reading_writer *w, const char *path,
                        const struct reading_shape *shape, const struct reading_names *names,
                        size_t ring_bytes, sac_error *err);
/* A sac_read_fn; `writer` is a struct reading_writer. */
void reading_put(void *writer, const sac_read_record *record);
/* Moves the content of the ring to the file. */
sac_status reading_flush(struct reading_writer *w, sac_error *err);
/* Flushes and frees everything. Does nothing to a zeroed or closed writer. */
sac_status reading_close(struct reading_writer *w, sac_error *err);

/* ---- Reading ---- */

struct reading {
    struct reading_shape shape;
    char *model;                       /* owned */
    char *method[READING_METHODS_MAX]; /* [n_method] owned */
    uint32_t n_method;
    const char *path; /* borrowed */
    char *owned;      /* the file's bytes when they were loaded */
    const uint8_t *data;
    size_t n, at, start; /* bytes; the next record; the first */
};

struct reading_record {
    uint32_t method_i, sample_i, seq;
    sac_row_kind kind;
    uint32_t pos, n_row, layer, kv_head, n_page, n_page_read, n_tok_seen, n_tok_read;
    float mass, out_err;
    uint64_t k_bytes, v_bytes, side_bytes;
    float select_us, attend_us;
    const uint8_t *read, *page_mass; /* for the two functions below */
};

sac_status reading_load(struct reading *r, const char *path, sac_error *err);
/* The same for bytes in memory, which must live as long as `r`; `path` is for messages. */
sac_status reading_parse(struct reading *r, const uint8_t *data, size_t n, const char *path,
                         sac_error *err);
void reading_deinit(struct reading *r);

/* The next record, valid until `r` ends; `*out_more` is false after the last. */
sac_status reading_next(struct reading *r, struct reading_record *out, bool *out_more,
                        sac_error *err);
/* Back to the first record. */
void reading_rewind(struct reading *r);

/* For page `page_i`, below n_page: whether it was read, and its dense mass. */
bool reading_page_read(const struct reading_record *r, uint32_t page_i);
float reading_page_mass(const struct reading_record *r, uint32_t page_i);

#endif
