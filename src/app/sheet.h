/* sheet.h: results in rows, for people (Markdown) and for programs (JSON, JSON lines, CSV, SQL), on
 * stdout. A row is printed as soon as it is complete. */
#ifndef SAC_APP_SHEET_H
#define SAC_APP_SHEET_H

#include <stddef.h>

/* In the order of SHEET_FORMATS, the choices of an option. */
enum sheet_format { SHEET_MD, SHEET_JSON, SHEET_JSONL, SHEET_CSV, SHEET_SQL };
#define SHEET_FORMATS "md|json|jsonl|csv|sql"

/* A cell with its column. All rows of a sheet have the same columns. */
struct sheet_cell {
    const char *key;   /* name in machine-readable formats; NULL: omitted there */
    const char *title; /* title in tables; NULL: omitted there */
    int digits;        /* decimals in tables */
    /* A string, a list (without a title), or, if both are NULL, a number; NAN: none. */
    const char *text;
    const double *list;
    size_t n_list;
    double number;
};

struct sheet {
    enum sheet_format format;
    const char *table; /* borrowed: the table's name in SQL */
    size_t n_row;
};

struct sheet sheet_begin(enum sheet_format format, const char *table);
void sheet_row(struct sheet *s, const struct sheet_cell *cell, size_t n_cell);
void sheet_end(struct sheet *s);

#endif
