/* docrow.h: one line of docs.jsonl: a question over joined documents, as one context method
 * answered it. Lines of several files or runs can be concatenated to one evaluation, because a row
 * holds everything that identifies its question. Files are hostile input. */
#ifndef SAC_EVAL_DOCROW_H
#define SAC_EVAL_DOCROW_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOCROW_LAYER_MAX 256u
#define DOCROW_METHOD    256u

struct cJSON;

/* What is a number of its own in a row; NAN where it was not measured. */
enum docrow_field {
    DOCROW_SCORE, /* 0 or 1 */
    DOCROW_RESIDENT,
    DOCROW_RECOMPUTED,
    DOCROW_BYTES,
    DOCROW_TTFT,
    DOCROW_LOAD,
    DOCROW_LOAD_FILE,
    DOCROW_LOAD_COLD,
    DOCROW_JOIN,
    DOCROW_PROBE,
    DOCROW_REFRESH,
    DOCROW_QUERY,
    DOCROW_PEAK,
    DOCROW_RSS,
    DOCROW_KV,
    DOCROW_KL,
    DOCROW_KV_ERROR,
    DOCROW_FIELDS,
};

/* "score", "resident_share", ...: its name in files and tables of machines. */
const char *docrow_field_name(enum docrow_field field);

struct docrow {
    /* The question. */
    char model[64], kv[16], task[32], place[16];
    uint32_t n_document, n_tok; /* documents; tokens of one, in the mean */
    uint32_t index;
    int64_t seed;
    bool has_filler;
    /* Who answered, and how. */
    char method[DOCROW_METHOD];
    double value[DOCROW_FIELDS];
    double layer_error[DOCROW_LAYER_MAX]; /* [n_layer] of values in layers; n_layer 0: unknown */
    uint32_t n_layer;
};

/* The same question, whoever answered; the same kind of question, whichever it is. */
bool docrow_same_question(const struct docrow *a, const struct docrow *b);
bool docrow_same_cell(const struct docrow *a, const struct docrow *b);

/* An object that the caller owns; NULL without memory. More may be added to it. */
struct cJSON *docrow_json(const struct docrow *row);

struct docrows {
    struct docrow *row; /* [n] owned */
    size_t n, room;
    bool was_cut;       /* the last line of the last file was written in part and is left out */
    size_t whole_bytes; /* of that file, before such a line */
};

sac_status docrows_add(struct docrows *r, const struct docrow *row, sac_error *err);
/* Adds the rows of a file; one that is there already, of another file, is taken once. An error
 * names file, line and field. */
sac_status docrows_read(struct docrows *r, const char *path, sac_error *err);
bool docrows_has(const struct docrows *r, const struct docrow *row);
void docrows_deinit(struct docrows *r);

#endif
