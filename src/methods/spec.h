/* spec.h: "NAME:key=value,key=value" to a method and its parameters. Every error names the word
 * that is wrong and lists what would be right. */
#ifndef SAC_METHODS_SPEC_H
#define SAC_METHODS_SPEC_H

#include "base/status.h"
#include "methods/method.h"

#define SPEC_BYTES 256u /* of a whole text, the NUL included */

struct spec {
    const struct method *method;
    double param[METHOD_PARAM_MAX]; /* in the order of the method's table */
    char text[SPEC_BYTES];          /* as it was given */
    char file[SPEC_BYTES];          /* of its SAC_PARAM_FILE parameter; "": none */
};

sac_status spec_parse(struct spec *out, const char *kind, const char *text, sac_error *err);

/* Tokens that a budget parameter means for a context of n tokens: at least 1. */
uint32_t spec_budget(double param, uint32_t n);

#endif
