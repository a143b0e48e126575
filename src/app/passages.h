/* passages.h: which passages of a document an answer read.
 *
 * While the answer is made, the softmax mass of every page is added up over its rows, the layers
 * and the KV heads. Afterwards each page becomes a passage of the document: bytes, ended at borders
 * of words. Left out are the first page, which attention uses as a sink, and pages with tokens of
 * the template or the question, which say nothing of the document.
 *
 * A mass counts with its square: a page that one head looks at squarely is what was read, one at
 * which many heads glance is not. The lower layers look at punctuation and at sinks beyond the
 * first page whatever is asked. With both rules a hidden sentence holds nine tenths of the weight
 * where the plain mean of masses gives it between two and four (4K tokens, qwen2.5-coder-0.5b; 487
 * tokens, smollm2-135m). */
#ifndef SAC_APP_PASSAGES_H
#define SAC_APP_PASSAGES_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

struct cJSON;

struct passage {
    size_t begin, end; /* bytes of the document */
    double share;      /* of the weight of all passages; 0 to 1 */
    double mass;       /* mean softmax mass over rows, upper layers and KV heads */
};

struct passages {
    const char *document; /* [n_bytes], borrowed from passages_make on */
    size_t n_bytes;
    struct passage *item; /* [n], in the order of the document; owned */
    size_t n;
    double *weight, *mass; /* [n_page] sums while recording; owned */
    size_t n_page;
    uint64_t n_record;
    uint32_t first_layer; /* that counts */
};

/* What the pages are mapped to. */
struct passages_prompt {
    const sac_model *model;
    const int32_t *tok; /* [n_tok] the whole prompt */
    size_t n_tok;
    const char *document; /* [n_bytes] as it stands in the prompt */
    size_t n_bytes;
};

/* Records from the next step on; the engine was created with `record`. `n_tok`: of the prompt. */
sac_status passages_begin(struct passages *p, sac_engine *engine, uint32_t n_layer, size_t n_tok,
                          sac_error *err);
/* SAC_ERR_UNSUPPORTED if the document does not stand in the prompt as it is. */
sac_status passages_make(struct passages *p, const struct passages_prompt *prompt, sac_error *err);
void passages_deinit(struct passages *p);

/* 0: hardly read, to PASSAGES_N_LEVEL - 1: most of what was read. */
#define PASSAGES_N_LEVEL 5u
unsigned passages_level(double share);

/* Appends a list of objects with begin, end, share and mass. */
struct cJSON *passages_json(const struct passages *p);

#endif
