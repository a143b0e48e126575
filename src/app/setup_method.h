/* setup_method.h: the attention methods that a command line names, with --budget and --mass.
 *
 * Functions that return int give OPTIONS_GO_ON, or an exit code after they told what is wrong. */
#ifndef SAC_APP_SETUP_METHOD_H
#define SAC_APP_SETUP_METHOD_H

#include "app/setup.h"

/* Finds the method of a kind in NAME:key=value,...; false: there is none. */
bool setup_method_find(const char *kind, const char *spec, sac_method_info *out);
/* Completes and checks a method's specification: --budget and --mass become parameters if it has
 * them. */
int setup_method_spec(const struct setup *s, const char *kind, const char *method, char out[256]);
/* Sets the context method (or NULL); call it before setup_load, since --mass and --budget apply to
 * it, too. If it requires a decode method, that becomes the default. */
int setup_method_context(struct setup *s, const char *method);
/* Sets the lists of `s` to its --prefill and --decode. */
int setup_method_specs(struct setup *s);

#endif
