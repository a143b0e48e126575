/* doc_library.h: the server's store of documents. Each API key has its own documents: it cannot
 * see, join or remove those of another. For the engine's thread only. */
#ifndef SAC_SERVE_DOC_LIBRARY_H
#define SAC_SERVE_DOC_LIBRARY_H

#include "serve/api_request.h"
#include "serve/server_log.h"

struct doc_library;

struct doc_library_options {
    const sac_model *model;
    struct server_log *log; /* logs which file failed; clients see no paths */
    const char *dir;
    const char *context; /* default method for joining documents; NULL: requests must choose */
    uint64_t bytes_max;  /* of all files; the least recently used are removed. 0: no limit */
};

/* Borrows the engine and what the options point to. */
sac_status doc_library_open(struct doc_library **out, sac_engine *engine,
                            const struct doc_library_options *options, sac_error *err);
void doc_library_close(struct doc_library *l);

/* `progress` is called repeatedly during long work and may compute other requests; if it returns
 * true, the work is cancelled. */
struct doc_library_wait {
    sac_progress_fn progress;
    void *user;
};

/* Adds, lists or removes documents; appends the JSON response to `out`. */
sac_status doc_library_work(struct doc_library *l, const struct api_request *request, uint64_t key,
                            struct doc_library_wait wait, struct strbuf *out, sac_error *err);
struct doc_library_joined {
    sac_seq seq; /* new: the head of the prompt and the documents; owned by the caller */
    sac_compose_report report;
    /* If attention is recorded: passages of the whole prompt (texts before the documents,
     * documents, texts after them). Owned by the caller. */
    struct passages passages;
};

/* Joins the documents of the request into a sequence. */
sac_status doc_library_join(struct doc_library *l, const struct api_request *request, uint64_t key,
                            struct doc_library_wait wait, struct doc_library_joined *out,
                            sac_error *err);

#endif
