/* multidoc.h: questions over several documents, for methods that keep documents' keys and values
 * and join them: the evidence stands in the first, the middle or the last part of its documents. A
 * method that keeps first and last blocks only must fail on the middle.
 *
 * Documents come apart, for each is computed alone. The same arguments and cell give the same
 * documents, and documents of another place differ in where the evidence stands and in nothing
 * else. */
#ifndef SAC_EVAL_MULTIDOC_H
#define SAC_EVAL_MULTIDOC_H

#include "base/status.h"

#include <stdint.h>

#define MULTIDOC_MAX 64u

/* A text whose passages fill documents. */
struct multidoc_filler {
    char *text;       /* owned */
    size_t *sentence; /* [n_sentence] where sentences begin; owned */
    size_t n_sentence;
};

/* Copies `text`; at least 100 sentences. */
sac_status multidoc_filler_init(struct multidoc_filler *f, const char *text, size_t n,
                                sac_error *err);
void multidoc_filler_deinit(struct multidoc_filler *f);

struct multidoc_args {
    uint64_t seed;
    uint32_t n_document;   /* 1 to MULTIDOC_MAX */
    uint32_t n_tok;        /* of a document, in the mean; each is 30 % longer or shorter at most */
    uint32_t n_duplicate;  /* documents without evidence that stand there twice, if so many can */
    uint32_t n_distractor; /* documents without evidence that say almost what is asked */
    const struct multidoc_filler *filler; /* of every second document; NULL: generated prose */
};

/* "docs_facts": one document answers; "docs_hop": one names a keeper, another says the value. NULL
 * behind the last. */
const char *multidoc_name(uint32_t i);
/* "first", "middle", "last"; NULL behind. */
const char *multidoc_place(uint32_t i);

struct multidoc_cell {
    const char *task, *place;
    uint32_t index; /* of the questions that differ in nothing else */
};

struct multidoc {
    char *document[MULTIDOC_MAX]; /* [n] owned */
    uint32_t n;
    char question[256], prefix[192]; /* what stands behind them; what the answer begins with */
    char expected[16];
    uint32_t evidence[2]; /* documents: of the keeper's name, and of the value */
};

/* `model` counts tokens. */
sac_status multidoc_make(struct multidoc *out, const struct multidoc_args *args,
                         const struct multidoc_cell *cell, const sac_model *model, sac_error *err);
void multidoc_deinit(struct multidoc *m);

#endif
