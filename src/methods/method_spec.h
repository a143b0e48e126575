/* method_spec.h: parses "NAME:key=value,key=value" to a method and its parameters. Every error
 * names the word that is wrong and lists the valid ones. */
#ifndef SAC_METHODS_METHOD_SPEC_H
#define SAC_METHODS_METHOD_SPEC_H

#include "base/status.h"
#include "methods/method.h"

#define METHOD_SPEC_BYTES 256u /* of a whole text, the NUL included */

struct method_spec {
    const struct method *method;
    _Alignas(double) uint8_t param[PARAM_BYTES]; /* the method's struct of parameters (param.h) */
    char text[METHOD_SPEC_BYTES];                /* as it was given */
    char file[METHOD_SPEC_BYTES];                /* of its SAC_PARAM_FILE parameter; "": none */
};

/* The methods of one kind that an engine may use. Never moved: `text` points into `spec`. */
struct method_spec_list {
    struct method_spec spec[SAC_METHODS_MAX];
    const char *text[SAC_METHODS_MAX]; /* theirs, in the form of sac_engine_params */
    uint32_t n;
    bool is_dense; /* all of them are dense attention */
};

sac_status method_spec_parse(struct method_spec *out, const char *kind, const char *text,
                             sac_error *err);
/* n from 1 to SAC_METHODS_MAX, else SAC_ERR_ARG. */
sac_status method_spec_list_parse(struct method_spec_list *out, const char *kind,
                                  const char *const *text, uint32_t n, sac_error *err);

/* A budget in tokens, for a context of n tokens: at least 1. */
uint32_t method_spec_budget(struct param_budget budget, uint32_t n);

#endif
