/* dense.c: dense attention in prefill: every query reads every earlier key. Nothing is selected. */
#include "methods/method.h"

const struct method dense_method = {
    .kind = "prefill",
    .name = "dense",
    .summary = "every query attends to every earlier key",
    .about = "Exact causal attention over the whole prompt, computed in tiles. It is the default "
             "and the reference for all others.",
};
