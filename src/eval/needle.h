/* needle.h: a fact hidden in a long text at a chosen depth, and the question for it. */
#ifndef SAC_EVAL_NEEDLE_H
#define SAC_EVAL_NEEDLE_H

#include "eval/haystack.h"
#include "eval/task.h"

enum needle_kind {
    NEEDLE_NUMBER,   /* a number of seven digits that belongs to a thing */
    NEEDLE_SENTENCE, /* what is best to eat in a town: judged by key words */
    NEEDLE_GIVEN,    /* specified by the user */
};

struct needle_args {
    const struct haystack *haystack; /* borrowed */
    uint64_t seed;
    enum needle_kind kind;
    uint32_t n_needle; /* the first is at the cell's depth, the others at equal distances after it;
                          all are asked for */
    /* NEEDLE_GIVEN; n_needle is 1 */
    const char *needle, *question;
    const struct strlist *expected; /* key words of the answer */
};

/* A task_source's `make`; `arg` is a struct needle_args. Judged by METRIC_ALL_MATCH. */
sac_status needle_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                       struct task_sample *out, sac_error *err);

/* The passkey test: a number of five digits between lines of noise. `arg` is a uint64_t, the seed.
 */
sac_status needle_make_passkey(const void *arg, const struct task_text *t,
                               const struct task_cell *cell, struct task_sample *out,
                               sac_error *err);

#endif
