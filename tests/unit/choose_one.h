/* choose_one.h: the choice of one lane, whichever hook its method has. */
#ifndef TESTS_CHOOSE_ONE_H
#define TESTS_CHOOSE_ONE_H

#include "methods/batch.h"

static inline void choose_one(const struct method_decode *hooks, const struct method_lane *lane,
                              struct method_pick *pick)
{
    struct op_lane_result result = {0};
    union op_lane list;
    uint32_t target = 0;
    batch_choose(hooks, &(struct method_batch){.ops = lane->ops,
                                               .n = 1,
                                               .lane = lane,
                                               .pick = pick,
                                               .result = &result,
                                               .target = &target,
                                               .list = &list});
}

#endif
