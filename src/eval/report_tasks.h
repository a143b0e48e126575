/* report_tasks.h: plots of samples.jsonl. */
#ifndef SAC_EVAL_REPORT_TASKS_H
#define SAC_EVAL_REPORT_TASKS_H

#include "eval/report_data.h"
#include "eval/report_page.h"

/* `series` [data->methods.n]. */
sac_status report_tasks_plots(struct report_page *page, const struct report_data *data,
                              const struct plot_series *series, sac_error *err);

#endif
