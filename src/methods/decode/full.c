/* full.c: dense attention in decode: a new token reads the whole context. Nothing is selected. */
#include "methods/method.h"

const struct method full_method = {
    .kind = "decode",
    .name = "full",
    .summary = "every new token attends to the whole context",
    .about = "Exact attention over all tokens. It is the default and the reference for all other "
             "methods, each of which turns into it while its budget covers the context.",
};
