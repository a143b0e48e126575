/* method_spec.h: settings of methods, whatever they are, for contexts of a few hundred tokens. */
#ifndef SAC_TESTS_METHOD_SPEC_H
#define SAC_TESTS_METHOD_SPEC_H

#include "methods/method.h"
#include "saccade.h"

#include <stdio.h>
#include <string.h>

#define METHOD_SPEC_BYTES 160

/* Adds "wish" where the method knows it. */
static inline void method_spec_add(char spec[METHOD_SPEC_BYTES], const struct method *m,
                                   const char *wish)
{
    char longer[METHOD_SPEC_BYTES];
    const char sep = strchr(spec, ':') ? ',' : ':';
    snprintf(longer, sizeof longer, "%.*s%c%.32s", METHOD_SPEC_BYTES / 2, spec, sep, wish);
    if (sac_method_check(m->kind, longer, NULL) == SAC_OK) memcpy(spec, longer, METHOD_SPEC_BYTES);
}

/* One that reads a part: `budget` tokens, or half of the mass. */
static inline void method_spec_part(char spec[METHOD_SPEC_BYTES], const struct method *m,
                                    uint32_t budget)
{
    static const char *const wish[] = {
        "mass=0.5", "dense=0",    "sink=4",        "local=8",    "init=4",      "block=32",
        "bits=8",   "tables=30",  "dense_every=0", "gate=1",     "warm=snapkv", "prompt=age",
        "most=1",   "segment=64", "columns=32",    "slashes=48", "band=8",      "least=128"};
    char text[32];
    snprintf(spec, METHOD_SPEC_BYTES, "%s", m->name);
    snprintf(text, sizeof text, "budget=%u", budget);
    method_spec_add(spec, m, text);
    for (size_t i = 0; i < sizeof wish / sizeof wish[0]; i++) method_spec_add(spec, m, wish[i]);
    snprintf(text, sizeof text, "recent=%u", budget / 2);
    for (uint32_t i = 0; i < m->n_param; i++) /* tokens; others count pages, 128 at most */
        if (strcmp(m->param[i].key, "recent") == 0 && m->param[i].max > 128)
            method_spec_add(spec, m, text);
}

#endif
