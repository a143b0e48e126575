/* method.h: the attention methods that are built in, as data. The command line's help, the docs and
 * the tests iterate this list. Everything here is constant and may be read by any thread. */
#ifndef SAC_METHODS_METHOD_H
#define SAC_METHODS_METHOD_H

#include <stddef.h>

struct method {
    const char *kind;    /* "prefill" or "decode" */
    const char *name;    /* unique within its kind */
    const char *summary; /* one line, no full stop */
    const char *paper;   /* or NULL */
};

/* NULL behind the last. */
const struct method *method_at(size_t i);
/* NULL: there is no such method. */
const struct method *method_find(const char *kind, const char *name);

#endif
