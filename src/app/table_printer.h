/* table_printer.h: results in rows, for people (Markdown) and for programs (JSON, JSON lines, CSV,
 * SQL), on stdout. A row is printed as soon as it is complete. */
#ifndef SAC_APP_TABLE_PRINTER_H
#define SAC_APP_TABLE_PRINTER_H

#include <stddef.h>

/* In the order of TABLE_PRINTER_FORMATS, the choices of an option. */
enum table_printer_format {
    TABLE_PRINTER_MD,
    TABLE_PRINTER_JSON,
    TABLE_PRINTER_JSONL,
    TABLE_PRINTER_CSV,
    TABLE_PRINTER_SQL
};
#define TABLE_PRINTER_FORMATS "md|json|jsonl|csv|sql"

/* A cell with its column. All rows of a table have the same columns. */
struct table_printer_cell {
    const char *key;   /* name in machine-readable formats; NULL: omitted there */
    const char *title; /* title in tables; NULL: omitted there */
    int digits;        /* decimals in tables */
    /* A string, a list (without a title), or, if both are NULL, a number; NAN: none. */
    const char *text;
    const double *list;
    size_t n_list;
    double number;
};

struct table_printer {
    enum table_printer_format format;
    const char *table; /* borrowed: the table's name in SQL */
    size_t n_row;
};

struct table_printer table_printer_begin(enum table_printer_format format, const char *table);
void table_printer_row(struct table_printer *s, const struct table_printer_cell *cell,
                       size_t n_cell);
void table_printer_end(struct table_printer *s);

#endif
