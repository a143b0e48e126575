/* survey.h: the functions that an instruction set provides for the survey slot (private). */
#ifndef SAC_OPS_CPU_SURVEY_H
#define SAC_OPS_CPU_SURVEY_H

#include "ops/survey.h"

/* What an instruction set does for survey_execute. `room` is a worker's; false: something is not
 * finite. */
struct survey_kernel {
    void (*begin)(const struct op_survey *op, void *room);
    /* The sums of queries of lists (parts of sets) [begin, end). */
    bool (*sum)(const struct op_survey *op, struct attn_range lists, void *room);
    /* What all lists take of pages, when all sums are there. */
    bool (*take)(const struct op_survey *op, struct attn_range pages, void *room);
};

/* The slot, but for the kernel. */
bool survey_execute(struct workers *pool, const struct op_survey *op,
                    const struct survey_kernel *k);

#endif
