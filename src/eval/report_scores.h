/* report_scores.h: tasks against methods: a table whose cells are coloured by the mean score and
 * hold its 95 % interval. */
#ifndef SAC_EVAL_REPORT_SCORES_H
#define SAC_EVAL_REPORT_SCORES_H

#include "eval/report_data.h"
#include "eval/report_page.h"

/* A panel for each context of samples.jsonl. */
sac_status report_scores_plot(struct report_page *page, const struct report_data *data,
                              sac_error *err);

#endif
