/* registered.h: decode methods that a program registers at run time (sac_method_register). They
 * follow the built-in ones in every list and are called in the same way. */
#ifndef SAC_METHODS_REGISTERED_H
#define SAC_METHODS_REGISTERED_H

#include "methods/method.h"

/* The i-th one; NULL after the last. */
const struct method *registered_at(size_t i);

#endif
