/* library.h: the server's store of documents. Each API key has its own documents: it cannot see,
 * join or remove those of another. For the engine's thread only. */
#ifndef SAC_SERVE_LIBRARY_H
#define SAC_SERVE_LIBRARY_H

#include "serve/api_request.h"
#include "serve/server_log.h"

struct library;

struct library_options {
    const sac_model *model;
    struct server_log *log; /* logs which file failed; clients see no paths */
    const char *dir;
    const char *context; /* default method for joining documents; NULL: requests must choose */
    uint64_t bytes_max;  /* of all files; the least recently used are removed. 0: no limit */
};

/* Borrows the engine and what the options point to. */
sac_status library_open(struct library **out, sac_engine *engine,
                        const struct library_options *options, sac_error *err);
void library_close(struct library *l);

/* `progress` is called repeatedly during long work and may compute other requests; if it returns
 * true, the work is cancelled. */
struct library_wait {
    sac_progress_fn progress;
    void *user;
};

/* Adds, lists or removes documents; appends the JSON response to `out`. */
sac_status library_work(struct library *l, const struct api_request *request, uint64_t key,
                        struct library_wait wait, struct strbuf *out, sac_error *err);
struct library_joined {
    sac_seq seq; /* new: the head of the prompt and the documents; owned by the caller */
    sac_compose_report report;
    /* If attention is recorded: passages of the whole prompt (texts before the documents,
     * documents, texts after them). Owned by the caller. */
    struct passages passages;
};

/* Joins the documents of the request into a sequence. */
sac_status library_join(struct library *l, const struct api_request *request, uint64_t key,
                        struct library_wait wait, struct library_joined *out, sac_error *err);

#endif
