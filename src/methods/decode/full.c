/* full.c: the decode method without a choice: a new token reads the whole context. */
#include "methods/method.h"

const struct method full_method = {
    .kind = "decode",
    .name = "full",
    .summary = "every new token reads the whole context",
    .about = "Exact attention over all tokens. It is the default, the yardstick of all others, and "
             "what every other method turns into while its budget covers the context.",
};
