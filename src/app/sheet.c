/* sheet.c: see the header. Programs get every number in full, people get it rounded; both read the
 * same cells, so they cannot disagree. It does not align Markdown: rows appear before later ones
 * are known. */
#include "app/sheet.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void print_markdown_cell(const struct sheet_column *column, const struct sheet_cell *cell)
{
    if (cell->text)
        printf("| %s ", cell->text);
    else if (isfinite(cell->number))
        printf("| %.*f ", column->digits, cell->number);
    else
        printf("| - ");
}

static void print_markdown(const struct sheet *t, const struct sheet_cell *cell)
{
    for (size_t i = 0; i < t->n_column; i++)
        if (t->column[i].title) print_markdown_cell(&t->column[i], &cell[i]);
    printf("|\n");
}

/* Quotes are doubled and put around a text that needs them (RFC 4180). */
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

static void print_csv_list(const struct sheet_cell *cell)
{
    for (size_t i = 0; i < cell->n_list; i++) printf("%s%.15g", i ? " " : "", cell->list[i]);
}

static void print_csv(const struct sheet *t, const struct sheet_cell *cell)
{
    const char *comma = "";
    for (size_t i = 0; i < t->n_column; i++) {
        if (!t->column[i].key) continue;
        fputs(comma, stdout);
        if (cell[i].text)
            print_csv_text(cell[i].text);
        else if (cell[i].list)
            print_csv_list(&cell[i]);
        else if (isfinite(cell[i].number))
            printf("%.15g", cell[i].number);
        comma = ",";
    }
    putchar('\n');
}

static void print_json(const struct sheet *t, const struct sheet_cell *cell)
{
    cJSON *row = cJSON_CreateObject();
    for (size_t i = 0; i < t->n_column; i++) {
        const char *key = t->column[i].key;
        if (!key) continue;
        if (cell[i].list)
            cJSON_AddItemToObject(row, key,
                                  cJSON_CreateDoubleArray(cell[i].list, (int)cell[i].n_list));
        else if (cell[i].text)
            cJSON_AddStringToObject(row, key, cell[i].text);
        else
            cJSON_AddNumberToObject(row, key, cell[i].number); /* NAN becomes null */
    }
    char *text = cJSON_PrintUnformatted(row);
    fputs(text ? text : "null", stdout);
    cJSON_free(text);
    cJSON_Delete(row);
}

void sheet_begin(struct sheet *t, enum sheet_format format, const struct sheet_column *column,
                 size_t n_column)
{
    assert(n_column <= SHEET_COLUMNS_MAX);
    *t = (struct sheet){.format = format, .column = column, .n_column = n_column};
    struct sheet_cell head[SHEET_COLUMNS_MAX] = {{0}};
    for (size_t i = 0; i < n_column; i++)
        head[i] = (struct sheet_cell){.text = format == SHEET_MD ? column[i].title : column[i].key};
    if (format == SHEET_MD) {
        print_markdown(t, head);
        for (size_t i = 0; i < n_column; i++)
            if (column[i].title) printf("|---");
        printf("|\n");
    }
    if (format == SHEET_CSV) print_csv(t, head);
    if (format == SHEET_JSON) printf("[");
}

void sheet_row(struct sheet *t, const struct sheet_cell *cell)
{
    if (t->format == SHEET_JSON) printf(t->n_row ? ",\n " : "\n ");
    if (t->format == SHEET_MD)
        print_markdown(t, cell);
    else if (t->format == SHEET_CSV)
        print_csv(t, cell);
    else
        print_json(t, cell);
    if (t->format == SHEET_JSONL) putchar('\n');
    fflush(stdout);
    t->n_row++;
}

void sheet_end(struct sheet *t)
{
    if (t->format == SHEET_JSON) printf("\n]\n");
}
