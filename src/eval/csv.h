/* csv.h: reads a table of comma-separated values: what `bench -o csv` prints and docs keep.
 *
 * RFC 4180 in UTF-8: the first line names the columns, cells may stand in quotes, and lines may end
 * in LF or CRLF. All rows have as many cells as the first; empty lines are left out. Input is
 * hostile: what breaks the form is an error with the table's name and the line. */
#ifndef SAC_EVAL_CSV_H
#define SAC_EVAL_CSV_H

#include "base/status.h"
#include "eval/strlist.h"

struct csv {
    struct strlist cell; /* [n_row + 1, n_column], the first row holds the names */
    size_t n_row, n_column;
};

/* `name` is used in messages. The caller frees `out` with csv_deinit, after an error too. */
sac_status csv_parse(struct csv *out, const char *name, const char *text, size_t n, sac_error *err);
void csv_deinit(struct csv *c);

/* Removes the rows whose cell in this column is not `value`. */
void csv_filter(struct csv *c, size_t column_i, const char *value);

/* A cell's text, borrowed. */
const char *csv_cell(const struct csv *c, size_t row_i, size_t column_i);
/* The index of a column; SAC_ERR_NOT_FOUND with a message that lists the columns. */
sac_status csv_column(const struct csv *c, const char *name, size_t *out, sac_error *err);

#endif
