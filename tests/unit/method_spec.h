/* method_spec.h: settings of methods, whatever they are, for contexts of a few hundred tokens. */
#ifndef SAC_TESTS_METHOD_SPEC_H
#define SAC_TESTS_METHOD_SPEC_H

#include "methods/method.h"
#include "saccade.h"

#include <stdio.h>
#include <string.h>

#define METHOD_SPEC_BYTES 160

/* One that reads a part: of the wishes below those that the method knows. */
static inline void method_spec_part(char spec[METHOD_SPEC_BYTES], const struct method *m)
{
    static const char *const wish[] = {
        "budget=40",  "mass=0.5",   "dense=0",    "sink=4", "recent=8",    "local=8",    "init=4",
        "block=32",   "bits=8",     "tables=30",  "gate=1", "warm=snapkv", "prompt=age", "most=1",
        "segment=64", "columns=32", "slashes=48", "band=8", "least=128",   "heavy=0.5"};
    snprintf(spec, METHOD_SPEC_BYTES, "%s", m->name);
    for (size_t i = 0; i < sizeof wish / sizeof wish[0]; i++) {
        char longer[METHOD_SPEC_BYTES];
        const char sep = strchr(spec, ':') ? ',' : ':';
        snprintf(longer, sizeof longer, "%.*s%c%s", METHOD_SPEC_BYTES / 2, spec, sep, wish[i]);
        if (sac_method_check(m->kind, longer, NULL) == SAC_OK)
            memcpy(spec, longer, METHOD_SPEC_BYTES);
    }
}

#endif
