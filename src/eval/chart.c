/* chart.c: see the header. The colours are those of the reports (colour.h). The drawing itself
 * selects them by the reader's theme, because a page that shows it as an image cannot style it. */
#include "eval/chart.h"

#include "base/mem.h"
#include "eval/colour.h"
#include "eval/plot.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOG_SPAN  16.0
#define VALUE_MAX 1e12 /* axes show smaller values; what tools measure is within the two */
#define VALUE_MIN 1e-9

struct points {
    double *x, *y;    /* [n_row] in the table's order, without rows that lack a finite value */
    size_t *series_i; /* [n_row] */
    double *line_x, *line_y; /* [n_row] of one line */
    struct plot_series series[CHART_SERIES_MAX];
    size_t n_series;
};

static void points_deinit(struct points *p)
{
    mem_free(p->x);
    mem_free(p->y);
    mem_free(p->series_i);
    mem_free(p->line_x);
    mem_free(p->line_y);
}

/* Reads an empty cell as NAN. */
static sac_status read_number(const struct csv *t, size_t row_i, size_t column_i, double *out,
                              sac_error *err)
{
    const char *text = csv_cell(t, row_i, column_i);
    char *end;
    *out = *text ? strtod(text, &end) : (double)NAN;
    const double size = fabs(*out);
    if (*text && (*end || end == text || !isfinite(*out) || size > VALUE_MAX ||
                  (size > 0 && size < VALUE_MIN)))
        return error_set(err, SAC_ERR_FORMAT,
                         "row %zu, column '%s': '%.60s' is not 0 or a number from %g to %g",
                         row_i + 1, t->cell.item[column_i], text, VALUE_MIN, VALUE_MAX);
    return SAC_OK;
}

static sac_status find_series(struct points *p, const char *name, size_t *out, sac_error *err)
{
    for (*out = 0; *out < p->n_series; (*out)++)
        if (strcmp(p->series[*out].name, name) == 0) return SAC_OK;
    if (p->n_series == CHART_SERIES_MAX)
        return error_set(err, SAC_ERR_ARG, "more than %u lines", CHART_SERIES_MAX);
    const unsigned i = (unsigned)p->n_series++;
    p->series[i] = (struct plot_series){.name = name, .colour = i, .mark = i};
    return SAC_OK;
}

static sac_status points_read(struct points *p, const struct csv *t, const struct chart *c,
                              sac_error *err)
{
    size_t x_i, y_i, by_i, n = 0;
    TRY(csv_column(t, c->x, &x_i, err));
    TRY(csv_column(t, c->y, &y_i, err));
    TRY(csv_column(t, c->by, &by_i, err));
    p->x = mem_calloc(t->n_row, sizeof *p->x);
    p->y = mem_calloc(t->n_row, sizeof *p->y);
    p->series_i = mem_calloc(t->n_row, sizeof *p->series_i);
    p->line_x = mem_calloc(t->n_row, sizeof *p->line_x);
    p->line_y = mem_calloc(t->n_row, sizeof *p->line_y);
    if (!p->x || !p->y || !p->series_i || !p->line_x || !p->line_y)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu points", t->n_row);
    for (size_t i = 0; i < t->n_row; i++) {
        TRY(read_number(t, i, x_i, &p->x[i], err));
        TRY(read_number(t, i, y_i, &p->y[i], err));
        if (isnan(p->x[i]) || isnan(p->y[i])) p->x[i] = p->y[i] = (double)NAN;
        if (isnan(p->x[i])) continue;
        TRY(find_series(p, csv_cell(t, i, by_i), &p->series_i[i], err));
        n++;
    }
    if (!n) return error_set(err, SAC_ERR_ARG, "no row has both '%s' and '%s'", c->x, c->y);
    return SAC_OK;
}

static struct scale scale_of(const double *v, size_t n, enum scale_form log_form, bool from_zero)
{
    struct scale s = {.lo = INFINITY, .hi = -INFINITY};
    for (size_t i = 0; i < n; i++) {
        if (isnan(v[i])) continue;
        s.lo = fmin(s.lo, v[i]);
        s.hi = fmax(s.hi, v[i]);
    }
    assert(s.lo <= s.hi);
    if (s.lo > 0 && s.hi >= LOG_SPAN * s.lo)
        s.form = log_form;
    else if (from_zero)
        s.lo = fmin(s.lo, 0);
    scale_round(&s, 6);
    return s;
}

static void add_style(struct strbuf *out)
{
    strbuf_adds(out, "<style>\n");
    plot_css(out);
    strbuf_adds(out, "svg{background:var(--page)}\n:root{");
    plot_theme_css(out, false);
    strbuf_adds(out, "}\n@media(prefers-color-scheme:dark){:root{");
    plot_theme_css(out, true);
    strbuf_adds(out, "}}\n</style>\n");
}

static void draw_series(struct plot *plot, struct points *p, size_t n_row, size_t series_i)
{
    size_t n = 0;
    for (size_t i = 0; i < n_row; i++) {
        if (isnan(p->x[i]) || p->series_i[i] != series_i) continue;
        size_t at = n++;
        for (; at > 0 && p->line_x[at - 1] > p->x[i]; at--) {
            p->line_x[at] = p->line_x[at - 1];
            p->line_y[at] = p->line_y[at - 1];
        }
        p->line_x[at] = p->x[i];
        p->line_y[at] = p->y[i];
    }
    plot_line(plot, series_i, p->line_x, p->line_y, n, true);
}

sac_status chart_svg(struct strbuf *out, const struct csv *table, const struct chart *chart,
                     sac_error *err)
{
    struct points p = {0};
    const sac_status status = points_read(&p, table, chart, err);
    if (status == SAC_OK) {
        struct plot_axes axes = {
            .words = {.id = "chart",
                      .title = chart->title,
                      .desc = chart->y_label,
                      .x_label = chart->x_label,
                      .y_label = chart->y_label},
            .x = scale_of(p.x, table->n_row, SCALE_LOG2, false),
            .y = scale_of(p.y, table->n_row, SCALE_LOG10, true),
            .series = p.series,
            .n_series = p.n_series,
        };
        if (chart->x_tokens) axes.x.unit = SCALE_TOKENS;
        struct plot plot = plot_begin(out, &axes);
        add_style(out);
        for (size_t i = 0; i < p.n_series; i++) draw_series(&plot, &p, table->n_row, i);
        plot_end(&plot);
    }
    points_deinit(&p);
    if (status == SAC_OK && out->failed)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the drawing");
    return status;
}
