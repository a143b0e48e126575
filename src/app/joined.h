/* joined.h: documents of a store that are named in a prompt: looked up before the engine is
 * created, so that it can be made as large as they need, then loaded and joined. */
#ifndef SAC_APP_JOINED_H
#define SAC_APP_JOINED_H

#include "app/options.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define JOINED_MAX 64u

#define JOINED_DOCS_HELP                                                                           \
    "documents of 'saccade docs add', placed before everything else; they are not computed again"
#define JOINED_CONTEXT_HELP                                                                        \
    "how several documents become one context: a context method of 'saccade methods', "            \
    "NAME:key=value,..."

struct joined {
    sac_docs *store; /* owned */
    sac_doc doc[JOINED_MAX];
    size_t n;
    char method[256];
    uint32_t n_tok; /* of all documents, with the head once */
    sac_compose_report report;
    double load_ms;
    uint64_t own_bytes;  /* of pages that are not shared with a document */
    uint64_t peak_bytes; /* KV cache, including the documents as loaded */
};

/* Checks the method for the number of documents, before a model is loaded. */
sac_status joined_check(const char *names, const char *method, sac_error *err);

/* Finds "NAME,NAME,..." among the documents of this model and KV type. `method` NULL: a single
 * document, which needs none. */
sac_status joined_open(struct joined *j, const char *store, const char *names, const char *method,
                       sac_error *err);
sac_status joined_find(struct joined *j, const char *names, const sac_model *model,
                       const sac_engine_params *params, sac_error *err);
void joined_close(struct joined *j);

/* Adds what the engine needs for them, besides n_ctx. */
void joined_plan(const struct joined *j, sac_engine_params *params, uint32_t n_ctx);

/* The text around the documents. */
struct joined_prompt {
    const int32_t *head, *question; /* [n_head] before them; [n_question] after them */
    size_t n_head, n_question;
};

/* Joins them into a new sequence. */
sac_status joined_make(struct joined *j, sac_engine *engine, const struct joined_prompt *prompt,
                       sac_seq *out, sac_error *err);

struct cJSON;
struct cJSON *joined_json(const struct joined *j);

#endif
