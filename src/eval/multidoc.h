/* multidoc.h: questions over several documents, for methods that keep documents' keys and values
 * and join them: the evidence stands in the first, the middle or the last part of its documents. A
 * method that keeps first and last blocks only must fail on the middle. */
#ifndef SAC_EVAL_MULTIDOC_H
#define SAC_EVAL_MULTIDOC_H

#include "eval/task.h"

struct multidoc_args {
    uint64_t seed;
    uint32_t n_document;
};

/* "docs_facts": one document answers; "docs_hop": one names a keeper, another says the value. NULL
 * behind the last. */
const char *multidoc_name(uint32_t i);
/* "first", "middle", "last"; NULL behind. */
const char *multidoc_place(uint32_t i);

/* A task_source's `make`; `arg` is a struct multidoc_args. The documents share the cell's context,
 * each 30 % longer or shorter than the mean at most. */
sac_status multidoc_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                         struct task_sample *out, sac_error *err);

#endif
