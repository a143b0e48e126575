/* library.h: the server's store of documents. Each API key has its own documents: it cannot see,
 * join or remove those of another. For the engine's thread only. */
#ifndef SAC_SERVE_LIBRARY_H
#define SAC_SERVE_LIBRARY_H

#include "serve/ask.h"
#include "serve/journal.h"

struct library;

struct library_options {
    const sac_model *model;
    struct journal *journal; /* hears which file of the store fails; clients hear of no path */
    const char *dir;
    const char *context; /* how several are joined where a request says nothing; NULL: it must */
    uint64_t bytes_max;  /* of all files; those unused for the longest time go. 0: any number */
};

/* Borrows the engine and what the options point to. */
sac_status library_open(struct library **out, sac_engine *engine,
                        const struct library_options *options, sac_error *err);
void library_close(struct library *l);

/* Called between pieces of what takes long; may compute other requests. True gives up. */
struct library_wait {
    sac_progress_fn progress;
    void *user;
};

/* Adds, lists or removes, as the ask says; `out` gets the answer's JSON. */
sac_status library_work(struct library *l, const struct ask *ask, uint64_t key,
                        struct library_wait wait, struct strbuf *out, sac_error *err);
struct library_joined {
    sac_seq seq; /* new: the documents behind the prompt's head; the caller's */
    sac_compose_report report;
    /* Of the whole prompt, where the answer's reading is kept: the ask's texts before the
     * documents, these, the texts behind them. The caller's. */
    struct passages passages;
};

/* Joins the ask's documents. */
sac_status library_join(struct library *l, const struct ask *ask, uint64_t key,
                        struct library_wait wait, struct library_joined *out, sac_error *err);

#endif
