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

/* Values that are numbers of a row; NAN if not measured. */
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

/* "score", "resident_share", ...: the field's name in files and machine-readable tables. */
const char *docrow_field_name(enum docrow_field field);

struct docrow {
    /* The question. */
    char model[64], kv[16], task[32], place[16];
    uint32_t n_document, n_tok; /* documents; mean tokens of a document */
    uint32_t index;
    int64_t seed;
    bool has_filler;
    /* The method and its settings. */
    char method[DOCROW_METHOD];
    double value[DOCROW_FIELDS];
    double layer_error[DOCROW_LAYER_MAX]; /* [n_layer] relative error of the values by layer;
                                             n_layer 0: unknown */
    uint32_t n_layer;
};

/* Whether two rows are about the same question, whichever method answered; or about questions of
 * the same kind. */
bool docrow_same_question(const struct docrow *a, const struct docrow *b);
bool docrow_same_cell(const struct docrow *a, const struct docrow *b);

/* A JSON object, owned by the caller, who may add to it; NULL without memory. */
struct cJSON *docrow_json(const struct docrow *row);

struct docrows {
    struct docrow *row; /* [n] owned */
    size_t n, room;
    bool was_cut;       /* the last line of the last file was incomplete and is left out */
    size_t whole_bytes; /* length of that file without such a line */
};

sac_status docrows_add(struct docrows *r, const struct docrow *row, sac_error *err);
/* Adds the rows of a file; a row that another file already had is added once. An error names file,
 * line and field. */
sac_status docrows_read(struct docrows *r, const char *path, sac_error *err);
bool docrows_has(const struct docrows *r, const struct docrow *row);
void docrows_deinit(struct docrows *r);

#endif
