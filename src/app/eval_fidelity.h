/* eval_fidelity.h: what `eval fidelity` and `eval sweep` share: one run of eval/fidelity.h over a
 * list of methods. A sweep builds the list itself from methods and parameter values. */
#ifndef SAC_APP_EVAL_FIDELITY_H
#define SAC_APP_EVAL_FIDELITY_H

#include "app/options.h"
#include "base/status.h"
#include "base/strbuf.h"

struct eval_sweep {
    const char *budgets, *masses; /* values parted by commas; borrowed */
};

struct eval_fidelity {
    const char *command, *summary;
    const char *methods;      /* without --methods */
    struct eval_sweep *sweep; /* NULL: the list is taken as it is, and no step is timed */
    const char *out;          /* out: --out, or NULL */
};

/* Parses, measures, prints and writes; the exit code. */
int eval_fidelity_main(struct eval_fidelity *f, int argc, char **argv);

/* Options of struct eval_sweep. */
extern const struct option_spec eval_sweep_specs[];
/* "NAME:key=value,..." for every method of `methods` and every value of its dial: `mass` if it has
 * that parameter, else `budget`; a method with neither, or with its own value, stands as it is. */
sac_status eval_sweep_list(struct strbuf *out, const char *methods, const struct eval_sweep *sweep,
                           sac_error *err);

#endif
