/* sheet.h: results in rows, for people (Markdown) and for programs (JSON, JSON lines, CSV, SQL), on
 * stdout. A row is printed as soon as it is complete. */
#ifndef SAC_APP_SHEET_H
#define SAC_APP_SHEET_H

#include <stddef.h>

/* In the order of SHEET_FORMATS, which is for an option's choices. */
enum sheet_format { SHEET_MD, SHEET_JSON, SHEET_JSONL, SHEET_CSV, SHEET_SQL };
#define SHEET_FORMATS "md|json|jsonl|csv|sql"

/* One column of one row. Rows of a sheet have the same columns. */
struct sheet_cell {
    const char *key;   /* for programs; NULL: only people want it */
    const char *title; /* for people; NULL: only programs want it */
    int digits;        /* behind the point, for people */
    /* A text, a list (without a title), or (both NULL) a number; NAN: there is none. */
    const char *text;
    const double *list;
    size_t n_list;
    double number;
};

struct sheet {
    enum sheet_format format;
    const char *table; /* borrowed: its name in SQL */
    size_t n_row;
};

struct sheet sheet_begin(enum sheet_format format, const char *table);
void sheet_row(struct sheet *s, const struct sheet_cell *cell, size_t n_cell);
void sheet_end(struct sheet *s);

#endif
