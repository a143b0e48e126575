/* table_printer.c: see the header. Programs get every number in full, people get it rounded; both
 * read the same cells, so they cannot disagree. Markdown is not aligned, because rows are printed
 * before later ones are known. */
#include "app/table_printer.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* ---- Markdown ---- */

static void print_markdown_head(const struct table_printer_cell *cell, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (cell[i].title) printf("| %s ", cell[i].title);
    printf("|\n");
    for (size_t i = 0; i < n; i++)
        if (cell[i].title) printf(cell[i].text ? "|---" : "|---:");
    printf("|\n");
}

static void print_markdown(const struct table_printer_cell *cell, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!cell[i].title) continue;
        if (cell[i].text)
            printf("| %s ", cell[i].text);
        else if (isfinite(cell[i].number))
            printf("| %.*f ", cell[i].digits, cell[i].number);
        else
            printf("| - ");
    }
    printf("|\n");
}

/* Prints the numbers of a list, if it is one. */
static void print_list(const struct table_printer_cell *cell)
{
    for (size_t i = 0; i < cell->n_list; i++) printf("%s%.15g", i ? " " : "", cell->list[i]);
}

/* ---- CSV (RFC 4180) ---- */

/* Quotes the text if necessary, doubling quotes in it. */
static void print_csv_text(const char *text)
{
    if (!strpbrk(text, ",\"\n\r")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (const char *p = text; *p; p++) {
        if (*p == '"') putchar('"');
        putchar(*p);
    }
    putchar('"');
}

static void print_csv_head(const struct table_printer_cell *cell, size_t n)
{
    const char *comma = "";
    for (size_t i = 0; i < n; i++) {
        if (!cell[i].key) continue;
        printf("%s%s", comma, cell[i].key);
        comma = ",";
    }
    printf("\r\n");
}

static void print_csv(const struct table_printer_cell *cell, size_t n)
{
    const char *comma = "";
    for (size_t i = 0; i < n; i++) {
        if (!cell[i].key) continue;
        fputs(comma, stdout);
        if (cell[i].text) print_csv_text(cell[i].text);
        print_list(&cell[i]);
        if (!cell[i].text && !cell[i].list && isfinite(cell[i].number))
            printf("%.15g", cell[i].number);
        comma = ",";
    }
    printf("\r\n");
}

/* ---- SQL ---- */

static void print_sql_text(const char *text)
{
    putchar('\'');
    for (const char *p = text; *p; p++) {
        if (*p == '\'') putchar('\'');
        putchar(*p);
    }
    putchar('\'');
}

/* Numeric columns have type NUMERIC, which keeps integers. */
static void print_sql_head(const char *table, const struct table_printer_cell *cell, size_t n)
{
    const char *comma = "";
    printf("CREATE TABLE IF NOT EXISTS %s (", table);
    for (size_t i = 0; i < n; i++) {
        if (!cell[i].key) continue;
        printf("%s\"%s\" %s", comma, cell[i].key,
               cell[i].text || cell[i].list ? "TEXT" : "NUMERIC");
        comma = ", ";
    }
    printf(");\n");
}

static void print_sql(const char *table, const struct table_printer_cell *cell, size_t n)
{
    const char *comma = "";
    printf("INSERT INTO %s VALUES (", table);
    for (size_t i = 0; i < n; i++) {
        if (!cell[i].key) continue;
        fputs(comma, stdout);
        if (cell[i].text)
            print_sql_text(cell[i].text);
        else if (cell[i].list) {
            putchar('\'');
            print_list(&cell[i]);
            putchar('\'');
        } else if (isfinite(cell[i].number))
            printf("%.15g", cell[i].number);
        else
            printf("NULL");
        comma = ", ";
    }
    printf(");\n");
}

/* ---- JSON ---- */

static void print_json(const struct table_printer_cell *cell, size_t n)
{
    cJSON *row = cJSON_CreateObject();
    for (size_t i = 0; i < n; i++) {
        if (!cell[i].key) continue;
        if (cell[i].text)
            cJSON_AddStringToObject(row, cell[i].key, cell[i].text);
        else if (cell[i].list)
            cJSON_AddItemToObject(row, cell[i].key,
                                  cJSON_CreateDoubleArray(cell[i].list, (int)cell[i].n_list));
        else
            cJSON_AddNumberToObject(row, cell[i].key, cell[i].number); /* NAN becomes null */
    }
    char *text = cJSON_PrintUnformatted(row);
    fputs(text ? text : "null", stdout);
    cJSON_free(text);
    cJSON_Delete(row);
}

struct table_printer table_printer_begin(enum table_printer_format format, const char *table)
{
    if (format == TABLE_PRINTER_JSON) printf("[");
    return (struct table_printer){.format = format, .table = table};
}

void table_printer_row(struct table_printer *s, const struct table_printer_cell *cell,
                       size_t n_cell)
{
    const bool first = s->n_row++ == 0;
    switch (s->format) {
    case TABLE_PRINTER_MD:
        if (first) print_markdown_head(cell, n_cell);
        print_markdown(cell, n_cell);
        break;
    case TABLE_PRINTER_CSV:
        if (first) print_csv_head(cell, n_cell);
        print_csv(cell, n_cell);
        break;
    case TABLE_PRINTER_SQL:
        if (first) print_sql_head(s->table, cell, n_cell);
        print_sql(s->table, cell, n_cell);
        break;
    case TABLE_PRINTER_JSON:
        printf(first ? "\n " : ",\n ");
        print_json(cell, n_cell);
        break;
    case TABLE_PRINTER_JSONL:
        print_json(cell, n_cell);
        putchar('\n');
        break;
    }
    fflush(stdout);
}

void table_printer_end(struct table_printer *s)
{
    if (s->format == TABLE_PRINTER_JSON) printf("\n]\n");
}
