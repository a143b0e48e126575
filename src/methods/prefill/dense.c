/* dense.c: the prefill method without a choice: every query reads every earlier key. */
#include "methods/method.h"

const struct method dense_method = {
    .kind = "prefill",
    .name = "dense",
    .summary = "every query attends to every earlier key",
    .about = "Exact causal attention over the whole prompt, computed in tiles. It is the default "
             "and the reference for all others.",
};
