/* survey.h: the functions that an instruction set provides for the survey slot (private). */
#ifndef SAC_OPS_CPU_SURVEY_H
#define SAC_OPS_CPU_SURVEY_H

#include "ops/survey.h"

/* Functions of an instruction set. `room` is the scratch of one worker. They return false if a key
 * or sum is not finite. */
struct survey_kernel {
    void (*begin)(const struct op_survey *op, void *room);
    /* Computes the softmax sums of the queries of lists [begin, end). A list is a part of a set. */
    bool (*sum)(const struct op_survey *op, struct attn_range lists, void *room);
    /* Selects keys of pages for all lists, when all sums are complete. */
    bool (*take)(const struct op_survey *op, struct attn_range pages, void *room);
};

/* The survey slot for a kernel. */
bool survey_execute(struct workers *pool, const struct op_survey *op,
                    const struct survey_kernel *k);

#endif
