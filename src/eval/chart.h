/* chart.h: two columns of a table as an SVG file that stands alone: it brings its style sheet,
 * reads well on light and dark pages, and depends on the table alone.
 *
 * An axis whose values are positive and span a factor of 16 or more is logarithmic; a linear y axis
 * begins at 0. */
#ifndef SAC_EVAL_CHART_H
#define SAC_EVAL_CHART_H

#include "base/strbuf.h"
#include "eval/csv.h"

#define CHART_SERIES_MAX 16u

struct chart {
    const char *title;
    const char *x, *y; /* columns of numbers; rows without one of the two are left out */
    const char *by;    /* a column whose values name separate lines, in the order of the table */
    const char *x_label, *y_label;
    bool x_tokens; /* x counts tokens: 4096 is "4K" */
};

/* Appends the file. An error names the column, or the cell that is not a number. */
sac_status chart_svg(struct strbuf *out, const struct csv *table, const struct chart *chart,
                     sac_error *err);

#endif
