/* report_series.h: which colour and shape each method has, the same in all plots of a report.
 *
 * Methods that differ only in their parameters are a family: they share a colour and differ in
 * shape and dashes. */
#ifndef SAC_EVAL_REPORT_SERIES_H
#define SAC_EVAL_REPORT_SERIES_H

#include "base/status.h"
#include "eval/plot.h"
#include "eval/strlist.h"

/* `*out` [methods->n] is owned by the caller (mem_free); names are borrowed from the list. The
 * colour of a method is the number of its family. */
sac_status report_series_make(struct plot_series **out, const struct strlist *methods,
                              sac_error *err);

#endif
