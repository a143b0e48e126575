/* matrix.h: prefill methods crossed with decode methods: which pairs an engine accepts, and their
 * scores, as a table. */
#ifndef SAC_EVAL_MATRIX_H
#define SAC_EVAL_MATRIX_H

#include "base/strbuf.h"
#include "eval/subjects.h"
#include "eval/summary.h"

struct matrix {
    struct subjects pairs; /* all requested pairs */
    sac_error *refusal;    /* [pairs.n] why the engine refuses a pair; "": it accepts it. Owned */
};

/* Lists as in subjects_cross. Freed by matrix_deinit, in any case. */
sac_status matrix_make(struct matrix *out, const char *prefill, const char *decode, sac_error *err);
void matrix_deinit(struct matrix *m);

/* Creates an engine for each pair, with `params` otherwise; accepted pairs go to `out_taken`, freed
 * by subjects_deinit in any case. An error if there is none, or no memory. */
sac_status matrix_probe(struct matrix *m, struct subjects *out_taken, const sac_model *model,
                        const sac_engine_params *params, sac_error *err);

/* A table for each task, place and context of the summary: scores in percent, one line per decode
 * method, with the shares computed and read; then the rejections. */
void matrix_markdown(const struct matrix *m, const struct summary *s, struct strbuf *out);
/* Adds an object for each rejected pair to the list of summary_json. */
void matrix_add_refusals(const struct matrix *m, struct cJSON *list);

#endif
