/* spec.h: parses "NAME:key=value,key=value" to a method and its parameters. Every error names the
 * word that is wrong and lists the valid ones. */
#ifndef SAC_METHODS_SPEC_H
#define SAC_METHODS_SPEC_H

#include "base/status.h"
#include "methods/method.h"

#define SPEC_BYTES 256u /* of a whole text, the NUL included */

struct spec {
    const struct method *method;
    _Alignas(double) uint8_t param[PARAM_BYTES]; /* the method's struct of parameters (param.h) */
    char text[SPEC_BYTES];                       /* as it was given */
    char file[SPEC_BYTES];                       /* of its SAC_PARAM_FILE parameter; "": none */
};

/* The methods of one kind that an engine may use. Never moved: `text` points into `spec`. */
struct spec_list {
    struct spec spec[SAC_METHODS_MAX];
    const char *text[SAC_METHODS_MAX]; /* theirs, in the form of sac_engine_params */
    uint32_t n;
    bool is_dense; /* all of them are dense attention */
};

sac_status spec_parse(struct spec *out, const char *kind, const char *text, sac_error *err);
/* n from 1 to SAC_METHODS_MAX, else SAC_ERR_ARG. */
sac_status spec_list_parse(struct spec_list *out, const char *kind, const char *const *text,
                           uint32_t n, sac_error *err);

/* A budget in tokens, for a context of n tokens: at least 1. */
uint32_t spec_budget(struct param_budget budget, uint32_t n);

#endif
