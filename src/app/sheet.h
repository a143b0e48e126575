/* sheet.h: results in rows, for people (Markdown) and for programs (JSON, JSON lines, CSV), on
 * stdout. A row is printed as soon as it is there. */
#ifndef SAC_APP_SHEET_H
#define SAC_APP_SHEET_H

#include <stddef.h>

/* In the order of SHEET_FORMATS, which is for an option's choices. */
enum sheet_format { SHEET_MD, SHEET_JSON, SHEET_JSONL, SHEET_CSV };
#define SHEET_FORMATS "md|json|jsonl|csv"

#define SHEET_COLUMNS_MAX 64u

struct sheet_column {
    const char *key;   /* for programs; NULL: only people want it */
    const char *title; /* for people; NULL: only programs want it */
    int digits;        /* behind the point, for people */
};

/* A text, a list, or (both NULL) a number; NAN is a value that is not there. Lists are in JSON
 * only. */
struct sheet_cell {
    const char *text;
    double number;
    const double *list;
    size_t n_list;
};

struct sheet {
    enum sheet_format format;
    const struct sheet_column *column; /* [n_column], borrowed */
    size_t n_column, n_row;
};

void sheet_begin(struct sheet *t, enum sheet_format format, const struct sheet_column *column,
                 size_t n_column);
void sheet_row(struct sheet *t, const struct sheet_cell *cell); /* [n_column] */
void sheet_end(struct sheet *t);

#endif
