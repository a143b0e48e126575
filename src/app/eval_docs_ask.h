/* eval_docs_ask.h: one question of `saccade eval docs`, asked with each context method. Documents
 * are computed and stored, joined, and asked about. The rows hold the answer, the distance of its
 * distributions and of the documents' values to those of the first method, and the time of each
 * part.
 *
 * All methods of a question use one engine and the same tokens. */
#ifndef SAC_APP_EVAL_DOCS_ASK_H
#define SAC_APP_EVAL_DOCS_ASK_H

#include "app/setup.h"
#include "base/strbuf.h"
#include "eval/docrow.h"
#include "eval/multidoc.h"

#define EVAL_DOCS_METHODS 32u

/* "CONTEXT:key=value,..." or "CONTEXT+DECODE". */
struct eval_docs_method {
    char name[DOCROW_METHOD]; /* both parts */
    char context[DOCROW_METHOD];
    char decode[DOCROW_METHOD]; /* "": full, or what the context method requires */
    uint32_t decode_i;          /* index in the engine */
};

struct eval_docs_methods {
    struct eval_docs_method item[EVAL_DOCS_METHODS];
    size_t n;
    const char *decode[EVAL_DOCS_METHODS + 1]; /* [n_decode], distinct; the first is full */
    uint32_t n_decode;
};

/* Methods are separated by commas; a comma may also continue a method's parameters. Must not be
 * copied. */
sac_status eval_docs_parse(struct eval_docs_methods *out, const char *list, sac_error *err);

struct eval_docs_asking {
    const struct eval_docs_methods *methods;
    const struct multidoc_args *args;
    struct setup *setup;
    sac_model *model;
    sac_docs *store;
    sac_engine *reader; /* computes documents; created by the first question, freed by the caller */
    bool keep;          /* keep the documents in the store */
    bool raw;           /* no chat template */
    bool cold;          /* also measure loading from disk */
    const char *folder; /* of the store, see docs_folder */
    /* Known rows are not computed again. `on_row` receives each new one with its answer. */
    const struct docrows *known;
    sac_status (*on_row)(void *user, const struct docrow *row, const char *answer, sac_error *err);
    void *user;
};

/* `question`: everything except the method and the measurements is filled in. */
sac_status eval_docs_ask(struct eval_docs_asking *a, const struct docrow *question, sac_error *err);

#endif
