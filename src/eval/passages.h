/* passages.h: which passages of the documents in a prompt an answer read.
 *
 * First the documents are located in the prompt. While the answer is generated, softmax masses are
 * summed over its rows, the layers and the KV heads, for each passage, that is, the tokens that a
 * page and a document share; other text in the page of a document's end does not count. The first
 * tokens of the prompt, which are attention sinks, are left out. Passages end at word boundaries.
 *
 * A mass counts squared: a page to which one head attends strongly was read, one to which many
 * heads attend weakly was not. Lower layers are left out, because they attend to punctuation and to
 * sinks beyond the first tokens whatever is asked. With both rules a hidden sentence holds nine
 * tenths of the weight, where the plain mean of masses gives it between two and four tenths (4K
 * tokens, qwen2.5-coder-0.5b; 487 tokens, smollm2-135m). */
#ifndef SAC_EVAL_PASSAGES_H
#define SAC_EVAL_PASSAGES_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

struct passage {
    uint32_t tok, tok_end;       /* of the prompt */
    size_t begin, end;           /* bytes of `document` of struct passages */
    size_t char_begin, char_end; /* characters of its document, as it was given */
    double share;                /* of the weight of all passages; 0 to 1 */
    uint32_t document;           /* index of its document */
    uint32_t page;               /* page of its document where it begins; 0: the document has no
                                    pages */
    double mass;                 /* mean softmax mass over rows, upper layers and KV heads */
};

struct passages {
    const char *document; /* [n_bytes] all documents, a blank line between them; in `text` */
    size_t n_bytes;
    struct passage *item; /* [n], in the order of the document; owned */
    size_t n;
    struct strbuf text;
    uint64_t n_record;
    uint32_t first_layer; /* the first layer that counts */
};

struct passages_document {
    const char *text; /* [n] as it is in the prompt; a template may have trimmed white space */
    size_t n;
};

struct passages_prompt {
    const sac_model *model;
    const int32_t *tok; /* [n_tok] the whole prompt */
    size_t n_tok;
    const struct passages_document *document; /* [n_document] in their order */
    size_t n_document;
    bool may_lack; /* a document that is not in the prompt verbatim gets no passages */
};

/* Locates the documents; SAC_ERR_UNSUPPORTED if one is not in the prompt verbatim. `p` is
 * zeroed. */
sac_status passages_find(struct passages *p, const struct passages_prompt *prompt, sac_error *err);
/* Appends the text of tokens in the form in which documents are located: their pieces, without the
 * final newlines that separate a stored document from what follows. */
void passages_add_pieces(struct strbuf *out, const sac_model *model, const int32_t *tok,
                         size_t n_tok);
/* A sac_read_fn that adds a record; `user` is the struct passages. Prompt rows do not count. */
void passages_take(void *user, const sac_read_record *r);
/* Converts the sums to shares. */
void passages_share(struct passages *p);

/* Locates the documents and records from the next step on; the engine was created with `record`. */
sac_status passages_begin(struct passages *p, sac_engine *engine,
                          const struct passages_prompt *prompt, sac_error *err);
/* Ends the recording and computes the shares. */
sac_status passages_finish(struct passages *p, sac_engine *engine, sac_error *err);
void passages_deinit(struct passages *p);

/* The level of a share: from 0, hardly read, to PASSAGES_N_LEVEL - 1, most of what was read. */
#define PASSAGES_N_LEVEL 5u
unsigned passages_level(double share);

/* A JSON list of objects with begin, end, document (1 is the first), share, mass, and page if there
 * are pages. */
struct cJSON *passages_json(const struct passages *p);

#endif
