/* multidoc.h: questions over several documents, for methods that store documents' keys and values
 * and join them: the evidence is in the first, the middle or the last part of its documents. A
 * method that keeps only first and last blocks must fail on the middle.
 *
 * Documents are separate, because each is computed alone. The same arguments and cell give the same
 * documents; documents of another place differ only in the place of the evidence. */
#ifndef SAC_EVAL_MULTIDOC_H
#define SAC_EVAL_MULTIDOC_H

#include "base/status.h"

#include <stdint.h>

#define MULTIDOC_MAX 64u

/* A text whose passages fill every second document. */
struct multidoc_filler {
    char *text;       /* owned */
    size_t *sentence; /* [n_sentence] offsets at which sentences begin; owned */
    size_t n_sentence;
};

/* Copies `text`, which must have 100 sentences or more. */
sac_status multidoc_filler_init(struct multidoc_filler *f, const char *text, size_t n,
                                sac_error *err);
void multidoc_filler_deinit(struct multidoc_filler *f);

struct multidoc_args {
    uint64_t seed;
    uint32_t n_document;   /* 1 to MULTIDOC_MAX */
    uint32_t n_tok;        /* mean tokens per document; each is at most 30 % longer or shorter */
    uint32_t n_duplicate;  /* documents without evidence that occur twice, if that many can */
    uint32_t n_distractor; /* documents without evidence that almost answer the question */
    const struct multidoc_filler *filler; /* for every second document; NULL: generated prose */
};

/* "docs_facts": one document answers; "docs_hop": one names a keeper, another has the value. NULL
 * after the last. */
const char *multidoc_name(uint32_t i);
/* "first", "middle", "last"; NULL after these. */
const char *multidoc_place(uint32_t i);

struct multidoc_cell {
    const char *task, *place;
    uint32_t index; /* number among questions that are otherwise alike */
};

struct multidoc {
    char *document[MULTIDOC_MAX]; /* [n] owned */
    uint32_t n;
    char question[256], prefix[192]; /* the question; the given start of the answer */
    char expected[16];
    uint32_t evidence[2]; /* indices of documents: the one that names the keeper, and the one that
                             has the value */
};

/* `model` counts tokens. */
sac_status multidoc_make(struct multidoc *out, const struct multidoc_args *args,
                         const struct multidoc_cell *cell, const sac_model *model, sac_error *err);
void multidoc_deinit(struct multidoc *m);

#endif
