/* table.h: the data of one plot, kept once and written three times: as CSV beside the report, as
 * JSON inside of it, and as a table for people.
 *
 * Contract: an append that finds no memory sets `failed` and later ones do nothing; check once.
 * Numbers that are not known are NAN: empty in CSV, null in JSON, a dash for people. */
#ifndef SAC_EVAL_TABLE_H
#define SAC_EVAL_TABLE_H

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

enum table_form {
    TABLE_TEXT,
    TABLE_NUMBER, /* four significant digits for people */
    TABLE_COUNT,  /* an integer with thousands separators */
    TABLE_SHARE,  /* a percentage in readable tables, 0 to 1 in files */
};

struct table_column {
    const char *name;  /* key in JSON and column in CSV: "share_read" */
    const char *title; /* heading of readable tables: "KV read" */
    enum table_form form;
};

struct table_cell {
    const char *text; /* for TABLE_TEXT; copied by table_add */
    double number;    /* for the others */
};

struct table {
    const struct table_column *column; /* [n_column], borrowed */
    size_t n_column;
    struct table_cell *cell; /* [n_row, n_column]; owned, with its texts */
    size_t n_row, row_room;
    bool failed;
};

void table_init(struct table *t, const struct table_column *column, size_t n_column);
void table_deinit(struct table *t);
void table_add(struct table *t, const struct table_cell *row /* [n_column] */);

void table_csv(const struct table *t, struct strbuf *out);
/* A JSON object: "columns" with the names, "rows" with a list for each row. */
void table_json(const struct table *t, struct strbuf *out);
/* A table element with at most `row_max` rows. */
void table_html(const struct table *t, size_t row_max, struct strbuf *out);

/* A number in readable form: at most four significant digits. */
void table_number(char buf[32], enum table_form form, double v);

#endif
