/* csv.c: see the header. A cell is gathered byte by byte, as quotes in it are written twice. */
#include "eval/csv.h"

#include "base/strbuf.h"

#include <assert.h>
#include <string.h>

struct reader {
    struct csv *out;
    const char *name, *at, *end;
    size_t line;        /* of `at`, from 1 */
    struct strbuf cell; /* owned */
};

static bool is_line_end(const struct reader *r)
{
    return r->at == r->end || *r->at == '\n' ||
           (*r->at == '\r' && r->at + 1 < r->end && r->at[1] == '\n');
}

static sac_status read_quoted(struct reader *r, sac_error *err)
{
    const size_t first_line = r->line;
    for (r->at++; r->at < r->end; r->at++) {
        r->line += *r->at == '\n';
        if (*r->at == '"') {
            r->at++;
            if (r->at == r->end || *r->at != '"') return SAC_OK;
        }
        strbuf_add(&r->cell, r->at, 1);
    }
    return error_set(err, SAC_ERR_FORMAT, "%s:%zu: a quote is not closed", r->name, first_line);
}

static sac_status read_cell(struct reader *r, sac_error *err)
{
    strbuf_reset(&r->cell);
    if (r->at < r->end && *r->at == '"') {
        TRY(read_quoted(r, err));
        if (!is_line_end(r) && *r->at != ',')
            return error_set(err, SAC_ERR_FORMAT, "%s:%zu: text behind a closed quote", r->name,
                             r->line);
    }
    for (; !is_line_end(r) && *r->at != ','; r->at++) strbuf_add(&r->cell, r->at, 1);
    strlist_addn(&r->out->cell, r->cell.n ? r->cell.data : "", r->cell.n);
    if (r->cell.failed || r->out->cell.failed)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for %s", r->name);
    return SAC_OK;
}

static sac_status read_row(struct reader *r, sac_error *err)
{
    const size_t line = r->line;
    size_t n = 0;
    for (;; r->at++) {
        TRY(read_cell(r, err));
        n++;
        if (is_line_end(r)) break;
        assert(*r->at == ',');
    }
    if (!r->out->n_column)
        r->out->n_column = n;
    else if (n == r->out->n_column)
        r->out->n_row++;
    else
        return error_set(err, SAC_ERR_FORMAT, "%s:%zu: %zu cells, the first line names %zu",
                         r->name, line, n, r->out->n_column);
    return SAC_OK;
}

static void skip_line_end(struct reader *r)
{
    if (r->at == r->end) return;
    r->at += *r->at == '\r' ? 2 : 1;
    r->line++;
}

sac_status csv_parse(struct csv *out, const char *name, const char *text, size_t n, sac_error *err)
{
    *out = (struct csv){0};
    if (n && memchr(text, 0, n))
        return error_set(err, SAC_ERR_FORMAT, "%s: holds a zero byte, so it is no table", name);
    struct reader r = {.out = out, .name = name, .at = text, .end = n ? text + n : text, .line = 1};
    sac_status status = SAC_OK;
    while (status == SAC_OK && r.at < r.end) {
        if (!is_line_end(&r)) status = read_row(&r, err);
        if (status == SAC_OK) skip_line_end(&r);
    }
    strbuf_deinit(&r.cell);
    if (status == SAC_OK && !out->n_column)
        return error_set(err, SAC_ERR_FORMAT, "%s is empty: a table's first line names its columns",
                         name);
    return status;
}

void csv_deinit(struct csv *c)
{
    strlist_deinit(&c->cell);
    *c = (struct csv){0};
}

void csv_filter(struct csv *c, size_t column_i, const char *value)
{
    assert(column_i < c->n_column);
    const size_t n_row = c->n_row, n = c->n_column;
    c->n_row = 0;
    for (size_t i = 1; i <= n_row; i++) {
        char **row = c->cell.item + i * n;
        if (strcmp(row[column_i], value) != 0) continue;
        /* Rows are exchanged, so that each cell is still owned exactly once. */
        char **to = c->cell.item + ++c->n_row * n;
        for (size_t k = 0; k < n; k++) {
            char *const taken = row[k];
            row[k] = to[k];
            to[k] = taken;
        }
    }
}

const char *csv_cell(const struct csv *c, size_t row_i, size_t column_i)
{
    assert(row_i < c->n_row && column_i < c->n_column);
    return c->cell.item[(row_i + 1) * c->n_column + column_i];
}

sac_status csv_column(const struct csv *c, const char *name, size_t *out, sac_error *err)
{
    struct strbuf names = {0};
    for (size_t i = 0; i < c->n_column; i++) {
        if (strcmp(c->cell.item[i], name) == 0) {
            *out = i;
            strbuf_deinit(&names);
            return SAC_OK;
        }
        strbuf_addf(&names, "%s%s", i ? ", " : "", c->cell.item[i]);
    }
    error_set(err, SAC_ERR_NOT_FOUND, "no column '%s'; there are %s", name,
              names.data ? names.data : "none");
    strbuf_deinit(&names);
    return SAC_ERR_NOT_FOUND;
}
