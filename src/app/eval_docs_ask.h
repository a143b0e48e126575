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
    char name[DOCROW_METHOD]; /* both */
    char context[DOCROW_METHOD];
    char decode[DOCROW_METHOD]; /* "": full, or what the context method needs */
    uint32_t decode_i;          /* of the engine's */
};

struct eval_docs_methods {
    struct eval_docs_method item[EVAL_DOCS_METHODS];
    size_t n;
    const char *decode[EVAL_DOCS_METHODS + 1]; /* [n_decode] each once; the first is full */
    uint32_t n_decode;
};

/* A comma parts methods, unless what follows is a further parameter. Must not be copied. */
sac_status eval_docs_parse(struct eval_docs_methods *out, const char *list, sac_error *err);

struct eval_docs_asking {
    const struct eval_docs_methods *methods;
    const struct multidoc_args *args;
    struct setup *setup;
    sac_model *model;
    sac_docs *store;
    sac_engine *reader; /* computes documents; made by the first question, the caller's to free */
    bool keep;          /* documents stay in the store */
    bool raw;           /* no chat template */
    bool cold;          /* how long loading takes from disk is measured, too */
    const char *folder; /* of the store, as docs_folder takes it */
    /* Rows that are known already are not asked again. `on_row` gets each new one with the answer.
     */
    const struct docrows *known;
    sac_status (*on_row)(void *user, const struct docrow *row, const char *answer, sac_error *err);
    void *user;
};

/* `question` names it: all but the method and what was measured is filled in. */
sac_status eval_docs_ask(struct eval_docs_asking *a, const struct docrow *question, sac_error *err);

#endif
