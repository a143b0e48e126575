/* report_docs.c: see the header. A method has one colour and shape in all four figures. */
#include "eval/report_docs.h"

#include "base/mem.h"
#include "eval/docsum.h"
#include "eval/multidoc.h"
#include "eval/report_series.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_SERIES 64u
#define N_PLACE    3u

struct docs_report {
    struct report_page *page;
    const struct docrows *rows;
    struct docsum sum;
    struct strlist methods;
    struct plot_series *series; /* [methods.n] */
};

/* One kind of question: its rows of the summary over all places, one for each method. */
struct cell {
    const struct docsum_row *row[MAX_SERIES];
    struct plot_series series[MAX_SERIES];
    size_t n;
    char heading[192];
};

static size_t method_of(const struct docs_report *r, const char *name)
{
    size_t i = 0;
    while (i < r->methods.n && strcmp(r->methods.item[i], name) != 0) i++;
    return i;
}

/* The cell that begins at row `*at` of the summary; false at the end. */
static bool next_cell(const struct docs_report *r, size_t *at, struct cell *out)
{
    const struct docrow *first = *at < r->sum.n ? r->sum.row[*at].first : NULL;
    *out = (struct cell){.n = 0};
    if (!first) return false;
    for (; *at < r->sum.n && docrow_same_cell(r->sum.row[*at].first, first); ++*at) {
        const struct docsum_row *row = &r->sum.row[*at];
        if (strcmp(row->place, "all") != 0 || out->n == MAX_SERIES) continue;
        out->row[out->n] = row;
        out->series[out->n++] = r->series[method_of(r, row->first->method)];
    }
    snprintf(out->heading, sizeof out->heading, "%s: %u documents of %u tokens%s (%s, %s)",
             first->task, first->n_document, first->n_tok,
             first->has_filler ? ", half of them from a text" : "", first->model, first->kv);
    return true;
}

static const struct docsum_row *row_of(const struct docs_report *r, const struct docrow *like,
                                       const char *place)
{
    for (size_t i = 0; i < r->sum.n; i++) {
        const struct docsum_row *s = &r->sum.row[i];
        if (strcmp(s->place, place) == 0 && strcmp(s->first->method, like->method) == 0 &&
            docrow_same_cell(s->first, like))
            return s;
    }
    return NULL;
}

static sac_status finish(const struct docs_report *r, struct report_figure *f, sac_error *err)
{
    const sac_status status = report_page_figure(r->page, f, err);
    table_deinit(&f->table);
    strbuf_deinit(&f->panels);
    return status;
}

/* ---- Bars by place ---- */

static const struct table_column place_columns[] = {
    {"question", "question", TABLE_TEXT},   {"method", "method", TABLE_TEXT},
    {"place", "place", TABLE_TEXT},         {"n", "samples", TABLE_COUNT},
    {"score", "score", TABLE_SHARE},        {"score_low", "95 % from", TABLE_SHARE},
    {"score_high", "95 % to", TABLE_SHARE}, {"diff", "difference", TABLE_SHARE},
    {"diff_low", "95 % from", TABLE_SHARE}, {"diff_high", "95 % to", TABLE_SHARE},
};

static void place_row(struct table *t, const struct cell *c, const struct docsum_row *s)
{
    const bool has_diff = s->diff.n > 0;
    table_add(t, (struct table_cell[]){{.text = c->heading},
                                       {.text = s->first->method},
                                       {.text = s->place},
                                       {.number = s->score.n},
                                       {.number = s->score.mean},
                                       {.number = s->score.low},
                                       {.number = s->score.high},
                                       {.number = has_diff ? s->diff.mean : (double)NAN},
                                       {.number = has_diff ? s->diff.low : (double)NAN},
                                       {.number = has_diff ? s->diff.high : (double)NAN}});
}

/* The bars of one place are adjacent, in the order of the legend. */
static void place_bars(struct plot *plot, const struct docs_report *r, const struct cell *c,
                       struct table *table)
{
    const double width = 0.84 / (double)c->n;
    for (uint32_t p = 0; p < N_PLACE; p++)
        for (size_t i = 0; i < c->n; i++) {
            const struct docsum_row *s = row_of(r, c->row[i]->first, multidoc_place(p));
            if (!s) continue;
            char tip[200];
            const double x = p + 0.08 + ((double)i + 0.5) * width;
            snprintf(tip, sizeof tip, "%.120s, %s: %.1f %%", c->series[i].name, s->place,
                     100 * s->score.mean);
            plot_bar(plot, i, (struct plot_span){x - 0.45 * width, x + 0.45 * width}, s->score.mean,
                     tip);
            plot_interval(plot, i, x, s->score.low, s->score.high);
            plot_point(plot, i, x, s->score.mean, tip);
            place_row(table, c, s);
        }
}

static sac_status plot_places(const struct docs_report *r, sac_error *err)
{
    static const plot_name place_name[N_PLACE] = {"first", "middle", "last"};
    struct report_figure f = {
        .name = "docs-places",
        .title = "Scores by place of the evidence",
        .text = "Share of questions that were answered rightly, by the part of the document in "
                "which the evidence stands; bars of 95 % by bootstrap. The table has the paired "
                "differences to the first method.",
    };
    struct cell c;
    table_init(&f.table, place_columns, sizeof place_columns / sizeof place_columns[0]);
    for (size_t at = 0; next_cell(r, &at, &c);) {
        char id[64];
        report_page_panel(&f, c.heading, id);
        const struct plot_axes axes = {
            .words = {id, c.heading, f.text, "place of the evidence", "score"},
            .x = {.form = SCALE_LINEAR, .lo = 0, .hi = N_PLACE},
            .y = {.form = SCALE_LINEAR, .unit = SCALE_PERCENT, .lo = 0, .hi = 1},
            .x_name = place_name,
            .n_x_name = N_PLACE,
            .series = c.series,
            .n_series = c.n,
        };
        struct plot plot = plot_begin(&f.panels, &axes);
        place_bars(&plot, r, &c, &f.table);
        plot_end(&plot);
        report_page_panel_end(&f);
    }
    return finish(r, &f, err);
}

/* ---- Scores and errors by time to the first token ---- */

static const struct table_column time_columns[] = {
    {"question", "question", TABLE_TEXT},
    {"method", "method", TABLE_TEXT},
    {"ttft_ms", "first token, ms", TABLE_NUMBER},
    {"score", "score", TABLE_SHARE},
    {"kl", "KL", TABLE_NUMBER},
    {"kv_error", "value error", TABLE_NUMBER},
    {"resident_share", "kept", TABLE_SHARE},
    {"recomputed_share", "computed again", TABLE_SHARE},
    {"bytes", "own bytes", TABLE_COUNT},
    {"peak_bytes", "peak bytes", TABLE_COUNT},
    {"rss_bytes", "process bytes", TABLE_COUNT},
    {"load_ms", "load, ms", TABLE_NUMBER},
    {"load_file_ms", "load from files, ms", TABLE_NUMBER},
    {"load_cold_ms", "load from disk, ms", TABLE_NUMBER},
    {"join_ms", "join, ms", TABLE_NUMBER},
    {"probe_ms", "probe, ms", TABLE_NUMBER},
    {"refresh_ms", "refresh, ms", TABLE_NUMBER},
    {"query_ms", "query, ms", TABLE_NUMBER},
};

static void time_rows(struct table *t, const struct cell *c)
{
    for (size_t i = 0; i < c->n; i++) {
        const double *m = c->row[i]->mean;
        table_add(t, (struct table_cell[]){{.text = c->heading},
                                           {.text = c->row[i]->first->method},
                                           {.number = m[DOCROW_TTFT]},
                                           {.number = c->row[i]->score.mean},
                                           {.number = m[DOCROW_KL]},
                                           {.number = m[DOCROW_KV_ERROR]},
                                           {.number = m[DOCROW_RESIDENT]},
                                           {.number = m[DOCROW_RECOMPUTED]},
                                           {.number = m[DOCROW_BYTES]},
                                           {.number = m[DOCROW_PEAK]},
                                           {.number = m[DOCROW_RSS]},
                                           {.number = m[DOCROW_LOAD]},
                                           {.number = m[DOCROW_LOAD_FILE]},
                                           {.number = m[DOCROW_LOAD_COLD]},
                                           {.number = m[DOCROW_JOIN]},
                                           {.number = m[DOCROW_PROBE]},
                                           {.number = m[DOCROW_REFRESH]},
                                           {.number = m[DOCROW_QUERY]}});
    }
}

/* The quantity on the y axis. */
struct against {
    const char *name, *title, *text, *label;
    enum docrow_field field;
};

/* Times from the smallest to the largest, on a logarithmic axis if they span a large factor. */
static struct scale time_scale(const struct cell *c)
{
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < c->n; i++) {
        const double v = c->row[i]->mean[DOCROW_TTFT];
        if (!(v > 0)) continue;
        least = fmin(least, v);
        most = fmax(most, v);
    }
    if (!(least <= most)) least = most = 1;
    if (least >= most / 10)
        return (struct scale){.form = SCALE_LINEAR, .unit = SCALE_MS, .lo = 0, .hi = most * 1.05};
    return (struct scale){
        .form = SCALE_LOG10, .unit = SCALE_MS, .lo = least * 0.85, .hi = most * 1.15};
}

static void kl_scale(const struct cell *c, struct plot_axes *axes)
{
    double lo = INFINITY, hi = 0;
    for (size_t i = 0; i < c->n; i++) {
        const double v = c->row[i]->mean[DOCROW_KL];
        if (!(v > 0)) axes->y_zero = "0";
        if (!(v > 0)) continue;
        lo = fmin(lo, v);
        hi = fmax(hi, v);
    }
    if (!(lo <= hi)) lo = hi = 1e-3; /* all are zero */
    axes->y = (struct scale){.form = SCALE_LOG10, .lo = lo, .hi = hi};
    scale_round(&axes->y, 6);
}

static void time_marks(struct plot *plot, const struct cell *c, const struct against *a)
{
    double x[MAX_SERIES], y[MAX_SERIES];
    for (size_t i = 0; i < c->n; i++) {
        x[i] = c->row[i]->mean[DOCROW_TTFT];
        y[i] = c->row[i]->mean[a->field];
    }
    plot_families(plot, x, y);
    for (size_t i = 0; i < c->n; i++) {
        char tip[256], value[32];
        table_number(value, a->field == DOCROW_SCORE ? TABLE_SHARE : TABLE_NUMBER, y[i]);
        snprintf(tip, sizeof tip, "%.120s: %s %s, %.0f ms", c->series[i].name, a->label, value,
                 x[i]);
        if (a->field == DOCROW_SCORE)
            plot_interval(plot, i, x[i], c->row[i]->score.low, c->row[i]->score.high);
        plot_point(plot, i, x[i], y[i], tip);
    }
}

static sac_status plot_time(const struct docs_report *r, const struct against *a, sac_error *err)
{
    struct report_figure f = {.name = a->name, .title = a->title, .text = a->text};
    struct cell c;
    table_init(&f.table, time_columns, sizeof time_columns / sizeof time_columns[0]);
    for (size_t at = 0; next_cell(r, &at, &c);) {
        char id[64];
        report_page_panel(&f, c.heading, id);
        struct plot_axes axes = {
            .words = {id, c.heading, a->text, "time to the first token", a->label},
            .x = time_scale(&c),
            .y = {.form = SCALE_LINEAR, .unit = SCALE_PERCENT, .lo = 0, .hi = 1},
            .series = c.series,
            .n_series = c.n,
        };
        if (a->field == DOCROW_KL) kl_scale(&c, &axes);
        struct plot plot = plot_begin(&f.panels, &axes);
        time_marks(&plot, &c, a);
        plot_end(&plot);
        report_page_panel_end(&f);
        time_rows(&f.table, &c);
    }
    return finish(r, &f, err);
}

/* ---- Errors of values by layer ---- */

static const struct table_column layer_columns[] = {
    {"question", "question", TABLE_TEXT},
    {"method", "method", TABLE_TEXT},
    {"layer", "layer", TABLE_COUNT},
    {"error", "value error", TABLE_NUMBER},
};

struct layers {
    double error[DOCROW_LAYER_MAX];
    uint32_t n;
};

static void layer_panel(struct report_figure *f, const struct cell *c, const struct layers *layers)
{
    char id[64];
    double x[DOCROW_LAYER_MAX], most = 0;
    uint32_t n_layer = 1;
    for (size_t i = 0; i < c->n; i++) {
        n_layer = layers[i].n > n_layer ? layers[i].n : n_layer;
        for (uint32_t l = 0; l < layers[i].n; l++) most = fmax(most, layers[i].error[l]);
    }
    for (uint32_t l = 0; l < DOCROW_LAYER_MAX; l++) x[l] = l;
    report_page_panel(f, c->heading, id);
    struct plot_axes axes = {
        .words = {id, c->heading, f->text, "layer", "relative error of values"},
        .x = {.form = SCALE_LINEAR, .lo = 0, .hi = n_layer - 1},
        .y = {.form = SCALE_LINEAR, .lo = 0, .hi = most > 0 ? most : 1},
        .series = c->series,
        .n_series = c->n,
    };
    scale_round(&axes.x, 6);
    scale_round(&axes.y, 6);
    struct plot plot = plot_begin(&f->panels, &axes);
    for (size_t i = 0; i < c->n; i++) {
        plot_line(&plot, i, x, layers[i].error, layers[i].n, true);
        for (uint32_t l = 0; l < layers[i].n; l++)
            table_add(&f->table, (struct table_cell[]){{.text = c->heading},
                                                       {.text = c->row[i]->first->method},
                                                       {.number = l},
                                                       {.number = layers[i].error[l]}});
    }
    plot_end(&plot);
    report_page_panel_end(f);
}

static sac_status plot_layers(const struct docs_report *r, sac_error *err)
{
    struct report_figure f = {
        .name = "docs-layers",
        .title = "Error of the documents' values by layer",
        .text = "How far the documents' values, as the method left them, are from the first "
                "method's: relative L2 distance over the pages that are kept.",
    };
    struct cell c;
    struct layers *layers = mem_calloc(MAX_SERIES, sizeof *layers);
    if (!layers) return error_set(err, SAC_ERR_MEMORY, "out of memory for a plot");
    table_init(&f.table, layer_columns, sizeof layer_columns / sizeof layer_columns[0]);
    for (size_t at = 0; next_cell(r, &at, &c);) {
        uint32_t n = 0;
        for (size_t i = 0; i < c.n; i++) {
            layers[i].n = docsum_layers(r->rows, c.row[i]->first, layers[i].error);
            n += layers[i].n;
        }
        if (n) layer_panel(&f, &c, layers);
    }
    mem_free(layers);
    return finish(r, &f, err);
}

/* ---- The figures ---- */

static sac_status find_methods(struct docs_report *r, sac_error *err)
{
    for (size_t i = 0; i < r->rows->n; i++)
        if (!strlist_has(&r->methods, r->rows->row[i].method))
            strlist_add(&r->methods, r->rows->row[i].method);
    if (r->methods.failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for names");
    return report_series_make(&r->series, &r->methods, err);
}

sac_status report_docs_plots(struct report_page *page, const struct docrows *rows, sac_error *err)
{
    static const struct against score = {
        "docs-time", "Scores against time to the first token",
        "Share of questions that were answered rightly, wherever the evidence stands, against the "
        "time to the first token. The table has the parts of the time, memory and shares.",
        "score", DOCROW_SCORE};
    static const struct against kl = {
        "docs-kl", "KL divergence against time to the first token",
        "How far the distributions of the right answer's tokens are from the first method's, "
        "against the time to the first token.",
        "KL divergence", DOCROW_KL};
    struct docs_report r = {.page = page, .rows = rows};
    if (rows->n == 0) return SAC_OK;
    sac_status status = find_methods(&r, err);
    if (status == SAC_OK) status = docsum_make(&r.sum, rows, err);
    if (status == SAC_OK) status = plot_places(&r, err);
    if (status == SAC_OK) status = plot_time(&r, &score, err);
    if (status == SAC_OK) status = plot_time(&r, &kl, err);
    if (status == SAC_OK) status = plot_layers(&r, err);
    docsum_deinit(&r.sum);
    strlist_deinit(&r.methods);
    mem_free(r.series);
    return status;
}
