/* report_docs.h: plots of docs.jsonl: scores by place as bars, scores and distances against the
 * time to the first token, errors of values by layer. */
#ifndef SAC_EVAL_REPORT_DOCS_H
#define SAC_EVAL_REPORT_DOCS_H

#include "eval/docrow.h"
#include "eval/report_page.h"

/* A panel for each kind of question; none without rows. */
sac_status report_docs_plots(struct report_page *page, const struct docrows *rows, sac_error *err);

#endif
