/* docsum.h: summarises rows of docs.jsonl: means for each kind of question, method and place, with
 * bootstrap intervals of the scores and of their paired differences to one of the methods. */
#ifndef SAC_EVAL_DOCSUM_H
#define SAC_EVAL_DOCSUM_H

#include "base/strbuf.h"
#include "eval/docrow.h"
#include "eval/summary.h"

struct docsum_row {
    const struct docrow *first;      /* a row of the same task, documents and method; borrowed */
    const char *place;               /* "all": rows of every place */
    struct summary_mean score, diff; /* diff.n is 0: there is nothing to compare with */
    double mean[DOCROW_FIELDS];      /* NAN: not measured */
};

struct docsum {
    /* [n] owned; by kind of question and method in order of appearance, then by place */
    struct docsum_row *row;
    size_t n;
    char base[DOCROW_METHOD]; /* the method of the first row, with which the others are compared */
};

/* Borrows from `rows` until docsum_deinit. */
sac_status docsum_make(struct docsum *out, const struct docrows *rows, sac_error *err);
void docsum_deinit(struct docsum *s);

/* A JSON list with an object for each kind of question, method and place, owned by the caller. NULL
 * without memory. */
struct cJSON *docsum_json(const struct docsum *s);
/* Readable tables, one for each kind of question. */
void docsum_text(const struct docsum *s, struct strbuf *out);

/* The mean error in each layer over the rows with the kind of question and the method of `like`;
 * `out` [DOCROW_LAYER_MAX]. Returns the number of layers. */
uint32_t docsum_layers(const struct docrows *rows, const struct docrow *like,
                       double out[DOCROW_LAYER_MAX]);

#endif
