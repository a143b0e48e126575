/* ruler.h: the 13 tasks of RULER (Hsieh et al., 2024, arXiv:2404.06654), made here: same structure,
 * numbers of keys, values and hops, and scores; the wording is our own, so that results compare
 * with each other, not with published ones. */
#ifndef SAC_EVAL_RULER_H
#define SAC_EVAL_RULER_H

#include "eval/haystack.h"
#include "eval/task.h"

struct ruler_args {
    const struct haystack *haystack; /* the "essay"; borrowed */
    uint64_t seed;
};

/* The i-th task's name ("niah_single_1", ...); NULL after the last. */
const char *ruler_name(uint32_t i);
bool ruler_has(const char *name);
/* The answer length and metric of the public suite's task, for its files; false if RULER has no
 * task of this name. */
bool ruler_rules(const char *name, uint32_t *out_new_tok, enum metric *out_metric);

/* A task_source's `make`; `arg` is a struct ruler_args and the cell names the task. */
sac_status ruler_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                      struct task_sample *out, sac_error *err);

#endif
