/* table.c: see the header. Files get every digit that a float of the recorder can hold, the
 * readable table gets four. */
#include "eval/table.h"

#include "base/mem.h"
#include "eval/markup.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void table_init(struct table *t, const struct table_column *column, size_t n_column)
{
    assert(n_column > 0);
    *t = (struct table){.column = column, .n_column = n_column};
}

void table_deinit(struct table *t)
{
    for (size_t i = 0; i < t->n_row * t->n_column; i++) mem_free((char *)t->cell[i].text);
    mem_free(t->cell);
    *t = (struct table){.column = t->column, .n_column = t->n_column};
}

void table_add(struct table *t, const struct table_cell *row)
{
    if (t->failed) return;
    if (t->n_row == t->row_room) {
        const size_t room = t->row_room ? 2 * t->row_room : 16;
        struct table_cell *grown = mem_realloc(t->cell, room * t->n_column * sizeof *grown);
        t->failed = !grown;
        if (!grown) return;
        t->cell = grown;
        t->row_room = room;
    }
    struct table_cell *to = t->cell + t->n_row * t->n_column;
    for (size_t i = 0; i < t->n_column; i++) {
        to[i] = row[i];
        if (t->column[i].form != TABLE_TEXT) {
            to[i].text = NULL;
            continue;
        }
        to[i].text = mem_strdup(row[i].text ? row[i].text : "");
        t->failed |= !to[i].text;
    }
    t->n_row++;
}

static void add_exact(struct strbuf *out, double v, const char *unknown)
{
    if (!isfinite(v))
        strbuf_adds(out, unknown);
    else
        strbuf_addf(out, "%.9g", v);
}

void table_csv(const struct table *t, struct strbuf *out)
{
    for (size_t i = 0; i < t->n_column; i++)
        strbuf_addf(out, "%s%s", i ? "," : "", t->column[i].name);
    strbuf_adds(out, "\r\n");
    for (size_t k = 0; k < t->n_row * t->n_column; k++) {
        const struct table_cell *c = &t->cell[k];
        if (k % t->n_column) strbuf_adds(out, ",");
        if (c->text)
            markup_csv(out, c->text, strlen(c->text));
        else
            add_exact(out, c->number, "");
        if ((k + 1) % t->n_column == 0) strbuf_adds(out, "\r\n");
    }
}

void table_json(const struct table *t, struct strbuf *out)
{
    strbuf_adds(out, "{\"columns\":[");
    for (size_t i = 0; i < t->n_column; i++) {
        if (i) strbuf_adds(out, ",");
        markup_json(out, t->column[i].name, strlen(t->column[i].name));
    }
    strbuf_adds(out, "],\"rows\":[");
    for (size_t k = 0; k < t->n_row * t->n_column; k++) {
        const struct table_cell *c = &t->cell[k];
        const size_t i = k % t->n_column;
        strbuf_adds(out, i ? "," : k ? ",\n[" : "\n[");
        if (c->text)
            markup_json(out, c->text, strlen(c->text));
        else
            add_exact(out, c->number, "null");
        if (i + 1 == t->n_column) strbuf_adds(out, "]");
    }
    strbuf_adds(out, "]}");
}

/* 1234567 as "1,234,567". */
static void group_digits(char buf[32], double v)
{
    char plain[32];
    const int n = snprintf(plain, sizeof plain, "%.0f", fabs(v));
    size_t to = 0;
    if (v < 0) buf[to++] = '-';
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) buf[to++] = ',';
        buf[to++] = plain[i];
    }
    buf[to] = 0;
}

void table_number(char buf[32], enum table_form form, double v)
{
    if (!isfinite(v)) {
        snprintf(buf, 32, "\xe2\x80\x93"); /* a dash */
    } else if (v == 0 && form == TABLE_NUMBER) {
        snprintf(buf, 32, "0"); /* exactly */
    } else if (form == TABLE_COUNT && fabs(v) < 1e15) {
        group_digits(buf, v);
    } else if (form == TABLE_SHARE) {
        snprintf(buf, 32, "%.*f %%", fabs(v) < 0.0995 ? 2 : 1, 100 * v);
    } else if (v != 0 && (fabs(v) < 1e-3 || fabs(v) >= 1e7)) {
        snprintf(buf, 32, "%.2e", v);
    } else {
        const double mag = fabs(v);
        if (mag >= 1000)
            group_digits(buf, v);
        else
            snprintf(buf, 32, "%.*f", mag >= 100 ? 1 : mag >= 10 ? 2 : 3, v);
    }
}

void table_html(const struct table *t, size_t row_max, struct strbuf *out)
{
    strbuf_adds(out, "<table><thead><tr>");
    for (size_t i = 0; i < t->n_column; i++) {
        const struct table_column *c = &t->column[i];
        strbuf_adds(out, c->form == TABLE_TEXT ? "<th scope=\"col\" class=\"t\">"
                                               : "<th scope=\"col\">");
        markup_html(out, c->title, strlen(c->title));
        strbuf_adds(out, "</th>");
    }
    strbuf_adds(out, "</tr></thead><tbody>\n");
    for (size_t row = 0; row < t->n_row && row < row_max; row++) {
        strbuf_adds(out, "<tr>");
        for (size_t i = 0; i < t->n_column; i++) {
            const struct table_cell *c = &t->cell[row * t->n_column + i];
            char buf[32];
            if (!c->text) table_number(buf, t->column[i].form, c->number);
            const char *text = c->text ? c->text : buf;
            strbuf_adds(out, c->text ? "<td class=\"t\">" : "<td>");
            markup_html(out, text, strlen(text));
            strbuf_adds(out, "</td>");
        }
        strbuf_adds(out, "</tr>\n");
    }
    strbuf_adds(out, "</tbody></table>\n");
}
