/* docsum.h: summarises rows of docs.jsonl: means for each kind of question, method and place, with
 * bootstrap intervals of the scores and of their paired differences to one of the methods. */
#ifndef SAC_EVAL_DOCSUM_H
#define SAC_EVAL_DOCSUM_H

#include "base/strbuf.h"
#include "eval/docrow.h"
#include "eval/summary.h"

struct docsum_row {
    const struct docrow *first;      /* whose task, documents and method it is; borrowed */
    const char *place;               /* "all": of every place */
    struct summary_mean score, diff; /* diff.n 0: nothing to compare with */
    double mean[DOCROW_FIELDS];      /* NAN: not measured */
};

struct docsum {
    struct docsum_row *row; /* [n] owned; by cell and method in order of appearance, then place */
    size_t n;
    char base[DOCROW_METHOD]; /* what others are compared with: the first row's method */
};

/* Borrows from `rows` until docsum_deinit. */
sac_status docsum_make(struct docsum *out, const struct docrows *rows, sac_error *err);
void docsum_deinit(struct docsum *s);

/* A list of objects, one a kind of question, method and place; the caller's. NULL without
 * memory. */
struct cJSON *docsum_json(const struct docsum *s);
/* Tables for people, one for each kind of question. */
void docsum_text(const struct docsum *s, struct strbuf *out);

/* Mean of the errors in each layer over the rows of a method and a kind of question; `out`
 * [DOCROW_LAYER_MAX]. Returns the number of layers. */
uint32_t docsum_layers(const struct docrows *rows, const struct docrow *like,
                       double out[DOCROW_LAYER_MAX]);

#endif
