/* registered.h: decode methods that a program gives at run time (sac_method_register). They stand
 * behind the built-in ones in every list, and are asked like these. */
#ifndef SAC_METHODS_REGISTERED_H
#define SAC_METHODS_REGISTERED_H

#include "methods/method.h"

/* The i-th one; NULL behind the last. */
const struct method *registered_at(size_t i);

#endif
