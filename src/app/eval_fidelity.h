/* eval_fidelity.h: what `eval fidelity` and `eval sweep` share: one run of eval/fidelity.h over a
 * list of methods. A sweep builds the list itself from methods and parameter values. */
#ifndef SAC_APP_EVAL_FIDELITY_H
#define SAC_APP_EVAL_FIDELITY_H

#include "app/options.h"
#include "base/status.h"
#include "base/strbuf.h"

struct eval_sweep {
    const char *budgets, *masses; /* values separated by commas; borrowed */
};

struct eval_fidelity {
    const char *command, *summary;
    const char *methods;      /* if --methods is missing */
    struct eval_sweep *sweep; /* NULL: the list is used as it is, and steps are not timed */
    const char *out;          /* out: --out, or NULL */
};

/* Runs the command; returns the exit code. */
int eval_fidelity_main(struct eval_fidelity *f, int argc, char **argv);

/* Options for struct eval_sweep. */
extern const struct option_spec eval_sweep_specs[];
/* Expands every method to "NAME:key=value,..." for each value: of `mass` if it has that parameter,
 * else of `budget`. Methods with neither, or with a value of their own, are unchanged. */
sac_status eval_sweep_list(struct strbuf *out, const char *methods, const struct eval_sweep *sweep,
                           sac_error *err);

#endif
