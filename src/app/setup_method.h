/* setup_method.h: the attention methods that a command line names, with --budget and --mass.
 *
 * Functions that return int give OPTIONS_GO_ON, or an exit code after they told what is wrong. */
#ifndef SAC_APP_SETUP_METHOD_H
#define SAC_APP_SETUP_METHOD_H

#include "app/setup.h"

/* The method of a kind that NAME:key=value,... names; false: there is none. */
bool setup_method_find(const char *kind, const char *spec, sac_method_info *out);
/* A method with --budget and --mass of `s` as two of its parameters, if it has them, checked. */
int setup_method_spec(const struct setup *s, const char *kind, const char *method, char out[256]);
/* Takes a context method, or NULL, before setup_load: --mass and --budget are for it, too, and
 * context_spec is what it comes to with them. One that needs a decode method brings it, unless
 * another is named. */
int setup_method_context(struct setup *s, const char *method);
/* Makes the lists of `s` for an engine of its --prefill and --decode. */
int setup_method_specs(struct setup *s);

#endif
